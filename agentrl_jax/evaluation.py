"""Success on held-out tasks with 95 % intervals: what an evaluation found, and what changed since an earlier one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl_jax.algo.intervals import difference_interval, proportion_interval
from agentrl_jax.algo.metrics import TaskMetrics, task_metrics
from agentrl_jax.errors import ConfigError
from agentrl_jax.types import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig:
    """Evaluation on held-out tasks before and after reinforcement learning, sampled and greedy."""

    num_tasks: int = 128
    """Held-out tasks of each environment; 0 switches evaluation off"""
    max_concurrent: int = 128
    """Episodes at a time"""

    def __post_init__(self) -> None:
        if self.num_tasks < 0:
            raise ConfigError(f"evaluation num_tasks must be >= 0, got {self.num_tasks}")
        if self.max_concurrent < 1:
            raise ConfigError(f"evaluation max_concurrent must be >= 1, got {self.max_concurrent}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Outcome of one evaluation of one env. mode: "sampled" or "greedy".

    versions: the lowest and highest policy version that sampled a token; they differ if weights were published
    meanwhile.
    """

    env: str
    mode: str
    metrics: TaskMetrics
    versions: tuple[int, int]

    @property
    def success(self) -> float:
        """Share of the valid episodes that succeeded; NaN if there is none."""
        return self.metrics.success_rate

    @property
    def interval(self) -> tuple[float, float]:
        """95 % Wilson interval of `success`."""
        return proportion_interval(self.metrics.num_successes, self.metrics.num_valid)

    def gain_over(self, before: "Evaluation") -> tuple[float, tuple[float, float]]:
        """Difference of the success rates to an earlier evaluation, and its 95 % interval (Newcombe)."""
        interval = difference_interval(
            self.metrics.num_successes,
            self.metrics.num_valid,
            before.metrics.num_successes,
            before.metrics.num_valid,
        )
        return self.success - before.success, interval

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "Evaluation":
        """The counts behind a rate, read back: what a gain over it needs."""
        counts = TaskMetrics(
            num_episodes=int(record["num_episodes"]),
            num_valid=int(record["num_valid"]),
            num_successes=int(record["num_successes"]),
        )
        low, high = record["versions"]
        return cls(env=record["env"], mode=record["mode"], metrics=counts, versions=(low, high))

    def to_json(self) -> dict[str, Any]:
        low, high = self.interval
        return {
            "env": self.env,
            "mode": self.mode,
            "success_low": low,
            "success_high": high,
            "versions": list(self.versions),
            **self.metrics.as_floats(),
        }


def summarise(mode: str, groups: Sequence[Group]) -> dict[str, Evaluation]:
    """Judge the groups of one evaluation, env by env."""
    return {
        env: Evaluation(env=env, mode=mode, metrics=metrics, versions=_versions(env, groups))
        for env, metrics in task_metrics(groups).items()
    }


def _versions(env: str, groups: Sequence[Group]) -> tuple[int, int]:
    spans = [
        span.version
        for group in groups
        if group.task.env == env
        for trajectory in group.trajectories
        for turn in trajectory.turns
        for span in turn.completion.version_spans
    ]
    return (min(spans), max(spans)) if spans else (-1, -1)


def compare(before: Mapping[str, Evaluation], after: Mapping[str, Evaluation]) -> dict[str, dict[str, float]]:
    """The gain of each env that both evaluations cover, with its 95 % interval, in points of success."""
    result = {}
    for env in before.keys() & after.keys():
        gain, (low, high) = after[env].gain_over(before[env])
        result[env] = {"gain": gain, "gain_low": low, "gain_high": high}
    return result
