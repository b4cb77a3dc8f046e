"""This package's server answers what SGLang's answers: the same ids and texts, in the same JSON fields."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from agentrl_jax.engines.http import HttpClient, open_http_client
from agentrl_jax.engines.local.config import LocalEngineConfig
from agentrl_jax.engines.local.engine import open_local_engine
from agentrl_jax.engines.served_generation import ServedModel
from agentrl_jax.engines.transports.torch_pickle import flattened_bucket
from agentrl_jax.models.export import host_tensors
from agentrl_jax.models.load import load_pretrained
from agentrl_jax.policy import open_policy
from launch.engine import chat_format, weights_hasher, weights_loader
from tests.engines.served_engines import Host
from tests.sglang_cpu.models import CHAT_MODEL, write_chat_policy
from tests.sglang_cpu.reset import reset
from tests.sglang_cpu.servers import SGLangServer

pytestmark = pytest.mark.sglang

ENGINE = LocalEngineConfig(num_slots=4, cache_tokens=512, prefill_shapes=((2, 32),), decode_block=4)
GREEDY = {"temperature": 0, "max_new_tokens": 6}
MESSAGES = [{"role": "user", "content": "hi"}]
TOOL = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}
CHAT = {"model": "m", "messages": MESSAGES, "temperature": 0, "max_tokens": 5}

Pair = tuple[HttpClient, HttpClient]


@pytest.fixture
async def pair(chat_server: SGLangServer, chat_folder: Path, nursery: trio.Nursery) -> AsyncIterator[Pair]:
    """SGLang's server and ours, of the same policy."""
    await reset(chat_server)
    policy = open_policy(chat_folder)
    model = ServedModel(
        path=str(chat_folder),
        vocab_size=CHAT_MODEL.vocab_size,
        max_prompt_tokens=ENGINE.cache_tokens - 1,
        load_weights=weights_loader(CHAT_MODEL),
        hash_weights=weights_hasher(CHAT_MODEL),
        chat=chat_format(policy),
    )
    host = Host(nursery)
    weights = policy.load_params(None)
    async with open_local_engine(model=CHAT_MODEL, config=ENGINE, weights=weights, version=0) as engine:
        host.serve(engine, model)
        async with (
            open_http_client(chat_server.url) as theirs,
            open_http_client("http://ours", connect=host.connect) as ours,
        ):
            yield theirs, ours


async def ask(pair: Pair, path: str, body: Any, *, status: int = 200) -> tuple[Any, Any]:
    answers = []
    for client in pair:
        response = await (client.get(path) if body is None else client.post(path, body, is_idempotent=True))
        assert response.status == status, (client.url, response)
        answers.append(read(response.body))
    return answers[0], answers[1]


def read(body: bytes) -> Any:
    if body.startswith(b"data: "):
        events = [part.removeprefix(b"data: ") for part in body.split(b"\n\n") if part]
        assert events.pop() == b"[DONE]"
        return [json.loads(event) for event in events]
    return json.loads(body) if body[:1] in (b"{", b"[") else body


def check_same(theirs: Any, ours: Any, *, without: tuple[str, ...] = (), at: str = "") -> None:
    """Every field of ours is one of theirs with the same value, numbers up to rounding; names in `without` exist."""
    assert type(theirs) is type(ours) or {type(theirs), type(ours)} <= {int, float}, (at, theirs, ours)
    if isinstance(ours, dict):
        assert ours.keys() <= theirs.keys(), (at, ours.keys() - theirs.keys())
        for name in ours.keys() - set(without):
            check_same(theirs[name], ours[name], without=without, at=f"{at}.{name}")
    elif isinstance(ours, list):
        assert len(theirs) == len(ours), (at, theirs, ours)
        for index, (their, our) in enumerate(zip(theirs, ours, strict=True)):
            check_same(their, our, without=without, at=f"{at}[{index}]")
    elif isinstance(ours, float):
        assert ours == pytest.approx(theirs, abs=1e-4), (at, theirs, ours)
    else:
        assert theirs == ours, (at, theirs, ours)


