"""Limits on the memory, processors and processes of a sandbox, by control groups of version 1 or 2.

Groups are made below the one that this process is in, so that its own limits hold for all of them together; under
version 2, which lets no group hold both processes and limited groups, at the top of what is mounted instead. Their
common folder is called after the process that owns it, which is how `sweep` knows what a killed one has left.
"""

import os
import re
import signal
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from envs.sandbox.protocol import Limits

_PREFIX = "agentrl_jax"
_NAME = re.compile(rf"{_PREFIX}-(\d+)-(\d+)")
_CONTROLLERS = ("memory", "pids", "cpu")
_MOST_PROCESSES = "pids.max"
_PERIOD_US = 100_000
GRADING_BYTES = 1 << 28
"""What grades has for itself. Were there nothing left for it, the kernel would end processes that are stopped, and make
others go on with that."""
GRADING_PROCESSES = 64
"""And what it may start, where as many as may be are stopped."""
# A group is empty once the kernel has ended its processes, which it does behind their parents' backs.
_GONE_S = 5.0
# Meanwhile all other sandboxes wait; a first process that was taken over need not take in its orphans.
_EMPTIED_S = 1.0
_GONE_STEP_S = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where groups can be made: one folder for version 2; one for each controller of version 1."""

    version: int
    folders: tuple[Path, ...]


def start_time(pid: int, proc: Path = Path("/proc")) -> int | None:
    """When a process began, in the kernel's ticks; None if there is none."""
    try:
        text = (proc / str(pid) / "stat").read_text()
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[19])


def find_places(proc: Path = Path("/proc")) -> Places | None:
    """None where this process can make no groups that limit memory and processes."""
    own = _own_groups((proc / "self/cgroup").read_text())
    mounts = list(_mounts((proc / "self/mountinfo").read_text()))
    return next(filter(_works, _candidates(own, mounts)), None)


def _own_groups(text: str) -> Mapping[str, str]:
    """By controller; version 2 has the empty name."""
    found = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        found.update(dict.fromkeys(controllers.split(","), path))
    return found


_Mount = tuple[str, Path, str, Sequence[str]]


def _mounts(text: str) -> Iterator[_Mount]:
    """File system type, mount point, mounted folder of the hierarchy, and its options, of control groups."""
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        fields, (kind, _, options) = left.split(), right.split(maxsplit=2)
        if kind in ("cgroup", "cgroup2"):
            yield kind, Path(fields[4]), fields[3], options.split(",")


def _candidates(own: Mapping[str, str], mounts: Sequence[_Mount]) -> Iterator[Places]:
    version_1: dict[str, Path] = {}
    for kind, point, root, options in mounts:
        if kind == "cgroup2":
            yield Places(version=2, folders=(_below(point, root, own.get("", "/")),))
            yield Places(version=2, folders=(point,))
        for controller in set(_CONTROLLERS) & set(options if kind == "cgroup" else ()):
            version_1.setdefault(controller, _below(point, root, own.get(controller, "/")))
    if {"memory", "pids"} <= version_1.keys():
        # Controllers may be mounted together.
        yield Places(version=1, folders=tuple(dict.fromkeys(version_1.values())))


def _below(point: Path, root: str, path: str) -> Path:
    """Where a group of the hierarchy is mounted; the mount point if it is not below what is."""
    relative = os.path.relpath(path, root)
    folder = point if relative.startswith("..") else point / relative
    return folder if folder.is_dir() else point


def _works(places: Places) -> bool:
    """Try it with a group that is removed again."""
    owned = OwnedCgroups(places, name=f"{_PREFIX}-{os.getpid()}-0")
    try:
        owned.remove(owned.create("probe", Limits()))
    except OSError:
        return False
    finally:
        owned.close()
    return True


