"""The embedded engine as the controller sees it: trio in front, one device loop in a thread behind."""

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import jax
import trio

from agentrl_jax.engines.local.config import LocalEngineConfig
from agentrl_jax.engines.local.device_loop import (
    Abort,
    Close,
    DeviceLoop,
    EndSession,
    Event,
    Pause,
    Paused,
    Progress,
    Resume,
    Submit,
    Swap,
    Swapped,
)
from agentrl_jax.engines.local.placement import Place
from agentrl_jax.engines.local.runner import Runner, Say
from agentrl_jax.engines.local.scheduler import Scheduler
from agentrl_jax.engines.local.turns import ServedTurn
from agentrl_jax.engines.protocol import EngineStatistics
from agentrl_jax.engines.served import Watch
from agentrl_jax.errors import EngineError
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.types import Completion, Ids, Pool, SamplingParams, as_ids


@asynccontextmanager
async def open_local_engine(
    *,
    model: ModelConfig,
    config: LocalEngineConfig,
    weights: Any,
    version: int,
    name: str = "local-0",
    pool: Pool = "current",
    place: Place | None = None,
    say: Say = lambda line: None,
) -> AsyncIterator["LocalEngine"]:
    """Compile, start and, on leaving the block, end an engine that serves `weights` (copied) as `version`.

    place: a device (None: JAX's first), or a mesh to split the model over.
    say: told, in another thread, of every program that has been compiled.
    Turns that are unfinished at the end of the block fail with EngineError.
    Raises ConfigError if config and model contradict each other, EngineError if the weights do not fit the model. What
    the device raises later ends the block, in an ExceptionGroup.
    """
    target = jax.devices()[0] if place is None else place
    runner = await trio.to_thread.run_sync(Runner, model, config, weights, target, say)
    async with trio.open_nursery() as nursery:
        engine = LocalEngine(runner, version=version, name=name, pool=pool)
        await nursery.start(engine.run)
        yield engine
        nursery.cancel_scope.cancel()


@dataclass(slots=True, eq=False)
class _Waiter:
    is_done: trio.Event = field(default_factory=trio.Event)
    turn: ServedTurn | None = None
    watch: Watch | None = None


