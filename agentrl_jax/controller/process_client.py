"""The controller's side of session processes: starting the template, having it fork, talking to what it forked.

See process_template.py for the other side.
"""

import array
import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import trio

from agentrl_jax.controller.process_frames import (
    HEADER,
    Born,
    Died,
    Reply,
    Request,
    TemplateReady,
    TemplateSetup,
    frame_length,
    pack,
    unpack,
)
from agentrl_jax.controller.process_template import COMMAND
from agentrl_jax.controller.process_trees import kill_marked
from agentrl_jax.env import EnvSource
from agentrl_jax.errors import ConfigError, EnvError

T = TypeVar("T")

GONE_DEADLINE_S = 5.0
"""The kernel ends killed processes; only one that it cannot end (a dead network disk) takes longer than a moment."""


class _Frames:
    """Frames over one stream socket."""

    def __init__(self, end: socket.socket) -> None:
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(end))
        self._buffer = bytearray()

    async def send(self, value: object) -> None:
        """Raises trio.BrokenResourceError if the other side is gone, EnvError if it cannot be said in JSON."""
        await self._stream.send_all(pack(value))

    async def receive(self, kind: type[T]) -> T | None:
        """The next frame; None if the other side is gone. Raises EnvError if it is not a `kind`."""
        try:
            header = await self._exactly(HEADER.size)
            payload = None if header is None else await self._exactly(frame_length(header))
        except trio.BrokenResourceError:
            return None
        return None if payload is None else unpack(payload, kind)

    async def _exactly(self, size: int) -> bytes | None:
        while len(self._buffer) < size:
            part = await self._stream.receive_some()
            if not part:
                return None
            self._buffer += part
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    def hang_up(self) -> None:
        """Let the other side see the end of file. What it still says can be received."""
        with suppress(OSError):  # it hung up first
            self._stream.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._stream.socket.close()


