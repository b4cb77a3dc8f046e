"""Byte streams to and from a process in a sandbox."""

import os
import select
import time
from collections.abc import Callable
from typing import Protocol

from envs.sandbox.protocol import KEPT_OUTPUT_BYTES, MAX_OUTPUT_BYTES, Ran

OUT_OF_TIME = "its time is up"
TOO_MUCH = "it writes too much"


class Stream(Protocol):
    """Standard input of a process, and its standard output and error together."""

    def write(self, data: bytes) -> None:
        """Raises OSError once the process is gone."""
        ...

    def read(self, deadline: float) -> bytes | None:
        """What has come; b"" once the process has ended and all is read; None at `deadline` (time.monotonic)."""
        ...

    def exit_code(self) -> int | None:
        """See `Ran.exit_code`; None while the process has not ended."""
        ...

    def close(self) -> None: ...


class Kept:
    """The first bytes of an output, and how many there were."""

    def __init__(self) -> None:
        self.start = bytearray()
        self.num_bytes = 0

    def add(self, data: bytes) -> None:
        self.num_bytes += len(data)
        room = KEPT_OUTPUT_BYTES - len(self.start)
        if room > 0:
            self.start += data[:room]

    @property
    def is_flood(self) -> bool:
        return self.num_bytes > MAX_OUTPUT_BYTES


def read_to_end(stream: Stream, said: bytes, timeout_s: float, kill: Callable[[], object]) -> Ran:
    """What becomes of a program that is executed by itself; closes its stream.

    said: what was read of its output already. kill: ends it with all below it, once its time is up, it has written too
    much, or its stream has ended without it.
    """
    deadline = time.monotonic() + timeout_s
    kept = Kept()
    kept.add(said)
    stopped = code = None
    try:
        while data := stream.read(deadline):
            kept.add(data)
            if kept.is_flood:
                break
        if data is None or kept.is_flood:
            stopped = TOO_MUCH if kept.is_flood else OUT_OF_TIME
        else:
            code = stream.exit_code()
        if code is None:
            kill()
    finally:
        stream.close()
    return Ran(output=bytes(kept.start), num_bytes=kept.num_bytes, exit_code=code, stopped=stopped)


class PipeStream:
    """A stream over pipes. The end of the process is what `ended` says, a pipe that is then readable: what it started
    may hold its output open for longer."""

    def __init__(self, stdin: int, output: int, ended: int) -> None:
        self._stdin, self._output, self._ended = stdin, output, ended
        self._poll = select.poll()
        self._poll.register(output, select.POLLIN)
        self._poll.register(ended, select.POLLIN)
        self._fds = [stdin, output, ended]
        os.set_blocking(output, False)
        os.set_blocking(stdin, False)
        self._is_writable = select.poll()
        self._is_writable.register(stdin, select.POLLOUT)

    def end_input(self) -> None:
        """The process finds the end of its standard input."""
        os.close(self._stdin)
        self._fds.remove(self._stdin)

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            if not self._is_writable.poll(10_000):
                raise TimeoutError("the process reads nothing")
            view = view[os.write(self._stdin, view[:4096]) :]

    def read(self, deadline: float) -> bytes | None:
        ready = dict(self._poll.poll(max(0.0, deadline - time.monotonic()) * 1e3))
        if not ready:
            return None
        if self._output in ready:
            try:
                data = os.read(self._output, 1 << 18)
            except BlockingIOError:
                data = b""
            if data:
                return data
            if self._ended not in ready:
                # Closed by the process, which goes on: only its end is of interest now.
                self._poll.unregister(self._output)
                return self.read(deadline)
        return b""

    def exit_code(self) -> int | None:
        is_over = select.poll()
        is_over.register(self._ended, select.POLLIN)
        if not is_over.poll(0):
            return None
        word = os.read(self._ended, 16)
        return int(word) if word else 128 + 9

    def close(self) -> None:
        while self._fds:
            os.close(self._fds.pop())
