"""Several prompts in one request, and texts to ids and back, as SGLang's own server answers them."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from agentrl_jax.engines.http import open_http_client
from agentrl_jax.testing.engine import FakeEngine, constant_latency
from tests.engines.served_engines import FAKE_MODEL, Host
from tests.engines.test_server import Served, events

SAMPLING = {"max_new_tokens": 5, "sampling_seed": 3, "stop_token_ids": [15]}


@pytest.fixture
async def served(nursery: trio.Nursery) -> AsyncIterator[Served]:
    engine = FakeEngine(token_latency=constant_latency(1))
    host = Host(nursery)
    host.serve(engine, FAKE_MODEL)
    async with open_http_client("http://e", connect=host.connect) as client:
        yield Served(engine, host, client)


def body(**fields: Any) -> dict[str, Any]:
    return {"input_ids": [[3, 5], [4, 4, 4]], "sampling_params": SAMPLING, "return_logprob": True} | fields


async def test_a_batch_is_answered_as_its_prompts_one_by_one(served: Served, autojump_clock: MockClock) -> None:
    begin = trio.current_time()
    batch = await served.post("/generate", body(rid=["a", "b"]))
    assert trio.current_time() - begin <= 5  # and at the same time
    assert [answer["meta_info"]["id"] for answer in batch] == ["a", "b"]
    for prompt, answer in zip(body()["input_ids"], batch, strict=True):
        alone = await served.post("/generate", body(input_ids=prompt))
        assert answer["output_ids"] == alone["output_ids"]
        assert answer["meta_info"]["output_token_logprobs"] == alone["meta_info"]["output_token_logprobs"]
    assert len(await served.post("/generate", body(input_ids=[[3, 5]]))) == 1
    assert await served.post("/generate", body(input_ids=[[1], [2]], sampling_params=[SAMPLING, SAMPLING]))


async def test_each_prompt_may_be_sampled_in_its_own_way(served: Served, autojump_clock: MockClock) -> None:
    served.engine.script = lambda prompt, sampling: [2] * 9
    params = [SAMPLING | {"max_new_tokens": count} for count in (1, 4)]
    batch = await served.post("/generate", body(sampling_params=params))
    assert [len(answer["output_ids"]) for answer in batch] == [1, 4]


async def test_a_streamed_batch_names_the_prompt_of_each_event(served: Served, autojump_clock: MockClock) -> None:
    whole = await served.post("/generate", body(rid=["a", "b"]))
    chunks = events(await served.post("/generate", body(rid=["a", "b"], stream=True)))
    for index, answer in enumerate(whole):
        own = [chunk for chunk in chunks if chunk["index"] == index]
        assert own[-1] == answer | {"index": index}
        assert all(chunk["meta_info"]["finish_reason"] is None for chunk in own[:-1])
        assert [chunk["output_ids"] for chunk in own[:-1]] == [
            answer["output_ids"][:count] for count in range(1, len(own))
        ]


async def test_one_that_fails_fails_the_batch_and_in_a_stream_itself_only(
    served: Served, autojump_clock: MockClock
) -> None:
    served.engine.fails = lambda session, sampling: sampling.max_new_tokens == 2
    params = [SAMPLING, SAMPLING | {"max_new_tokens": 2}]
    answer = await served.post("/generate", body(sampling_params=params), status=503)
    assert "failed on purpose" in answer["error"]["message"]
    chunks = events(await served.post("/generate", body(sampling_params=params, stream=True)))
    assert [chunk["error"]["code"] for chunk in chunks if "error" in chunk] == [503]
    assert chunks[-1]["meta_info"]["finish_reason"]["type"] in ("stop", "length")


async def test_an_abort_ends_one_prompt_of_a_batch(served: Served, autojump_clock: MockClock) -> None:
    served.engine.script = lambda prompt, sampling: [2] * 9
    answers = []

    async def ask() -> None:
        answers.extend(await served.post("/generate", body(rid=["a", "b"])))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.sleep(2.5)
        await served.post("/abort_request", {"rid": "a"})
    assert [answer["meta_info"]["finish_reason"]["type"] for answer in answers] == ["abort", "length"]
    assert [len(answer["output_ids"]) for answer in answers] == [2, 5]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"rid": "a"}, "2 prompts need a list of as many rids"),
        ({"rid": ["a"]}, "2 prompts need a list of as many rids"),
        ({"rid": ["a", "a"]}, "Duplicate request ID detected"),
        ({"sampling_params": [SAMPLING]}, "2 prompts need"),
        ({"input_ids": [1, [2]]}, "got both"),
        ({"input_ids": [[1], []]}, "at least one id"),
        ({"input_ids": [[1], [16]]}, r"must be in \[0, 16\)"),
        ({"input_ids": [1], "rid": ["a"]}, "one prompt has one rid"),
        ({"input_ids": [1], "sampling_params": [SAMPLING]}, "one prompt has one rid"),
        ({"session_id": "s"}, "no turns of one session"),
        ({"text": "a"}, "either input_ids or text"),
    ],
)
async def test_a_batch_that_is_none_is_refused(
    served: Served, autojump_clock: MockClock, fields: dict[str, Any], said: str
) -> None:
    response = await served.client.post("/generate", body(**fields), is_idempotent=True)
    assert response.status == 400
    with pytest.raises(AssertionError, match=said):
        served.read(response, 200)
    assert served.engine.statistics().num_requests == 0


async def test_memory_stays_and_prefixes_go(served: Served, autojump_clock: MockClock) -> None:
    await served.generate(session_id="s")
    assert served.engine.sessions
    assert await served.post("/release_memory_occupation", {}) == b"null"
    assert not served.engine.sessions
    assert await served.post("/resume_memory_occupation", {"tags": ["weights"]}) == b"null"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: served.generate(session_id="s"))
        await trio.sleep(0.5)
        await served.post("/release_memory_occupation", {}, status=400)
        await served.post("/pause_generation", {"mode": "retract"})
        await served.post("/release_memory_occupation", {})
        await served.post("/continue_generation", {})


async def test_no_tokenizer_no_text(served: Served, autojump_clock: MockClock) -> None:
    await served.get("/ping")
    for path, asked in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})):
        assert "no tokenizer" in (await served.post(path, asked, status=400))["error"]["message"]
