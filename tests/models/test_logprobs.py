"""The chunked head against log_softmax over all logits in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.models import logprobs as module

B, T, D, V = 2, 12, 5, 7

token_logprobs = jax.jit(module.token_logprobs, static_argnames=("temperature", "chunk_tokens", "banned_ids"))


def make_case(seed=0):
    rng = np.random.default_rng(seed)
    hidden = rng.standard_normal((B, T, D)).astype(np.float32)
    head = rng.standard_normal((D, V)).astype(np.float32)
    ids = rng.integers(0, V, (B, T)).astype(np.int32)
    positions = np.array([[*range(4), *range(6), 0, 0], [*range(12)]], np.int32)
    segment_ids = np.array([[1] * 4 + [2] * 6 + [0] * 2, [1] * 12], np.int32)
    return hidden, head, ids, positions, segment_ids


def reference(hidden, head, ids, positions, segment_ids, temperature):
    logits = hidden.astype(np.float64) @ head / temperature
    table = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    logprobs, entropy = np.zeros((2, B, T))
    for b, t in np.argwhere((segment_ids > 0) & (positions > 0)):
        logprobs[b, t] = table[b, t - 1, ids[b, t]]
        entropy[b, t] = -(np.exp(table[b, t - 1]) * table[b, t - 1]).sum()
    return logprobs, entropy


def test_uniform_logits_by_hand():
    hidden, head, ids, positions, segment_ids = make_case()
    logprobs, entropy = token_logprobs(hidden * 0, head, ids, positions, segment_ids, temperature=1.0, chunk_tokens=100)
    predicted = (segment_ids > 0) & (positions > 0)
    np.testing.assert_allclose(logprobs, np.where(predicted, -np.log(V), 0), rtol=1e-6)
    np.testing.assert_allclose(entropy, np.where(predicted, np.log(V), 0), rtol=1e-6)


@pytest.mark.parametrize("chunk_tokens", [1, 4, 5, 12, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_equals_log_softmax_for_every_chunk_size(chunk_tokens, temperature):
    case = make_case()
    results = token_logprobs(*case, temperature=temperature, chunk_tokens=chunk_tokens)
    for result, expected in zip(results, reference(*case, temperature), strict=True):
        assert result.dtype == jnp.float32
        np.testing.assert_allclose(result, expected, atol=2e-6)


@pytest.mark.parametrize("chunk_tokens", [5, 100])
def test_half_precision_gives_logits_of_float32(chunk_tokens):
    hidden, head, *rest = make_case()
    # Logits of up to some hundred: in half precision they would be off by 0.5, and the log-probabilities with them.
    half = jnp.asarray(hidden * 16, jnp.bfloat16), jnp.asarray(head * 4, jnp.bfloat16)
    exact = [np.asarray(array, np.float32) for array in half]
    results = token_logprobs(*half, *rest, temperature=0.7, chunk_tokens=chunk_tokens)
    for result, expected in zip(results, reference(*exact, *rest, 0.7), strict=True):
        assert result.dtype == jnp.float32
        np.testing.assert_allclose(result, expected, atol=2e-4)


@pytest.mark.parametrize("chunk_tokens", [5, 100])
def test_padding_gets_nothing_whatever_its_positions(chunk_tokens):
    hidden, head, ids, positions, segment_ids = make_case()
    counted = np.where(segment_ids > 0, positions, 7)
    results = token_logprobs(hidden, head, ids, counted, segment_ids, temperature=1.0, chunk_tokens=chunk_tokens)
    for result in results:
        np.testing.assert_array_equal(np.asarray(result)[segment_ids == 0], 0)


@pytest.mark.parametrize("chunk_tokens", [5, 100])
def test_banned_ids_leave_their_share_to_the_others(chunk_tokens):
    hidden, head, ids, positions, segment_ids = make_case()
    banned, rest = (2, 6), [0, 1, 3, 4, 5]
    names = np.full(V, -1)
    names[rest] = range(len(rest))
    is_banned = np.isin(ids, banned)
    expected = reference(hidden, head[:, rest], names[np.where(is_banned, 0, ids)], positions, segment_ids, 0.7)
    is_scored = ~is_banned & (segment_ids > 0) & (positions > 0)
    assert is_scored.sum() > 8
    assert (is_banned & (positions > 0)).any()

    def total(hidden):
        logprobs, entropy = token_logprobs(
            hidden, head, ids, positions, segment_ids, temperature=0.7, chunk_tokens=chunk_tokens, banned_ids=banned
        )
        return jnp.where(is_scored, logprobs, 0).sum(), (logprobs, entropy)

    (_, (logprobs, entropy)), gradient = jax.value_and_grad(total, has_aux=True)(hidden)
    np.testing.assert_allclose(logprobs[is_scored], expected[0][is_scored], atol=2e-6)
    np.testing.assert_allclose(entropy, expected[1], atol=2e-6)
    assert np.isneginf(logprobs[is_banned & (segment_ids > 0) & (positions > 0)]).all()
    assert np.isfinite(gradient).all()
    assert np.abs(gradient).max() > 0.1


def test_a_token_is_scored_by_the_column_before_it():
    hidden, head, ids, positions, segment_ids = make_case()
    kwargs = {"temperature": 1.0, "chunk_tokens": 4}
    before, _ = token_logprobs(hidden, head, ids, positions, segment_ids, **kwargs)
    moved = hidden.copy()
    moved[1, 5] += 1.0
    after, _ = token_logprobs(moved, head, ids, positions, segment_ids, **kwargs)
    assert np.flatnonzero(np.asarray(before != after)[1]).tolist() == [6]


def test_first_tokens_and_padding_get_no_gradient():
    hidden, head, ids, positions, segment_ids = make_case()

    def total(hidden):
        return token_logprobs(hidden, head, ids, positions, segment_ids, temperature=1.0, chunk_tokens=5)[0].sum()

    grad = np.abs(np.asarray(jax.jit(jax.grad(total))(hidden))).sum(-1)
    # Columns 3 and 9 end a segment, 10 and 11 are padding, 11 of the second row is the last of all.
    assert np.flatnonzero(grad[0] == 0).tolist() == [3, 9, 10, 11]
    assert np.flatnonzero(grad[1] == 0).tolist() == [11]


@pytest.mark.parametrize("chunk_tokens", [5, 100])
def test_gradient_is_that_of_log_softmax(chunk_tokens):
    hidden, head, ids, positions, segment_ids = make_case()
    weights = np.random.default_rng(1).standard_normal((B, T)).astype(np.float32)

    def chunked(hidden, head):
        logprobs, _ = token_logprobs(
            hidden, head, ids, positions, segment_ids, temperature=0.8, chunk_tokens=chunk_tokens
        )
        return jnp.sum(weights * logprobs)

    def plain(hidden, head):
        table = jax.nn.log_softmax(hidden @ head / 0.8)[:, :-1]
        picked = jnp.take_along_axis(table, ids[:, 1:, None], axis=-1)[..., 0]
        return jnp.sum(jnp.where((segment_ids > 0) & (positions > 0), weights, 0)[:, 1:] * picked)

    both = [jax.jit(jax.grad(total, (0, 1)))(hidden, head) for total in (chunked, plain)]
    for ours, theirs in zip(*both, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)


def test_entropy_has_no_gradient():
    hidden, *rest = make_case()
    grad = jax.grad(lambda h: token_logprobs(h, *rest, temperature=1.0, chunk_tokens=4)[1].sum())(hidden)
    assert not np.asarray(grad).any()


def test_all_logits_never_exist_at_once():
    hidden, *rest = make_case()

    def total(hidden):
        return token_logprobs(hidden, *rest, temperature=1.0, chunk_tokens=3)[0].sum()

    text = str(jax.make_jaxpr(jax.grad(total))(hidden))
    assert f"f32[{B},3,{V}]" in text
    assert f"f32[{B},{T},{V}]" not in text
    assert f"f32[{T // 3},{B},3,{V}]" not in text


def test_extreme_logits_stay_finite():
    hidden, head, *rest = make_case()

    def total(hidden):
        return token_logprobs(hidden, head, *rest, temperature=1.0, chunk_tokens=4)[0].sum()

    value, grad = jax.jit(jax.value_and_grad(total))(hidden * 1e4)
    assert np.isfinite(value)
    assert np.isfinite(grad).all()
