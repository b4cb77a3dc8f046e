"""What the groups of a batch came to, as arrays: all that advantages are computed from."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agentrl_jax.algo.grouping import Doubles, Indices
from agentrl_jax.types import Bools, Group


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcomes:
    """What N trajectories of S turns in all came to.

    rewards: [N], ignored and possibly NaN where `votes` is False. votes: [N], it counts in its group's baseline.
    group_ids, task_ids: [N], any integers; a group belongs to one task.
    num_turns: [N], >= 0. turn_rewards, turn_loss_tokens: [S], trajectory after trajectory; a turn without loss tokens,
      or of a trajectory that is not trained, has 0.
    """

    rewards: Doubles
    votes: Bools
    group_ids: Indices
    task_ids: Indices
    num_turns: Indices
    turn_rewards: Doubles
    turn_loss_tokens: Indices


def outcomes_of(groups: Sequence[Group], teaches: Sequence[bool], env_names: Sequence[str]) -> Outcomes:
    """The outcomes of all trajectories of `groups`, group after group.

    teaches: [N], by trajectory: whether its tokens take part in the loss. env_names: what `task_ids` index.
    Groups are numbered by their place: whatever they are called, two of them are never taken for one.

    >>> from agentrl_jax.types import EpisodeEnd, Task, Trajectory
    >>> task = Task(env="kg", split="train", index=0, seed=0)
    >>> lost = Trajectory(task=task, group_id=7, member=0, end=EpisodeEnd.ENV_ERROR, reward=None, env_reward=None,
    ...     segments=())
    >>> found = outcomes_of([Group(group_id=7, task=task, start_version=0, trajectories=(lost,))], [False], ["kg"])
    >>> found.rewards.tolist(), found.votes.tolist(), found.group_ids.tolist(), found.num_turns.tolist()
    ([nan], [False], [0], [0])
    """
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    turns = [trajectory.turns for trajectory in trajectories]
    task_of = {name: number for number, name in enumerate(env_names)}
    sizes = np.array([len(group.trajectories) for group in groups], np.int64)
    loss_tokens = [
        np.count_nonzero(turn.completion.loss_mask) if does else 0
        for played, does in zip(turns, teaches, strict=True)
        for turn in played
    ]
    return Outcomes(
        rewards=np.array([np.nan if t.reward is None else t.reward for t in trajectories], np.float64),
        votes=np.array([t.votes for t in trajectories], np.bool_),
        group_ids=np.repeat(np.arange(len(groups)), sizes),
        task_ids=np.array([task_of[t.task.env] for t in trajectories], np.int32),
        num_turns=np.array([len(played) for played in turns], np.int64),
        turn_rewards=np.array([turn.reward for played in turns for turn in played], np.float64),
        turn_loss_tokens=np.array(loss_tokens, np.int64),
    )
