"""The device loop by hand: when it calls the device, when it waits, and what it posts."""

from queue import Empty, SimpleQueue
from typing import Any

from agentrl_jax.engines.local.device_loop import (
    Close,
    DeviceLoop,
    Event,
    Message,
    Pause,
    Paused,
    Progress,
    Resume,
    Submit,
    Swap,
    Swapped,
)
from agentrl_jax.engines.local.scheduler import Scheduler
from agentrl_jax.engines.local.steps import ClearStep
from agentrl_jax.engines.local.turns import ServedTurn
from agentrl_jax.types import SamplingParams, as_ids
from tests.engines.test_local_scheduler import CONFIG, ListDevice


class Device(ListDevice):
    def swap(self, params: Any) -> None:
        self.version = params

    def clear(self, step: ClearStep) -> None:
        raise AssertionError("every draw is finite")


class Inbox(SimpleQueue[Message]):
    """Closes the loop that waits for something to do; fails one that asks again and again instead."""

    num_empty = 0

    def get(self, block: bool = True, timeout: float | None = None) -> Message:
        return Close() if self.empty() else super().get(block, timeout)

    def get_nowait(self) -> Message:
        try:
            return super().get(block=False)
        except Empty:
            self.num_empty += 1
            assert self.num_empty < 50, "it polls"
            raise


def begin(*messages: Message) -> tuple[DeviceLoop, Device, list[Event]]:
    device, events = Device(), list[Event]()
    loop = DeviceLoop(device, Scheduler(CONFIG, 0), events.extend)
    loop.inbox = Inbox()
    for message in messages:
        loop.inbox.put(message)
    return loop, device, events


def submit(request_id: int, *, is_watched: bool = False) -> Submit:
    sampling = SamplingParams(temperature=1.0, max_new_tokens=6, seed=1, stop_ids=(99,))
    return Submit(ServedTurn(request_id, as_ids([1, 2, 3]), sampling, f"s{request_id}", is_watched=is_watched))


def test_a_loop_waits_when_nothing_runs_and_leaves_the_rest_unfinished_when_it_is_closed() -> None:
    served = submit(0)
    loop, _, events = begin(served)
    loop.run()
    assert events == [served.turn]
    loop, device, events = begin(submit(0), submit(1), Close())
    loop.run()
    assert (events, device.fed, loop.statistics.waiting) == ([], 0, 2)


def test_what_a_watched_turn_samples_is_posted_as_it_goes_and_its_end_alone_of_others() -> None:
    watched, quiet = submit(0, is_watched=True), submit(1)
    loop, _, events = begin(watched, quiet)
    while len([event for event in events if isinstance(event, ServedTurn)]) < 2:
        loop.step(wait=True)
    progress = [event for event in events if isinstance(event, Progress)]
    assert {event.request_id for event in progress} == {0}
    seen = [id_ for event in progress for id_ in event.sampled.ids]
    assert seen == watched.turn.ids[: len(seen)]
    assert 1 <= len(seen) < 6
    assert events.index(progress[-1]) < events.index(watched.turn)


def test_a_paused_loop_takes_messages_and_calls_no_device_until_it_is_resumed() -> None:
    turn = submit(0)
    loop, device, events = begin(turn)
    loop.step(wait=True)
    fed = len(turn.turn.ids)
    for message, event in ((Pause(), Paused()), (Swap(7, 7), Swapped(7)), (Pause(), Paused())):
        loop.inbox.put(message)
        loop.step(wait=True)
        assert events.pop() == event
        assert (len(turn.turn.ids), loop.statistics.running) == (fed, 1)
    assert (device.version, loop.statistics.version) == (7, 7)
    loop.inbox.put(Resume())
    while turn.turn.finish_reason is None:
        loop.step(wait=True)
    assert [version for version, _ in turn.turn.version_starts] == [0, 7]
    assert events == [turn.turn]
