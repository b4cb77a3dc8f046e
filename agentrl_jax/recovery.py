"""The steps that a run has recorded, and the params that they were taken with, recovered from its checkpoints."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jax.sharding import Mesh

from agentrl_jax.algo.losses import LossConfig, make_loss
from agentrl_jax.batch import Scores
from agentrl_jax.batch_files import load_batch
from agentrl_jax.checkpoint_reading import CheckpointReader
from agentrl_jax.config import TrainConfig
from agentrl_jax.errors import ConfigError
from agentrl_jax.learner import Learner
from agentrl_jax.learning import resume_learning
from agentrl_jax.packing import PackedBatch
from agentrl_jax.policy import open_policy
from agentrl_jax.runlog import surviving_steps

_TOLERANCE = 0.01
"""Recovered params give every token its recorded log-probability to this, in nats: another mesh or machine rounds
differently, but not that differently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """One step of a run. metrics: what it logged. batch_path: of its batch, None if none was kept."""

    step: int
    metrics: Mapping[str, float]
    batch_path: Path | None

    @property
    def is_applied(self) -> bool:
        return bool(self.metrics.get("is_applied"))


def recorded_steps(run_dir: Path) -> dict[int, RecordedStep]:
    """The steps of a run that no later resume undid, by number. Raises ConfigError if there is none."""
    metrics = run_dir / "metrics.jsonl"
    if not metrics.is_file():
        raise ConfigError(f"{run_dir} has no metrics.jsonl; expected the run directory of a training run")
    found = {}
    for record in surviving_steps(metrics):
        step = int(record["step"])
        path = run_dir / "batches" / f"step-{step:06d}.npz"
        found[step] = RecordedStep(step=step, metrics=record["metrics"], batch_path=path if path.is_file() else None)
    if not found:
        raise ConfigError(f"{run_dir} has not taken a step yet: there is nothing to replay a loss on")
    return found


class Recovery:
    """Gradient norms of a loss at the params that a run had. Ask for steps in ascending order.

    The params before a step are those of the newest checkpoint before it, after the recorded steps in between have been
    taken again with the run's own loss. They are the run's only if the tokens get the log-probabilities that were
    recorded: where settings or code have changed since, or the run did in between, they do not.
    """

    def __init__(
        self, run_dir: Path, config: TrainConfig, loss: LossConfig, mesh: Mesh, recorded: Mapping[int, RecordedStep]
    ) -> None:
        """config: the run's own, its loss included. Raises ConfigError if its policy cannot be opened."""
        self._reader = CheckpointReader(run_dir / "checkpoints")
        self._saved, self._recorded = self._reader.steps(), recorded
        self._run_dir, self._config, self._mesh = run_dir, config, mesh
        self._policy = open_policy(run_dir / "model")
        self._own = self._learner(config.loss)
        self._other = None if loss == config.loss else self._learner(loss)
        self._restored: int | None = None
        self._num_taken = 0

    def can_reach(self, step: int) -> bool:
        """Whether checkpoint and batches from which the params before `step` would follow are still there."""
        return self._start(step) is not None

    def grad_norm(self, batch: PackedBatch, step: int, scores: Sequence[Scores]) -> float | None:
        """The norm before clipping, as the learner would log it with this loss on `batch`; None if the params are not
        those of the run.

        batch, scores: as recorded at `step`, which can be reached.
        """
        start = self._start(step)
        assert start is not None
        if self._restored != start:  # never steps of our own where there is a checkpoint of the run's
            self._own.restore(self._reader.restore(start, self._own.abstract_state()).state)
            self._restored = self._num_taken = start
        for number in range(self._num_taken + 1, step):
            path = self._recorded[number].batch_path
            if self._recorded[number].is_applied and path is not None:
                self._own.step(load_batch(path))
        self._num_taken = step - 1
        if self._other is None:
            learner, self._num_taken = self._own, step
        else:
            learner = self._other
            learner.restore(self._own.state)
        norm = learner.step(batch).grad_norm
        return norm if _agree(batch, learner.scores, scores) else None

    def _start(self, step: int) -> int | None:
        """The newest checkpoint before `step` behind which every step that was applied has its batch."""
        start = max((saved for saved in self._saved if saved < step), default=None)
        if start is None or not all(self._has_batch(number) for number in range(start + 1, step + 1)):
            return None
        return start

    def _has_batch(self, number: int) -> bool:
        step = self._recorded.get(number)
        return step is not None and (not step.is_applied or step.batch_path is not None)

    def _learner(self, loss: LossConfig) -> Learner:
        params = self._policy.load_params(self._mesh)
        return resume_learning(self._config, self._policy.model, make_loss(loss), self._mesh, params, self._run_dir)


def _agree(batch: PackedBatch, found: Sequence[Scores], recorded: Sequence[Scores]) -> bool:
    differences = [
        np.abs(mine.logprobs - theirs.logprobs)[micro_batch.loss_mask]
        for micro_batch, mine, theirs in zip(batch.micro_batches, found, recorded, strict=True)
    ]
    return bool(np.concatenate(differences).max(initial=0.0) <= _TOLERANCE)
