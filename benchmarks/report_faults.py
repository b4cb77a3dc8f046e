"""Writes docs/reliability.md's table of published faults from the tests that hold them.

    python -m benchmarks.report_faults            # write it
    python -m benchmarks.report_faults --check    # exit code 1 if the document is another one

A test of a published fault is named by its id: `test_tok_01_…` in tests/faults/. What follows in its name is what is
promised, so that nothing can be claimed without a test. tests/faults/published.tsv says where each fault was published.
"""

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentrl_jax.errors import ConfigError
from launch.command import parse, refuse

REPOSITORY = Path(__file__).resolve().parents[1]
TESTS = REPOSITORY / "tests" / "faults"
DOCUMENT = REPOSITORY / "docs" / "reliability.md"
PUBLISHED = TESTS / "published.tsv"
_BEGIN, _END = "<!-- faults:begin -->\n", "<!-- faults:end -->"
_TEST = re.compile(r"test_(?P<kind>[a-z]+)_(?P<number>\d\d)_(?P<promise>\w+)")
_SECOND = re.compile(r"(?:[a-z]+_)?\d\d_")  # what would be read as a part of the promise

KINDS: Mapping[str, str] = {
    "TOK": "Token ids and chat templates",
    "MSK": "Loss masks, padding, positions",
    "LOG": "Log-probabilities of engine and learner",
    "ADV": "Advantages and baselines",
    "AGG": "Loss aggregation, micro-batches, optimiser",
    "GRP": "Groups whose episodes fail; whose rewards count",
    "HNG": "Deadlocks and hangs",
    "CON": "Concurrency and routing",
    "MEM": "Memory, files and processes over long runs",
    "RES": "Checkpoints and resuming",
    "WUP": "Weight updates, caches, versions",
    "IDM": "Retries",
    "TLC": "Tool calls",
    "ENV": "Environments and their servers",
    "MET": "Metrics that mislead",
    "CFG": "Settings",
    "SEC": "Security and cheating",
    "CHAOS": "Faults in the middle of a run",
}
"""In the order of the document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultTest:
    """One test. path: relative to the repository."""

    fault: str
    promise: str
    path: Path
    name: str

    @property
    def kind(self) -> str:
        return self.fault.partition("-")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Show which test holds each published fault."""

    check: bool = False
    """Write nothing; fail if docs/reliability.md shows another table"""


def fault_tests(folder: Path = TESTS) -> Iterator[FaultTest]:
    """Every test that is named by a fault, by file and line. Raises ConfigError for a kind that is unknown."""
    for path in sorted(folder.glob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            found = _TEST.fullmatch(node.name)
            if found is None:
                continue
            if found["kind"].upper() not in KINDS:
                raise ConfigError(f"{path.name}: {node.name} is named by a kind of faults that is not known")
            if _SECOND.match(found["promise"]):
                raise ConfigError(f"{path.name}: {node.name} is named by several faults: write a test for each")
            yield FaultTest(
                fault=f"{found['kind'].upper()}-{found['number']}",
                promise=found["promise"].replace("_", " "),
                path=path.relative_to(folder.parents[1]),
                name=node.name,
            )


def published(path: Path = PUBLISHED) -> dict[str, str]:
    """Where each fault was published, as Markdown, by id."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return {fault: source for fault, _, source in (line.partition("\t") for line in lines)}


def fault_table(tests: Sequence[FaultTest], sources: Mapping[str, str]) -> str:
    """A section for each kind: a row for each fault, with all its tests."""
    parts = [f"{len(tests)} tests hold {len({test.fault for test in tests})} faults.\n"]
    for kind, title in KINDS.items():
        of_kind = sorted((test for test in tests if test.kind == kind), key=lambda test: test.fault)
        if not of_kind:
            continue
        parts.append(
            f"\n### {title}\n\n| fault | what is promised, and the test that holds it | published |\n|---|---|---|\n"
        )
        for fault in dict.fromkeys(test.fault for test in of_kind):
            told = "<br>".join(f"[{test.promise}](../{test.path})" for test in of_kind if test.fault == fault)
            parts.append(f"| {fault} | {told} | {sources.get(fault, '')} |\n")
    return "".join(parts)


def filled(document: str, table: str) -> str:
    """`document` with its table replaced. Raises ConfigError if it has no place for one."""
    head, begin, rest = document.partition(_BEGIN)
    _, end, tail = rest.partition(_END)
    if not (begin and end):
        raise ConfigError(f"expected {_BEGIN.strip()} and {_END}, but they are not there")
    return head + begin + table + end + tail


def main(arguments: Sequence[str] | None = None) -> int:
    """Write, or check; the exit code of the module's text."""
    program = "benchmarks.report_faults"
    options = parse(Options, arguments, program=program)
    before = DOCUMENT.read_text(encoding="utf-8")
    try:
        after = filled(before, fault_table(list(fault_tests()), published()))
    except ConfigError as error:
        refuse(error, program=program)
    if options.check:
        if before != after:
            print("docs/reliability.md shows other tests than there are", file=sys.stderr)
        return int(before != after)
    DOCUMENT.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
