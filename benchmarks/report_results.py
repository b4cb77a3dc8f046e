"""The figures that are kept in benchmarks/results/NAME.jsonl, as `python -m benchmarks.NAME --json` prints them."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from math import nan
from pathlib import Path
from typing import Any

from agentrl_jax.errors import ConfigError
from benchmarks.figures import Figure

FOLDER = Path(__file__).resolve().parent / "results"
_NAMES = frozenset(field.name for field in fields(Figure))


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The figures of one benchmark, and where they are from."""

    figures: tuple[Figure, ...]
    commit: str
    machine: str

    def find(self, case: str, metric: str) -> Figure | None:
        """The figure of these names, if it is there."""
        return next((f for f in self.figures if (f.case, f.metric) == (case, metric)), None)


Results = Mapping[str, Kept]
"""By benchmark."""


def read_results(folder: Path = FOLDER) -> dict[str, Kept]:
    """What is kept. Raises ConfigError for a line that is no figure of the benchmark whose name its file has."""
    found = {}
    for path in sorted(folder.glob("*.jsonl")):
        records = [_record(path, number, line) for number, line in enumerate(path.read_text().splitlines(), 1) if line]
        if not records:
            raise ConfigError(f"{path} is empty: run python -m benchmarks.{path.stem} --json > {path}")
        figures = [Figure(**{name: _value(record[name]) for name in _NAMES}) for record in records]
        if len({(figure.case, figure.metric) for figure in figures}) < len(figures):
            raise ConfigError(f"{path} holds a figure twice: keep those of one run")
        found[path.stem] = Kept(
            figures=tuple(figures), commit=_only(records, "commit"), machine=_only(records, "machine")
        )
    return found


def _record(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(line)
        if _NAMES | {"commit", "machine"} <= set(record) and record["benchmark"] == path.stem:
            return record
    except (ValueError, TypeError):
        pass
    raise ConfigError(f"{path}, line {number}: expected a figure of {path.stem} as --json prints it, got {line[:80]}")


def _value(value: Any) -> Any:
    """JSON has null for what is not a number."""
    return nan if value is None else value


def _only(records: Iterable[Mapping[str, Any]], name: str) -> str:
    return ", ".join(dict.fromkeys(str(record[name]) for record in records))
