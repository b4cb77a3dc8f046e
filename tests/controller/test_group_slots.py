"""Places for running groups: work-conserving, in proportion to weight × time, and never lost."""

from collections import Counter
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from agentrl_jax.controller.slots import EpisodeTimes, GroupSlots
from agentrl_jax.errors import ConfigError
from agentrl_jax.testing.virtual import run_virtual
from tests.controller.ended_groups import make_group, make_task

EQUAL = {"a": 0.5, "b": 0.5}


def test_shares_are_weights_times_seconds() -> None:
    times = EpisodeTimes()
    weights = {"a": 3.0, "b": 1.0}
    assert times.shares(weights) == {"a": 0.75, "b": 0.25}
    times.observe([make_group(1.0, 0.0, task=make_task(env="b"), wall_s=20.0)])
    assert times.shares(weights) == {"a": 0.75, "b": 0.25}  # a counts as the mean of the others
    times.observe([make_group(1.0, 0.0, task=make_task(env="a"), wall_s=1.0)])
    assert times.shares(weights) == {"a": 3 / 23, "b": 20 / 23}
    times.observe([make_group(1.0, 0.0, task=make_task(env="a"), wall_s=11.0)])
    assert times.of("a") == 2.0  # 1 + 0.1 × 10
    assert times.of("c") is None


def test_episodes_that_take_no_time_leave_the_weights() -> None:
    times = EpisodeTimes()
    times.observe([make_group(1.0, wall_s=0.0)])
    assert times.shares({"a": 1.0, "b": 3.0}) == {"a": 0.25, "b": 0.75}


def test_the_times_come_back() -> None:
    times, restored = EpisodeTimes(), EpisodeTimes()
    times.observe([make_group(1.0, wall_s=3.3), make_group(1.0, wall_s=7.1)])
    restored.restore(times.state())
    assert restored.of("a") == times.of("a")


async def test_free_places_go_to_whoever_asks(autojump_clock: MockClock) -> None:
    slots = GroupSlots(2, lambda: {"a": 0.001, "b": 0.999})
    async with slots.place("a"), slots.place("a"):  # no place stays free for b, which is not here
        assert slots.statistics().running == {"a": 2}


async def order_of(shares: dict[str, float], num_slots: int, asked: str, hold_s: dict[str, float]) -> list[str]:
    """In which order groups get their places when all ask at once."""
    slots, order = GroupSlots(num_slots, lambda: shares), []

    async def run(env: str, number: int) -> None:
        async with slots.place(env):
            order.append(env)
            await trio.sleep(hold_s[env] + 0.01 * number)  # no two end at the same moment

    async with trio.open_nursery() as nursery:
        for number, env in enumerate(asked):
            nursery.start_soon(run, env, number)
            await trio.testing.wait_all_tasks_blocked()
    return order


async def test_a_freed_place_goes_to_the_env_that_is_furthest_below_its_share(autojump_clock: MockClock) -> None:
    # First a a a. When the first ends, b has none; at the second, (1 + 1) / 0.75 of b are less than (1 + 1) / 0.25 of
    # a; at the third, a has none any more, and so again one second later.
    order = await order_of({"a": 0.25, "b": 0.75}, 3, "aaaaabbb", {"a": 1.0, "b": 10.0})
    assert "".join(order) == "aaabbaab"


async def test_an_env_without_any_place_is_never_passed_over(autojump_clock: MockClock) -> None:
    order = await order_of({"a": 0.0001, "b": 0.9999}, 2, "bbbbba", {"a": 1.0, "b": 1.0})
    assert order[:3] == [*"bb", "a"]


async def test_within_an_env_the_first_is_served_first(autojump_clock: MockClock) -> None:
    slots, order = GroupSlots(1, lambda: EQUAL), []

    async def run(number: int) -> None:
        async with slots.place("a"):
            order.append(number)
            await trio.sleep(1.0)

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(run, number)
            await trio.testing.wait_all_tasks_blocked()
    assert order == [0, 1, 2, 3, 4]


@given(
    num_slots=st.integers(1, 4),
    groups=st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.booleans()),
        max_size=14,
    ),
    shares=st.sampled_from([EQUAL, {"a": 0.9, "b": 0.1}, {"a": 0.0, "b": 1.0}]),
    schedule=st.random_module(),
)
@settings(max_examples=40)
def test_no_place_is_lost_or_idle(
    num_slots: int, groups: list[tuple[str, int, int, int, bool]], shares: dict[str, float], schedule: Any
) -> None:
    slots = GroupSlots(num_slots, lambda: shares)
    running: Counter[str] = Counter()
    num_served = 0

    def check() -> None:
        assert running.total() <= num_slots
        statistics = slots.statistics()
        assert not statistics.waiting or sum(statistics.running.values()) == num_slots

    async def user(env: str, start_s: int, patience_s: int, hold_s: int, fails: bool) -> None:
        nonlocal num_served
        await trio.sleep(start_s)
        with trio.move_on_after(patience_s):
            try:
                async with slots.place(env):
                    num_served += 1
                    running[env] += 1
                    try:
                        check()
                        await trio.sleep(hold_s)
                        if fails:
                            raise ValueError(env)
                    finally:
                        running[env] -= 1
            except ValueError:
                pass
        check()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for group in groups:
                nursery.start_soon(user, *group)

    run_virtual(main)
    assert not slots.statistics().running
    assert not slots.statistics().waiting
    assert num_served >= min(len([g for g in groups if g[2] > 0]), num_slots)


def test_no_place_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one place"):
        GroupSlots(0, lambda: EQUAL)
