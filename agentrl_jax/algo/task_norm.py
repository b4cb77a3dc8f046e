"""Advantages of one task to zero mean and unit variance: what lets tasks of different difficulty share a policy."""

from typing import Literal

import numpy as np
import numpy.typing as npt

from agentrl_jax.algo.grouping import Doubles, Indices, numbered, sum_by
from agentrl_jax.types import Bools

TaskNormalisation = Literal["off", "signal", "paper"]
Weighting = Literal["token", "sequence"]

_LEAST_WEIGHT = 1.5
"""Between one and two votes, which are whole numbers up to rounding: fewer than two have no variance."""


def task_normalise(
    advantages: npt.ArrayLike,
    weights: npt.ArrayLike,
    task_ids: npt.ArrayLike,
    has_signal: npt.ArrayLike,
    group_ids: npt.ArrayLike,
    *,
    mode: TaskNormalisation,
    eps: float = 1e-6,
) -> tuple[Doubles, Bools]:
    """A_i ← (A_i − μ) / (σ + eps) with the statistics of the task that i belongs to (AgentRL, arXiv 2510.04206, eq. 1).

    μ = Σ w_i A_i / Σ w_i and σ² = Σ w_i (A_i − μ)² / (Σ w_i − 1). With w_i the number of loss tokens these are the mean
    and the unbiased variance over the loss tokens of the task in the batch, which is the published formula.

    mode:
      off: nothing is changed.
      signal: only entries with a signal take part; the others stay exactly 0. A task with fewer than two groups that
        take part, or with σ ≤ eps, is left as it is.
      paper: every entry of positive weight takes part, so that those of groups without a signal get −μ/σ. A total
        weight below 2 has no variance, and such a task is left as it is.

    Args: all [N], an entry for each trajectory, or for each turn. weights: `token_weights` or `sequence_weights`, not
      negative. task_ids, group_ids: any integers; a group belongs to one task.

    Returns:
      (advantages float64 [N], is_normalised [N]); is_normalised is the same for all entries of a task.

    The second group has no signal. As published, it is taken for better than average:

    >>> for mode in ("signal", "paper"):
    ...     after, _ = task_normalise([1, -1, 0], [10, 90, 50], [0] * 3, [True, True, False], [0, 0, 1], mode=mode)
    ...     after.round(4).tolist()
    [1.0, -1.0, 0.0]
    [2.4719, -0.7523, 0.8598]
    """
    before = np.array(advantages, np.float64)
    if mode == "off":
        return before, np.zeros(len(before), np.bool_)
    given = np.asarray(weights, np.float64)
    takes_part = (given > 0) & (np.asarray(has_signal, np.bool_) | (mode == "paper"))
    weight = np.where(takes_part, given, 0.0)
    task, num_tasks = numbered(task_ids)
    total = sum_by(task, weight, num_tasks)
    mean = sum_by(task, weight * before, num_tasks) / np.maximum(total, 1.0)
    centred = before - mean[task]
    std = np.sqrt(sum_by(task, weight * centred**2, num_tasks) / np.maximum(total - 1.0, 1.0))
    is_normalised = total > _LEAST_WEIGHT
    if mode == "signal":
        is_normalised &= (_num_groups(task, np.asarray(group_ids), takes_part, num_tasks) >= 2) & (std > eps)
    applies = takes_part & is_normalised[task]
    return np.where(applies, centred / (std[task] + eps), before), is_normalised[task]


def entry_weights(num_loss_tokens: npt.ArrayLike, trajectory: npt.ArrayLike, *, weighting: Weighting) -> Doubles:
    """float64 [S]: how much each entry (a turn, or a whole trajectory) weighs in its task's statistics.

    token: n_i, its loss tokens, so that long trajectories weigh more; as published.
    sequence: n_i / Σ n of its trajectory, so that every trajectory with loss tokens weighs 1.

    Args: num_loss_tokens, trajectory: [S], entries with equal `trajectory` (any integers) are parts of one.

    >>> entry_weights([30, 10, 8], [0, 0, 1], weighting="sequence").tolist()
    [0.75, 0.25, 1.0]
    """
    tokens = np.asarray(num_loss_tokens, np.float64)
    if weighting == "token":
        return tokens
    owner, num = numbered(trajectory)
    return tokens / np.maximum(sum_by(owner, tokens, num), 1.0)[owner]


def _num_groups(task: Indices, group_ids: Indices, takes_part: Bools, num_tasks: int) -> Indices:
    """int [num_tasks]: groups with at least one entry that takes part."""
    group, _ = numbered(group_ids)
    pairs = np.unique(np.stack([task[takes_part], group[takes_part]]), axis=1)
    return np.bincount(pairs[0], minlength=num_tasks)
