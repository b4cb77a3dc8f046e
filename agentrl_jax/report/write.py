"""The report of a run directory: one HTML file, drawn from what the run has written so far."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from agentrl_jax.batch_files import recorded_batches
from agentrl_jax.errors import ConfigError, RecordError
from agentrl_jax.rendering.tokenizer import load_tokenizer
from agentrl_jax.report.detail import LOGPROB_UNIT, Decode, collect_details
from agentrl_jax.report.episode_table import COUNTS, NAMES, EpisodeTable, read_table
from agentrl_jax.report.figures import run_figures, surviving_records
from agentrl_jax.report.page import render_page
from agentrl_jax.report.recorded_tokens import RATIO_EDGES, RecordedTokens
from agentrl_jax.report.selection import MAX_BATCHES, choose_detailed, choose_listed, evenly_spaced
from agentrl_jax.runlog import write_atomically

Records = Sequence[Mapping[str, Any]]
"""Of metrics.jsonl, without those of steps that a resume undid."""


@dataclass(slots=True)
class _Batches:
    """by_step: the recorded batches that are read. num_kept: of all. unreadable: what was wrong with others."""

    by_step: dict[int, RecordedTokens] = field(default_factory=dict)
    num_kept: int = 0
    unreadable: list[str] = field(default_factory=list)


def write_report(
    run_dir: Path,
    out: Path | None = None,
    *,
    compare: Path | None = None,
    episodes: Sequence[str] = (),
    seed: int = 0,
) -> Path:
    """Write the report of `run_dir` to `out` (RUN_DIR/report.html), all or nothing, and return where it is.

    compare: another run, drawn beside it. episodes: ids (g<group>-m<member>) to show token by token, whatever `seed`
    draws. Raises ConfigError: no run directory, or an episode that it does not have; RecordError: a damaged record.
    """
    data = report_data(run_dir, compare=compare, episodes=episodes, seed=seed)
    path = run_dir / "report.html" if out is None else out
    try:
        write_atomically(path, render_page(f"{data['run']['name']} · agentrl_jax", data))
    except OSError as error:
        raise ConfigError(f"--out {path} cannot be written: {error.strerror or error}") from error
    return path


def report_data(
    run_dir: Path, *, compare: Path | None = None, episodes: Sequence[str] = (), seed: int = 0
) -> dict[str, Any]:
    """What the page shows, as JSON; see `write_report`."""
    records, table = _read(run_dir)
    asked = [_row(table, run_dir, episode_id) for episode_id in dict.fromkeys(episodes)]
    batches = _read_batches(run_dir, records, [table.columns["step"][row] for row in asked])
    decode, note = _decoder(run_dir)
    detailed = choose_detailed(table, seed=seed, steps=batches.by_step, first=asked)
    details = collect_details(table, detailed, batches.by_step, decode)
    listed = choose_listed(table, details.episodes, seed=seed)
    place = {row: number for number, row in enumerate(listed)}
    return {
        "run": _run(run_dir, records, table, batches),
        "compare": None if compare is None else _compared(compare),
        "episodes": _columns(table, listed),
        "details": {str(place[row]): shown for row, shown in details.episodes.items()},
        "texts": details.texts,
        "open": [place[row] for row in asked if row in place],
        "notes": {
            "seed": seed,
            "unit": LOGPROB_UNIT,
            "numOmitted": len(details.omitted),
            "numKeptBatches": batches.num_kept,
            "unreadable": batches.unreadable,
            "tokenizer": note,
        },
    }


def _read(run_dir: Path) -> tuple[Records, EpisodeTable]:
    if not (run_dir / "metrics.jsonl").is_file():
        raise ConfigError(f"{run_dir} has no metrics.jsonl; expected the run directory of a training run")
    return surviving_records(run_dir / "metrics.jsonl"), read_table(run_dir)


def _run(run_dir: Path, records: Records, table: EpisodeTable, batches: _Batches) -> dict[str, Any]:
    figures = run_figures(records, table)
    counts = np.zeros(2 * len(RATIO_EDGES) + 1, np.int64)
    for batch in batches.by_step.values():
        counts += batch.ratio_counts()
    ratio = {"edges": RATIO_EDGES.tolist(), "counts": counts.tolist(), "steps": sorted(batches.by_step)}
    return {"name": run_dir.resolve().name, "config": _settings(run_dir), "ratio": ratio, **figures}


def _settings(run_dir: Path) -> Any:
    path = run_dir / "config.json"
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:  # of JSON, or of its encoding
        raise RecordError(f"{path}: expected settings, got {error}") from error


def _compared(run_dir: Path) -> dict[str, Any]:
    records, table = _read(run_dir)
    return _run(run_dir, records, table, _read_batches(run_dir, records, []))


def _read_batches(run_dir: Path, records: Records, asked: Sequence[int]) -> _Batches:
    """Of the recorded batches, those of the steps `asked` for and others at even distances.

    A step that a resume undid leaves its batch until it is taken again: such batches do not count.
    """
    taken = {record["step"] for record in records if record["kind"] == "step"}
    paths = {step: path for step, path in recorded_batches(run_dir / "batches").items() if step in taken}
    found = _Batches(num_kept=len(paths))
    for step in sorted({*evenly_spaced(sorted(paths), MAX_BATCHES), *(s for s in asked if s in paths)}):
        try:
            found.by_step[step] = RecordedTokens(paths[step])
        except FileNotFoundError:  # a running training run keeps only so many
            found.num_kept -= 1
        except RecordError as error:
            found.unreadable.append(str(error))
    return found


def _decoder(run_dir: Path) -> tuple[Decode | None, str]:
    """What spells ids, and what to say if nothing does."""
    try:
        return load_tokenizer(run_dir / "model").decode, ""
    except ConfigError as error:
        return None, f"tokens are not told apart: {error}"


def _row(table: EpisodeTable, run_dir: Path, episode_id: str) -> int:
    row = table.row_of(episode_id)
    if row is None:
        raise ConfigError(f"{run_dir} has no episode {episode_id!r} among its {len(table)} (g<group>-m<member>)")
    return row


def _columns(table: EpisodeTable, rows: Sequence[int]) -> dict[str, Any]:
    """The listed episodes as columns, numbers short; `names` are what env, end and fate stand for."""
    place = np.asarray(rows, np.int64)
    columns: dict[str, Any] = {name: table.column(name)[place].tolist() for name in (*COUNTS, *NAMES)}
    for name in ("reward", "env_reward"):
        columns[name] = [None if value != value else round(value, 4) for value in table.column(name)[place].tolist()]
    for name in ("wall_s", "env_s", "engine_s"):
        columns[name] = np.round(table.column(name)[place], 2).tolist()
    errors = {str(number): table.errors[row] for number, row in enumerate(rows) if row in table.errors}
    names = {name: table.names(name) for name in NAMES}
    return {"columns": columns, "names": names, "errors": errors, "total": len(table)}
