"""The figures of a run that a report draws: columns by step, evaluations, and what all episodes add up to."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl_jax.errors import RecordError
from agentrl_jax.report.episode_table import EpisodeTable
from agentrl_jax.runlog import read_records

_UNDONE_KINDS = frozenset({"step", "evaluation", "warning", "validation"})
_SIGNIFICANT = 5
_STALENESS = "staleness_"
_LENGTH_BINS = 24

_EVALUATION = (
    "when",
    "step",
    "env",
    "mode",
    "success_rate",
    "success_low",
    "success_high",
    "num_valid",
    "num_episodes",
)

TIMES = ("collect_s", "learn_s", "publish_s")

FIGURES = (
    "loss",
    "grad_norm",
    "entropy",
    "behavior_kl",
    "mismatch_kl",
    "clip_low_frac",
    "clip_high_frac",
    "ratio_p01",
    "ratio_p50",
    "ratio_p99",
    "token_staleness",
)
"""Of a step's `metrics`, those that a report draws."""

_MICRO = ("reward_mean", "zero_signal_frac", "lagging_turn_frac", "call_error_frac")

_PLACES: Mapping[str, tuple[str, ...]] = {
    **{name: (name,) for name in ("step", "version", "is_applied", "step_s", *TIMES)},
    **{name: ("metrics", name) for name in FIGURES},
    **{name: ("micro", name) for name in _MICRO},
    **{name: ("throughput", name) for name in ("tokens_per_s", "loss_tokens_per_s")},
}
"""Where the columns of a step stand in its record."""


def surviving_records(path: Path) -> list[dict[str, Any]]:
    """The records of metrics.jsonl in order, without those of steps that a later resume undid.

    Raises RecordError if a line is none.
    """
    try:
        records = read_records(path) if path.is_file() else []
    except ValueError as error:  # of JSON, or of its encoding
        raise RecordError(f"{path}: expected a record in every line, got {error}") from error
    kept: list[dict[str, Any]] = []
    for record in records:
        if record["kind"] == "resume":
            undone, last = _UNDONE_KINDS, record["step"]
            kept = [r for r in kept if r["kind"] not in undone or r["step"] <= last]
        kept.append(record)
    return kept


def run_figures(records: Sequence[Mapping[str, Any]], table: EpisodeTable) -> dict[str, Any]:
    """Everything that is drawn of one run, as JSON."""
    steps = [record for record in records if record["kind"] == "step"]
    return {
        "steps": step_columns(steps),
        "envs": sorted({env for step in steps for env in step.get("envs", {})}),
        "success": success_rates(steps),
        "staleness": staleness_totals(steps),
        "evaluations": [
            {name: _short(record.get(name)) for name in _EVALUATION}
            for record in records
            if record["kind"] == "evaluation"
        ],
        "warmUp": _of_kind(records, "warm_up", ("phase", "step", "loss")),
        "validation": _of_kind(records, "validation", ("step", "mean_loss")),
        "warnings": _of_kind(records, "warning", ("step", "name", "env", "text")),
        "starts": [record for record in records if record["kind"] == "start"],
        "resumes": [record["step"] for record in records if record["kind"] == "resume"],
        "ends": end_counts(table),
        "episodeTimes": episode_times(table),
        "lengths": {name: histogram(table, name) for name in ("tokens", "loss_tokens", "turns")},
        "errors": error_counts(table),
        "numEpisodes": len(table),
    }


