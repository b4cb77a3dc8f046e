"""Draw the report of a run: `python -m agentrl_jax.report RUN_DIR`. See `--help`.

Exit code 0: written; 2: no run directory, no such episode, or the file cannot be written.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from agentrl_jax.errors import ConfigError, RecordError
from agentrl_jax.report.write import write_report


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportConfig:
    """Draw what a run has recorded so far, in one HTML file that needs nothing else."""

    run_dir: Annotated[Path, tyro.conf.Positional]
    """Of a training run, finished or not"""
    out: Path | None = None
    """The file to write (default: RUN_DIR/report.html)"""
    compare: Path | None = None
    """Another run directory, drawn beside it"""
    episode: tuple[str, ...] = ()
    """Episodes to show token by token besides those that are drawn, by their ids: g<group>-m<member>"""
    seed: int = 0
    """Draws the episodes that are shown token by token"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the report, say where it is, and return the exit code."""
    config = tyro.cli(ReportConfig, args=arguments, prog="python -m agentrl_jax.report")
    try:
        path = write_report(
            config.run_dir, config.out, compare=config.compare, episodes=config.episode, seed=config.seed
        )
    except (ConfigError, RecordError) as error:
        print(f"agentrl_jax.report: {error}", file=sys.stderr)
        return 2
    print(f"report: {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
