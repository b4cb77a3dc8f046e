"""The server behind SGLang's interface: what it answers, and what it refuses."""

import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import trio
from trio.testing import MockClock

from agentrl_jax.engines.http import HttpClient, HttpResponse, open_http_client
from agentrl_jax.errors import ConfigError
from agentrl_jax.testing.engine import FakeEngine, constant_latency
from tests.engines.served_engines import FAKE_MODEL, Host

PROMPT = [3, 5, 2, 7]


def only_existing(folder: Path) -> str:
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder")
    return str(folder)


class Served:
    """A fake engine of one token a second, its server and a bare HTTP client."""

    def __init__(self, engine: FakeEngine, host: Host, client: HttpClient) -> None:
        self.engine, self.host, self.client = engine, host, client

    async def post(self, path: str, body: Any = None, *, status: int = 200) -> Any:
        response = await self.client.post(path, {} if body is None else body, is_idempotent=True)
        return self.read(response, status)

    async def get(self, path: str, *, status: int = 200) -> Any:
        return self.read(await self.client.get(path), status)

    def read(self, response: HttpResponse, status: int) -> Any:
        assert response.status == status, response.body
        return msgspec.json.decode(response.body) if response.body[:1] in (b"{", b"[") else response.body

    async def generate(self, **fields: Any) -> Any:
        sampling = {"max_new_tokens": 8, "ignore_eos": False, "stop_token_ids": [15], "sampling_seed": 1}
        body = {"input_ids": PROMPT, "sampling_params": sampling | fields.pop("sampling_params", {})} | fields
        return await self.post("/generate", body)


@pytest.fixture
async def served(nursery: trio.Nursery) -> AsyncIterator[Served]:
    engine = FakeEngine(token_latency=constant_latency(1), accepts=lambda weights: weights != "bad")
    host = Host(nursery)
    host.serve(engine, replace(FAKE_MODEL, load_weights=only_existing))
    async with open_http_client("http://e", connect=host.connect) as client:
        yield Served(engine, host, client)


async def test_a_generation(served: Served, autojump_clock: MockClock) -> None:
    answer = await served.generate(rid="r1", return_logprob=True)
    ids, meta = answer["output_ids"], answer["meta_info"]
    logprobs = meta.pop("output_token_logprobs")
    assert [token for _, token, _ in logprobs] == ids
    assert all(logprob <= 0 for logprob, _, _ in logprobs)
    is_stop = ids[-1] == 15
    reason = {"type": "stop", "matched": 15} if is_stop else {"type": "length", "length": 8}
    assert meta == {
        "id": "r1",
        "finish_reason": reason,
        "prompt_tokens": 4,
        "completion_tokens": len(ids),
        "cached_tokens": 0,
        "weight_version": "0",
        "weight_versions": [{"version": "0", "start": 0, "end": len(ids)}],
        "num_retractions": 0,
        "e2e_latency": pytest.approx(len(ids)),
        "input_token_logprobs": [],
        "output_token_logprobs_length": len(ids),
    }
    assert "text" not in answer
    again = await served.generate()
    assert again["output_ids"] == ids
    assert "output_token_logprobs" not in again["meta_info"]


async def test_a_log_probability_that_is_not_finite_is_null(served: Served, autojump_clock: MockClock) -> None:
    served.engine.nonfinite_positions = (0,)
    answer = await served.generate(return_logprob=True, sampling_params={"max_new_tokens": 1})
    assert answer["meta_info"]["output_token_logprobs"][0][0] is None


