"""The frozen reference: whose log-probabilities it gives, that it never moves, and that there is none unless asked."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.algo.losses import LossConfig, make_loss
from agentrl_jax.errors import ConfigError, RecordError
from agentrl_jax.learner import Learner, LearnerConfig
from tests.learner.small import (
    CONFIG,
    OTHER,
    PARAMS,
    distance_to_reference,
    make_batch,
    make_learner,
    on_host,
    same_bits,
)

BANNED = LearnerConfig(learning_rate=0.1, eps=1.0, temperature=0.7, logprob_chunk=6, banned_ids=(3, 5))


def mean_logprob(learner: Learner, packed: object) -> float:
    total = sum(learner.logprobs(part)[part.loss_mask].sum() for part in packed.micro_batches)  # type: ignore[attr-defined]
    return float(total) / packed.num_loss_tokens  # type: ignore[attr-defined]


def allowed_batch(seed: int) -> object:
    packed = make_batch(seed)
    parts = (
        part._replace(ids=np.where(np.isin(part.ids, BANNED.banned_ids), 7, part.ids)) for part in packed.micro_batches
    )
    return replace(packed, micro_batches=tuple(parts))


def test_the_reference_is_read_with_the_temperature_and_the_banned_ids_of_the_loss() -> None:
    learner = make_learner(config=BANNED, loss=distance_to_reference, reference=OTHER)
    other = make_learner(config=BANNED, params=OTHER)
    packed = allowed_batch(0)
    expected = mean_logprob(other, packed)
    assert learner.step(packed).metrics["reference"] == pytest.approx(expected, rel=1e-6)  # type: ignore[arg-type]
    plain = make_learner(config=LearnerConfig(logprob_chunk=6), params=OTHER)
    assert abs(mean_logprob(plain, packed) - expected) > 0.01


@pytest.mark.parametrize("mesh", ["1", pytest.param("data=2,fsdp=2", marks=pytest.mark.slow)])
def test_the_reference_stays_and_draws_the_policy_to_itself(mesh: str) -> None:
    learner = make_learner(
        mesh, loss=distance_to_reference, reference=OTHER, config=replace(CONFIG, eps=1e-8, learning_rate=0.01)
    )
    packed = make_batch()
    metrics = [learner.step(packed) for _ in range(30)]
    figures = {step.metrics["reference"] for step in metrics}
    assert len(figures) == 1
    assert metrics[-1].loss < 0.5 * metrics[0].loss


def test_a_policy_is_at_distance_zero_from_itself() -> None:
    learner = make_learner(loss=distance_to_reference, reference=PARAMS)
    metrics = learner.step(make_batch())
    assert metrics.loss < 1e-12
    assert metrics.grad_norm < 1e-5


def test_the_callers_reference_stays_the_callers() -> None:
    given = jax.tree.map(jnp.asarray, OTHER)
    learner = make_learner(loss=distance_to_reference, reference=given)
    learner.step(make_batch())
    assert same_bits(given, OTHER)


def test_kl_to_the_reference_is_that_of_the_loss_over_all_tokens() -> None:
    """With a coefficient so large that the policy term does not matter, a step is one of the KL alone."""
    loss = make_loss(LossConfig(kl_coefficient=1.0))
    learner = make_learner(loss=loss, reference=OTHER)
    packed = make_batch()
    by_hand = []
    current, other = make_learner(), make_learner(params=OTHER)
    for part in packed.micro_batches:
        r = np.clip((other.logprobs(part) - current.logprobs(part))[part.loss_mask].astype(np.float64), -10, 10)
        by_hand.append(np.expm1(r) - r)
    metrics = learner.step(packed)
    assert metrics.metrics["reference_kl"] == pytest.approx(np.concatenate(by_hand).mean(), rel=1e-5)


def test_without_a_reference_there_is_none() -> None:
    with pytest.raises(RecordError, match="got one without"):
        make_learner(loss=make_loss(LossConfig(kl_coefficient=1.0))).step(make_batch())


@pytest.mark.slow
def test_the_reference_is_held_in_the_compute_dtype() -> None:
    config = LearnerConfig(compute_dtype="bfloat16", logprob_chunk=6)
    learner = make_learner(config=config, loss=distance_to_reference, reference=OTHER)
    rounded = make_learner(config=config, params=jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), OTHER))
    packed = make_batch()
    assert learner.step(packed).metrics["reference"] == pytest.approx(mean_logprob(rounded, packed), rel=1e-5)


def test_a_reference_of_another_model_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"embed\.embedding: expected \(32, 16\), got \(31, 16\)"):
        make_learner(reference=PARAMS | {"embed": {"embedding": np.zeros((31, 16), np.float32)}})


def test_a_restored_state_leaves_the_reference_alone() -> None:
    learner = make_learner(loss=distance_to_reference, reference=OTHER)
    first = learner.step(make_batch()).metrics["reference"]
    learner.restore(on_host(make_learner(config=CONFIG).state))
    assert learner.step(make_batch()).metrics["reference"] == first
