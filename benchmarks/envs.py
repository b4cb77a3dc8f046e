"""What do environments cost: steps a second of one core, time to a first observation, memory of a live session?

    python -m benchmarks.envs [--json] [--quick] [--cases alfworld,webshop] [--data FOLDER]

Each case plays the scripted expert's turns, some of them random, on the real data of FOLDER where it is there, else on
generated tasks. Times are processor time, the median of five repeats. A case that lacks something on this machine is
left out, and says why. Cases are listed by the modules benchmarks/envs_*.py.

A good answer: alfworld steps_per_cpu_s >= 2,500 and kb_per_live_game <= 160; webshop steps_per_cpu_s >= 9,000;
knowledgegraph gold_ms <= 1; dbbench session_ms <= 1.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentrl_jax.errors import ConfigError
from benchmarks.env_cases import CaseOptions, EnvCase, find_cases
from benchmarks.figures import Figure, json_lines, summarise, table
from launch.command import parse, refuse

NAME = "envs"
DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Processor time and memory of environments."""

    json: bool = False
    """One JSON line per figure instead of a table"""
    quick: bool = False
    """Little work, once: a few seconds"""
    cases: str = ""
    """Cases to run, separated by commas (default: all)"""
    data: Path | None = DATA if DATA.is_dir() else None
    """Folder of real task data (default: the one beside the checkout, if it is there)"""


def chosen(names: str) -> list[EnvCase]:
    """The cases of those names; all if there are none. Raises ConfigError for an unknown one."""
    cases = find_cases()
    wanted = [name.strip() for name in names.split(",") if name.strip()] or list(cases)
    unknown = sorted(set(wanted) - set(cases))
    if unknown:
        raise ConfigError(f"--cases: no case {', '.join(unknown)}; there are {', '.join(cases)}")
    return [cases[name] for name in wanted]


def run(case: EnvCase, options: Options) -> list[Figure]:
    """The figures of one case. Raises ConfigError if it lacks something on this machine."""
    asked = CaseOptions(data=options.data, is_quick=options.quick)
    repeats = [case.measure(asked) for _ in range(1 if options.quick else 5)]
    return [
        summarise([repeat[metric] for repeat in repeats], benchmark=NAME, case=case.name, metric=metric, unit=unit)
        for metric, unit in case.units.items()
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures."""
    options = parse(Options, arguments, program=f"benchmarks.{NAME}")
    figures = []
    try:
        for case in chosen(options.cases):
            try:
                figures += run(case, options)
            except ConfigError as error:
                if options.cases:
                    raise
                print(f"{case.name} is left out: {error}", file=sys.stderr)
    except ConfigError as error:
        refuse(error, program=f"benchmarks.{NAME}")
    print("\n".join(json_lines(figures)) if options.json else table(figures))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