PADDED = ("embed_tokens.weight", "lm_head.weight")
VARYING = ("id", "e2e_latency", "weight_version", "version", "created", "cached_tokens", "prompt_tokens_details")


@pytest.mark.parametrize(
    "body",
    [
        {"text": "hello"},
        {"text": "hello", "return_logprob": True},
        {"input_ids": [3, 5, 7], "return_logprob": True},
        {"input_ids": [[3, 5, 7], [4, 4]], "return_logprob": True},
        {"text": ["a", "bc"], "sampling_params": [GREEDY, GREEDY | {"max_new_tokens": 2}]},
        {"text": "x", "sampling_params": GREEDY | {"skip_special_tokens": False, "ignore_eos": True}},
    ],
)
async def test_generations(pair: Pair, body: Any) -> None:
    check_same(*await ask(pair, "/generate", {"sampling_params": GREEDY} | body), without=VARYING)


async def test_a_stream_ends_as_the_whole_answer(pair: Pair) -> None:
    body = {"text": "hello", "sampling_params": GREEDY, "return_logprob": True, "stream": True}
    theirs, ours = await ask(pair, "/generate", body)
    check_same(theirs[-1], ours[-1], without=VARYING)
    for event in ours[:-1]:
        assert event["output_ids"] == theirs[-1]["output_ids"][: len(event["output_ids"])]
        assert event["meta_info"]["finish_reason"] is None
    assert theirs[0]["meta_info"]["finish_reason"] is None


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"input_ids": [5, 6, 7, 8]},
        {"max_completion_tokens": 3},
        {"return_prompt_token_ids": True, "return_token_ids": True, "return_meta_info": True},
        {
            "messages": [
                {"role": "system", "content": "s"},
                *MESSAGES,
                {"role": "assistant", "content": "yes"},
                *MESSAGES,
            ]
        },
    ],
)
async def test_chat_completions(pair: Pair, more: Any) -> None:
    check_same(*await ask(pair, "/v1/chat/completions", CHAT | more), without=VARYING)


async def test_tools_are_rendered_as_they_were_declared(pair: Pair) -> None:
    """SGLang's server adds a field to each that no client has sent; the rest of the answer has the same fields."""
    body = CHAT | {"tools": [{"type": "function", "function": TOOL}], "return_prompt_token_ids": True}
    theirs, ours = await ask(pair, "/v1/chat/completions", body)
    check_same(theirs, ours, without=(*VARYING, "usage", "content", "prompt_token_ids"))
    their_prompt, our_prompt = (bytes(min(i, 255) for i in a["choices"][0]["prompt_token_ids"]) for a in (theirs, ours))
    assert their_prompt.replace(b', "defer_loading": null', b"") == our_prompt


async def test_a_chat_stream_says_the_same(pair: Pair) -> None:
    theirs, ours = await ask(pair, "/v1/chat/completions", CHAT | {"stream": True})
    texts = ["".join(e["choices"][0]["delta"].get("content") or "" for e in events) for events in (theirs, ours)]
    assert texts[0] == texts[1] != ""
    assert {*ours[-1]["choices"][0]} <= {*theirs[-1]["choices"][0]}
    assert ours[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("path", "body"),
    [("/tokenize", {"prompt": "hello"}), ("/detokenize", {"tokens": [104, 105]})],
)
async def test_texts_and_ids(pair: Pair, path: str, body: Any) -> None:
    check_same(*await ask(pair, path, body), without=("max_model_len",))


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/generate", {}, 400),
        ("/generate", {"input_ids": []}, 400),
        ("/generate", {"input_ids": [1], "sampling_params": {"foo": 1}}, 400),
        ("/generate", {"input_ids": [1], "sampling_params": {"temperature": -1}}, 400),
        ("/generate", {"input_ids": [1] * 4200}, 400),
        ("/v1/chat/completions", {"model": "m"}, 400),
        ("/pause_generation", {"mode": "sideways"}, 400),
        ("/update_weights_from_disk", {"model_path": "/nowhere"}, 400),
        ("/update_weights_from_tensor", {"serialized_named_tensors": ["AAAA"]}, 400),
        ("/weights_checker", {"action": "else"}, 400),
        ("/end_weight_update", {}, 400),
        ("/nothing", {}, 404),
        ("/abort_request", {"rid": "unknown"}, 200),
        ("/flush_cache", {}, 200),
        ("/release_memory_occupation", {}, 200),
        ("/resume_memory_occupation", {}, 200),
    ],
)
async def test_the_same_is_refused(pair: Pair, path: str, body: Any, status: int) -> None:
    await ask(pair, path, body, status=status)


