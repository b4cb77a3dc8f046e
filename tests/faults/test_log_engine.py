"""LOG, MSK and TOK rows of the list of published faults that concern the embedded engine's sampling."""

from dataclasses import replace

import numpy as np

from agentrl_jax.algo.losses import LossConfig, make_loss
from agentrl_jax.learner import Learner, LearnerConfig
from agentrl_jax.packing import PackingConfig, pack_demonstrations
from agentrl_jax.seeding import derive_seed
from agentrl_jax.sharding import MeshShape, make_mesh
from agentrl_jax.types import as_ids
from tests.engines.tiny_engine import (
    CONFIG,
    MODEL,
    check_logprobs,
    open_tiny,
    params,
    random_weights,
    reference_logprobs,
)

PROMPT = as_ids([3, 1, 4, 1, 5])
BANNING = replace(CONFIG, num_slots=1, banned_ids=(7,), prefill_shapes=((1, 8),))


async def test_log_07_logprobs_that_are_not_finite_are_masked_and_counted_and_poison_nobody_else() -> None:
    weights = random_weights(0)
    weights["embed"]["embedding"][7] = np.nan  # the tied head makes every distribution NaN
    async with open_tiny(weights=weights) as engine:
        broken = await engine.generate(PROMPT, params(max_new_tokens=5), session="s")
        assert not broken.loss_mask.any()
        assert not broken.logprobs.any()
        greedy = await engine.generate(PROMPT, params(max_new_tokens=5, temperature=0.0), session="s")
        assert not greedy.loss_mask.any()
        assert greedy.ids.max() < MODEL.vocab_size  # what was sampled is the next prompt's
        assert engine.statistics().num_nonfinite_logprobs == 10
        await engine.publish(random_weights(1), 1)
        for session in "sabcd":  # every slot, the one that holds NaN keys and values included
            healthy = await engine.generate(PROMPT, params(), session=session)
            check_logprobs({1: random_weights(1)}, PROMPT, healthy, 1.0)
        assert engine.statistics().num_nonfinite_logprobs == 10


async def test_log_07_a_poisoned_session_does_not_poison_the_next_in_its_slot() -> None:
    weights = random_weights(0)
    weights["layers"]["attention"]["v"]["kernel"] *= np.float32(1e30)  # overflows, but only where it attends to id 7
    scale = np.float32(1e-30)
    weights["embed"]["embedding"] *= scale
    weights["embed"]["embedding"][7] = np.inf
    async with open_tiny(weights=weights, config=BANNING) as engine:
        clean = await engine.generate(PROMPT, params(), session="a")
        assert clean.loss_mask.all()
        poisoned = await engine.generate(as_ids([3, 7, 7, 7, 7, 7, 7, 7, 7]), params(), session="b")
        assert not poisoned.loss_mask.any()
        again = await engine.generate(PROMPT, params(), session="c")
        assert again.loss_mask.all()
        assert again.ids.tolist() == clean.ids.tolist()


async def test_log_11_seeds_per_request_make_a_group_differ_and_a_repetition_equal() -> None:
    async def group() -> list[list[int]]:
        async with open_tiny() as engine:
            completions = [
                await engine.generate(PROMPT, params(seed=derive_seed(0, "g", member, 0)), session=f"m{member}")
                for member in range(8)
            ]
            return [completion.ids.tolist() for completion in completions]

    first, second = await group(), await group()
    assert len({tuple(ids) for ids in first}) >= 2
    assert first == second


async def test_log_12_replicas_differ_by_the_requests_they_get_and_by_nothing_else() -> None:
    async with open_tiny(name="replica-0") as zero, open_tiny(name="replica-1") as one:
        here = await zero.generate(PROMPT, params(seed=derive_seed("episode", 0)), session="s")
        there = await one.generate(PROMPT, params(seed=derive_seed("episode", 1)), session="s")
        retried = await one.generate(PROMPT, params(seed=derive_seed("episode", 0)), session="t")
    assert here.ids.tolist() != there.ids.tolist()
    assert here.ids.tolist() == retried.ids.tolist()


async def test_msk_10_each_of_several_stop_ids_ends_the_turn() -> None:
    ends = set()
    async with open_tiny() as engine:
        for seed in range(30):
            completion = await engine.generate(PROMPT, params(seed=seed, stop_ids=(4, 11)), session="s")
            if completion.finish_reason == "stop":
                ends.add(int(completion.ids[-1]))
            assert not {4, 11} & set(completion.ids[:-1].tolist())
    assert ends == {4, 11}


async def test_tok_28_a_banned_id_is_never_sampled_however_likely() -> None:
    weights = random_weights(0)
    weights["embed"]["embedding"][7] *= 4
    candidates = (as_ids([a, b]) for a in range(19) for b in range(19))
    prompt = next(ids for ids in candidates if reference_logprobs(weights, ids, 1.0)[-1].argmax() == 7)
    async with open_tiny(config=BANNING, weights=weights) as engine:
        sampled = set()
        for seed in range(30):
            completion = await engine.generate(prompt, params(temperature=float(seed % 2), seed=seed), session="s")
            sampled |= set(completion.ids.tolist())
            assert completion.loss_mask.all()
        assert 7 not in sampled
        assert len(sampled) > 5


async def test_log_06_the_learner_leaves_out_the_ids_that_the_engine_never_samples() -> None:
    async with open_tiny(config=BANNING) as engine:
        completion = await engine.generate(PROMPT, params(temperature=0.8, max_new_tokens=20), session="s")
    ids = np.concatenate([PROMPT, completion.ids])
    mask = np.arange(len(ids)) >= len(PROMPT)
    batch = pack_demonstrations([(ids, mask)], PackingConfig(row_tokens=(32,), rows_per_micro_batch=1))

    def learner(banned_ids: tuple[int, ...]) -> Learner:
        config = LearnerConfig(temperature=0.8, banned_ids=banned_ids, logprob_chunk=7)
        loss = make_loss(LossConfig(name="sft"))
        return Learner(MODEL, config, loss, make_mesh(MeshShape()), random_weights(0))

    def scores(banned_ids: tuple[int, ...]) -> np.ndarray:
        return learner(banned_ids).logprobs(batch.micro_batches[0])[0, : len(ids)][mask]

    np.testing.assert_allclose(scores((7,)), completion.logprobs, atol=1e-4)
    assert (completion.logprobs - scores(())).max() > 0.05  # the share of the banned id
    metrics = learner((7,)).step(batch)
    assert metrics.outcome == "applied"
    np.testing.assert_allclose(metrics.loss, -completion.logprobs.mean(), atol=1e-4)
