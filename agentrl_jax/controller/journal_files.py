"""Files that only grow, and calls that return when the disk has them."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from threading import Lock


class AppendFile:
    """A file that grows. A flush covers everything written before it, so that threads that wait for one share it.

    One thread at a time may write, any number may flush.
    """

    def __init__(self, path: Path, fsync: Callable[[int], None]) -> None:
        """Open or create `path` for this process alone. Raises BlockingIOError if another one has it open."""
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise
        self._fsync = fsync
        self._flushing = Lock()
        self._size = os.fstat(self._descriptor).st_size
        self._num_flushed = 0

    @property
    def size(self) -> int:
        return self._size

    def truncate(self, size: int) -> None:
        """Keep the first `size` bytes."""
        os.ftruncate(self._descriptor, size)
        self._size = size

    def write(self, data: bytes) -> int:
        """Append `data`, all or nothing (if the disk is full), and return its offset."""
        offset, rest = self._size, memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            self.truncate(offset)
            raise
        self._size += len(data)
        return offset

    def flush(self, size: int) -> None:
        """Return when the first `size` bytes are on disk."""
        with self._flushing:
            if self._num_flushed < size:
                size = self._size
                self._fsync(self._descriptor)
                self._num_flushed = size

    def close(self) -> None:
        """Flush, and release the file."""
        self.flush(self._size)
        os.close(self._descriptor)


def flush_folder(folder: Path, fsync: Callable[[int], None]) -> None:
    """Return when the names in `folder` are on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fsync(descriptor)
    finally:
        os.close(descriptor)