@pytest.mark.parametrize("path", ["/health", "/health_generate", "/ping", "/ready"])
async def test_both_are_well(pair: Pair, path: str) -> None:
    await ask(pair, path, None)


@pytest.mark.parametrize("path", ["/model_info", "/get_model_info", "/v1/models", "/v1/loads"])
async def test_what_ours_says_of_itself_is_what_theirs_does(pair: Pair, path: str) -> None:
    def fields(value: Any) -> Any:
        if isinstance(value, list):
            return [fields(part) for part in value]
        return {name: fields(part) for name, part in value.items()} if isinstance(value, dict) else None

    theirs, ours = await ask(pair, path, None)
    check_same(fields(theirs), fields(ours))


async def test_an_update_by_tensors(pair: Pair, tmp_path: Path) -> None:
    folder = write_chat_policy(tmp_path, 1)
    params = load_pretrained(folder)[1]
    tensors = [(n, a.shape, a.view("u4")) for n, a in host_tensors(params, CHAT_MODEL, "float32")]
    body = {
        "serialized_named_tensors": [flattened_bucket(tensors, "float32")],
        "load_format": "flattened_bucket",
        "weight_version": "7",
    }
    asked = {"text": "hello", "sampling_params": GREEDY, "return_logprob": True}
    before, _ = await ask(pair, "/generate", asked)
    check_same(*await ask(pair, "/begin_weight_update", {}), without=("message",))
    await ask(pair, "/begin_weight_update", {}, status=400)
    check_same(*await ask(pair, "/update_weights_from_tensor", body), without=("message",))
    check_same(*await ask(pair, "/end_weight_update", {}), without=("message",))
    theirs, ours = await ask(pair, "/generate", asked)
    check_same(theirs, ours, without=tuple(set(VARYING) - {"version", "weight_version"}))
    assert ours["meta_info"]["weight_version"] == "7"
    assert before["output_ids"] != ours["output_ids"]
    theirs, ours = await ask(pair, "/weights_checker", {"action": "checksum"})
    assert ours.keys() <= theirs.keys()
    assert ours["ranks"][0].keys() <= theirs["ranks"][0].keys()
    their_hashes, our_hashes = theirs["ranks"][0]["checksums"], ours["ranks"][0]["checksums"]
    alike = [name for name in our_hashes if name in their_hashes and not name.endswith(PADDED)]
    assert len(alike) > 10  # all that SGLang neither fuses nor pads
    assert [our_hashes[name] for name in alike] == [their_hashes[name] for name in alike]


async def test_an_update_from_disk_in_a_pause(pair: Pair, tmp_path: Path) -> None:
    body = {"model_path": str(write_chat_policy(tmp_path, 2)), "weight_version": "9"}
    check_same(*await ask(pair, "/pause_generation", {"mode": "retract"}), without=("message",))
    await ask(pair, "/ready", None, status=503)
    check_same(*await ask(pair, "/update_weights_from_disk", body), without=("message",))
    check_same(*await ask(pair, "/continue_generation", {}), without=("message",))
    theirs, ours = await ask(pair, "/generate", {"text": "hello", "sampling_params": GREEDY, "return_logprob": True})
    check_same(theirs, ours, without=tuple(set(VARYING) - {"version", "weight_version"}))
    assert ours["meta_info"]["weight_version"] == "9"
