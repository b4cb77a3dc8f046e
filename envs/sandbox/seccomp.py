"""System calls that are refused in sandboxes: a filter for the kernel, and the same as a profile for Docker.

Refused is what administers a machine, what widens the kernel's surface without a use in a shell (io_uring, userfaultfd,
bpf, key rings), new namespaces, looking into other processes, and sockets that no network namespace contains, such as
those of virtual machines (AF_VSOCK). So is what makes the kernel send SIGCONT to a process later: what is frozen before
scripts grade must stay so. Everything else is left to capabilities and namespaces.
"""

import errno
import json
import platform
import struct
from typing import Any

from agentrl_jax.errors import ConfigError

_X86_64, _AARCH64 = "x86_64", "aarch64"
# AUDIT_ARCH_*: what the kernel calls them in a filter's data.
_ARCHITECTURES = {_X86_64: 0xC000003E, _AARCH64: 0xC00000B7}
_X32_BIT = 0x4000_0000

# Numbers on x86_64 and on aarch64; None where there is no such call. Those above 423 are the same everywhere.
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "memfd_secret": (447, 447),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "lookup_dcookie": (212, 18),
    "vhangup": (153, 58),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "ustat": (136, None),
    "sysfs": (139, None),
}
# Programs find other ways where these are unknown: timers, and messages of queues, that send any signal.
_UNKNOWN: dict[str, tuple[int, int]] = {"clone3": (435, 435), "timer_create": (222, 107), "mq_notify": (244, 184)}
_CLONE, _SOCKET, _SOCKETPAIR, _IOCTL, _FCNTL = (56, 220), (41, 198), (53, 199), (16, 29), (72, 25)
# CLONE_NEW*: namespaces of mounts, cgroups, host names, IPC, users, processes and networks.
NAMESPACE_FLAGS = 0x0002_0000 | 0x0200_0000 | 0x0400_0000 | 0x0800_0000 | 0x1000_0000 | 0x2000_0000 | 0x4000_0000
# AF_UNIX, AF_INET, AF_INET6, AF_NETLINK.
_FAMILIES = (1, 2, 10, 16)
# TIOCSTI and TIOCLINUX: typing into somebody else's terminal.
_TERMINAL_REQUESTS = (0x5412, 0x541C)
# F_SETSIG: which signal tells of a file.
_SIGNAL_COMMANDS = (10,)

_LOAD, _EQUAL, _GREATER_EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF_0000, 0x0005_0000
# Offsets into struct seccomp_data: the lower halves of the first two arguments.
_NUMBER, _ARCHITECTURE, _ARGUMENT_0, _ARGUMENT_1 = 0, 4, 16, 24


def filter_program(machine: str | None = None) -> bytes:
    """The filter as an array of struct sock_filter. Raises ConfigError on a machine whose calls are not known here."""
    machine = platform.machine() if machine is None else machine
    if machine not in _ARCHITECTURES:
        raise ConfigError(f"sandboxes of bubblewrap know the system calls of x86_64 and aarch64, not of {machine}")
    column = 0 if machine == _X86_64 else 1
    refuse = _answer(errno.EPERM)
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, _ARCHITECTURES[machine]),
        _answer(errno.ENOSYS),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine == _X86_64:
        program += [(_GREATER_EQUAL, 0, 1, _X32_BIT), _answer(errno.ENOSYS)]
    for numbers in _REFUSED.values():
        number = numbers[column]
        if number is not None:
            program += [(_EQUAL, 0, 1, number), refuse]
    # Without clone3 the C library falls back to clone, whose flags can be seen.
    for known in _UNKNOWN.values():
        program += [(_EQUAL, 0, 1, known[column]), _answer(errno.ENOSYS)]
    program += _when(_CLONE[column], [(_LOAD, 0, 0, _ARGUMENT_0), (_ANY_BIT, 0, 1, NAMESPACE_FLAGS), refuse])
    families = [(_EQUAL, len(_FAMILIES) - i, 0, family) for i, family in enumerate(_FAMILIES)]
    for call in (_SOCKET, _SOCKETPAIR):
        program += _when(call[column], [(_LOAD, 0, 0, _ARGUMENT_0), *families, _answer(errno.EAFNOSUPPORT)])
    for call, requests in ((_IOCTL, _TERMINAL_REQUESTS), (_FCNTL, _SIGNAL_COMMANDS)):
        checks = [step for request in requests for step in ((_EQUAL, 0, 1, request), refuse)]
        program += _when(call[column], [(_LOAD, 0, 0, _ARGUMENT_1), *checks])
    program.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *step) for step in program)


Step = tuple[int, int, int, int]


def _answer(number: int) -> Step:
    return (_RETURN, 0, 0, _ERRNO | number)


def _when(number: int, steps: list[Step]) -> list[Step]:
    """Steps for one call alone; whatever they let through is allowed."""
    return [(_EQUAL, 0, len(steps) + 1, number), *steps, (_RETURN, 0, 0, _ALLOW)]


def docker_profile() -> str:
    """The same rules in the form of Docker's option `seccomp=`."""
    rules: list[dict[str, Any]] = [
        _rule([*_REFUSED], errno.EPERM),
        _rule([*_UNKNOWN], errno.ENOSYS),
        *(
            _rule(["clone"], errno.EPERM, index=0, value=1 << bit, mask=1 << bit)
            for bit in range(32)
            if NAMESPACE_FLAGS >> bit & 1
        ),
        *(_rule(["ioctl"], errno.EPERM, index=1, value=request) for request in _TERMINAL_REQUESTS),
        *(_rule(["fcntl"], errno.EPERM, index=1, value=command) for command in _SIGNAL_COMMANDS),
        *(_rule(["socket", "socketpair"], errno.EAFNOSUPPORT, index=0, value=family) for family in _other_families()),
    ]
    return json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules})


def _other_families() -> list[int]:
    """Address families beside those allowed; the kernel has fewer than 64."""
    return [family for family in range(64) if family not in _FAMILIES]


def _rule(
    names: list[str], number: int, *, index: int | None = None, value: int = 0, mask: int | None = None
) -> dict[str, Any]:
    rule: dict[str, Any] = {"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": number}
    if index is not None:
        argument = {"index": index, "value": value, "op": "SCMP_CMP_EQ"}
        if mask is not None:
            argument |= {"value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}
        rule["args"] = [argument]
    return rule
