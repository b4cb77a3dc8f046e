"""Rewards to advantages: a baseline within each group, then one scale per task. Exact, on the host.

numpy in float64 and no jax: a batch has thousands of trajectories, not millions, and they are not of fixed shape.
One trajectory has one vote in its group's baseline, however many turns, segments or tokens it has; in the task's
statistics it weighs as many times as it has loss tokens.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from agentrl_jax.errors import ConfigError, RecordError
from agentrl_jax.types import Bools

Doubles = npt.NDArray[np.float64]
Indices = npt.NDArray[np.integer]
TaskNormalisation = Literal["off", "signal", "paper"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageConfig:
    """How rewards become advantages.

    scale_by_std: divide by the unbiased standard deviation of the group's rewards (GRPO, as published).
    task_normalisation: see `task_normalise`.
    eps: added to every standard deviation that something is divided by.
    """

    scale_by_std: bool = True
    task_normalisation: TaskNormalisation = "signal"
    eps: float = 1e-6

    def __post_init__(self) -> None:
        if self.task_normalisation not in ("off", "signal", "paper"):
            raise ConfigError(f"task_normalisation must be off, signal or paper, got {self.task_normalisation!r}")
        if not 0.0 < self.eps < 1.0:
            raise ConfigError(f"advantage eps must be in (0, 1), got {self.eps}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Advantages:
    """The verdict on N trajectories; every vector is [N].

    advantages: float64; 0 for a trajectory that teaches nothing.
    has_signal: valid, and its group tells good from bad.
    takes_part: counts in the policy loss and in its weight: `has_signal`, or every valid trajectory under `paper`.
    is_normalised: the trajectory's task was brought to zero mean and unit variance.
    """

    advantages: Doubles
    has_signal: Bools
    takes_part: Bools
    is_normalised: Bools


def compute_advantages(
    rewards: npt.ArrayLike,
    valid: npt.ArrayLike,
    group_ids: npt.ArrayLike,
    num_loss_tokens: npt.ArrayLike,
    task_ids: npt.ArrayLike,
    config: AdvantageConfig,
) -> Advantages:
    """`group_advantages`, then `task_normalise`, for N trajectories; arguments as there."""
    in_groups, has_signal = group_advantages(
        rewards, valid, group_ids, scale_by_std=config.scale_by_std, eps=config.eps
    )
    normalised, is_normalised = task_normalise(
        in_groups,
        num_loss_tokens,
        task_ids,
        has_signal,
        group_ids,
        mode=config.task_normalisation,
        eps=config.eps,
    )
    takes_part = np.asarray(valid, np.bool_) if config.task_normalisation == "paper" else has_signal
    return Advantages(advantages=normalised, has_signal=has_signal, takes_part=takes_part, is_normalised=is_normalised)


def group_advantages(
    rewards: npt.ArrayLike,
    valid: npt.ArrayLike,
    group_ids: npt.ArrayLike,
    *,
    scale_by_std: bool,
    eps: float = 1e-6,
) -> tuple[Doubles, Bools]:
    """A_i = R_i − mean(R of the group), optionally divided by (std(R of the group) + eps). Positive is better.

    Mean and unbiased standard deviation are over the valid members of the group (GRPO, arXiv 2402.03300, §4.1.2).
    A group with fewer than two valid members, or whose valid rewards are all equal, has no signal: its advantages
    are exactly 0 (the released AgentRL code gives a lone member its raw reward instead).

    Args:
      rewards: [N]; ignored, and may be NaN, where `valid` is False.
      valid: [N], True if the trajectory votes.
      group_ids: [N], any integers; equal ids are one group.

    Returns:
      (advantages [N], has_signal [N]); has_signal is False for the invalid members of any group.

    Raises:
      RecordError: a valid reward is not finite.

    >>> group_advantages([1, 0, 0], [True] * 3, [7, 7, 7], scale_by_std=False)[0].round(3).tolist()
    [0.667, -0.333, -0.333]
    """
    voting = np.asarray(valid, np.bool_)
    score = np.where(voting, np.asarray(rewards, np.float64), 0.0)
    if not np.isfinite(score).all():
        raise RecordError(f"rewards of valid trajectories must be finite, got {score[~np.isfinite(score)]}")
    names, group = np.unique(np.asarray(group_ids), return_inverse=True)
    num_valid = _sum_by(group, voting.astype(np.float64), len(names))
    centred = np.where(voting, score - (_sum_by(group, score, len(names)) / np.maximum(num_valid, 1.0))[group], 0.0)
    best, worst = np.full(len(names), -np.inf), np.full(len(names), np.inf)
    np.maximum.at(best, group[voting], score[voting])
    np.minimum.at(worst, group[voting], score[voting])
    has_signal = voting & (best > worst)[group]
    if scale_by_std:
        # Two passes: mean(R²) − mean(R)² would cancel for rewards that differ little.
        std = np.sqrt(_sum_by(group, centred**2, len(names)) / np.maximum(num_valid - 1.0, 1.0))
        centred = centred / (std + eps)[group]
    return np.where(has_signal, centred, 0.0), has_signal


def task_normalise(
    advantages: npt.ArrayLike,
    num_loss_tokens: npt.ArrayLike,
    task_ids: npt.ArrayLike,
    has_signal: npt.ArrayLike,
    group_ids: npt.ArrayLike,
    *,
    mode: TaskNormalisation,
    eps: float = 1e-6,
) -> tuple[Doubles, Bools]:
    """A_i ← (A_i − μ) / (σ + eps) with the statistics of the trajectory's task (AgentRL, arXiv 2510.04206, eq. 1).

    μ = Σ n_i A_i / Σ n_i and σ² = Σ n_i (A_i − μ)² / (Σ n_i − 1), where n_i is the number of loss tokens: the mean
    and unbiased variance over the loss tokens of a task in the batch.

    mode:
      off: nothing is changed.
      signal: only trajectories with a signal take part; the others stay exactly 0. A task with fewer than two
        groups that take part, or with σ ≤ eps, is left as it is.
      paper: every trajectory with loss tokens takes part, so that those of groups without a signal get −μ/σ.
        Fewer than two loss tokens have no variance and are left as they are.

    Args: all [N]; `task_ids` and `group_ids` are any integers. A group belongs to one task.

    Returns:
      (advantages [N], is_normalised [N]); is_normalised is the same for all trajectories of a task.
    """
    before = np.array(advantages, np.float64)
    if mode == "off":
        return before, np.zeros(len(before), np.bool_)
    tokens = np.asarray(num_loss_tokens, np.float64)
    takes_part = (tokens > 0) & (np.asarray(has_signal, np.bool_) | (mode == "paper"))
    weight = np.where(takes_part, tokens, 0.0)
    names, task = np.unique(np.asarray(task_ids), return_inverse=True)
    num_tokens = _sum_by(task, weight, len(names))
    centred = before - (_sum_by(task, weight * before, len(names)) / np.maximum(num_tokens, 1.0))[task]
    std = np.sqrt(_sum_by(task, weight * centred**2, len(names)) / np.maximum(num_tokens - 1.0, 1.0))
    is_normalised = num_tokens >= 2
    if mode == "signal":
        is_normalised &= (_num_groups(task, np.asarray(group_ids), takes_part, len(names)) >= 2) & (std > eps)
    applies = takes_part & is_normalised[task]
    return np.where(applies, centred / (std[task] + eps), before), is_normalised[task]


def _sum_by(index: Indices, values: Doubles, num: int) -> Doubles:
    """float64 [num]: for each i < num the sum of `values` where index is i."""
    return np.bincount(index, weights=values, minlength=num).astype(np.float64)


def _num_groups(task: Indices, group_ids: Indices, takes_part: Bools, num_tasks: int) -> Indices:
    """int [num_tasks]: groups with at least one trajectory that takes part."""
    _, group = np.unique(group_ids, return_inverse=True)
    pairs = np.unique(np.stack([task[takes_part], group[takes_part]]), axis=1)
    return np.bincount(pairs[0], minlength=num_tasks)
