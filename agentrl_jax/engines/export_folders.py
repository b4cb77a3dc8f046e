"""Folders of exports: whose they are, and that they are gone once they are nobody's. No jax.

    FOLDER/.gate   locked for the moment in which a folder is taken, or taken away
    FOLDER/.lock   locked for as long as the folder is somebody's

These are locks of the system, which end with their process however it ends. Invariant: a folder is taken away only by
whoever holds both locks of the folder that still has this path, and in one step, so that nobody who is about to take
it finds one that is half gone.
"""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

from agentrl_jax.errors import ConfigError

_GATE, _LOCK = ".gate", ".lock"
_PREFIX = "agentrl_jax-exports-"
_SHARED_MEMORY = Path("/dev/shm")
_MAX_TRIES = 100  # each of which somebody else has foiled


def export_folder(base: Path | None, run_dir: Path) -> Path:
    """The folder of this run directory's exports in `base`; None: in memory, where the system has files there."""
    if base is None:
        base = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())
    return base / f"{_PREFIX}{sha256(str(run_dir.resolve()).encode()).hexdigest()[:12]}"


@contextmanager
def own_folder(folder: Path) -> Iterator[None]:
    """Have `folder` to oneself, and delete it in the end. What a killed process has left there stays.

    Raises ConfigError if another process has it, it belongs to another user, or it cannot be written or locked.
    """
    try:
        lock = _take(folder)
    except OSError as error:
        raise ConfigError(f"--publish.folder: {folder} cannot be written, and locked: {error}") from error
    if lock is None:
        raise ConfigError(f"--publish.folder: another process publishes from {folder}")
    try:
        yield
    finally:
        with suppress(OSError), ExitStack() as stack:
            _opened(folder / _GATE, fcntl.LOCK_EX, stack)
            _take_away(folder)
        os.close(lock)


def sweep(base: Path) -> list[Path]:
    """Delete the export folders in `base` that killed processes have left, and return those that are gone."""
    swept = []
    for folder in base.glob(f"{_PREFIX}*"):
        with suppress(OSError), ExitStack() as stack:  # gone meanwhile, in use, or somebody else's
            for name in (_GATE, _LOCK):
                _opened(folder / name, fcntl.LOCK_EX | fcntl.LOCK_NB, stack)
            if _take_away(folder):
                swept.append(folder)
    return swept


def _take(folder: Path) -> int | None:
    """The lock on `folder`, made if need be; None if another process has it."""
    for _ in range(_MAX_TRIES - 1):
        with suppress(FileExistsError, FileNotFoundError):  # it was taken away meanwhile
            return _take_once(folder)
    return _take_once(folder)


def _take_once(folder: Path) -> int | None:
    folder.mkdir(parents=True, exist_ok=True)
    _check_owner(folder)
    with ExitStack() as passing, ExitStack() as keeping:
        _opened(folder / _GATE, fcntl.LOCK_EX, passing)
        try:
            lock = _opened(folder / _LOCK, fcntl.LOCK_EX | fcntl.LOCK_NB, keeping)
        except BlockingIOError:
            return None
        keeping.pop_all()
        return lock


def _opened(file: Path, lock: int, stack: ExitStack) -> int:
    """A descriptor of `file`, locked; closed by `stack`. Raises FileNotFoundError if the path leads elsewhere by then,
    BlockingIOError if it is locked and `lock` does not wait."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    stack.callback(os.close, descriptor)
    fcntl.flock(descriptor, lock)
    if not os.path.samestat(os.fstat(descriptor), os.stat(file)):
        raise FileNotFoundError(f"{file} has been replaced")
    return descriptor


def _check_owner(folder: Path) -> None:
    """Where everybody may make folders, others must not have made ours: they could change what servers read."""
    is_shared = folder.parent.stat().st_mode & stat.S_ISVTX
    if is_shared and folder.lstat().st_uid != os.geteuid():
        raise PermissionError(f"it belongs to user {folder.lstat().st_uid}")


def _take_away(folder: Path) -> bool:
    """Whether nothing of it is left."""
    gone = folder.with_name(f"{folder.name}.gone-{uuid4().hex[:8]}")
    try:
        folder.rename(gone)
    except OSError:  # as in a folder in which nothing may be made
        gone = folder
    shutil.rmtree(gone, ignore_errors=True)
    return not gone.exists()
