"""The journal on disk: groups byte for byte, torn ends, deleted files, shared flushes."""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.controller.journal import HISTORY_NAME, Journal, read_history
from agentrl_jax.controller.journal_codec import decode_group, encode_group
from agentrl_jax.controller.journal_files import AppendFile
from agentrl_jax.controller.journal_lines import decode_line, decode_lines, encode_line
from agentrl_jax.errors import ConfigError, RecordError
from agentrl_jax.types import Completion, EpisodeEnd, Group, Segment, Task, Trajectory, Turn, VersionSpan

TEXT = st.text(max_size=8) | st.sampled_from(["\u2028\x85\n", "\ud800", '"crc":"', "\0"])
FINITE = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def turns(draw: st.DrawFn, *, is_first: bool) -> Turn:
    ids = draw(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=4))
    cut = draw(st.integers(1, len(ids)))
    spans = [(draw(st.integers(0, 2**31 - 1)), 0, cut), (draw(st.integers(0, 9)), cut, len(ids))]
    num_calls = draw(st.integers(0, 3))
    logprobs = draw(st.lists(st.floats(-1024, 0, width=32), min_size=len(ids), max_size=len(ids)))
    return Turn(
        context_ids=np.array(draw(st.lists(st.integers(0, 9), min_size=is_first, max_size=3)), np.int32),
        completion=Completion(
            ids=np.array(ids, np.int32),
            logprobs=np.array(logprobs, np.float32),
            loss_mask=np.array(draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids))), np.bool_),
            version_spans=tuple(VersionSpan(version=v, start=a, end=b) for v, a, b in spans if b > a),
            finish_reason=draw(st.sampled_from(["stop", "length"])),
            engine=draw(TEXT),
            pool=draw(st.sampled_from(["current", "lagging"])),
            cached_tokens=draw(st.integers(0, 99)),
        ),
        reward=draw(FINITE),
        num_calls=num_calls,
        call_errors=tuple(draw(st.lists(TEXT, max_size=2))),
        num_bare_calls=draw(st.integers(0, num_calls)),
    )


@st.composite
def groups(draw: st.DrawFn) -> Group:
    task = Task(
        env=draw(TEXT),
        split=draw(st.sampled_from(["train", "eval"])),
        index=draw(st.integers(0, 2**40)),
        seed=draw(st.integers(0, 2**63 - 1)),
    )
    group_id = draw(st.integers(0, 2**40))

    def trajectory(member: int) -> Trajectory:
        end = draw(st.sampled_from(EpisodeEnd))
        segments = [
            Segment(turns=(draw(turns(is_first=True)), *(draw(turns(is_first=False)) for _ in range(extra))))
            for extra in draw(st.lists(st.integers(0, 2), max_size=2))
        ]
        return Trajectory(
            task=task,
            group_id=group_id,
            member=member,
            end=end,
            reward=None if end.is_infrastructure else draw(FINITE),
            env_reward=draw(st.none() | FINITE),
            segments=tuple(segments),
            wall_s=draw(FINITE),
            env_s=draw(FINITE),
            engine_s=draw(FINITE),
            error=draw(TEXT),
        )

    return Group(
        group_id=group_id,
        task=task,
        start_version=draw(st.integers(0, 2**40)),
        trajectories=tuple(trajectory(member) for member in range(draw(st.integers(0, 3)))),
    )


def plain(value: object) -> object:
    """Everything in a record as comparable values: each field by name, each array with its dtype and bytes."""
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes(), value.flags.writeable)
    if isinstance(value, tuple):
        return tuple(plain(item) for item in value)
    fields = getattr(type(value), "__dataclass_fields__", None)
    if fields is None:
        return (type(value), repr(value))
    return (type(value), {name: plain(getattr(value, name)) for name in fields})


@given(groups())
def test_a_group_comes_back_in_every_field(group: Group) -> None:
    assert plain(decode_group(encode_group(group))) == plain(group)


@given(group=groups(), data=st.data())
def test_broken_bytes_are_no_group(group: Group, data: st.DataObject) -> None:
    encoded = encode_group(group)
    with pytest.raises(RecordError, match="not a recorded group"):
        decode_group(encoded[: data.draw(st.integers(0, len(encoded) - 30))])


