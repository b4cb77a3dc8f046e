"""Envs that do what no env should: hang, crash, scribble, leave processes behind. For tests of session processes."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agentrl_jax.env import Action, Env, Message, StepResult
from agentrl_jax.types import EpisodeEnd, Task

SLEEP = [sys.executable, "-c", "import signal; signal.pause()"]

_LISTING = (
    "import os, sys; paths = ['/proc/self/fd/' + n for n in sorted(os.listdir('/proc/self/fd'))]; "
    "found = [os.readlink(p) for p in paths if os.path.exists(p)]; "
    "open(sys.argv[1], 'w').write('\\n'.join(found))"
)


def _hang() -> None:
    threading.Event().wait()


def _ignore_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _hang()


def _scribble() -> None:
    print("noise " * 50_000)
    print("last words", file=sys.stderr)


def _exit_after_printing() -> None:
    print("going down", flush=True)
    os._exit(3)


def _close_descriptors() -> None:
    os.closerange(3, 256)
    _hang()


def _exit_politely() -> None:
    sys.exit(4)


def _raise() -> None:
    raise ValueError("out of order")


def _spin() -> None:
    while True:
        time.monotonic()


DEEDS: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "hang": _hang,
    "ignore_sigterm": _ignore_sigterm,
    "spin": _spin,
    "scribble": _scribble,
    "exit": _exit_after_printing,
    "sys_exit": _exit_politely,
    "segfault": lambda: ctypes.string_at(0),
    "close_descriptors": _close_descriptors,
    "raise": _raise,
}


@dataclass(kw_only=True)
class RogueEnv:
    """Implements `env.Env`: `num_steps` good steps, but for a deed in "reset", "close" or the step named by number.

    announce: a FIFO; before its deed the env writes its process id there, and those of two children if it has any.
      A file, for the deed "list_descriptors": of the descriptors that a process it starts inherits.
    with_children: it has started two processes by then, one in its group and one that left it.
    """

    task: Task
    deed: str = "nothing"
    at: str = "1"
    num_steps: int = 2
    announce: str | None = None
    with_children: bool = False
    answer: Any = None
    num_taken: int = 0

    def reset(self) -> tuple[Message, ...]:
        self._act("reset")
        return (Message(role="user", content=f"Do {self.task.key}."),)

    def step(self, action: Action) -> StepResult:
        self.num_taken += 1
        self._act(str(self.num_taken))
        if self.answer is not None:
            return StepResult(messages=(Message(role="tool", content=self.answer),))
        calls = "; ".join(f"{call.name} {dict(call.arguments)!r}" for call in action.calls)
        is_last = self.num_taken == self.num_steps
        return StepResult(
            messages=(Message(role="tool", content=f"{self.num_taken}: {calls}"),),
            reward=float(is_last),
            end=EpisodeEnd.COMPLETED if is_last else None,
        )

    def close(self) -> None:
        self._act("close")

    def _act(self, where: str) -> None:
        if where != self.at:
            return
        pids = [os.getpid()]
        if self.with_children:
            pids += [subprocess.Popen(SLEEP, start_new_session=away).pid for away in (False, True)]
        if self.deed == "list_descriptors":
            # close_fds=False: as `os.system` and careless libraries do.
            listing = [sys.executable, "-c", _LISTING, str(self.announce)]
            subprocess.run(listing, check=True, close_fds=False)
            return
        if self.announce is not None:
            with open(self.announce, "w", encoding="ascii") as fifo:
                print(*pids, file=fifo)
        DEEDS[self.deed]()


def rogue_envs(**settings: Any) -> Callable[[Task], Env]:
    """The target of an `EnvSource`; `settings` are RogueEnv's."""
    return lambda task: RogueEnv(task=task, **settings)
