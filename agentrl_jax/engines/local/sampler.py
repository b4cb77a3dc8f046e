"""Draws one token per row from logits, and says how likely it was."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from agentrl_jax.engines.local.steps import Truncations

_BLOCK = 128  # ids of which the chance is summed up: a draw chooses a block, then an id in it


def draw_uniforms(seeds: UInt32[Array, "R 2"], indices: Int[Array, " R"]) -> Float[Array, "R 2"]:
    """Two numbers in [0, 1) for the next id of each row, from its seed and the number of ids its turn has already.

    They depend on nothing else: neither the row's place nor the other rows change a draw.
    """
    keys = jax.vmap(jax.random.fold_in)(jax.random.wrap_key_data(seeds, impl="threefry2x32"), indices)
    uniforms: Array = jax.vmap(lambda key: jax.random.uniform(key, (2,)))(keys)
    return uniforms


def sample(
    logits: Float[Array, "R V"],
    uniforms: Float[Array, "R 2"],
    temperatures: Float[Array, " R"],
    truncations: Truncations | None = None,
) -> tuple[Int[Array, " R"], Float[Array, " R"]]:
    """Return each row's id and its log-probability, in float32.

    temperature > 0: id is drawn from softmax(logits/temperature), by inversion: the row's first uniform number chooses
    a block of ids by the blocks' sums, the second one an id of that block;
    logprob = log_softmax(logits/temperature)[id].
    temperature 0: id = argmax(logits), the first of several; logprob = log_softmax(logits)[id].
    truncations: ids that are cut off (see `types.Truncation`) are not drawn; None: none of any row. Log-probabilities
    are the same with and without.

    An id of probability 0 is never drawn. A row whose logits are not finite has a log-probability that is not finite.
    """
    is_greedy = temperatures == 0
    scaled = logits.astype(jnp.float32) / jnp.where(is_greedy, 1.0, temperatures)[:, None]
    top = scaled.max(-1, keepdims=True)
    weights = jnp.exp(scaled - top)
    total = weights.sum(-1)
    if truncations is not None:
        weights = jnp.where(keeps(scaled, truncations), weights, 0.0)
    likeliest = jnp.minimum(_first(scaled == top), logits.shape[-1] - 1)  # no score equals a largest one that is NaN
    ids = jnp.where(is_greedy, likeliest, _invert(weights, uniforms))
    chosen = jnp.take_along_axis(scaled, ids[:, None], axis=-1)
    return ids, (chosen - top)[:, 0] - jnp.log(total)


def _invert(weights: Float[Array, "R V"], uniforms: Float[Array, "R 2"]) -> Int[Array, " R"]:
    """Ids with probabilities in proportion to `weights`, as a function of two numbers in [0, 1)."""
    rows, size = weights.shape
    width = min(_BLOCK, size)
    blocks = jnp.pad(weights, ((0, 0), (0, -size % width))).reshape(rows, -1, width)
    block = _invert_sums(blocks.sum(-1), uniforms[:, :1])
    inner = _invert_sums(jnp.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0], uniforms[:, 1:])
    return jnp.minimum(block * width + inner, size - 1)


def _invert_sums(weights: Float[Array, "R N"], uniforms: Float[Array, "R 1"]) -> Int[Array, " R"]:
    sums = jnp.cumsum(weights, axis=-1)
    is_possible = weights > 0
    is_past = is_possible & (sums > uniforms * sums[:, -1:])
    last = jnp.where(is_possible, jnp.arange(weights.shape[-1]), 0).max(-1)  # rounding may leave nothing past
    return jnp.minimum(_first(is_past), last)


def _first(condition: Bool[Array, "R N"]) -> Int[Array, " R"]:
    """The first index at which `condition` holds, N if there is none; argmax is many times slower on a CPU."""
    size = condition.shape[-1]
    return jnp.where(condition, jnp.arange(size, dtype=jnp.int32), size).min(-1)


def keeps(scaled: Float[Array, "R V"], truncations: Truncations) -> Bool[Array, "R V"]:
    """Which ids each row's truncation leaves, at least its likeliest and all as likely; see `types.Truncation`."""
    is_any_cut = ((truncations.top_ks > 0) | (truncations.top_ps < 1) | (truncations.min_ps > 0)).any()
    everything = jnp.zeros((len(scaled), 1), jnp.uint32)
    least = jax.lax.cond(is_any_cut, lambda: _least_kept(scaled, truncations), lambda: everything)
    is_kept: Array = _ordered(scaled) >= least
    return is_kept


def _least_kept(scaled: Float[Array, "R V"], truncations: Truncations) -> UInt32[Array, "R 1"]:
    """The lowest score that is kept, as `_ordered` numbers them; found by bisection, since sorting takes far longer."""
    top_ks, top_ps, min_ps = (limits[:, None] for limits in truncations)
    scores = _ordered(scaled)
    by_rank = _largest(lambda least: (scores >= least).sum(-1, keepdims=True) >= top_ks, scores)
    by_rank = jnp.where(top_ks > 0, by_rank, 0)
    probs = jax.nn.softmax(jnp.where(scores >= by_rank, scaled, -jnp.inf), axis=-1)
    by_mass = _largest(lambda least: jnp.where(scores >= least, probs, 0.0).sum(-1, keepdims=True) >= top_ps, scores)
    by_mass = jnp.where(top_ps < 1, by_mass, 0)
    by_prob = jnp.where(probs >= min_ps * probs.max(-1, keepdims=True), scores, jnp.uint32(2**32 - 1))
    return jnp.maximum(jnp.maximum(by_rank, by_mass), by_prob.min(-1, keepdims=True))


def _ordered(scores: Float[Array, "R V"]) -> UInt32[Array, "R V"]:
    """Integers in the order of the float32 scores."""
    bits = jax.lax.bitcast_convert_type(scores, jnp.uint32)
    return jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(1 << 31))


def _largest(
    holds: Callable[[UInt32[Array, "R 1"]], Bool[Array, "R 1"]], like: UInt32[Array, "R V"]
) -> UInt32[Array, "R 1"]:
    """The largest integer for which `holds`; it holds up to some integer, 0 at least."""

    def add_bit(index: Array, found: Array) -> Array:
        larger = found | jnp.uint32(1 << 31) >> index.astype(jnp.uint32)
        return jnp.where(holds(larger), larger, found)

    found: Array = jax.lax.fori_loop(0, 32, add_bit, jnp.zeros((len(like), 1), jnp.uint32))
    return found
