"""A session of a hosted task: what AgentRL's `Session` offers a task, and the other end of it for the worker.

The task runs on an event loop or a thread of its own; the worker's side blocks a thread of the worker's. Outputs and
turns pass through queues, so that neither side knows how the other waits.
"""

import asyncio
import queue
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from types import ModuleType
from typing import Any

from envs.worker.wire import RUNNING, Output, dump, is_finite


class Session:
    """What a task sees of its session.

    history: messages and rewards, in order. loop: the event loop that the worker's tasks share.
    """

    def __init__(
        self, session_id: int, types: ModuleType, tools: Sequence[Any] | None, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.id, self.loop = session_id, loop
        self.history: list[Any] = []
        self.tools: Sequence[Any] | None = None
        self._types, self._task_tools = types, tools
        self._num_seen = 0
        self._sends_all = False
        self._outputs: queue.SimpleQueue[Output] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards the two fields below
        self._turn: Future[Any] | None = None
        self._is_cancelled = False
        self._has_acted = False
        self.ended = threading.Event()

    def inject(self, item: Any) -> None:
        """Add messages or rewards to the history; lists are taken apart. Raises ValueError for anything else."""
        if not item:
            return
        if isinstance(item, list):
            for part in item:
                self.inject(part)
            return
        _check_item(item)
        self.history.append(item)

    def cover(self, items: list[Any]) -> None:
        """Let the history be `items`."""
        for item in items:
            _check_item(item)
        self.history = list(items)

    def clear(self) -> None:
        """Forget the history."""
        self.history = []

    def set_full_history(self, full_history: bool = True) -> None:
        """Send the whole history with every output, not only what is new."""
        self._sends_all = full_history

    def set_tools(self, tools: list[Any] | None = None) -> None:
        """The tools of this session instead of the task's. Raises RuntimeError once a turn was asked for."""
        if self._has_acted:
            raise RuntimeError("set_tools must come before the first action")
        self.tools = tools

    async def action(self, *injection: Any) -> Any:
        """Send what is new, and wait for the assistant's turn: an AgentOutput.

        Raises AgentCancelledException once the session is cancelled.
        """
        return self._taken(await asyncio.wrap_future(self._ask(injection)))

    def sync_action(self, *injection: Any) -> Any:
        """`action` for a task on a thread."""
        return self._taken(self._ask(injection).result())

    def _ask(self, injection: tuple[Any, ...]) -> "Future[Any]":
        self.inject(list(injection))
        output = self._output(RUNNING)
        self._has_acted = True
        with self._lock:
            if self._is_cancelled:
                raise self._types.AgentCancelledException
            turn: Future[Any] = Future()
            self._turn = turn
        self._outputs.put(output)
        return turn

    def _taken(self, messages: list[dict[str, Any]] | None) -> Any:
        if messages is None:
            raise self._types.AgentCancelledException
        self.history.extend(messages)
        self._num_seen = len(self.history)
        return self._types.AgentOutput(messages=messages)

    def pull(self) -> Output:
        """The worker's side: wait for the next output, or the last one."""
        return self._outputs.get()

    def push(self, messages: list[dict[str, Any]]) -> None:
        """The worker's side: hand over an assistant turn; the task has asked for it."""
        self._answer(messages)

    def cancel(self) -> None:
        """The worker's side: let `action` raise, now and ever after."""
        with self._lock:
            self._is_cancelled = True
        self._answer(None)

    def _answer(self, messages: list[dict[str, Any]] | None) -> None:
        with self._lock:
            turn, self._turn = self._turn, None
        if turn is not None:
            turn.set_result(messages)

    def finish(self, status: str, result: Any) -> None:
        """The task is over. A result that JSON cannot carry is left as its text."""
        try:
            dump(result)
        except (ValueError, TypeError, RecursionError):
            result = repr(result)
        self._outputs.put(self._output(status, result))
        self.ended.set()

    def _output(self, status: str, result: Any = None) -> Output:
        new = [_plain(item) for item in self.history[0 if self._sends_all else self._num_seen :]]
        rewards = [item for item in new if not isinstance(item, Mapping)]
        tools = self.tools or self._task_tools
        return Output(
            messages=tuple(item for item in new if isinstance(item, Mapping)),
            tools=None if tools is None else tuple(_plain(tool) for tool in tools),
            status=status,
            reward=rewards[-1].reward if rewards else 0,
            metric=rewards[-1].metrics if rewards else {},
            result=result,
        )


def _check_item(item: Any) -> None:
    plain = _plain(item)
    if isinstance(plain, Mapping):
        if not isinstance(plain.get("role"), str):
            raise ValueError(f"a message needs a role, got {plain!r}")
        dump(plain)
    elif not is_finite(getattr(plain, "reward", None)):
        raise ValueError(f"expected a message or a finite reward, got {item!r}")


def _plain(item: Any) -> Any:
    """A message as a mapping of JSON values, or a reward as it is; models of pydantic are taken apart."""
    item = getattr(item, "root", item)
    if hasattr(item, "reward") or isinstance(item, Mapping):
        return item
    return item.model_dump(mode="json") if hasattr(item, "model_dump") else item
