"""What a worker serves: the protocol, and its implementation for an env family."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import count
from statistics import fmean
from typing import Any, Protocol

from agentrl_jax.controller.hosted_sessions import SessionHost
from agentrl_jax.env import EnvFamily, tools_for
from agentrl_jax.errors import EnvError, SessionExpired, UnknownSession
from agentrl_jax.types import Split, Task
from envs.worker.wire import (
    RUNNING,
    TASK_ERROR,
    TASK_LIMIT,
    NoSuchSession,
    Output,
    is_finite,
    message_to_json,
    read_turn,
)

_log = logging.getLogger(__name__)

Index = int | str
CUSTOM_INDEX = -1
"""The index of a task that the caller describes itself."""


class ServedSession(Protocol):
    """One session, used by one caller at a time."""

    async def start(self) -> Output:
        """Called once. What fails is an output that says so."""
        ...

    async def interact(self, messages: object) -> Output:
        """Carry out an assistant turn. Raises BadTurn, before anything is done, and NoSuchSession."""
        ...

    async def close(self) -> None:
        """Release everything, whatever the session is doing; a call that is under way then fails or returns soon."""
        ...


class Service(Protocol):
    """One task of the protocol: a name, and sessions by index."""

    @property
    def name(self) -> str: ...

    @property
    def indices(self) -> Sequence[Index]: ...

    @property
    def concurrency(self) -> int: ...

    def open(self, session_id: int, index: Index, custom_task: Any) -> ServedSession:
        """A session that does nothing yet. custom_task: what it plays where `index` is CUSTOM_INDEX."""
        ...

    async def overall(self, results: Sequence[Mapping[str, Any]]) -> Any:
        """A summary of finished sessions (AgentRL's `TaskOutput`s), as JSON. Raises EnvError if that fails."""
        ...


class EnvService:
    """Serves a family's split. Turns are limited here, since stock clients leave that to the worker."""

    def __init__(
        self, family: EnvFamily, split: Split, host: SessionHost, *, name: str, concurrency: int, max_turns: int
    ) -> None:
        self.name, self.concurrency = name, concurrency
        self.indices: Sequence[Index] = range(family.num_tasks(split))
        self.host, self.max_turns = host, max_turns
        self._family, self._split = family, split
        self._numbers = count()

    def open(self, session_id: int, index: Index, custom_task: Any) -> ServedSession:
        """See `Service`. An index that the split does not have is a task error, as in AgentRL's own worker."""
        key = f"{session_id}-{next(self._numbers)}"
        return _EnvSession(self, key, index)

    async def overall(self, results: Sequence[Mapping[str, Any]]) -> Any:
        """Counts by status, and the mean reward and metrics over the sessions that have them."""
        figures: dict[str, list[float]] = {}
        for result in results:
            values = result.get("result")
            for name, value in (values if isinstance(values, Mapping) else {}).items():
                if is_finite(value):
                    figures.setdefault(name, []).append(value)
        statuses = Counter(str(result.get("status")) for result in results)
        return {"total": len(results), "status": dict(statuses), "mean": {k: fmean(v) for k, v in figures.items()}}

    def tools(self, task: Task) -> tuple[Any, ...]:
        """In OpenAI's form."""
        return tuple(tool.to_json() for tool in tools_for(self._family, task))

    def task(self, index: Index) -> Task:
        """Raises EnvError for an index that the split does not have."""
        if not isinstance(index, int) or not 0 <= index < len(self.indices):
            raise EnvError(f"{self.name} has tasks 0 to {len(self.indices) - 1}, asked for {index!r}")
        return self._family.task(self._split, index)


class _EnvSession:
    def __init__(self, service: EnvService, key: str, index: Index) -> None:
        self._service, self._key, self._index = service, key, index
        self._num_turns = 0
        self._reward = 0.0
        self._metrics: dict[str, float] = {}
        self._tools: tuple[Any, ...] | None = None

    async def start(self) -> Output:
        try:
            task = self._service.task(self._index)
            self._tools = self._service.tools(task)
            messages = await self._service.host.start(self._key, task)
        except EnvError as error:
            return self._failed(error)
        return Output(messages=tuple(map(message_to_json, messages)), tools=self._tools)

    async def interact(self, messages: object) -> Output:
        turn = read_turn(messages)
        self._num_turns += 1
        try:
            result = await self._service.host.interact(self._key, self._num_turns, turn.action)
        except (SessionExpired, UnknownSession) as error:
            raise NoSuchSession(str(error)) from error
        except EnvError as error:
            return self._failed(error)
        self._reward += result.reward
        self._metrics |= result.metrics
        status = RUNNING if result.end is None else result.end.agentrl_status
        if result.end is None and self._num_turns >= self._service.max_turns:
            status = TASK_LIMIT
        return Output(
            messages=turn.answer(result),
            tools=self._tools,
            status=status,
            # Some callers add rewards up and some take the last: all of it comes with the end.
            reward=0 if status == RUNNING else self._reward,
            metric=self._metrics,
            result={"reward": self._reward, **self._metrics},
        )

    async def close(self) -> None:
        try:
            await self._service.host.close(self._key)
        except EnvError as error:
            _log.warning("session %s: %s", self._key, error)

    def _failed(self, error: EnvError) -> Output:
        _log.error("session %s: %s", self._key, error)
        return Output(tools=self._tools, status=TASK_ERROR, result=str(error))
