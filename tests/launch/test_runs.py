"""What is left of a run directory, and said, whatever ends the work in it."""

import errno
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl_jax.config import TrainConfig
from agentrl_jax.errors import ConfigError, NoProgressError
from agentrl_jax.runlog import RunLog
from agentrl_jax.sharding import make_mesh, parse_mesh
from launch import runs
from launch.runs import carry_out

STEP = {"step": 1, "version": 0, "is_applied": True, "envs": {"kg": {"success_rate": 0.5}}}
TIMES = {"collect_s": 1.0, "learn_s": 1.0, "publish_s": 1.0}


def ended(run_dir: Path, work: Callable[[RunLog], Any], said: list[str], **settings: Any) -> Any:
    config = TrainConfig(run_dir=run_dir, **settings)
    return carry_out(config, {}, make_mesh(parse_mesh("1")), said.append, work)


def a_step_and(end: BaseException | None) -> Callable[[RunLog], str]:
    def work(run: RunLog) -> str:
        run.log_metrics("step", STEP | TIMES)
        if end is not None:
            raise end
        return "done"

    return work


@pytest.mark.parametrize("end", [None, KeyboardInterrupt()])
def test_a_run_that_ends_or_is_interrupted_has_a_report(tmp_path: Path, end: BaseException | None) -> None:
    said: list[str] = []
    assert ended(tmp_path / "run", a_step_and(end), said) == ("done" if end is None else None)
    assert f"report: {tmp_path / 'run' / 'report.html'}" in said
    assert (tmp_path / "run" / "report.html").is_file()
    assert (tmp_path / "run" / "curves.png").is_file()


@pytest.mark.parametrize("end", [NoProgressError("nothing is learnt"), OSError(errno.ENOSPC, "full"), SystemExit(3)])
def test_a_run_that_an_exception_ends_has_a_report(tmp_path: Path, end: BaseException) -> None:
    with pytest.raises(type(end)) as caught:
        ended(tmp_path / "run", a_step_and(end), [])
    assert caught.value is end
    assert (tmp_path / "run" / "report.html").is_file()


def test_what_cannot_be_drawn_changes_nothing_about_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(runs, "write_report", full)
    said: list[str] = []
    assert ended(tmp_path / "one", a_step_and(None), said) == "done"
    assert "WARNING: no report: [Errno 28] No space left on device" in said[-1]
    with pytest.raises(NoProgressError):
        ended(tmp_path / "two", a_step_and(NoProgressError("nothing is learnt")), said)


def test_settings_that_are_refused_after_a_step_cost_no_step(tmp_path: Path) -> None:
    said: list[str] = []
    with pytest.raises(ConfigError, match="too late"):
        ended(tmp_path / "run", a_step_and(ConfigError("too late")), said)
    assert (tmp_path / "run" / "metrics.jsonl").is_file()
    assert (tmp_path / "run" / "report.html").is_file()
    assert f"go on with --resume {tmp_path / 'run'}" in said[-3]


def test_a_folder_with_a_space_is_named_so_that_a_shell_reads_it_back(tmp_path: Path) -> None:
    said: list[str] = []
    assert ended(tmp_path / "my run", a_step_and(KeyboardInterrupt()), said) is None
    (line,) = (line for line in said if "--resume" in line)
    assert shlex.split(line)[-2:] == ["--resume", str(tmp_path / "my run")]


def test_settings_that_are_refused_before_anything_is_learnt_leave_no_directory(tmp_path: Path) -> None:
    def work(run: RunLog) -> None:
        run.log_metrics("evaluation", {"step": 0})
        raise ConfigError("wrong")

    said: list[str] = []
    with pytest.raises(ConfigError, match="wrong"):
        ended(tmp_path / "run", work, said)
    assert list(tmp_path.iterdir()) == []
    assert said == [f"run directory: {tmp_path / 'run'}"]


def test_a_refused_resumption_draws_nothing_anew(tmp_path: Path) -> None:
    ended(tmp_path / "run", a_step_and(None), [])
    (tmp_path / "run" / "report.html").unlink()

    def work(run: RunLog) -> None:
        raise ConfigError("nothing is left to do")

    with pytest.raises(ConfigError, match="left to do"):
        ended(tmp_path / "run", work, [], resume=tmp_path / "run")
    assert not (tmp_path / "run" / "report.html").exists()
    assert (tmp_path / "run" / "metrics.jsonl").is_file()
