"""How much is rolled out, how old it may get, and when a run gives up."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from agentrl_jax.controller.curriculum import CurriculumConfig
from agentrl_jax.controller.quotas import Quotas
from agentrl_jax.errors import ConfigError

Stragglers = Literal["wait", "cancel"]

_MAX_NO_SIGNAL = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig:
    """The pace of the controller (docs/design.md, "Group age"), and what it draws."""

    group_size: int
    """Episodes of each group, at least 2: one alone has no baseline"""
    min_groups_per_batch: int
    """A step begins once so many groups are complete"""
    max_groups_per_batch: int | None = None
    """A step takes at most so many groups (default: every complete one)"""
    max_staleness: int = 1
    """Age in versions that no consumed group exceeds; 0 is the synchronous baseline"""
    task_max_staleness: Mapping[str, int] = field(default_factory=dict)
    """The same for single environments: NAME VALUE ..."""
    stragglers: Stragglers = "wait"
    """Where a step cannot start without a group that still runs: wait for it, or cancel it (favours short ones)"""
    task_weights: Mapping[str, float] = field(default_factory=dict)
    """Share of the tasks that each environment gets, in any unit: NAME VALUE ... (default: all the same)"""
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    dynamic_sampling: bool = False
    """Drop groups without a signal and roll out others instead, as DAPO does (arXiv 2503.14476)"""
    max_no_signal_groups: int = _MAX_NO_SIGNAL
    """With dynamic sampling: so many groups in a row without a signal end the run"""
    max_consecutive_failures: int = 10
    """So many groups in a row of one environment without any valid episode end the run"""
    max_fruitless_steps: int = 50
    """So many steps in a row that taught nothing end the run: not finite, or no signal and no positive reward"""

    def __post_init__(self) -> None:
        least = {"group_size": 2, "min_groups_per_batch": 1, "max_staleness": 0}
        least |= {"max_consecutive_failures": 1, "max_fruitless_steps": 1, "max_no_signal_groups": 1}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise ConfigError(f"{name} must be at least {bound}, got {getattr(self, name)}")
        for env, bound in self.task_max_staleness.items():
            if bound < 0:
                raise ConfigError(f"task_max_staleness of {env!r} must be at least 0, got {bound}")
        if self.task_weights:
            Quotas(self.task_weights)
        if self.max_groups_per_batch is not None and self.max_groups_per_batch < self.min_groups_per_batch:
            raise ConfigError(
                f"max_groups_per_batch = {self.max_groups_per_batch} is below min_groups_per_batch = "
                f"{self.min_groups_per_batch}: no batch can satisfy both"
            )
        if self.stragglers not in ("wait", "cancel"):
            raise ConfigError(f"stragglers must be 'wait' or 'cancel', got {self.stragglers!r}")
        if not self.dynamic_sampling and self.max_no_signal_groups != _MAX_NO_SIGNAL:
            raise ConfigError(
                f"max_no_signal_groups = {self.max_no_signal_groups} has no effect without dynamic_sampling: groups "
                "without a signal are consumed"
            )

    @property
    def num_permits(self) -> int:
        """Groups in flight: admitted, and not yet dropped, cancelled or part of a published step."""
        return (self.max_staleness + 1) * self.min_groups_per_batch

    @property
    def batch_capacity(self) -> int:
        """The largest possible batch."""
        return self.num_permits if self.max_groups_per_batch is None else self.max_groups_per_batch

    def staleness_bound(self, env: str) -> int:
        """The largest group age at which a group of `env` may be consumed."""
        return self.task_max_staleness.get(env, self.max_staleness)

    def weights(self, envs: tuple[str, ...]) -> dict[str, float]:
        """The weight of each of `envs`. Raises ConfigError if some have one and others do not."""
        if not self.task_weights:
            return dict.fromkeys(envs, 1.0)
        if set(self.task_weights) != set(envs):
            raise ConfigError(
                f"task_weights must name every environment, got {', '.join(sorted(self.task_weights))} for "
                f"{', '.join(sorted(envs))}"
            )
        return {env: self.task_weights[env] for env in envs}
