"""Small host records for tests: one line for a turn, a trajectory, a group."""

from collections.abc import Sequence

import numpy as np

from agentrl_jax.types import Completion, EpisodeEnd, Group, Pool, Segment, Task, Trajectory, Turn, VersionSpan

SAMPLED_LOGPROB = -0.5


def make_turn(
    num_context: int = 2,
    num_sampled: int = 3,
    *,
    version: int = 0,
    first_id: int = 10,
    masked: Sequence[int] = (),
    pool: Pool = "current",
) -> Turn:
    """Context ids 1, 2, …; sampled ids first_id, first_id + 1, …; `masked` positions had no finite log-probability."""
    loss_mask = np.ones(num_sampled, np.bool_)
    loss_mask[list(masked)] = False
    logprobs = np.where(loss_mask, SAMPLED_LOGPROB - 0.01 * np.arange(num_sampled), 0.0)
    return Turn(
        context_ids=np.arange(1, num_context + 1, dtype=np.int32),
        completion=Completion(
            ids=np.arange(first_id, first_id + num_sampled, dtype=np.int32),
            logprobs=logprobs.astype(np.float32),
            version_spans=(VersionSpan(version=version, start=0, end=num_sampled),),
            finish_reason="stop",
            engine="fake",
            pool=pool,
            loss_mask=loss_mask,
        ),
    )


def make_segment(*turns: Turn) -> Segment:
    return Segment(turns=turns or (make_turn(),))


def make_trajectory(
    reward: float | None,
    *segments: Segment,
    member: int = 0,
    group_id: int = 0,
    env: str = "search",
    index: int = 0,
    end: EpisodeEnd = EpisodeEnd.COMPLETED,
    env_reward: float | None = None,
) -> Trajectory:
    return Trajectory(
        task=Task(env=env, split="train", index=index, seed=0),
        group_id=group_id,
        member=member,
        end=end,
        reward=reward,
        env_reward=reward if env_reward is None else env_reward,
        segments=segments,
    )


def make_group(
    rewards: Sequence[float | None],
    *,
    group_id: int = 0,
    env: str = "search",
    index: int = 0,
    segments: Sequence[Sequence[Segment]] | None = None,
) -> Group:
    """One trajectory for each reward; None is an env_error."""
    members = [
        make_trajectory(
            reward,
            *(segments[member] if segments is not None else (make_segment(),)),
            member=member,
            group_id=group_id,
            env=env,
            index=index,
            end=EpisodeEnd.ENV_ERROR if reward is None else EpisodeEnd.COMPLETED,
        )
        for member, reward in enumerate(rewards)
    ]
    return Group(group_id=group_id, task=members[0].task, start_version=0, trajectories=tuple(members))
