"""What the training loop asks of others, and what it tells them. Values and protocols only."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from agentrl_jax.controller.admission import AdmissionStatistics
from agentrl_jax.controller.group import AdmittedGroup
from agentrl_jax.controller.ledger import Ending, LedgerStatistics
from agentrl_jax.controller.tasks import EnvTasks
from agentrl_jax.controller.watch import RunWarning
from agentrl_jax.types import EpisodeEnd, Group, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """What a learner step came to.

    is_applied: the params changed. is_finite: loss and gradient were; if not, the learner kept its params. A finite
    step is not applied if its batch had nothing to learn from (no group with a signal).
    """

    is_finite: bool
    is_applied: bool
    metrics: Mapping[str, float]


class LearnerPort(Protocol):
    """The side that owns the params."""

    async def step(self, groups: tuple[Group, ...], version: int) -> StepOutcome:
        """Train once on `groups`, from the params of `version`. Cancelling it may take effect when it is done."""
        ...


RunOneGroup = Callable[[AdmittedGroup], Awaitable[Group]]

Publish = Callable[[int], Awaitable[None]]
"""Serve the learner's params as this version; returns once no token is sampled by an older one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimings:
    """Seconds of one step. straggler_wait_s (by env) is part of collect_s: time in which the batch was large enough
    but a group of that env had to be waited for: one that is due now, or, where none is, one of more than later steps
    have room for. Several envs may be waited for at once."""

    collect_s: float
    learn_s: float
    publish_s: float
    straggler_wait_s: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepRecord:
    """One step of the loop, told after its publish.

    version: the learner's before the step. ages: of `groups`, in their order, relative to it.
    dropped, cancelled: the groups that ended so since the previous record; `groups` are the consumed ones.
    num_no_signal: of `dropped`, those that dynamic sampling dropped; the others have no valid member.
    ends: why the episodes of all these groups ended.
    open_tasks: of the groups still in flight, oldest first. Together with the sampler's state at this moment they
      are what a resumed run issues again.
    tasks: where the sampler stands, by env. warnings: what came up in this step and its owner should know.
    ledger, admission: their statistics at this moment.
    """

    step: int
    version: int
    is_finite: bool
    is_applied: bool
    groups: tuple[Group, ...]
    ages: tuple[int, ...]
    dropped: tuple[Group, ...]
    cancelled: tuple[Group, ...]
    num_no_signal: int
    ends: Mapping[EpisodeEnd, int]
    metrics: Mapping[str, float]
    timings: StepTimings
    open_tasks: tuple[Task, ...]
    tasks: Mapping[str, EnvTasks]
    warnings: tuple[RunWarning, ...]
    ledger: LedgerStatistics
    admission: AdmissionStatistics


class JournalPort(Protocol):
    """The durable half of the ledger (journal.py). The loop tells it everything, in this order for each group:
    admitted, perhaps started, completed (if it is to be trained) or ended, and consumed (or ended as cancelled)."""

    def admitted(self, group: AdmittedGroup) -> None:
        """Told at the moment of admission, before anything runs."""
        ...

    def started(self, group: AdmittedGroup) -> None:
        """Told when a group that waited for places starts at a later version than that of its admission."""
        ...

    async def completed(self, group: Group) -> None:
        """Keep `group`; no step consumes it before this returns."""
        ...

    def ended(self, group_id: int, how: Ending) -> None: ...

    async def publishing(self, version: int) -> None:
        """Keep that `version` exists; it is not sent to any engine before this returns."""
        ...

    def consumed(self, step: int, version: int, ages: Mapping[int, int]) -> None:
        """Step number `step`, from 1, was taken from `version` on groups of these ages, by id."""
        ...


class NoJournal:
    """For runs that need not survive: evaluation, simulation."""

    def admitted(self, group: AdmittedGroup) -> None:
        pass

    def started(self, group: AdmittedGroup) -> None:
        pass

    async def completed(self, group: Group) -> None:
        pass

    def ended(self, group_id: int, how: Ending) -> None:
        pass

    async def publishing(self, version: int) -> None:
        pass

    def consumed(self, step: int, version: int, ages: Mapping[int, int]) -> None:
        pass


OnStep = Callable[[StepRecord], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopResult:
    """How the loop ended. num_steps: of this call. is_stopped: on request, before max_steps.

    open_tasks: of the groups that the end cut off, oldest first; a resumed run issues them again.
    """

    version: int
    num_steps: int
    is_stopped: bool
    next_group_id: int
    open_tasks: tuple[Task, ...]
    ledger: LedgerStatistics
    admission: AdmissionStatistics
