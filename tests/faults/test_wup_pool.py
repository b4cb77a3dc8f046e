"""WUP-19 and the CON rows of the list of published faults that concern the choice of engines."""

import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import trio

from agentrl_jax.controller.episode import EpisodeConfig, EpisodeSetup, run_episode
from agentrl_jax.engines.pool import EnginePool, PoolConfig
from agentrl_jax.engines.protocol import Engine
from agentrl_jax.seeding import derive_seed
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.testing.envs import EnvScript, SessionLog, scripted_sessions
from agentrl_jax.testing.renderer import FakeRenderer
from agentrl_jax.testing.virtual import run_virtual
from agentrl_jax.types import EpisodeEnd, Floats, Ids, SamplingParams, Task, Trajectory

NO_LAGGING = PoolConfig(lagging_prob=0.0)
TASK = Task(env="kg", split="train", index=0, seed=0)


def current(count: int) -> list[FakeEngine]:
    return [FakeEngine(name=f"engine-{index}") for index in range(count)]


async def play(pool: EnginePool, group_id: int, num_turns: int, step_s: float = 0.0) -> Trajectory:
    """One episode of `num_turns` turns."""
    script = EnvScript(rewards=(0.0,) * (num_turns - 1) + (1.0,), step_s=step_s)
    setup = EpisodeSetup(
        sessions=scripted_sessions(script, SessionLog()),
        tools=(),
        renderer=FakeRenderer(),
        choose_engine=pool,
        config=EpisodeConfig(max_turns=20, max_new_tokens=200, max_context_tokens=2000),
        run_seed=0,
    )
    return await run_episode(TASK, group_id, 0, setup=setup)


async def logprobs_of(version: int, prompt: Ids, said: list[int]) -> Floats:
    """What the toy policy of `version` makes of `said`, on an engine of its own."""
    engine = FakeEngine(version=version, script=lambda prompt, sampling: said)
    sampling = SamplingParams(temperature=0.8, max_new_tokens=len(said), seed=0, stop_ids=(0,))
    return (await engine.generate(prompt, sampling, session="s")).logprobs


async def test_wup_19_a_trajectory_of_two_engines_records_both_versions_and_whose_each_logprob_is() -> None:
    engines = [FakeEngine(name="a", version=9), FakeEngine(name="b", pool="lagging", version=8)]
    pool = EnginePool(engines[:1], engines[1:], PoolConfig(lagging_prob=0.5), 4)
    trajectory = await play(pool, 0, 8)
    assert trajectory.end is EpisodeEnd.COMPLETED
    served_by = {(t.completion.engine, t.completion.pool, *set(t.completion.versions)) for t in trajectory.turns}
    assert served_by == {("a", "current", 9), ("b", "lagging", 8)}
    (segment,) = trajectory.segments
    assert set(segment.versions[segment.loss_mask]) == {8, 9}
    assert set(segment.versions[~segment.loss_mask]) == {-1}
    begin = 0
    for turn in trajectory.turns:
        begin += len(turn.context_ids)
        (own,) = set(turn.completion.versions.tolist())
        by = {v: await logprobs_of(v, segment.ids[:begin], turn.completion.ids.tolist()) for v in (8, 9)}
        np.testing.assert_allclose(turn.completion.logprobs, by[own], atol=1e-6)
        assert np.abs(turn.completion.logprobs - by[17 - own]).max() > 1e-2
        begin += len(turn.completion.ids)


async def test_con_05_idle_engines_share_the_work_evenly() -> None:
    pool = EnginePool(current(4), [], NO_LAGGING, 0)
    at_once = Counter(pool(group, 0, 0).name for group in range(100))
    assert sorted(at_once.values()) == [25] * 4

    one_by_one: Counter[str] = Counter()
    pool = EnginePool(current(4), [], NO_LAGGING, 0)
    for group in range(100):
        one_by_one.update(turn.completion.engine for turn in (await play(pool, group, 1)).turns)
    assert sorted(one_by_one.values()) == [25] * 4


@pytest.mark.parametrize(("num_engines", "num_envs"), [(2, 2), (2, 4), (3, 3), (4, 2)])
async def test_con_05_envs_that_take_turns_do_not_pile_up_on_an_engine_each(num_engines: int, num_envs: int) -> None:
    pool = EnginePool(current(num_engines), [], NO_LAGGING, 0)
    of_one_env: Counter[str] = Counter()
    for group in range(0, 200 * num_envs, num_envs):
        seat = pool(group, 0, 0)
        of_one_env[seat.name] += 1
        await seat.end_session("s")
    assert len(of_one_env) == num_engines
    assert min(of_one_env.values()) > 0.7 * 200 / num_engines


