"""How much is rolled out, how old it may get, and when a run gives up."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from agentrl_jax.errors import ConfigError

Stragglers = Literal["wait", "cancel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig:
    """The pace of the controller (docs/design.md, "Group age").

    group_size: episodes per group, G >= 2: one episode alone has no baseline.
    max_staleness: group age in versions that no consumed group exceeds; 0 is the synchronous baseline.
    task_max_staleness: the same by env name, where it differs.
    stragglers: what happens when a step cannot start without a group that still runs: `wait` for it, or `cancel` it.
    min_groups_per_batch, max_groups_per_batch: a batch is every complete group between these (None: no upper bound).
    max_consecutive_failures: groups of one env without any valid member in a row before the run stops.
    max_fruitless_steps: steps in a row that could not teach anything (not finite; or neither a signal nor a
      positive reward in any group) before the run stops.
    """

    group_size: int
    min_groups_per_batch: int
    max_groups_per_batch: int | None = None
    max_staleness: int = 1
    task_max_staleness: Mapping[str, int] = field(default_factory=dict)
    stragglers: Stragglers = "wait"
    max_consecutive_failures: int = 10
    max_fruitless_steps: int = 50

    def __post_init__(self) -> None:
        least = {"group_size": 2, "min_groups_per_batch": 1, "max_staleness": 0}
        least |= {"max_consecutive_failures": 1, "max_fruitless_steps": 1}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise ConfigError(f"{name} must be at least {bound}, got {getattr(self, name)}")
        for env, bound in self.task_max_staleness.items():
            if bound < 0:
                raise ConfigError(f"task_max_staleness of {env!r} must be at least 0, got {bound}")
        if self.max_groups_per_batch is not None and self.max_groups_per_batch < self.min_groups_per_batch:
            raise ConfigError(
                f"max_groups_per_batch = {self.max_groups_per_batch} is below min_groups_per_batch = "
                f"{self.min_groups_per_batch}: no batch can satisfy both"
            )
        if self.stragglers not in ("wait", "cancel"):
            raise ConfigError(f"stragglers must be 'wait' or 'cancel', got {self.stragglers!r}")

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
