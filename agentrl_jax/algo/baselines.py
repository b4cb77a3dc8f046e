"""Rewards to advantages within a group: one vote per trajectory, however many turns, segments or tokens it has."""

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from agentrl_jax.algo.grouping import Doubles, differ_by, numbered, sum_by
from agentrl_jax.errors import ConfigError, RecordError
from agentrl_jax.types import REWARD_DECIMALS, Bools

Estimator = Literal["grpo", "dr_grpo", "rloo", "reinforce_pp_baseline"]


def group_advantages(
    rewards: npt.ArrayLike,
    votes: npt.ArrayLike,
    group_ids: npt.ArrayLike,
    *,
    estimator: Estimator,
    eps: float = 1e-6,
) -> tuple[Doubles, Bools]:
    """A_i = R_i − b_i, how much better than its group a trajectory was. Positive is better.

    With the n members of a group that vote, their mean μ and their unbiased standard deviation σ (n − 1):

      grpo: (R_i − μ) / (σ + eps) (Shao et al., arXiv 2402.03300, §4.1.2; AgentRL as released).
      dr_grpo: R_i − μ, which does not favour groups that are nearly solved (Liu et al., arXiv 2503.20783).
      rloo: R_i − mean of the others' R = n / (n − 1) · (R_i − μ): unbiased, since the baseline does not depend on
        what i did (Ahmadian et al., arXiv 2402.14740).
      reinforce_pp_baseline: R_i − μ, to be whitened over the batch (Hu et al., arXiv 2501.03262);
        `compute_advantages` does.

    A group with fewer than two votes, or whose votes are all equal (to `types.REWARD_DECIMALS`), has no signal: its
    advantages are exactly 0 (the released AgentRL code gives a lone member its raw reward instead). No estimator
    divides by the deviation of the other members alone, which may be 0 where that of the group is not.

    Args:
      rewards: [N]; ignored, and may be NaN, where `votes` is False.
      votes: [N], True if the trajectory counts in its group's baseline (`types.Trajectory.votes`).
      group_ids: [N], any integers; equal ids are one group.

    Returns:
      (advantages float64 [N], has_signal [N]); has_signal is False for the members of any group that do not vote.

    Raises:
      RecordError: the reward of a vote is not finite. ConfigError: there is no such estimator.

    >>> for estimator in ("grpo", "dr_grpo", "rloo"):
    ...     group_advantages([1, 0, 0, 0], [True] * 4, [7] * 4, estimator=estimator)[0].round(2).tolist()
    [1.5, -0.5, -0.5, -0.5]
    [0.75, -0.25, -0.25, -0.25]
    [1.0, -0.33, -0.33, -0.33]
    """
    if estimator not in get_args(Estimator):
        raise ConfigError(f"estimator must be one of {', '.join(get_args(Estimator))}, got {estimator!r}")
    voting = np.asarray(votes, np.bool_)
    score = votes_of(rewards, voting)
    group, num_groups = numbered(group_ids)
    num_votes = sum_by(group, voting, num_groups)
    mean = sum_by(group, score, num_groups) / np.maximum(num_votes, 1.0)
    centred = np.where(voting, score - mean[group], 0.0)
    # Not `centred != 0`: the mean of equal rewards may be rounded.
    has_signal = voting & differ_by(group, np.round(score, REWARD_DECIMALS), voting, num_groups)[group]
    if estimator == "grpo":
        # Two passes: mean(R²) − mean(R)² would cancel for rewards that differ little.
        std = np.sqrt(sum_by(group, centred**2, num_groups) / np.maximum(num_votes - 1.0, 1.0))
        centred = centred / (std + eps)[group]
    elif estimator == "rloo":
        centred = centred * (num_votes / np.maximum(num_votes - 1.0, 1.0))[group]
    return np.where(has_signal, centred, 0.0), has_signal


def votes_of(rewards: npt.ArrayLike, voting: Bools) -> Doubles:
    """float64 [N]: `rewards` where `voting`, 0 elsewhere. Raises RecordError if one that votes is not finite.

    >>> votes_of([1.0, float("nan")], np.array([True, False])).tolist()
    [1.0, 0.0]
    """
    score = np.where(voting, np.asarray(rewards, np.float64), 0.0)
    if not np.isfinite(score).all():
        raise RecordError(f"rewards of valid trajectories must be finite, got {score[~np.isfinite(score)]}")
    return score
