"""The process that session processes are forked from: `python -c` of `COMMAND`.

It imports an env family once and then only forks: a session starts in milliseconds, shares the family's data, and
knows neither jax nor threads. It is also the one parent of all sessions, so it alone may signal them (an id of a
process that nobody has reaped cannot mean another one) and knows how they ended. The protocol:

    stdin, a stream socket   first a TemplateSetup, answered by TemplateReady. Then one byte per session, with two
                             sockets attached: the env's frames, and the session's lifeline. End of file ends all.
    lifeline                 Born; and once the process and all that it started are gone, Died. Its end of file, from
                             the controller's side, is the order to kill: one that no death of the controller can
                             prevent, and that never has to wait.

Should it be killed itself, its sessions die with it, and the controller ends what they had started, which it knows by
a mark in the environment. Not covered, and only then: a process that emptied or overwrote its environment
(process_trees.py), and both of them killed at once.
"""

import gc
import os
import selectors
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from agentrl_jax.controller import process_trees as trees
from agentrl_jax.controller.guarded_env import EnvFactory
from agentrl_jax.controller.process_child import run_child
from agentrl_jax.controller.process_frames import Born, Died, TemplateReady, TemplateSetup, pack, receive
from agentrl_jax.env import EnvSource

COMMAND = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from agentrl_jax.controller.process_template import main; main()"
)
"""Its argument is the controller's `sys.path`, as JSON: both import the same modules."""

MAX_OUTPUT_BYTES = 4096
_FDS_PER_SESSION = 2


@dataclass(kw_only=True, eq=False)
class _Session:
    pid: int
    lifeline: socket.socket
    output: int
    tail: bytearray = field(default_factory=bytearray)
    code: int | None = None

    def drain(self) -> bool:
        """Keep the end of what the process wrote. False at its end of file."""
        while True:
            try:
                part = os.read(self.output, 1 << 16)
            except BlockingIOError:
                return True
            self.tail += part
            del self.tail[:-MAX_OUTPUT_BYTES]
            if len(part) < 1 << 16:
                return bool(part)

    def tell(self, record: Born | Died) -> None:
        with suppress(OSError):  # nobody waits for it any more
            self.lifeline.sendall(pack(record))


class _Template:
    """The loop of the template process, after its family has been made."""

    def __init__(self, control: socket.socket, make_env: EnvFactory) -> None:
        self._control, self._make_env = control, make_env
        self._pid = os.getpid()
        self._sessions: dict[int, _Session] = {}
        self._over: list[_Session] = []
        self._own = trees.children()  # what the family itself started
        self._selector = selectors.DefaultSelector()
        self._wakeup, wakeup_writer = socket.socketpair()
        self._wakeup_writer = wakeup_writer
        for end in (self._wakeup, wakeup_writer):
            end.setblocking(False)
        self._is_stopping = False

    def run(self) -> None:
        """Fork sessions until the controller hangs up or SIGTERM comes; none of them outlives this call."""
        trees.adopt_orphans()
        signal.set_wakeup_fd(self._wakeup_writer.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._selector.register(self._control, selectors.EVENT_READ, self._on_control)
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._on_signals)
        while not self._is_stopping:
            self._serve_events()
        self._selector.unregister(self._control)
        for session in self._sessions.values():
            trees.kill_group(session.pid)
        while self._sessions or self._over:
            self._serve_events()

    def _serve_events(self) -> None:
        for key, _ in self._selector.select():
            if self._selector.get_map().get(key.fd) is key:  # not ended by an earlier event of this round
                handle: Callable[[], None] = key.data
                handle()

    def _on_control(self) -> None:
        data, fds, _, _ = socket.recv_fds(self._control, 1, _FDS_PER_SESSION)
        if not data:
            self._is_stopping = True
            return
        ends = [socket.socket(fileno=fd) for fd in fds]
        if len(ends) < _FDS_PER_SESSION:  # too many are open here; the controller sees its own ends closed
            for end in ends:
                end.close()
            return
        frames, lifeline = ends
        frames.set_inheritable(False)  # unlike other descriptors, those that were sent are inheritable at first
        lifeline.set_inheritable(False)
        with frames:
            try:
                self._fork(frames, lifeline)
            except OSError as error:
                with suppress(OSError), lifeline:
                    lifeline.sendall(pack(Born(error=f"cannot fork: {error.strerror}")))

    def _fork(self, frames: socket.socket, lifeline: socket.socket) -> None:
        reader, writer = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            os.close(reader)
            os.close(writer)
            raise
        if pid == 0:
            run_child(self._make_env, frames, writer, lambda: self._forget(lifeline.detach(), reader, writer))
        os.close(writer)
        with suppress(ProcessLookupError, PermissionError):  # the child does the same: whoever comes first
            os.setpgid(pid, pid)
        os.set_blocking(reader, False)
        session = _Session(pid=pid, lifeline=lifeline, output=reader)
        self._sessions[pid] = session
        self._selector.register(lifeline, selectors.EVENT_READ, lambda: self._on_hang_up(session))
        self._selector.register(reader, selectors.EVENT_READ, lambda: self._on_output(session))
        session.tell(Born(pid=pid))

    def _forget(self, *descriptors: int) -> None:
        """In a forked session: be killed with its template, alone in its group, holding nobody else's descriptors."""
        os.setpgid(0, 0)
        trees.adopt_orphans()
        trees.die_with_parent(self._pid)
        self._selector.close()
        for end in (self._control, self._wakeup, self._wakeup_writer):
            end.close()
        for session in (*self._sessions.values(), *self._over):
            session.lifeline.close()
            os.close(session.output)
        for descriptor in descriptors:
            os.close(descriptor)

    def _on_hang_up(self, session: _Session) -> None:
        self._selector.unregister(session.lifeline)
        if session.code is None:
            trees.kill_group(session.pid)

    def _on_output(self, session: _Session) -> None:
        if not session.drain():
            self._selector.unregister(session.output)

    def _on_signals(self) -> None:
        with suppress(BlockingIOError):
            while received := self._wakeup.recv(1 << 12):
                self._is_stopping |= signal.SIGTERM in received
        for session in [session for pid, session in self._sessions.items() if trees.has_exited(pid)]:
            trees.kill_group(session.pid)
            session.code = trees.reap(session.pid)
            del self._sessions[session.pid]
            self._over.append(session)
        # A session's own descendants stay below it while it lives, so what is left here belongs to those just ended.
        if trees.kill_strays(known=self._own | self._sessions.keys()):
            for session in self._over:
                self._bury(session)
            self._over.clear()

    def _bury(self, session: _Session) -> None:
        session.drain()
        for end in (session.lifeline, session.output):
            with suppress(KeyError):  # its end of file has been seen
                self._selector.unregister(end)
        os.close(session.output)
        assert session.code is not None
        session.tell(Died(code=session.code, output=session.tail.decode("utf-8", "replace")))
        session.lifeline.close()


def main() -> None:
    """Serve the controller at the other end of stdin. See the module."""
    with socket.socket(fileno=os.dup(0)) as control:
        with open(os.devnull, "rb") as nothing:  # what the family starts must not read the controller's messages
            os.dup2(nothing.fileno(), 0)
        setup = receive(control, TemplateSetup)
        if setup is None:
            return
        try:
            make_env = EnvSource(target=setup.target, arguments=setup.arguments).load()
        except BaseException as error:
            control.sendall(pack(TemplateReady(error=f"{type(error).__name__}: {error}")))
            raise
        gc.collect()
        gc.freeze()  # pages without garbage stay shared with the sessions
        control.sendall(pack(TemplateReady()))
        _Template(control, make_env).run()
