"""One machine of a keeper: a bubblewrap whose first process only waits, and what is run in it.

Everything here runs in the keeper, a process of one thread, and in children that it forks. A machine is a namespace of
processes, mounts, host name, IPC and network each, and a control group. Its files are overlays, whose upper layers are
in a memory file system of the machine's own mount namespace: with its last process all of that is gone. Programs are
brought in from outside, by a child that enters the namespaces and gives up its privileges there; nothing in the machine
has a part in that.
"""

import json
import os
import select
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from envs.sandbox import frames, layers
from envs.sandbox.ground import Ground
from envs.sandbox.layers import Layer
from envs.sandbox.namespaces import (
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUTS,
    die_with_parent,
    filter_calls,
    fork_sibling,
    keep_capabilities,
    mount,
    setns,
    unshare,
)
from envs.sandbox.protocol import CAPABILITIES, Limits
from envs.sandbox.rlimits import limit_process

# bash as the first process takes in orphans; it ends with the pipe that the keeper holds, should the keeper die.
_WAITING = "trap '' INT TERM HUP; echo; exec >&- 2>&-; while read -r _; do :; done"
# What tells of the machine outside, or changes it.
_READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
_HIDDEN = (
    *(
        "/proc/acpi",
        "/proc/asound",
        "/proc/config.gz",
        "/proc/kcore",
        "/proc/keys",
        "/proc/kmsg",
        "/proc/latency_stats",
    ),
    *("/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/proc/tty/driver"),
)
_NAMESPACES = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWPID
_MODE_FILTER = 0o022
# What is looked through before scripts grade must not be endless.
_NUM_FILES = 1 << 17
# How long something takes that is brought in before it is looked at whether it was stopped.
_STOPPED_STEP_MS = 100
_FREEZE_ATTEMPTS = 20
_FULL = "the machine has as many processes as it may"
# Of /dev/shm.
_SHARED_BYTES = 1 << 26


class MachineError(Exception):
    """A machine could not be started, or a program not be brought into it."""


class MachineFull(MachineError):
    """It has as many processes as it may, and none can be brought into it."""


@dataclass(slots=True, kw_only=True)
class Machine:
    """pid: of bubblewrap. first: descriptor of the first process in it, whose number here is first_pid. hold: the pipe
    that lets that live.

    known: protected files that were changed when it was sealed. processes: what runs in it for the owner.
    """

    pid: int
    first: int
    first_pid: int
    hold: int
    limits: Limits
    has_group: bool
    cgroup: list[Path]
    layers: list[Layer]
    known: frozenset[str] = frozenset()
    processes: set[int] = field(default_factory=set)
    is_over: bool = False

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.first, signal.SIGKILL)

    def wake_first(self) -> None:
        """Let the first process wait for orphans again."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.first, signal.SIGCONT)

    def release(self) -> None:
        """Once its processes are gone."""
        frames.close_all((self.first, self.hold))
        for layer in self.layers:
            layer.close()


def start(ground: Ground, limits: Limits, cgroup: list[Path]) -> Machine:
    """Raises MachineError."""
    hold_read, hold_write = os.pipe()
    said_read, said_write = os.pipe()
    info_read, info_write = os.pipe()
    ours, theirs = socket.socketpair()
    keeper = os.getpid()
    pid = os.fork()
    if pid == 0:
        with _reporting(theirs):
            die_with_parent(keeper)
            _join(cgroup)
            if not cgroup:
                limit_process(limits)
            frames.send(theirs, None, _mount(ground, limits))
            os.dup2(hold_read, 0)
            os.dup2(said_write, 1)
            os.dup2(said_write, 2)
            os.setsid()
            calls = os.memfd_create("calls", 0)
            os.write(calls, ground.calls)
            os.lseek(calls, 0, os.SEEK_SET)
            os.set_inheritable(info_write, True)
            os.execv(ground.bwrap, _arguments(ground, calls, info_write))
    frames.close_all((hold_read, said_write, info_write))
    theirs.close()
    fds: tuple[int, ...] = ()
    try:
        with ours:
            received = frames.receive(ours)
        if received is None:
            raise MachineError("the machine's first process died")
        problem, fds = received
        if problem is not None:
            raise MachineError(problem)
        first_pid = _first_process(info_read, said_read)
        first = os.pidfd_open(first_pid)
    except MachineError:
        frames.close_all((hold_write, *fds))
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    finally:
        frames.close_all((said_read, info_read))
    points = list(ground.lowers)
    return Machine(
        pid=pid,
        first=first,
        first_pid=first_pid,
        hold=hold_write,
        limits=limits,
        has_group=bool(cgroup),
        cgroup=cgroup,
        layers=[
            Layer(point=point, lower=os.dup(ground.pristine[point]), upper=fd)
            for point, fd in zip(points, fds, strict=True)
        ],
    )


def _first_process(info: int, said: int) -> int:
    """Wait until it says that it waits."""
    word = os.read(said, 1)
    if word != b"\n":
        rest = b"" if not word else word + os.read(said, 4096)
        raise MachineError(f"bubblewrap: {rest.decode(errors='replace').strip() or 'ended at once'}")
    text = b""
    while data := os.read(info, 4096):
        text += data
    return int(json.loads(text)["child-pid"])


class _reporting:
    """The life of a forked child: whatever goes wrong before it becomes another program is said, and ends it."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def __enter__(self) -> None:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGPIPE, signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> NoReturn:
        if error is not None:
            with suppress(OSError):
                is_full = isinstance(error, BlockingIOError)
                frames.send(self._end, _FULL if is_full else f"{kind.__name__ if kind else ''}: {error}")
        os._exit(0 if error is None else 127)


