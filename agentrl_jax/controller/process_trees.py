"""Ending processes together with all that they started. On Linux also what left its process group.

One way finds descendants as children of whoever adopts orphans: nothing escapes it, but whoever adopts must live. The
other finds them by a mark in their environment, also after all above them are gone: what started with an environment
that had been emptied, or has overwritten it since (some daemons do, to show a title), escapes it.
"""

import ctypes
import os
import select
import signal
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_IS_LINUX = sys.platform == "linux"


def adopt_orphans() -> None:
    """From now on descendants whose parent dies become children of this process, not of init. Linux only."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Be killed when the process `parent`, which forked this one, dies. Linux only."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os.kill(os.getpid(), signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if _IS_LINUX:
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def children() -> set[int]:
    """Process ids of this process's children, zombies included. Empty where the system does not tell."""
    found: set[int] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        try:
            found.update(map(int, path.read_text().split()))
        except OSError:  # a thread that has just ended
            continue
    return found


def has_exited(pid: int) -> bool:
    """True if the child `pid` is over; it stays a zombie, so that its id cannot be given to another process."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def kill_group(pid: int) -> None:
    """SIGKILL to the process group that the child `pid`, not yet reaped, leads."""
    with suppress(ProcessLookupError, PermissionError):  # the latter on macOS, if only a zombie is left in it
        os.killpg(pid, signal.SIGKILL)


def reap(pid: int) -> int:
    """Wait for the child `pid`; return its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill_strays(known: set[int]) -> bool:
    """SIGKILL every child of this process that is not `known`, and all below it. True if none is left.

    False if one takes its time to die: call it again after the next SIGCHLD.
    """
    while strays := children() - known:
        for pid in strays:
            os.kill(pid, signal.SIGKILL)  # a child that is not reaped exists, at least as a zombie
        reaped = {os.waitpid(pid, os.WNOHANG)[0] for pid in strays}
        if reaped != strays:
            return False
    return True


def kill_marked(mark: str, patience_s: float) -> None:
    """SIGKILL every process that started with the line `mark` in its environment, until there is none. Linux only.

    Returns once they are gone; patience_s bounds that, for one that the kernel cannot end.
    """
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        with ExitStack() as stack:
            marked = _marked(mark, stack)
            if not marked:
                return
            for process in marked:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
            for process in marked:
                _wait_exited(process, deadline)


def _marked(mark: str, stack: ExitStack) -> list[int]:
    """File descriptors, closed by `stack`, of the processes with `mark`: no id among them can come to mean another."""
    if not _IS_LINUX:
        return []
    found = []
    for path in Path("/proc").glob("[1-9]*/environ"):
        with suppress(OSError):  # it has ended, or belongs to somebody else
            if _has_mark(path, mark):
                process = os.pidfd_open(int(path.parent.name))
                stack.callback(os.close, process)
                if _has_mark(path, mark):
                    found.append(process)
    return found


def _has_mark(environ: Path, mark: str) -> bool:
    return mark.encode("ascii") in environ.read_bytes().split(b"\0")


def _wait_exited(process: int, deadline: float) -> None:
    poll = select.poll()
    poll.register(process, select.POLLIN)
    poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
