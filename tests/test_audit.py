"""`launch.audit`: a good run passes, each kind of damage is named, and other folders are refused."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl_jax.controller.journal import HISTORY_NAME, Journal, read_history
from agentrl_jax.controller.journal_lines import decode_lines, encode_line
from launch.audit import main

Line = dict[str, object]


def task(index: int) -> list[object]:
    return ["a", "train", index, 0]


def begun(step: int, version: int, restored: int | None, adopted: list[list[int]], reissued: list[int]) -> list[Line]:
    return [
        {"kind": "published", "version": version},
        {
            "kind": "begun",
            "step": step,
            "version": version,
            "restored_version": restored,
            "bounds": {"": 1, "slow": 3},
            "adopted": adopted,
            "reissued": reissued,
        },
    ]


def admitted(*group_ids: int, version: int, tasks: list[int] | None = None) -> list[Line]:
    """tasks: that are drawn again; else each group is of a new one."""
    pairs = zip(group_ids, tasks or group_ids, strict=True)
    return [
        {"kind": "admitted", "group": g, "task": task(index), "position": None if tasks else g, "version": version}
        for g, index in pairs
    ]


def completed(*group_ids: int) -> list[Line]:
    return [{"kind": "completed", "group": group_id, "location": [0, 0, 0, 0]} for group_id in group_ids]


def started(group_id: int, version: int) -> Line:
    return {"kind": "started", "group": group_id, "version": version}


def consumed(step: int, version: int, *groups: list[int]) -> list[Line]:
    published: Line = {"kind": "published", "version": version + 1}
    return [published, {"kind": "consumed", "step": step, "version": version, "groups": list(groups)}]


def good() -> list[Line]:
    """Two steps, a checkpoint after the first, a crash, a resume from it, and two more steps.

    Group 8 is admitted at version 3, and waits for places until version 4.
    """
    return [
        *begun(0, 0, None, [], []),
        *admitted(0, 1, 2, 3, version=0),
        *completed(0, 1, 2),
        *consumed(1, 0, [0, 0]),
        {"kind": "checkpoint", "step": 1, "oldest": 1},
        *admitted(4, version=1),
        {"kind": "ended", "group": 4, "how": "dropped"},
        *consumed(2, 1, [1, 1], [2, 1]),
        *admitted(5, version=2),
        *begun(1, 3, 1, [[1, 1], [2, 1]], [3, 5]),
        *admitted(6, 7, 8, version=3, tasks=[3, 5, 8]),
        *consumed(2, 3, [1, 1], [2, 1]),
        started(8, 4),
        *completed(6, 8),
        *consumed(3, 4, [6, 1]),
        *consumed(4, 5, [8, 1]),
        *admitted(9, version=6),
        {"kind": "ended", "group": 9, "how": "cancelled"},
    ]


def write(run_dir: Path, lines: list[Line]) -> Path:
    (run_dir / "ledger").mkdir(parents=True)
    (run_dir / "ledger" / HISTORY_NAME).write_bytes(b"".join(map(encode_line, lines)))
    return run_dir


def rows(text: str) -> dict[str, int]:
    found = re.findall(r"^ *(\S.*?) {2,}(\d+)\b", text, flags=re.MULTILINE)
    return {name: int(count) for name, count in found}


def test_a_good_run_passes_with_its_books(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(write(tmp_path, good()))]) == 0
    text = capsys.readouterr().out
    assert "no prompt lost, none trained twice" in text
    assert rows(text) == {
        "processes": 2,
        "steps": 4,
        "versions published": 7,
        "checkpoints": 1,
        "groups admitted": 10,
        "trained": 5,
        "dropped": 1,
        "without signal": 0,
        "cancelled": 1,
        "reissued": 2,
        "complete": 0,
        "in flight": 1,
        "to be drawn again": 0,
        "torn bytes": 0,
    }
    assert rows(text)["groups admitted"] == sum(
        rows(text)[name]
        for name in ("trained", "dropped", "without signal", "cancelled", "reissued", "complete", "in flight")
    )


def replaced(number: int, **changes: object) -> Callable[[list[Line]], list[Line]]:
    return lambda lines: [line | changes if at == number else line for at, line in enumerate(lines)]


def position_of(kind: str, nth: int) -> int:
    return [at for at, line in enumerate(good()) if line["kind"] == kind][nth]


DAMAGE = {
    "a lost prompt": (replaced(position_of("begun", 1), reissued=[3]), "group 5 (a/train/5/0) was lost"),
    "a lost complete group": (replaced(position_of("begun", 1), adopted=[[1, 1]]), "group 2 (a/train/2/0) was lost"),
    "a skipped reissue": (replaced(position_of("admitted", 6), task=task(9)), "a reissued task should have come"),
    "trained twice": (replaced(position_of("consumed", 3), groups=[[0, 4]]), "group 0 was consumed by step 3, but it"),
    "trained twice lately": (
        replaced(position_of("consumed", 3), groups=[[1, 2]]),
        "group 1 was consumed by step 3, but it is consumed already (step 2)",
    ),
    "trained though dropped": (replaced(position_of("consumed", 1), groups=[[4, 0]]), "group 4 was consumed by step 2"),
    "trained unfinished": (replaced(position_of("consumed", 0), groups=[[3, 0]]), "group 3 was consumed by step 1"),
    "a repeated version": (replaced(position_of("published", 3), version=2), "versions never repeat"),
    "too old": (replaced(position_of("begun", 1), adopted=[[1, 2], [2, 1]]), "it is 2, and at most 1 is allowed"),
    "a wrong age": (
        replaced(position_of("consumed", 1), groups=[[1, 0], [2, 1]]),
        "consumed group 1 at age 0: it is 1",
    ),
    "a skipped step": (replaced(position_of("consumed", 3), step=4), "step 4 was taken, but the next one is 3"),
    "a wrong version": (replaced(position_of("admitted", 4), version=0), "admitted at version 0, not 1"),
    "a wrong start": (replaced(position_of("started", 0), version=3), "group 8 started at version 3, not 4"),
    "an age from before the start": (
        replaced(position_of("consumed", 4), groups=[[8, 2]]),
        "step 4 consumed group 8 at age 2: it is 1, and at most 1 is allowed",
    ),
    "a start after the end": (
        replaced(position_of("started", 0), group=1),
        "group 1 was started, but it is consumed already",
    ),
    "a task twice": (replaced(position_of("admitted", 4), position=3), "group 4 drew position 3 of a, after 3"),
    "a skipped id": (replaced(position_of("admitted", 2), group=9), "group 9 was admitted, but the next one is 2"),
    "a resume from nowhere": (replaced(position_of("begun", 1), step=0), "resumed at step 0, but only steps 1 to 2"),
    "a dead group adopted": (
        replaced(position_of("begun", 1), adopted=[[1, 1], [2, 1], [4, 0]]),
        "group 4 was adopted",
    ),
    "ended twice": (
        replaced(position_of("ended", 1), group=4),
        "group 4 was cancelled, but it is unknown or has ended",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_each_kind_of_damage_is_named(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, message = DAMAGE[name]
    assert main([str(write(tmp_path, change(good())))]) == 1
    text = capsys.readouterr().out
    assert message in text
    assert "no prompt lost" not in text


def test_long_lists_of_problems_are_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended: list[Line] = [{"kind": "ended", "group": 99, "how": "dropped"}] * 30
    assert main([str(write(tmp_path, [*good(), *ended]))]) == 1
    text = capsys.readouterr().out
    assert text.count("PROBLEM") == 21
    assert "and 10 more" in text


def test_a_torn_end_is_no_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, good()) / "ledger" / HISTORY_NAME
    path.write_bytes(path.read_bytes() + b'{"kind":"adm')
    assert main([str(tmp_path)]) == 0
    assert rows(capsys.readouterr().out)["torn bytes"] == 12
    assert path.read_bytes().endswith(b'{"kind":"adm')  # an audit changes nothing


def test_damage_of_the_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, good()) / "ledger" / HISTORY_NAME
    path.write_bytes(path.read_bytes().replace(b'"group":1,', b'"group":2,', 1))
    with pytest.raises(SystemExit) as exit_code:
        main([str(tmp_path)])
    assert exit_code.value.code == 2
    assert "is damaged" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["absent", "empty", "no start"])
def test_a_folder_that_is_no_run_is_refused(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    if kind == "empty":
        folder.mkdir()
    elif kind == "no start":
        write(folder, [{"kind": "published", "version": 0}])
    with pytest.raises(SystemExit) as exit_code:
        main([str(folder)])
    assert exit_code.value.code == 2
    assert str(folder) in capsys.readouterr().err


def test_the_journal_writes_what_the_audit_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Journal(tmp_path / "ledger") as journal:
        journal.begin(step=0, version=0, restored_version=None, bounds={"": 1}, adopted={}, reissued=[])
        journal.published(1)
    assert main([str(tmp_path)]) == 0
    assert rows(capsys.readouterr().out)["versions published"] == 2
    lines = decode_lines((tmp_path / "ledger" / HISTORY_NAME).read_bytes()).records
    assert [line["kind"] for line in lines] == ["published", "begun", "published"]
    assert read_history(tmp_path / "ledger")[0].highest_version == 1
