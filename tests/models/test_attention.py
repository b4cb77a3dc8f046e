"""Attention: against a loop in float64, and probes of what no token may see."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.models import attention as module

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 6
attention = jax.jit(module.attention)
LENGTHS = ((5, 9, 3), (20,), ())  # of the segments of each row; the rest is padding


def make_rows(length: int, lengths=LENGTHS, seed: int = 0):
    rng = np.random.default_rng(seed)
    segment_ids = np.zeros((len(lengths), length), np.int32)
    positions = np.zeros_like(segment_ids)
    for row, sizes in enumerate(lengths):
        start = 0
        for number, size in enumerate(sizes, start=1):
            segment_ids[row, start : start + size] = number
            positions[row, start : start + size] = np.arange(size)
            start += size
    q = rng.standard_normal((len(lengths), length, HEADS, HEAD_DIM)).astype(np.float32)
    k, v = rng.standard_normal((2, len(lengths), length, KV_HEADS, HEAD_DIM)).astype(np.float32)
    return q, k, v, segment_ids, positions


def by_loops(q, k, v, segment_ids, positions):
    out = np.zeros(q.shape, np.float64)
    for b, t in np.argwhere(segment_ids > 0):
        seen = (segment_ids[b] == segment_ids[b, t]) & (positions[b] <= positions[b, t])
        for h in range(HEADS):
            kv = h // (HEADS // KV_HEADS)
            scores = k[b, seen, kv].astype(np.float64) @ q[b, t, h] / np.sqrt(HEAD_DIM)
            weights = np.exp(scores - scores.max())
            out[b, t, h] = weights @ v[b, seen, kv] / weights.sum()
    return out


def test_one_token_sees_itself_only():
    q, k, v, segment_ids, positions = make_rows(1, lengths=((1,),))
    out = attention(q, k, v, segment_ids, positions)
    np.testing.assert_allclose(out[0, 0], np.repeat(v[0, 0], 2, axis=0), rtol=1e-6)


def test_equals_loops_over_tokens_and_heads():
    rows = make_rows(24)
    np.testing.assert_allclose(attention(*rows), by_loops(*rows), atol=2e-6)


@pytest.mark.parametrize("length", [64, 65, 130])
def test_query_chunks_change_nothing(length):
    rows = make_rows(length, lengths=((length,), (40, length - 45), (3, 2, 30)))
    np.testing.assert_allclose(attention(*rows), by_loops(*rows), atol=3e-6)


def test_recomputed_scores_change_nothing(monkeypatch):
    rows = make_rows(130, lengths=((130,), (40, 80)))

    def gradients():
        def total(q, k, v):
            return jnp.sum(jnp.sin(module.attention(q, k, v, *rows[3:])))

        return jax.jit(jax.grad(total, argnums=(0, 1, 2)))(*rows[:3])

    kept = gradients()
    monkeypatch.setattr(module, "_KEPT_LENGTH", 0)
    for first, second in zip(kept, gradients(), strict=True):
        np.testing.assert_allclose(first, second, atol=1e-6)


@pytest.mark.parametrize(
    ("changed", "unaffected"),
    [
        pytest.param((0, 8), [(0, t) for t in range(24) if t != 8 and not 8 < t < 14], id="the-future"),
        pytest.param((0, 4), [(0, t) for t in range(5, 24)], id="another-segment"),
        pytest.param((0, 20), [(0, t) for t in range(24)], id="padding"),
        pytest.param((2, 3), [(2, t) for t in range(24)], id="a-row-of-padding"),
        pytest.param((1, 0), [(0, t) for t in range(24)], id="another-row"),
    ],
)
def test_a_token_is_not_seen_from(changed, unaffected):
    q, k, v, segment_ids, positions = make_rows(24)
    before = np.asarray(attention(q, k, v, segment_ids, positions))
    k[changed], v[changed] = 7.0, -50.0
    after = np.asarray(attention(q, k, v, segment_ids, positions))
    for index in unaffected:
        np.testing.assert_array_equal(before[index], after[index])


def test_the_probes_can_fail():
    q, k, v, segment_ids, positions = make_rows(24)
    before = np.asarray(attention(q, k, v, segment_ids, positions))
    v[0, 8] = -50.0
    after = np.asarray(attention(q, k, v, segment_ids, positions))
    assert all(np.abs(before[0, t] - after[0, t]).max() > 1e-3 for t in range(8, 14))


def test_padding_gets_zero_and_gives_no_gradient():
    q, k, v, segment_ids, positions = make_rows(24)
    out = attention(q, k, v, segment_ids, positions)
    assert not np.asarray(out)[segment_ids == 0].any()
    grads = jax.grad(lambda *qkv: attention(*qkv, segment_ids, positions).sum(), argnums=(0, 1, 2))(q, k, v)
    for grad in grads:
        assert np.isfinite(grad).all()
        assert not np.asarray(grad)[segment_ids == 0].any()


def test_huge_scores_stay_finite():
    q, k, v, segment_ids, positions = make_rows(24)
    out, grad = jax.value_and_grad(lambda q: attention(q, k, v, segment_ids, positions).sum())(q * 1e4)
    assert np.isfinite(out)
    assert np.isfinite(grad).all()


def test_half_precision_in_half_precision_out():
    rows = make_rows(24)
    half = [jnp.asarray(x, jnp.bfloat16) for x in rows[:3]]
    out = attention(*half, *rows[3:])
    assert out.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(out, np.float32), by_loops(*rows), atol=0.05)
