"""A keeper process, from its owner's side: starting it, asking it, and seeing that it has died."""

import json
import logging
import os
import socket
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentrl_jax.errors import ConfigError
from envs.sandbox import frames
from envs.sandbox.keeper import COMMAND
from envs.sandbox.protocol import Limits, SandboxGone, SandboxLost

# What programs are loaded by; a keeper has no need to know the owner's keys.
_ENVIRONMENT = ("LD_LIBRARY_PATH",)
logger = logging.getLogger(__name__)


class KeeperLink:
    """A keeper of its own. Safe to use from several threads. bwrap: of bubblewrap. root: folder of a whole file system,
    or empty for this machine's own programs. Raises ConfigError where the kernel does not let it work."""

    def __init__(self, bwrap: str, root: str) -> None:
        self._lock = threading.Lock()
        self._is_broken = False
        self._end, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-E", "-c", COMMAND, json.dumps(sys.path), str(theirs.fileno()), bwrap, root],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            )
        try:
            self.has_groups = self._begin()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Without it, its machines are gone too."""
        return not self._is_broken and self._process.poll() is None

    def close(self) -> None:
        """End it, with all of its machines. May be called again."""
        self._end.close()
        self._process.wait()

    def used_s(self) -> float:
        """Processor time of the keeper, and of what it has waited for: sandboxes that are closed."""
        ticks = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[11:15]
        return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")

    def ask(self, request: dict[str, Any], fds: tuple[int, ...] = ()) -> dict[str, Any]:
        """The keeper's answer. Raises SandboxGone and SandboxLost."""
        try:
            with self._lock:
                frames.send(self._end, request, fds)
                received = frames.receive(self._end)
        except OSError as error:
            self._is_broken = True
            raise SandboxLost(f"the keeper of sandboxes is gone: {error}") from error
        if received is None:
            self._is_broken = True
            raise SandboxLost("the keeper of sandboxes is gone")
        answer: dict[str, Any] = received[0]
        if "gone" in answer:
            raise SandboxGone(answer["gone"])
        if "failed" in answer:
            raise SandboxLost(f"sandboxes of bubblewrap: {answer['failed']}")
        return answer

    def open(self, limits: Limits) -> int:
        """The number of a new machine."""
        return int(self.ask({"do": "open", "limits": asdict(limits)})["machine"])

    def _begin(self) -> bool:
        """Whether there are control groups; says so if not."""
        received = frames.receive(self._end)
        if received is None:
            raise ConfigError("sandboxes of bubblewrap do not work here: their keeper did not start")
        answer = received[0]
        if "failed" not in answer:
            try:
                self.ask({"do": "close", "machine": self.open(Limits())})
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
