"""Sandboxes of bubblewrap: no engine, a few milliseconds to start one."""

import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentrl_jax.errors import ConfigError
from envs.sandbox import base_root, frames
from envs.sandbox.keeper import COMMAND
from envs.sandbox.protocol import (
    HOME,
    MAX_ARGUMENT_BYTES,
    Limits,
    Ran,
    SandboxGone,
    SandboxLost,
    clean_environment,
)
from envs.sandbox.shell import ARGV, OUT_OF_TIME, TOO_MUCH, Shell
from envs.sandbox.streams import Kept, PipeStream

_INSTALL = "tools/install_bubblewrap.sh, or install the package bubblewrap"
_ENDED_S = 5.0
logger = logging.getLogger(__name__)


class BubblewrapDriver:
    """Implements `envs.sandbox.protocol.Driver`, with one keeper for all sandboxes.

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
        self._lock = threading.Lock()
        self._end, theirs = socket.socketpair()
        with theirs:
            arguments = [json.dumps(sys.path), str(theirs.fileno()), bwrap, "" if root is None else str(root.resolve())]
            self._keeper = subprocess.Popen(
                [sys.executable, "-E", "-c", COMMAND, *arguments],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
            )
        try:
            self.has_groups = self._begin()
        except BaseException:
            self.close()
            raise

    def open(self, image: str, limits: Limits) -> "BubblewrapSandbox":
        """All images are the one file system that the driver was made with."""
        answer = self.ask({"do": "open", "limits": asdict(limits)})
        return BubblewrapSandbox(self, answer["machine"])

    def close(self) -> None:
        self._end.close()
        self._keeper.wait()

    def used_s(self) -> float:
        """Processor time of the keeper, and of what it has waited for: sandboxes that are closed."""
        ticks = Path(f"/proc/{self._keeper.pid}/stat").read_text().rpartition(")")[2].split()[11:15]
        return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")

    def ask(self, request: dict[str, Any], fds: tuple[int, ...] = ()) -> dict[str, Any]:
        """The keeper's answer. Raises SandboxGone and SandboxLost."""
        try:
            with self._lock:
                frames.send(self._end, request, fds)
                received = frames.receive(self._end)
        except OSError as error:
            raise SandboxLost(f"the keeper of sandboxes is gone: {error}") from error
        if received is None:
            raise SandboxLost("the keeper of sandboxes is gone")
        answer: dict[str, Any] = received[0]
        if "gone" in answer:
            raise SandboxGone(answer["gone"])
        if "failed" in answer:
            raise SandboxLost(f"sandboxes of bubblewrap: {answer['failed']}")
        return answer

    def _begin(self) -> bool:
        """Whether there are control groups; says so if not."""
        received = frames.receive(self._end)
        if received is None:
            raise ConfigError("sandboxes of bubblewrap do not work here: their keeper did not start")
        answer = received[0]
        if "failed" not in answer:
            try:
                self.open("", Limits()).close()
            except SandboxLost as error:
                answer = {"failed": str(error)}
        if "failed" in answer:
            raise ConfigError(f"sandboxes of bubblewrap do not work here: {answer['failed']}")
        if not answer["has_groups"]:
            logger.warning(
                "sandboxes: no control groups can be made here, so memory is limited for each process alone, "
                "processes hardly, and processors not at all"
            )
        return bool(answer["has_groups"])


class BubblewrapSandbox:
    """Implements `envs.sandbox.protocol.Sandbox`."""

    def __init__(self, driver: BubblewrapDriver, machine: int) -> None:
        self._driver = driver
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
        deadline = time.monotonic() + timeout_s
        kept = Kept()
        stopped = None
        try:
            while data := stream.read(deadline):
                kept.add(data)
                if kept.is_flood:
                    break
            if data is None or kept.is_flood:
                stopped = TOO_MUCH if kept.is_flood else OUT_OF_TIME
                self._signal(process, is_kill=True)
            code = None if stopped else stream.exit_code()
        finally:
            stream.close()
        return Ran(output=bytes(kept.start), num_bytes=kept.num_bytes, exit_code=code, stopped=stopped)

    def put(self, files: Mapping[str, bytes], *, mode: int = 0o644) -> None:
        for path, content in files.items():
            fd = os.memfd_create("content")
            try:
                view = memoryview(content)
                while view:
                    view = view[os.write(fd, view) :]
                os.lseek(fd, 0, os.SEEK_SET)
                self._driver.ask({"do": "put", "machine": self._machine, "path": path, "mode": mode}, (fd,))
            finally:
                os.close(fd)

    def seal(self) -> None:
        self._driver.ask({"do": "seal", "machine": self._machine})

    def freeze(self) -> None:
        self._driver.ask({"do": "freeze", "machine": self._machine})

    def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        if self._shell is not None:
            self._shell.close()
        self._driver.ask({"do": "close", "machine": self._machine})

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
            return self._driver.ask(request, theirs)["process"], stream
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
        self._driver.ask({"do": "signal", "process": process, "is_kill": is_kill})
