"""WUP and HNG rows of the list of published faults that concern publishing to servers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from agentrl_jax.algo.staleness import max_cache_age
from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.engines.http_server import HttpProblem, HttpRequest
from agentrl_jax.report.progress import step_record
from agentrl_jax.testing.engine import constant_latency
from agentrl_jax.testing.simulation import Simulation
from agentrl_jax.types import Completion, EpisodeEnd, Group, Segment, Task, Trajectory, Turn, as_ids
from tests.engines.fleet_fakes import ENDLESS, World, open_world

SLOW = {"token_latency": constant_latency(1.0), "script": lambda prompt, sampling: [5] * 29}
MODES = ["in_place", "retract", "abort", "drain"]


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual time does not wait for threads."""

    async def run_sync(function: Any, *args: Any, **_: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return function(*args)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)


async def publish_while_turns_run(world: World, num_turns: int = 4) -> list[Any]:
    """Begin turns, publish version 2 while they run, and return what they came to."""
    completions: list[Any] = []

    async def play(group: int) -> None:
        completions.append(await world.turn(group, sampling=ENDLESS))

    async with trio.open_nursery() as nursery:
        for group in range(num_turns):
            nursery.start_soon(play, group)
        await trio.sleep(10.5)
        await world.publish(2)
    return completions


async def test_wup_02_no_cache_is_older_than_the_turn_that_it_serves(tmp_path: Path, autojump_clock: MockClock) -> None:
    completions = []
    async with open_world(tmp_path, current=1, settings=SLOW, mode="in_place") as world:

        async def play(group: int) -> None:
            for turn in range(2):
                completions.append(await world.turn(group, turn=turn, sampling=ENDLESS))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(play, 0)
            for version in (2, 3):
                await trio.sleep(10.5)
                await world.publish(version)
    first, second = (group_of(completion) for completion in completions)
    assert (max_cache_age([first]), max_cache_age([second]), max_cache_age([second, first])) == (2, 0, 2)
    assert completions[1].cached_tokens == 0  # the prompt is the same, but its keys are those of version 1
    run = Simulation(config=RolloutConfig(group_size=2, min_groups_per_batch=1))
    await run.run(1)
    assert step_record(replace(run.records[0], groups=(second, first)))["cache_age_max"] == 2
    assert max_cache_age([]) == 0


def group_of(completion: Completion) -> Group:
    """A group of one episode of this turn alone."""
    task = Task(env="toy", split="train", index=0, seed=0)
    played = (Segment(turns=(Turn(context_ids=as_ids([2, 3, 4]), completion=completion),)),)
    member = Trajectory(
        task=task, group_id=0, member=0, end=EpisodeEnd.COMPLETED, reward=1.0, env_reward=1.0, segments=played
    )
    return Group(group_id=0, task=task, start_version=1, trajectories=(member,))


@pytest.mark.parametrize("mode", MODES)
async def test_wup_05_a_publish_in_the_middle_of_turns_cuts_none_of_them(
    tmp_path: Path, autojump_clock: MockClock, mode: Any
) -> None:
    async with open_world(tmp_path, current=1, settings=SLOW, mode=mode) as world:
        completions = await publish_while_turns_run(world)
    assert [len(completion.ids) for completion in completions] == [30] * 4
    spans = {tuple((s.version, s.start, s.end) for s in completion.version_spans) for completion in completions}
    expected = {"abort": ((2, 0, 30),), "drain": ((1, 0, 30),)}
    assert spans == {expected.get(mode, ((1, 0, 10), (2, 10, 30)))}


async def test_wup_09_all_engines_of_both_pools_report_what_they_were_given(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, current=2, lagging=2, begin=4) as world:
        for version in range(5, 10):
            served = await world.publish(version)
            assert served == {name: host.engine.version for name, host in world.hosts.items()}
            assert served == {name: s.version for name, s in world.fleet.statistics().items()}
            assert {served[f"current-{i}"] for i in range(2)} == {version}
            assert {served[f"lagging-{i}"] for i in range(2)} == {version - version % 4}


async def test_wup_10_turns_carry_the_versions_of_their_tokens_and_not_of_their_end(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, current=1, settings=SLOW) as world:
        (completion,) = await publish_while_turns_run(world, 1)
    assert completion.versions.tolist() == [1] * 10 + [2] * 20


@pytest.mark.parametrize("num_lost", [1, 2, 10])
async def test_wup_14_a_lost_answer_to_going_on_leaves_no_engine_paused(
    tmp_path: Path, autojump_clock: MockClock, num_lost: int
) -> None:
    left = [num_lost]

    async def lose(request: HttpRequest) -> None:
        if request.path == "/continue_generation" and left[0]:
            left[0] -= 1
            raise HttpProblem(503, "lost")

    async with open_world(tmp_path, current=1) as world:
        world.hosts["current-0"].fault = lose
        await world.publish(2)
        await world.fleet.until_any(["current-0"])
        completion = await world.turn()
        assert completion.version_spans[0].version == 2
        assert trio.current_time() < 60.0


async def test_wup_14_a_pause_that_fails_lets_turns_go_on(tmp_path: Path, autojump_clock: MockClock) -> None:
    async def refuse(request: HttpRequest) -> None:
        if request.path == "/update_weights_from_disk":
            raise AssertionError("nothing may be written to an engine that is not paused")
        if request.path == "/pause_generation":
            raise HttpProblem(503, "no")

    async with open_world(tmp_path, current=2) as world:
        host = world.hosts["current-0"]
        host.fault = refuse
        await world.publish(2)
        assert "/continue_generation" in host.paths[host.paths.index("/pause_generation", 5) :]


async def test_wup_13_a_turn_that_is_aborted_and_asked_again_keeps_its_budget(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, current=1, settings=SLOW, mode="abort") as world:
        for completion in await publish_while_turns_run(world, 3):
            assert completion.versions.tolist() == [2] * ENDLESS.max_new_tokens


async def test_wup_15_turns_are_aborted_before_the_pause_ends_and_asked_again(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, current=1, settings=SLOW, mode="abort") as world:
        await publish_while_turns_run(world, 3)
        paths = [p for p in world.hosts["current-0"].paths if p.startswith(("/pause", "/continue", "/update", "/gen"))]
        publish = ["/pause_generation", "/update_weights_from_disk", "/continue_generation"]
        assert paths == [*publish, *["/generate"] * 3, *publish, *["/generate"] * 3]


async def test_hng_26_a_turn_without_an_end_holds_up_a_publish_for_a_bounded_time(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    settings = {"token_latency": constant_latency(1000.0)}
    opening = open_world(tmp_path, current=1, settings=settings, mode="drain", timeout_s=60.0)
    async with opening as world, trio.open_nursery() as nursery:
        nursery.start_soon(world.turn)
        await trio.sleep(1.0)
        begun = trio.current_time()
        await world.publish(2)
        assert trio.current_time() - begun < 31.0  # half its time; then it is retracted
        assert world.hosts["current-0"].engine.version == 2
        nursery.cancel_scope.cancel()
