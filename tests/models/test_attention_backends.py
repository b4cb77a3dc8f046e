"""What every attention backend must do, each where it can run or be stood in for on a CPU."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo

from agentrl_jax.models import attention_cudnn
from agentrl_jax.models.attention_cudnn import attend_cudnn
from agentrl_jax.models.attention_pallas import attend_pallas
from agentrl_jax.models.attention_xla import attend_xla
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.decoder import head_matrix, hidden_states
from agentrl_jax.models.logprobs import token_logprobs
from agentrl_jax.models.params import init_params
from agentrl_jax.sharding import make_mesh, parse_mesh
from tests.models import cudnn_stand_in
from tests.models.attention_cases import by_loops, make_rows

interpreted = partial(attend_pallas, interpret=True)
LENGTH = 24


@pytest.fixture(params=["xla", "pallas", "cudnn"])
def attend(request, monkeypatch):
    if request.param == "cudnn":
        use_stand_in(monkeypatch)
    return {"xla": attend_xla, "pallas": interpreted, "cudnn": attend_cudnn}[request.param]


def use_stand_in(monkeypatch):
    monkeypatch.setattr(attention_cudnn, "has_packed_layout", lambda: True)
    monkeypatch.setattr(attention_cudnn, "TOKENS_PER_SEGMENT", 8)
    monkeypatch.setattr(fused_attention_stablehlo, "dot_product_attention", cudnn_stand_in.dot_product_attention)
    monkeypatch.setattr(attention_cudnn, "flash_attention", partial(attention_cudnn.flash_attention, interpret=True))


def value_and_gradients(attend, where):
    """Return a compiled function of (q, k, v)."""

    def total(q, k, v):
        out = attend(q, k, v, *where)
        return jnp.sum(jnp.sin(out)), out

    return jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2), has_aux=True))


@cache
def by_the_reference():
    rows = make_rows(LENGTH)
    return value_and_gradients(attend_xla, rows[3:])(*rows[:3])[1]


def test_output_and_gradients_are_those_of_the_reference(attend):
    q, k, v, *where = rows = make_rows(LENGTH)
    run = value_and_gradients(attend, where)
    (_, out), gradients = run(q, k, v)
    np.testing.assert_allclose(out, by_loops(*rows), atol=3e-6)
    is_padding = where[0] == 0
    assert not np.asarray(out)[is_padding].any()
    for ours, theirs in zip(gradients, by_the_reference(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=5e-6)
        assert not np.asarray(ours)[is_padding].any()
    # Huge scores stay finite.
    (total, _), gradients = run(q * 1e4, k, v)
    assert np.isfinite(total)
    assert all(np.isfinite(gradient).all() for gradient in gradients)


PROBES = {
    "the-future": ((0, 8), [(0, t) for t in range(LENGTH) if not 8 <= t < 14]),
    "another-segment": ((0, 4), [(0, t) for t in range(5, LENGTH)]),
    "padding": ((0, 20), [(0, t) for t in range(LENGTH)]),
    "a-row-of-padding": ((2, 3), [(2, t) for t in range(LENGTH)]),
    "another-row": ((1, 0), [(0, t) for t in range(LENGTH)]),
}


def test_no_token_sees_what_it_must_not(attend):
    q, k, v, segment_ids, positions = make_rows(LENGTH)
    run = jax.jit(lambda *rows: attend(*rows))  # its own: what is patched is traced anew
    before = np.asarray(run(q, k, v, segment_ids, positions))
    for name, (changed, unaffected) in PROBES.items():
        other_k, other_v = k.copy(), v.copy()
        other_k[changed], other_v[changed] = 7.0, -50.0
        after = np.asarray(run(q, other_k, other_v, segment_ids, positions))
        for index in unaffected:
            np.testing.assert_array_equal(before[index], after[index], err_msg=name)
        if name == "the-future":  # the probe can fail: the tokens after the changed one do see it
            assert all(np.abs(before[0, t] - after[0, t]).max() > 1e-3 for t in range(8, 14))


MODEL = ModelConfig(vocab_size=17, width=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16, mlp_width=24)


@partial(jax.jit, static_argnames="attend")
def logprobs(params, ids, positions, segment_ids, attend):
    hidden = hidden_states(MODEL, params, ids, positions, segment_ids, attend=attend)
    head = head_matrix(params)
    return token_logprobs(hidden, head, ids, positions, segment_ids, temperature=0.8, chunk_tokens=10)[0]


def test_packed_log_probabilities_are_the_unpacked_ones(attend):
    params = init_params(MODEL, 0)
    rng = np.random.default_rng(1)
    places = (((0, slice(0, 7)), 1), ((0, slice(7, 16)), 2), ((1, slice(0, 9)), 1))
    ids, positions, segment_ids = np.zeros((3, 2, LENGTH), np.int32)
    for where, number in places:
        size = ids[where].size
        ids[where], positions[where], segment_ids[where] = rng.integers(0, 17, size), np.arange(size), number

    packed = logprobs(params, ids, positions, segment_ids, attend)
    for where, _ in places:
        size = ids[where].size
        alone = np.zeros((1, LENGTH), np.int32)
        alone[0, :size] = ids[where]
        is_token = np.arange(LENGTH)[None] < size
        expected = logprobs(params, alone, np.arange(LENGTH)[None] * is_token, is_token.astype(np.int32), attend_xla)
        np.testing.assert_allclose(packed[where], expected[0, :size], atol=1e-5)
        assert np.abs(np.asarray(packed[where][1:])).min() > 1e-3


@pytest.mark.parametrize(
    "mesh",
    [
        pytest.param("fsdp=2,tensor=4", id="KV heads are repeated"),
        pytest.param("data=2,fsdp=2,tensor=2", id="KV heads are split", marks=pytest.mark.slow),
        pytest.param("fsdp=2,tensor=8", id="heads are not split", marks=pytest.mark.slow),
    ],
)
def test_kernels_on_a_mesh_are_given_their_rows_and_heads(mesh):
    lengths = ((5, 9, 3), (20,), (), (11, 13))
    q, k, v, *where = make_rows(LENGTH, lengths)
    (_, expected), gradients = value_and_gradients(attend_xla, where)(q, k, v)
    with jax.set_mesh(make_mesh(parse_mesh(mesh))):
        (_, out), ours = value_and_gradients(interpreted, where)(q, k, v)
    np.testing.assert_allclose(out, expected, atol=3e-6)
    for mine, theirs in zip(ours, gradients, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=5e-6)
