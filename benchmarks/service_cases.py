"""What is simulated, what it asked for, and what came of it: the records of benchmarks.service_world."""

from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields

from agentrl_jax.errors import ConfigError
from agentrl_jax.types import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is simulated. num_engines + num_learner_gpus is the number of GPUs, unless it is colocated.

    num_steps: that count, after num_warm_up_steps that do not. num_groups: of a batch; None: the model's for the GPUs.
    crowding: episodes that have a place, over those of mean length that the engines' caches hold; with many more, they
    take each other's prefixes out of the caches. keeps_caches: see `ServiceEngine`. warm_up: `num_warm_up_steps`, where
    these are not as many as is usual.
    """

    num_engines: int
    num_learner_gpus: int
    max_staleness: int
    num_steps: int = 8
    is_colocated: bool = False
    num_groups: int | None = None
    crowding: float = 2.0
    keeps_caches: bool = False
    warm_up: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.is_colocated and (self.max_staleness or self.num_engines != self.num_learner_gpus):
            raise ConfigError("a colocated run has max_staleness 0, and engines and learner on the same GPUs")

    @property
    def num_gpus(self) -> int:
        return self.num_engines if self.is_colocated else self.num_engines + self.num_learner_gpus

    @property
    def num_warm_up_steps(self) -> int:
        """All that was admitted at once at the start is consumed after half of them; the stragglers that this crowd has
        left in the caches' way are in batches for as long again."""
        if self.warm_up is not None:
            return self.warm_up
        return 2 * (self.max_staleness + 1) if self.max_staleness else 0


def colocated(num_gpus: int, *, num_steps: int = 8) -> Case:
    """The stronger synchronous baseline."""
    return Case(
        num_engines=num_gpus, num_learner_gpus=num_gpus, max_staleness=0, num_steps=num_steps, is_colocated=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What the measured batches asked for, whoever did it and when.

    num_turns, num_tokens: of the episodes. sampled_tokens: of them. new_tokens: the others, to be prefilled once at
    least. context_tokens: summed over sampled tokens, how many tokens stood before them.
    """

    num_steps: int
    num_groups: int
    num_turns: int
    num_tokens: float
    sampled_tokens: float
    new_tokens: float
    context_tokens: float

    def scaled(self, factor: float) -> "Work":
        """As much of everything in every step."""
        return Work(
            num_steps=self.num_steps,
            num_groups=round(factor * self.num_groups),
            num_turns=round(factor * self.num_turns),
            num_tokens=factor * self.num_tokens,
            sampled_tokens=factor * self.sampled_tokens,
            new_tokens=factor * self.new_tokens,
            context_tokens=factor * self.context_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The measured steps of one run.

    seconds: virtual; total_s, num_turns: of the whole run, turns that no batch got included. Busy shares: of the
    learner's GPUs (publishes included), and of the engines. prefill_over_new: prompt tokens that were computed for the
    measured batches, over those that had to be; what a cache has lost is computed again. num_live, num_open: groups and
    episodes under way, mean over the ends of steps; most_open: episodes, at any time of the whole run.
    straggler_wait_frac: of the time. group_s, slowest_group_s: time of a group, the mean and the longest.
    """

    case: Case
    work: Work
    seconds: float
    total_s: float
    num_turns: int
    learner_busy_frac: float
    engine_busy_frac: float
    prefill_over_new: float
    num_live: float
    num_open: float
    most_open: int
    straggler_wait_frac: float
    age_max: int
    lag_max: int
    group_s: float
    slowest_group_s: float

    @property
    def tokens_per_s(self) -> float:
        return self.work.num_tokens / self.seconds

    @property
    def groups_per_s(self) -> float:
        return self.work.num_groups / self.seconds

    @property
    def step_s(self) -> float:
        return self.seconds / self.work.num_steps


def work_of(groups: Iterable[Group]) -> Work:
    """What one batch asked for."""
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    sampled = context = num_tokens = 0
    for trajectory in trajectories:
        stood = 0
        for turn in trajectory.turns:
            num = len(turn.completion.ids)
            stood += len(turn.context_ids)
            context += num * stood + num * (num - 1) // 2
            stood, sampled = stood + num, sampled + num
        num_tokens += stood
    return Work(
        num_steps=1,
        num_groups=len({trajectory.group_id for trajectory in trajectories}),
        num_turns=sum(len(trajectory.turns) for trajectory in trajectories),
        num_tokens=num_tokens,
        sampled_tokens=sampled,
        new_tokens=num_tokens - sampled,
        context_tokens=context,
    )


def prefilled_tokens(groups: Iterable[Group]) -> int:
    """Prompt tokens that engines computed for one batch: those of every turn that were not in the cache."""
    prefilled = 0
    for group in groups:
        for trajectory in group.trajectories:
            stood = 0
            for turn in trajectory.turns:
                stood += len(turn.context_ids)
                prefilled += stood - turn.completion.cached_tokens
                stood += len(turn.completion.ids)
    return prefilled


def total(works: Iterable[Work]) -> Work:
    """Of several batches together."""
    parts = [astuple(work) for work in works]
    return Work(**dict(zip((field.name for field in fields(Work)), map(sum, zip(*parts, strict=True)), strict=True)))
