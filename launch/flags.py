"""Flags that a command does not have: what was probably meant, or why there is no such flag."""

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

import tyro

from agentrl_jax.cli import Derived
from agentrl_jax.errors import ConfigError

_TRUNCATION = (
    "training samples from the policy's whole distribution, because the loss compares log-probabilities of that: "
    "truncated sampling would count every token as likelier than the learner does"
)
_REASONS = {"top-p": _TRUNCATION, "top-k": _TRUNCATION, "min-p": _TRUNCATION}
"""Flags of other systems that are left out for a reason, by the last part of their names."""

_DERIVED = Derived[int].__metadata__[0]  # type: ignore[attr-defined]
_OMITTED = tyro.conf.OmitArgPrefixes[int].__metadata__[0]  # type: ignore[attr-defined]


def flag_names(config: Any, prefix: str = "") -> Iterator[str]:
    """Every flag that tyro makes of a config dataclass, such as --rollout.group-size."""
    hints = get_type_hints(type(config), include_extras=True)
    for item in fields(config):
        value, marks = getattr(config, item.name), getattr(hints[item.name], "__metadata__", ())
        if _DERIVED in marks:
            continue
        name = item.name.replace("_", "-")
        if is_dataclass(value):
            yield from flag_names(value, prefix if _OMITTED in marks else f"{prefix}{name}.")
        else:
            yield f"--{prefix}{name}"


def check_all_known(unknown: Sequence[str], config: Any) -> None:
    """Raise ConfigError about the first of the arguments that no flag of `config` has taken, if there is one."""
    if not unknown:
        return
    first = unknown[0]
    name = first.split("=")[0].replace("_", "-")
    if not first.startswith("-"):
        raise ConfigError(f"unexpected argument {first!r}: settings are named, as in --max-steps 10; see --help")
    reason = _REASONS.get(name.split(".")[-1].removeprefix("--"))
    if reason is not None:
        raise ConfigError(f"there is no {name}: {reason}. Leave it out")
    known = list(flag_names(config))
    near = [flag for flag in known if flag.split(".")[-1] == name.split(".")[-1].removeprefix("--")]
    near = near or difflib.get_close_matches(name, known, n=3, cutoff=0.7)
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    raise ConfigError(f"unknown flag {first}: {meant}--help lists them all")
