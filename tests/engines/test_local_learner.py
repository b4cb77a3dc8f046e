"""Every way to a token in the engine gives the log-probability that the learner computes from packed rows."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from agentrl_jax.engines.local.device_loop import DeviceLoop, Event, Submit, Swap
from agentrl_jax.engines.local.runner import Runner
from agentrl_jax.engines.local.scheduler import Scheduler
from agentrl_jax.engines.local.turns import ServedTurn
from agentrl_jax.models.decoder import hidden_states
from agentrl_jax.models.layers import head_matrix
from agentrl_jax.models.logprobs import token_logprobs
from agentrl_jax.types import Ids, as_ids
from tests.engines.tiny_engine import CONFIG, MODEL, params, random_weights

TEMPERATURE = 0.7
BANNED = (7,)
ENGINE = replace(CONFIG, banned_ids=BANNED)
WEIGHTS = {version: random_weights(version) for version in range(2)}
ROW_TOKENS = 128


@jax.jit
def learner_logprobs(weights: Any, ids: Any, positions: Any, segment_ids: Any) -> Any:
    hidden = hidden_states(MODEL, weights, ids, positions, segment_ids)
    scored = partial(token_logprobs, temperature=TEMPERATURE, chunk_tokens=32, banned_ids=BANNED)
    return scored(hidden, head_matrix(weights), ids, positions, segment_ids)[0]


def packed_logprobs(weights: Any, sequences: list[Ids]) -> list[Any]:
    """What the learner says of every token of `sequences`, which share one padded row."""
    ids, positions, segment_ids = np.zeros((3, 1, ROW_TOKENS), np.int32)
    ends = np.cumsum([len(sequence) for sequence in sequences])
    for number, (sequence, end) in enumerate(zip(sequences, ends, strict=True), 1):
        place = slice(end - len(sequence), end)
        ids[0, place], positions[0, place], segment_ids[0, place] = sequence, np.arange(len(sequence)), number
    row = np.asarray(learner_logprobs(weights, ids, positions, segment_ids))[0]
    return np.split(row[: ends[-1]], ends[:-1])


class Engine:
    """The device side of the engine, driven step by step."""

    def __init__(self) -> None:
        self.runner = Runner(MODEL, ENGINE, WEIGHTS[0], jax.devices()[0])
        events: list[Event] = []
        self.loop = DeviceLoop(self.runner, Scheduler(ENGINE, 0), events.extend)

    def submit(self, prompt: Ids, session: str, max_new_tokens: int = 8) -> ServedTurn:
        sampling = params(temperature=TEMPERATURE, max_new_tokens=max_new_tokens, seed=len(prompt))
        turn = ServedTurn(self.loop.statistics.num_requests, prompt, sampling, session)
        self.loop.inbox.put(Submit(turn))
        self.loop.step(wait=False)
        return turn

    def finish(self) -> None:
        while self.loop.statistics.running + self.loop.statistics.waiting:
            self.loop.step(wait=False)


def draw_ids(seed: int, length: int) -> Ids:
    return as_ids(np.random.default_rng(seed).choice([i for i in range(MODEL.vocab_size) if i not in BANNED], length))


def fresh(engine: Engine) -> list[ServedTurn]:
    turns = [engine.submit(draw_ids(length, length), f"s{length}") for length in (3, 7, 8)]
    engine.finish()
    return turns


def chunked(engine: Engine) -> list[ServedTurn]:
    """A prompt of five chunks, between which another turn is decoded."""
    turns = [engine.submit(draw_ids(0, 2), "short", 30), engine.submit(draw_ids(1, 36), "long")]
    engine.finish()
    return turns


def reused(engine: Engine) -> list[ServedTurn]:
    first = engine.submit(draw_ids(0, 9), "s")
    engine.finish()
    second = engine.submit(as_ids([*first.prompt, *first.ids, *draw_ids(1, 7)]), "s")
    engine.finish()
    assert second.cached_tokens == 16
    return [second]


def shared(engine: Engine) -> list[ServedTurn]:
    common = draw_ids(0, 20)
    turns = [engine.submit(as_ids([*common, *draw_ids(length, length)]), f"s{length}") for length in (0, 3, 5)]
    engine.finish()
    assert engine.loop.statistics.shared_tokens == 20 + 20  # the first computed it, with nothing after it
    return turns


def recomputed(engine: Engine) -> list[ServedTurn]:
    """Turns that a publish interrupts; the members of a group share what is computed anew."""
    common = draw_ids(0, 12)
    turns = [engine.submit(as_ids([*common, *draw_ids(length, length)]), f"s{length}", 20) for length in range(3)]
    while min(len(turn.ids) for turn in turns) < 2:
        engine.loop.step(wait=False)
    engine.loop.inbox.put(Swap(engine.runner.stage(WEIGHTS[1]), 1))
    engine.finish()
    assert all(len(turn.version_starts) == 2 for turn in turns)
    return turns


@pytest.mark.parametrize("path", [fresh, chunked, reused, shared, recomputed])
def test_the_learner_agrees_with_the_engine(path: Callable[[Engine], list[ServedTurn]]) -> None:
    turns = path(Engine())
    sequences = [as_ids([*turn.prompt, *turn.ids]) for turn in turns]
    by_version = {version: packed_logprobs(weights, sequences) for version, weights in WEIGHTS.items()}
    for number, turn in enumerate(turns):
        completion = turn.completion(engine="e", pool="current")
        for span in completion.version_spans:
            scored = by_version[span.version][number][len(turn.prompt) :]
            np.testing.assert_allclose(
                completion.logprobs[span.start : span.end], scored[span.start : span.end], atol=1e-4
            )
