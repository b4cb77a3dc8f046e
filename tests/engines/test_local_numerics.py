"""Every way to a token gives the log-probability of one plain forward pass: see tiny_engine.reference_logprobs."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from agentrl_jax.engines.local.cache import init_caches
from agentrl_jax.engines.local.device_loop import DeviceLoop, Event, Submit, Swap, Swapped
from agentrl_jax.engines.local.forward import prefill_chunk
from agentrl_jax.engines.local.runner import Runner
from agentrl_jax.engines.local.scheduler import Scheduler
from agentrl_jax.engines.local.steps import Draws
from agentrl_jax.engines.local.turns import ServedTurn
from agentrl_jax.engines.local.weights import split_layers
from agentrl_jax.types import Ids, VersionSpan, as_ids
from tests.engines.tiny_engine import (
    CONFIG,
    MODEL,
    check_logprobs,
    open_tiny,
    params,
    random_weights,
    reference_logprobs,
)

WEIGHTS = {version: random_weights(version) for version in range(3)}


def random_ids(seed: int, length: int) -> Ids:
    return as_ids(np.random.default_rng(seed).integers(0, MODEL.vocab_size, length))


@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0])
async def test_fresh_prompts_of_every_length(temperature: float) -> None:
    async with open_tiny() as engine:
        for length in (1, 2, 3, 4, 5, 8, 9, 17, 30, 44):  # around each prefill shape, up to the cache's end
            prompt = random_ids(length, length)
            completion = await engine.generate(
                prompt, params(temperature=temperature, seed=length), session=f"{length}"
            )
            assert len(completion.ids) == min(8, 45 - length)
            assert completion.finish_reason == "length"
            check_logprobs(WEIGHTS, prompt, completion, temperature)


async def test_later_turns_on_a_kept_prefix() -> None:
    async with open_tiny() as engine:
        prompt, held = random_ids(1, 6), 0
        for turn, added in enumerate((1, 5, 2, 9)):
            completion = await engine.generate(prompt, params(max_new_tokens=4, seed=turn), session="s")
            assert completion.cached_tokens == held
            check_logprobs(WEIGHTS, prompt, completion, 1.0)
            held = len(prompt) + len(completion.ids) - 1  # the last sampled id was never fed
            prompt = as_ids([*prompt, *completion.ids, *random_ids(turn, added)])


async def test_a_prompt_that_leaves_its_kept_prefix_half_way() -> None:
    async with open_tiny() as engine:
        first = random_ids(1, 20)
        await engine.generate(first, params(), session="s")
        forked = as_ids([*first[:11], (first[11] + 1) % MODEL.vocab_size, *random_ids(2, 9)])
        completion = await engine.generate(forked, params(), session="s")
        assert completion.cached_tokens == 11
        check_logprobs(WEIGHTS, forked, completion, 1.0)


async def test_a_chunk_that_overruns_the_end_of_the_cache() -> None:
    async with open_tiny() as engine:
        first = random_ids(1, 38)
        completion = await engine.generate(first, params(max_new_tokens=2), session="s")
        prompt = as_ids([*first, *completion.ids, 3, 4, 5, 6])  # 39 held: a chunk of 8 would end at 47 of 45
        completion = await engine.generate(prompt, params(), session="s")
        assert completion.cached_tokens == 39
        assert len(completion.ids) == 1
        check_logprobs(WEIGHTS, prompt, completion, 1.0)
        once_more = await engine.generate(prompt, params(), session="s")  # nothing of the slot was damaged
        assert once_more.cached_tokens == 43
        check_logprobs(WEIGHTS, prompt, once_more, 1.0)


def test_a_publish_within_a_turn_recomputes_everything_before_the_next_token() -> None:
    events: list[Event] = []
    runner = Runner(MODEL, CONFIG, WEIGHTS[0], jax.devices()[0])
    loop = DeviceLoop(runner, Scheduler(CONFIG, 0), events.extend)
    turns = [
        ServedTurn(i, random_ids(i, 5 + 6 * i), params(max_new_tokens=24, seed=i, temperature=0.7), f"s{i}")
        for i in range(3)
    ]
    for turn in turns:
        loop.inbox.put(Submit(turn))
    for version in (1, 2):
        while min(len(turn.ids) for turn in turns) < 3 * version:
            loop.step(wait=False)
        loop.inbox.put(Swap(runner.stage(WEIGHTS[version]), version))
    while loop.statistics.running:
        loop.step(wait=False)
    assert [event.version for event in events if isinstance(event, Swapped)] == [1, 2]
    for turn in turns:
        completion = turn.completion(engine="e", pool="current")
        assert [span.version for span in completion.version_spans] == [0, 1, 2]
        assert len(completion.ids) == 24
        check_logprobs(WEIGHTS, turn.prompt, completion, 0.7)
    assert turns[0].completion(engine="e", pool="current").version_spans[0] == VersionSpan(version=0, start=0, end=7)


async def test_bfloat16_serves_float32_weights_and_stays_close() -> None:
    config = replace(CONFIG, dtype="bfloat16", num_slots=1, prefill_shapes=((1, 8),))
    weights = {version: jax.tree.map(lambda leaf: leaf * np.float32(0.7), tree) for version, tree in WEIGHTS.items()}
    async with open_tiny(config=config, weights=weights[0]) as engine:
        prompt = random_ids(1, 12)
        for version in (0, 1):
            completion = await engine.generate(prompt, params(max_new_tokens=12), session="s")
            assert set(completion.versions) == {version}
            table = reference_logprobs(weights[version], [*prompt, *completion.ids[:-1]], 1.0)[len(prompt) - 1 :]
            errors = np.abs(completion.logprobs - table[np.arange(12), completion.ids])
            assert 1e-4 < errors.max() < 0.3
            await engine.publish(weights[version + 1], version + 1)


def test_an_untied_head_is_used() -> None:
    model = replace(MODEL, tie_embeddings=False)
    weights = random_weights(5, model)
    ids = random_ids(3, 6)
    row = np.array([0], np.int32)
    draws = Draws(np.zeros((1, 2), np.uint32), row, np.zeros(1, np.float32))
    caches = init_caches(model, 1, 8, np.float32)
    prefill = jax.jit(partial(prefill_chunk, model=model, banned_ids=()))
    _, token, logprob = prefill(split_layers(weights), caches, ids[None], row, row, np.array([6], np.int32), draws)
    table: Any = reference_logprobs(weights, ids, 0.0, model)[-1]
    assert token[0] == table.argmax()
    np.testing.assert_allclose(logprob[0], table.max(), atol=1e-4)
