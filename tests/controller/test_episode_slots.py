"""Places for running episodes: work-conserving, in proportion to weight × time, and never lost."""

from collections import Counter
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from agentrl_jax.controller.slots import EpisodeSlots, EpisodeTimes, SlotStatistics
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
    slots = EpisodeSlots(2, lambda: {"a": 0.001, "b": 0.999})
    async with slots.place("a"), slots.place("a"):  # no place stays free for b, which is not here
        assert slots.statistics().running == {"a": 2}


async def order_of(shares: dict[str, float], num_slots: int, asked: str, hold_s: dict[str, float]) -> list[str]:
    """In which order groups get their places when all ask at once."""
    slots, order = EpisodeSlots(num_slots, lambda: shares), []

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
    slots, order = EpisodeSlots(1, lambda: EQUAL), []

    async def run(number: int) -> None:
        async with slots.place("a"):
            order.append(number)
            await trio.sleep(1.0)

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(run, number)
            await trio.testing.wait_all_tasks_blocked()
    assert order == [0, 1, 2, 3, 4]


async def test_a_group_starts_when_there_is_a_place_for_each_of_its_episodes(autojump_clock: MockClock) -> None:
    slots, started = EpisodeSlots(5, lambda: EQUAL), trio.Event()

    async def second() -> None:
        async with slots.place("b", 3):
            started.set()
            assert slots.statistics().running == {"a": 2, "b": 3}

    async with trio.open_nursery() as nursery, slots.place("a", 4) as places:
        nursery.start_soon(second)
        places.give_back()
        await trio.testing.wait_all_tasks_blocked()
        assert slots.statistics() == SlotStatistics(num_slots=5, running={"a": 3}, waiting={"b": 1})
        places.give_back()
        await started.wait()
    assert not slots.statistics().running


async def test_a_group_that_is_larger_than_all_places_runs_alone(autojump_clock: MockClock) -> None:
    slots, order = EpisodeSlots(2, lambda: EQUAL), []

    async def run(env: str, size: int) -> None:
        async with slots.place(env, size):
            order.append((env, slots.statistics().running))
            await trio.sleep(1.0)

    async with trio.open_nursery() as nursery:
        for env, size in (("a", 1), ("b", 3), ("a", 1)):
            nursery.start_soon(run, env, size)
            await trio.testing.wait_all_tasks_blocked()
    # The last one does not start before the large one, which would then never find all places free.
    assert order == [("a", {"a": 1}), ("b", {"b": 3}), ("a", {"a": 1})]


async def test_envs_are_compared_by_the_episodes_that_still_run(autojump_clock: MockClock) -> None:
    slots, order = EpisodeSlots(7, lambda: EQUAL), []

    async def run(env: str) -> None:
        async with slots.place(env, 2):
            order.append(env)

    async with slots.place("a", 4) as places, slots.place("b", 2), trio.open_nursery() as nursery:
        for env in "ab":
            nursery.start_soon(run, env)
            await trio.testing.wait_all_tasks_blocked()
        places.give_back()  # (2 + 2) / 0.5 of b are less than (3 + 2) / 0.5 of a, which has waited longer
    assert order == ["b", "a"]


@given(
    num_slots=st.integers(1, 4),
    size=st.integers(1, 3),
    groups=st.lists(
        st.tuples(
            st.sampled_from("ab"),
            st.integers(0, 9),
            st.integers(0, 9),
            st.lists(st.integers(0, 9), min_size=3, max_size=3),
            st.booleans(),
        ),
        max_size=14,
    ),
    shares=st.sampled_from([EQUAL, {"a": 0.9, "b": 0.1}, {"a": 0.0, "b": 1.0}]),
    schedule=st.random_module(),
)
@settings(max_examples=40)
def test_no_place_is_lost_or_idle(
    num_slots: int,
    size: int,
    groups: list[tuple[str, int, int, list[int], bool]],
    shares: dict[str, float],
    schedule: Any,
) -> None:
    slots = EpisodeSlots(num_slots, lambda: shares)
    running: Counter[str] = Counter()
    num_served = 0

    def check() -> None:
        assert running.total() <= max(num_slots, size)
        statistics = slots.statistics()
        assert statistics.running == +running
        assert not statistics.waiting or running.total() + size > num_slots

    async def user(env: str, start_s: int, patience_s: int, ends_s: list[int], fails: bool) -> None:
        nonlocal num_served
        await trio.sleep(start_s)
        with trio.move_on_after(patience_s):
            try:
                async with slots.place(env, size) as places:
                    num_served += 1
                    num_running = size
                    running[env] += size
                    try:
                        begun = trio.current_time()
                        for end_s in sorted(ends_s)[:size]:
                            await trio.sleep_until(begun + end_s)
                            running[env] -= 1
                            num_running -= 1
                            places.give_back()
                            if fails:
                                raise ValueError(env)
                    finally:
                        running[env] -= num_running
            except ValueError:
                pass
        await trio.testing.wait_all_tasks_blocked()
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
        EpisodeSlots(0, lambda: EQUAL)