async def test_requests_without_a_seed_differ(served: Served, autojump_clock: MockClock) -> None:
    answers = [await served.generate(sampling_params={"sampling_seed": None}) for _ in range(6)]
    assert len({tuple(answer["output_ids"]) for answer in answers}) > 1
    assert served.engine.sessions == frozenset()  # nothing is kept for who did not ask for it


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "must be a JSON object"),
        (b"\xff", "must be a JSON object|does not fit"),
        (b"[" * 100_000, "must be a JSON object|does not fit"),
        (b"[]", "Expected `object`, got `array`"),
        (b"{}", "either input_ids or text"),
        (b'{"input_ids":[1],"text":"a"}', "either input_ids or text"),
        (b'{"text":"a"}', "no tokenizer"),
        (b'{"input_ids":[]}', "at least one id"),
        (b'{"input_ids":[1,16]}', r"must be in \[0, 16\), got 1 to 16"),
        (b'{"input_ids":[-1]}', r"must be in \[0, 16\)"),
        (b'{"input_ids":[99999999999999999999999]}', "does not fit|must be in"),
        (b'{"input_ids":["1"]}', r"Expected `int \| array`, got `str` - at `\$\.input_ids\[0\]`"),
        (b'{"input_ids":[' + b"1," * 40 + b"1]}", r"41 tokens\) is longer than this engine's limit \(40"),
        (b'{"input_ids":[1],"sampling_params":{"temprature":1}}', "unknown field `temprature`"),
        (b'{"input_ids":[1],"sampling_params":{"temperature":-1}}', "temperature"),
        (b'{"input_ids":[1],"sampling_params":{"temperature":1e999}}', "temperature|out of range"),
        (b'{"input_ids":[1],"sampling_params":{"max_new_tokens":0}}', "max_new_tokens"),
        (b'{"input_ids":[1],"sampling_params":{"top_p":0}}', r"top_p must be in \(0, 1\]"),
        (b'{"input_ids":[1],"sampling_params":{"n":2}}', "only n = 1, got 2"),
        (b'{"input_ids":[1],"sampling_params":{"stop":["x"]}}', "only stop = None"),
        (b'{"input_ids":[1],"return_logprob":true,"logprob_start_len":0}', "logprob_start_len"),
        (b'{"input_ids":[1],"top_logprobs_num":3}', "top_logprobs_num"),
    ],
)
async def test_what_cannot_be_sampled_is_refused_by_name(
    served: Served, autojump_clock: MockClock, body: bytes, said: str
) -> None:
    response = await served.client.request("POST", "/generate", body, is_idempotent=True)
    assert response.status == 400
    assert re.search(said, msgspec.json.decode(response.body)["error"]["message"])
    assert served.engine.statistics().num_requests == 0


async def test_a_name_in_use_is_refused_and_free_again_later(served: Served, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: served.generate(rid="r"))
        await trio.testing.wait_all_tasks_blocked()
        for stream in (False, True):
            answer = await served.post("/generate", {"rid": "r", "input_ids": [1], "stream": stream}, status=400)
            assert answer["error"]["message"] == "Duplicate request ID detected: r"
    await served.generate(rid="r")


async def abort_after(served: Served, seconds: float, path: str, body: Any) -> Any:
    answers = []

    async def ask() -> None:
        answers.append(await served.generate(rid="r", return_logprob=True, sampling_params={"max_new_tokens": 30}))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.sleep(seconds)
        await served.post(path, body)
    return answers[0]


@pytest.mark.parametrize(
    ("path", "body"),
    [("/abort_request", {"rid": "r"}), ("/abort_request", {"abort_all": True}), ("/pause_generation", {})],
)
async def test_an_aborted_turn_returns_what_it_had(
    served: Served, autojump_clock: MockClock, path: str, body: Any
) -> None:
    served.engine.script = lambda prompt, sampling: [2] * 30
    answer = await abort_after(served, 3.5, path, body)
    assert answer["output_ids"] == [2, 2, 2]
    meta = answer["meta_info"]
    assert meta["finish_reason"]["type"] == "abort"
    assert len(meta["output_token_logprobs"]) == 3
    assert meta["weight_versions"] == [{"version": "0", "start": 0, "end": 3}]
    assert served.engine.statistics().running == 0


