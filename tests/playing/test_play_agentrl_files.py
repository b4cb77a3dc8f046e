"""Results in agentrl-eval's own files; tests/agentrl reads them by the stock package."""

import json
from dataclasses import replace
from pathlib import Path

from agentrl_jax.env import Message
from agentrl_jax.playing.agentrl_files import write_agentrl_files
from agentrl_jax.types import EpisodeEnd
from tests.playing.world import act, record


def test_rows_and_conversations(tmp_path: Path) -> None:

    said = (Message(role="user", content="Où?"), act(at="x"), Message(role="tool", content="here"))
    solved = replace(record(solved=True, index=4, metrics={"score": 0.5}), messages=said, begun=12.25, wall_s=1.5)
    limit = replace(record(solved=False, sample=1), end=EpisodeEnd.CONTEXT_LIMIT, reward=-0.2)
    write_agentrl_files([solved, limit, record(None, sample=2)], tmp_path / "out")
    rows = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text("utf-8").splitlines()]
    assert rows[0] == {
        "model": "m",
        "session_id": 1,
        "run": 0,
        "task": "a",
        "index": {"int_value": 4, "str_value": None},
        "status": "completed",
        "metric_reward": 1.0,
        "metric_score": 0.5,
        "metric_success_rate": 1.0,
        "metrics": '{"score": 0.5}',
        "result": None,
        "task_trace": "m-a-4-0-1-12/task_trace.json",
        "raw_trace": None,
        "ts_start": "1970-01-01T00:00:12.250+00:00",
        "ts_end": "1970-01-01T00:00:13.750+00:00",
    }
    assert [(row["status"], row["metric_reward"], row["metric_success_rate"]) for row in rows[1:]] == [
        ("task limit reached", 0.0, 0.0),
        ("model error", None, None),
    ]
    trace = json.loads((tmp_path / "out" / rows[0]["task_trace"]).read_text("utf-8"))
    assert [message["role"] for message in trace] == ["user", "assistant", "tool"]
    assert trace[1]["tool_calls"][0]["function"] == {"name": "act", "arguments": '{"at": "x"}'}
    assert trace[2]["tool_call_id"] == trace[1]["tool_calls"][0]["id"]
