"""Spans say when each call of an episode began and ended, under the episode's id; off, they cost and import nothing."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import trio
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agentrl_jax.controller.episode import EpisodeConfig, EpisodeSetup, run_episode, single_engine
from agentrl_jax.controller.telemetry import CallTime, Telemetry, check_installed, open_telemetry
from agentrl_jax.errors import ConfigError
from agentrl_jax.runlog import read_records
from agentrl_jax.testing.engine import FakeEngine, constant_latency
from agentrl_jax.testing.envs import EnvScript, SessionLog, scripted_sessions
from agentrl_jax.testing.renderer import FakeRenderer
from agentrl_jax.testing.virtual import run_virtual
from agentrl_jax.types import Task, Trajectory

TASK = Task(env="scripted", split="train", index=3, seed=7)
SLOW = EnvScript(rewards=(0.25, 1.0), reset_s=1.0, step_s=2.0)
Observed = list[tuple[Trajectory, Sequence[CallTime]]]


def setup_of(script: EnvScript, observed: Observed | None, engine: FakeEngine | None = None) -> EpisodeSetup:
    says = FakeEngine(script=lambda prompt, sampling: [5, 6, 0], token_latency=constant_latency(0.5), version=3)
    return EpisodeSetup(
        sessions=scripted_sessions(script, SessionLog()),
        tools=(),
        renderer=FakeRenderer(),
        choose_engine=single_engine(engine or says),
        config=EpisodeConfig(max_turns=4, max_new_tokens=8, max_context_tokens=512),
        run_seed=0,
        observe=None if observed is None else lambda trajectory, calls: observed.append((trajectory, calls)),
    )


def observe(script: EnvScript = SLOW, engine: FakeEngine | None = None) -> tuple[Trajectory, Sequence[CallTime]]:
    observed: Observed = []

    async def main() -> None:
        await run_episode(TASK, 4, 1, setup=setup_of(script, observed, engine))

    run_virtual(main)
    (episode,) = observed
    return episode


def spans_of(folder: Path, *episodes: tuple[Trajectory, Sequence[CallTime]]) -> list[dict[str, Any]]:
    from agentrl_jax.controller.spans import open_spans

    with open_spans(folder / "spans.jsonl", epoch_s=1000.0) as write:
        for episode in episodes:
            write(*episode)
    return read_records(folder / "spans.jsonl")


def test_calls_by_hand() -> None:
    _, calls = observe()
    assert calls == [
        CallTime("reset", -1, 0.0, 1.0),
        CallTime("generate", 0, 1.0, 2.5, "fake-0"),
        CallTime("step", 0, 2.5, 4.5),
        CallTime("generate", 1, 4.5, 6.0, "fake-0"),
        CallTime("step", 1, 6.0, 8.0),
    ]


def test_the_spans_of_an_episode(tmp_path: Path) -> None:
    spans = spans_of(tmp_path, observe())
    assert len({span["trace"] for span in spans}) == 1
    by_id = {span["span"]: span for span in spans}
    found = {
        (by_id[span["parent"]]["name"] if span["parent"] else None, span["name"], span["begun_s"], span["duration_s"])
        for span in spans
    }
    assert found == {
        (None, "episode", 1000.0, 8.0),
        ("episode", "reset", 1000.0, 1.0),
        ("episode", "turn", 1001.0, 3.5),
        ("turn", "generate", 1001.0, 1.5),
        ("turn", "step", 1002.5, 2.0),
        ("episode", "turn", 1004.5, 3.5),
        ("turn", "generate", 1004.5, 1.5),
        ("turn", "step", 1006.0, 2.0),
    }
    assert all(span["attributes"]["agentrl.episode"] == "g4-m1" and span["error"] is None for span in spans)


def test_attributes(tmp_path: Path) -> None:
    trajectory, calls = observe()
    spans = spans_of(tmp_path, (trajectory, calls))
    (top,) = (span["attributes"] for span in spans if span["name"] == "episode")
    assert top == {
        "agentrl.episode": "g4-m1",
        "agentrl.env": "scripted",
        "agentrl.task": "scripted/train/3/7",
        "agentrl.group": 4,
        "agentrl.member": 1,
        "agentrl.end": "completed",
        "agentrl.turns": 2,
        "agentrl.tokens": trajectory.num_tokens,
        "agentrl.reward": 1.25,
    }
    second = next(s["attributes"] for s in spans if s["name"] == "generate" and s["attributes"]["agentrl.turn"] == 1)
    assert {key: second[f"agentrl.{key}"] for key in ("engine", "pool", "version", "tokens", "finish_reason")} == {
        "engine": "fake-0",
        "pool": "current",
        "version": 3,
        "tokens": 3,
        "finish_reason": "stop",
    }
    assert second["agentrl.context_tokens"] == len(trajectory.turns[1].context_ids)
    step = next(s["attributes"] for s in spans if s["name"] == "step")
    assert (step["agentrl.reward"], step["agentrl.calls"], step["agentrl.env"]) == (0.25, 0, "scripted")


@pytest.mark.parametrize(
    ("script", "engine", "names", "error"),
    [
        (replace(SLOW, fault="error", fault_at=0), None, ["reset", "episode"], "scripted/train/3/7: failed on purpose"),
        (
            SLOW,
            FakeEngine(fails=lambda s, p: True),
            ["reset", "generate", "turn", "episode"],
            "fake-0 failed on purpose",
        ),
    ],
)
def test_a_failed_call_is_a_span_and_the_episode_says_why(
    script: EnvScript, engine: FakeEngine | None, names: list[str], error: str, tmp_path: Path
) -> None:
    spans = spans_of(tmp_path, observe(script, engine))
    assert [span["name"] for span in spans] == names
    assert spans[-1]["error"].startswith(error)


@pytest.fixture
def episode() -> tuple[Trajectory, Sequence[CallTime]]:
    return observe()


async def test_a_run_writes_all_that_was_observed_also_if_it_fails(
    episode: tuple[Trajectory, Sequence[CallTime]], tmp_path: Path
) -> None:
    with pytest.raises(ExceptionGroup) as raised:  # noqa: PT012 - the block under test is the context
        async with open_telemetry(tmp_path, is_on=True) as telemetry:
            assert telemetry is not None
            for _ in range(50):
                telemetry.observe(*episode)
            raise ValueError("the run failed")
    assert raised.group_contains(ValueError, match="the run failed")
    spans = read_records(tmp_path / "spans.jsonl")
    assert sum(span["name"] == "episode" for span in spans) == 50
    statistics = telemetry.statistics()
    assert (statistics.num_episodes, statistics.num_waiting, statistics.num_dropped) == (50, 0, 0)


async def test_a_cancelled_run_writes_what_was_observed(
    episode: tuple[Trajectory, Sequence[CallTime]], tmp_path: Path
) -> None:
    with trio.CancelScope() as scope:
        async with open_telemetry(tmp_path, is_on=True) as telemetry:
            assert telemetry is not None
            telemetry.observe(*episode)
            scope.cancel()
            await trio.sleep_forever()
    assert sum(span["name"] == "episode" for span in read_records(tmp_path / "spans.jsonl")) == 1


def test_the_loop_never_waits_for_a_slow_exporter() -> None:
    telemetry = Telemetry(lambda trajectory, calls: None, max_waiting=2)
    for _ in range(5):
        telemetry.observe(*observe())  # nobody works
    statistics = telemetry.statistics()
    assert (statistics.num_episodes, statistics.num_waiting, statistics.num_dropped) == (0, 2, 3)
    telemetry.finish()
    telemetry.work()
    assert telemetry.statistics().num_episodes == 2


async def test_off_writes_nothing(tmp_path: Path) -> None:
    async with open_telemetry(tmp_path, is_on=False) as telemetry:
        assert telemetry is None
    assert not (tmp_path / "spans.jsonl").exists()


def test_off_imports_nothing() -> None:
    modules = "agentrl_jax.controller.telemetry, agentrl_jax.controller.loop, agentrl_jax.controller.statistics"
    check = f"import sys, {modules}; sys.exit('opentelemetry' in sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)


def test_exporters_of_the_standard_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = InMemorySpanExporter()
    installed = {"memory": EntryPoint(name="memory", value="", group="")}
    monkeypatch.setattr(EntryPoint, "load", lambda entry: lambda: memory)
    monkeypatch.setattr(
        "agentrl_jax.controller.spans.entry_points",
        lambda *, group, name=None: [entry for entry in installed.values() if name in (None, entry.name)],
    )
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "memory, none")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "a-run")
    assert len(spans_of(tmp_path, observe())) == 8
    exported = memory.get_finished_spans()
    assert [span.name for span in exported].count("turn") == 2
    assert {span.resource.attributes["service.name"] for span in exported} == {"a-run"}
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "nowhere")
    with pytest.raises(ConfigError, match="names 'nowhere', but installed are memory; otlp comes with"):
        spans_of(tmp_path, observe())


def test_a_missing_sdk_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl_jax.controller.telemetry.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install opentelemetry-sdk"):
        check_installed()
