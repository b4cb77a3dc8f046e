"""What a keeper stands on: namespaces of its own for users and mounts, and in them the layers that machines share.

If the owner of a keeper is root, the users of sandboxes, root included, are users that this machine does not have, and
the shared layers are mounted so that root there is root here (idmapped mounts); where the kernel or the file system
cannot do that, root in a sandbox is the owner without privileges. If the owner is somebody else, root in a sandbox is
that user, and there are no others.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from envs.sandbox import base_root
from envs.sandbox.namespaces import (
    CLONE_NEWNS,
    CLONE_NEWUSER,
    MS_BIND,
    MS_PRIVATE,
    MS_REC,
    mount,
    mount_mapped,
    setns,
    unshare,
)
from envs.sandbox.seccomp import filter_program

FIRST_USER = 0x7000_0000
"""Root of a sandbox, far above what accounts and their ranges of subordinate users have."""

_NUM_USERS = 65_536
_MAPPED = f"0 {FIRST_USER} {_NUM_USERS}"
_UNMAPPED = f"0 0 1\n1 {FIRST_USER + 1} {_NUM_USERS - 1}"
_PLACES = ("/tmp", "/mnt", "/var/tmp", "/media")


class GroundError(Exception):
    """This machine does not allow what sandboxes need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What all machines of a keeper share.

    place: folder whose mounts only the keeper and its children see. lowers: for each overlay its lower layers, topmost
    first, by where it is mounted. pristine: descriptors of the layers that hold the system, by the same.
    """

    bwrap: str
    place: Path
    lowers: dict[str, list[str]]
    pristine: dict[str, int]
    calls: bytes


def prepare(bwrap: str, root: str) -> Ground:
    """Enter the namespaces, and build the layers. root: folder of a whole file system, or empty for this machine's own
    programs. Raises GroundError saying what this machine does not allow."""
    calls = filter_program()
    place = next((Path(name) for name in _PLACES if os.path.isdir(name)), None)
    if place is None:
        raise GroundError(f"none of the folders {', '.join(_PLACES)} is there to mount over")
    try:
        if os.getuid() == 0:
            _enter_as_root(place, root or "/usr")
        else:
            _enter_as_user(place, root or "/usr")
        return _build(bwrap, place, is_whole=bool(root), calls=calls)
    except OSError as error:
        raise GroundError(f"sandboxes need namespaces of users and mounts, and overlays in them: {error}") from error


def _build(bwrap: str, place: Path, *, is_whole: bool, calls: bytes) -> Ground:
    system, layers = place / "system", place / "layers"
    mount("tmpfs", str(layers), "tmpfs", 0, "mode=755")
    for name in ("session", "base", "masks"):
        (layers / name).mkdir()
    if is_whole:
        lowers = {"": [str(system)]}
    else:
        base_root.build(layers / "base")
        masks = base_root.build_masks(layers / "masks")
        lowers = {"": [str(layers / "base")], "usr": [*map(str, masks), str(system)]}
    return Ground(
        bwrap=bwrap,
        place=layers,
        lowers=lowers,
        pristine={point: os.open(paths[-1], os.O_RDONLY | os.O_DIRECTORY) for point, paths in lowers.items()},
        calls=calls,
    )


def _enter_as_root(place: Path, shared: str) -> None:
    unshare(CLONE_NEWNS)
    source = _mount_place(place, shared)
    users = _user_namespace(_MAPPED)
    try:
        mount_mapped(source, str(place / "system"), users)
    except OSError:
        os.close(users)
        users = _user_namespace(_UNMAPPED)
        mount(source, str(place / "system"), None, MS_BIND)
    setns(users, CLONE_NEWUSER)
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    unshare(CLONE_NEWNS)
    os.close(users)


def _user_namespace(text: str) -> int:
    """A new namespace of users, as a descriptor. text: how they are mapped."""
    ready_read, ready_write = os.pipe()
    done_read, done_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(done_write)
        try:
            unshare(CLONE_NEWUSER)
            os.write(ready_write, b"1")
            os.read(done_read, 1)
        finally:
            os._exit(0)
    os.close(ready_write)
    try:
        if not os.read(ready_read, 1):
            raise PermissionError("a namespace of users is refused")
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{child}/{name}").write_text(text)
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY)
    finally:
        for fd in (ready_read, done_read, done_write):
            os.close(fd)
        os.waitpid(child, 0)


def _enter_as_user(place: Path, shared: str) -> None:
    uid, gid = os.getuid(), os.getgid()
    unshare(CLONE_NEWUSER | CLONE_NEWNS)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        Path("/proc/self", name).write_text(text)
    source = _mount_place(place, shared)
    mount(source, str(place / "system"), None, MS_BIND)


def _mount_place(place: Path, shared: str) -> str:
    """In a namespace of mounts that is new: folders for the shared layer and for the others. Returns a path of what is
    to be shared that holds wherever that lies."""
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    source = os.open(shared, os.O_PATH | os.O_DIRECTORY)
    mount("tmpfs", str(place), "tmpfs", 0, "mode=755")
    for name in ("system", "layers"):
        (place / name).mkdir()
    return f"/proc/self/fd/{source}"
