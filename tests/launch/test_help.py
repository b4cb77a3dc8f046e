"""`--help` as a newcomer reads it."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import tyro

from launch import controller, evaluate, replay, sft, train, worker
from launch.help import REGISTRY
from launch.recipes import RECIPES


def printed(main: Callable[[list[str]], Any], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    return " ".join(capsys.readouterr().out.replace("│", " ").split())


@pytest.mark.parametrize("command", [controller, evaluate, replay, sft, train, worker])
def test_a_default_is_said_once(command: Any, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(command.main, capsys)
    assert "(default: None)" not in text
    assert "(default: )" not in text
    assert not re.search(r"\(default: [^()]*\) \(default: ", text)


def test_the_help_of_training_names_recipes_and_every_setting_has_a_text(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(train.main, capsys)
    for name, recipe in RECIPES.items():
        assert f"{name} {' '.join(recipe.description.split())}" in text
    assert "--rollout.group-size INT Episodes of each group" in text
    assert "after each so-many-th step, at that step's policy and beside training (default: only before" in text
    for part in re.split(r" (?=--[a-z])", text)[1:]:
        flag, _, rest = part.partition(" ")
        if flag.endswith(",") or not re.match(r"(\{|\[|INT|STR|FLOAT|PATH)", rest):
            continue
        words = re.sub(r"^\S+|\(default:.*", "", rest).split()
        assert words, f"{flag} says nothing"


@dataclass(frozen=True, kw_only=True)
class _Example:
    """An example."""

    many: tuple[int, ...] = ()
    """Some numbers, of which
    there may be several"""
    one: int | None = None
    """One of them (default: the first)"""
    two: int = 2
    """The second"""


def test_text_flows_and_values_are_parsed_as_ever(capsys: pytest.CaptureFixture[str]) -> None:
    assert tyro.cli(_Example, args=["--many", "1", "2", "--one", "3"], registry=REGISTRY) == _Example(
        many=(1, 2), one=3
    )
    with pytest.raises(SystemExit):
        tyro.cli(_Example, args=["--help"], registry=REGISTRY)
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "Some numbers, of which there may be several (default: none)" in text
    assert "One of them (default: the first) --two" in text
    assert "The second (default: 2)" in text