class LocalEngine:
    """Implements `Engine` and `ServableEngine` with a model in this process. Made by `open_local_engine`.

    Every token's log-probability is that of exactly one policy version, given all ids before it: after a publish the
    prompt and what was sampled so far are computed again by the new weights before the turn goes on.
    """

    def __init__(self, runner: Runner, *, version: int, name: str = "local-0", pool: Pool = "current") -> None:
        self._runner = runner
        self._name, self._pool = name, pool
        self._loop = DeviceLoop(runner, Scheduler(runner.config, version), self._post)
        self._trio_token: trio.lowlevel.TrioToken | None = None
        self._stopped = "it has not been started"
        self._request_ids = itertools.count()
        self._waiters: dict[int, _Waiter] = {}
        self._publishing = trio.Lock()
        self._swapped = trio.Event()
        self._paused: list[trio.Event] = []

    @property
    def name(self) -> str:
        return self._name

    @property
    def pool(self) -> Pool:
        return self._pool

    @property
    def version(self) -> int:
        """The policy version that the next token will be sampled with."""
        return self._loop.statistics.version

    def statistics(self) -> EngineStatistics:
        """Counters as of the last device call."""
        return self._loop.statistics

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled (`await nursery.start(engine.run)`); returns once the thread has ended.

        An exception of the device loop fails every turn with EngineError and is raised here.
        """
        self._trio_token = trio.lowlevel.current_trio_token()
        self._stopped = ""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._run_loop)
                task_status.started()
                try:
                    await trio.sleep_forever()
                finally:
                    self._loop.inbox.put(Close())
        finally:
            self._stop("it was closed")

    async def _run_loop(self) -> None:
        limiter = trio.CapacityLimiter(1)  # this thread is no one's turn to wait for
        try:
            await trio.to_thread.run_sync(self._loop.run, thread_name=f"engine {self._name}", limiter=limiter)
        except Exception as error:
            self._stop(f"its device loop raised {error!r}")
            raise

    async def generate(
        self, prompt_ids: Ids, sampling: SamplingParams, *, session: str, watch: Watch | None = None
    ) -> Completion:
        """See `ServableEngine.generate`. Raises EngineError: the prompt does not fit, or the engine has stopped."""
        prompt = self._checked(prompt_ids, session)
        request_id = next(self._request_ids)
        waiter = self._waiters[request_id] = _Waiter(watch=watch)
        turn = ServedTurn(request_id, prompt, sampling, session, is_watched=watch is not None)
        self._loop.inbox.put(Submit(turn))
        try:
            await waiter.is_done.wait()
        finally:
            del self._waiters[request_id]
            if not waiter.is_done.is_set():
                self._loop.inbox.put(Abort(request_id))
        if waiter.turn is None:
            raise EngineError(f"engine {self._name} failed a turn of session {session!r}: {self._stopped}")
        return waiter.turn.completion(engine=self._name, pool=self._pool)

    async def end_session(self, session: str) -> None:
        """See `Engine.end_session`."""
        await trio.lowlevel.checkpoint()
        self._loop.inbox.put(EndSession(session))

    async def publish(self, weights: Any, version: int) -> None:
        """See `Engine.publish`. `weights`: numpy or JAX arrays, float32 or of the engine's dtype; they are copied.

        Cancelled before the copy begins, it changes nothing; after that it is carried out.
        """
        async with self._publishing:
            self._check_open()
            if version <= self.version:
                raise EngineError(f"engine {self._name}: versions must increase, got {version} after {self.version}")
            params = await trio.to_thread.run_sync(self._runner.stage, weights)
            self._check_open()
            self._swapped = trio.Event()
            self._loop.inbox.put(Swap(params, version))
            with trio.CancelScope(shield=True):  # at most one device call
                await self._swapped.wait()
            self._check_open()

    async def pause(self) -> None:
        """See `ServableEngine.pause`."""
        self._check_open()
        paused = trio.Event()
        self._paused.append(paused)
        self._loop.inbox.put(Pause())
        with trio.CancelScope(shield=True):  # at most one device call
            await paused.wait()
        self._check_open()

    async def resume(self) -> None:
        """See `ServableEngine.resume`."""
        self._check_open()
        await trio.lowlevel.checkpoint()
        self._loop.inbox.put(Resume())

    def _check_open(self) -> None:
        if self._stopped:
            raise EngineError(f"engine {self._name} cannot serve: {self._stopped}")

    def _checked(self, prompt_ids: Ids, session: str) -> Ids:
        self._check_open()
        prompt = as_ids(prompt_ids)
        limit = self._runner.config.cache_tokens - 1
        if not 1 <= len(prompt) <= limit:
            raise EngineError(
                f"engine {self._name}: a prompt needs 1 to {limit} ids (cache_tokens less one to sample), "
                f"got {len(prompt)} (session {session!r})"
            )
        vocabulary = self._runner.model.vocab_size
        if prompt.min() < 0 or prompt.max() >= vocabulary:
            raise EngineError(
                f"engine {self._name}: prompt ids must be in [0, {vocabulary}), got {prompt.min()} to {prompt.max()} "
                f"(session {session!r})"
            )
        return prompt

    def _post(self, events: Sequence[Event]) -> None:
        assert self._trio_token is not None
        self._trio_token.run_sync_soon(self._deliver, events)

    def _deliver(self, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case Swapped():
                    self._swapped.set()
                case Paused():
                    self._paused.pop(0).set()
                case _ if (waiter := self._waiters.get(event.request_id)) is None:
                    pass
                case Progress(_, sampled):
                    assert waiter.watch is not None
                    waiter.watch(sampled)
                case ServedTurn():
                    waiter.turn = event
                    waiter.is_done.set()

    def _stop(self, reason: str) -> None:
        self._stopped = self._stopped or reason
        for waiter in self._waiters.values():
            waiter.is_done.set()
        for paused in self._paused:
            paused.set()
        self._swapped.set()