class Child:
    """One session process, from before its fork to after its end. Owns two descriptors here."""

    def __init__(self) -> None:
        ours, self._their_frames = socket.socketpair()
        self._frames = _Frames(ours)
        try:
            lifeline, self._their_lifeline = socket.socketpair()
        except OSError:
            self._their_frames.close()
            self._frames.close()
            raise
        self._lifeline = _Frames(lifeline)
        self._born: Born | None = None
        self._was_awaited = False  # whether it is born, or never will be
        self.template_over: trio.Event | None = None  # known from before its birth on
        self._obituary = ""
        self.is_sound = False  # it runs, and nothing that was asked of it is unanswered

    async def hand_over(self, control: trio.socket.SocketType) -> bool:
        """Ask for the fork, one task at a time. False if the template is gone."""
        fds = array.array("i", [self._their_frames.fileno(), self._their_lifeline.fileno()])
        try:
            if control.fileno() == -1:
                return False
            await control.sendmsg([b"+"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        except (BrokenPipeError, ConnectionResetError, trio.ClosedResourceError):
            return False
        finally:
            self._close_their_ends()
        return True

    async def wait_born(self) -> bool:
        """False if the template is gone, or has no descriptors left. Raises EnvError if it cannot fork."""
        self._born = born = await self._lifeline.receive(Born)
        self._was_awaited = True
        if born is not None and born.error:
            raise EnvError(f"no process for a session: {born.error}")
        return born is not None

    async def exchange(self, request: Request) -> Reply | None:
        """Its answer; None if it has died."""
        try:
            await self._frames.send(request)
        except trio.BrokenResourceError:
            return None
        return await self._frames.receive(Reply)

    def kill(self) -> None:
        """SIGKILL it with all that it started, or let there be nothing to start. Never waits."""
        self._close_their_ends()
        self._lifeline.hang_up()

    async def wait_gone(self) -> str:
        """Return how it ended, once nothing of it is left."""
        if not self._obituary:
            if not self._was_awaited:  # nobody waited for that long enough
                with suppress(EnvError):
                    await self.wait_born()
            died = await self._lifeline.receive(Died)
            if died is None and self._born is not None and not self._born.error and self.template_over is not None:
                await self.template_over.wait()
            self._obituary = "its process was lost with the template process" if died is None else _describe(died)
        return self._obituary

    def release(self) -> None:
        """Give the descriptors back; after `kill`."""
        self._frames.close()
        self._lifeline.close()

    def _close_their_ends(self) -> None:
        self._their_frames.close()
        self._their_lifeline.close()


def _describe(died: Died) -> str:
    if died.code < 0:
        with suppress(ValueError):
            name = signal.Signals(-died.code).name
            return _with_output(f"its process was killed by {name}", died.output)
    return _with_output(f"its process exited with code {died.code}", died.output)


def _with_output(text: str, output: str) -> str:
    return f"{text}, after printing:\n{output.strip()}" if output.strip() else text


class _Life(NamedTuple):
    """One template process. over: it is gone, with everything that it and its sessions had started."""

    control: trio.socket.SocketType
    control_lock: trio.Lock
    over: trio.Event


@dataclass(eq=False)
class _Restart:
    done: trio.Event = field(default_factory=trio.Event)
    error: str = ""


class Template:
    """The template process of one source. One that dies is started anew, by the next session that needs it.

    Its processes live in `nursery`: a session that is cancelled while it waits for a restart does not end it.
    """

    def __init__(self, source: EnvSource, nursery: trio.Nursery) -> None:
        self._source, self._nursery = source, nursery
        self._life: _Life | None = None
        self._restart: _Restart | None = None

    async def start(self) -> None:
        """Raises ConfigError if its source does not load."""
        self._life = await self._nursery.start(self._live)

    async def launch(self, child: Child) -> None:
        """Have a session forked. Raises EnvError if that is not possible."""
        life = await self._running()
        child.template_over = life.over
        async with life.control_lock:
            is_sent = await child.hand_over(life.control)
        if is_sent and await child.wait_born():
            return
        # It never says anything, so that something to read would be the end of file.
        if life.control.fileno() != -1 and not life.control.is_readable():
            raise EnvError(f"the template process of {self._source.target} has too many open files")
        await life.over.wait()
        raise EnvError(f"the template process of {self._source.target} died while it started a session")

    async def _running(self) -> _Life:
        while self._life is None or self._life.over.is_set():
            if self._restart is None:
                self._restart = _Restart()
                self._nursery.start_soon(self._start_again, self._restart)
            restart = self._restart
            await restart.done.wait()
            if restart.error:
                raise EnvError(f"the template process of {self._source.target} died, and {restart.error}")
        return self._life

    async def _start_again(self, restart: _Restart) -> None:
        try:
            await self.start()
        except (ConfigError, OSError) as error:
            restart.error = str(error)
        finally:
            self._restart = None
            restart.done.set()

    async def _live(self, task_status: trio.TaskStatus[_Life]) -> None:
        """From the start of one process to after its end. Raises ConfigError."""
        ours, theirs = socket.socketpair()
        control, over = trio.socket.from_stdlib_socket(ours), trio.Event()
        mark = f"AGENTRL_JAX_TEMPLATE={uuid.uuid4().hex}"
        process: trio.Process | None = None
        try:
            with theirs:
                process = await self._open(theirs, mark)
            await self._load(_Frames(ours), process)
            task_status.started(_Life(control, trio.Lock(), over))
            await process.wait()
        finally:
            control.close()  # the order to end, with every session that still runs
            with trio.CancelScope(shield=True):
                if process is not None:
                    await self._end(process)
                await trio.to_thread.run_sync(kill_marked, mark, GONE_DEADLINE_S)
            over.set()

    async def _open(self, theirs: socket.socket, mark: str) -> trio.Process:
        name, value = mark.split("=")
        # In a group of its own: Ctrl-C is for the controller, which then ends its sessions in order.
        return await trio.lowlevel.open_process(
            [sys.executable, "-u", "-c", COMMAND, json.dumps(sys.path)],
            stdin=theirs,
            stdout=subprocess.DEVNULL,
            env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ, name: value},
            start_new_session=True,
        )

    async def _load(self, frames: _Frames, process: trio.Process) -> None:
        await frames.send(TemplateSetup(target=self._source.target, arguments=self._source.arguments))
        ready = await frames.receive(TemplateReady)
        if ready is None or ready.error:
            cause = ready.error if ready is not None else f"it ended with code {await process.wait()}"
            raise ConfigError(f"the process for {self._source.target} could not make its envs: {cause}")

    async def _end(self, process: trio.Process) -> None:
        with trio.move_on_after(GONE_DEADLINE_S):
            await process.wait()
        process.kill()
        await process.wait()
