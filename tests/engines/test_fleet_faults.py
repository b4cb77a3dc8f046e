"""Servers that fail without a word, hold other weights than they say, or are somebody else's too."""

from math import prod
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from agentrl_jax.engines.http_server import HttpProblem, HttpRequest
from agentrl_jax.engines.remote import RemoteEngine
from agentrl_jax.errors import EngineError
from agentrl_jax.testing.engine import constant_latency
from agentrl_jax.types import as_ids
from tests.engines.fleet_fakes import ENDLESS, World, hash_folder, open_world
from tests.engines.weight_fakes import SHAPES

SLOW = {"token_latency": constant_latency(1.0), "script": lambda prompt, sampling: [5] * 29}
ONE_TENSOR = "model.norm.weight"


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual time does not wait for threads."""

    async def run_sync(function: Any, *args: Any, **_: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return function(*args)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)


def hanging_after(path: str, then: str) -> Any:
    """From the first request for `path` on, those for `then` are not answered."""
    seen: list[str] = []

    async def fault(request: HttpRequest) -> None:
        if request.path == then and path in seen:
            await trio.sleep_forever()
        seen.append(request.path)

    return fault


def engine_of(world: World, name: str) -> RemoteEngine:
    return next(engine for engine in world.fleet.engines if engine.name == name)


async def test_a_server_that_hangs_after_it_was_published_to_holds_up_nothing(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, current=2) as world:
        world.hosts["current-0"].fault = hanging_after("/continue_generation", "/server_info")
        begun = trio.current_time()
        await world.publish(2)
        assert trio.current_time() - begun < 31.0
        assert [world.fleet.is_serving(f"current-{i}") for i in range(2)] == [False, True]
        assert any("said nothing for 30 s" in line for line in world.said)


async def test_a_server_that_hangs_is_given_up_all_the_same(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_world(tmp_path, current=2, evict_after=3) as world:
        world.hosts["current-0"].fault = hanging_after("/pause_generation", "/server_info")
        await world.publish(2)
        await trio.sleep(120.0)
        assert engine_of(world, "current-0").is_evicted


async def test_a_machine_that_is_gone_without_a_word_is_noticed_and_its_turns_are_asked_of_another(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async def never(request: HttpRequest) -> None:
        await trio.sleep_forever()

    async with open_world(tmp_path, current=2) as world:
        for host in world.hosts.values():
            host.fault = never if host.name == "current-0" else None
        engines = {(await world.turn(group)).engine for group in range(4)}
        assert engines == {"current-1"}
        assert trio.current_time() < 62.0  # until it is asked, and has not answered


async def test_of_two_servers_that_differ_the_one_that_was_believed_is_found_out(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    def wrong(weights: Any) -> dict[str, str]:
        return hash_folder(weights) | {ONE_TENSOR: "0123456789abcdef"}

    async def late(request: HttpRequest) -> None:
        if request.path == "/pause_generation":
            await trio.sleep(5.0)

    async with open_world(tmp_path, current=2, hashes=hash_folder) as world:
        world.hosts["current-0"].hashes = wrong  # it loads the next version wrongly, and is asked first
        world.hosts["current-1"].fault = late
        await world.publish(2)
        await trio.sleep(1.0)
        assert [world.fleet.is_serving(f"current-{i}") for i in range(2)] == [False, True]
        assert f"its {ONE_TENSOR} is another" in engine_of(world, "current-0").why_out
        world.hosts["current-0"].hashes = hash_folder
        await world.fleet.until_any(["current-0"])
        assert engine_of(world, "current-0").publish_statistics().last_bytes_verified == 4 * sum(
            map(prod, SHAPES.values())
        )


async def test_a_load_that_changed_nothing_is_no_publish(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_world(tmp_path, current=1, hashes=hash_folder) as world:
        first = hash_folder(next(world.fleet.exports.folder.glob("v1-*")))
        world.hosts["current-0"].hashes = lambda weights: first
        await world.publish(2)
        assert not world.fleet.is_serving("current-0")
        assert any("its weights are still those of version 1" in line for line in world.said)


@pytest.mark.parametrize("others", [0, 9])
async def test_turns_of_weights_that_this_run_did_not_publish_are_none(
    tmp_path: Path, autojump_clock: MockClock, others: int
) -> None:
    """0: the server has been started again; 9: another run publishes to it. Every turn is sampled by version 2."""

    async def slowly(request: HttpRequest) -> None:
        if request.path in ("/model_info", "/server_info"):  # while it is asked what it serves, others ask for turns
            await trio.sleep(5.0)

    async with open_world(tmp_path, current=1, begin=2) as world:
        host = world.hosts["current-0"]
        host.fault = slowly
        if others:
            await host.engine.publish("theirs", others)
        else:
            host.kill()
            host.start()
        found: list[int] = []

        async def play(group: int) -> None:
            await trio.sleep(group)
            found.extend(span.version for span in (await world.turn(group)).version_spans)

        async with trio.open_nursery() as nursery:
            for group in range(4):
                nursery.start_soon(play, group)
        assert set(found) == {2}


async def test_an_abort_that_overtakes_the_answer_to_the_pause_costs_no_turn(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, current=1, settings=SLOW, mode="abort") as world:
        host = world.hosts["current-0"]

        async def on_the_way(request: HttpRequest) -> None:
            if request.path == "/pause_generation":
                await trio.sleep(5.0)

        host.fault = on_the_way
        completions = []

        async def play(group: int) -> None:
            await trio.sleep(group)  # before the publish begins, and while its pause is on the way
            completions.append(await world.turn(group, sampling=ENDLESS))

        async with trio.open_nursery() as nursery:
            for group in range(4):
                nursery.start_soon(play, group)
            await trio.sleep(1.5)
            await world.publish(2)
        assert [[span.version for span in completion.version_spans] for completion in completions] == [[2]] * 4


async def test_an_export_that_a_server_is_being_given_outlives_the_next_one(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    folders: list[bool] = []

    async def slow_load(request: HttpRequest) -> None:
        if request.path == "/update_weights_from_disk":
            folder = next(world.fleet.exports.folder.glob("v2-*"))
            await trio.sleep(10.0)
            folders.append(folder.is_dir())

    async with open_world(tmp_path, current=2) as world:
        host = world.hosts["current-0"]
        host.kill()
        await world.publish(2)
        host.fault = slow_load
        host.start()
        await trio.sleep(8.0)  # it is being brought back with version 2
        await world.publish(3)
        await world.fleet.until_any(["current-0"])
        assert folders[0]
        assert host.engine.version == 3
        await world.publish(4)
        assert [path.name[:3] for path in world.fleet.exports.folder.glob("v*")] == ["v4-"]


async def test_a_server_that_may_hold_half_of_its_weights_stays_paused(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, current=2) as world:
        host = world.hosts["current-0"]
        refused: list[str] = []

        async def refuse(request: HttpRequest) -> None:
            if request.path == "/update_weights_from_disk" or (refused and request.path == "/pause_generation"):
                refused.append(request.path)
                raise HttpProblem(500, "no")

        host.fault = refuse
        num_before = host.paths.count("/continue_generation")
        await world.publish(2)
        await trio.sleep(3.0)
        assert refused[:2] == ["/update_weights_from_disk", "/pause_generation"]
        assert host.paths.count("/continue_generation") == num_before


async def test_a_turn_of_an_engine_that_is_out_says_why(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_world(tmp_path, current=1) as world:
        world.hosts["current-0"].kill()
        await world.publish(2)
        with pytest.raises(EngineError, match=r"engine current-0 is out: .*nobody is here"):
            await engine_of(world, "current-0").generate(as_ids([2, 3, 4]), ENDLESS, session="s")
