"""The controller's cost, with room for busy machines: three times the bounds of `benchmarks.controller`."""

import json
from collections.abc import Sequence

import pytest

from agentrl_jax.env import Message
from benchmarks import controller
from benchmarks.controller import NAME, UNITS, Size, main, measure, run_case
from benchmarks.controller_cases import CASES, live_memory
from benchmarks.controller_world import NUM_IDS, make_renderer, reply_text, sampled_ids

FIELDS = {"benchmark", "case", "metric", "value", "unit", "min", "max", "repeats", "commit", "machine", "versions"}


def test_turns_and_replies_have_two_hundred_ids() -> None:
    renderer = make_renderer()
    assert NUM_IDS <= len(sampled_ids(renderer)) < NUM_IDS + 8
    assert len(renderer.parse(sampled_ids(renderer)).calls) == 1
    reply = (Message(role="tool", content=reply_text(renderer)),)
    assert NUM_IDS <= len(renderer.reply(reply)) < NUM_IDS + 8


def test_a_turn_costs_less_than_three_times_its_bound() -> None:
    found = run_case(["concurrent", 400, 1_600, 0.5, False, False])
    assert found["cpu_ms_per_turn"] < 1.5
    assert found["lag_p99_ms"] < 150.0
    assert found["peak_episodes"] >= 400


def test_a_live_episode_takes_less_than_its_bound() -> None:
    assert 1.0 < live_memory(200, True)["python_kb_per_episode"] < 60.0


@pytest.mark.slow
def test_a_turn_on_a_remote_worker_costs_less_than_three_times_its_bound() -> None:
    found = run_case(["remote", 100, 500, 1.0])
    assert found["cpu_ms_per_turn"] < 4.5
    assert found["peak_episodes"] >= 95  # some have ended, and are about to begin again


def test_every_case_is_measured_under_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"concurrent": {"cpu_ms_per_turn": 0.5}, "process_each": {"cpu_ms_per_turn": 50.0}}
    asked = []

    def run(call: list[object]) -> dict[str, float]:
        asked.append(call[0])
        return values.get(str(call[0]), {})

    monkeypatch.setattr(controller, "run_case", run)
    found = {(figure.case, figure.metric): figure.value for figure in measure(controller.FULL)}
    assert set(asked) == set(CASES) - {"one_episode"}
    assert found["10000-episodes", "cpu_ms_per_turn"] == 0.5
    assert found["process-per-episode", "cpu_ratio"] == 100.0


SMALL = Size(
    num_episodes=16,
    num_turns=64,
    latency_s=0.01,
    num_threaded=8,
    threaded_turns=32,
    num_live=16,
    num_warm=200,
    num_slope=600,
    num_processes=1,
    num_remote=8,
    remote_turns=16,
    think_s=0.1,
    repeats=1,
)


@pytest.mark.slow
def test_json_lines_have_every_field(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(controller, "QUICK", SMALL)
    assert main(["--json", "--quick"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert all(set(line) == FIELDS and line["benchmark"] == NAME for line in lines)
    assert {line["metric"] for line in lines} == {*UNITS, "cpu_ratio"}
    ratio = next(line["value"] for line in lines if line["metric"] == "cpu_ratio")
    assert ratio > 10


def test_single_cases_are_measured_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    called = []

    def run(call: Sequence[object]) -> dict[str, float]:
        called.append(call[0])
        return {"cpu_ms_per_turn": 1.0}

    monkeypatch.setattr(controller, "run_case", run)
    assert main(["--json", "--only", "2000-remote"]) == 0
    assert called == ["remote"] * controller.FULL.repeats
    with pytest.raises(SystemExit) as stopped:
        main(["--only", "2000"])
    assert stopped.value.code == 2
    assert "2000: no such case" in capsys.readouterr().err
