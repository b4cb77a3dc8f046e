"""WUP rows of the list of published faults that concern the embedded engine: weight updates and versions."""

import jax
import numpy as np

from agentrl_jax.engines.local.device_loop import DeviceLoop, Event, Submit, Swap
from agentrl_jax.engines.local.runner import Runner
from agentrl_jax.engines.local.scheduler import Scheduler
from agentrl_jax.engines.local.turns import ServedTurn
from agentrl_jax.types import VersionSpan, as_ids
from tests.engines.tiny_engine import CONFIG, MODEL, check_logprobs, open_tiny, params, random_weights

PROMPT = as_ids([3, 1, 4, 1, 5, 9, 2, 6])
WEIGHTS = {version: random_weights(version) for version in range(4)}


async def test_wup_01_a_prefix_cached_by_old_weights_is_not_reused() -> None:
    async with open_tiny() as engine:
        await engine.generate(PROMPT, params(), session="s")
        same_version = await engine.generate(PROMPT, params(), session="s")
        await engine.publish(WEIGHTS[1], 1)
        new_version = await engine.generate(PROMPT, params(), session="s")
        assert (same_version.cached_tokens, new_version.cached_tokens) == (len(PROMPT) - 1, 0)
        check_logprobs(WEIGHTS, PROMPT, new_version, 1.0)


def publish_every(num_tokens: int, num_publishes: int, turns: list[ServedTurn]) -> list[Event]:
    """Serve `turns`, with a publish whenever the first one has got `num_tokens` more tokens."""
    events: list[Event] = []
    runner = Runner(MODEL, CONFIG, WEIGHTS[0], jax.devices()[0])
    loop = DeviceLoop(runner, Scheduler(CONFIG, 0), events.extend)
    for turn in turns:
        loop.inbox.put(Submit(turn))
    for version in range(1, num_publishes + 1):
        while len(turns[0].ids) < version * num_tokens:
            loop.step(wait=False)
        loop.inbox.put(Swap(runner.stage(WEIGHTS[version]), version))
    while any(turn.finish_reason is None for turn in turns):
        loop.step(wait=False)
    return events


def test_wup_05_turns_that_run_during_a_publish_are_finished_and_not_cut() -> None:
    turns = [ServedTurn(i, PROMPT, params(max_new_tokens=10 + i, seed=i), f"s{i}") for i in range(7)]  # 4 slots
    events = publish_every(4, 1, turns)
    assert sum(isinstance(event, ServedTurn) for event in events) == 7
    assert [len(turn.ids) for turn in turns] == [10 + i for i in range(7)]


def test_wup_10_every_token_has_the_version_that_sampled_it() -> None:
    turn = ServedTurn(0, PROMPT, params(max_new_tokens=9), "s")
    publish_every(4, 1, [turn])
    completion = turn.completion(engine="e", pool="current")
    assert completion.version_spans == (
        VersionSpan(version=0, start=0, end=4),
        VersionSpan(version=1, start=4, end=9),
    )
    check_logprobs(WEIGHTS, PROMPT, completion, 1.0)


def test_wup_12_interruptions_do_not_shorten_the_budget() -> None:
    turn = ServedTurn(0, PROMPT, params(max_new_tokens=17), "s")
    publish_every(4, 3, [turn])
    completion = turn.completion(engine="e", pool="current")
    assert len(completion.ids) == 17
    assert np.unique(completion.versions).tolist() == [0, 1, 2, 3]
    check_logprobs(WEIGHTS, PROMPT, completion, 1.0)
