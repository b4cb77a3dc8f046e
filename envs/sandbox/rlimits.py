"""Limits where there are no control groups: per process, and so no more than a makeshift."""

import resource

from envs.sandbox.protocol import Limits


def limit_process(limits: Limits) -> None:
    """Of this process and each one below it: its address space. Of this user's sandboxes together: their processes,
    unless the user is root, whom the kernel does not limit."""
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
    _, most = resource.getrlimit(resource.RLIMIT_NPROC)
    wanted = limits.num_processes * 64
    if most == resource.RLIM_INFINITY or wanted < most:
        resource.setrlimit(resource.RLIMIT_NPROC, (wanted, wanted))
