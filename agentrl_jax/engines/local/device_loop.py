"""The loop that keeps the device busy. Runs in one thread; messages come in by a queue, events go out by a callback.

Between two device calls it takes in every message that has arrived; while nothing is running, or it is paused, it
blocks on the queue.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeAlias

from agentrl_jax.engines.local.scheduler import Scheduler
from agentrl_jax.engines.local.steps import ClearStep, CopyStep, DecodeStep, PrefillStep
from agentrl_jax.engines.local.turns import ServedTurn
from agentrl_jax.engines.protocol import EngineStatistics
from agentrl_jax.engines.served import Sampled
from agentrl_jax.types import Floats, Ids


@dataclass(frozen=True, slots=True)
class Submit:
    turn: ServedTurn


@dataclass(frozen=True, slots=True)
class Abort:
    request_id: int


@dataclass(frozen=True, slots=True)
class EndSession:
    session: str


@dataclass(frozen=True, slots=True)
class Swap:
    """Serve `params`, which are on the device already, as `version`."""

    params: Any
    version: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Make no device call until a Resume."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on; without a Pause before it, nothing."""


@dataclass(frozen=True, slots=True)
class Close:
    """End the loop after the device call that is running; what is unfinished stays unfinished."""


@dataclass(frozen=True, slots=True)
class Swapped:
    version: int


@dataclass(frozen=True, slots=True)
class Paused:
    pass


@dataclass(frozen=True, slots=True)
class Progress:
    """What a watched turn that goes on has sampled in the last device call."""

    request_id: int
    sampled: Sampled


Message: TypeAlias = Submit | Abort | EndSession | Swap | Pause | Resume | Close
Event: TypeAlias = ServedTurn | Progress | Swapped | Paused
"""What happened: a turn has finished or got on, new weights serve, or nothing is sampled any more."""


class DeviceCalls(Protocol):
    """What the loop needs of a Runner."""

    def swap(self, params: Any) -> None: ...

    def prefill(self, step: PrefillStep) -> tuple[Ids, Floats]: ...

    def decode(self, step: DecodeStep) -> tuple[Ids, Floats]: ...

    def clear(self, step: ClearStep) -> None: ...

    def copy(self, step: CopyStep) -> None: ...


class DeviceLoop:
    """See the module. `inbox.put` may be called from any thread; `post` is called from the loop's."""

    def __init__(self, device: DeviceCalls, scheduler: Scheduler, post: Callable[[Sequence[Event]], object]) -> None:
        self.inbox: SimpleQueue[Message] = SimpleQueue()
        self.statistics: EngineStatistics = scheduler.statistics()
        self._device = device
        self._scheduler = scheduler
        self._post = post
        self._is_closed = self._is_paused = False

    def run(self) -> None:
        """Work until a Close arrives. What the device raises ends the loop."""
        while not self._is_closed:
            self.step(wait=True)

    def step(self, *, wait: bool) -> None:
        """Take in what has arrived, make one device call, and post what came of it.

        wait: block until a message comes if there is nothing to do.
        """
        events: list[Event] = []
        if wait and (self._is_paused or self._scheduler.is_idle):
            self._handle(self.inbox.get(), events)
        while (message := self._next_message()) is not None:
            self._handle(message, events)
        self._report(events)
        if not self._is_closed and not self._is_paused:
            finished = self._call_device()
            self._report([*self._progress(), *finished])

    def _progress(self) -> list[Progress]:
        news = ((turn.request_id, turn.news()) for turn in self._scheduler.running_turns())
        return [Progress(request_id, sampled) for request_id, sampled in news if sampled is not None]

    def _report(self, events: Sequence[Event]) -> None:
        self.statistics = self._scheduler.statistics()
        if events:
            self._post(events)

    def _next_message(self) -> Message | None:
        try:
            return self.inbox.get_nowait()
        except Empty:
            return None

    def _handle(self, message: Message, events: list[Event]) -> None:
        match message:
            case Submit(turn):
                self._scheduler.submit(turn)
            case Abort(request_id):
                self._scheduler.abort(request_id)
            case EndSession(session):
                self._scheduler.end_session(session)
            case Swap(params, version):
                self._device.swap(params)
                self._scheduler.set_version(version)
                events.append(Swapped(version))
            case Pause():
                self._is_paused = True
                events.append(Paused())
            case Resume():
                self._is_paused = False
            case Close():
                self._is_closed = True

    def _call_device(self) -> list[ServedTurn]:
        step = self._scheduler.next_step()
        match step:
            case PrefillStep():
                return self._scheduler.record_prefill(step, *self._device.prefill(step))
            case DecodeStep():
                return self._scheduler.record_decode(step, *self._device.decode(step))
            case ClearStep():
                self._device.clear(step)
            case CopyStep():
                self._device.copy(step)
        return []
