"""The client of SGLang's interface: what it sends, what it refuses, and how it takes a server's failures."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import trio
from trio.testing import MockClock

from agentrl_jax.engines.http_server import Answer, HttpRequest, json_answer
from agentrl_jax.engines.sglang import open_sglang_engine
from agentrl_jax.engines.weight_folder import check_tensors, tensor_shapes
from agentrl_jax.errors import ConfigError, EngineError
from agentrl_jax.testing.engine import FakeEngine, constant_latency
from agentrl_jax.types import Completion, SamplingParams, VersionSpan, as_ids
from tests.engines.http_fakes import connect_to
from tests.engines.served_engines import FAKE_TENSORS, fake_weights, open_served

PROMPT = as_ids([3, 5, 2])
PARAMS = SamplingParams(temperature=0.8, max_new_tokens=10, seed=11, stop_ids=(15,))


async def test_a_publish_on_the_wire(tmp_path: Path) -> None:
    folder = fake_weights(tmp_path, 4)
    async with open_served(FakeEngine()) as (client, host):
        host.requests.clear()
        await client.publish(folder, 4)
        assert host.paths[2:] == ["/pause_generation", "/update_weights_from_disk", "/continue_generation"]
        bodies = [msgspec.json.decode(request.body) for request in host.requests[2:]]
        assert bodies == [
            {"mode": "retract"},
            {"model_path": str(folder), "weight_version": "4", "flush_cache": True},
            {},
        ]


async def test_a_turn_on_the_wire() -> None:
    async with open_served(FakeEngine(version=3)) as (client, host):
        assert client.version == 3
        await client.generate(PROMPT, PARAMS, session="g1-m2")
        body = msgspec.json.decode(host.requests[-1].body)
    assert len(body.pop("rid")) == 32
    assert body == {
        "input_ids": [3, 5, 2],
        "sampling_params": {
            "temperature": 0.8,
            "max_new_tokens": 10,
            "stop_token_ids": [15],
            "sampling_seed": 11,
            "top_k": -1,
            "top_p": 1.0,
            "min_p": 0.0,
            "min_new_tokens": 0,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "repetition_penalty": 1.0,
            "n": 1,
        },
        "return_logprob": True,
        "session_id": "g1-m2",
        "cache_salt": "v3",
    }


async def test_wrong_shapes_and_unknown_names_are_refused_before_anything_is_sent(tmp_path: Path) -> None:
    right, wrong = np.ones((2, 3), np.float32), np.ones((3, 2), np.float32)
    async with open_served(FakeEngine()) as (client, host):
        for tensors, said in (
            ({"w": wrong}, r"w must have shape \(2, 3\), got \(3, 2\)"),
            ({"w": right, "x": right}, "unknown x"),
            ({"v": right}, "missing w; unknown v"),
        ):
            with pytest.raises(EngineError, match=said):
                await client.publish(fake_weights(tmp_path, 1, **tensors), 1)
        with pytest.raises(EngineError, match="cannot read the weights"):
            await client.publish(tmp_path / "nowhere", 1)
        assert "/pause_generation" not in host.paths
        assert client.version == 0


async def test_a_refused_update_lets_the_server_go_on(tmp_path: Path) -> None:
    async with open_served(FakeEngine(accepts=lambda weights: False)) as (client, host):
        with pytest.raises(EngineError, match="do not fit; serving 0"):
            await client.publish(fake_weights(tmp_path, 1), 1)
        assert host.paths[-1] == "/continue_generation"
        assert client.version == 0
        await client.generate(PROMPT, PARAMS, session="s")


async def test_a_cancelled_publish_lets_the_server_go_on_and_can_be_repeated(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    folder = fake_weights(tmp_path, 1)
    inner = FakeEngine(publish_s=5)
    async with open_served(inner) as (client, host):
        with trio.move_on_after(3) as scope:
            await client.publish(folder, 1)
        assert scope.cancelled_caught
        assert host.paths[-1] == "/continue_generation"
        await client.publish(folder, 1)
        assert client.version == inner.version == 1


async def test_a_publish_in_flight_leaves_spans(tmp_path: Path, autojump_clock: MockClock) -> None:
    autojump_clock.autojump_threshold = 0.25  # threads that read the weights are no reason to jump
    inner = FakeEngine(token_latency=constant_latency(1), script=lambda prompt, sampling: [2] * 9)
    completions: list[Completion] = []
    async with open_served(inner) as (client, _):

        async def ask() -> None:
            completions.append(await client.generate(PROMPT, PARAMS, session="s"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(4.5)
            await client.publish(fake_weights(tmp_path, 6), 6)
    assert completions[0].version_spans == (
        VersionSpan(version=0, start=0, end=4),
        VersionSpan(version=6, start=4, end=10),
    )


async def test_cancelling_aborts_by_name_too(autojump_clock: MockClock) -> None:
    inner = FakeEngine(token_latency=constant_latency(1))
    async with open_served(inner) as (client, host):
        with trio.move_on_after(0.5):
            await client.generate(PROMPT, PARAMS, session="s")
        await trio.testing.wait_all_tasks_blocked()
        rid = msgspec.json.decode(host.requests[-2].body)["rid"]
        assert host.paths[-2:] == ["/generate", "/abort_request"]
        assert msgspec.json.decode(host.requests[-1].body) == {"rid": rid}
        assert inner.statistics().num_aborted == client.statistics().num_aborted == 1
        assert inner.statistics().running == client.statistics().running == 0


async def test_a_turn_that_somebody_else_aborts_is_no_completion(autojump_clock: MockClock) -> None:
    async with open_served(FakeEngine(token_latency=constant_latency(1))) as (client, _):

        async def ask() -> None:
            with pytest.raises(EngineError, match="ended a turn of session 's' by abort"):
                await client.generate(PROMPT, PARAMS, session="s")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(0.5)
            await client.abort_all()


async def test_a_server_that_was_started_again_serves_no_old_turn_unnoticed(tmp_path: Path) -> None:
    async with open_served(FakeEngine()) as (client, host):
        await client.publish(fake_weights(tmp_path, 5), 5)
        host.serve(FakeEngine())
        with pytest.raises(EngineError, match="serves version 0, but was given 5: it has been restarted"):
            await client.generate(PROMPT, PARAMS, session="s")
        assert client.version == 0
        await client.publish(fake_weights(tmp_path, 5), 5)
        assert set((await client.generate(PROMPT, PARAMS, session="s")).versions) == {5}


@pytest.mark.parametrize("token", [None, "wrong"])
async def test_a_wrong_token_is_known_at_once(token: str | None) -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(EngineError, match="answered 401"), flatten_subgroups=True):
        async with open_served(FakeEngine(), server_token="secret", token=token):
            pass


async def test_the_right_token() -> None:
    async with open_served(FakeEngine(), server_token="secret", token="secret") as (client, _):
        await client.generate(PROMPT, PARAMS, session="s")


def old_server(meta: dict[str, Any], ids: list[int]) -> Callable[[HttpRequest], Any]:
    """A server whose weights have no name yet, and which answers every turn alike."""

    async def handler(request: HttpRequest) -> Answer:
        await trio.lowlevel.checkpoint()
        if request.path == "/generate":
            return json_answer({"text": "?", "output_ids": ids, "meta_info": meta})
        return json_answer({"version": "0.5.15", "weight_version": "default", "model_path": "m", "more": [1]})

    return handler


STOPPED = {"type": "stop", "matched": 15}
LOGPROBS = [[-0.5, 4, None], [None, 15, "x"]]


async def ask_old_server(meta: dict[str, Any], ids: list[int], nursery: trio.Nursery) -> Completion:
    connect = connect_to(nursery, lambda: old_server(meta, ids))
    async with open_sglang_engine("http://e", tensors=FAKE_TENSORS, name="sg", version=2, connect=connect) as engine:
        assert (engine.version, engine.server.engine) == (2, "sglang")
        await engine.end_session("s")  # nothing that this server offers
        return await engine.generate(PROMPT, PARAMS, session="s")


async def test_log_07_a_server_that_names_no_spans_and_gives_no_number(nursery: trio.Nursery) -> None:
    meta = {"finish_reason": STOPPED, "weight_version": "default", "output_token_logprobs": LOGPROBS}
    completion = await ask_old_server(meta, [4, 15], nursery)
    assert completion.version_spans == (VersionSpan(version=2, start=0, end=2),)
    assert completion.loss_mask.tolist() == [True, False]
    assert completion.logprobs.tolist() == [-0.5, 0.0]


@pytest.mark.parametrize(
    ("meta", "ids", "said"),
    [
        ({"finish_reason": STOPPED}, [4, 15], "a log-probability for each of 2 ids, got none"),
        ({"finish_reason": STOPPED, "output_token_logprobs": LOGPROBS[:1]}, [4, 15], "each of 2 ids, got 1"),
        ({"finish_reason": STOPPED, "output_token_logprobs": LOGPROBS}, [4, 14], "each of 2 ids, got 2"),
        ({"finish_reason": STOPPED, "output_token_logprobs": []}, [], "each of 0 ids"),
        ({"finish_reason": None, "output_token_logprobs": LOGPROBS}, [4, 15], "by no reason"),
        ({"output_token_logprobs": LOGPROBS}, [4, 15], "expected JSON"),
        (
            {
                "finish_reason": STOPPED,
                "output_token_logprobs": LOGPROBS,
                "weight_versions": [{"version": "1", "start": 0, "end": 1}],
            },
            [4, 15],
            "by no turn: version spans must cover",
        ),
        (
            {"finish_reason": STOPPED, "output_token_logprobs": LOGPROBS, "weight_version": "step-3"},
            [4, 15],
            "somebody else publishes",
        ),
    ],
)
async def test_an_answer_that_is_no_turn(
    nursery: trio.Nursery, meta: dict[str, Any], ids: list[int], said: str
) -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(EngineError, match=said), flatten_subgroups=True):
        await ask_old_server(meta, ids, nursery)


def test_tensors_of_a_folder(tmp_path: Path) -> None:
    folder = fake_weights(tmp_path, 1)
    assert tensor_shapes(folder) == FAKE_TENSORS
    check_tensors(folder, FAKE_TENSORS)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"w": "model.safetensors"}}')
    assert tensor_shapes(folder) == FAKE_TENSORS
    (folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ConfigError, match="weight_map"):
        tensor_shapes(folder)
    (folder / "model.safetensors.index.json").unlink()
    (folder / "model.safetensors").write_bytes(b"\x00" * 20)
    with pytest.raises(ConfigError, match="cannot read the weights"):
        tensor_shapes(folder)
