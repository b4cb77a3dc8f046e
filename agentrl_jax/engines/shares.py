"""How much of the sampling each policy of a pool does: fixed, or moved towards the policy that does better. No jax.

Whatever the shares are, training stays what it was: every token carries the log-probability of the policy that sampled
it, so the importance ratio corrects for the draw of the policy as it does for its lag. The shares decide which
episodes there are to learn from, as a sampling temperature does, and never how they are weighed.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from agentrl_jax.algo.baselines import group_advantages
from agentrl_jax.errors import ConfigError
from agentrl_jax.types import Group, Pool, Trajectory

POOLS: tuple[Pool, ...] = get_args(Pool)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveConfig:
    """Weighting of the policies by what they achieve: a gradient bandit on the advantages of finished groups."""

    step: float = 0.0
    """How far one group may move the weights of the policies (try 0.1); 0: off, lagging_prob stays as it is"""
    floor: float = 0.05
    """The share that every policy keeps, so that it is still tried"""

    def __post_init__(self) -> None:
        if not 0.0 <= self.step < math.inf:
            raise ConfigError(f"adaptive step must be finite and >= 0 (0: off), got {self.step}")
        if not 0.0 < self.floor < 0.5:
            raise ConfigError(f"adaptive floor must be in (0, 0.5), got {self.floor}")
        if not self.is_on and self.floor != _DEFAULT_FLOOR:
            raise ConfigError("adaptive floor has no effect while adaptive step is 0: set it, or leave the floor out")

    @property
    def is_on(self) -> bool:
        return self.step > 0.0


_DEFAULT_FLOOR = 0.05


class PolicyShares:
    """The probability with which each pool samples a turn.

    With preferences h, share_p = floor + (1 − M·floor) · softmax(h)_p over the M pools; h begins where the shares are
    the configured ones. Each group with signal moves them by

      h_p ← h_p + step · mean_i A_i · (n_ip − s_p · n_i) / √n̄

    with A_i the member's advantage (`algo.baselines`, grpo: in standard deviations of its group), n_ip its turns by
    pool p, n_i all its turns, s_p = Σ_i n_ip / Σ_i n_i and n̄ the mean of n_i. That is REINFORCE on the draws of the
    policies (Williams 1992; Sutton and Barto 2018, §2.8): its expectation has the sign of what more of p would gain.
    The baseline s_p is the group's own, so that groups which were drawn by older shares move nothing by being old; √n̄
    keeps the noise of a move from growing with the length of episodes.
    """

    def __init__(self, lagging_prob: float, config: AdaptiveConfig) -> None:
        """Raises ConfigError if `lagging_prob` leaves a policy less than its floor."""
        self._config, self._lagging_prob = config, lagging_prob
        self._preferences = np.zeros(len(POOLS))
        self.num_groups = 0
        if not config.is_on:
            return
        if not config.floor < lagging_prob < 1 - config.floor:
            raise ConfigError(
                f"adaptive weights need lagging_prob between their floor {config.floor} and 1 - floor, got "
                f"{lagging_prob}"
            )
        given = {"current": 1.0 - lagging_prob, "lagging": lagging_prob}
        free = [(given[pool] - config.floor) / (1.0 - len(POOLS) * config.floor) for pool in POOLS]
        self._preferences = np.log(free)

    @property
    def lagging(self) -> float:
        """The probability that the lagging policy samples a turn."""
        return self.by_pool()["lagging"] if self.num_groups else self._lagging_prob

    def by_pool(self) -> dict[Pool, float]:
        """The share of each pool; they sum to 1."""
        if not self._config.is_on:
            return {"current": 1.0 - self._lagging_prob, "lagging": self._lagging_prob}
        weights = np.exp(self._preferences - self._preferences.max())
        floor = self._config.floor
        shares = floor + (1.0 - len(POOLS) * floor) * weights / weights.sum()
        return dict(zip(POOLS, shares.tolist(), strict=True))

    def observe(self, groups: Iterable[Group]) -> None:
        """Learn from groups that have ended, in this order. Nothing happens while it is off."""
        if self._config.is_on:
            for group in groups:
                self._observe(group)

    def state(self) -> dict[str, Any]:
        """Where the shares stand, as plain JSON."""
        return {
            "lagging_prob": self._lagging_prob,
            "floor": self._config.floor,
            "preferences": self._preferences.tolist(),
            "num_groups": self.num_groups,
        }

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Go on where `state` was taken, if the settings are still those; else, or without one, from the start."""
        if state is None or not self._config.is_on or not state["num_groups"]:
            return
        if (state["lagging_prob"], state["floor"]) == (self._lagging_prob, self._config.floor):
            self._preferences = np.array(state["preferences"], np.float64)
            self.num_groups = int(state["num_groups"])

    def _observe(self, group: Group) -> None:
        members = [member for member in group.trajectories if member.votes]
        rewards = np.array([member.reward for member in members], np.float64)
        advantages, has_signal = group_advantages(rewards, [True] * len(members), [0] * len(members), estimator="grpo")
        if not has_signal.any():
            return
        turns = np.array([_turns_by_pool(member) for member in members], np.float64)  # [members, pools]
        lengths = turns.sum(axis=1, keepdims=True)
        scores = (turns - turns.sum(axis=0) / turns.sum() * lengths) / math.sqrt(lengths.mean())
        self._preferences = self._preferences + self._config.step * (advantages[:, None] * scores).mean(axis=0)
        self.num_groups += 1


def _turns_by_pool(member: Trajectory) -> list[int]:
    pools = [turn.completion.pool for turn in member.turns]
    return [pools.count(pool) for pool in POOLS]
