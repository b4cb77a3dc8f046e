"""Places on workers: least loaded first, first come first served, and nothing lost when somebody gives up."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from agentrl_jax.controller.dispatch import Dispatcher, LineStatistics, PlaceHolder
from agentrl_jax.errors import EnvError


def holder(name: str, **capacity: int) -> PlaceHolder:
    return PlaceHolder(name, capacity, lambda: True)


async def names(dispatcher: Dispatcher, env: str, count: int) -> list[str]:
    return [(await dispatcher.take(env)).name for _ in range(count)]


async def test_the_least_loaded_worker_is_next_and_equals_take_turns() -> None:
    dispatcher = Dispatcher(8)
    for given in (holder("small", kg=1), holder("large", kg=3), holder("other", alfworld=9)):
        dispatcher.add(given)
    # Loads before each grant: 0 and 0; 1 and 0; 1 and 1/3; 1 and 2/3.
    assert await names(dispatcher, "kg", 4) == ["small", "large", "large", "large"]
    equals = Dispatcher(8)
    for name in "abc":
        equals.add(holder(name, kg=2))
    turns = []
    for _ in range(6):
        place = await equals.take("kg")
        turns.append(place.name)
        equals.give_back(place, "kg")
    assert turns == ["a", "b", "c", "a", "b", "c"]


async def test_who_came_first_is_served_first() -> None:
    dispatcher, order = Dispatcher(8), []
    only = holder("w", kg=1)

    async def come(number: int) -> None:
        await dispatcher.take("kg")
        order.append(number)
        dispatcher.give_back(only, "kg")

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(come, number)
            await wait_all_tasks_blocked()
        dispatcher.add(only)
    assert order == [0, 1, 2, 3, 4]
    assert dispatcher.statistics() == {"kg": LineStatistics(num_waiting=0, num_granted=5, num_refused=0, num_left=0)}


async def test_a_full_line_is_an_error_and_who_leaves_makes_room() -> None:
    dispatcher = Dispatcher(2)
    async with trio.open_nursery() as nursery:
        leaving = trio.CancelScope()

        async def wait_and_leave() -> None:
            with leaving:
                await dispatcher.take("kg")

        nursery.start_soon(wait_and_leave)
        nursery.start_soon(dispatcher.take, "kg")
        await wait_all_tasks_blocked()
        with pytest.raises(EnvError, match="kg: 2 episodes wait for a place on a worker already"):
            await dispatcher.take("kg")
        leaving.cancel()
        await wait_all_tasks_blocked()
        nursery.start_soon(dispatcher.take, "kg")
        await wait_all_tasks_blocked()
        dispatcher.add(holder("w", kg=2))
    assert dispatcher.statistics()["kg"] == LineStatistics(num_waiting=0, num_granted=2, num_refused=1, num_left=1)


async def test_a_place_granted_to_who_is_cancelled_goes_to_the_next() -> None:
    dispatcher, only = Dispatcher(8), holder("w", kg=1)
    dispatcher.add(only)
    place = await dispatcher.take("kg")
    served = []
    async with trio.open_nursery() as nursery:
        leaving = trio.CancelScope()

        async def first() -> None:
            with leaving:
                await dispatcher.take("kg")
                served.append("first")

        async def second() -> None:
            await dispatcher.take("kg")
            served.append("second")

        nursery.start_soon(first)
        await wait_all_tasks_blocked()
        nursery.start_soon(second)
        await wait_all_tasks_blocked()
        leaving.cancel()
        dispatcher.give_back(place, "kg")  # to nobody but the second: the first is leaving
    assert served == ["second"]
    assert only.taken == {"kg": 1}


async def test_an_env_that_hangs_takes_no_place_of_another() -> None:
    dispatcher = Dispatcher(2)
    dispatcher.add(holder("w", kg=2, alfworld=2))
    await names(dispatcher, "kg", 2)
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(dispatcher.take, "kg")
        await wait_all_tasks_blocked()
        with trio.fail_after(1.0):
            assert await names(dispatcher, "alfworld", 2) == ["w", "w"]
        nursery.cancel_scope.cancel()


async def test_a_removed_worker_gives_no_more_places() -> None:
    dispatcher, gone = Dispatcher(2), holder("gone", kg=5)
    dispatcher.add(gone)
    place = await dispatcher.take("kg")
    dispatcher.remove(gone)
    with trio.move_on_after(0) as scope:
        await dispatcher.take("kg")
    assert scope.cancelled_caught
    dispatcher.give_back(place, "kg")
    assert gone.num_taken == 0