def make_group(
    group_id: int, *, rewards: tuple[float, ...] = (0.0, 1.0), num_turns: int = 1, num_ids: int = 3
) -> Group:
    task = Task(env="a", split="train", index=group_id, seed=0)
    turn = Turn(
        context_ids=np.arange(1, num_ids, dtype=np.int32),
        completion=Completion(
            ids=np.arange(num_ids, dtype=np.int32),
            logprobs=np.full(num_ids, -0.5, np.float32),
            version_spans=(VersionSpan(version=0, start=0, end=num_ids),),
            finish_reason="stop",
            engine="e",
            pool="current",
        ),
    )
    trajectories = tuple(
        Trajectory(
            task=task,
            group_id=group_id,
            member=member,
            end=EpisodeEnd.COMPLETED,
            reward=reward,
            env_reward=reward,
            segments=(Segment(turns=(turn,) * num_turns),),
        )
        for member, reward in enumerate(rewards)
    )
    return Group(group_id=group_id, task=task, start_version=0, trajectories=trajectories)


def begun(folder: Path, fsync: Callable[[int], None] = os.fsync) -> Journal:
    journal = Journal(folder, fsync=fsync)
    journal.begin(step=0, version=0, restored_version=None, bounds={"": 9}, adopted={}, reissued=[])
    return journal


def complete(journal: Journal, *group_ids: int) -> None:
    for group_id in group_ids:
        group = make_group(group_id)
        journal.admitted(group_id, group.task, journal.history.version, None)
        journal.completed(group)


def group_files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("groups-*"))


@given(st.dictionaries(TEXT, st.none() | st.integers() | FINITE | TEXT, min_size=1))
def test_a_line_comes_back(record: dict[str, object]) -> None:
    line = encode_line(record)
    assert line.count(b"\n") == 1
    assert line.isascii()
    decoded = decode_line(line[:-1])
    assert decoded is not None
    assert {**decoded, **record} == decoded


@given(place=st.integers(0), bit=st.integers(0, 7))
def test_any_changed_bit_is_seen(place: int, bit: int) -> None:
    line = bytearray(encode_line({"kind": "published", "version": 31}))
    line[place % (len(line) - 1)] ^= 1 << bit
    assert all(part is None for part in map(decode_line, bytes(line[:-1]).split(b"\n")))


def test_every_torn_end_is_cut_at_the_last_whole_line() -> None:
    lines = [encode_line({"kind": "admitted", "group": n}) for n in range(3)]
    data = b"".join(lines)
    for size in range(len(data) + 1):
        num_whole = sum(size >= sum(map(len, lines[: n + 1])) for n in range(3))
        assert decode_lines(data[:size]) == (
            [decode_line(line[:-1]) for line in lines[:num_whole]],
            sum(map(len, lines[:num_whole])),
        )


def test_damage_before_a_flushed_line_is_no_torn_end(tmp_path: Path) -> None:
    with begun(tmp_path) as journal:
        complete(journal, 0)
    path = tmp_path / HISTORY_NAME
    path.write_bytes(path.read_bytes().replace(b'"version":0', b'"version":7', 1))
    with pytest.raises(ConfigError, match=r"history.jsonl cannot be used: line 1 is damaged"):
        Journal(tmp_path)


def test_lines_of_another_version_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / HISTORY_NAME).write_bytes(encode_line({"kind": "problem", "text": "no handler of a line"}))
    with pytest.raises(ConfigError, match="no lines of kind 'problem'; another version"):
        read_history(tmp_path)


def test_a_journal_that_cannot_be_opened_lets_go_of_its_file(tmp_path: Path) -> None:
    (tmp_path / HISTORY_NAME).write_bytes(encode_line({"kind": "future"}))
    for _ in range(2):  # the second one must not be told that another process has it
        with pytest.raises(ConfigError, match="'future'"):
            Journal(tmp_path)


def test_a_journal_goes_on_after_a_torn_end(tmp_path: Path) -> None:
    with begun(tmp_path) as journal:
        complete(journal, 0, 1)
        journal.admitted(2, make_group(2).task, 0, None)
    path = tmp_path / HISTORY_NAME
    os.truncate(path, path.stat().st_size - 3)
    with Journal(tmp_path) as journal:
        assert journal.num_cut_bytes > 0
        assert journal.history.next_group_id == 2
        complete(journal, 2)
    history, num_cut = read_history(tmp_path)
    assert (num_cut, history.problems) == (0, [])
    assert [entry.state for entry in history.groups.values()] == ["complete"] * 3


def test_groups_are_loaded_whole_or_not_at_all(tmp_path: Path) -> None:
    with begun(tmp_path) as journal:
        complete(journal, 0, 1)
    with Journal(tmp_path) as journal:
        loaded = journal.load(1)
        assert loaded is not None
        assert plain(loaded) == plain(make_group(1))
        (name,) = group_files(tmp_path)
        os.truncate(tmp_path / name, (tmp_path / name).stat().st_size - 1)
        assert journal.load(1) is None
        assert journal.load(0) is not None
        (tmp_path / name).unlink()
        assert journal.load(0) is None
        assert journal.load(99) is None


