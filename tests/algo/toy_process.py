"""A decision process of at most two turns whose policy gradient is known exactly, and ways to estimate it.

Turn 0: stop (reward 0.6), or go on (reward 0.2, with probability P). Turn 1: a good action (reward 1, with probability
Q) or a bad one (0). Both probabilities are sigmoids of a logit each.
"""

import numpy as np

from agentrl_jax.algo.turn_credit import returns_to_go, turn_advantages, turn_numbers

P, Q = 0.4, 0.7
PATHS = [  # probability, rewards by turn, ∇ log π of each turn's action in both logits
    (1 - P, [0.6], [(-P, 0.0)]),
    (P * Q, [0.2, 1.0], [(1 - P, 0.0), (0.0, 1 - Q)]),
    (P * (1 - Q), [0.2, 0.0], [(1 - P, 0.0), (0.0, -Q)]),
]
EXACT = np.array([P * (1 - P) * (0.2 + Q - 0.6), P * Q * (1 - Q)])
"""∇ of the expected reward in both logits: it is (1 - P) · 0.6 + P · (0.2 + Q)."""
SIZE = 3


def estimates(groups: np.ndarray, method: str) -> np.ndarray:
    """The policy gradient [groups, 2] from groups [groups, SIZE] of paths: the mean over members of Σ_k A ∇ log π."""
    paths = groups.reshape(-1)
    num_turns = np.array([len(PATHS[path][1]) for path in paths])
    turn_rewards = np.concatenate([PATHS[path][1] for path in paths])
    scores = np.concatenate([PATHS[path][2] for path in paths])
    group_ids = np.repeat(np.arange(len(groups)), SIZE)
    rewards = np.array([sum(PATHS[path][1]) for path in paths])
    owner, number = turn_numbers(num_turns)
    if method == "ours":
        votes = np.ones(len(paths), np.bool_)
        advantages, _ = turn_advantages(rewards, votes, group_ids, turn_rewards, num_turns, leave_one_out=True)
    else:
        returns = returns_to_go(turn_rewards, num_turns, discount=1.0)[owner, number]
        advantages = per_turn(returns, group_ids[owner] * 2 + number, is_whitened=method == "whitened")
    sums = np.zeros((len(groups), 2))
    np.add.at(sums, group_ids[owner], advantages[:, None] * scores)
    return sums / SIZE


def per_turn(returns: np.ndarray, cells: np.ndarray, *, is_whitened: bool) -> np.ndarray:
    """The naive way: against the mean (and deviation) of the members that reached the turn, oneself among them."""
    count = np.bincount(cells)
    mean = np.bincount(cells, weights=returns) / np.maximum(count, 1)
    centred = returns - mean[cells]
    if not is_whitened:
        return centred
    variance = np.bincount(cells, weights=centred**2) / np.maximum(count - 1, 1)
    return centred / (np.sqrt(variance)[cells] + 1e-6)
