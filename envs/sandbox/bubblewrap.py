"""Sandboxes of bubblewrap: no engine, a few milliseconds to start one."""

import logging
import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

from agentrl_jax.errors import ConfigError
from envs.sandbox import base_root, frames
from envs.sandbox.keeper_link import KeeperLink
from envs.sandbox.protocol import HOME, MAX_ARGUMENT_BYTES, Limits, Ran, SandboxGone, SandboxLost, clean_environment
from envs.sandbox.shell import ARGV, Shell
from envs.sandbox.streams import PipeStream, read_to_end

_INSTALL = "tools/install_bubblewrap.sh, or install the package bubblewrap"
logger = logging.getLogger(__name__)


class BubblewrapDriver:
    """Implements `envs.sandbox.protocol.Driver`, with one keeper for all sandboxes; one that has died, and with it its
    sandboxes, is followed by another.

    root: folder of a whole file system to start from, which is not written to; None: this machine's own programs.
    Raises ConfigError where there is no bubblewrap, or the kernel does not let it.
    """

    name = "bubblewrap"

    def __init__(self, root: Path | None = None) -> None:
        bwrap = shutil.which("bwrap")
        if bwrap is None:
            raise ConfigError(f"sandboxes need bubblewrap: {_INSTALL}")
        if root is None:
            base_root.check_host()
        elif not (root / "bin/bash").exists():
            raise ConfigError(f"--sandbox bubblewrap:{root}: expected a root file system with /bin/bash")
        self._bwrap, self._root = bwrap, "" if root is None else str(root.resolve())
        self._lock = threading.Lock()
        self._is_open = True
        self._keeper = KeeperLink(self._bwrap, self._root)

    @property
    def has_groups(self) -> bool:
        """Whether there are control groups, which limit what a sandbox uses."""
        return self._keeper.has_groups

    def open(self, image: str, limits: Limits) -> "BubblewrapSandbox":
        """All images are the one file system that the driver was made with."""
        keeper = self._living()
        return BubblewrapSandbox(keeper, keeper.open(limits))

    def close(self) -> None:
        with self._lock:
            self._is_open = False
            self._keeper.close()

    def used_s(self) -> float:
        """See `KeeperLink.used_s`."""
        return self._keeper.used_s()

    def _living(self) -> KeeperLink:
        with self._lock:
            if not self._is_open:
                raise SandboxLost("sandboxes of bubblewrap were ended")
            if not self._keeper.is_alive:
                logger.warning("sandboxes: their keeper has died, and all of them with it; it is started again")
                self._keeper.close()
                try:
                    self._keeper = KeeperLink(self._bwrap, self._root)
                except ConfigError as error:
                    raise SandboxLost(str(error)) from error
            return self._keeper


class BubblewrapSandbox:
    """Implements `envs.sandbox.protocol.Sandbox`."""

    def __init__(self, keeper: KeeperLink, machine: int) -> None:
        self._keeper = keeper
        self._machine = machine
        self._shell: Shell | None = None
        self._shell_process = 0
        self._is_open = True

    def run(self, command: str, *, timeout_s: float) -> Ran:
        if self._shell is None:
            self._shell = self._new_shell()
        ran = self._shell.run(command, timeout_s)
        if not self._shell.is_alive:
            self._shell.close()
            self._shell = None
            self._signal(self._shell_process, is_kill=True)
            # Says SandboxGone if the shell went with the machine.
            self._shell = self._new_shell()
        return ran

    def execute(
        self, argv: Sequence[str], *, timeout_s: float, is_trusted: bool = False, keeps_errors: bool = True
    ) -> Ran:
        if any(len(word.encode("utf-8", "replace")) > MAX_ARGUMENT_BYTES for word in argv):
            raise SandboxGone("an argument is too long for a program")
        process, stream = self._start(argv, is_trusted=is_trusted, keeps_errors=keeps_errors)
        stream.end_input()
        return read_to_end(stream, b"", timeout_s, lambda: self._signal(process, is_kill=True))

    def seal(self) -> None:
        self._keeper.ask({"do": "seal", "machine": self._machine})

    def freeze(self) -> None:
        self._keeper.ask({"do": "freeze", "machine": self._machine})

    def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        if self._shell is not None:
            self._shell.close()
        try:
            self._keeper.ask({"do": "close", "machine": self._machine})
        except SandboxLost:
            if self._keeper.is_alive:
                raise

    def _start(
        self, argv: Sequence[str], *, is_trusted: bool = False, keeps_errors: bool = True
    ) -> tuple[int, PipeStream]:
        stdin_read, stdin_write = os.pipe()
        output_read, output_write = os.pipe()
        ended_read, ended_write = os.pipe()
        theirs = (stdin_read, output_write, ended_write)
        request = {
            "do": "execute",
            "machine": self._machine,
            "argv": list(argv),
            "environment": clean_environment(is_trusted=is_trusted),
            "folder": HOME,
            "is_trusted": is_trusted,
            "keeps_errors": keeps_errors,
        }
        stream = PipeStream(stdin_write, output_read, ended_read)
        try:
            return self._keeper.ask(request, theirs)["process"], stream
        except BaseException:
            stream.close()
            raise
        finally:
            frames.close_all(theirs)

    def _new_shell(self) -> Shell:
        process, stream = self._start(ARGV)
        self._shell_process = process
        try:
            return Shell(stream, lambda: self._signal(process, is_kill=False))
        except BaseException:
            stream.close()
            raise

    def _signal(self, process: int, *, is_kill: bool) -> None:
        """Interrupt a program, or end it with all below it; nothing if it has ended."""
        self._keeper.ask({"do": "signal", "process": process, "is_kill": is_kill})