async def test_con_06_failures_leave_no_one_counted() -> None:
    engines = current(2)
    for engine in engines:
        engine.fails = lambda session, sampling: True
    pool = EnginePool(engines, [], NO_LAGGING, 0)
    assert {(await play(pool, group, 3)).end for group in range(100)} == {EpisodeEnd.ENGINE_ERROR}
    assert set(pool.statistics().num_sessions.values()) == {0}


async def open_16_end_8(pool: EnginePool) -> tuple[str, dict[int, Engine]]:
    """Open 16 sessions on two engines, end all those of one; return the other's name and its seats by group."""
    seats = {group: pool(group, 0, 0) for group in range(16)}
    full = seats[0].name
    for group, seat in seats.items():
        if seat.name != full:
            await seat.end_session(f"g{group}-m0")
    return full, {group: seat for group, seat in seats.items() if seat.name == full}


async def test_con_07_sessions_leave_an_engine_that_has_become_too_full() -> None:
    pool = EnginePool(current(2), [], NO_LAGGING, 0)
    full, seats = await open_16_end_8(pool)
    groups = list(seats)
    assert pool.statistics().num_sessions[full] == len(groups) == 8
    places = [pool(group, 0, 1).name for group in groups]
    assert Counter(places)[full] == 6
    assert pool.statistics().num_moves == 2
    assert [pool(group, 0, 2).name for group in groups] == places  # and then they stay
    for group, name in zip(groups, places, strict=True):
        if name != full:
            await seats[group].end_session("s")  # an engine that it has left before
    assert sorted(pool.statistics().num_sessions.values()) == [2, 6]


async def test_con_07_an_engine_is_not_left_for_a_small_difference() -> None:
    pool = EnginePool(current(2), [], NO_LAGGING, 0)
    seats = {group: pool(group, 0, 0) for group in range(8)}
    leaver = next(group for group, seat in seats.items() if seat.name == "engine-1")
    await seats.pop(leaver).end_session("s")
    for turn in range(1, 10):
        assert all(pool(group, 0, turn).name == seat.name for group, seat in seats.items())


def test_con_07_prefixes_are_reused_while_sessions_come_and_go() -> None:
    pool = EnginePool(current(3), [], NO_LAGGING, 0)
    played: list[Trajectory] = []

    async def keep_playing(first: int) -> None:
        for group in range(first, first + 6):
            length = derive_seed(group) % 14 + 1
            played.append(await play(pool, group, length, step_s=1.0 + derive_seed(group, "s") % 9))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(24):
                nursery.start_soon(keep_playing, 6 * number)

    run_virtual(main)
    reusable = cached = 0
    for trajectory in played:
        length = 0
        for turn in trajectory.turns:
            reusable, cached = reusable + length, cached + turn.completion.cached_tokens
            length += len(turn.context_ids) + len(turn.completion.ids)
    assert len(played) == 144
    assert cached >= 0.9 * reusable


_CHOICES = """
from agentrl_jax.engines.pool import EnginePool, PoolConfig
from agentrl_jax.testing.engine import FakeEngine
current = [FakeEngine(name=f"c{i}") for i in range(4)]
lagging = [FakeEngine(name=f"l{i}", pool="lagging") for i in range(3)]
pool = EnginePool(current, lagging, PoolConfig(), 7)
print(*(pool(group, member, turn).name for group in range(20) for member in range(2) for turn in range(4)))
"""


def test_con_09_the_same_turn_goes_to_the_same_engine_in_every_process() -> None:
    chosen = {
        subprocess.run(
            [sys.executable, "-c", _CHOICES], env={"PYTHONHASHSEED": seed}, check=True, capture_output=True, text=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(chosen) == 1
    assert set(chosen.pop().split()) == {f"c{i}" for i in range(4)} | {f"l{i}" for i in range(3)}


@pytest.mark.parametrize("prob", [0.0, 0.25])
async def test_con_09_the_choice_is_recorded_with_each_turn(prob: float) -> None:
    lagging = [FakeEngine(name="lagging-0", pool="lagging")] if prob else []
    pool = EnginePool(current(1), lagging, PoolConfig(lagging_prob=prob), 0)
    turns = [turn for group in range(20) for turn in (await play(pool, group, 6)).turns]
    recorded = Counter(turn.completion.pool for turn in turns)
    assert recorded == {k: n for k, n in pool.statistics().num_turns.items() if n}
    assert (recorded["lagging"] > 0) == (prob > 0)
