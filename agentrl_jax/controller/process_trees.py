"""Ending processes together with all that they started. On Linux also what left its process group."""

import ctypes
import os
import signal
import sys
from contextlib import suppress
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
