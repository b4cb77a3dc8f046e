"""Whose an export folder is, and that sweeping away what nobody has takes nothing from anybody."""

import fcntl
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from agentrl_jax.engines.export_folders import export_folder, own_folder, sweep
from agentrl_jax.errors import ConfigError
from tests.engines.weight_fakes import exports_in, in_buckets, random_arrays


def test_runs_have_folders_of_their_own(tmp_path: Path) -> None:
    assert export_folder(None, tmp_path / "a") != export_folder(None, tmp_path / "b")
    assert export_folder(None, tmp_path / "a") == export_folder(None, tmp_path / "b" / ".." / "a")
    assert export_folder(tmp_path, tmp_path / "a").parent == tmp_path


def test_a_folder_has_one_run_at_a_time_and_what_a_killed_one_left_is_deleted(tmp_path: Path) -> None:
    left = tmp_path / "e" / "v7"
    left.mkdir(parents=True)
    with exports_in(tmp_path / "e"):
        assert not left.exists()
        with pytest.raises(ConfigError, match="another process publishes from"), exports_in(tmp_path / "e"):
            pass
        assert (tmp_path / "e").is_dir()
    assert list(tmp_path.iterdir()) == []


def test_folders_of_killed_runs_are_swept_and_nothing_else_is(tmp_path: Path) -> None:
    dead, alive = export_folder(tmp_path, tmp_path / "a"), export_folder(tmp_path, tmp_path / "b")
    half_gone = dead.with_name(f"{dead.name}.gone-0a1b2c3d")
    for folder in (dead, half_gone, tmp_path / "users"):
        (folder / "v1").mkdir(parents=True)
        (folder / "v1" / "model.safetensors").touch()
    (dead / ".lock").touch()
    (tmp_path / f"{dead.name}-file").touch()
    with exports_in(alive):
        assert sorted(sweep(tmp_path)) == [dead, half_gone]
        assert alive.is_dir()
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{dead.name}-file", "users"]


def test_a_folder_that_cannot_be_deleted_is_not_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export_folder(tmp_path, tmp_path / "a").mkdir(parents=True)
    monkeypatch.setattr(shutil, "rmtree", lambda folder, ignore_errors: None)
    assert sweep(tmp_path) == []


def interposed(monkeypatch: pytest.MonkeyPatch, at: int, deed: Callable[[], object]) -> None:
    """`deed` is done right before this thread locks something for the `at`-th time."""
    flock, num_calls = fcntl.flock, 0

    def lock(descriptor: int, how: int) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls == at:
            deed()
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", lock)


@pytest.mark.parametrize("at", [1, 2])
def test_a_folder_that_is_swept_while_it_is_taken_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    folder = export_folder(tmp_path, tmp_path / "a")
    swept: list[Path] = []
    interposed(monkeypatch, at, lambda: swept.extend(sweep(tmp_path)))
    with exports_in(folder) as exports:
        export = exports.write(1, in_buckets(random_arrays(1)))
        export.check()
        assert sweep(tmp_path) == []
    assert swept == ([folder] if at == 1 else [])  # once its gate is locked, nobody else can have it


def test_a_folder_that_is_taken_while_it_is_swept_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = export_folder(tmp_path, tmp_path / "a")
    folder.mkdir()
    with ThreadPoolExecutor(1) as other:
        taken, done = threading.Event(), threading.Event()

        def take() -> None:
            with own_folder(folder):
                taken.set()
                done.wait()

        def wait_taken() -> None:
            other.submit(take)
            taken.wait()

        with monkeypatch.context() as patched:
            interposed(patched, 1, wait_taken)
            assert sweep(tmp_path) == []
        assert (folder / ".lock").is_file()
        done.set()
    assert not folder.exists()


@pytest.mark.parametrize("num_takers", [1, 2])
def test_whoever_has_a_folder_keeps_it_whatever_others_do(tmp_path: Path, num_takers: int) -> None:
    folder = export_folder(tmp_path, tmp_path / "a")
    num_owners, num_taken, num_swept = 0, 0, 0
    refusals: list[ConfigError] = []
    over = threading.Event()

    def take() -> None:
        nonlocal num_owners, num_taken
        for turn in range(150):
            try:
                with own_folder(folder):
                    num_owners += 1
                    assert num_owners == 1
                    mark = folder / f"mark-{turn}"
                    mark.touch()
                    assert mark.is_file()
                    num_taken += 1
                    num_owners -= 1
            except ConfigError as error:
                refusals.append(error)

    def clean() -> None:
        nonlocal num_swept
        dead = export_folder(tmp_path, tmp_path / str(threading.get_ident()))
        while not over.is_set():
            with suppress(FileExistsError):  # the other one has swept it in the middle of this
                dead.mkdir(exist_ok=True)
            num_swept += len(sweep(tmp_path))

    with ThreadPoolExecutor(4) as threads:
        takers = [threads.submit(take) for _ in range(num_takers)]
        cleaners = [threads.submit(clean) for _ in range(2)]
        for taker in takers:
            taker.exception()
        over.set()
        for each in takers + cleaners:
            each.result()
    assert num_taken + len(refusals) == 150 * num_takers
    assert num_taken
    assert all("another process publishes" in str(error) for error in refusals)
    assert num_takers > 1 or not refusals
    assert num_swept
    sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_where_everybody_may_write_a_folder_that_somebody_else_has_made_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "e"
    folder.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    with own_folder(folder):
        pass
    folder.mkdir()
    tmp_path.chmod(0o1777)
    with pytest.raises(ConfigError, match="belongs to user"), own_folder(folder):
        pass


def test_a_file_in_the_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "e").touch()
    with pytest.raises(ConfigError, match="cannot be written, and locked"), own_folder(tmp_path / "e"):
        pass
