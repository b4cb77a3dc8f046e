"""Permits are conserved and returned exactly once."""

from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_jax.controller.admission import Admission, Permit
from agentrl_jax.testing.virtual import run_virtual


async def test_a_permit_is_released_exactly_once() -> None:
    admission = Admission(2)
    permit, other = await admission.acquire(), await admission.acquire()
    permit.release()
    with pytest.raises(RuntimeError, match="exactly once"):
        permit.release()
    statistics = admission.statistics()
    assert (statistics.num_held, statistics.num_free) == (1, 1)
    assert (statistics.num_acquired, statistics.num_released) == (2, 1)
    other.release()


async def test_waiting_is_first_come_first_served_and_cancellable(autojump_clock: trio.testing.MockClock) -> None:
    admission, order = Admission(1), []
    held = await admission.acquire()

    async def ask(name: str, patience_s: float) -> None:
        with trio.move_on_after(patience_s):
            (await admission.acquire()).release()
            order.append(name)

    async with trio.open_nursery() as nursery:
        for delay, name, patience_s in [(1, "first", 100.0), (1, "impatient", 3.0), (1, "second", 100.0)]:
            nursery.start_soon(ask, name, patience_s)
            await trio.sleep(delay)
        assert admission.statistics().num_waiting == 3
        await trio.sleep(5)
        held.release()
    assert order == ["first", "second"]
    assert admission.statistics().num_free == 1


@given(
    num_permits=st.integers(1, 4),
    tasks=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)), max_size=12),
    schedule=st.random_module(),
)
@settings(max_examples=40)
def test_held_plus_free_is_constant(num_permits: int, tasks: list[tuple[int, int, int]], schedule: Any) -> None:
    admission = Admission(num_permits)
    held: set[Permit] = set()

    def check() -> None:
        statistics = admission.statistics()
        assert statistics.num_held == len(held) <= num_permits
        assert statistics.num_held + statistics.num_free == num_permits

    async def user(start_s: int, patience_s: int, hold_s: int) -> None:
        await trio.sleep(start_s)
        with trio.move_on_after(patience_s):
            permit = await admission.acquire()
            held.add(permit)
            check()
            try:
                await trio.sleep(hold_s)
            finally:
                held.discard(permit)
                permit.release()
                check()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for times in tasks:
                nursery.start_soon(user, *times)

    run_virtual(main)
    check()
    assert not held
