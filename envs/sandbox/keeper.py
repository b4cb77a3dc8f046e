"""The process that owns all machines of a driver: it starts them, brings programs into them, and ends them.

It has one thread, and with it the machines live and die: it ends them when its owner closes the socket between them,
which the owner's death does too, and when it dies itself, the kernel ends them. What a keeper of that kind could not
remove, empty control groups, the next one does.

Requests are JSON objects, `do` says which, and each gets one answer: `{}` or what is asked for, or `{"gone": why}` for
a machine that was broken from within, or `{"failed": why}`. The end of a program is written as its exit code to the
pipe that came with the request.
"""

import gc
import os
import resource
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from envs.sandbox import frames, machines
from envs.sandbox.cgroups import OwnedCgroups, find_places
from envs.sandbox.ground import FIRST_USER, GroundError, prepare
from envs.sandbox.layers import TooMuchChanged
from envs.sandbox.machines import Machine, MachineError, MachineFull
from envs.sandbox.namespaces import hide_memory
from envs.sandbox.protocol import Limits

COMMAND = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from envs.sandbox.keeper import main; main()"
"""For `python -c`, with `sys.path` as JSON, the socket's descriptor and bubblewrap's path; then the folder of a root
file system, or nothing."""


T = TypeVar("T")


class Keeper:
    """Serves the owner at the other end of a socket."""

    def __init__(self, end: socket.socket, bwrap: str, root: str) -> None:
        self._end = end
        places = find_places()
        self._cgroups = None if places is None else OwnedCgroups(places)
        if self._cgroups is not None:
            self._cgroups.sweep()
            self._held = self._cgroups.close_after_end()
            self._cgroups.hand_over(FIRST_USER)
        self._ground = prepare(bwrap, root)
        hide_memory()
        self._machines: dict[int, Machine] = {}
        self._num_opened = 0
        # Programs by process id: who waits for the end of each.
        self._ends: dict[int, tuple[Machine, int]] = {}
        self._requests: dict[str, Callable[[dict[str, Any], tuple[int, ...]], Any]] = {
            "open": self._open,
            "execute": self._execute,
            "signal": self._signal,
            "seal": self._seal,
            "freeze": self._freeze,
            "close": self._close,
        }

    @property
    def has_groups(self) -> bool:
        return self._cgroups is not None

    def serve(self) -> None:
        """Until the owner is gone; then end everything."""
        wakes, woken = os.pipe()
        os.set_blocking(woken, False)
        os.set_blocking(wakes, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        frames.send(self._end, {"has_groups": self.has_groups})
        with selectors.DefaultSelector() as selector:
            selector.register(self._end, selectors.EVENT_READ)
            selector.register(wakes, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fd == wakes:
                        with suppress(BlockingIOError):
                            os.read(wakes, 4096)
                        self._reap()
                    elif not self._answer_one():
                        return

    def end(self) -> None:
        for machine in self._machines.values():
            machine.kill()
        for number in list(self._machines):
            self._remove(number)
        if self._cgroups is not None:
            # What is left of the groups goes when this process does, or before it where that can be.
            os.close(self._held)
            if not self._cgroups.holds_owner:
                with suppress(ChildProcessError):
                    os.waitpid(-1, 0)

    def _answer_one(self) -> bool:
        try:
            received = frames.receive(self._end)
        except OSError:
            return False
        if received is None:
            return False
        request, fds = received
        try:
            answer = self._requests[request["do"]](request, fds)
        except (MachineError, TooMuchChanged, KeyError) as error:
            answer = {"gone": f"{error}"}
        except OSError as error:
            answer = {"failed": f"{error}"}
        frames.close_all(fds)
        try:
            frames.send(self._end, answer or {})
        except OSError:
            return False
        return True

    def _open(self, request: dict[str, Any], _: tuple[int, ...]) -> Any:
        limits = Limits(**request["limits"])
        number = self._num_opened
        self._num_opened += 1
        group = [] if self._cgroups is None else self._cgroups.create(str(number), limits)
        try:
            self._machines[number] = machines.start(self._ground, limits, group)
        except (MachineError, OSError) as error:
            if self._cgroups is not None:
                self._cgroups.remove(group)
            return {"failed": str(error)}
        return {"machine": number}

    def _execute(self, request: dict[str, Any], fds: tuple[int, ...]) -> Any:
        machine = self._machines[request["machine"]]
        pid = self._with_room(
            machine,
            lambda: machines.execute(self._ground, machine, request, fds[:2], is_trusted=request["is_trusted"]),
        )
        self._ends[pid] = (machine, os.dup(fds[2]))
        machine.processes.add(pid)
        return {"process": pid}

    def _signal(self, request: dict[str, Any], _: tuple[int, ...]) -> None:
        """To a program's process group, or with `is_kill` the end of it and all below it."""
        pid = request["process"]
        if pid not in self._ends:
            return
        if request["is_kill"]:
            _kill_tree(pid)
        else:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGINT)

    def _seal(self, request: dict[str, Any], _: tuple[int, ...]) -> None:
        machines.seal(self._machines[request["machine"]])

    def _freeze(self, request: dict[str, Any], _: tuple[int, ...]) -> None:
        machine = self._machines[request["machine"]]
        self._with_room(machine, lambda: machines.freeze(self._ground, machine))
        if self._cgroups is not None:
            self._cgroups.widen(machine.cgroup, machine.limits)

    def _with_room(self, machine: Machine, enter: Callable[[], T]) -> T:
        """What `enter` returns. In a machine that is full of processes, as a fork bomb leaves it, all are ended first:
        there is no other way to bring one in."""
        try:
            return enter()
        except MachineFull:
            if self._cgroups is None:
                raise
            machine.wake_first()
            spared = {machine.pid, machine.first_pid}
            self._cgroups.end_all_but(spared, machine.cgroup, num_waited_for=len(machine.processes))
            self._reap()
            return enter()

    def _close(self, request: dict[str, Any], _: tuple[int, ...]) -> None:
        if request["machine"] in self._machines:
            self._machines[request["machine"]].kill()
            self._remove(request["machine"])

    def _remove(self, number: int) -> None:
        """What a killed machine leaves. The kernel ends its first process once its programs have been waited for."""
        machine = self._machines[number]
        while not machine.is_over:
            self._reaped(*os.waitpid(-1, 0))
        for pid in list(machine.processes):
            with suppress(ChildProcessError):
                self._reaped(*os.waitpid(pid, 0))
        del self._machines[number]
        machine.release()
        if self._cgroups is not None:
            self._cgroups.remove(machine.cgroup)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._reaped(pid, status)

    def _reaped(self, pid: int, status: int) -> None:
        ended = self._ends.pop(pid, None)
        if ended is not None:
            machine, end = ended
            code = os.waitstatus_to_exitcode(status)
            with suppress(OSError):
                os.write(end, str(code if code >= 0 else 128 - code).encode())
            os.close(end)
            machine.processes.discard(pid)
            return
        for machine in self._machines.values():
            if machine.pid == pid:
                machine.is_over = True


def _kill_tree(pid: int) -> None:
    """A process and all below it; stopped first, so that none can get away by forking."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        with suppress(ProcessLookupError):
            os.kill(parent, signal.SIGSTOP)
            found.append(parent)
        for path in Path(f"/proc/{parent}/task").glob("*/children"):
            with suppress(OSError):
                waiting += map(int, path.read_text().split())
    for each in found:
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


def main() -> None:
    """Run a keeper; see COMMAND."""
    fd, bwrap, root = int(sys.argv[2]), sys.argv[3], sys.argv[4]
    os.setsid()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with socket.socket(fileno=fd) as end:
        end.set_inheritable(False)
        try:
            keeper = Keeper(end, bwrap, root)
        except (OSError, GroundError) as error:
            frames.send(end, {"failed": f"{error}"})
            return
        # A collection in a forked child would copy every page that it walks.
        gc.disable()
        gc.freeze()
        try:
            keeper.serve()
        finally:
            keeper.end()
