"""Draws one token per row from logits, and says how likely it was."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32


def sample(
    logits: Float[Array, "R V"],
    seeds: UInt32[Array, "R 2"],
    indices: Int[Array, " R"],
    temperatures: Float[Array, " R"],
) -> tuple[Int[Array, " R"], Float[Array, " R"]]:
    """Return each row's id and its log-probability, in float32.

    temperature > 0: id = argmax(logits/temperature + gumbel) (Gumbel 1954), a draw from
    softmax(logits/temperature); logprob = log_softmax(logits/temperature)[id].
    temperature 0: id = argmax(logits); logprob = log_softmax(logits)[id].

    The noise of a row comes from its seed and from `indices`, the number of ids the turn had before this one, and
    from nothing else: neither the row's place nor the other rows change a draw. A row whose logits are not finite
    has a log-probability that is not finite.
    """
    is_greedy = temperatures == 0
    scaled = logits.astype(jnp.float32) / jnp.where(is_greedy, 1.0, temperatures)[:, None]
    keys = jax.vmap(jax.random.fold_in)(jax.random.wrap_key_data(seeds, impl="threefry2x32"), indices)
    noise = jax.vmap(lambda key: jax.random.gumbel(key, logits.shape[-1:], jnp.float32))(keys)
    ids = jnp.argmax(jnp.where(is_greedy[:, None], scaled, scaled + noise), axis=-1).astype(jnp.int32)
    chosen = jnp.take_along_axis(scaled, ids[:, None], axis=-1)[:, 0]
    return ids, chosen - jax.nn.logsumexp(scaled, axis=-1)
