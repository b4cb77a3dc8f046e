"""The pool on fakes: which pool a turn goes to, which engine of it, and who gets which publish."""

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.engines.pool import EnginePool, PoolConfig
from agentrl_jax.engines.protocol import Engine
from agentrl_jax.errors import ConfigError, EngineError
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.testing.virtual import run_virtual
from agentrl_jax.types import SamplingParams, as_ids

PARAMS = SamplingParams(temperature=1.0, max_new_tokens=3, seed=0, stop_ids=(1,))


def engines(count: int, pool: Any = "current", **changes: Any) -> list[FakeEngine]:
    return [FakeEngine(name=f"{pool}-{index}", pool=pool, **changes) for index in range(count)]


def make_pool(num_current: int = 1, num_lagging: int = 1, *, seed: int = 0, **config: Any) -> EnginePool:
    settings = PoolConfig(**config) if num_lagging else PoolConfig(lagging_prob=0.0)
    return EnginePool(engines(num_current), engines(num_lagging, "lagging"), settings, seed)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"lagging_prob": 1.0}, r"lagging_prob must be in \[0, 1\), got 1.0"),
        ({"lagging_prob": -0.1}, "got -0.1"),
        ({"lagging_prob": float("nan")}, "got nan"),
        ({"lagging_period": 0}, "lagging_period must be at least 1, got 0"),
        ({"lagging_prob": 0.0, "lagging_period": 4}, "lagging_period = 4 has no effect without"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PoolConfig(**config)


@pytest.mark.parametrize(
    ("current", "lagging", "prob", "message"),
    [
        ([], engines(1, "lagging"), 0.25, "at least one current engine, got none"),
        (engines(1), [], 0.25, "lagging_prob = 0.25 needs at least one lagging engine, got 0"),
        (engines(1), engines(2, "lagging"), 0.0, "lagging_prob = 0.0 needs no lagging engine, got 2"),
        (engines(1) * 2, [], 0.0, r"different names, got \['current-0', 'current-0'\]"),
        (engines(2), [FakeEngine(name="x")], 0.25, "x would record its turns as of another pool than 'lagging'"),
    ],
)
def test_engines_that_do_not_fit_are_refused(
    current: Sequence[Engine], lagging: Sequence[Engine], prob: float, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        EnginePool(current, lagging, PoolConfig(lagging_prob=prob), 0)


@given(st.integers(0, 2**40), st.randoms(use_true_random=False), st.integers(1, 3))
def test_the_pool_of_a_turn_does_not_depend_on_when_it_is_asked(seed: int, order: Random, num_engines: int) -> None:
    turns = [(group, member, turn) for group in range(4) for member in range(3) for turn in range(4)]
    in_order = make_pool(num_engines, 2, seed=seed)
    expected = {turn: in_order(*turn).pool for turn in turns}
    shuffled = make_pool(1, 1, seed=seed)
    order.shuffle(turns)
    assert {turn: shuffled(*turn).pool for turn in turns} == expected
    assert shuffled.statistics().num_turns == Counter(expected.values())


@pytest.mark.parametrize("prob", [0.05, 0.25, 0.9])
def test_lagging_turns_have_their_share_in_groups_members_and_turns(prob: float) -> None:
    pool = make_pool(seed=5, lagging_prob=prob)
    lagging = [turn for turn in range(20_000) if pool(turn // 100, turn // 10 % 10, turn % 10).pool == "lagging"]
    assert abs(len(lagging) / 20_000 - prob) < 0.015
    for part in (lambda n: n // 100 % 10, lambda n: n // 10 % 10, lambda n: n % 10):
        counts = Counter(map(part, lagging))
        assert all(abs(counts[key] / 2000 - prob) < 0.05 for key in range(10))


def test_another_seed_gives_other_turns_to_the_lagging_policy() -> None:
    first, second = make_pool(seed=1), make_pool(seed=2)
    assert [first(g, 0, 0).pool for g in range(50)] != [second(g, 0, 0).pool for g in range(50)]


def test_evaluation_and_a_pool_without_lagging_engines_use_current_engines_only() -> None:
    pool = make_pool(lagging_prob=0.9)
    assert {pool.choose_current(group, 0, turn).name for group in range(20) for turn in range(5)} == {"current-0"}
    alone = make_pool(1, 0)
    assert {alone(group, 0, turn).name for group in range(20) for turn in range(5)} == {"current-0"}
    assert alone.statistics().num_turns == {"current": 100, "lagging": 0}


def test_a_session_keeps_its_engine_in_each_pool() -> None:
    pool = make_pool(3, 3, lagging_prob=0.5)
    for group in range(6):
        names = {pool(group, 0, turn).name for turn in range(40)}
        assert len(names) == 2
    assert pool.statistics().num_moves == 0


def test_members_of_a_group_share_an_engine_until_it_is_clearly_fuller() -> None:
    pool = make_pool(3, 0)
    names = Counter(pool(0, member, 0).name for member in range(4))
    assert list(names.values()) == [4]
    home = next(iter(names))
    for member in range(4, 30):
        pool(0, member, 0)
    counts = pool.statistics().num_sessions
    others = [count for name, count in counts.items() if name != home]
    assert counts[home] - min(others) in (4, 5)
    assert max(others) - min(others) <= 1


async def test_sessions_leave_when_they_end_even_if_the_engine_fails_at_it() -> None:
    class Stubborn(FakeEngine):
        async def end_session(self, session: str) -> None:
            raise EngineError("no")

    pool = EnginePool([Stubborn(name="a"), *engines(1)], [], PoolConfig(lagging_prob=0.0), 0)
    seats = [pool(group, 0, turn) for group in range(6) for turn in range(2)]
    assert sum(pool.statistics().num_sessions.values()) == 6
    for seat in seats:
        if seat.name == "a":
            with pytest.raises(EngineError, match="no"):
                await seat.end_session("s")
        else:
            await seat.end_session("s")
    assert pool.statistics().num_sessions == {"a": 0, "current-0": 0}


@given(st.integers(1, 4), st.integers(1, 60), st.randoms(use_true_random=False))
def test_the_books_balance_and_no_engine_is_clearly_fuller_for_long(count: int, num: int, random: Random) -> None:
    pool = make_pool(count, 0, seed=num)
    open_sessions: dict[int, list[Engine]] = {}

    async def main() -> None:
        for group in range(num):
            open_sessions[group] = [pool(group, 0, 0)]
            if random.random() < 0.5:
                for seat in open_sessions.pop(random.choice(list(open_sessions))):
                    await seat.end_session("s")
        assert sum(pool.statistics().num_sessions.values()) == len(open_sessions)
        for group, seats in open_sessions.items():  # one more turn each: who sits too tight moves
            seats.append(pool(group, 0, 1))
        counts = pool.statistics().num_sessions.values()
        assert max(counts) - min(counts) <= max(4, min(counts) // 4) + 1
        for seats in open_sessions.values():
            for seat in seats:
                await seat.end_session("s")

    run_virtual(main)
    assert set(pool.statistics().num_sessions.values()) == {0}


@given(st.integers(1, 9), st.lists(st.integers(1, 5), min_size=1, max_size=30), st.integers(0, 20))
def test_lagging_engines_get_every_period_th_version(period: int, steps: list[int], first: int) -> None:
    current, lagging = engines(2, version=first), engines(2, "lagging", version=first)
    pool = EnginePool(current, lagging, PoolConfig(lagging_period=period), 0)

    async def main() -> None:
        version = first
        for step in steps:
            version += step  # numbers may be left out: versions of a lost part of the run are never used again
            served = await pool.publish("weights", version)
            behind = version - lagging[0].version
            assert behind < period
            assert lagging[0].version >= version - version % period
            assert served == pool.statistics().versions
            assert served == {**{e.name: version for e in current}, **{e.name: version - behind for e in lagging}}

    run_virtual(main)
    crossings = (first + sum(steps)) // period - first // period
    assert lagging[0].statistics().num_publishes <= crossings
    if set(steps) == {1}:
        assert lagging[0].statistics().num_publishes == crossings


def test_engines_are_published_to_at_the_same_time() -> None:
    pool = EnginePool(engines(3, publish_s=2.0), engines(2, "lagging", publish_s=3.0), PoolConfig(lagging_period=2), 0)

    async def main() -> list[float]:
        times = []
        for version in (1, 2):
            begun = trio.current_time()
            await pool.publish(None, version)
            times.append(trio.current_time() - begun)
        return times

    assert run_virtual(main) == [2.0, 3.0]


async def test_an_engine_that_refuses_a_publish_is_named_and_the_others_serve_it() -> None:
    good, bad = engines(2)
    bad.accepts = lambda weights: False
    lagging = engines(1, "lagging")
    pool = EnginePool([bad, good], lagging, PoolConfig(lagging_period=1), 0)
    with pytest.raises(EngineError, match="1 of 3 engines did not take version 1: current-1: the weights"):
        await pool.publish("weights", 1)
    assert pool.statistics().versions == {"current-1": 0, "current-0": 1, "lagging-0": 1}
    assert pool.version == 0
    bad.accepts = good.accepts
    await pool.publish("weights", 2)
    assert pool.version == 2


async def test_a_chosen_engine_answers_for_the_one_behind_it() -> None:
    (engine,) = engines(1)
    pool = EnginePool([engine], [], PoolConfig(lagging_prob=0.0), 0)
    seat = pool(0, 0, 0)
    completion = await seat.generate(as_ids([3, 4]), PARAMS, session="s")
    assert (completion.engine, completion.pool) == (seat.name, seat.pool) == ("current-0", "current")
    assert engine.sessions == {"s"}
    await seat.publish(None, 7)
    assert seat.version == engine.version == 7
    assert seat.statistics() == engine.statistics()
    await seat.end_session("s")
    assert not engine.sessions
