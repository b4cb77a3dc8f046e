"""Families of installed packages, what families declare, and named data sets."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentrl_jax.env import EnvRegistry, FamilyOptions, FamilyTraits, StepResult, traits_of
from agentrl_jax.errors import ConfigError, EnvError
from agentrl_jax.testing.envs import ScriptedFamily
from envs import register_all

MODULE = """
from dataclasses import dataclass
from agentrl_jax.env import FamilyTraits
from agentrl_jax.testing.envs import ScriptedFamily

@dataclass(kw_only=True)
class Family(ScriptedFamily):
    traits: FamilyTraits = FamilyTraits(session_kind="process", services=("db",), data_sets=("dev",))

def family(options):
    return Family(name=f"theirs-{options.seed}")
"""


def install(folder: Path, name: str, entries: str, module: str = MODULE) -> None:
    """What a wheel leaves in site-packages."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[agentrl_jax.envs]\n{entries}\n")
    (folder / f"{name}_envs.py").write_text(module)


def test_families_of_an_installed_package_are_registered_by_its_entry_points(tmp_path, monkeypatch):
    install(tmp_path, "theirs", "theirs = theirs_envs:family")
    monkeypatch.syspath_prepend(tmp_path)
    registry = EnvRegistry()
    register_all(registry)
    family = registry.make("theirs", FamilyOptions(seed=4))
    assert family.name == "theirs-4"
    assert traits_of(family).session_kind == "process"
    task = family.task("train", 0)
    assert registry.source("theirs", FamilyOptions()).load()(task).reset()[0].content == f"Do {task.key}."


def test_an_installed_package_is_imported_only_when_its_family_is_asked_for(tmp_path, monkeypatch):
    install(tmp_path, "broken", "broken = broken_envs:family", "raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    registry = EnvRegistry()
    register_all(registry)
    with pytest.raises(RuntimeError, match="imported"):
        registry.make("broken", FamilyOptions())


def test_an_installed_package_that_wants_a_taken_name_is_named(tmp_path, monkeypatch):
    install(tmp_path, "rival", "kg = rival_envs:family")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"package rival: environment 'kg' is registered twice"):
        register_all(EnvRegistry())


def test_a_data_set_must_be_one_that_the_family_declares(tmp_path, monkeypatch):
    install(tmp_path, "theirs2", "theirs = theirs2_envs:family")
    monkeypatch.syspath_prepend(tmp_path)
    registry = EnvRegistry()
    register_all(registry)
    assert registry.make("theirs", FamilyOptions(eval_set="dev")).max_turns == 4
    with pytest.raises(ConfigError, match=r"theirs has no data set 'std' .*known ones are dev"):
        registry.make("theirs", FamilyOptions(eval_set="std"))
    with pytest.raises(ConfigError, match="known ones are none"):
        registry.make("kg", FamilyOptions(eval_set="std"))


def test_a_family_that_declares_nothing_has_the_default_traits():
    family = ScriptedFamily()
    assert traits_of(family) == FamilyTraits()
    family.traits = SimpleNamespace()
    with pytest.raises(ConfigError, match="expected traits to be FamilyTraits"):
        traits_of(family)


@pytest.mark.parametrize("bad", [(1.0, 0.0), (float("-inf"), 0.0), (0.0, float("nan"))])
def test_a_reward_range_is_two_finite_numbers_in_order(bad):
    with pytest.raises(ConfigError, match="reward range"):
        FamilyTraits(reward_range=bad)
    assert replace(FamilyTraits(), reward_range=(-1.0, 1.0)).reward_range == (-1.0, 1.0)


def test_metrics_of_a_step_are_finite_or_the_envs_fault():
    assert StepResult(messages=(), metrics={"score": 0.5}).metrics == {"score": 0.5}
    with pytest.raises(EnvError, match="score = nan"):
        StepResult(messages=(), metrics={"score": float("nan")})
