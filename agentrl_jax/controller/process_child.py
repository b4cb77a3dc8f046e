"""The life of one session process, from its fork to its end: it serves one env to one controller. No trio."""

import faulthandler
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from agentrl_jax.controller.guarded_env import EnvFactory, GuardedEnv
from agentrl_jax.controller.process_frames import Reply, Request, pack, receive
from agentrl_jax.errors import EnvError, EnvTimeout


def run_child(make_env: EnvFactory, frames: socket.socket, output: int, forget: Callable[[], None]) -> NoReturn:
    """Serve one env over `frames`, with all that it prints going to the descriptor `output`; never returns.

    Called right after the fork. forget: closes what this process inherited and does not own.
    """
    code = 1
    try:
        _capture(output)
        forget()
        _settle()
        _serve(make_env, frames)
        code = 0
    finally:
        if code:
            traceback.print_exc()
        # Not sys.exit: the handlers of the template's atexit, and its stack, are not this process's to unwind.
        _flush()
        os._exit(code)


def _capture(output: int) -> None:
    for target in (1, 2):
        os.dup2(output, target)


def _settle() -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    faulthandler.enable()  # a crash in foreign code then says where


def _serve(make_env: EnvFactory, frames: socket.socket) -> None:
    env: GuardedEnv | None = None
    while (request := receive(frames, Request)) is not None:
        is_last = request.call == "close"
        try:
            if request.call == "start":
                assert request.task is not None
                env = GuardedEnv(make_env, request.task)
            assert env is not None
            answer = pack(_carry_out(env, request))
        except EnvError as error:
            answer = pack(Reply(error=str(error), is_timeout=isinstance(error, EnvTimeout)))
        if is_last:
            _flush()
        frames.sendall(answer)
        if is_last:
            return


def _carry_out(env: GuardedEnv, request: Request) -> Reply:
    if request.call == "start":
        env.make()
        return Reply(messages=env.reset())
    if request.call == "step":
        assert request.action is not None
        return Reply(result=env.step(request.action))
    env.close()
    return Reply()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # the env closed it
            stream.flush()
