"""Check what a run did with its prompts: `python -m launch.audit RUN_DIR`. See `--help`.

Reads the ledger's history and nothing else; safe while the run goes on. Exit code 0: all is well; 1: something is
not, and is named; 2: not a run, or its history is damaged.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from agentrl_jax.controller.journal import HISTORY_NAME, read_history
from agentrl_jax.controller.journal_history import History
from agentrl_jax.errors import ConfigError
from launch.config import parse, printer, refuse

PROGRAM = "launch.audit"
MAX_PRINTED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditConfig:
    """Verify a run directory: no prompt lost, none trained twice in the history of the surviving parameters, no
    version published twice, no group older than its bound, every group ended once.

    run_dir: of `python -m launch.train`.
    """

    run_dir: Annotated[Path, tyro.conf.Positional]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the books and return the exit code."""
    config = parse(AuditConfig, arguments, program=PROGRAM)
    try:
        history, num_cut_bytes = _read(config.run_dir)
    except ConfigError as error:
        refuse(error, program=PROGRAM)
    say = printer()
    for line in table(history, num_cut_bytes):
        say(line)
    for problem in history.problems[:MAX_PRINTED]:
        say(f"PROBLEM  {problem}")
    if len(history.problems) > MAX_PRINTED:
        say(f"PROBLEM  … and {len(history.problems) - MAX_PRINTED} more")
    say(verdict(history))
    return 1 if history.problems else 0


def _read(run_dir: Path) -> tuple[History, int]:
    folder = run_dir / "ledger"
    if not (folder / HISTORY_NAME).is_file():
        raise ConfigError(f"{run_dir} has no ledger/{HISTORY_NAME}; expected the run directory of a training run")
    history, num_cut_bytes = read_history(folder)
    if not history.num_lives:
        raise ConfigError(f"{folder} has not a single start in it; the run ended before its first rollout")
    return history, num_cut_bytes


def table(history: History, num_cut_bytes: int) -> list[str]:
    """The books: where every admitted group is, and what the steps, versions and processes came to."""
    totals = history.totals
    states = [entry.state for entry in history.groups.values()]
    in_flight, complete = states.count("live"), states.count("complete")
    rows = [
        ("processes", totals["lives"], "the first start and every resume"),
        ("steps", history.step, f"{totals['undone']} group consumptions were undone by crashes"),
        ("versions published", totals["published"], f"the last is {history.highest_version}"),
        ("checkpoints", totals["checkpoints"], f"kept since step {history.oldest_step}"),
        ("groups admitted", totals["admitted"], ""),
        ("  trained", totals["trained"], "in the history of the present parameters"),
        ("  dropped", totals["dropped"], "no episode was valid"),
        ("  without signal", totals["no_signal"], "dropped by dynamic sampling"),
        ("  cancelled", totals["cancelled"], "stragglers"),
        ("  reissued", totals["reissued"], "cut off by a crash or a stop, and drawn again"),
        ("  complete", complete, "to be trained"),
        ("  in flight", in_flight, "or cut off, to be drawn again by a resume"),
        ("to be drawn again", len(history.pending), "tasks that a resume put first"),
        ("torn bytes", num_cut_bytes, "after the last whole line: an event that did not count"),
    ]
    return [f"{name:<20}{count:>9}  {note}".rstrip() for name, count, note in rows]


def verdict(history: History) -> str:
    """One sentence."""
    if history.problems:
        return f"{len(history.problems)} problems: the parameters are not what their history says"
    return (
        "no prompt lost, none trained twice, no version repeated, every group within its staleness bound and ended "
        "at most once"
    )


if __name__ == "__main__":
    raise SystemExit(main())