def step_columns(steps: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """One list a figure, one entry a step; None where it was not measured. Rates are per second of the whole step.

    learner_busy_frac: learn_s / step_s. slots_busy_frac: of the places for episodes, those in use as the step ended.
    tokens_per_s is of the whole run, not of one device.
    """
    columns = {name: [_short(_at(step, path)) for step in steps] for name, path in _PLACES.items()}
    columns["other_s"] = [_short(_other_s(step)) for step in steps]
    columns["learner_busy_frac"] = [_short(_ratio(step.get("learn_s"), step.get("step_s"))) for step in steps]
    columns["slots_busy_frac"] = [_short(_slots_busy(step)) for step in steps]
    return columns


def success_rates(steps: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    """By env, one for each step; None where the env had no episode."""
    envs = sorted({env for step in steps for env in step.get("envs", {})})
    return {env: [_short(_at(step, ("envs", env, "success_rate"))) for step in steps] for env in envs}


def staleness_totals(steps: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """By pool and bar ("0", "5_8", "33_up"): loss tokens of all steps that lag by so many versions."""
    totals: dict[str, Counter[str]] = {}
    for step in steps:
        for name, value in step.get("micro", {}).items():
            pool, _, bar = name.removeprefix(_STALENESS).partition("_lag_")
            if name.startswith(_STALENESS) and bar and value is not None:
                totals.setdefault(pool, Counter())[bar.removesuffix("_tokens")] += value
    return {pool: dict(counts) for pool, counts in totals.items()}


def end_counts(table: EpisodeTable) -> dict[str, dict[str, int]]:
    """Episodes by env and end."""
    counts: dict[str, dict[str, int]] = {}
    pairs = Counter(zip(table.columns["env"], table.columns["end"], strict=True))
    for (env, end), count in sorted(pairs.items()):
        counts.setdefault(table.names("env")[env], {})[table.names("end")[end]] = count
    return counts


def episode_times(table: EpisodeTable) -> dict[str, list[float]]:
    """By step, seconds of its episodes together: waiting for engines, for environments, and for anything else."""
    steps, place = np.unique(table.column("step"), return_inverse=True)

    def total(values: npt.NDArray[Any]) -> list[float]:
        return [_short(value) for value in np.bincount(place, values, minlength=len(steps)).tolist()]

    engine, env = table.column("engine_s"), table.column("env_s")
    other = np.maximum(table.column("wall_s") - engine - env, 0.0)
    return {"step": steps.tolist(), "engine_s": total(engine), "env_s": total(env), "other_s": total(other)}


def histogram(table: EpisodeTable, name: str) -> dict[str, Any]:
    """Episodes by a whole-numbered column, in at most 24 bars of one width, by env: {edges, counts: {env: […]}}."""
    values, envs = table.column(name), table.column("env")
    if not len(values):
        return {"edges": [0, 1], "counts": {}}
    low, high = int(values.min()), int(values.max())
    width = max(1, -(-(high - low + 1) // _LENGTH_BINS))
    bars = (values - low) // width
    size = int(bars.max()) + 1
    counts = {
        env: np.bincount(bars[envs == number], minlength=size).tolist() for number, env in enumerate(table.names("env"))
    }
    return {"edges": [low + width * bar for bar in range(size + 1)], "counts": counts}


def error_counts(table: EpisodeTable, at_most: int = 20) -> list[dict[str, Any]]:
    """What the infrastructure said most often, with the env and the end it came with."""
    said = Counter(
        (table.names("env")[table.columns["env"][row]], table.names("end")[table.columns["end"][row]], text)
        for row, text in table.errors.items()
    )
    return [{"env": e, "end": end, "text": text, "count": count} for (e, end, text), count in said.most_common(at_most)]


def _at(record: Mapping[str, Any], path: Sequence[str]) -> Any:
    """What stands at nested names; None if it does not."""
    found: Any = record
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _of_kind(records: Sequence[Mapping[str, Any]], kind: str, names: Sequence[str]) -> list[dict[str, Any]]:
    return [{name: _short(record.get(name)) for name in names} for record in records if record["kind"] == kind]


def _other_s(step: Mapping[str, Any]) -> float | None:
    parts = [step.get(name) for name in ("step_s", *TIMES)]
    if None in parts:
        return None
    whole, *known = (float(part) for part in parts if part is not None)
    return max(0.0, whole - sum(known))


def _slots_busy(step: Mapping[str, Any]) -> float | None:
    slots = ((step.get("rollouts") or {}).get("slots")) or {}
    return _ratio(sum(slots.get("running", {}).values()), slots.get("num_slots"))


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _short(value: Any) -> Any:
    """Five digits: more than a picture can show, and a third of the bytes."""
    return float(f"{value:.{_SIGNIFICANT}g}") if isinstance(value, float) else value