def test_groups_of_another_version_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole by their checksum, so that no crash explains them."""
    with begun(tmp_path) as journal:
        monkeypatch.setattr(
            "agentrl_jax.controller.journal.encode_group",
            lambda group: encode_group(group).replace(b"start_version", b"admit_version"),
        )
        complete(journal, 0)
    with (
        Journal(tmp_path) as journal,
        pytest.raises(ConfigError, match=r"group 0 was written by another version.*--model"),
    ):
        journal.load(0)


def test_files_are_deleted_once_no_checkpoint_could_need_them(tmp_path: Path) -> None:
    with begun(tmp_path) as journal:
        for step in range(1, 8):
            complete(journal, 2 * step - 2, 2 * step - 1)
            journal.consumed(step, journal.history.version, {2 * step - 2: 0, 2 * step - 1: 0})
            journal.checkpoint_durable(step, oldest=max(1, step - 1))
            assert len(group_files(tmp_path)) <= 2
        complete(journal, 14)
        journal.checkpoint_durable(7, oldest=7)
        assert group_files(tmp_path) == ["groups-00007.bin"]  # that of group 14
        assert journal.load(14) is not None
    assert read_history(tmp_path)[0].problems == []


def test_a_checkpoint_deletes_no_group_that_is_being_written(tmp_path: Path) -> None:
    journal: list[Journal] = []

    def checkpoint_meanwhile(descriptor: int) -> None:
        os.fsync(descriptor)
        if journal and os.readlink(f"/proc/self/fd/{descriptor}").endswith(".bin"):
            opened = journal.pop()
            opened.checkpoint_durable(0, 0)
            journal.append(opened)

    with begun(tmp_path, checkpoint_meanwhile) as opened:
        journal.append(opened)
        complete(opened, 0)
        assert opened.load(0) is not None


def test_threads_share_their_flushes(tmp_path: Path) -> None:
    is_flushing, may_end = Event(), Event()
    num_flushes = 0

    def slow_fsync(descriptor: int) -> None:
        nonlocal num_flushes
        num_flushes += 1
        is_flushing.set()
        assert may_end.wait(60)

    file = AppendFile(tmp_path / "file", slow_fsync)
    with ThreadPoolExecutor(6) as pool:
        file.write(b"first")
        flushes = [pool.submit(file.flush, file.size)]
        assert is_flushing.wait(60)
        for _ in range(5):
            file.write(b"more")
            flushes.append(pool.submit(file.flush, file.size))
        may_end.set()
        for flush in flushes:
            flush.result()
    assert num_flushes == 2
    file.close()
    assert num_flushes == 2


def test_any_number_of_threads_may_write(tmp_path: Path) -> None:
    with begun(tmp_path) as journal, ThreadPoolExecutor(8) as pool:
        for group_id in range(64):
            journal.admitted(group_id, make_group(group_id).task, 0, None)
        list(pool.map(lambda group_id: journal.completed(make_group(group_id)), range(64)))
        assert all(journal.load(group_id) is not None for group_id in range(64))
    assert read_history(tmp_path)[0].problems == []


def test_a_full_disk_leaves_no_half_of_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        if len(data) < 8:
            raise OSError(28, "No space left on device")
        return write(descriptor, bytes(data)[: len(data) // 2])

    with begun(tmp_path) as journal:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(OSError, match="No space left"):
                journal.admitted(0, make_group(0).task, 0, None)
        assert journal.history.next_group_id == 0
        complete(journal, 0)
    history, num_cut = read_history(tmp_path)
    assert (num_cut, history.next_group_id, history.problems) == (0, 1, [])


def test_two_hundred_groups_a_second_cost_little(tmp_path: Path) -> None:
    group = make_group(0, rewards=(0.0, 1.0) * 4, num_turns=5, num_ids=15)
    assert sum(trajectory.num_tokens for trajectory in group.trajectories) == 8 * 145
    with begun(tmp_path, lambda descriptor: None) as journal:
        complete(journal, 0)
        for group_id in range(1, 201):
            journal.admitted(group_id, make_group(group_id).task, 0, None)
        copies = [make_group(n, rewards=(0.0, 1.0) * 4, num_turns=5, num_ids=15) for n in range(1, 201)]
        before = time.thread_time()
        for copy in copies:
            journal.completed(copy)
        seconds = time.thread_time() - before
    print(f"{seconds * 1000:.0f} ms of CPU for 200 groups")
    assert seconds < 0.5  # ten times what it takes on an idle core, for machines that are busy
