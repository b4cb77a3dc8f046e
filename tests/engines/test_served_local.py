"""What the embedded engine shows of a turn that runs, and a pause in the middle of one."""

import numpy as np
import trio

from agentrl_jax.engines.served import Sampled
from agentrl_jax.types import Completion, as_ids
from tests.engines.tiny_engine import check_logprobs, open_tiny, params, random_weights

PROMPT = as_ids([3, 1, 4, 1, 5])


async def test_a_watched_turn_is_shown_in_pieces_of_what_it_becomes() -> None:
    seen: list[Sampled] = []
    async with open_tiny() as engine:
        completion = await engine.generate(PROMPT, params(max_new_tokens=20), session="s", watch=seen.append)
        same = await engine.generate(PROMPT, params(max_new_tokens=20), session="t")
    assert len(seen) > 3
    ids = [token for sampled in seen for token in sampled.ids]
    logprobs = [logprob for sampled in seen for logprob in sampled.logprobs]
    assert ids == completion.ids[: len(ids)].tolist()
    np.testing.assert_allclose(logprobs, completion.logprobs[: len(ids)], atol=1e-6)
    assert {sampled.version for sampled in seen} == {0}
    assert completion.ids.tolist() == same.ids.tolist()


async def test_a_pause_in_a_turn_keeps_what_it_has_and_new_weights_go_on_from_there() -> None:
    weights = {version: random_weights(version) for version in (0, 4)}
    seen: list[Sampled] = []
    has_begun = trio.Event()
    completions: list[Completion] = []

    def watch(sampled: Sampled) -> None:
        seen.append(sampled)
        has_begun.set()

    async with open_tiny(weights=weights[0]) as engine:

        async def ask() -> None:
            completions.append(await engine.generate(PROMPT, params(max_new_tokens=38), session="s", watch=watch))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await has_begun.wait()
            await engine.pause()
            num_seen = len(seen)
            await engine.publish(weights[4], 4)
            assert len(seen) == num_seen
            assert completions == []
            await engine.resume()
    assert [span.version for span in completions[0].version_spans] == [0, 4]
    check_logprobs(weights, PROMPT, completions[0], 1.0)
