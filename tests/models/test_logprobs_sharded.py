"""The head on a mesh and with a large vocabulary: what it holds, and what it sends between devices."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.models.logprobs import token_logprobs
from agentrl_jax.sharding import make_mesh, named_sharding, parse_mesh

B, T, D, V = 8, 256, 16, 4096
CHUNK = 16


def total(hidden, head, ids, positions, segment_ids, *, chunk_tokens=CHUNK):
    logprobs, entropy = token_logprobs(
        hidden, head, ids, positions, segment_ids, temperature=0.8, chunk_tokens=chunk_tokens
    )
    return logprobs.sum(), (logprobs, entropy)


def step(*arguments, **settings):
    return jax.value_and_grad(partial(total, **settings), argnums=(0, 1), has_aux=True)(*arguments)


def make_case(batch=B, length=T, width=D, vocabulary=V):
    rng = np.random.default_rng(0)
    hidden = rng.standard_normal((batch, length, width)).astype(np.float32)
    head = rng.standard_normal((width, vocabulary)).astype(np.float32)
    ids = rng.integers(0, vocabulary, (batch, length)).astype(np.int32)
    positions = np.tile(np.arange(length, dtype=np.int32), (batch, 1))
    return hidden, head, ids, positions, np.ones_like(ids)


def sent_sizes(text):
    """How many numbers each array has that the collectives of a compiled program's text result in."""
    results = re.findall(r"= (.*?) (?:all-gather|all-reduce|all-to-all|reduce-scatter|collective-permute)\(", text)
    shapes = [dims.split(",") for result in results for dims in re.findall(r"\w\[([\d,]*)\]", result)]
    return [int(np.prod([int(size) for size in dims if size])) for dims in shapes]


@pytest.mark.parametrize(
    ("mesh", "axes"),
    [
        pytest.param("data=2,fsdp=2,tensor=2", ("width", "head_vocab"), id="untied"),
        pytest.param("fsdp=2,tensor=4", ("vocab_width", "vocab"), id="tied", marks=pytest.mark.slow),
        pytest.param("tensor=8", ("width", "head_vocab"), id="tensor alone", marks=pytest.mark.slow),
    ],
)
def test_no_device_ever_holds_or_sends_all_logits(mesh, axes):
    mesh = make_mesh(parse_mesh(mesh))
    case = make_case()
    with jax.set_mesh(mesh):
        by_rows = named_sharding(mesh, ("rows", None), (B, T))
        shardings = (named_sharding(mesh, ("rows", None, None), (B, T, D)), named_sharding(mesh, axes, (D, V)))
        placed = [jax.device_put(x, s) for x, s in zip(case, (*shardings, *[by_rows] * 3), strict=True)]
        compiled = jax.jit(step, out_shardings=((None, (by_rows, by_rows)), shardings)).lower(*placed).compile()
        (_, (logprobs, entropy)), gradients = compiled(*placed)
    (_, expected), expected_gradients = jax.jit(step)(*case)
    for ours, theirs in zip((logprobs, entropy), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)
    for ours, theirs in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)
    shards, tensor = mesh.shape["data"] * mesh.shape["fsdp"], mesh.shape["tensor"]
    in_loops, once = map(sent_sizes, compiled.as_text().split("\nENTRY "))
    # The largest thing that travels is the head, or its gradient, and that once; a chunk's logits would be larger.
    chunk_logits = B // shards * CHUNK * V
    assert chunk_logits > D * V
    assert max(once, default=0) <= D * V
    assert in_loops  # parts of the log-sum-exp of a split vocabulary
    assert max(in_loops) <= B // shards * CHUNK * D < D * V // tensor
    if shards > 1:
        assert D * V // tensor in once
    assert compiled.memory_analysis().temp_size_in_bytes < 4 * B // shards * T * V // tensor


def test_a_vocabulary_of_32k_takes_a_tenth_of_the_memory_of_all_logits():
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in make_case(4, 512, 32, 32_768)]

    def temporary_bytes(chunk_tokens):
        compiled = jax.jit(partial(step, chunk_tokens=chunk_tokens)).lower(*shapes).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    whole, chunked = temporary_bytes(512), temporary_bytes(32)
    assert whole > 4 * 512 * 32_768 * jnp.dtype(jnp.float32).itemsize
    assert chunked <= whole / 10
