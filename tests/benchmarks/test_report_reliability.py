"""docs/reliability.md claims nothing without a test, and names no test that is not there."""

import ast
import re
from pathlib import Path

import pytest

from agentrl_jax.errors import ConfigError
from benchmarks.report_faults import (
    DOCUMENT,
    KINDS,
    REPOSITORY,
    FaultTest,
    fault_table,
    fault_tests,
    filled,
    published,
)

TEXT = DOCUMENT.read_text(encoding="utf-8")


def names_of(path: Path) -> set[str]:
    """The tests of a file."""
    nodes = ast.parse(path.read_text(encoding="utf-8")).body
    return {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}


def test_the_table_is_that_of_the_tests_that_there_are() -> None:
    wanted = filled(TEXT, fault_table(list(fault_tests()), published()))
    assert wanted == TEXT, "run python -m benchmarks.report_faults"


def test_every_promise_names_tests_that_there_are() -> None:
    head = TEXT.partition("<!-- faults:begin -->")[0]
    rows = [line for line in head.splitlines() if line.startswith("| ") and not line.startswith("| promise")]
    assert len(rows) >= 10
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row.split("|")[2])
        assert named, f"claimed without a test: {row}"
        for path, test in named:
            assert test in names_of(REPOSITORY / path), f"{path} has no test {test}"


def test_every_published_fault_of_the_table_says_where() -> None:
    sources = published()
    missing = sorted({test.fault for test in fault_tests() if test.kind != "CHAOS"} - set(sources))
    assert not missing, f"tests/faults/published.tsv lacks {missing}"
    assert all(re.fullmatch(r"[A-Z]{3}-\d\d", fault) and source for fault, source in sources.items())


def test_a_table_by_hand() -> None:
    first = FaultTest(fault="ADV-02", promise="b holds", path=Path("tests/faults/test_adv.py"), name="test_adv_02_b")
    second = FaultTest(fault="TOK-01", promise="a holds", path=Path("tests/faults/test_tok.py"), name="test_tok_01_a")
    table = fault_table([first, second], {"TOK-01": "somewhere"})
    assert table.index(KINDS["TOK"]) < table.index(KINDS["ADV"])
    assert "| TOK-01 | [a holds](../tests/faults/test_tok.py) | somewhere |\n" in table
    assert table.startswith("2 tests hold 2 faults.")


def test_tests_are_found_by_their_names(tmp_path: Path) -> None:
    folder = tmp_path / "tests" / "faults"
    folder.mkdir(parents=True)
    (folder / "test_a.py").write_text(
        "def helper(): pass\nasync def test_tok_03_it_holds(): pass\ndef test_other(): pass\n"
    )
    (found,) = fault_tests(folder)
    assert (found.fault, found.promise, found.path) == ("TOK-03", "it holds", Path("tests/faults/test_a.py"))
    (folder / "test_b.py").write_text("def test_zzz_01_never(): pass\n")
    with pytest.raises(ConfigError, match="test_zzz_01_never is named by a kind"):
        list(fault_tests(folder))
    for name in ("test_tok_01_msk_02_both", "test_tok_01_02_both"):
        (folder / "test_b.py").write_text(f"def {name}(): pass\n")
        with pytest.raises(ConfigError, match=f"{name} is named by several faults"):
            list(fault_tests(folder))


def test_a_document_without_a_place_for_the_table_is_refused() -> None:
    with pytest.raises(ConfigError, match="faults:begin"):
        filled("nothing", "table")
