"""What a real SGLang server does to turns: log-probabilities, spans, aborts, pauses, bad weights, its death."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from agentrl_jax.engines.probe import probe_logprobs
from agentrl_jax.engines.sglang import SGLangEngine, open_sglang_engine
from agentrl_jax.engines.sglang_schema import PauseMode
from agentrl_jax.engines.weight_folder import tensor_shapes
from agentrl_jax.errors import EngineError
from agentrl_jax.types import Completion, Floats, Ids, SamplingParams, VersionSpan, as_ids
from tests.engines.served_engines import fake_weights
from tests.engines.tiny_engine import check_logprobs, random_weights, reference_logprobs
from tests.sglang_cpu.models import IDS_MODEL, write_ids_policy
from tests.sglang_cpu.reset import reset, slow_down
from tests.sglang_cpu.servers import SGLangServer

pytestmark = pytest.mark.sglang

PROMPT = as_ids([3, 5, 2, 7, 4, 6, 5])
PARAMS = SamplingParams(temperature=0.7, max_new_tokens=24, seed=0, stop_ids=(IDS_MODEL.vocab_size,))
WEIGHTS = {seed: random_weights(seed, IDS_MODEL) for seed in range(3)}

Open = Callable[..., AbstractAsyncContextManager[SGLangEngine]]


@pytest.fixture
async def open_engine(ids_server: SGLangServer) -> AsyncIterator[Open]:
    """Opens clients of the shared server, which serves seed 0 as version 0."""
    await reset(ids_server)
    tensors = tensor_shapes(ids_server.folder)
    yield lambda **options: open_sglang_engine(ids_server.url, **({"tensors": tensors, "name": "sg"} | options))
    await reset(ids_server)


def check(prompt: Ids, completion: Completion, temperature: float) -> None:
    check_logprobs(WEIGHTS, prompt, completion, temperature, IDS_MODEL)


async def score(ids: Ids, temperature: float) -> Floats:
    await trio.lowlevel.checkpoint()
    table = reference_logprobs(WEIGHTS[0], ids[:-1], temperature, IDS_MODEL)
    return table[np.arange(len(ids) - 1), ids[1:]].astype(np.float32)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
async def test_log_probabilities_are_the_learners(open_engine: Open, temperature: float) -> None:
    async with open_engine() as engine:
        prompt = PROMPT
        for _ in range(3):  # the later turns build on a kept prefix
            completion = await engine.generate(prompt, replace(PARAMS, temperature=temperature), session="s")
            check(prompt, completion, temperature)
            prompt = as_ids([*prompt, *completion.ids, 3, 4])
        assert completion.cached_tokens > len(PROMPT)


async def test_the_probe_passes_it_and_fails_other_weights(open_engine: Open, tmp_path: Path) -> None:
    async with open_engine() as engine:
        probe = {"prompt": PROMPT, "stop_ids": (19,), "temperature": 0.7, "tolerance": 1e-4}
        assert 0 < await probe_logprobs(engine, score, **probe) < 1e-4
        await engine.publish(write_ids_policy(tmp_path, 1), 1)
        with pytest.raises(EngineError, match="serves other weights"):
            await probe_logprobs(engine, score, **probe)


async def begin(engine: SGLangEngine, send: trio.MemorySendChannel[Completion | EngineError], **changes: Any) -> None:
    try:
        await send.send(await engine.generate(PROMPT, replace(PARAMS, **changes), session="s"))
    except EngineError as error:
        await send.send(error)


async def in_flight(server: SGLangServer, engine: SGLangEngine, act: Callable[[], Awaitable[None]]) -> Any:
    """What becomes of a turn of 24 ids, each of which takes 50 ms, during which `act` is called."""
    await slow_down(server, 0.05)
    send, receive = trio.open_memory_channel[Completion | EngineError](1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(begin, engine, send)
        await trio.sleep(0.4)
        await act()
        await slow_down(server, 0)
        return await receive.receive()


@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_a_publish_in_flight_leaves_spans(
    open_engine: Open, ids_server: SGLangServer, tmp_path: Path, mode: PauseMode
) -> None:
    folder = write_ids_policy(tmp_path, 2)
    async with open_engine(pause_mode=mode) as engine:
        completion = await in_flight(ids_server, engine, lambda: engine.publish(folder, 2))
        old, new = completion.version_spans
        assert (old.version, old.start, new.version, new.end) == (0, 0, 2, 24)
        assert 2 <= old.end == new.start <= 22
        if mode == "retract":  # every id is that of its own version, the cache computed anew
            check(PROMPT, completion, 0.7)
        kept = await engine.generate(as_ids([*PROMPT, *completion.ids]), PARAMS, session="s")
        assert (kept.cached_tokens > len(PROMPT)) == (mode == "in_place")
        after = await engine.generate(PROMPT, PARAMS, session="another")
        assert after.version_spans == (VersionSpan(version=2, start=0, end=24),)
        check(PROMPT, after, 0.7)  # and nothing of the old cache is left to it


async def test_a_publish_by_abort_fails_the_turn_that_runs(
    open_engine: Open, ids_server: SGLangServer, tmp_path: Path
) -> None:
    folder = write_ids_policy(tmp_path, 2)
    async with open_engine(pause_mode="abort") as engine:
        error = await in_flight(ids_server, engine, lambda: engine.publish(folder, 2))
        assert isinstance(error, EngineError)
        assert "by abort" in str(error)
        assert set((await engine.generate(PROMPT, PARAMS, session="s")).versions) == {2}


async def test_aborting_all_ends_the_turn_that_runs(open_engine: Open, ids_server: SGLangServer) -> None:
    async with open_engine() as engine:
        error = await in_flight(ids_server, engine, engine.abort_all)
        assert isinstance(error, EngineError)
        assert "by abort" in str(error)
        await engine.pause()
        with pytest.raises(EngineError, match="is paused"):
            await engine.abort_all()
        await engine.resume()


async def test_giving_up_ends_the_turn_on_the_server(open_engine: Open, ids_server: SGLangServer) -> None:
    async with open_engine() as engine:
        await slow_down(ids_server, 0.02)
        with trio.move_on_after(0.2) as scope:
            await engine.generate(PROMPT, replace(PARAMS, max_new_tokens=3000), session="s")
        assert scope.cancelled_caught
        await engine.generate(PROMPT, replace(PARAMS, max_new_tokens=4), session="t")
        await engine.flush()  # which is refused while a turn runs
        assert engine.statistics().num_aborted == 1


async def test_giving_up_in_a_pause_ends_the_turn_when_it_is_over(open_engine: Open, ids_server: SGLangServer) -> None:
    async with open_engine() as engine:
        await engine.pause()
        with trio.move_on_after(0.2):
            await engine.generate(PROMPT, replace(PARAMS, max_new_tokens=3000), session="s")
        await trio.sleep(0.1)
        await slow_down(ids_server, 0.01)
        await engine.resume()
        await engine.generate(PROMPT, replace(PARAMS, max_new_tokens=8), session="t")
        await engine.flush()


async def test_weights_that_would_end_the_server_are_refused_here(open_engine: Open, tmp_path: Path) -> None:
    right = write_ids_policy(tmp_path / "right", 1)
    async with open_engine() as engine:
        with pytest.raises(EngineError, match="missing"):
            await engine.publish(fake_weights(tmp_path, 1), 1)
        with pytest.raises(EngineError, match=r"ids must be in \[0, 19\), got 3 to 19"):
            await engine.generate(as_ids([3, 19]), PARAMS, session="s")
        await engine.publish(right, 1)
        check(PROMPT, await engine.generate(PROMPT, PARAMS, session="s"), 0.7)


async def test_memory_that_is_released_serves_nothing(open_engine: Open, tmp_path: Path) -> None:
    folder = write_ids_policy(tmp_path, 1)
    async with open_engine() as engine:
        await engine.release_memory()
        with pytest.raises(EngineError, match="memory is released"):
            await engine.generate(PROMPT, PARAMS, session="s")
        with pytest.raises(EngineError, match="memory of its weights is released"):
            await engine.publish(folder, 1)
        await engine.restore_memory(["weights"])
        await engine.publish(folder, 1)
        with pytest.raises(EngineError, match="memory is released"):
            await engine.generate(PROMPT, PARAMS, session="s")
        await engine.restore_memory(["kv_cache", "cuda_graph"])
        assert set((await engine.generate(PROMPT, PARAMS, session="s")).versions) == {1}


async def test_a_flush_forgets_prefixes(open_engine: Open, ids_server: SGLangServer) -> None:
    async with open_engine() as engine:
        await engine.generate(PROMPT, PARAMS, session="s")
        assert (await engine.generate(PROMPT, PARAMS, session="s")).cached_tokens > 0
        await slow_down(ids_server, 0.02)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(engine.generate, PROMPT, PARAMS, session="t"))
            await trio.sleep(0.2)
            with pytest.raises(EngineError, match="Flush cache failed"):
                await engine.flush()
        await engine.flush()
        assert (await engine.generate(PROMPT, PARAMS, session="s")).cached_tokens == 0
