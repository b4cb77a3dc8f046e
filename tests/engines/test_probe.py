"""The probe of an engine's log-probabilities, against a learner that is right, and ones that are not."""

import numpy as np
import pytest
import trio

from agentrl_jax.engines.probe import probe_logprobs
from agentrl_jax.errors import EngineError
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.types import Floats, Ids, as_ids
from tests.engines.tiny_engine import open_tiny, random_weights, reference_logprobs

PROMPT = as_ids([3, 5, 2, 7])


async def score_by(seed: int, ids: Ids, temperature: float) -> Floats:
    await trio.lowlevel.checkpoint()
    table = reference_logprobs(random_weights(seed), ids[:-1], temperature)
    return table[np.arange(len(ids) - 1), ids[1:]].astype(np.float32)


async def right(ids: Ids, temperature: float) -> Floats:
    return await score_by(0, ids, temperature)


async def other_weights(ids: Ids, temperature: float) -> Floats:
    return await score_by(1, ids, temperature)


async def test_an_engine_that_is_right() -> None:
    async with open_tiny() as engine:
        worst = await probe_logprobs(engine, right, prompt=PROMPT, stop_ids=(15,), temperature=0.7, tolerance=1e-4)
        assert 0 < worst < 1e-4
        assert engine.statistics().sampled_tokens == 8


async def test_an_engine_that_serves_other_weights() -> None:
    async with open_tiny() as engine:
        with pytest.raises(EngineError, match=r"within 0\.0001 of the learner's .* it serves other weights"):
            await probe_logprobs(engine, other_weights, prompt=PROMPT, stop_ids=(15,), temperature=0.7, tolerance=1e-4)


async def test_an_engine_that_ignores_the_temperature() -> None:
    async def hotter(ids: Ids, temperature: float) -> Floats:
        return await right(ids, temperature / 0.7)  # at 0.7 the engine's are what this calls 0.49, or 1 called 0.7

    async with open_tiny() as engine:
        with pytest.raises(EngineError, match="SGLANG_RETURN_ORIGINAL_LOGPROB"):
            await probe_logprobs(engine, _colder, prompt=PROMPT, stop_ids=(15,), temperature=0.7, tolerance=1e-4)
        with pytest.raises(EngineError, match="other weights"):
            await probe_logprobs(engine, hotter, prompt=PROMPT, stop_ids=(15,), temperature=0.7, tolerance=1e-4)


async def _colder(ids: Ids, temperature: float) -> Floats:
    """What a learner says of an engine that reports its draws at 0.7 as if this were 1."""
    return await right(ids, {0.7: 0.3, 1.0: 0.7}[temperature])


async def test_turns_that_stop_early_are_followed_by_others() -> None:
    engine = FakeEngine(script=lambda prompt, sampling: [2])
    asked: list[int] = []

    async def score(ids: Ids, temperature: float) -> Floats:
        await trio.lowlevel.checkpoint()
        asked.append(len(ids) - len(PROMPT))
        return np.zeros(len(ids) - 1, np.float32)

    await probe_logprobs(engine, score, prompt=PROMPT, stop_ids=(15,), temperature=1.0, tolerance=100.0)
    assert sum(asked) == 8


async def test_what_is_no_number_is_never_close() -> None:
    async def nan(ids: Ids, temperature: float) -> Floats:
        await trio.lowlevel.checkpoint()
        return np.full(len(ids) - 1, np.nan, np.float32)

    with pytest.raises(EngineError, match="nan"):
        await probe_logprobs(FakeEngine(), nan, prompt=PROMPT, stop_ids=(15,), temperature=1.0, tolerance=1e-4)
    engine = FakeEngine(nonfinite_positions=(0,))
    with pytest.raises(EngineError, match="not finite"):
        await probe_logprobs(engine, nan, prompt=PROMPT, stop_ids=(15,), temperature=1.0, tolerance=1e-4)
    with pytest.raises(EngineError, match="must be > 0"):
        await probe_logprobs(FakeEngine(), nan, prompt=PROMPT, stop_ids=(15,), temperature=0.0, tolerance=1e-4)
