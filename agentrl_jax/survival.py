"""What lets a run survive being killed: its ledger on disk and its checkpoints, kept in step with each other.

    RUN_DIR/ledger        every group from its admission to its end, and every version before it is served
    RUN_DIR/checkpoints   params, optimiser, the lagging policy's weights, and where the loop stood

A group stays in the ledger until a durable checkpoint contains the step that consumed it, so whatever a kill undoes
can be trained again, and nothing twice in the history of the surviving params. Synchronous: call it from a thread.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from agentrl_jax.checkpoint import CheckpointStore
from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.controller.journal import Journal
from agentrl_jax.controller.journal_resume import ResumePlan, begin, plan_start, restore_sampler
from agentrl_jax.controller.tasks import TaskSampler
from agentrl_jax.learner import Learner
from agentrl_jax.models.params import Params


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaggingPolicy:
    """What the lagging engines serve: weights of their own, and the version they were published as."""

    weights: Params
    version: int


class Survival:
    """One run's ledger and checkpoints. Use it as a context manager; leaving it waits for the last save."""

    def __init__(self, folder: Path, *, keep: int, before_save: Callable[[int], None] | None = None) -> None:
        """before_save: see `CheckpointStore`.

        Raises ConfigError if another process has the run open, or its folder cannot be written.
        """
        with ExitStack() as opened:
            self.journal = opened.enter_context(Journal(folder / "ledger"))
            on_durable = self.journal.checkpoint_durable
            # Entered last, so left first: the last save still tells the journal that it is durable.
            store = CheckpointStore(folder / "checkpoints", keep=keep, on_durable=on_durable, before_save=before_save)
            self._store = opened.enter_context(store)
            self._opened = opened.pop_all()
        self.step = self._store.latest()
        self._saved: dict[str, Any] | None = None if self.step is None else self._store.loop_state(self.step)
        self._newest: tuple[int, dict[str, Any]] | None = None

    def __enter__(self) -> "Survival":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.__exit__(kind, error, trace)

    @property
    def has_checkpoint(self) -> bool:
        """True if there is a checkpoint to go on from."""
        return self._saved is not None

    @property
    def shares(self) -> dict[str, Any] | None:
        """What `remember` was given, of the newest checkpoint; None if there is none, or it is of an older version."""
        return None if self._saved is None else self._saved.get("shares")

    def restore(self, learner: Learner) -> LaggingPolicy | None:
        """Put the newest checkpoint's state into `learner`; return the lagging policy that was saved with it.

        Raises ConfigError if the checkpoint is of another model or optimiser, or damaged.
        """
        assert self.step is not None
        assert self._saved is not None
        self._store.forget_after(self.step)
        restored = self._store.restore(self.step, learner.abstract_state(), learner.abstract_params())
        learner.restore(restored.state)
        version = self._saved["lagging_version"]
        return None if version is None else LaggingPolicy(weights=restored.lagging, version=version)

    def begin(self, sampler: TaskSampler, rollout: RolloutConfig) -> ResumePlan:
        """Decide what becomes of the groups of earlier processes, and write it down durably.

        From now on the learner's params are version `plan.version`. Raises ConfigError if the tasks, their order or
        the weights of the environments are not those of the run.
        """
        saved = self._saved
        version = None if saved is None else saved["version"]
        plan = plan_start(self.journal, rollout, step=self.step or 0, version=version)
        restore_sampler(sampler, self.journal, saved, plan)
        begin(self.journal, rollout, plan)
        return plan

    def remember(
        self,
        step: int,
        *,
        version: int,
        sampler: TaskSampler,
        lagging_version: int | None,
        shares: dict[str, Any] | None = None,
    ) -> None:
        """Note where the loop stands after `step` steps, all at one moment: call it before anything is awaited."""
        state = {
            "version": version,
            "lagging_version": lagging_version,
            "shares": shares,
            "sampler": sampler.state(),
            "position": self.journal.position(),
        }
        self._newest = (step, state)

    def save(self, learner: Learner, lagging: LaggingPolicy | None, *, num_learned: int) -> bool:
        """Save the newest remembered step in the background; False if there is nothing new, or params ran ahead.

        num_learned: steps that `learner`'s params contain. They contain one more than was remembered if a run is cut
        between learning and taking note of it; such params must not be saved as those of the step before.
        Raises CheckpointError if this or the previous save fails; older checkpoints are untouched.
        """
        if self._newest is None or self._newest[0] in (self.step, None) or self._newest[0] != num_learned:
            return False
        step, state = self._newest
        self.journal.flush()
        self._store.save(step, learner.state, state, None if lagging is None else lagging.weights)
        self.step = step
        return True

    def wait(self) -> None:
        """Return when the last save is durable. Raises CheckpointError if it failed."""
        self._store.wait()
