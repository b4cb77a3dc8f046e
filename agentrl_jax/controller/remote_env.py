"""Tasks of remote workers as a family to train on: `--tasks remote:NAME`.

The training process is their controller: it listens for workers, which register as with any other. What a family needs
to know before training (indices, tools) is asked from the first worker that serves it.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import NoReturn

import trio

from agentrl_jax.controller.cancellation import unwrapped_errors
from agentrl_jax.controller.monitor import LoopMonitor
from agentrl_jax.controller.remote_config import REMOTE_PREFIX, RemoteConfig, RemoteTasks
from agentrl_jax.controller.remote_controller import RemoteController, open_remote_controller
from agentrl_jax.controller.remote_messages import assistant_turn, first_messages, step_result, tools_of
from agentrl_jax.controller.remote_server import ControllerServer
from agentrl_jax.controller.remote_sessions import RemoteRecord
from agentrl_jax.controller.remote_workers import RemoteWorker
from agentrl_jax.controller.sessions import SessionFactory
from agentrl_jax.controller.wire_types import NO_INDEX, SampleIndex, WireProblem
from agentrl_jax.controller.workers import Entry
from agentrl_jax.env import Action, Message, StepResult, Tool
from agentrl_jax.errors import ConfigError, EnvError, EnvTimeout
from agentrl_jax.types import Split, Task

Say = Callable[[str], None]

_CONFIG = RemoteConfig(resume_sessions=False, resume_s=0.0, queue_s=86_400.0)
"""Episodes own their deadlines, and nobody goes on with the sessions of a process that has ended."""


class RemoteSession:
    """Implements `Session` for one task of a remote worker. tools: what it must offer, so that the prompt is right."""

    def __init__(self, controller: RemoteController, name: str, index: SampleIndex, tools: tuple[Tool, ...]) -> None:
        self._controller, self._name, self._index, self._tools = controller, name, index, tools
        self._place: Entry[RemoteWorker] | None = None
        self._record: RemoteRecord | None = None
        self._num_turns = 0

    async def reserve(self) -> None:
        self._place = await self._controller.reserve(self._name)

    async def start(self) -> tuple[Message, ...]:
        place, self._place = self._place, None
        try:
            started = await self._controller.start(self._name, self._index, place=place, expires=False)
        except WireProblem as problem:
            raise _as_env_error(problem) from problem
        self._record, answer = started
        if tools_of(answer) != self._tools:
            raise EnvError(f"{self._name} {self._index}: its tools are not those of the task's first session")
        return first_messages(answer)

    async def interact(self, action: Action) -> StepResult:
        if self._record is None:
            raise EnvError(f"{self._name} {self._index}: interact came before start")
        messages, call_ids = assistant_turn(action, self._num_turns)
        self._num_turns += 1
        try:
            answer = await self._controller.interact(self._record, messages)
        except WireProblem as problem:
            raise _as_env_error(problem) from problem
        return step_result(answer, call_ids)

    async def close(self) -> None:
        """Returns once the worker has been asked to end it; its place comes back when it has."""
        if self._place is not None:
            self._controller.release(self._place, self._name)
        record = self._record
        if record is None or record.is_over:
            await trio.lowlevel.checkpoint()
            return
        self._controller.book.cancel(record)
        await record.cancel_sent.wait()


def _as_env_error(problem: WireProblem) -> EnvError:
    return (EnvTimeout if problem.reason == "env_timeout" else EnvError)(str(problem))


class TrainingController:
    """The controller of a training process, opened by whichever family comes first, and listening while it is open.

    Raises ConfigError for a file of a token that cannot be used.
    """

    def __init__(self, config: RemoteTasks, say: Say) -> None:
        self.config, self._say = config, say
        self._listen = config.listen.with_token()
        self._controller: RemoteController | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[RemoteController]:
        """Blocks may be nested, and follow each other on the same port. Raises ConfigError if it cannot listen."""
        if self._controller is not None:
            yield self._controller
            return
        with unwrapped_errors():
            async with open_remote_controller(_CONFIG) as controller, trio.open_nursery() as nursery:
                await self._serve(controller, nursery)
                self._controller = controller
                try:
                    yield controller
                finally:
                    self._controller = None
                    nursery.cancel_scope.cancel()

    async def _serve(self, controller: RemoteController, nursery: trio.Nursery) -> None:
        monitor = LoopMonitor()
        await nursery.start(monitor.run)
        port = await nursery.start(ControllerServer(controller, self._listen, monitor).serve)
        host = self._listen.host
        self._say(f"env workers may register at http://{host}:{port}/api or grpc://{host}:{port}")
        self._listen = replace(self._listen, port=port)


class RemoteFamily:
    """Implements `EnvFamily` for what workers serve as `task`. indices: of training and of evaluation.

    It has no envs here and no expert: policies come from --model.
    """

    def __init__(
        self,
        controller: TrainingController,
        task: str,
        *,
        train: Sequence[SampleIndex],
        held_out: Sequence[SampleIndex],
        tools: tuple[Tool, ...],
    ) -> None:
        self._controller, self._task = controller, task
        self._indices: dict[Split, Sequence[SampleIndex]] = {"train": train, "eval": held_out}
        self.name, self.tools = REMOTE_PREFIX + task, tools
        self.max_turns = controller.config.max_turns

    def num_tasks(self, split: Split) -> int:
        return len(self._indices[split])

    def task(self, split: Split, index: int) -> Task:
        return Task(env=self.name, split=split, index=index, seed=0)

    def make(self, task: Task) -> NoReturn:
        raise ConfigError(f"{self.name} is served by remote workers: it has no envs in this process")

    def demonstrate(self, task: Task, rng: Random, *, noise: float) -> NoReturn:
        raise ConfigError(f"{self.name} has no scripted expert: leave the warm-up out and start from --model")

    def vocabulary(self) -> tuple[str, ...]:
        return ()

    @asynccontextmanager
    async def open_sessions(self) -> AsyncIterator[SessionFactory]:
        """Sessions on its workers."""
        async with self._controller.open() as controller:
            yield lambda task: RemoteSession(controller, self._task, self._indices[task.split][task.index], self.tools)


async def discover(controller: TrainingController, tasks: Sequence[str]) -> tuple[RemoteFamily, ...]:
    """The families of `tasks`, each once a worker serves it: its indices, and the tools of its first session.

    Raises ConfigError if none comes in time, or a task cannot be started.
    """
    config = controller.config
    families = []
    async with controller.open() as opened:
        for task in tasks:
            with trio.move_on_after(config.wait_s) as scope:
                served = await opened.roster.wait_served(task)
                indices = [index for index in served.indices if index != NO_INDEX]
                train, held_out = config.split(task, indices)
                tools = await _first_tools(opened, task, train[0])
                families.append(RemoteFamily(controller, task, train=train, held_out=held_out, tools=tools))
            if scope.cancelled_caught:
                raise ConfigError(f"no worker for {REMOTE_PREFIX}{task} within {config.wait_s} s (--remote.wait-s)")
    return tuple(families)


async def _first_tools(controller: RemoteController, task: str, index: SampleIndex) -> tuple[Tool, ...]:
    try:
        record, answer = await controller.start(task, index)
        controller.book.cancel(record)
        await record.cancel_sent.wait()
        first_messages(answer)
        return tools_of(answer)
    except EnvError as error:
        raise ConfigError(f"{REMOTE_PREFIX}{task} could not be started: {error}") from error
