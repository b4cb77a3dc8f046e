"""When a run gives up rolling out: everything fails, or nothing has a signal. Before hours are lost, and by name."""

from collections import Counter

from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.errors import NoProgressError
from agentrl_jax.types import EpisodeEnd, Group


class CircuitBreaker:
    """Counts groups that came to nothing in a row. Trips once: others may settle before the run has ended.

    Failures are counted by env: the successes of one must not hide that another one is broken for good. Groups
    without a signal are counted over all envs: as long as one of them teaches something, the run goes on. What the
    infrastructure ended is a failure, whether or not it is penalised as published.
    """

    def __init__(self, config: RolloutConfig) -> None:
        self._config = config
        self._failures: Counter[str] = Counter()
        self._ends: dict[str, Counter[EpisodeEnd]] = {}
        self._num_no_signal = self._num_solved = 0
        self._has_tripped = False

    def completed(self, group: Group) -> None:
        """`group` is to be trained. Raises NoProgressError like `failed`, for a group that the infrastructure ended."""
        if _is_lost(group):
            self.failed(group)
            return
        self._failures.pop(group.task.env, None)
        self._ends.pop(group.task.env, None)
        self._num_no_signal = self._num_solved = 0

    def failed(self, group: Group) -> None:
        """`group` has no valid member. Raises NoProgressError after max_consecutive_failures of its env."""
        env = group.task.env
        self._failures[env] += 1
        ends = self._ends.setdefault(env, Counter())
        ends.update(trajectory.end for trajectory in group.trajectories)
        if self._failures[env] < self._config.max_consecutive_failures or self._has_tripped:
            return
        self._has_tripped = True
        (most, _), *_ = ends.most_common(1)
        counts = ", ".join(f"{end.value} {count}" for end, count in ends.most_common())
        errors = Counter(t.error for t in group.trajectories if t.end is most and t.error)
        error = errors.most_common(1)[0][0] if errors else "no error text"
        raise NoProgressError(
            f"{self._failures[env]} groups in a row of env {env!r} had no valid member, most often because of "
            f"{most.value} (episodes: {counts}). The last group, of task {group.task.key}: {error}"
        )

    def without_signal(self, group: Group) -> None:
        """Dynamic sampling dropped `group`. Raises NoProgressError after max_no_signal_groups of all envs, and like
        `failed`, for a group that the infrastructure ended."""
        if _is_lost(group):
            self.failed(group)
            return
        self._failures.pop(group.task.env, None)
        self._ends.pop(group.task.env, None)
        self._num_no_signal += 1
        self._num_solved += any((trajectory.reward or 0.0) > 0.0 for trajectory in group.trajectories)
        if self._num_no_signal < self._config.max_no_signal_groups or self._has_tripped:
            return
        self._has_tripped = True
        num_unsolved = self._num_no_signal - self._num_solved
        if self._num_solved > num_unsolved:
            advice = "the tasks are solved already: take harder or other ones"
        else:
            advice = "start from a policy that solves some tasks (a longer warm-up), or take easier ones"
        raise NoProgressError(
            f"dynamic sampling dropped {self._num_no_signal} groups in a row, since all members of each had one reward "
            f"({self._num_solved} groups above 0, {num_unsolved} not): {advice}. Larger groups have a signal more "
            "often; without dynamic_sampling such groups are consumed, and teach nothing"
        )


def _is_lost(group: Group) -> bool:
    return all(trajectory.end.is_infrastructure for trajectory in group.trajectories)
