"""The decoder with a key-value cache: extend slots by a chunk of known ids, or by a block of sampled ones.

Both functions only read the cache while they compute, and write their fresh keys and values into it once at the
end. A decode block therefore never copies the cache: it is a constant of the scan over its steps.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from agentrl_jax.engines.local.attention import Attended, attend, attend_slots, attend_whole_cache, merge
from agentrl_jax.engines.local.cache import Caches, LayerCache, init_caches, write_columns
from agentrl_jax.engines.local.sampler import draw_uniforms, sample
from agentrl_jax.engines.local.steps import Draws
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.layers import Rope, ban, embed, final_norm, finish, head_matrix, project, rope_of

Params = Any  # the parameter tree of models/params.py, split by weights.split_layers


def prefill_chunk(
    params: Params,
    caches: Caches,
    ids: Int[Array, "P C"],
    slots: Int[Array, " P"],
    starts: Int[Array, " P"],
    counts: Int[Array, " P"],
    draws: Draws,
    *,
    model: ModelConfig,
    banned_ids: tuple[int, ...],
) -> tuple[Caches, Int[Array, " P"], Float[Array, " P"]]:
    """Append the first `counts[p]` >= 1 ids of row p to slot `slots[p]`, which holds `starts[p]` ids; draw the next.

    A row without work has a slot >= S. Returns the caches and, per row, an id drawn after the last real one with its
    log-probability.
    """
    columns = jnp.arange(ids.shape[1])
    causal = (columns[None, :] <= columns[:, None])[None]
    # What a loop returns is computed once; else XLA would compute the angles anew in each layer, for each head.
    rope = jax.lax.map(lambda positions: rope_of(model, positions), starts[:, None] + columns)
    readable = jnp.minimum(slots, caches[0].keys.shape[0] - 1)
    x = embed(params, ids, caches[0].keys.dtype)
    added = []
    for layer, cache in zip(params["layers"], caches, strict=True):
        q, fresh = _project(layer, x, rope, model)
        held = attend_slots(q, cache, readable, starts)
        x = _finish_layer(layer, x, merge(held, _attend_fresh(q, fresh, causal)), model)
        added.append(fresh)
    last = jnp.take_along_axis(x, (counts - 1)[:, None, None], axis=1)[:, 0]
    logits = ban(_logits(params, last, model), banned_ids)
    uniforms = draw_uniforms(draws.seeds, draws.indices)
    tokens, logprobs = sample(logits, uniforms, draws.temperatures, draws.truncations)
    return write_columns(caches, tuple(added), slots, starts, counts), tokens, logprobs


def decode_block(
    params: Params,
    caches: Caches,
    tokens: Int[Array, " S"],
    starts: Int[Array, " S"],
    draws: Draws,
    *,
    model: ModelConfig,
    banned_ids: tuple[int, ...],
    num_steps: int,
) -> tuple[Caches, Int[Array, "N S"], Float[Array, "N S"]]:
    """Draw `num_steps` ids in every slot: feed `tokens[s]` at position `starts[s]`, draw, feed the draw, and so on.

    A slot without work has starts = T: nothing of it is written. Stop ids and the cache's end do not stop a row; the
    host cuts there. Returns the caches, and ids and log-probabilities, both [N, S].
    """
    num_slots = tokens.shape[0]
    nothing = init_caches(model, num_slots, num_steps, caches[0].keys.dtype)
    steps = jnp.arange(num_steps)
    uniforms = jax.vmap(lambda index: draw_uniforms(draws.seeds, draws.indices + index))(steps)
    ropes = rope_of(model, (starts + steps[:, None])[..., None])

    def step(
        carry: tuple[Array, Caches], given: tuple[Array, Array, Rope]
    ) -> tuple[tuple[Array, Caches], tuple[Array, Array]]:
        (token, block), (index, uniform, rope) = carry, given
        seen = (jnp.arange(num_steps) <= index)[None, None]
        x = embed(params, token[:, None], nothing[0].keys.dtype)
        grown = []
        for layer, cache, added in zip(params["layers"], caches, block, strict=True):
            q, new = _project(layer, x, rope, model)
            added = LayerCache(  # index < num_steps: neither write can be clamped
                jax.lax.dynamic_update_slice_in_dim(added.keys, new.keys, index, axis=3),
                jax.lax.dynamic_update_slice_in_dim(added.values, new.values, index, axis=2),
            )
            held = attend_whole_cache(q, cache, starts)
            x = _finish_layer(layer, x, merge(held, _attend_fresh(q, added, seen)), model)
            grown.append(added)
        logits = ban(_logits(params, x[:, 0], model), banned_ids)
        token, logprob = sample(logits, uniform, draws.temperatures, draws.truncations)
        return (token, tuple(grown)), (token, logprob)

    (_, block), (sampled, logprobs) = jax.lax.scan(step, (tokens, nothing), (steps, uniforms, ropes))
    counts = jnp.full_like(starts, num_steps)
    return write_columns(caches, block, jnp.arange(num_slots), starts, counts), sampled, logprobs


def _project(
    layer: Params, x: Float[Array, "R C D"], rope: Rope, model: ModelConfig
) -> tuple[Float[Array, "R K GC Dh"], LayerCache]:
    """Scaled queries, folded by KV head, and this call's keys and values in the cache's layout."""
    q, k, v = project(layer, x, rope, model)
    rows, columns = x.shape[:2]
    grouped = (q * model.head_dim**-0.5).reshape(rows, columns, model.num_kv_heads, -1, model.head_dim)
    folded = grouped.transpose(0, 2, 3, 1, 4).reshape(rows, model.num_kv_heads, -1, model.head_dim)
    return folded, LayerCache(k.transpose(0, 2, 3, 1), v.transpose(0, 2, 1, 3))


def _attend_fresh(q: Float[Array, "R K GC Dh"], fresh: LayerCache, mask: Bool[Array, "1 C N"]) -> Attended:
    """Every column sees at least itself, so the merged total is never 0."""
    groups = q.shape[2] // mask.shape[1]
    return attend(q, fresh, jnp.tile(mask, (1, groups, 1)))


def _finish_layer(
    layer: Params, x: Float[Array, "R C D"], attended: Attended, model: ModelConfig
) -> Float[Array, "R C D"]:
    rows, columns = x.shape[:2]
    heads = (attended.mixed / attended.total).astype(x.dtype)
    heads = heads.reshape(rows, model.num_kv_heads, -1, columns, model.head_dim).transpose(0, 3, 1, 2, 4)
    return finish(layer, x, heads.reshape(rows, columns, -1), model)


def _logits(params: Params, x: Float[Array, "R D"], model: ModelConfig) -> Float[Array, "R V"]:
    logits: Array = jnp.matmul(final_norm(params, x, model), head_matrix(params), preferred_element_type=jnp.float32)
    return logits
