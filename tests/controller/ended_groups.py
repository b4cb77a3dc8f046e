"""Groups that have ended, made by hand."""

import numpy as np

from agentrl_jax.types import Completion, EpisodeEnd, Group, Segment, Task, Trajectory, Turn, VersionSpan


def make_task(index: int = 0, env: str = "a") -> Task:
    return Task(env=env, split="train", index=index, seed=index)


def make_turn(version: int = 0) -> Turn:
    return Turn(
        context_ids=np.array([1, 2], np.int32),
        completion=Completion(
            ids=np.array([3], np.int32),
            logprobs=np.array([-0.5], np.float32),
            version_spans=(VersionSpan(version=version, start=0, end=1),),
            finish_reason="stop",
            engine="e",
            pool="current",
        ),
    )


def make_group(
    *rewards: float | EpisodeEnd,
    task: Task | None = None,
    group_id: int = 0,
    num_turns: int = 1,
    wall_s: float = 1.0,
    version: int = 0,
) -> Group:
    """One member for each of `rewards`; an end instead of a reward is why that member was lost."""
    task = task or make_task()
    segments = (Segment(turns=(make_turn(version),) * num_turns),) if num_turns else ()
    members = [
        Trajectory(
            task=task,
            group_id=group_id,
            member=member,
            end=given if isinstance(given, EpisodeEnd) else EpisodeEnd.COMPLETED,
            reward=None if isinstance(given, EpisodeEnd) else given,
            env_reward=None if isinstance(given, EpisodeEnd) else given,
            segments=segments,
            wall_s=wall_s,
            error="broke" if isinstance(given, EpisodeEnd) else "",
        )
        for member, given in enumerate(rewards)
    ]
    return Group(group_id=group_id, task=task, start_version=version, trajectories=tuple(members))