async def test_weights_are_loaded_and_hashed_before_the_pause_in_which_they_are_served(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    deeds: list[str] = []

    def load(folder: Path) -> str:
        deeds.append(f"load {folder.name}")
        return only_existing(folder)

    def hash_weights(weights: str) -> dict[str, str]:
        deeds.append(f"hash {Path(weights).name}")
        return {"w": Path(weights).name}

    host = Host(nursery)
    host.serve(FakeEngine(), replace(FAKE_MODEL, path=str(tmp_path), load_weights=load, hash_weights=hash_weights))
    async with open_http_client("http://e", connect=host.connect) as client:
        served = Served(FakeEngine(), host, client)
        folders = {name: {"model_path": str(tmp_path / name)} for name in ("one", "two", "none")}
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
        for _ in range(2):  # asked for again, it is done already
            assert await served.post("/stage_weights", folders["one"]) == {"success": True, "message": "Succeeded."}
        assert deeds == ["load one", "hash one"]
        assert (await served.get("/model_info"))["model_path"] == str(tmp_path)  # nothing else has changed
        await served.post("/update_weights_from_disk", folders["one"] | {"weight_version": "1"})
        checked = await served.post("/weights_checker", {"action": "checksum"})
        assert checked["ranks"][0]["checksums"] == {"w": "one"}
        assert deeds == ["load one", "hash one"]

        # Weights that were found to be wrong are loaded anew under the same name.
        await served.post("/stage_weights", folders["one"])
        await served.post("/update_weights_from_disk", folders["one"] | {"weight_version": "1"})
        assert deeds == ["load one", "hash one"] * 2
        assert (await served.get("/model_info"))["weight_version"] == "1"
        await served.post("/update_weights_from_disk", folders["one"] | {"weight_version": "1"})
        del deeds[2:]

        # What was staged and is not wanted is never served, and what is wanted need not have been staged.
        await served.post("/stage_weights", folders["one"])
        await served.post("/update_weights_from_disk", folders["two"] | {"weight_version": "2"})
        checked = await served.post("/weights_checker", {"action": "checksum"})
        assert checked["ranks"][0]["checksums"] == {"w": "two"}
        assert deeds[2:] == ["load one", "hash one", "load two", "hash two"]
        refused = await served.post("/stage_weights", folders["none"], status=400)
        assert "no such folder" in refused["message"]
        assert (await served.get("/model_info"))["weight_version"] == "2"
    nursery.cancel_scope.cancel()


async def test_an_abort_before_the_first_token_and_of_nobody(served: Served, autojump_clock: MockClock) -> None:
    answer = await abort_after(served, 0.5, "/abort_request", {"rid": "r"})
    assert answer["output_ids"] == []
    assert answer["meta_info"]["weight_versions"] == [{"version": "0", "start": 0, "end": 0}]
    await served.post("/abort_request", {"rid": "unknown"})
    await served.post("/abort_request", {}, status=400)


async def test_a_client_that_leaves_aborts_its_turn(served: Served, autojump_clock: MockClock) -> None:
    for stream in (False, True):
        with trio.move_on_after(2.5):
            await served.generate(stream=stream, sampling_params={"max_new_tokens": 30})
        await trio.testing.wait_all_tasks_blocked()
    assert served.engine.statistics().num_aborted == 2
    assert served.engine.statistics().running == 0


def events(body: bytes) -> list[Any]:
    parts = [part.removeprefix(b"data: ") for part in body.split(b"\n\n") if part]
    assert parts.pop() == b"[DONE]"
    return [json.loads(part) for part in parts]


async def test_a_stream_tells_all_so_far_and_ends_as_the_whole_answer_would(
    served: Served, autojump_clock: MockClock
) -> None:
    body = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 6, "sampling_seed": 3}, "return_logprob": True}
    whole = await served.post("/generate", {**body, "rid": "a"})
    chunks = events(await served.post("/generate", {**body, "rid": "a", "stream": True}))
    assert len(chunks) >= 6
    for count, chunk in enumerate(chunks[:-1], 1):
        assert chunk["output_ids"] == whole["output_ids"][:count]
        assert chunk["meta_info"]["finish_reason"] is None
    assert chunks[-1] == whole


async def test_a_stream_whose_engine_fails_says_so(served: Served, autojump_clock: MockClock) -> None:
    served.engine.fails = lambda session, sampling: True
    (event,) = events(await served.post("/generate", {"input_ids": [1], "stream": True}))
    assert "failed on purpose" in event["error"]["message"]


async def test_an_engine_that_fails_is_no_fault_of_the_request(served: Served, autojump_clock: MockClock) -> None:
    served.engine.die()
    answer = await served.post("/generate", {"input_ids": [1]}, status=503)
    assert "is dead" in answer["error"]["message"]


@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_an_update_in_flight(served: Served, autojump_clock: MockClock, tmp_path: Path, mode: str) -> None:
    served.engine.script = lambda prompt, sampling: [2] * 10
    answers = []

    async def ask() -> None:
        answers.append(await served.generate(sampling_params={"max_new_tokens": 10}))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.sleep(4.5)
        await served.post("/pause_generation", {"mode": mode})
        await served.get("/ready", status=503)
        await served.get("/health")
        await trio.sleep(100)
        assert answers == []
        body = {"model_path": str(tmp_path), "weight_version": "7", "flush_cache": False}
        verdict = await served.post("/update_weights_from_disk", body)
        assert verdict["success"] is True
        await served.post("/continue_generation", {})
        await served.get("/ready")
    meta = answers[0]["meta_info"]
    assert meta["weight_versions"] == [
        {"version": "0", "start": 0, "end": 4},
        {"version": "7", "start": 4, "end": 10},
    ]
    assert (meta["weight_version"], meta["num_retractions"]) == ("7", 1)
    info = await served.get("/model_info")
    assert (info["weight_version"], info["model_path"]) == ("7", str(tmp_path))


