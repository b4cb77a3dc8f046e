"""The reference attention: against a loop in float64, in chunks, in half precision, in bounded memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.models import attention_xla as module
from tests.models.attention_cases import by_loops, make_rows

attend = jax.jit(module.attend_xla)


def test_one_token_sees_itself_only():
    q, k, v, segment_ids, positions = make_rows(1, lengths=((1,),))
    out = attend(q, k, v, segment_ids, positions)
    np.testing.assert_allclose(out[0, 0], np.repeat(v[0, 0], 2, axis=0), rtol=1e-6)


def test_equals_loops_over_tokens_and_heads():
    rows = make_rows(24)
    np.testing.assert_allclose(attend(*rows), by_loops(*rows), atol=2e-6)


@pytest.mark.parametrize("length", [65, 300])
def test_query_chunks_change_nothing(length):
    rows = make_rows(length, lengths=((length,), (40, length - 45), (3, 2, 30)))
    np.testing.assert_allclose(attend(*rows), by_loops(*rows), atol=3e-6)


def test_chunks_change_no_gradient(monkeypatch):
    rows = make_rows(130, lengths=((130,), (40, 80)))

    def gradients():
        def total(q, k, v):
            return jnp.sum(jnp.sin(module.attend_xla(q, k, v, *rows[3:])))

        return jax.jit(jax.grad(total, argnums=(0, 1, 2)))(*rows[:3])

    chunks = gradients()
    monkeypatch.setattr(module, "_MIN_CHUNK", 512)
    for first, second in zip(chunks, gradients(), strict=True):
        np.testing.assert_allclose(first, second, atol=5e-6, rtol=2e-6)


def test_half_precision_in_half_precision_out():
    rows = make_rows(24)
    half = [jnp.asarray(x, jnp.bfloat16) for x in rows[:3]]
    out = attend(*half, *rows[3:])
    assert out.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(out, np.float32), by_loops(*rows), atol=0.05)


def test_scores_of_half_precision_are_float32():
    q, k, v, segment_ids, positions = make_rows(64, lengths=((64,),))
    # Large scores: rounded to 8 bits they would move the softmax by several per cent.
    half = [jnp.asarray(array, jnp.bfloat16) for array in (q * 6, k * 6, v)]
    exact = by_loops(*(np.asarray(array, np.float32) for array in half), segment_ids, positions)
    out = np.asarray(attend(*half, segment_ids, positions), np.float32)
    assert np.abs(out - exact).max() < 0.012  # weights and result in half precision: 2⁻⁸ of values of up to 3


@pytest.mark.slow
def test_a_long_row_never_holds_all_its_scores():
    length, heads = 4096, 4
    q = jax.ShapeDtypeStruct((1, length, heads, 16), jnp.float32)
    ids = jax.ShapeDtypeStruct((1, length), jnp.int32)

    def total(q, k, v, segment_ids, positions):
        return module.attend_xla(q, k, v, segment_ids, positions).sum()

    compiled = jax.jit(jax.grad(total, argnums=(0, 1, 2))).lower(q, q, q, ids, ids).compile()
    all_scores = 4 * heads * length**2
    assert compiled.memory_analysis().temp_size_in_bytes < all_scores / 4
