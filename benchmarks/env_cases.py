"""What a benchmark of environments is made of: cases, which modules `benchmarks/envs_*.py` list as `CASES`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from random import Random
from time import process_time

import benchmarks
from agentrl_jax.env import Action, EnvFamily
from agentrl_jax.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseOptions:
    """data: folder of real task data; None where there is none. is_quick: little work, for a test."""

    data: Path | None
    is_quick: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvCase:
    """measure: one repeat; the value of each metric of `units`. It raises ConfigError if it lacks something here, and
    is then left out, with the reason."""

    name: str
    units: Mapping[str, str]
    measure: Callable[[CaseOptions], Mapping[str, float]]


def find_cases() -> dict[str, EnvCase]:
    """All cases, by name."""
    names = sorted(module.name for module in iter_modules(benchmarks.__path__) if module.name.startswith("envs_"))
    cases: dict[str, EnvCase] = {}
    for name in names:
        for case in import_module(f"benchmarks.{name}").CASES:
            if case.name in cases:
                raise ConfigError(f"two benchmark cases are called {case.name}")
            cases[case.name] = case
    return cases


def expert_turns(family: EnvFamily, count: int, *, noise: float) -> list[tuple[int, list[Action]]]:
    """Eval tasks' indices with the turns of the scripted expert, up to `count` tasks."""
    found = []
    for index in range(min(count, family.num_tasks("eval"))):
        shown = family.demonstrate(family.task("eval", index), Random(index), noise=noise)
        turns = [Action(content=m.content, calls=m.tool_calls) for m in shown if m.role == "assistant"]
        found.append((index, turns))
    return found


def steps_per_cpu_s(family: EnvFamily, played: list[tuple[int, list[Action]]], *, least_s: float) -> float:
    """Steps of whole episodes a second of processor time; making, resetting and closing envs is not counted."""
    num_steps, used_s = 0, 0.0
    while used_s < least_s:
        for index, turns in played:
            env = family.make(family.task("eval", index))
            env.reset()
            begun_s = process_time()
            for turn in turns:
                env.step(turn)
            used_s += process_time() - begun_s
            num_steps += len(turns)
            env.close()
    return num_steps / used_s
