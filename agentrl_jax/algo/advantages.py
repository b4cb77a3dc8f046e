"""Rewards to advantages: a baseline within each group, then one scale per task. Exact, on the host.

numpy in float64 and no jax: a batch has thousands of trajectories, not millions, and they are not of fixed shape.
The parts are pure functions of their own: `baselines`, `turn_credit`, `task_norm`.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from agentrl_jax.algo.baselines import Estimator, group_advantages
from agentrl_jax.algo.grouping import Doubles, Indices
from agentrl_jax.algo.outcomes import Outcomes
from agentrl_jax.algo.task_norm import TaskNormalisation, Weighting, entry_weights, task_normalise
from agentrl_jax.algo.turn_credit import turn_advantages, turn_numbers
from agentrl_jax.errors import ConfigError
from agentrl_jax.types import Bools, EpisodeEnd, Trajectory

Credit = Literal["trajectory", "turn"]
Overlong = Literal["train", "mask"]

OVERLONG_ENDS = frozenset({EpisodeEnd.CONTEXT_LIMIT, EpisodeEnd.TURN_TRUNCATED})
"""Ends of episodes that ran out of tokens."""

_EPS = 1e-6

_TURN_ESTIMATORS: tuple[Estimator, ...] = ("rloo", "dr_grpo")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageConfig:
    """How rewards become advantages."""

    estimator: Estimator = "grpo"
    """Baseline within a group: grpo (mean, divided by the standard deviation), dr_grpo (mean), rloo (mean of the
    others), reinforce_pp_baseline (mean, then zero mean and unit variance over the batch)"""
    credit: Credit = "trajectory"
    """trajectory: all turns share one advantage; turn: each has its own return to go and baseline, for environments
    with intermediate rewards (with rloo or dr_grpo)"""
    discount: float = 1.0
    """Of rewards per turn of delay, with credit by turn"""
    task_normalisation: TaskNormalisation = "signal"
    """Per task to zero mean and unit variance: off, signal (groups without a signal stay at 0), paper (the published
    formula, which moves them too)"""
    weighting: Weighting = "token"
    """What counts once in a task's mean and variance: a token, as published, or a whole trajectory (sequence)"""
    overlong: Overlong = "train"
    """Episodes that ran out of tokens: train on them, or mask them (they vote in the baseline but teach nothing)"""
    eps: float = _EPS
    """Added to every standard deviation that something is divided by"""

    def __post_init__(self) -> None:
        options = {
            "estimator": Estimator,
            "credit": Credit,
            "task_normalisation": TaskNormalisation,
            "weighting": Weighting,
            "overlong": Overlong,
        }
        for name, known in options.items():
            if getattr(self, name) not in get_args(known):
                raise ConfigError(f"{name} must be one of {', '.join(get_args(known))}, got {getattr(self, name)!r}")
        if not 0.0 < self.eps < 1.0:
            raise ConfigError(f"advantage eps must be in (0, 1), got {self.eps}")
        if not 0.0 <= self.discount <= 1.0:
            raise ConfigError(f"discount must be in [0, 1], got {self.discount}")
        self._check_combinations()

    def _check_combinations(self) -> None:
        if self.credit == "trajectory" and self.discount != 1.0:
            raise ConfigError(f"discount has no effect with credit=trajectory, got {self.discount}; set credit=turn")
        if self.credit == "turn" and self.estimator not in _TURN_ESTIMATORS:
            raise ConfigError(
                f"credit=turn is defined for estimator {' and '.join(_TURN_ESTIMATORS)}, got {self.estimator}: "
                "dividing the turns by a deviation would bias the gradient"
            )
        if self.estimator == "reinforce_pp_baseline" and self.task_normalisation != "off":
            raise ConfigError(
                "estimator=reinforce_pp_baseline whitens the whole batch, which normalising each task would undo: set "
                f"task_normalisation=off, got {self.task_normalisation}"
            )
        if self.eps != _EPS and self.estimator != "grpo" and not self.is_normalising:
            raise ConfigError(
                f"advantage eps has no effect with estimator={self.estimator} and task_normalisation=off, which divide "
                f"by no standard deviation, got {self.eps}"
            )
        if self.weighting == "sequence" and not self.is_normalising:
            raise ConfigError(
                "weighting=sequence has no effect where nothing is normalised, got task_normalisation=off"
            )
        if self.weighting == "sequence" and self.task_normalisation == "paper":
            raise ConfigError(
                "task_normalisation=paper is the published formula, which weighs tokens, got weighting=sequence; set "
                "task_normalisation=signal"
            )

    @property
    def is_normalising(self) -> bool:
        """True if advantages are brought to unit variance beyond their group."""
        return self.task_normalisation != "off" or self.estimator == "reinforce_pp_baseline"

    def teaches(self, trajectory: Trajectory) -> bool:
        """True if the sampled tokens of an episode take part in the loss."""
        return trajectory.is_valid and not (self.overlong == "mask" and trajectory.end in OVERLONG_ENDS)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Advantages:
    """The verdict on N trajectories of S turns.

    advantages: float64 [S], of each turn; 0 for one that teaches nothing.
    has_signal: [N], it votes, and its group tells good from bad.
    takes_part: [N], counts in the policy loss and in its weight: `has_signal`, or every vote under `paper`.
    is_normalised: [N], the trajectory's task was brought to zero mean and unit variance.
    """

    advantages: Doubles
    has_signal: Bools
    takes_part: Bools
    is_normalised: Bools


