"""Writes the figures that are kept in benchmarks/results/ into README.md, benchmarks/peers.md and docs/.

    python -m benchmarks.NAME --json > /tmp/NAME.jsonl                   # of any benchmark, in its full size
    mv /tmp/NAME.jsonl benchmarks/results/                               # keep its figures
    python -m benchmarks.report                                          # show what is kept
    python -m benchmarks.report --check                                  # exit code 1 if something else is shown

In README.md the text between `<!-- results:begin -->` and `<!-- results:end -->` is replaced by a table of the rows of
report_rows.py, in docs/benchmarks.md that between `<!-- results:begin NAME -->` and `<!-- results:end -->` by all
figures of one benchmark, in benchmarks/peers.md that of `peers` by the rows that compare with other software.
Benchmarks that have not been kept yet are left out, or said to be missing. One that is kept without a figure that a row
shows (half of its modes, or of its cases) is refused.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentrl_jax.errors import ConfigError
from benchmarks.figures import Figure
from benchmarks.report_plots import draw_plots, plot_names
from benchmarks.report_results import Results, read_results
from benchmarks.report_rows import PEER_ROWS, ROWS, Row
from launch.command import parse, refuse

REPOSITORY = Path(__file__).resolve().parents[1]
DOCUMENTS = ("README.md", "docs/benchmarks.md", "benchmarks/peers.md")
PEERS = "peers"
_SECTION = re.compile(r"(<!-- results:begin(?: (?P<name>\w+))? -->\n).*?(<!-- results:end -->)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Show the figures that are kept."""

    check: bool = False
    """Write nothing; fail if a document shows other figures than are kept"""


def shown(figure: Figure, scale: str = "plain") -> str:
    """`median (min-max)`, or the value alone where all repeats agree to what is shown."""
    value, low, high = (_number(number, scale) for number in (figure.value, figure.min, figure.max))
    unit = {"percent": " %", "times": "x"}.get(scale, "")
    return f"{value}{unit}" if low == high else f"{value}{unit} ({low}-{high})"


def _number(value: float, scale: str) -> str:
    if value != value:
        return "—"
    if scale == "percent":
        return f"{100 * value:.1f}"  # a share just below what was asked for must not look like it
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def readme_table(results: Results, rows: Sequence[Row] = ROWS) -> str:
    """The rows whose figures are kept, what they were measured on, and the plots that there are."""
    used = {row.benchmark for row in rows} & set(results)
    machines = ", ".join(dict.fromkeys(results[name].machine for name in sorted(used)))
    plots = "".join(f"\n![{name}](docs/plots/{name}.png)\n" for name in plot_names(results))
    told = f"Median (min-max of the repeats), on {machines}; all figures: [docs/benchmarks.md](docs/benchmarks.md)."
    table = rows_table(results, rows)
    return f"{table}\n{told}\n{plots}" if used else table


def rows_table(results: Results, rows: Sequence[Row]) -> str:
    """The rows whose figures are kept."""
    lines = ["| what | measured | asked for | with |", "|---|---|---|---|"]
    for row in rows:
        kept = results.get(row.benchmark)
        figure = None if kept is None else kept.find(row.case, row.metric)
        if figure is not None:
            value = shown(figure, row.scale)
            lines.append(f"| {row.what} | {value} | {row.bar} | `python -m benchmarks.{row.command}` |")
    return "\n".join([*lines, ""]) if len(lines) > 2 else "Nothing has been kept yet.\n"


def check_complete(results: Results, rows: Sequence[Row] = ROWS) -> None:
    """Raise ConfigError if a benchmark is kept, but not a figure of it that `rows` show."""
    for row in rows:
        kept = results.get(row.benchmark)
        if kept is not None and kept.find(row.case, row.metric) is None:
            raise ConfigError(
                f"benchmarks/results/{row.benchmark}.jsonl has no {row.metric} of {row.case!r}, which is shown: add "
                f"what python -m benchmarks.{row.command} --json prints"
            )


def full_table(name: str, results: Results) -> str:
    """All figures of one benchmark: a row per case and metric."""
    kept = results.get(name)
    if kept is None:
        return f"Not kept yet: `python -m benchmarks.{name} --json > benchmarks/results/{name}.jsonl`\n"
    lines = [f"Kept from commit `{kept.commit}`, {kept.machine}:", "", "| case | metric | value | unit | repeats |"]
    lines.append("|---|---|---|---|---|")
    case = None
    for figure in kept.figures:
        is_new, case = figure.case != case, figure.case
        label = f"`{figure.case}`" if is_new else ""
        lines.append(f"| {label} | `{figure.metric}` | {shown(figure)} | {figure.unit} | {figure.repeats} |")
    return "\n".join(lines) + "\n"


def fill(text: str, results: Results) -> str:
    """`text` with every marked section replaced. Raises ConfigError if there is none."""
    if not _SECTION.search(text):
        raise ConfigError("expected <!-- results:begin --> and <!-- results:end -->, but there are none")

    def section(found: re.Match[str]) -> str:
        name = found["name"]
        if name == PEERS:
            return found[1] + rows_table(results, PEER_ROWS) + found[3]
        return found[1] + (readme_table(results) if name is None else full_table(name, results)) + found[3]

    return _SECTION.sub(section, text)


def stale_files(repository: Path, results: Results) -> dict[Path, str]:
    """The documents that show something else than is kept, with what they should be."""
    paths = [repository / name for name in DOCUMENTS]
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    wanted = {path: fill(text, results) for path, text in texts.items()}
    return {path: wanted[path] for path in paths if wanted[path] != texts[path]}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write, or check; the exit code of the module's text."""
    program = "benchmarks.report"
    options = parse(Options, arguments, program=program)
    try:
        results = read_results()
        check_complete(results)
        stale = stale_files(REPOSITORY, results)
    except ConfigError as error:
        refuse(error, program=program)
    if options.check:
        for path in stale:
            print(f"{path.relative_to(REPOSITORY)} shows other figures than benchmarks/results/", file=sys.stderr)
        return int(bool(stale))
    for path, text in stale.items():
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(REPOSITORY)}")
    for path in draw_plots(results, REPOSITORY / "docs" / "plots"):
        print(f"wrote {path.relative_to(REPOSITORY)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
