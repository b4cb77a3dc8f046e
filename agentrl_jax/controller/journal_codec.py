"""A whole group as bytes and back, every field exactly, without pickle.

    4 bytes    length of the facts, little-endian
    facts      JSON: everything that is not a vector, and the lengths of the vectors of each turn
    vectors    of all turns end to end: context ids, ids (int32), log-probabilities (float32), loss masks (bool)

The facts are ASCII, so no text in them, whatever a tool printed, can be split or altered. (An npz of the same arrays
takes twice as long to write.)
"""

import json
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np

from agentrl_jax.errors import RecordError
from agentrl_jax.types import Completion, EpisodeEnd, Group, Segment, Task, Trajectory, Turn, VersionSpan

_CONTEXT, _IDS, _LOGPROBS, _MASK = (np.dtype(name) for name in ("<i4", "<i4", "<f4", "?"))


def encode_group(group: Group) -> bytes:
    """Return `group` as bytes."""
    turns = [turn for trajectory in group.trajectories for turn in trajectory.turns]
    completions = [turn.completion for turn in turns]
    facts = {
        "group_id": group.group_id,
        "task": task_to_json(group.task),
        "start_version": group.start_version,
        "trajectories": [_trajectory_to_json(trajectory) for trajectory in group.trajectories],
    }
    text = json.dumps(facts, allow_nan=False, separators=(",", ":")).encode("ascii")
    vectors = chain(
        (turn.context_ids.astype(_CONTEXT, copy=False).tobytes() for turn in turns),
        (completion.ids.astype(_IDS, copy=False).tobytes() for completion in completions),
        (completion.logprobs.astype(_LOGPROBS, copy=False).tobytes() for completion in completions),
        (completion.loss_mask.tobytes() for completion in completions),
    )
    return b"".join((len(text).to_bytes(4, "little"), text, *vectors))


def decode_group(data: bytes) -> Group:
    """Return what `encode_group` was given. Raises RecordError if `data` is anything else."""
    try:
        start = 4 + int.from_bytes(data[:4], "little")
        facts = json.loads(data[4:start])
        values = [turn for member in facts["trajectories"] for segment in member["segments"] for turn in segment]
        turns = iter([*_turns(values, data, start)])
        task = task_from_json(facts["task"])
        trajectories = [
            _trajectory(values, turns, task, facts["group_id"], member)
            for member, values in enumerate(facts["trajectories"])
        ]
        return Group(
            group_id=facts["group_id"],
            task=task,
            start_version=facts["start_version"],
            trajectories=tuple(trajectories),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{len(data)} bytes are not a recorded group: {type(error).__name__}: {error}") from error


def task_to_json(task: Task) -> list[Any]:
    return [task.env, task.split, task.index, task.seed]


def task_from_json(values: Sequence[Any]) -> Task:
    env, split, index, seed = values
    return Task(env=env, split=split, index=index, seed=seed)


def _number(value: float | None) -> float | None:
    return None if value is None else float(value)


def _trajectory_to_json(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "end": trajectory.end.value,
        "reward": _number(trajectory.reward),
        "env_reward": _number(trajectory.env_reward),
        "times_s": [float(trajectory.wall_s), float(trajectory.env_s), float(trajectory.engine_s)],
        "error": trajectory.error,
        "segments": [[_turn_to_json(turn) for turn in segment.turns] for segment in trajectory.segments],
    }


def _turn_to_json(turn: Turn) -> list[Any]:
    completion = turn.completion
    return [
        len(turn.context_ids),
        len(completion.ids),
        [[span.version, span.start, span.end] for span in completion.version_spans],
        completion.finish_reason,
        completion.engine,
        completion.pool,
        completion.cached_tokens,
        float(turn.reward),
        turn.num_calls,
        turn.call_errors,
        turn.num_bare_calls,
    ]


def _turns(values: Sequence[Sequence[Any]], data: bytes, start: int) -> Iterator[Turn]:
    """Cut the vectors, which fill `data` from `start` to its end, into turns. Their records copy what they keep."""
    num_contexts, num_sampled = (sum(turn[axis] for turn in values) for axis in (0, 1))
    vectors = []
    for dtype, count in ((_CONTEXT, num_contexts), (_IDS, num_sampled), (_LOGPROBS, num_sampled), (_MASK, num_sampled)):
        end = start + count * dtype.itemsize
        vectors.append(np.frombuffer(data[start:end], dtype))
        start = end
    contexts, ids, logprobs, masks = vectors
    if start != len(data):
        raise ValueError(f"the vectors should end at byte {start}")
    at_context = at = 0
    for num_context, num_ids, spans, finish_reason, engine, pool, cached, reward, num_calls, errors, bare in values:
        part = slice(at, at + num_ids)
        completion = Completion(
            ids=ids[part],
            logprobs=logprobs[part],
            loss_mask=masks[part],
            version_spans=tuple(VersionSpan(version=v, start=start, end=end) for v, start, end in spans),
            finish_reason=finish_reason,
            engine=engine,
            pool=pool,
            cached_tokens=cached,
        )
        yield Turn(
            context_ids=contexts[at_context : at_context + num_context],
            completion=completion,
            reward=reward,
            num_calls=num_calls,
            call_errors=tuple(errors),
            num_bare_calls=bare,
        )
        at_context, at = at_context + num_context, at + num_ids


def _trajectory(values: dict[str, Any], turns: Iterator[Turn], task: Task, group_id: int, member: int) -> Trajectory:
    wall_s, env_s, engine_s = values["times_s"]
    return Trajectory(
        task=task,
        group_id=group_id,
        member=member,
        end=EpisodeEnd(values["end"]),
        reward=values["reward"],
        env_reward=values["env_reward"],
        segments=tuple(Segment(turns=tuple(next(turns) for _ in segment)) for segment in values["segments"]),
        wall_s=wall_s,
        env_s=env_s,
        engine_s=engine_s,
        error=values["error"],
    )