class OwnedCgroups:
    """The groups of one process. Methods raise OSError where the kernel refuses."""

    def __init__(self, places: Places, *, name: str | None = None) -> None:
        self._places = places
        pid = os.getpid()
        name = name or f"{_PREFIX}-{pid}-{start_time(pid)}"
        self._folders = [folder / name for folder in places.folders]

    def create(self, name: str, limits: Limits) -> list[Path]:
        """A new group: its folders. A process joins by writing 0 into `cgroup.procs` of each."""
        created = []
        self._make_folders()
        for folder in self._folders:
            path = folder / name
            path.mkdir()
            created.append(path)
        for path in created:
            _limit(path, limits, self._places.version)
        if not any((path / name).exists() for path in created for name in ("memory.max", "memory.limit_in_bytes")):
            self.remove(created)
            raise OSError("no limit of memory")
        return created

    @property
    def holds_owner(self) -> bool:
        """Whether `hand_over` puts this process into one of the groups."""
        return self._places.version == 2

    def hand_over(self, owner: int) -> None:
        """Let the user `owner`, which this process is about to become, make the groups from now on."""
        self._make_folders()
        for folder in self._folders:
            if self._places.version == 2:
                # A process may be moved by whoever may write to the group above both places.
                own = folder / "keeper"
                own.mkdir()
                (own / "cgroup.procs").write_text("0")
            if os.getuid() == 0:
                for path in (folder, *folder.iterdir()):
                    os.chown(path, owner, owner)

    def _make_folders(self) -> None:
        for folder in self._folders:
            if not folder.is_dir():
                folder.mkdir()
                if self._places.version == 2:
                    for parent in (folder.parent, folder):
                        _enable(parent)

    def widen(self, paths: Sequence[Path], limits: Limits) -> None:
        """Let a group have more memory and more processes, of which those that are stopped can take none."""
        memory, processes = str(limits.memory_bytes + GRADING_BYTES), str(limits.num_processes + GRADING_PROCESSES)
        values = dict.fromkeys(("memory.memsw.limit_in_bytes", "memory.limit_in_bytes", "memory.max"), memory)
        for name, value in (values | {_MOST_PROCESSES: processes}).items():
            for path in paths:
                if (path / name).exists():
                    (path / name).write_text(value)

    def end_all_but(self, spared: Set[int], paths: Sequence[Path], *, num_waited_for: int) -> None:
        """Kill the processes of a group other than `spared`, however fast they fork. Gives up after a second: some may
        be left that nobody waits for.

        num_waited_for: of them that this process must wait for, and that count until it has.
        """
        folder = next(path for path in paths if (path / _MOST_PROCESSES).exists())
        most = (folder / _MOST_PROCESSES).read_text()
        # Nothing forks while this is below what there is.
        (folder / _MOST_PROCESSES).write_text("0")
        try:
            deadline = time.monotonic() + _EMPTIED_S
            while time.monotonic() < deadline:
                for pid in map(int, (folder / "cgroup.procs").read_text().split()):
                    if pid not in spared:
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                if int((folder / "pids.current").read_text()) <= len(spared) + num_waited_for:
                    return
                time.sleep(_GONE_STEP_S)  # the kernel tells nobody
        finally:
            (folder / _MOST_PROCESSES).write_text(most)

    def remove(self, paths: Sequence[Path]) -> None:
        """Remove a group whose processes have been killed."""
        for path in paths:
            _remove_when_empty(path)

    def close(self) -> None:
        """Remove them all, once their processes are gone. Those that stay are left to the next owner's `sweep`."""
        for folder in self._folders:
            if folder.is_dir():
                with suppress(OSError):
                    for child in folder.iterdir():
                        if child.is_dir():
                            _remove_when_empty(child)
                    _remove_when_empty(folder)

    def close_after_end(self) -> int:
        """Fork a process that closes this when all copies of a descriptor are closed, this process's last one with its
        end: it keeps the rights to do so, should this process give them up. Returns the descriptor."""
        alive, held = os.pipe()
        if os.fork() == 0:
            try:
                os.close(held)
                os.setsid()
                os.read(alive, 1)
                self.close()
            finally:
                os._exit(0)
        os.close(alive)
        return held

    def sweep(self, proc: Path = Path("/proc")) -> None:
        """Remove what processes have left that are no more."""
        for parent in self._places.folders:
            for folder in parent.glob(f"{_PREFIX}-*"):
                match = _NAME.fullmatch(folder.name)
                if match and folder not in self._folders and start_time(int(match[1]), proc) != int(match[2]):
                    _remove_below(folder)


def _enable(folder: Path) -> None:
    present = (folder / "cgroup.subtree_control").read_text().split()
    missing = [f"+{name}" for name in _CONTROLLERS if name not in present]
    if missing:
        (folder / "cgroup.subtree_control").write_text(" ".join(missing))


def _limit(folder: Path, limits: Limits, version: int) -> None:
    """Set those of the limits that this folder's controllers know. Swap, where it is accounted for, is not used."""
    quota = str(int(limits.cpus * _PERIOD_US))
    memory = str(limits.memory_bytes)
    values = {_MOST_PROCESSES: str(limits.num_processes)}
    if version == 2:
        values |= {"memory.max": memory, "memory.swap.max": "0", "cpu.max": f"{quota} {_PERIOD_US}"}
    else:
        values |= {"memory.limit_in_bytes": memory, "memory.memsw.limit_in_bytes": memory, "cpu.cfs_quota_us": quota}
    for name, value in values.items():
        if (folder / name).exists():
            (folder / name).write_text(value)


def _remove_when_empty(path: Path) -> None:
    deadline = time.monotonic() + _GONE_S
    while True:
        try:
            path.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_GONE_STEP_S)  # the kernel tells nobody
        else:
            return


def _remove_below(folder: Path) -> None:
    """Groups that still hold processes are left: whoever owns those is not as dead as it seems."""
    if not folder.is_dir():
        return
    for child in folder.iterdir():
        if child.is_dir():
            with suppress(OSError):
                child.rmdir()
    with suppress(OSError):
        folder.rmdir()
