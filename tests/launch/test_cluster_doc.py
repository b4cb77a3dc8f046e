"""docs/cluster.md: what can be run on one machine is run, the rest is parsed, and what it names exists."""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from launch import cluster, controller, engine, gpu_check, train, worker
from launch.command import parse
from launch.config import parse_training
from launch.gpu_check import GpuCheckConfig
from launch.worker import WorkerConfig

ROOT = Path(__file__).resolve().parents[2]
DOC = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```\n(.*?)^```", DOC, re.MULTILINE | re.DOTALL)
REHEARSAL, HEALTH = (next(block for block in BLOCKS if word in block) for word in ("mkdir", "cluster.health"))
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def test_a_plan_is_made_by_the_command_that_is_named() -> None:
    words = shlex.split(next(block for block in BLOCKS if "--dry-run" in block))
    config, _ = parse_training(words[3:], program="launch.train")
    assert (config.recipe, config.mesh, config.dry_run) == ("paper-14b", "8", True)
    assert "python -m launch.gpu_check\n" in DOC
    assert parse(GpuCheckConfig, [], program="launch.gpu_check").mesh == "1"


def test_what_is_started_by_hand_is_started_with_settings_that_hold(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc")
    (tmp_path / "token").chmod(0o600)

    def words_of(beginning: str) -> list[str]:
        block = next(block for block in BLOCKS if block.startswith(beginning))
        words = shlex.split(block.replace("\\\n", " "))[3:]
        words = [re.sub(r"=\w+\.token$", f"={tmp_path}/token", word) for word in words]
        return [re.sub(r"=(RUN_)?DIR$", f"={tmp_path}", word) for word in words]

    hosted = parse(WorkerConfig, words_of("python -m launch.worker"), program="launch.worker")
    assert hosted.place.reached_at(hosted.port) == "http://HOST:5025/abc/api"
    config, _ = parse_training(
        words_of("python -m launch.train --recipe=paper-14b --mesh=8 --model"), program="launch.train"
    )
    assert (len(config.engines), len(config.lagging_engines), config.tasks) == (3, 1, "remote:webshop-train")


def test_broadcasts_are_asked_for_by_flags_that_hold(tmp_path: Path) -> None:
    flags = shlex.split(next(block for block in BLOCKS if "--publish.transport" in block))
    flags = [flag.replace("/shared/venv-sglang/bin/python", sys.executable) for flag in flags]
    servers = ["--engines=sglang:http://a:30000", "--lagging-engines=sglang:http://a:30001"]
    given = ["--recipe=paper-14b", f"--model={tmp_path}", f"--data={tmp_path}", *servers, *flags]
    config, _ = parse_training(given, program="launch.train")
    assert (config.publish.transport, config.publish.host) == ("distributed", "HOST0")


@contextmanager
def started(command: str, folder: Path, said: str) -> Iterator[None]:
    """The command of a line, once it has said that it serves; ended after the block."""
    words = shlex.split(command.removesuffix("&"))
    process = subprocess.Popen(words, cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert any(said in line for line in process.stdout), command
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def test_the_rehearsal_runs_as_it_stands(tmp_path: Path) -> None:
    block, health = REHEARSAL, HEALTH
    with socket.socket() as first, socket.socket() as second:
        for number, free in (("5020", first), ("5021", second)):
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
            block, health = block.replace(number, port), health.replace(number, port)
    block = block.replace("launch.worker kg", f"launch.worker kg --port {port}")  # it names no port: 5021
    *setting_up, serve, work = block.strip().splitlines()
    subprocess.run(["bash", "-e", "-c", "\n".join(setting_up)], cwd=tmp_path, env=ENVIRONMENT, check=True)
    with started(serve, tmp_path, "controller at"), started(work, tmp_path, "serving kg-train"):
        for command in health.strip().splitlines():
            subprocess.run(shlex.split(command), cwd=tmp_path, env=ENVIRONMENT, check=True)
            without = shlex.split(command)[:-1]
            asked = subprocess.run(without, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False)
            assert (asked.returncode, "401" in asked.stderr) == (1, True)


def test_every_flag_setting_and_file_it_names_exists(capsys: pytest.CaptureFixture[str]) -> None:
    help_texts = ""
    for program in (train, controller, worker, engine, gpu_check):
        with pytest.raises(SystemExit):
            program.main(["--help"])
        help_texts += capsys.readouterr().out
    help_texts += subprocess.run(
        [sys.executable, "-m", "envs.data", "verify", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    others = {"--local-dir", "--gres", "--gpus-per-task", "--signal", "--dependency", "--config"}
    named = set(re.findall(r"--[a-z][a-z.-]+[a-z]", DOC)) - others
    assert {flag for flag in named if flag not in help_texts} == set()
    script = (ROOT / "launch" / "cluster" / "slurm.sbatch").read_text(encoding="utf-8")
    settings = set(re.findall(r"AGENTRL_[A-Z_]+", DOC))
    assert {name for name in settings if name not in script} == set()
    for path in re.findall(r"\]\(([\w./-]+)\)", DOC):
        assert (ROOT / "docs" / path).is_file(), path
    assert cluster.__doc__
