"""Every flag that a page names exists, and every file or page that it points to."""

import contextlib
import io
import re
from functools import cache
from pathlib import Path

import pytest
import tyro

from agentrl_jax.config import TrainConfig
from agentrl_jax.sft_config import SftConfig
from launch import replay, replay_episode
from launch.audit import AuditConfig
from launch.controller import ControllerConfig
from launch.engine import EngineServerConfig
from launch.evaluate_config import EvaluateConfig
from launch.gpu_check import GpuCheckConfig
from launch.worker import WorkerConfig

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = (
    *(TrainConfig, SftConfig, EvaluateConfig, ControllerConfig, EngineServerConfig, WorkerConfig, GpuCheckConfig),
    *(AuditConfig, replay.ReplayConfig, replay_episode.ReplayConfig),
)
OF_OTHERS = {
    # of agentrl_jax.report, of pip, of uv, of hf
    *("--compare", "--episode"),
    *("--local-dir", "--extra", "--no-header", "--no-emit-index-url", "--python-version", "--universal"),
    *("--quick", "--mode", "--no-deps", "--gres", "--gpus-per-task", "--dependency", "--signal", "--config"),
}
"""Of programs that are not ours, and of benchmarks."""


@cache
def known_flags() -> frozenset[str]:
    return frozenset(flag for command in COMMANDS for flag in re.findall(r"--[a-z][a-z.-]+", help_of(command)))


def help_of(command: type) -> str:
    text = io.StringIO()
    with contextlib.redirect_stdout(text), pytest.raises(SystemExit):
        tyro.cli(command, args=["--help"])
    return text.getvalue()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_flags_exist(page: Path) -> None:
    if page.name == "benchmarks.md":
        pytest.skip("flags of benchmarks")
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z.-]*[a-z]", page.read_text()))
    assert named - OF_OTHERS <= known_flags()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert not missing


def rows(page: Path) -> list[list[str]]:
    """The cells of a page's tables."""
    lines = page.read_text().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]


def test_the_quickstarts_figures_are_the_same_on_both_pages() -> None:
    whole = [row[:4] for row in rows(ROOT / "docs" / "quickstart.md")]
    short = [row for row in rows(ROOT / "README.md") if len(row) == 4 and row[3].startswith("+")]
    assert len(short) == 5
    assert all(row in whole for row in short)


def test_flags_are_found_at_all() -> None:
    assert {"--mesh", "--loss.name", "--rollout.max-staleness", "--pool.lagging-prob"} <= known_flags()
