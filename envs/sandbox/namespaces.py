"""Calls of Linux that Python lacks: namespaces, mounts, capabilities, system call filters."""

import ctypes
import os
import platform
import signal

CLONE_NEWNS = 0x0002_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000

_CLONE_PARENT = 0x8000
_CLONE_NUMBERS = {"x86_64": 56, "aarch64": 220}

MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x4_0000

# The same numbers everywhere.
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = (ctypes.c_long(number) for number in (428, 429, 442))
_OPEN_TREE_CLONE, _O_CLOEXEC, _AT_EMPTY_PATH, _MOUNT_ATTR_IDMAP = 1, os.O_CLOEXEC, 0x1000, 0x10_0000

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP = 1, 4, 22, 24
_PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 38, 47, 4
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x2008_0522
_MAX_CAPABILITY = 63
# The numbers of capabilities(7) that sandboxes may keep.
_NUMBERS = {
    "CHOWN": 0,
    "DAC_OVERRIDE": 1,
    "FOWNER": 3,
    "FSETID": 4,
    "KILL": 5,
    "SETGID": 6,
    "SETUID": 7,
    "SETPCAP": 8,
    "SYS_CHROOT": 18,
}

_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


class _MountAttributes(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "users"))


class _CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapabilityData(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def _checked(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    _checked(_libc.unshare(flags), "unshare")


def setns(fd: int, flags: int) -> None:
    _checked(_libc.setns(fd, flags), "setns")


def mount(source: str, target: str, kind: str | None, flags: int = 0, options: str | None = None) -> None:
    words = [None if word is None else word.encode() for word in (source, target, kind, options)]
    _checked(_libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]), f"mount {kind} on {target}")


def mount_mapped(source: str, target: str, users: int) -> None:
    """Mount the folder `source`, without what is mounted in it, so that its owners are those of the namespace of users
    `users`: root there owns what root owns here."""
    tree: int = _libc.syscall(_OPEN_TREE, -100, source.encode(), ctypes.c_ulong(_OPEN_TREE_CLONE | _O_CLOEXEC))
    _checked(tree, "open_tree")
    try:
        attributes = _MountAttributes(_MOUNT_ATTR_IDMAP, 0, 0, users)
        size = ctypes.c_ulong(ctypes.sizeof(attributes))
        result = _libc.syscall(
            _MOUNT_SETATTR, tree, b"", ctypes.c_ulong(_AT_EMPTY_PATH), ctypes.byref(attributes), size
        )
        _checked(result, "mount_setattr")
        _checked(_libc.syscall(_MOVE_MOUNT, tree, b"", -100, target.encode(), ctypes.c_ulong(4)), "move_mount")
    finally:
        os.close(tree)


def _prctl(option: int, value: int = 0, more: int = 0) -> int:
    """As unsigned longs: prctl is variadic, and reads all of them."""
    arguments = [ctypes.c_ulong(word) for word in (value, more, 0, 0)]
    result: int = _libc.prctl(option, *arguments)
    return result


def fork_sibling() -> int:
    """Fork a process whose parent is this one's; in a process of one thread. As os.fork, without its handlers."""
    number = _CLONE_NUMBERS[platform.machine()]
    zeros = [ctypes.c_ulong(0)] * 4
    pid: int = _libc.syscall(ctypes.c_long(number), ctypes.c_ulong(_CLONE_PARENT | signal.SIGCHLD), *zeros)
    _checked(pid, "clone")
    return pid


def hide_memory() -> None:
    """Let nobody look into this process, and into those that it forks, before they are other programs: in a sandbox
    they have the user of what runs there."""
    _checked(_prctl(_PR_SET_DUMPABLE, 0), "prctl")


def die_with_parent(parent: int) -> None:
    """Be killed with `parent`, which forked this process; in a process of one thread."""
    _checked(_prctl(_PR_SET_PDEATHSIG, signal.SIGKILL), "prctl")
    if os.getppid() != parent:
        os._exit(1)


def keep_capabilities(names: tuple[str, ...]) -> None:
    """Give up all other capabilities, also for programs that are executed later, whoever they run as."""
    kept = sum(1 << _NUMBERS[name] for name in names)
    for number in range(_MAX_CAPABILITY + 1):
        # Beyond the last one the kernel answers EINVAL.
        if not kept >> number & 1 and _prctl(_PR_CAPBSET_DROP, number) < 0:
            break
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    header = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
    data = (_CapabilityData * 2)(
        *(_CapabilityData(kept >> s & 0xFFFF_FFFF, kept >> s & 0xFFFF_FFFF, 0) for s in (0, 32))
    )
    _checked(_libc.capset(ctypes.byref(header), data), "capset")


def filter_calls(program: bytes) -> None:
    """Refuse system calls from now on (see `seccomp`), and privileges that programs would bring."""
    _checked(_prctl(_PR_SET_NO_NEW_PRIVS, 1), "prctl")
    buffer = ctypes.create_string_buffer(program, len(program))
    loaded = _Program(len(program) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    result = _libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), ctypes.byref(loaded))
    _checked(result, "seccomp filter")