def compute_advantages(outcomes: Outcomes, config: AdvantageConfig) -> Advantages:
    """`group_advantages` or `turn_advantages`, then `task_normalise`: A_{i,k} of every turn. Positive is better.

    `reinforce_pp_baseline` is whitened as if the batch were one task: over its loss tokens or trajectories, those of
    groups without a signal left at 0.

    >>> outcomes = Outcomes(
    ...     rewards=np.array([1.0, 0.0]), votes=np.array([True, True]), group_ids=np.array([0, 0]),
    ...     task_ids=np.array([0, 0]), num_turns=np.array([2, 1]), turn_rewards=np.array([0.0, 1.0, 0.0]),
    ...     turn_loss_tokens=np.array([5, 5, 5]),
    ... )
    >>> config = AdvantageConfig(estimator="rloo", task_normalisation="off")
    >>> compute_advantages(outcomes, config).advantages.tolist()
    [1.0, 1.0, -1.0]
    """
    owner, _ = turn_numbers(outcomes.num_turns)
    by_turn, has_signal = _before_normalisation(outcomes, owner, config)
    whitens = config.estimator == "reinforce_pp_baseline"
    task_ids = np.zeros_like(outcomes.task_ids) if whitens else outcomes.task_ids
    normalised, is_normalised = task_normalise(
        by_turn,
        entry_weights(outcomes.turn_loss_tokens, owner, weighting=config.weighting),
        task_ids[owner],
        has_signal[owner],
        outcomes.group_ids[owner],
        mode="signal" if whitens else config.task_normalisation,
        eps=config.eps,
    )
    return Advantages(
        advantages=normalised,
        has_signal=has_signal,
        takes_part=outcomes.votes if config.task_normalisation == "paper" else has_signal,
        is_normalised=np.isin(task_ids, task_ids[owner[is_normalised]]),
    )


def _before_normalisation(outcomes: Outcomes, owner: Indices, config: AdvantageConfig) -> tuple[Doubles, Bools]:
    """(advantages [S], has_signal [N])."""
    if config.credit == "turn":
        return turn_advantages(
            outcomes.rewards,
            outcomes.votes,
            outcomes.group_ids,
            outcomes.turn_rewards,
            outcomes.num_turns,
            leave_one_out=config.estimator == "rloo",
            discount=config.discount,
        )
    advantages, has_signal = group_advantages(
        outcomes.rewards, outcomes.votes, outcomes.group_ids, estimator=config.estimator, eps=config.eps
    )
    return advantages[owner], has_signal
