"""Servers that fail while turns and publishes go on: who serves what meanwhile, and what they come back with."""

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

from agentrl_jax.controller.cancellation import unwrapped_errors
from agentrl_jax.engines.http_server import HttpProblem, HttpRequest
from agentrl_jax.errors import EngineError, NoProgressError
from agentrl_jax.testing.engine import constant_latency
from tests.engines.fleet_fakes import ENDLESS, open_world


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual time does not wait for threads."""

    async def run_sync(function: Any, *args: Any, **_: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return function(*args)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)


SLOW = {"token_latency": constant_latency(1.0), "script": lambda prompt, sampling: [5] * 29}


def failing(path: str, *, times: int = 10**6) -> Any:
    left = [times]

    async def fault(request: HttpRequest) -> None:
        if request.path == path and left[0]:
            left[0] -= 1
            raise HttpProblem(500, "no")

    return fault


def hanging(path: str) -> Any:
    async def fault(request: HttpRequest) -> None:
        if request.path == path:
            await trio.sleep_forever()

    return fault


async def test_every_engine_serves_what_was_published(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_world(tmp_path, current=2, lagging=1) as world:
        assert await world.publish(2) == {"current-0": 2, "current-1": 2, "lagging-0": 1}
        found = Counter[tuple[str, int]]()
        for group in range(12):
            completion = await world.turn(group)
            found[completion.engine, completion.version_spans[0].version] += 1
        assert found.keys() == {("current-0", 2), ("current-1", 2), ("lagging-0", 1)}
        assert await world.publish(4) == {"current-0": 4, "current-1": 4, "lagging-0": 4}
        order = ["/stage_weights", "/pause_generation", "/update_weights_from_disk", "/continue_generation"]
        assert [path for path in world.hosts["lagging-0"].paths if path in order] == order * 2
        states = world.fleet.statistics()
        assert {s.state for s in states.values()} == {"serving"}
        assert {name: s.num_publishes for name, s in states.items()} == {"current-0": 3, "current-1": 3, "lagging-0": 2}


@pytest.mark.parametrize(("mode", "found"), [("retract", ["v1", "v2", "v2"]), ("in_place", ["v1", "v1", "v2"])])
async def test_sessions_keep_their_prefixes_over_publishes_in_place_alone(
    tmp_path: Path, autojump_clock: MockClock, mode: str, found: list[str]
) -> None:
    salts: list[str] = []

    async def note(request: HttpRequest) -> None:
        if request.path == "/generate" and host.engine.version:  # else nobody is there to answer
            salts.append(msgspec.json.decode(request.body)["cache_salt"])

    async with open_world(tmp_path, current=1, mode=mode) as world:
        host = world.hosts["current-0"]
        host.fault = note
        await world.turn()
        await world.publish(2)
        await world.turn()
        host.kill()
        seat = world.pool(0, 0, 0)
        await trio.sleep(60.0)
        assert not world.fleet.is_serving("current-0")
        await seat.end_session("g0-m0")  # while nobody is there to be told
        host.start()
        await world.turn()  # of another session that has the name
        assert salts == found


@pytest.mark.parametrize("path", ["/pause_generation", "/update_weights_from_disk", "/continue_generation"])
async def test_an_engine_that_misses_a_publish_serves_no_turn_until_it_has_caught_up(
    tmp_path: Path, autojump_clock: MockClock, path: str
) -> None:
    async with open_world(tmp_path, current=2) as world:
        assert not world.fleet.is_any_out
        bad = world.hosts["current-0"]
        bad.fault = failing(path)
        assert (await world.publish(2))["current-1"] == 2
        assert not world.fleet.is_serving("current-0")
        assert world.fleet.is_any_out
        turns = [await world.turn(group) for group in range(20)]
        assert {(t.engine, t.version_spans[0].version) for t in turns} == {("current-1", 2)}
        await world.publish(3)
        bad.fault = None
        await world.fleet.until_any(["current-0"])
        assert not world.fleet.is_any_out
        turns = [await world.turn(group) for group in range(20)]
        assert {(t.engine, t.version_spans[0].version) for t in turns} == {("current-0", 3), ("current-1", 3)}
        assert "WARNING: current-0 is out" in world.said[-2]
        assert world.said[-1] == "current-0 serves again, as version 3"


async def test_a_server_that_hangs_is_left_out_after_a_bounded_time(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_world(tmp_path, current=2, timeout_s=60.0) as world:
        world.hosts["current-0"].fault = hanging("/update_weights_from_disk")
        begun = trio.current_time()
        await world.publish(2)
        assert trio.current_time() - begun < 61.0
        assert [world.fleet.is_serving(f"current-{i}") for i in range(2)] == [False, True]
        assert "it took too long while it was loading" in world.said[-1]


async def test_turns_of_an_engine_that_dies_are_served_by_another(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_world(tmp_path, current=2, settings=SLOW) as world:
        results: list[tuple[str, int]] = []

        async def play(group: int) -> None:
            completion = await world.turn(group, sampling=ENDLESS)
            results.append((completion.engine, len(completion.ids)))

        async with trio.open_nursery() as nursery:
            for group in range(8):
                nursery.start_soon(play, group)
            await trio.sleep(5.5)
            assert all(host.engine.statistics().running == 4 for host in world.hosts.values())
            world.hosts["current-0"].kill()
        assert [engine for engine, _ in results] == ["current-1"] * 8
        assert world.pool.statistics().num_sessions["current-0"] == 0
        assert world.pool.statistics().num_moves == 4


async def test_an_engine_that_comes_back_without_its_weights_gets_them_before_any_turn(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, current=1, begin=7) as world:
        host = world.hosts["current-0"]
        host.kill()
        host.start()  # it serves version 0 again, which nobody has published
        turns = [await world.turn(group) for group in range(5)]
        assert {t.version_spans[0].version for t in turns} == {7}
        assert host.engine.version == 7


async def test_a_lagging_engine_comes_back_with_its_own_version(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_world(tmp_path, current=1, lagging=1, begin=4, period=4) as world:
        for version in (5, 6):
            await world.publish(version)
        host = world.hosts["lagging-0"]
        host.kill()
        await trio.sleep(1.0)
        for group in range(20):  # current ones take its turns
            assert (await world.turn(group)).pool == "current"
        await world.publish(7)
        host.start()
        await world.fleet.until_any(["lagging-0"])
        assert host.engine.version == 4
        pools = {(t.pool, t.version_spans[0].version) for t in [await world.turn(group) for group in range(30)]}
        assert pools == {("current", 7), ("lagging", 4)}
        kept = sorted(path.name[:3] for path in world.fleet.exports.folder.glob("v*"))
        assert kept == ["v4-", "v7-"]


async def test_without_a_current_engine_turns_wait_and_go_on(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_world(tmp_path, current=2) as world:
        for host in world.hosts.values():
            host.kill()
        ends: list[float] = []

        async def play(group: int) -> None:
            assert (await world.turn(group)).version_spans[0].version == 2
            ends.append(trio.current_time())

        begun = trio.current_time()
        async with trio.open_nursery() as nursery:
            for group in range(6):
                nursery.start_soon(play, group)
            await trio.sleep(20.0)
            assert await world.publish(2) == {"current-0": 2, "current-1": 2}  # what they will serve
            world.hosts["current-1"].start()
        assert all(20.0 < end - begun < 60.0 for end in ends)
        assert any("no current engine serves; turns wait" in line for line in world.said)


@pytest.mark.parametrize(
    ("config", "bound_s"), [({"max_outage_s": 50.0}, (50.0, 52.0)), ({"evict_after": 3}, (1.0, 10.0))]
)
async def test_a_run_without_engines_ends_after_a_bound_with_the_reason(
    tmp_path: Path, autojump_clock: MockClock, config: dict[str, Any], bound_s: tuple[float, float]
) -> None:
    said: list[str] = []
    times: list[float] = []

    async def lose_all() -> None:
        with unwrapped_errors():
            async with open_world(tmp_path, current=1, **config) as world:
                world.hosts["current-0"].kill()
                times.append(trio.current_time())
                try:
                    await world.turn()
                finally:
                    times.append(trio.current_time())
                    said.extend(world.said)

    with pytest.raises(NoProgressError, match=r"no current engine serves any more \(current-0: .*nobody is here"):
        await lose_all()
    assert bound_s[0] <= times[1] - times[0] <= bound_s[1]
    assert "WARNING: no current engine serves" in said[-2] + said[-1]


async def test_one_engine_that_is_given_up_does_not_end_the_run(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_world(tmp_path, current=2, evict_after=3) as world:
        world.hosts["current-0"].kill()
        await world.publish(2)
        await trio.sleep(100.0)
        assert "current-0 is given up: given up after 3 attempts" in world.said[-1]
        world.hosts["current-0"].start()
        await trio.sleep(100.0)
        assert {(await world.turn(group)).engine for group in range(10)} == {"current-1"}
        assert (await world.publish(3))["current-1"] == 3


async def test_what_fails_at_the_start_ends_the_run(tmp_path: Path, autojump_clock: MockClock) -> None:
    with pytest.raises(EngineError, match=r"did not take version 1: .*do not fit"), unwrapped_errors():
        async with open_world(tmp_path, current=2, settings={"accepts": lambda weights: False}):
            raise AssertionError("it must not begin")


async def test_a_version_is_never_unknown_while_the_next_one_is_published(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    seen = set()

    async def look(request: HttpRequest) -> None:
        seen.add(world.pool.version)

    async with open_world(tmp_path, current=1) as world:
        world.hosts["current-0"].fault = look
        await world.publish(2)
        assert seen == {1, 2}  # a server is asked once more after it has been published to


async def test_a_publish_that_was_carried_out_is_not_repeated(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_world(tmp_path, current=1) as world:
        (engine,) = world.fleet.engines
        export = world.export(2)
        await engine.publish(export, 2)
        num_loads = world.hosts["current-0"].paths.count("/update_weights_from_disk")
        await engine.publish(export, 2)
        assert world.hosts["current-0"].paths.count("/update_weights_from_disk") == num_loads == 2
        assert engine.publish_statistics().num_publishes == 2


async def test_an_error_that_is_the_turns_own_leaves_the_engine_in(tmp_path: Path, autojump_clock: MockClock) -> None:
    settings = {"fails": lambda session, sampling: session == "g0-m0"}
    async with open_world(tmp_path, current=2, settings=settings) as world:
        with pytest.raises(EngineError, match="failed on purpose"):
            await world.turn(0)
        assert all(world.fleet.is_serving(name) for name in world.hosts)
        await world.turn(1)
