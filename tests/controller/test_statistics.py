"""Counts of sessions add up whatever happens to them; records become plain JSON."""

import json

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.controller.statistics import SessionCounts, SessionStatistics, as_record
from agentrl_jax.engines.pool import EnginePool, PoolConfig
from agentrl_jax.env import Action
from agentrl_jax.errors import EnvError
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.testing.envs import EnvScript, SessionLog, scripted_sessions
from agentrl_jax.testing.virtual import run_virtual
from agentrl_jax.types import Task

TASK = Task(env="a", split="train", index=0, seed=0)


def numbers(statistics: SessionStatistics) -> tuple[int, ...]:
    record: dict[str, int] = as_record(statistics)
    return tuple(record.values())


async def test_counts_by_hand(autojump_clock: trio.testing.MockClock) -> None:
    script = EnvScript(rewards=(0.0, 1.0), reset_s=1.0, step_s=2.0, close_s=4.0, fault="error", fault_at=2)
    counts = SessionCounts(scripted_sessions(script, SessionLog()))
    assert numbers(counts.statistics()) == (0, 0, 0, 0, 0, 0, 0)
    seen = {}

    async def watch() -> None:
        for moment in (0.5, 2.0, 4.0, 8.0, 10.0):
            await trio.sleep_until(moment)
            seen[moment] = numbers(counts.statistics())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        session = counts(TASK)
        await session.reserve()
        await session.start()
        await session.interact(Action())
        with pytest.raises(EnvError, match="failed on purpose"):
            await session.interact(Action())
        await session.close()
    # (made, open, reserving, starting, stepping, closing, failed)
    assert seen[0.5] == (1, 1, 0, 1, 0, 0, 0)
    assert seen[2.0] == (1, 1, 0, 0, 1, 0, 0)
    assert seen[4.0] == (1, 1, 0, 0, 1, 0, 0)
    assert seen[8.0] == (1, 1, 0, 0, 0, 1, 1)
    assert seen[10.0] == (1, 0, 0, 0, 0, 0, 1)


@given(st.random_module(), st.lists(st.floats(0.0, 12.0), min_size=1, max_size=12))
def test_cancelled_calls_leave_no_count(schedule: object, moments: list[float]) -> None:
    script = EnvScript(rewards=(0.0, 0.0, 1.0), reset_s=1.0, step_s=2.0, close_s=3.0)
    counts = SessionCounts(scripted_sessions(script, SessionLog()))

    async def play(deadline: float) -> None:
        session = counts(TASK)
        with trio.move_on_after(deadline):
            await session.start()
            for _ in range(3):
                await session.interact(Action())
        with trio.CancelScope(shield=True):
            await session.close()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for moment in moments:
                nursery.start_soon(play, moment)

    run_virtual(main)
    assert numbers(counts.statistics()) == (len(moments), 0, 0, 0, 0, 0, 0)


def test_records_within_records_become_json() -> None:
    current, lagging = FakeEngine(name="now"), FakeEngine(name="then", pool="lagging", version=3)
    pool = EnginePool([current], [lagging], PoolConfig(), 0)
    pool.choose_current(0, 0, 0)
    record = as_record(pool.statistics())
    assert json.loads(json.dumps(record)) == record
    assert record["num_sessions"] == {"now": 1, "then": 0}
    assert record["engines"]["then"]["version"] == 3
