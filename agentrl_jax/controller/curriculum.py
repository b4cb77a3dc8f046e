"""Which tasks of an env are worth drawing: those that are solved neither too rarely nor too often."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentrl_jax.errors import ConfigError
from agentrl_jax.seeding import derive_seed
from agentrl_jax.types import Task

_SEEDS = 2**63  # derive_seed gives numbers below this


@dataclass(frozen=True, slots=True, kw_only=True)
class CurriculumConfig:
    """Draw the tasks whose success rate lies in [low, high]; the default band holds every task, and is off."""

    low: float = 0.0
    """Tasks that are solved more rarely are passed over"""
    high: float = 1.0
    """Tasks that are solved more often are passed over"""
    ema: float = 0.3
    """Weight of the newest group in a task's success rate, in (0, 1]"""
    min_trials: int = 2
    """Groups of a task before it is judged"""
    outside_prob: float = 0.1
    """Probability that a task outside of the band is drawn all the same when its turn comes: it may have changed"""

    def __post_init__(self) -> None:
        if not 0.0 <= self.low <= self.high <= 1.0:
            raise ConfigError(f"a curriculum needs 0 <= low <= high <= 1, got {self.low} and {self.high}")
        if not 0.0 < self.ema <= 1.0:
            raise ConfigError(f"curriculum ema must be in (0, 1], got {self.ema}")
        if self.min_trials < 1:
            raise ConfigError(f"curriculum min_trials must be at least 1, got {self.min_trials}")
        if not 0.0 <= self.outside_prob < 1.0:
            raise ConfigError(f"curriculum outside_prob must be in [0, 1), got {self.outside_prob}")
        if not self.is_on and (self.ema, self.min_trials, self.outside_prob) != _DEFAULTS:
            raise ConfigError(
                "curriculum ema, min_trials and outside_prob have no effect while the band is [0, 1]: set low or high"
            )

    @property
    def is_on(self) -> bool:
        """True if some task could lie outside of the band."""
        return self.low > 0.0 or self.high < 1.0


_DEFAULTS = (0.3, 2, 0.1)


@dataclass(slots=True)
class _Record:
    rate: float
    num_trials: int


class Curriculum:
    """Success rates of tasks, and the verdict on each.

    rate ← rate + ema × (share of the group's valid episodes that succeeded − rate); the first group sets it.
    """

    def __init__(self, config: CurriculumConfig, seed: int) -> None:
        self.config = config
        self._seed = seed
        self._records: dict[str, _Record] = {}
        self._num_outside: Counter[str] = Counter()

    def observe(self, task: Task, success_rate: float) -> None:
        """A group of `task` ended with this share of successes among its valid episodes."""
        was_outside = self.is_outside(task)
        record = self._records.get(task.key)
        if record is None:
            self._records[task.key] = _Record(success_rate, 1)
        else:
            record.rate += self.config.ema * (success_rate - record.rate)
            record.num_trials += 1
        self._num_outside[task.env] += self.is_outside(task) - was_outside

    def is_outside(self, task: Task) -> bool:
        """True if `task` has been judged, and lies outside of the band."""
        return self._is_outside(self._records.get(task.key))

    def _is_outside(self, record: _Record | None) -> bool:
        if record is None or record.num_trials < self.config.min_trials:
            return False
        return not self.config.low <= record.rate <= self.config.high

    def is_wanted(self, task: Task, epoch: int) -> bool:
        """The verdict when the turn of `task` comes in `epoch`: a function of these and of what was observed."""
        if not self.is_outside(task):
            return True
        return derive_seed(self._seed, "curriculum", task.key, epoch) < self.config.outside_prob * _SEEDS

    def num_outside(self, env: str) -> int:
        """Tasks of `env` that are passed over at present."""
        return self._num_outside[env]

    def state(self) -> dict[str, list[Any]]:
        """[rate, trials] by task, as plain JSON."""
        return {key: [record.rate, record.num_trials] for key, record in self._records.items()}

    def restore(self, state: Mapping[str, list[Any]]) -> None:
        """Go on where `state` was taken."""
        self._records = {key: _Record(float(rate), int(trials)) for key, (rate, trials) in state.items()}
        outside = (key for key, record in self._records.items() if self._is_outside(record))
        self._num_outside = Counter(key.rsplit("/", 3)[0] for key in outside)
