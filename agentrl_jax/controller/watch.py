"""Warnings: what a run survives, but its owner should know. Values only; whoever gets them prints and keeps them."""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from agentrl_jax.controller.censoring import estimate_censoring
from agentrl_jax.types import EpisodeEnd, Group

_WINDOW = 512
"""Episodes of an env that its rates are taken over."""
_LEAST = 50
"""Episodes of an env before its rates mean anything."""
_MOST_LOST_FRAC = 0.2
_MOST_CENSORED_FRAC = 0.05
_MOST_CANCELLED_FRAC = 0.01
_MOST_SIGNAL_FREE = 32
_MOST_FLAT_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWarning:
    """name: of its kind (see `Watch`). env: that it is about, "" for all. text: one paragraph."""

    name: str
    env: str
    text: str


@dataclass
class _Seen:
    """What is known of one env. episodes: (turns, end) of the newest ones, cancelled ones excepted. is_penalised: its
    infrastructure's ends cost the penalty, as published."""

    episodes: deque[tuple[int, EpisodeEnd]] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    num_episodes: int = 0
    num_groups: int = 0
    num_cancelled: int = 0
    cancelled_tokens: int = 0
    cancelled_s: float = 0.0
    num_signal_free: int = 0
    num_flat_steps: int = 0
    newest_error: str = ""
    is_penalised: bool = False


class Watch:
    """Looks at every group that ended. Each warning comes again only once its reason has doubled since the last time.

    `infrastructure`: over a fifth of an env's newest episodes ended by the infrastructure's fault.
    `censoring`: long episodes are lost more often than short ones, by over 5 % with 97.5 % confidence (censoring.py).
    `cancelled`: over 1 % of an env's groups were cancelled as stragglers.
    `no_signal`: dynamic sampling dropped the last 32 or more groups of an env.
    `constant_rewards`: no group of an env had a signal in the last 3 or more steps that took any.
    """

    def __init__(self) -> None:
        self._envs: dict[str, _Seen] = {}
        self._last: dict[tuple[str, str], int] = {}

    def observe(
        self, consumed: Sequence[Group], dropped: Sequence[Group], cancelled: Sequence[Group]
    ) -> tuple[RunWarning, ...]:
        """Take in the groups that ended, and return what is worth a warning now."""
        for group in dropped:
            has_valid = any(trajectory.is_valid for trajectory in group.trajectories)
            self._ended(group).num_signal_free += has_valid
        for group in consumed:
            self._ended(group).num_signal_free = 0
            self._last.pop(("no_signal", group.task.env), None)
        for env in {group.task.env for group in consumed}:
            self._count_flat(env, any(group.has_signal for group in consumed if group.task.env == env))
        for group in cancelled:
            self._cancelled(group)
        return tuple(warning for env, seen in self._envs.items() for warning in self._warnings(env, seen))

    def _warnings(self, env: str, seen: _Seen) -> list[RunWarning]:
        candidates = (
            ("infrastructure", seen.num_episodes, _infrastructure_text(env, seen)),
            ("censoring", seen.num_episodes, _censoring_text(env, seen)),
            ("cancelled", seen.num_cancelled, _cancelled_text(env, seen)),
            ("no_signal", seen.num_signal_free, _no_signal_text(env, seen)),
            ("constant_rewards", seen.num_flat_steps, _constant_rewards_text(env, seen)),
        )
        found = []
        for name, weight, text in candidates:
            if text and weight >= 2 * self._last.get((name, env), 0):
                self._last[name, env] = weight
                found.append(RunWarning(name=name, env=env, text=text))
        return found

    def _ended(self, group: Group) -> _Seen:
        seen = self._envs.setdefault(group.task.env, _Seen())
        seen.num_groups += 1
        for trajectory in group.trajectories:
            if trajectory.end is not EpisodeEnd.CANCELLED:
                seen.num_episodes += 1
                seen.episodes.append((len(trajectory.turns), trajectory.end))
            if trajectory.end.is_infrastructure:
                seen.newest_error = trajectory.error or seen.newest_error
                seen.is_penalised = trajectory.is_valid
        return seen

    def _count_flat(self, env: str, has_signal: bool) -> None:
        seen = self._envs[env]
        seen.num_flat_steps = 0 if has_signal else seen.num_flat_steps + 1
        if has_signal:
            self._last.pop(("constant_rewards", env), None)

    def _cancelled(self, group: Group) -> None:
        seen = self._envs.setdefault(group.task.env, _Seen())
        seen.num_groups += 1
        seen.num_cancelled += 1
        seen.cancelled_tokens += sum(trajectory.num_tokens for trajectory in group.trajectories)
        seen.cancelled_s += max((trajectory.wall_s for trajectory in group.trajectories), default=0.0)


def _infrastructure_text(env: str, seen: _Seen) -> str:
    ends = Counter(end for _, end in seen.episodes if end.is_infrastructure)
    if len(seen.episodes) < _LEAST or ends.total() <= _MOST_LOST_FRAC * len(seen.episodes):
        return ""
    counts = ", ".join(f"{end.value} {count}" for end, count in ends.most_common())
    return (
        f"{ends.total()} of the newest {len(seen.episodes)} episodes of {env!r} ended by the infrastructure's fault "
        f"({counts}) and {'cost the penalty' if seen.is_penalised else 'train nothing'}. The newest error: "
        f"{seen.newest_error or 'no text'}"
    )


def _censoring_text(env: str, seen: _Seen) -> str:
    estimate = estimate_censoring((turns, end.is_infrastructure) for turns, end in seen.episodes)
    if len(seen.episodes) < _LEAST or estimate is None or estimate.lost_frac_low <= _MOST_CENSORED_FRAC:
        return ""
    return (
        f"long episodes of {env!r} are lost to the infrastructure more often than short ones, so that training favours "
        f"short ones: {100 * estimate.lost_frac:.0f} % (at least {100 * estimate.lost_frac_low:.0f} %) of those that "
        f"take more than {estimate.short_turns} turns are lost by turn {estimate.long_turns}. The newest error: "
        f"{seen.newest_error or 'no text'}"
    )


def _cancelled_text(env: str, seen: _Seen) -> str:
    if seen.num_cancelled <= _MOST_CANCELLED_FRAC * seen.num_groups:
        return ""
    mean_tokens, mean_s = seen.cancelled_tokens / seen.num_cancelled, seen.cancelled_s / seen.num_cancelled
    return (
        f"{seen.num_cancelled} of {seen.num_groups} groups of {env!r} were cancelled, after {mean_s:.0f} s and "
        f"{mean_tokens:.0f} tokens on average, which biases training towards what is fast. With stragglers = wait "
        "nothing is lost; a larger task_max_staleness of this environment makes it wait less"
    )


def _no_signal_text(env: str, seen: _Seen) -> str:
    if seen.num_signal_free < _MOST_SIGNAL_FREE:
        return ""
    return (
        f"dynamic sampling dropped the newest {seen.num_signal_free} groups of {env!r}: none had a signal. It takes "
        "rollouts and teaches nothing; take easier or harder tasks, or leave it out"
    )


def _constant_rewards_text(env: str, seen: _Seen) -> str:
    if seen.num_flat_steps < _MOST_FLAT_STEPS:
        return ""
    return (
        f"no group of {env!r} had a signal in its last {seen.num_flat_steps} steps: all members of each got the same "
        "reward, so that nothing was learnt from them. If they fail, take easier tasks or a longer warm-up; if they "
        "succeed, take harder ones"
    )
