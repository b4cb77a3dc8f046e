"""What groups say about each task, as counts and sums that add up; and the means of what a loss returned.

No jax: `Weighted` values of device arrays divide just as well.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import fsum, nan

from agentrl_jax.batch import Weighted
from agentrl_jax.types import REWARD_DECIMALS, EpisodeEnd, Group, Trajectory

SUCCESS_REWARD = 1.0
"""An episode succeeded if its environment gave at least this, before any penalty."""


def means(metrics: Mapping[str, Weighted]) -> dict[str, float]:
    """total / weight of each metric as a float; NaN where the weight is 0, since nothing was measured.

    >>> means({"ratio_mean": Weighted(total=3.0, weight=2.0), "clip_low_frac": Weighted(total=0.0, weight=0.0)})
    {'ratio_mean': 1.5, 'clip_low_frac': nan}
    """
    return {name: _ratio(float(value.total), float(value.weight)) for name, value in metrics.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMetrics:
    """Counts and sums over groups, of one env or of several; `merge` adds them, the properties divide.

    Attempted episodes are all of them; valid ones did not end by the infrastructure's fault. Reporting only the
    valid ones would let a broken environment raise the success rate, so both rates exist.

    >>> a, b = TaskMetrics(num_valid=1, reward_total=1.0), TaskMetrics(num_valid=3, reward_total=0.0)
    >>> merge([a, b]).reward_mean
    0.25
    """

    num_groups: int = 0
    num_signal_groups: int = 0
    num_compared_groups: int = 0  # with at least two votes
    num_scored_groups: int = 0  # with a valid member
    num_success_groups: int = 0  # in which a valid member succeeded
    num_all_solved_groups: int = 0  # in which all valid members did
    num_episodes: int = 0
    num_valid: int = 0
    num_successes: int = 0
    num_turns: int = 0
    num_lagging_turns: int = 0
    num_calls: int = 0
    num_bare_calls: int = 0  # of num_calls, those that came without tags
    num_call_errors: int = 0
    num_tokens: int = 0
    num_loss_tokens: int = 0
    reward_total: float = 0.0
    best_reward_total: float = 0.0
    margin_total: float = 0.0
    ends: Mapping[EpisodeEnd, int] = field(default_factory=dict)

    @property
    def reward_mean(self) -> float:
        """Mean reward, penalties included, of the valid episodes."""
        return _ratio(self.reward_total, self.num_valid)

    @property
    def success_rate(self) -> float:
        """Successes / valid episodes."""
        return _ratio(self.num_successes, self.num_valid)

    @property
    def success_rate_attempted(self) -> float:
        """Successes / all episodes."""
        return _ratio(self.num_successes, self.num_episodes)

    @property
    def zero_signal_frac(self) -> float:
        """Share of groups that cannot tell good from bad, for want of votes or of a difference between them."""
        return _ratio(self.num_groups - self.num_signal_groups, self.num_groups)

    @property
    def zero_variance_frac(self) -> float:
        """Share of groups, of those with at least two votes, whose votes are all equal."""
        return _ratio(self.num_compared_groups - self.num_signal_groups, self.num_compared_groups)

    @property
    def best_of_n_reward(self) -> float:
        """Mean over groups with a valid member of the best reward in the group."""
        return _ratio(self.best_reward_total, self.num_scored_groups)

    @property
    def best_of_n_success_rate(self) -> float:
        """Share of groups, of those with a valid member, in which a member succeeded: pass@n."""
        return _ratio(self.num_success_groups, self.num_scored_groups)

    @property
    def margin(self) -> float:
        """Mean over groups with a valid member of the best reward minus the mean one: what choosing would gain."""
        return _ratio(self.margin_total, self.num_scored_groups)

    @property
    def num_none_solved_groups(self) -> int:
        """Groups with a valid member in which none succeeded."""
        return self.num_scored_groups - self.num_success_groups

    def as_floats(self) -> dict[str, float]:
        """Everything worth logging, by name: counts (`num_…`) and `rates`."""
        counts = {
            "num_groups": self.num_groups,
            "num_signal_groups": self.num_signal_groups,
            "num_all_solved_groups": self.num_all_solved_groups,
            "num_none_solved_groups": self.num_none_solved_groups,
            "num_episodes": self.num_episodes,
            "num_valid": self.num_valid,
            "num_successes": self.num_successes,
        }
        return {name: float(count) for name, count in counts.items()} | self.rates()

    def rates(self) -> dict[str, float]:
        """Everything that is an average or a share, by name; NaN where nothing was measured."""
        rates = {
            "reward_mean": self.reward_mean,
            "success_rate": self.success_rate,
            "success_rate_attempted": self.success_rate_attempted,
            "zero_signal_frac": self.zero_signal_frac,
            "zero_variance_frac": self.zero_variance_frac,
            "all_solved_frac": _ratio(self.num_all_solved_groups, self.num_scored_groups),
            "none_solved_frac": _ratio(self.num_none_solved_groups, self.num_scored_groups),
            "best_of_n_reward": self.best_of_n_reward,
            "best_of_n_success_rate": self.best_of_n_success_rate,
            "margin": self.margin,
            "episode_tokens": _ratio(self.num_tokens, self.num_episodes),
            "episode_loss_tokens": _ratio(self.num_loss_tokens, self.num_episodes),
            "episode_turns": _ratio(self.num_turns, self.num_episodes),
            "lagging_turn_frac": _ratio(self.num_lagging_turns, self.num_turns),
            "bare_call_frac": _ratio(self.num_bare_calls, self.num_calls),
            "call_error_frac": _ratio(self.num_call_errors, self.num_calls + self.num_call_errors),
        }
        ends = {f"end_{end.value}_frac": _ratio(self.ends.get(end, 0), self.num_episodes) for end in EpisodeEnd}
        return rates | ends


def is_success(trajectory: Trajectory) -> bool:
    """True if the episode is valid and its environment gave the full reward, whatever penalty followed.

    >>> from agentrl_jax.types import Task
    >>> task = Task(env="kg", split="train", index=0, seed=0)
    >>> end = EpisodeEnd.MAX_TURNS
    >>> is_success(Trajectory(task=task, group_id=0, member=0, end=end, reward=-0.2, env_reward=1.0, segments=()))
    True
    """
    given = trajectory.env_reward
    return trajectory.is_valid and given is not None and round(given, REWARD_DECIMALS) >= SUCCESS_REWARD


def task_metrics(groups: Sequence[Group]) -> dict[str, TaskMetrics]:
    """Metrics of each env among `groups`, by name in alphabetical order.

    >>> from agentrl_jax.types import Task
    >>> tasks = [Task(env=name, split="train", index=0, seed=0) for name in ("os", "kg", "os")]
    >>> groups = [Group(group_id=i, task=t, start_version=0, trajectories=()) for i, t in enumerate(tasks)]
    >>> {env: found.num_groups for env, found in task_metrics(groups).items()}
    {'kg': 1, 'os': 2}
    """
    by_env: dict[str, list[TaskMetrics]] = {}
    for group in groups:
        by_env.setdefault(group.task.env, []).append(_of_group(group))
    return {env: merge(by_env[env]) for env in sorted(by_env)}


def merge(parts: Iterable[TaskMetrics]) -> TaskMetrics:
    """Add up: the rates of the result are micro averages, every episode weighing the same.

    >>> merge([TaskMetrics(num_valid=1, num_successes=1), TaskMetrics(num_valid=3)]).success_rate
    0.25
    """
    parts = list(parts)
    ends: Counter[EpisodeEnd] = Counter()
    for part in parts:
        ends.update(part.ends)
    counts = {f.name: sum(getattr(part, f.name) for part in parts) for f in fields(TaskMetrics) if f.type is int}
    return TaskMetrics(
        **counts,
        reward_total=fsum(part.reward_total for part in parts),
        best_reward_total=fsum(part.best_reward_total for part in parts),
        margin_total=fsum(part.margin_total for part in parts),
        ends=dict(ends),
    )


def macro_average(values: Iterable[float]) -> float:
    """Mean over tasks, every task weighing the same; a task that measured nothing (NaN) is left out.

    >>> macro_average([0.5, 1.0, nan])
    0.75
    """
    measured = [value for value in values if value == value]
    return _ratio(fsum(measured), len(measured))


def macro_averages(by_env: Mapping[str, TaskMetrics]) -> dict[str, float]:
    """`macro_average` over the envs of each of their rates, by name. Beside them belongs `num_groups` of each env.

    >>> small, large = TaskMetrics(num_valid=1, num_successes=1), TaskMetrics(num_valid=99)
    >>> macro_averages({"small": small, "large": large})["success_rate"]
    0.5
    """
    rates = [metrics.rates() for metrics in by_env.values()] or [TaskMetrics().rates()]
    return {name: macro_average(env[name] for env in rates) for name in rates[0]}


def _of_group(group: Group) -> TaskMetrics:
    members = group.trajectories
    rewards = [member.reward for member in members if member.reward is not None]
    turns = [turn for member in members for turn in member.turns]
    num_successes = sum(map(is_success, members))
    return TaskMetrics(
        num_groups=1,
        num_signal_groups=int(group.has_signal),
        num_compared_groups=int(sum(member.votes for member in members) >= 2),
        num_scored_groups=int(bool(rewards)),
        num_success_groups=int(num_successes > 0),
        num_all_solved_groups=int(bool(rewards) and num_successes == len(rewards)),
        num_episodes=len(members),
        num_valid=len(rewards),
        num_successes=num_successes,
        num_turns=len(turns),
        num_lagging_turns=sum(turn.completion.pool == "lagging" for turn in turns),
        num_calls=sum(turn.num_calls for turn in turns),
        num_bare_calls=sum(turn.num_bare_calls for turn in turns),
        num_call_errors=sum(len(turn.call_errors) for turn in turns),
        num_tokens=sum(member.num_tokens for member in members),
        num_loss_tokens=sum(member.num_loss_tokens for member in members),
        reward_total=fsum(rewards),
        best_reward_total=max(rewards, default=0.0),
        margin_total=max(rewards) - fsum(rewards) / len(rewards) if rewards else 0.0,
        ends=dict(Counter(member.end for member in members)),
    )


def _ratio(total: float, weight: float) -> float:
    return total / weight if weight else nan
