"""Validation: mean loss and token accuracy over the loss mask, on any mesh, and nothing changes by it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.learner import LoraConfig, Validation
from agentrl_jax.models.decoder import head_matrix, hidden_states
from agentrl_jax.models.hits import token_hits
from tests.learner.small import CONFIG, MODEL, PARAMS, make_batch, make_learner, on_host, same_bits


def test_a_token_is_hit_if_the_token_before_it_predicts_it_best() -> None:
    # Logits of one-hot hidden states are rows of the head: the likeliest ids are 2, 0, 1; of a tie the lower, 0.
    head = jnp.array([[0.0, 1.0, 2.0, 0.0], [3.0, 3.0, 0.0, 0.0], [0.0, 9.0, 0.0, 1.0]])
    hidden = jax.nn.one_hot(jnp.array([[0, 1, 2, 0, 0]]), 3)
    ids, positions = jnp.array([[2, 2, 0, 1, 0]]), jnp.array([[0, 1, 2, 3, 0]])
    segments = jnp.array([[1, 1, 1, 1, 0]])
    for chunk in (1, 2, 5, 8):
        assert token_hits(hidden, head, ids, positions, segments, chunk_tokens=chunk).tolist() == [
            [False, True, True, True, False]
        ]
    banned = token_hits(hidden, head, ids, positions, segments, chunk_tokens=8, banned_ids=(0,))
    assert banned.tolist() == [[False, True, False, True, False]]


def test_it_is_what_the_logits_say_and_changes_nothing() -> None:
    learner, packed = make_learner(), make_batch()
    before = on_host(learner.state)
    found = learner.validate(packed)
    loss, hits, num_tokens = 0.0, 0, 0
    for micro in packed.micro_batches:
        hidden = hidden_states(MODEL, PARAMS, micro.ids, micro.positions, micro.segment_ids)
        logits = np.asarray(hidden @ head_matrix(PARAMS), np.float64) / CONFIG.temperature
        logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        for row, column in zip(*np.nonzero(micro.loss_mask), strict=True):
            loss -= logprobs[row, column - 1, micro.ids[row, column]]
            hits += logits[row, column - 1].argmax() == micro.ids[row, column]
            num_tokens += 1
    assert (found.hits, found.num_tokens) == (hits, num_tokens)
    assert found.loss == pytest.approx(loss, rel=1e-5)
    assert found.mean_loss == pytest.approx(loss / num_tokens, rel=1e-5)
    assert same_bits(on_host(learner.state), before)
    assert learner.step(packed).loss == pytest.approx(found.mean_loss, rel=1e-5)


@pytest.mark.parametrize("mesh", [pytest.param("8", marks=pytest.mark.slow), "data=2,fsdp=2,tensor=2"])
def test_it_is_the_same_on_any_mesh(mesh: str) -> None:
    packed = make_batch(rows=8)
    alone, split = make_learner().validate(packed), make_learner(mesh).validate(packed)
    assert (split.hits, split.num_tokens) == (alone.hits, alone.num_tokens)
    assert split.loss == pytest.approx(alone.loss, rel=1e-5)


def test_adapters_are_validated_with_their_base() -> None:
    learner, packed = make_learner(lora=LoraConfig(rank=2)), make_batch()
    assert learner.validate(packed).loss == pytest.approx(make_learner().validate(packed).loss, rel=1e-6)
    for _ in range(3):
        learner.step(packed)
    assert learner.validate(packed).mean_loss < make_learner().validate(packed).mean_loss


def test_parts_add_up_and_nothing_measured_is_not_a_number() -> None:
    parts = [Validation(loss=2.0, hits=1.0, num_tokens=2), Validation(loss=1.0, hits=2.0, num_tokens=2)]
    total = sum(parts, Validation())
    assert (total.mean_loss, total.accuracy) == (0.75, 0.75)
    assert np.isnan([Validation().mean_loss, Validation().accuracy]).all()
