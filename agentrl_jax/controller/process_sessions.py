"""Sessions of synchronous envs in processes of their own: an env that hangs is killed, one that crashes hurts nobody.

A call that is cancelled, by its deadline above all, kills the session's process and everything it started at once;
`close` then only waits until they are gone.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from agentrl_jax.controller.cancellation import unwrapped_errors
from agentrl_jax.controller.process_client import GONE_DEADLINE_S, Child, Template
from agentrl_jax.controller.process_frames import Reply, Request
from agentrl_jax.controller.sessions import SessionFactory, WithoutQueue
from agentrl_jax.env import Action, EnvSource, Message, StepResult
from agentrl_jax.errors import ConfigError, EnvError, EnvTimeout
from agentrl_jax.types import Task


class ProcessSession(WithoutQueue):
    """One env in one process. Every call that does not end well, cancelled ones included, ends the process."""

    def __init__(self, template: Template, task: Task) -> None:
        self._template, self._task = template, task
        self._child: Child | None = None

    async def start(self) -> tuple[Message, ...]:
        """Fork the process, make and reset the env. Raises EnvError for whatever the env does, dying included."""
        try:
            self._child = child = Child()
        except OSError as error:
            raise EnvError(f"{self._task.key}: no process for a session: {error} (see ulimit -n)") from error
        await self._template.launch(child)
        return (await self._call(child, "reset", Request(call="start", task=self._task))).messages

    async def interact(self, action: Action) -> StepResult:
        """Step the env. Raises EnvError for whatever the env does, dying included."""
        if self._child is None:
            raise EnvError(f"{self._task.key}: interact came before start")
        result = (await self._call(self._child, "step", Request(call="step", action=action))).result
        assert result is not None
        return result

    async def close(self) -> None:
        """Close the env if its process is still sound, and end the process. Raises EnvError if closing fails."""
        child, self._child = self._child, None
        if child is None:
            return
        try:
            if child.is_sound:
                await self._call(child, "close", Request(call="close"))
        finally:
            child.kill()
            with trio.move_on_after(GONE_DEADLINE_S, shield=True):
                await child.wait_gone()
            child.release()

    async def _call(self, child: Child, what: str, request: Request) -> Reply:
        child.is_sound = False
        try:
            reply = await child.exchange(request)
            child.is_sound = reply is not None
        finally:
            if not child.is_sound:
                child.kill()
        if reply is None:
            raise EnvError(f"{self._task.key}: {what} got no answer: {await child.wait_gone()}")
        if reply.error is not None:
            raise (EnvTimeout if reply.is_timeout else EnvError)(reply.error)
        return reply


def check_platform() -> None:
    """Raise ConfigError if this system cannot run sessions in processes."""
    if not (hasattr(os, "fork") and hasattr(os, "waitid")):
        raise ConfigError("sessions in processes need Linux, or macOS with Python 3.13: use --session-kind=thread")


@asynccontextmanager
async def open_process_sessions(source: EnvSource) -> AsyncIterator[SessionFactory]:
    """Sessions of `source`'s envs in processes of their own. None of these outlives the block.

    Raises ConfigError if the system cannot do that or the source does not load.
    """
    check_platform()
    with unwrapped_errors():
        async with trio.open_nursery() as nursery:
            template = Template(source, nursery)
            await template.start()
            yield lambda task: ProcessSession(template, task)
            nursery.cancel_scope.cancel()
