"""WUP and IDM-05 rows of the list of published faults that concern the client of SGLang servers."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
import trio
from trio.testing import MockClock

from agentrl_jax.engines.http_server import Answer, HttpRequest
from agentrl_jax.engines.sglang import SGLangEngine
from agentrl_jax.errors import EngineError
from agentrl_jax.testing.engine import FakeEngine, constant_latency
from agentrl_jax.types import Completion, SamplingParams, VersionSpan, as_ids
from tests.engines.served_engines import Host, fake_weights, open_served

PROMPT = as_ids([3, 5, 2, 4])
PARAMS = SamplingParams(temperature=1.0, max_new_tokens=12, seed=1, stop_ids=(15,))


def talkative() -> FakeEngine:
    """One id a second, and none of them a stop id."""
    return FakeEngine(token_latency=constant_latency(1), script=lambda prompt, sampling: [2] * 20)


async def interrupted(client: SGLangEngine, act: Callable[[int], Awaitable[None]], times: int) -> Completion:
    """A turn during which `act(1)`, `act(2)`, … happen, three seconds apart."""
    completions: list[Completion] = []

    async def ask() -> None:
        completions.append(await client.generate(PROMPT, PARAMS, session="s"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        for number in range(1, times + 1):
            await trio.sleep(3.1)
            await act(number)
    return completions[0]


async def test_wup_01_prefixes_of_older_weights_are_never_asked_for(tmp_path: Path) -> None:
    async with open_served(FakeEngine()) as (client, host):
        await client.generate(PROMPT, PARAMS, session="s")
        assert (await client.generate(PROMPT, PARAMS, session="s")).cached_tokens > 0
        await client.publish(fake_weights(tmp_path, 2), 2)
        assert (await client.generate(PROMPT, PARAMS, session="s")).cached_tokens == 0
        asked = [request.body for request in host.requests if request.path == "/generate"]
        assert [b'"cache_salt":"v0"' in body for body in asked] == [True, True, False]
        assert b'"cache_salt":"v2"' in asked[-1]


async def test_wup_01_where_sessions_keep_their_prefixes_none_is_older_than_its_session(tmp_path: Path) -> None:
    async with open_served(FakeEngine(), pause_mode="in_place") as (client, host):
        await client.generate(PROMPT, PARAMS, session="old")
        await client.publish(fake_weights(tmp_path, 2), 2)
        for session in ("old", "new"):
            await client.generate(PROMPT, PARAMS, session=session)
        await client.publish(fake_weights(tmp_path, 3), 3)
        await client.generate(PROMPT, PARAMS, session="new")
        await client.end_session("old")
        await client.generate(PROMPT, PARAMS, session="old")  # another one of that name
        asked = [msgspec.json.decode(request.body) for request in host.requests if request.path == "/generate"]
        assert [body["cache_salt"] for body in asked] == ["v0", "v0", "v2", "v2", "v3"]


async def test_wup_05_publishes_in_a_turn_cost_no_token_and_add_none(tmp_path: Path, autojump_clock: MockClock) -> None:
    autojump_clock.autojump_threshold = 0.25  # threads that read the weights are no reason to jump
    async with open_served(talkative()) as (client, _):

        async def publish(number: int) -> None:
            await client.publish(fake_weights(tmp_path, number), number)

        completion = await interrupted(client, publish, 3)
        assert completion.finish_reason == "length"
        assert completion.version_spans == tuple(
            VersionSpan(version=version, start=3 * version, end=3 * version + 3) for version in range(4)
        )
        assert client.statistics().num_aborted == 0


async def test_wup_08_weights_do_not_go_to_an_engine_without_memory(tmp_path: Path, autojump_clock: MockClock) -> None:
    folder = fake_weights(tmp_path, 1)
    async with open_served(FakeEngine()) as (client, host):
        await client.release_memory()
        host.requests.clear()
        with pytest.raises(EngineError, match="memory of its weights is released; restore it first"):
            await client.publish(folder, 1)
        with pytest.raises(EngineError, match="its memory is released"):
            await client.generate(PROMPT, PARAMS, session="s")
        assert host.paths == []
        await client.restore_memory(["weights"])
        await client.publish(folder, 1)  # before there is room for a turn again
        assert "/continue_generation" not in host.paths
        await client.restore_memory(["kv_cache", "cuda_graph"])
        assert host.paths[-1] == "/continue_generation"
        assert set((await client.generate(PROMPT, PARAMS, session="s")).versions) == {1}


class Lossy(Host):
    """Does what it is asked for, and loses the first answers for a path."""

    def __init__(self, nursery: trio.Nursery, path: str, num_lost: int) -> None:
        super().__init__(nursery)
        self._path, self._num_lost = path, num_lost

    async def _handle(self, request: HttpRequest) -> Answer:
        answer: Answer = await super()._handle(request)
        if request.path == self._path and self._num_lost:
            self._num_lost -= 1
            raise trio.BrokenResourceError
        return answer


@pytest.mark.parametrize("num_lost", [1, 2])
async def test_wup_14_a_lost_answer_to_going_on_leaves_nothing_paused(
    nursery: trio.Nursery, tmp_path: Path, num_lost: int
) -> None:
    inner = FakeEngine()
    host = Lossy(nursery, "/continue_generation", num_lost)
    async with open_served(inner, host=host) as (client, _):
        await client.publish(fake_weights(tmp_path, 1), 1)
        assert client.version == inner.version == 1
        assert set((await client.generate(PROMPT, PARAMS, session="s")).versions) == {1}


async def test_wup_15_nothing_is_aborted_in_a_pause(autojump_clock: MockClock) -> None:
    async with open_served(talkative()) as (client, host):
        with trio.move_on_after(2.5):
            await client.generate(PROMPT, PARAMS, session="early")
        await trio.testing.wait_all_tasks_blocked()
        await client.pause()
        with trio.move_on_after(1):
            await client.generate(PROMPT, PARAMS, session="late")
        with pytest.raises(EngineError, match="is paused"):
            await client.abort_all()
        await client.resume()
        await trio.testing.wait_all_tasks_blocked()
        order = [path for path in host.paths if path.endswith(("_request", "_generation"))]
        assert order == ["/abort_request", "/pause_generation", "/continue_generation", "/abort_request"]


async def test_idm_05_a_lost_answer_to_a_publish_changes_nothing_twice(nursery: trio.Nursery, tmp_path: Path) -> None:
    inner, folder = FakeEngine(), fake_weights(tmp_path, 1)
    async with open_served(inner, host=Lossy(nursery, "/update_weights_from_disk", 1)) as (client, _):
        await client.publish(folder, 1)  # asked for again on another connection
        assert client.version == inner.version == 1
        assert inner.statistics().num_publishes == 1


async def test_idm_05_a_lost_answer_to_a_turn_is_asked_for_again(nursery: trio.Nursery) -> None:
    inner = FakeEngine()
    async with open_served(inner, host=Lossy(nursery, "/generate", 1)) as (client, _):
        completion = await client.generate(PROMPT, PARAMS, session="s")
        assert client.statistics().sampled_tokens == len(completion.ids)
