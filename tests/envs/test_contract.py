"""The contract of `testing.env_contract`, held by every registered family, on generated tasks and on real data."""

import json
import os
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path

import msgspec
import pytest

from agentrl_jax.env import EnvFamily, EnvRegistry, EnvSource, FamilyOptions, traits_of
from agentrl_jax.errors import ConfigError
from agentrl_jax.testing.env_contract import CHECKS, check_expert, check_random_policy, check_splits
from envs import register_all

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("AGENTRL_TEST_DATA", ROOT.parent / "shared" / "data"))


def registry() -> EnvRegistry:
    found = EnvRegistry()
    register_all(found)
    return found


NAMES = sorted(registry().entries)
GENERATED = [pytest.param(name, FamilyOptions(), id=f"{name}-generated") for name in NAMES]
# The published tasks of os_interaction are about what goes on at the time: see test_os_published.
STEADY = [name for name in NAMES if name != "os_interaction"]
REAL = [pytest.param(name, FamilyOptions(data=DATA), id=f"{name}-data", marks=pytest.mark.data) for name in STEADY]
SOURCES = [*GENERATED, *REAL]
LEVELS = [pytest.param(name, FamilyOptions(level=level), id=f"{name}-{level}") for name in NAMES for level in (2, 3)]


@cache
def made(name: str, options: FamilyOptions) -> EnvFamily:
    """One family for the checks of one source: their data is read once."""
    return registry().make(name, options)


def made_or_skipped(name: str, options: FamilyOptions) -> EnvFamily:
    """Not every family has generated tasks, three levels, or what it needs on this machine."""
    try:
        return made(name, options)
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize(("name", "options"), SOURCES)
def test_contract(name, options, check):
    families = [made_or_skipped(name, options)]
    # The first is shared between checks; a second one is made anew.
    check(lambda: families.pop() if families else registry().make(name, options))


@pytest.mark.parametrize("check", [check_splits, check_expert, check_random_policy], ids=lambda check: check.__name__)
@pytest.mark.parametrize(("name", "options"), LEVELS)
def test_harder_levels_are_kept_apart_solved_and_not_by_chance(name, options, check):
    family = made_or_skipped(name, options)
    check(lambda: family)


@pytest.mark.parametrize(("name", "options"), SOURCES)
def test_another_process_would_make_the_same_envs(name, options):
    family = made_or_skipped(name, options)
    source = registry().source(name, options)
    source = msgspec.convert(json.loads(json.dumps(msgspec.to_builtins(source))), EnvSource)
    task = family.task("eval", 0)
    with closing(family.make(task)) as ours, closing(source.load()(task)) as theirs:
        assert tuple(ours.reset()) == tuple(theirs.reset())


@pytest.mark.parametrize(("name", "options"), SOURCES)
def test_every_named_data_set_can_be_evaluated_on(name, options):
    family = made_or_skipped(name, options)
    for data_set in traits_of(family).data_sets:
        named = registry().make(name, replace(options, eval_set=data_set))
        assert named.num_tasks("eval") >= 1
        check_splits(lambda named=named: named)
