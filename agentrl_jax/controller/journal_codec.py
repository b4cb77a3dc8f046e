"""A whole group as bytes and back, every field exactly. Plain npz: arrays and one JSON text, nothing is unpickled.

The vectors of all turns lie end to end in four arrays; the JSON has the lengths that cut them apart, and everything
that is not a vector. It is ASCII, so no text in it, whatever a tool printed, can be split or altered.
"""

import io
import json
import zipfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from agentrl_jax.errors import RecordError
from agentrl_jax.types import Completion, EpisodeEnd, Group, Segment, Task, Trajectory, Turn, VersionSpan

_ARRAYS = ("context_ids", "ids", "logprobs", "loss_mask")


def encode_group(group: Group) -> bytes:
    """Return `group` as npz."""
    turns = [turn for trajectory in group.trajectories for turn in trajectory.turns]
    facts = {
        "group_id": group.group_id,
        "task": task_to_json(group.task),
        "admitted_version": group.admitted_version,
        "trajectories": [_trajectory_to_json(trajectory) for trajectory in group.trajectories],
    }
    buffer = io.BytesIO()
    np.savez(
        buffer,
        allow_pickle=False,
        context_ids=_joined([turn.context_ids for turn in turns], np.int32),
        ids=_joined([turn.completion.ids for turn in turns], np.int32),
        logprobs=_joined([turn.completion.logprobs for turn in turns], np.float32),
        loss_mask=_joined([turn.completion.loss_mask for turn in turns], np.bool_),
        facts=np.frombuffer(json.dumps(facts, allow_nan=False, separators=(",", ":")).encode("ascii"), np.uint8),
    )
    return buffer.getvalue()


def decode_group(data: bytes) -> Group:
    """Return what `encode_group` was given. Raises RecordError if `data` is anything else."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            facts = json.loads(arrays["facts"].tobytes())
            turns = iter([*_turns([t for m in facts["trajectories"] for s in m["segments"] for t in s], arrays)])
        task = task_from_json(facts["task"])
        trajectories = [
            _trajectory(values, turns, task, facts["group_id"], member)
            for member, values in enumerate(facts["trajectories"])
        ]
        return Group(
            group_id=facts["group_id"],
            task=task,
            admitted_version=facts["admitted_version"],
            trajectories=tuple(trajectories),
        )
    except (ValueError, KeyError, TypeError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise RecordError(f"{len(data)} bytes are not a recorded group: {type(error).__name__}: {error}") from error


def task_to_json(task: Task) -> list[Any]:
    return [task.env, task.split, task.index, task.seed]


def task_from_json(values: Sequence[Any]) -> Task:
    env, split, index, seed = values
    return Task(env=env, split=split, index=index, seed=seed)


def _joined(vectors: Sequence[Any], dtype: Any) -> Any:
    return np.concatenate(vectors) if vectors else np.zeros(0, dtype)


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
    ]


def _turns(values: Sequence[Sequence[Any]], arrays: Any) -> Iterator[Turn]:
    """Cut the arrays into turns, in order. Their records copy what they keep."""
    contexts, ids, logprobs, masks = (arrays[name] for name in _ARRAYS)
    at_context = at = 0
    for num_context, num_ids, spans, finish_reason, engine, pool, cached, reward, num_calls, errors in values:
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
