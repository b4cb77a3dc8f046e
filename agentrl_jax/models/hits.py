"""Whether each token is the one that the model finds likeliest: what token accuracy counts."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from agentrl_jax.models.layers import ban
from agentrl_jax.sharding import constrain, on_own_rows


def token_hits(
    hidden: Float[Array, "B T D"],
    head: Float[Array, "D V"],
    ids: Int[Array, "B T"],
    positions: Int[Array, "B T"],
    segment_ids: Int[Array, "B T"],
    *,
    chunk_tokens: int,
    banned_ids: tuple[int, ...] = (),
) -> Bool[Array, "B T"]:
    """hits[b, t]: ids[b, t] = argmax(hidden[b, t-1]·head) without `banned_ids`; of equal ones the lowest id counts.

    Aligned to the token itself, as `logprobs.token_logprobs`; False for a segment's first token and for padding.
    Logits are float32 and exist for `chunk_tokens` columns at a time.
    """
    head = constrain(head.astype(hidden.dtype), None, "head_vocab")

    def best(hidden: Float[Array, "B T D"], head: Float[Array, "D V"]) -> Int[Array, "B T"]:
        rows, length, width = hidden.shape
        num_chunks = -(-length // chunk_tokens)
        padded = jnp.pad(hidden, ((0, 0), (0, num_chunks * chunk_tokens - length), (0, 0)))
        chunks = jnp.moveaxis(padded.reshape(rows, num_chunks, chunk_tokens, width), 1, 0)

        def of_chunk(chunk: Float[Array, "B C D"]) -> Int[Array, "B C"]:
            logits = jnp.einsum("bcd,dv->bcv", chunk, head, preferred_element_type=jnp.float32)
            return jnp.argmax(ban(logits, banned_ids), axis=-1).astype(jnp.int32)

        found = jnp.moveaxis(jax.lax.map(of_chunk, chunks), 0, 1)
        return found.reshape(rows, -1)[:, :length]

    likeliest = jnp.roll(on_own_rows(best, hidden, shared=head), 1, axis=1)
    return (likeliest == ids) & (segment_ids > 0) & (positions > 0)
