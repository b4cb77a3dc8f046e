"""Flags about JAX itself: refused when they make no sense, and in effect when they do."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from agentrl_jax.errors import ConfigError
from agentrl_jax.profiling import StepProfiler
from agentrl_jax.runtime import RuntimeConfig, settle, start
from launch.train import main
from tests.launch.tiny_run import tiny

REFUSALS = {
    "--profile=-1": "--profile must be >= 0 steps, got -1",
    "--memory-fraction=0": "--memory-fraction must be in (0, 1], got 0.0",
    "--memory-fraction=1.5": "--memory-fraction must be in (0, 1], got 1.5",
    "--memory-fraction=nan": "--memory-fraction must be in (0, 1], got nan",
    "--compilation-cache=": "--compilation-cache must be auto, off or a folder",
    "--num-processes=2": "give all three or none, got None, 2, None",
    "--coordinator-address=here": "give all three or none",
    "--learner.attention=flash": "flash",
}


@pytest.mark.parametrize(("flag", "message"), REFUSALS.items())
def test_a_wrong_setting_is_refused(flag: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([flag])
    assert caught.value.code == 2
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_a_share_of_gpu_memory_is_refused_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    config = RuntimeConfig(memory_fraction=0.5)
    assert start(config) is None
    assert os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.5"
    with pytest.raises(ConfigError, match="--memory-fraction has no effect on a CPU"):
        settle(config)


def test_where_programs_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told: dict[str, object] = {}
    monkeypatch.setattr(jax.config, "update", told.__setitem__)
    assert settle(RuntimeConfig()) is None
    assert settle(RuntimeConfig(compilation_cache="off")) is None
    assert told == {}
    assert settle(RuntimeConfig(compilation_cache=str(tmp_path / "a" / "b"))) == tmp_path / "a" / "b"
    assert (tmp_path / "a" / "b").is_dir()
    assert told == {"jax_compilation_cache_dir": str(tmp_path / "a" / "b")}
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    assert settle(RuntimeConfig()) == tmp_path / "agentrl_jax"
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be made: Not a directory"):
        settle(RuntimeConfig(compilation_cache=str(tmp_path / "file" / "cache")))


@pytest.mark.parametrize(("wanted", "taken", "traced"), [(0, 3, []), (2, 5, [2, 3]), (9, 3, [2, 3]), (2, 1, [])])
def test_steps_are_profiled_from_the_second_on(
    wanted: int, taken: int, traced: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    events: list[str] = []
    said: list[str] = []
    monkeypatch.setattr(jax.profiler, "start_trace", lambda folder: events.append(f"start {folder.name}"))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: events.append("stop"))
    profiler = StepProfiler(wanted, tmp_path / "profile", said.append)
    for number in range(1, taken + 1):
        with profiler.step():
            events.append(str(number))
    profiler.close()
    inside = [str(number) for number in range(1, taken + 1)]
    if traced:
        inside.insert(inside.index(str(traced[-1])) + 1, "stop")
        inside.insert(inside.index(str(traced[0])), "start profile")
    assert events == inside
    assert len(said) == bool(traced)


def test_a_profile_is_written(tmp_path: Path) -> None:
    profiler = StepProfiler(1, tmp_path / "profile", print)
    for _ in range(2):
        with profiler.step():
            jnp.ones(3).sum().block_until_ready()
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))


@pytest.mark.slow
def test_a_run_profiles_its_steps_and_finds_its_programs_again(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    outputs = []
    for number in range(2):
        flags = tiny(tmp_path / f"run{number}", "--profile=1", f"--compilation-cache={cache}")
        done = subprocess.run(
            [sys.executable, "-m", "launch.train", *flags], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "Warning" not in done.stderr
        assert list((tmp_path / f"run{number}" / "profile").rglob("*.xplane.pb"))
        outputs.append(done.stdout)
        kept = {path.name for path in cache.iterdir()}
        if number == 0:
            first = kept
    assert f"compiled programs are kept in {cache}" in outputs[0]
    assert "attention: xla (pallas needs an NVIDIA GPU, but the mesh is of cpu devices)" in outputs[0]
    assert first
    assert {name for name in kept if name.endswith("-cache")} == {name for name in first if name.endswith("-cache")}
