"""What every engine owes the controller. Subclass it with an `engine` fixture; ids below 16 must be valid.

The engine serves version 0 under the name "engine-0" in the lagging pool, and takes
`self.weights(version)` at a publish.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import trio

from agentrl_jax.engines.protocol import Engine
from agentrl_jax.errors import EngineError
from agentrl_jax.types import Completion, SamplingParams, Truncation, VersionSpan, as_ids

PROMPT = as_ids([3, 5, 2, 7, 4, 6, 5])
PARAMS = SamplingParams(temperature=1.0, max_new_tokens=6, seed=11, stop_ids=(15,))


def same(a: Completion, b: Completion) -> bool:
    """Equal up to the rounding of another batch's matrix products."""
    return np.array_equal(a.ids, b.ids) and np.allclose(a.logprobs, b.logprobs, atol=1e-5)


class EngineContract:
    repeatable = PARAMS
    """A draw that comes out the same again: for an engine that knows no seeds, a greedy one."""

    def weights(self, version: int) -> Any:
        raise NotImplementedError

    def bad_weights(self) -> Any:
        raise NotImplementedError

    async def test_a_completion_says_who_sampled_what(self, engine: Engine) -> None:
        completion = await engine.generate(PROMPT, PARAMS, session="a")
        assert (completion.engine, completion.pool) == (engine.name, engine.pool) == ("engine-0", "lagging")
        assert 1 <= len(completion.ids) <= 6
        assert completion.version_spans == (VersionSpan(version=0, start=0, end=len(completion.ids)),)
        assert completion.loss_mask.all()
        assert (completion.logprobs < 0).any()

    async def test_a_draw_depends_on_its_seed_and_on_nothing_else_that_runs(self, engine: Engine) -> None:
        alone = await engine.generate(PROMPT, self.repeatable, session="alone")
        crowd: dict[int, Completion] = {}

        async def ask(seed: int) -> None:
            prompt = PROMPT if seed == PARAMS.seed else as_ids([*PROMPT, seed % 7, *PROMPT[: seed % 5]])
            crowd[seed] = await engine.generate(prompt, replace(self.repeatable, seed=seed), session=f"crowd{seed}")

        async with trio.open_nursery() as nursery:
            for seed in range(5, 18):
                nursery.start_soon(ask, seed)
        assert same(alone, crowd[PARAMS.seed])
        assert same(alone, await engine.generate(PROMPT, self.repeatable, session="alone"))  # now with a kept prefix

    async def test_seeds_make_turns_differ_unless_they_are_greedy(self, engine: Engine) -> None:
        sampled, greedy = set(), set()
        for seed in range(8):
            completion = await engine.generate(PROMPT, replace(PARAMS, seed=seed), session="s")
            sampled.add(completion.ids.tobytes())
            completion = await engine.generate(PROMPT, replace(PARAMS, seed=seed, temperature=0.0), session="s")
            greedy.add(completion.ids.tobytes())
        assert len(sampled) > 4
        assert len(greedy) == 1

    async def test_a_truncation_limits_draws_and_leaves_their_logprobs_alone(self, engine: Engine) -> None:
        whole = {}
        for seed in range(12):
            completion = await engine.generate(PROMPT, replace(PARAMS, seed=seed, max_new_tokens=1), session="s")
            whole[int(completion.ids[0])] = float(completion.logprobs[0])
        greedy = await engine.generate(PROMPT, replace(PARAMS, temperature=0.0, max_new_tokens=1), session="s")
        for cut in (Truncation(top_k=1), Truncation(top_p=1e-6), Truncation(min_p=1.0)):
            params = replace(PARAMS, max_new_tokens=1, truncation=cut)
            for seed in range(3):
                completion = await engine.generate(PROMPT, replace(params, seed=seed), session="s")
                assert same(completion, greedy)  # the likeliest, with its share of the whole distribution
        assert len(whole) > 1
        assert whole.get(int(greedy.ids[0]), greedy.logprobs[0]) == pytest.approx(greedy.logprobs[0], abs=1e-5)

    async def test_any_stop_id_ends_the_turn_and_is_its_last_id(self, engine: Engine) -> None:
        endings = set()
        for seed in range(40):
            params = replace(PARAMS, seed=seed, stop_ids=(2, 3, 4), max_new_tokens=12)
            completion = await engine.generate(PROMPT, params, session="s")
            stops = [token in (2, 3, 4) for token in completion.ids]
            assert not any(stops[:-1])
            assert completion.finish_reason == ("stop" if stops[-1] else "length")
            assert stops[-1] or len(completion.ids) == 12
            endings.add(int(completion.ids[-1]))
        assert {2, 3, 4} <= endings

    @pytest.mark.parametrize("limit", [1, 2, 5])
    async def test_the_length_limit_counts_every_sampled_id(self, engine: Engine, limit: int) -> None:
        params = replace(PARAMS, max_new_tokens=limit, stop_ids=(15,), temperature=0.0)
        completion = await engine.generate(PROMPT, params, session="s")
        assert len(completion.ids) == limit or completion.finish_reason == "stop"

    async def test_a_session_keeps_its_prefix_until_it_ends_or_the_version_changes(self, engine: Engine) -> None:
        first = await engine.generate(PROMPT, PARAMS, session="s")
        assert first.cached_tokens == 0
        prompt = as_ids([*PROMPT, *first.ids, 3, 4])
        second = await engine.generate(prompt, PARAMS, session="s")
        assert len(PROMPT) < second.cached_tokens < len(prompt)
        again = await engine.generate(prompt, PARAMS, session="s")
        assert second.cached_tokens <= again.cached_tokens < len(prompt)
        forked = await engine.generate(as_ids([*PROMPT[:4], 9, 9, 9]), PARAMS, session="s")
        assert forked.cached_tokens == 4
        await engine.publish(self.weights(1), 1)
        stale = await engine.generate(prompt, PARAMS, session="s")
        assert stale.cached_tokens == 0
        assert set(stale.versions) == {1}
        await engine.end_session("s")
        await engine.end_session("never heard of")

    async def test_a_publish_changes_the_version_and_what_is_sampled(self, engine: Engine) -> None:
        params = replace(PARAMS, temperature=0.0)
        before = await engine.generate(PROMPT, params, session="s")
        await engine.publish(self.weights(3), 3)
        assert engine.version == engine.statistics().version == 3
        after = await engine.generate(PROMPT, params, session="s")
        assert set(after.versions) == {3}
        assert not same(before, after)
        assert engine.statistics().num_publishes == 1

    async def test_a_refused_publish_leaves_the_old_weights_serving(self, engine: Engine) -> None:
        before = await engine.generate(PROMPT, self.repeatable, session="s")
        with pytest.raises(EngineError, match="must increase, got 0 after 0"):
            await engine.publish(self.weights(0), 0)
        with pytest.raises(EngineError):
            await engine.publish(self.bad_weights(), 1)
        assert engine.version == 0
        assert same(before, await engine.generate(PROMPT, self.repeatable, session="t"))

    async def test_cancelling_a_caller_aborts_its_turn_only(self, engine: Engine) -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await engine.generate(PROMPT, self.repeatable, session="s")
        assert scope.cancelled_caught
        assert same(
            await engine.generate(PROMPT, self.repeatable, session="s"),
            await engine.generate(PROMPT, self.repeatable, session="t"),
        )
        statistics = engine.statistics()
        assert statistics.num_aborted == 1
        assert statistics.running == statistics.waiting == 0

    async def test_an_empty_prompt_is_refused(self, engine: Engine) -> None:
        with pytest.raises(EngineError, match="got"):
            await engine.generate(as_ids([]), PARAMS, session="s")

    async def test_the_counters_add_up(self, engine: Engine) -> None:
        first = await engine.generate(PROMPT, PARAMS, session="s")
        second = await engine.generate(as_ids([*PROMPT, *first.ids, 3]), PARAMS, session="s")
        statistics = engine.statistics()
        assert statistics.num_requests == 2
        assert statistics.prompt_tokens == 2 * len(PROMPT) + len(first.ids) + 1
        assert statistics.cached_tokens == second.cached_tokens
        assert statistics.sampled_tokens == len(first.ids) + len(second.ids)
        assert statistics.num_nonfinite_logprobs == statistics.num_aborted == 0
