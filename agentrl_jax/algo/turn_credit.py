"""Credit for each turn: its discounted return to go against what the other members got from that turn on.

Why the baseline is unbiased. Let member i take turn k in the state s with the action a, and let b be any number that
does not depend on a. Then E[b ∇log π(a | s)] = b Σ_a ∇π(a | s) = b ∇1 = 0, so subtracting b from the return to go
leaves the expected gradient as it is. Here b is the mean over the *other* members of the group, who never see what i
did. Two things that look harmless break this: a mean over the members that reached turn k, i among them, scales the
gradient by (m − 1)/m with an m that depends on who went on; and dividing by the deviation of turn k, i among it.

Where only the last turn has a reward and nothing is discounted, every turn of i gets R_i − mean of the others' R: then
credit by turn equals credit by trajectory with the same estimator.
"""

import numpy as np
import numpy.typing as npt

from agentrl_jax.algo.baselines import votes_of
from agentrl_jax.algo.grouping import Doubles, Indices, differ_by, numbered, sum_by
from agentrl_jax.errors import RecordError
from agentrl_jax.types import REWARD_DECIMALS, Bools


def booked_rewards(rewards: npt.ArrayLike, turn_rewards: npt.ArrayLike, num_turns: npt.ArrayLike) -> Doubles:
    """float64 [S]: rewards by turn that add up to the trajectory's, which is what counts.

    A turn keeps the intermediate reward that its environment gave; the last one gets the rest of the trajectory's
    reward: the final reward, or the penalty for the way it ended minus what had been given before.

    Args: rewards: [N], of the trajectories. turn_rewards: [S], as the environments gave them, trajectory after
      trajectory. num_turns: [N], how many of the S belong to each; may be 0.

    A trajectory that earned 0.3 and then broke its limit (−0.2), and one that earned 1 in the end:

    >>> booked_rewards([-0.2, 1.0], [0.3, 0.0, 0.0, 1.0], [2, 2]).tolist()
    [0.3, -0.5, 0.0, 1.0]
    """
    counts = np.asarray(num_turns, np.int64)
    booked = np.array(turn_rewards, np.float64)
    if len(booked) != counts.sum():
        raise RecordError(f"expected rewards for {counts.sum()} turns, got {len(booked)}")
    played = counts > 0
    last = (np.cumsum(counts) - 1)[played]
    booked[last] = 0.0
    before = sum_by(np.repeat(np.arange(len(counts)), counts), booked, len(counts))
    booked[last] = (np.asarray(rewards, np.float64) - before)[played]
    return booked


def returns_to_go(turn_rewards: npt.ArrayLike, num_turns: npt.ArrayLike, *, discount: float) -> Doubles:
    """G_{i,k} = Σ_{l ≥ k} discount^(l − k) · r_{i,l}, float64 [N, K] with K the most turns; 0 past the last turn.

    Args: as for `booked_rewards`, whose result `turn_rewards` is. discount: in [0, 1]. Below 1 the gradient is that of
      no objective exactly (Nota & Thomas, arXiv 1906.07073): the factor discount^k of turn k is left out, as usual.

    >>> returns_to_go([0.0, 0.5, 1.0, 1.0], [3, 1], discount=0.5).tolist()
    [[0.5, 1.0, 1.0], [1.0, 0.0, 0.0]]
    """
    counts = np.asarray(num_turns, np.int64)
    owner, number = turn_numbers(counts)
    returns = np.zeros((len(counts), int(counts.max(initial=0))))
    returns[owner, number] = turn_rewards
    for turn in range(returns.shape[1] - 2, -1, -1):
        returns[:, turn] += discount * returns[:, turn + 1]
    return returns


def turn_advantages(
    rewards: npt.ArrayLike,
    votes: npt.ArrayLike,
    group_ids: npt.ArrayLike,
    turn_rewards: npt.ArrayLike,
    num_turns: npt.ArrayLike,
    *,
    leave_one_out: bool,
    discount: float = 1.0,
) -> tuple[Doubles, Bools]:
    """A_{i,k} = G_{i,k} − mean over the other members j of V_{j,k}. Positive is better.

    G are the returns to go of `booked_rewards`. V_{j,k} is the vote of member j at turn k: its return to go from turn
    k, or, where it had ended by then, from its last turn. So every member has one vote at every turn, at which it may
    not have been, and every turn has a baseline. See the module for why this is unbiased.

    leave_one_out: True for the formula (rloo); False has the mean over all n members (dr_grpo), which is the formula
      times (n − 1) / n at every turn. No estimator that divides by a deviation is defined for turns.

    A group with fewer than two votes, or whose votes are equal at every turn, has no signal, and a turn at which all
    votes are equal has advantage 0, exactly.

    Args: rewards, votes, group_ids: [N], as in `group_advantages`. A trajectory without turns does not vote.
      turn_rewards, num_turns: as in `booked_rewards`.

    Returns:
      (advantages float64 [S], one for each turn; has_signal [N], by trajectory).

    One earned 1 in each of its last two turns, the other nothing:

    >>> turn_advantages([2.0, 0.0], [True] * 2, [0, 0], [0, 1, 1, 0, 0], [3, 2], leave_one_out=True)[0].tolist()
    [2.0, 2.0, 1.0, -2.0, -2.0]
    """
    counts = np.asarray(num_turns, np.int64)
    voting: Bools = np.asarray(votes, np.bool_) & (counts > 0)
    booked = booked_rewards(votes_of(rewards, voting), turn_rewards, counts)
    returns = returns_to_go(booked, counts, discount=discount)
    owner, number = turn_numbers(counts)
    group, num_groups = numbered(group_ids)
    turns = np.arange(returns.shape[1])
    voted = np.take_along_axis(returns, np.minimum(turns, np.maximum(counts - 1, 0)[:, None]), axis=1)
    voted[~voting] = 0.0
    sums = np.zeros((num_groups, returns.shape[1]))
    np.add.at(sums, group, voted)
    num_votes = sum_by(group, voting, num_groups)
    centred = voted - (sums / np.maximum(num_votes, 1.0)[:, None])[group]
    if leave_one_out:
        centred *= (num_votes / np.maximum(num_votes - 1.0, 1.0))[group, None]
    differs = differ_by(group, np.round(voted, REWARD_DECIMALS), voting, num_groups)
    advantages = np.where(differs[group] & voting[:, None], centred, 0.0)
    has_signal: Bools = np.any(differs, axis=1)
    return advantages[owner, number], voting & has_signal[group]


def turn_numbers(num_turns: npt.ArrayLike) -> tuple[Indices, Indices]:
    """(trajectory [S], turn [S]): which trajectory each turn belongs to, and its number there from 0.

    >>> [part.tolist() for part in turn_numbers([2, 0, 3])]
    [[0, 0, 2, 2, 2], [0, 1, 0, 1, 2]]
    """
    counts = np.asarray(num_turns, np.int64)
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(counts.sum()) - (np.cumsum(counts) - counts)[owner]
