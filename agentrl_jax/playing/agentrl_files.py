"""The results of an evaluation as `agentrl-eval` 0.1.2 leaves them, for tools that read its folders.

    FOLDER/results.jsonl                                          one row per episode
    FOLDER/MODEL-TASK-INDEX-RUN-SESSION-TIME/task_trace.json      its conversation

Its words differ from ours: a model is a mixture, a run is a sample, and a status it does not know makes it drop a row.
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agentrl_jax.playing.chat_json import chat_messages
from agentrl_jax.playing.records import EpisodeRecord
from agentrl_jax.types import EpisodeEnd

_STATUS = {
    # It does not know "agent context limit"; this one has the same part in its averages.
    EpisodeEnd.CONTEXT_LIMIT: "task limit reached",
    EpisodeEnd.TURN_TRUNCATED: "task limit reached",
    EpisodeEnd.ENGINE_ERROR: "model error",
}


def write_agentrl_files(episodes: Sequence[EpisodeRecord], folder: Path) -> None:
    """Write the rows and conversations of `episodes` into `folder`, which is made if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for number, episode in enumerate(episodes, 1):
        trace = folder / _session(episode, number) / "task_trace.json"
        trace.parent.mkdir(exist_ok=True)
        trace.write_text(json.dumps(chat_messages(episode.messages), ensure_ascii=False, indent=2), encoding="utf-8")
        lines.append(json.dumps(_row(episode, number, trace.relative_to(folder).as_posix()), ensure_ascii=False))
    (folder / "results.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _row(episode: EpisodeRecord, number: int, trace: str) -> dict[str, Any]:
    reward = episode.env_reward
    return {
        "model": episode.mixture,
        "session_id": number,
        "run": episode.sample,
        "task": episode.task.env,
        "index": {"int_value": episode.task.index, "str_value": None},
        "status": _STATUS.get(episode.end, episode.end.agentrl_status),
        "metric_reward": reward,
        "metric_score": episode.metrics.get("score"),
        "metric_success_rate": None if reward is None else float(episode.is_success),
        "metrics": json.dumps(dict(episode.metrics)) if episode.metrics else None,
        "result": None,
        "task_trace": trace,
        "raw_trace": None,
        "ts_start": _time(episode.begun),
        "ts_end": _time(episode.begun + episode.wall_s),
    }


def _session(episode: EpisodeRecord, number: int) -> str:
    parts = (episode.mixture, episode.task.env, episode.task.index, episode.sample, number, int(episode.begun))
    return "-".join(map(str, parts)).replace("/", "_")


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
