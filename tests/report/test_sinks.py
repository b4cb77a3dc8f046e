"""TensorBoard and W&B receive the figures of metrics.jsonl: all of them, and nothing else."""

import json
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from agentrl_jax.config import TrainConfig
from agentrl_jax.errors import ConfigError
from agentrl_jax.report import sinks
from agentrl_jax.report.sinks import check_sinks, figures, open_sinks
from agentrl_jax.runlog import RunLog, read_records
from tests.report.drawn_run import draw_run


class FakeSink:
    def __init__(self) -> None:
        self.written: list[tuple[str, int, dict[str, float]]] = []
        self.undone: list[int] = []
        self.is_closed = False

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        self.written.append((kind, step, dict(values)))

    def undo_after(self, step: int) -> None:
        self.undone.append(step)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeSink:
    sink = FakeSink()
    monkeypatch.setattr(sinks, "_TensorBoard", lambda run_dir: sink)
    return sink


def replayed(source: Path, folder: Path, names: tuple[Any, ...]) -> list[dict[str, Any]]:
    """Log the records of `source` anew into `folder`, observed by sinks, and return what metrics.jsonl has."""
    with RunLog(folder) as log, open_sinks(names, folder, {"max_steps": 3}) as observers:
        log.add_observers(observers)
        for record in read_records(source / "metrics.jsonl"):
            log.log_metrics(record.pop("kind"), record)
    return read_records(folder / "metrics.jsonl")


def expected(records: list[dict[str, Any]]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for record in records:
        for name, value in figures(record.pop("kind"), record).items():
            found.setdefault(name, []).append(value)
    return found


def test_a_sink_gets_every_number_of_every_record(fake: FakeSink, tmp_path: Path) -> None:
    records = replayed(draw_run(tmp_path / "one", num_steps=2), tmp_path / "two", ("tensorboard",))
    received: dict[str, list[float]] = {}
    for _, _, values in fake.written:
        for name, value in values.items():
            received.setdefault(name, []).append(value)
    assert received == expected(records)
    assert received["step/envs/kg/success_rate"] == [r["envs"]["kg"]["success_rate"] for r in records if "envs" in r]
    assert received["evaluation/kg/greedy/success_rate"] == [0.25, 0.75]
    assert [step for kind, step, _ in fake.written if kind == "step"] == [1, 2]
    assert fake.is_closed


def test_what_was_not_measured_is_left_out_and_resumes_are_told(fake: FakeSink, tmp_path: Path) -> None:
    with RunLog(tmp_path / "run") as log, open_sinks(("tensorboard",), tmp_path / "run", {}) as observers:
        log.add_observers(observers)
        log.log_metrics("step", {"step": 5, "a": float("nan"), "b": float("inf"), "c": 1, "d": "text"})
        log.log_resume(3, 9)
        log.log_metrics("gain", {"mode": "greedy", "envs": {"kg": {"gain": 0.5}}})
    assert fake.written == [
        ("step", 5, {"step/step": 5.0, "step/c": 1.0}),
        ("gain", 3, {"gain/greedy/envs/kg/gain": 0.5}),
    ]
    assert fake.undone == [3]


def test_a_run_goes_on_without_a_sink_that_fails(
    fake: FakeSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = []

    def fail(kind: str, step: int, values: object) -> None:
        asked.append(step)
        raise RuntimeError("its service is gone")

    monkeypatch.setattr(fake, "write", fail)
    records = replayed(draw_run(tmp_path / "one", num_steps=2), tmp_path / "two", ("tensorboard",))
    assert len(records) > 2
    assert len(asked) == 1
    assert [message for message in caplog.messages if "tensorboard gets no more figures" in message] == [
        "tensorboard gets no more figures of this run, which goes on: RuntimeError: its service is gone. "
        "All of them are in metrics.jsonl"
    ]


def test_a_sink_that_cannot_be_had_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"--track wandb needs a package .* pip install agentrl_jax\[track\]"):
        check_sinks(("wandb",))
    with pytest.raises(ConfigError, match="names a sink twice"):
        check_sinks(("wandb", "wandb"))
    check_sinks(())
    assert TrainConfig.from_json(TrainConfig(track=("wandb",)).to_json()).track == ("wandb",)


def test_without_track_neither_package_is_imported(tmp_path: Path) -> None:
    for name in ("wandb", "tensorboard"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')")  # whether or not the packages are here
    program = (
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n"
        "from pathlib import Path\nfrom agentrl_jax.report.sinks import check_sinks, open_sinks\n"
        "check_sinks(())\nwith open_sinks((), Path('.'), {}) as observers:\n    sys.exit(len(observers))\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="tensorboard is not installed (extra: track)")
def test_event_files_hold_the_figures_of_the_log(tmp_path: Path) -> None:
    records = replayed(draw_run(tmp_path / "one", num_steps=2), tmp_path / "two", ("tensorboard",))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(tmp_path / "two" / "tensorboard")).Reload()
    wanted = expected(records)
    assert set(found.Tags()["scalars"]) == set(wanted)
    for name, values in wanted.items():
        assert [event.value for event in found.Scalars(name)] == pytest.approx(values, rel=1e-6)
    assert [event.step for event in found.Scalars("step/step")] == [1, 2]


def chunks_of(log: bytes) -> Iterator[bytes]:
    """Records of a log in LevelDB's format: blocks of 32 KiB; checksum, length and kind before each fragment."""
    position, whole = 7, b""  # behind W&B's own header
    while position < len(log):
        if 32_768 - position % 32_768 < 7:
            position += 32_768 - position % 32_768
            continue
        _, length, kind = struct.unpack_from("<IHB", log, position)
        whole += log[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a whole record, or the last fragment of one
            yield whole
            whole = b""


@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed (extra: track)")
def test_an_offline_run_of_wandb_holds_the_figures_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "5" * 40)
    monkeypatch.setenv("SOME_TOKEN", "much-too-secret")
    records = replayed(draw_run(tmp_path / "one", num_steps=2), tmp_path / "two", ("wandb",))
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = (tmp_path / "two" / "wandb").glob("offline-run-*/*.wandb")
    found: dict[str, list[float]] = {}
    for data in chunks_of(path.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        for item in record.history.item:
            name = item.key or "/".join(item.nested_key)
            if not name.startswith("_"):
                found.setdefault(name, []).append(json.loads(item.value_json))
    wanted = expected(records)
    assert found.keys() >= wanted.keys()
    for name, values in wanted.items():
        assert found[name] == pytest.approx(values), name
    for file in (tmp_path / "two").rglob("*"):
        content = file.read_bytes() if file.is_file() else b""
        assert b"5" * 40 not in content
        assert b"much-too-secret" not in content