def _join(cgroup: Sequence[Path]) -> None:
    for folder in cgroup:
        (folder / "cgroup.procs").write_text("0")


def _mount(ground: Ground, limits: Limits) -> tuple[int, ...]:
    """The file systems of a machine at `place`/session/root; descriptors of their upper layers."""
    unshare(CLONE_NEWNS)
    session = ground.place / "session"
    mount("tmpfs", str(session), "tmpfs", 0, f"size={limits.disk_bytes},nr_inodes={_NUM_FILES},mode=755")
    root = session / "root"
    root.mkdir()
    uppers = []
    for number, (point, lowers) in enumerate(ground.lowers.items()):
        upper, work = session / f"upper{number}", session / f"work{number}"
        upper.mkdir()
        work.mkdir()
        options = f"lowerdir={':'.join(lowers)},upperdir={upper},workdir={work},userxattr"
        mount("overlay", str(root / point), "overlay", 0, options)
        uppers.append(os.open(upper, os.O_RDONLY | os.O_DIRECTORY))
    return tuple(uppers)


def _arguments(ground: Ground, calls: int, info: int) -> list[str]:
    root = str(ground.place / "session/root")
    return [
        ground.bwrap,
        *("--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
        *("--die-with-parent", "--as-pid-1", "--hostname", "sandbox", "--cap-drop", "ALL"),
        *("--bind", root, "/", "--proc", "/proc", *_hidden_arguments(), "--dev", "/dev"),
        *("--size", str(_SHARED_BYTES), "--perms", "1777", "--tmpfs", "/dev/shm"),
        *("--remount-ro", "/dev", "--chdir", "/", "--clearenv"),
        *("--seccomp", str(calls), "--info-fd", str(info)),
        *("--", "/bin/bash", "--noprofile", "--norc", "-c", _WAITING),
    ]


def _hidden_arguments() -> Iterator[str]:
    for path in filter(os.path.exists, _READ_ONLY):
        yield from ("--ro-bind", path, path)
    for path in filter(os.path.exists, _HIDDEN):
        yield from ("--tmpfs", path, "--remount-ro", path) if os.path.isdir(path) else ("--ro-bind", "/dev/null", path)


def execute(
    ground: Ground, machine: Machine, request: dict[str, Any], fds: tuple[int, ...], *, is_trusted: bool
) -> int:
    """Run a program in the machine, with `fds` as its input and its output; returns its process id.

    Raises MachineError if it cannot be executed, MachineFull if there may be no more processes, TooMuchChanged if a
    trusted program would have nothing to run on.
    """
    changed = _changed_since_sealed(machine) if is_trusted else {}

    def run() -> None:
        if changed:
            layers.put_back(changed)
        os.setsid()
        os.umask(_MODE_FILTER)
        os.chdir(request["folder"])
        errors = fds[1] if request["keeps_errors"] else os.open(os.devnull, os.O_WRONLY)
        for target, fd in enumerate((fds[0], fds[1], errors)):
            os.dup2(fd, target)
        keep_capabilities(CAPABILITIES)
        filter_calls(ground.calls)
        os.execve(request["argv"][0], request["argv"], request["environment"])

    return _enter(ground, machine, run)


def freeze(ground: Ground, machine: Machine) -> None:
    """Stop all processes. Raises MachineError if one of them ended what stops them each time, or MachineFull."""

    def run() -> None:
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGSTOP)
        os._exit(0)

    # The first may have been taken over, by way of its memory.
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(machine.first, signal.SIGSTOP)
    # One that kills whatever is new can be faster, on a busy machine more than once.
    for _ in range(_FREEZE_ATTEMPTS):
        _, status = os.waitpid(_enter(ground, machine, run), 0)
        if status == 0:
            return
    raise MachineError("the machine does not let its processes be stopped")


def _changed_since_sealed(machine: Machine) -> dict[str, Layer]:
    found = layers.changes(machine.layers)
    return {path: layer for path, layer in found.items() if path not in machine.known}


def seal(machine: Machine) -> None:
    machine.known = frozenset(layers.changes(machine.layers))


def _enter(ground: Ground, machine: Machine, run: Any) -> int:
    """Fork a child into the machine that calls `run`, which executes a program or ends the child.

    Returns once it has: raises MachineError if it says that it cannot, MachineFull if there may be no more processes.
    """
    ours, theirs = socket.socketpair()
    usher = os.fork()
    if usher == 0:
        with _reporting(theirs):
            _join(machine.cgroup)
            if not machine.has_group:
                limit_process(machine.limits)
            setns(machine.first, _NAMESPACES)
            # Only children enter a namespace of processes; the keeper stays the parent of this one.
            pid = fork_sibling()
            if pid == 0:
                run()
            else:
                frames.send(theirs, pid)
    theirs.close()
    os.waitpid(usher, 0)
    pid, problem = 0, ""
    with ours:
        # Two may speak: the usher, which has done so, and the child, be it before or after.
        while (received := _heard(ours, pid)) is not None:
            if isinstance(received[0], int):
                pid = received[0]
            else:
                problem = received[0]
    if pid and not problem:
        return pid
    if pid:
        os.waitpid(pid, 0)
    raise MachineFull(_FULL) if problem == _FULL else MachineError(problem or "the machine is gone")


def _heard(end: socket.socket, pid: int) -> tuple[Any, tuple[int, ...]] | None:
    """See `frames.receive`. Raises MachineError if the child `pid` is stopped meanwhile: what runs in the machine can
    do that while the child is no other program yet, and the keeper, with all other machines, would wait for ever."""
    poll = select.poll()
    poll.register(end, select.POLLIN)
    while not poll.poll(_STOPPED_STEP_MS):
        if pid and os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise MachineError("the machine stops what is brought into it")
    return frames.receive(end)