async def test_updates_have_any_name_and_a_repeated_one_changes_nothing(
    served: Served, autojump_clock: MockClock, tmp_path: Path
) -> None:
    for number in range(2):
        (tmp_path / str(number)).mkdir()
    first, second = str(tmp_path / "0"), str(tmp_path / "1")

    async def update(status: int = 200, **body: Any) -> str:
        answer = await served.post("/update_weights_from_disk", body, status=status)
        assert answer["success"] is (status == 200)
        return str(answer["message"])

    await update(model_path=first)
    assert served.engine.version == 1
    await update(model_path=first, weight_version="1")
    assert served.engine.statistics().num_publishes == 1
    assert "no such folder" in await update(400, model_path="/nowhere", weight_version="5")
    assert served.engine.version == 1
    for number, name in enumerate(["9", "new", "1", "1", "0"]):  # names may come again, with other weights
        await update(model_path=(first, second)[number % 2], weight_version=name, abort_all_requests=True)
        assert (await served.get("/model_info"))["weight_version"] == name
        meta = (await served.generate())["meta_info"]
        assert meta["weight_versions"] == [{"version": name, "start": 0, "end": meta["completion_tokens"]}]
    assert served.engine.version == 13


async def test_update_sessions_open_and_end_once(served: Served, autojump_clock: MockClock) -> None:
    await served.post("/end_weight_update", {}, status=400)
    await served.post("/begin_weight_update", {"selector": "all"})
    assert "already open" in (await served.post("/begin_weight_update", {}, status=400))["message"]
    await served.post("/end_weight_update", {})
    await served.post("/begin_weight_update", {})


async def test_sessions_keep_prefixes_until_closed_or_flushed(served: Served, autojump_clock: MockClock) -> None:
    first = await served.generate(session_id="s", sampling_params={"max_new_tokens": 2})
    second = await served.generate(session_id="s", input_ids=[*PROMPT, *first["output_ids"], 3])
    assert second["meta_info"]["cached_tokens"] == 6
    await served.post("/close_session", {"session_id": "s"})
    assert (await served.generate(session_id="s"))["meta_info"]["cached_tokens"] == 0
    assert (await served.post("/flush_cache")) == b"Cache flushed."
    assert served.engine.sessions == frozenset()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: served.generate(session_id="s"))
        await trio.testing.wait_all_tasks_blocked()
        assert (await served.get("/flush_cache", status=400)) == b"Flush cache failed."


async def test_what_it_says_of_itself(served: Served, autojump_clock: MockClock) -> None:
    info = await served.get("/server_info")
    assert (info["engine"], info["max_req_input_len"], info["is_paused"]) == ("agentrl_jax", 40, False)
    assert info == await served.get("/get_server_info")
    assert (await served.get("/get_model_info"))["weight_version"] == "0"
    assert (await served.get("/v1/models"))["data"][0]["id"] == "fake"
    assert (await served.get("/v1/loads"))["loads"][0]["num_running_reqs"] == 0
    await served.get("/health_generate")


async def test_paths_and_methods_that_are_none(served: Served, autojump_clock: MockClock) -> None:
    await served.get("/nothing", status=404)
    assert "takes POST, got GET" in (await served.get("/generate", status=405))["error"]["message"]
    answer = await served.post("/update_weights_from_distributed", {}, status=501)
    assert "/update_weights_from_disk" in answer["error"]["message"]
    answer = await served.post("/update_weight_version", {"new_version": "3"}, status=501)
    assert "request that brought them" in answer["error"]["message"]
    await served.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}, status=400)


@pytest.mark.parametrize(("token", "status"), [(None, 401), ("wrong", 401), ("secret", 200)])
async def test_a_token_guards_all_but_health(nursery: trio.Nursery, token: str | None, status: int) -> None:
    host = Host(nursery)
    host.serve(FakeEngine(), token="secret")
    headers = {} if token is None else {"token": token}
    async with open_http_client("http://e", connect=host.connect, **headers) as client:
        for path in ("/model_info", "/server_info", "/v1/models", "/health_generate"):
            assert (await client.get(path)).status == status
        assert (await client.post("/abort_request", {"abort_all": True}, is_idempotent=True)).status == status
        assert (await client.get("/unknown")).status == (404 if status == 200 else 401)
        for path in ("/health", "/ready"):
            assert (await client.get(path)).status == 200


def test_nan_never_reaches_json() -> None:
    assert msgspec.json.encode([np.nan, np.inf]) == b"[null,null]"
