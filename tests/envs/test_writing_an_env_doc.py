"""The example of docs/writing-an-env.md, installed as a package: it keeps the contract, and is played and served."""

import re
import sys
import tomllib
from pathlib import Path
from random import Random

import pytest

from agentrl_jax.env import EnvRegistry, FamilyOptions, FamilyTraits
from agentrl_jax.testing.env_contract import CHECKS
from envs import register_all
from launch.worker import WorkerConfig, open_service
from tests.envs.worker_world import call, open_api

DOC = Path(__file__).resolve().parents[2] / "docs" / "writing-an-env.md"


def block(language, number=0):
    text = DOC.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[number]


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The example as `guess_envs`, with the entry point that the document gives it."""
    (tmp_path / "guess_envs.py").write_text(block("python"), encoding="utf-8")
    project = tomllib.loads(block("toml"))
    assert project["tool"]["setuptools"]["py-modules"] == ["guess_envs"]
    ((name, target),) = project["project"]["entry-points"]["agentrl_jax.envs"].items()
    info = tmp_path / "guess-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: guess\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[agentrl_jax.envs]\n{name} = {target}\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop("guess_envs", None)


@pytest.fixture
def make(installed):
    registry = EnvRegistry()
    register_all(registry)
    return lambda: registry.make(installed, FamilyOptions(seed=3))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_example_keeps_the_contract(make, check):
    check(make)


def test_the_example_is_as_short_as_it_says(make):
    assert len([line for line in block("python").splitlines() if line.strip()]) <= 62
    messages = make().demonstrate(make().task("train", 0), Random(0), noise=0.0)
    assert [message.content for message in messages if message.role == "tool"][-1] == "right"


def test_the_documents_own_test_is_the_contract(installed):
    namespace = {}
    exec(compile(block("python", 1), "doc", "exec"), namespace)  # noqa: S102
    makes = []
    namespace["test_contract"](makes.append)
    (make,) = makes
    for check in CHECKS:
        check(make)


async def test_the_example_is_served_by_the_worker(installed):
    config = WorkerConfig(task=installed, split="eval")
    async with open_service(config) as service, open_api(service) as worker:
        assert (service.name, len(service.indices)) == ("guess-eval", 16)
        await worker("start_sample", {"index": 3, "session_id": 1})
        _, body = await worker.turn(1, call("guess", '{"number": 12}'))
        assert (body["env_out"]["status"], body["env_out"]["reward"]) == ("completed", 1.0)


def test_the_documents_traits_and_flags_exist():
    text = DOC.read_text(encoding="utf-8")
    named = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    assert {name for cell in named for name in re.findall(r"`(\w+)`", cell)} == set(FamilyTraits.__dataclass_fields__)
    for command in block("bash").splitlines():
        assert (DOC.parents[1] / f"{command.split()[2].replace('.', '/')}.py").is_file()
