"""BFCL's entries: what the user says turn by turn, which programs there are, and what should be called.

Calls are written in the data as Python calls with literal arguments; they are parsed, never evaluated.
"""

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentrl_jax.env import Tool
from agentrl_jax.errors import ConfigError
from envs.bfcl.package import Package
from envs.bfcl.schema import tool_of

CATEGORIES = ("base", "miss_func", "miss_param", "long_context")


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldCall:
    name: str
    positional: tuple[Any, ...]
    named: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class UserTurn:
    """text: what the user says; empty where only functions are added. gold: what should be called until the user says
    more; nothing if the user asks for what cannot be done. added: functions that the policy has from here on.
    """

    text: str
    gold: tuple[GoldCall, ...]
    added: tuple[Tool, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """tools: the functions that the policy has from the start. functions: all that can be called, told of or not (one
    of BFCL's answers calls one too early). config: the programs' initial states, by class.
    """

    id: str
    classes: tuple[str, ...]
    config: Mapping[str, Any]
    turns: tuple[UserTurn, ...]
    tools: tuple[Tool, ...]
    functions: Mapping[str, Tool]
    is_long_context: bool


def parse_call(text: str) -> GoldCall:
    """Read `name(1, key='x')`. Raises ConfigError for anything but a call with literal arguments."""
    try:
        call = ast.parse(text, mode="eval").body
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
            raise ConfigError(f"expected a call in BFCL's answers, got {text!r}")
        named = {}
        for keyword in call.keywords:
            if keyword.arg is None:
                raise ConfigError(f"expected a call with named arguments in BFCL's answers, got {text!r}")
            named[keyword.arg] = ast.literal_eval(keyword.value)
        return GoldCall(
            name=call.func.id, positional=tuple(ast.literal_eval(value) for value in call.args), named=named
        )
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"expected a call with literal arguments in BFCL's answers, got {text!r}") from error


def load_entries(package: Package, category: str) -> tuple[Entry, ...]:
    """The entries of a category, in the data's order. Raises ConfigError for entries that are none."""
    tools = {name: tuple(map(tool_of, package.documents(name))) for name in package.simulators}
    answers = {row["id"]: row["ground_truth"] for row in package.answers(category)}
    try:
        return tuple(_entry(row, answers[row["id"]], tools, category) for row in package.entries(category))
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"environment bfcl: an entry of category {category} lacks something: {error!r}") from error


def _entry(
    row: Mapping[str, Any], answers: list[list[str]], tools: Mapping[str, tuple[Tool, ...]], category: str
) -> Entry:
    offered = [tool for name in row["involved_classes"] for tool in tools[name]]
    added_at = {int(turn): names for turn, names in row.get("missed_function", {}).items()}
    turns = [
        UserTurn(
            text="\n".join(message["content"] for message in said),
            gold=tuple(map(parse_call, gold)),
            added=tuple(tool for tool in offered if tool.name in added_at.get(number, ())),
        )
        for number, (said, gold) in enumerate(zip(row["question"], answers, strict=True))
    ]
    missing = {name for names in added_at.values() for name in names}
    return Entry(
        id=row["id"],
        classes=tuple(row["involved_classes"]),
        config=row["initial_config"],
        turns=tuple(turns),
        tools=tuple(tool for tool in offered if tool.name not in missing),
        functions={tool.name: tool for tool in offered},
        is_long_context=category == "long_context",
    )
