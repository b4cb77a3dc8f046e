"""Draws one token per row from logits, and says how likely it was."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from agentrl_jax.engines.local.steps import Truncations


def sample(
    logits: Float[Array, "R V"],
    seeds: UInt32[Array, "R 2"],
    indices: Int[Array, " R"],
    temperatures: Float[Array, " R"],
    truncations: Truncations | None = None,
) -> tuple[Int[Array, " R"], Float[Array, " R"]]:
    """Return each row's id and its log-probability, in float32.

    temperature > 0: id = argmax(logits/temperature + gumbel) (Gumbel 1954), a draw from
    softmax(logits/temperature); logprob = log_softmax(logits/temperature)[id].
    temperature 0: id = argmax(logits); logprob = log_softmax(logits)[id].
    truncations: ids that are cut off (see `types.Truncation`) are not drawn; None: none of any row. Log-probabilities
    are the same with and without.

    The noise of a row comes from its seed and from `indices`, the number of ids the turn had before this one, and
    from nothing else: neither the row's place nor the other rows change a draw. A row whose logits are not finite
    has a log-probability that is not finite.
    """
    is_greedy = temperatures == 0
    scaled = logits.astype(jnp.float32) / jnp.where(is_greedy, 1.0, temperatures)[:, None]
    keys = jax.vmap(jax.random.fold_in)(jax.random.wrap_key_data(seeds, impl="threefry2x32"), indices)
    noise = jax.vmap(lambda key: jax.random.gumbel(key, logits.shape[-1:], jnp.float32))(keys)
    noisy = jnp.where(is_greedy[:, None], scaled, scaled + noise)
    if truncations is not None:  # sorting a vocabulary is slow: only where a row asks for it
        is_any_cut = ((truncations.top_ks > 0) | (truncations.top_ps < 1) | (truncations.min_ps > 0)).any()
        noisy = jax.lax.cond(is_any_cut, lambda: jnp.where(keeps(scaled, truncations), noisy, -jnp.inf), lambda: noisy)
    ids = jnp.argmax(noisy, axis=-1).astype(jnp.int32)
    chosen = jnp.take_along_axis(scaled, ids[:, None], axis=-1)[:, 0]
    return ids, chosen - jax.nn.logsumexp(scaled, axis=-1)


def keeps(scaled: Float[Array, "R V"], truncations: Truncations) -> Bool[Array, "R V"]:
    """Which ids each row's truncation leaves, at least its likeliest; see `types.Truncation`."""
    top_ks, top_ps, min_ps = (limits[:, None] for limits in truncations)
    falling = jnp.sort(scaled, axis=-1, descending=True)
    is_in = (top_ks == 0) | (jnp.arange(scaled.shape[-1]) < top_ks)
    probs = jax.nn.softmax(jnp.where(is_in, falling, -jnp.inf), axis=-1)
    is_in &= (jnp.cumsum(probs, axis=-1) - probs < top_ps) & (probs >= min_ps * probs[:, :1])
    num_kept = jnp.maximum(is_in.sum(-1, keepdims=True), 1)  # each condition holds up to some rank
    return scaled >= jnp.take_along_axis(falling, num_kept - 1, axis=-1)
