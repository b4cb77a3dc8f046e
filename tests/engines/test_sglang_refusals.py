"""What the client of SGLang servers refuses, repeats and puts right, against servers that misbehave on purpose."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

from agentrl_jax.engines.http_server import Answer, EventStream, HttpProblem, HttpRequest, json_answer
from agentrl_jax.engines.sglang import open_sglang_engine
from agentrl_jax.engines.sglang_schema import ModelInfo, ServerInfo
from agentrl_jax.engines.sglang_turns import unfit
from agentrl_jax.errors import EngineError
from agentrl_jax.testing.engine import FakeEngine, constant_latency
from agentrl_jax.types import SamplingParams, Truncation, as_ids
from tests.engines.http_fakes import connect_to
from tests.engines.served_engines import open_served

PROMPT = as_ids([3, 5, 2])
PARAMS = SamplingParams(temperature=1.0, max_new_tokens=4, seed=1, stop_ids=(15,))
EMBEDDED = {"model.embed_tokens.weight": (16, 4)}
TURN = {
    "output_ids": [4, 15],
    "meta_info": {
        "finish_reason": {"type": "stop", "matched": 15},
        "weight_version": "0",
        "output_token_logprobs": [[-0.5, 4, None], [-0.1, 15, None]],
    },
}


class Scripted:
    """A server that answers by a function of (path, how often this path was asked), and remembers what it was asked."""

    def __init__(self, answers: Callable[[str, int], Any]) -> None:
        self._answers = answers
        self.requests: list[HttpRequest] = []

    async def __call__(self, request: HttpRequest) -> Answer | EventStream:
        await trio.lowlevel.checkpoint()
        self.requests.append(request)
        said = self._answers(request.path, self.paths.count(request.path))
        if isinstance(said, Exception):
            raise said
        return json_answer({"weight_version": "0"} if said is None else said)

    @property
    def paths(self) -> list[str]:
        return [request.path for request in self.requests]

    def bodies(self, path: str) -> list[dict[str, Any]]:
        return [msgspec.json.decode(request.body) for request in self.requests if request.path == path]


def opened(nursery: trio.Nursery, server: Scripted, **options: Any) -> Any:
    connect = connect_to(nursery, lambda: server)
    return open_sglang_engine("http://e", **({"tensors": EMBEDDED, "name": "sg", "connect": connect} | options))


@pytest.mark.parametrize(
    ("server", "model", "said"),
    [
        (ServerInfo(), ModelInfo(preferred_sampling_params={"logit_bias": {"3": 1.0}}), "it sets logit_bias"),
        (ServerInfo(), ModelInfo(preferred_sampling_params={"top_p": 0.9, "repetition_penalty": 1.1}), None),
        (ServerInfo(watermark_enforce_all=True), ModelInfo(), "draws with a watermark"),
        (ServerInfo(watermark_default_enabled=True), ModelInfo(), "draws with a watermark"),
        (
            ServerInfo(speculative_algorithm="EAGLE", speculative_accept_threshold_acc=0.5),
            ModelInfo(),
            "accepts drafts",
        ),
        (ServerInfo(speculative_algorithm="EAGLE"), ModelInfo(), None),
        (ServerInfo(speculative_accept_threshold_acc=0.5), ModelInfo(), None),
        (ServerInfo(), ModelInfo(), None),
    ],
)
def test_servers_that_draw_by_other_rules_than_they_report(
    server: ServerInfo, model: ModelInfo, said: str | None
) -> None:
    reasons = unfit(server, model)
    assert (said is None) == (not reasons)
    assert all(said is not None and said in reason for reason in reasons)


async def test_such_a_server_is_refused_at_once(nursery: trio.Nursery) -> None:
    server = Scripted(lambda path, count: {"weight_version": "0", "watermark_enforce_all": True})
    with pytest.RaisesGroup(pytest.RaisesExc(EngineError, match="cannot be trained with"), flatten_subgroups=True):
        async with opened(nursery, server):
            pass


@pytest.mark.parametrize("truncation", [Truncation(top_k=5), Truncation(top_p=0.9), Truncation(min_p=0.1)])
async def test_truncated_draws_would_bias_ratios(nursery: trio.Nursery, truncation: Truncation) -> None:
    server = Scripted(lambda path, count: TURN if path == "/generate" else None)
    params = SamplingParams(temperature=1.0, max_new_tokens=4, seed=1, stop_ids=(15,), truncation=truncation)
    async with opened(nursery, server) as engine:
        with pytest.raises(EngineError, match="importance ratios are biased; got Truncation"):
            await engine.generate(PROMPT, params, session="s")
        assert "/generate" not in server.paths
    async with opened(nursery, server, truncates=True) as engine:
        assert (await engine.generate(PROMPT, params, session="s")).ids.tolist() == [4, 15]


@pytest.mark.parametrize("prompt", [[3, 16], [99, 3]])
async def test_ids_outside_the_vocabulary_never_reach_the_server(nursery: trio.Nursery, prompt: list[int]) -> None:
    server = Scripted(lambda path, count: None)
    async with opened(nursery, server) as engine:
        with pytest.raises(EngineError, match=r"ids must be in \[0, 16\)"):
            await engine.generate(as_ids(prompt), PARAMS, session="s")
    assert "/generate" not in server.paths
    assert engine.statistics().num_requests == 0


async def test_a_turn_that_the_server_still_runs_is_ended_and_asked_for_anew(nursery: trio.Nursery) -> None:
    duplicate = HttpProblem(400, "Duplicate request ID detected: r")
    server = Scripted(lambda path, count: None if path != "/generate" else duplicate if count == 1 else TURN)
    async with opened(nursery, server) as engine:
        assert (await engine.generate(PROMPT, PARAMS, session="s")).ids.tolist() == [4, 15]
        await trio.testing.wait_all_tasks_blocked()
    first, second = (body["rid"] for body in server.bodies("/generate"))
    assert first != second
    assert server.bodies("/abort_request") == [{"rid": first}]
    assert engine.statistics().num_aborted == 0


async def test_a_turn_given_up_in_a_pause_is_aborted_after_it(autojump_clock: MockClock) -> None:
    async with open_served(FakeEngine(token_latency=constant_latency(1))) as (client, host):
        await client.pause()
        with trio.move_on_after(2):
            await client.generate(PROMPT, PARAMS, session="s")
        await trio.testing.wait_all_tasks_blocked()
        assert "/abort_request" not in host.paths
        with pytest.raises(EngineError, match="abort before the pause, or after it"):
            await client.abort_all()
        await client.resume()
        await trio.testing.wait_all_tasks_blocked()
        assert host.paths[-2:] == ["/continue_generation", "/abort_request"]


async def test_leaving_in_a_pause_aborts_all_the_same(autojump_clock: MockClock) -> None:
    async with open_served(FakeEngine(token_latency=constant_latency(1))) as (client, host):
        await client.pause()
        with trio.move_on_after(2):
            await client.generate(PROMPT, PARAMS, session="s")
    assert host.paths[-1] == "/abort_request"


async def test_memory_is_released_in_a_pause_and_only_without_turns(autojump_clock: MockClock) -> None:
    async with open_served(FakeEngine(token_latency=constant_latency(1))) as (client, host):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: client.generate(PROMPT, PARAMS, session="s"))
            await trio.sleep(0.5)
            with pytest.raises(EngineError, match="1 turns run"):
                await client.release_memory()
        host.requests.clear()
        await client.release_memory(["kv_cache", "weights"])
        await client.restore_memory(["weights"])
        await client.restore_memory(["kv_cache"])
        assert host.paths == [
            "/pause_generation",
            "/release_memory_occupation",
            "/resume_memory_occupation",
            "/resume_memory_occupation",
            "/continue_generation",
        ]
        await client.generate(PROMPT, PARAMS, session="s")
