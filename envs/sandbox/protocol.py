"""What a sandbox is to an env, whichever driver makes it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from agentrl_jax.errors import ConfigError, EnvError

HOME = "/root"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TRUSTED_PATH = "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin"
"""Of scripts that grade: what the agent has added comes last."""

KEPT_OUTPUT_BYTES = 1 << 16
"""What is kept of the output of one command."""

MAX_OUTPUT_BYTES = 1 << 26
"""A command that writes more than that is stopped."""

MAX_ARGUMENT_BYTES = 100_000
"""Of one argument of a program: below Linux's own limit of 128 KiB."""

CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "SYS_CHROOT")
"""What root may do in a sandbox, beside what everybody may."""


class SandboxGone(Exception):
    """The sandbox no longer works, because of what was done in it: nothing can be run in it any more."""


class SandboxLost(EnvError):
    """What runs the sandboxes has failed; what was done in them is not to blame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one sandbox. cpus: processors' worth of time. disk_bytes: of what is written; bubblewrap only, whose files are
    kept in memory and count there too."""

    memory_bytes: int = 1 << 30
    cpus: float = 2.0
    num_processes: int = 256
    disk_bytes: int = 1 << 29

    def __post_init__(self) -> None:
        for name in ("memory_bytes", "num_processes", "disk_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"a sandbox's {name} must be >= 1, got {getattr(self, name)}")
        if not 0.01 <= self.cpus <= 1024:
            raise ConfigError(f"a sandbox's cpus must be from 0.01 to 1024, got {self.cpus}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What became of one command.

    output: standard output and error together, its first KEPT_OUTPUT_BYTES. num_bytes: of all of it.
    exit_code: 128 + n after signal n; None if the command was stopped.
    stopped: why it was: its time was up, or it wrote more than MAX_OUTPUT_BYTES.
    """

    output: bytes
    num_bytes: int
    exit_code: int | None
    stopped: str | None = None

    @property
    def text(self) -> str:
        return self.output.decode("utf-8", "replace")


class Sandbox(Protocol):
    """One machine with a root user, a file system and no network. Used by one thread at a time.

    Methods raise SandboxGone for a machine that was broken from within, and SandboxLost if the driver has failed.
    """

    def run(self, command: str, *, timeout_s: float) -> Ran:
        """Run `command` in the machine's one interactive shell, which keeps its directory, variables and jobs. A shell
        that has ended, or cannot be brought back from a command, is followed by a new one."""
        ...

    def execute(
        self, argv: Sequence[str], *, timeout_s: float, is_trusted: bool = False, keeps_errors: bool = True
    ) -> Ran:
        """Run a program by itself, as root in HOME with an environment of its own, and end it when its time is up.

        keeps_errors: whether what it writes to standard error belongs to the output.
        is_trusted: it grades what was done. The programs of the system are put back as they were at `seal` first, and
        precede those added since.
        """
        ...

    def seal(self) -> None:
        """The machine is as the agent shall find it: remember its system's programs."""
        ...

    def freeze(self) -> None:
        """Stop every process for good, without ending it: nothing the agent has started runs on. `execute` works.
        Raises SandboxGone if something in the machine prevents it."""
        ...

    def close(self) -> None:
        """End the machine and everything in it. May be called again."""
        ...


class Driver(Protocol):
    """Makes sandboxes. Safe to use from several threads."""

    @property
    def name(self) -> str: ...

    def open(self, image: str, limits: Limits) -> Sandbox:
        """A new machine. image: which of the driver's file systems. Raises SandboxLost."""
        ...

    def close(self) -> None:
        """End all of its machines. May be called again."""
        ...


def clean_environment(*, is_trusted: bool = False) -> dict[str, str]:
    """What a program finds set that is executed by itself."""
    return {
        "HOME": HOME,
        "PATH": TRUSTED_PATH if is_trusted else PATH,
        "USER": "root",
        "LOGNAME": "root",
        "SHELL": "/bin/bash",
    }
