"""The head of the model: log-probabilities of given tokens, without ever holding [B, T, V] logits."""

from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from agentrl_jax.models.layers import ban
from agentrl_jax.sharding import constrain, on_own_rows

_Pair: TypeAlias = tuple[Float[Array, "B C"], Float[Array, "B C"]]

_LOWEST = -1e30  # of log p in p·log p, which is 0 for a banned id and not 0·(-inf)


def token_logprobs(
    hidden: Float[Array, "B T D"],
    head: Float[Array, "D V"],
    ids: Int[Array, "B T"],
    positions: Int[Array, "B T"],
    segment_ids: Int[Array, "B T"],
    *,
    temperature: float,
    chunk_tokens: int,
    banned_ids: tuple[int, ...] = (),
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """Return (log-probability of each token, entropy in nats of the distribution that it was drawn from).

    logprobs[b, t] = log_softmax(hidden[b, t-1]·head / temperature)[ids[b, t]]: aligned to the token itself, as
    everything in `TokenBatch`. A segment's first token (position 0) and padding get exactly 0 in both, and no
    gradient. Entropy carries no gradient. Both are float32, as are the logits.

    chunk_tokens: columns of a row whose logits exist at a time; with more than one chunk they are computed again
      in the backward pass.
    banned_ids: ids that are never sampled: as in the engine, the others' probabilities add up to 1. A token that is
      one of them has -inf: none that was sampled.
    """
    # The last column predicts nothing; its target is a dummy that is masked below.
    targets = jnp.roll(ids, -1, axis=1)
    # One gather of a head split over fsdp, ahead of the chunks, instead of one in each.
    head = constrain(head.astype(hidden.dtype), None, "head_vocab")
    score = partial(_score, temperature=temperature, chunk_tokens=chunk_tokens, banned_ids=banned_ids)
    logprobs, entropy = on_own_rows(score, hidden, targets, shared=head)
    is_predicted = (segment_ids > 0) & (positions > 0)
    return _aligned(logprobs, is_predicted), _aligned(entropy, is_predicted)


def _score(
    hidden: Float[Array, "B T D"],
    targets: Int[Array, "B T"],
    head: Float[Array, "D V"],
    *,
    temperature: float,
    chunk_tokens: int,
    banned_ids: tuple[int, ...],
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """Log-probability of the target and entropy at every column, in chunks of columns."""
    batch, length, width = hidden.shape
    if length <= chunk_tokens:
        return _chunk(hidden, targets, head, temperature, banned_ids)
    num_chunks = -(-length // chunk_tokens)
    padding = num_chunks * chunk_tokens - length
    chunks = jnp.pad(hidden, ((0, 0), (0, padding), (0, 0))).reshape(batch, num_chunks, chunk_tokens, width)
    targets = jnp.pad(targets, ((0, 0), (0, padding))).reshape(batch, num_chunks, chunk_tokens)

    @jax.checkpoint
    def body(pair: tuple[Any, Any]) -> _Pair:
        return _chunk(*pair, head, temperature, banned_ids)

    logprobs, entropy = jax.lax.map(body, (jnp.moveaxis(chunks, 1, 0), jnp.moveaxis(targets, 1, 0)))
    logprobs, entropy = (jnp.moveaxis(x, 0, 1).reshape(batch, -1)[:, :length] for x in (logprobs, entropy))
    return logprobs, entropy


def _chunk(
    hidden: Float[Array, "B C D"],
    targets: Int[Array, "B C"],
    head: Float[Array, "D V"],
    temperature: float,
    banned_ids: tuple[int, ...],
) -> _Pair:
    logits = jnp.einsum("bcd,dv->bcv", hidden, head, preferred_element_type=jnp.float32) / temperature
    logits = ban(logits, banned_ids)
    logsumexp = jax.nn.logsumexp(logits, axis=-1)
    # Compared, not gathered: a gather's gradient is a scatter, and a vocabulary may be split over devices.
    is_target = jnp.arange(head.shape[1], dtype=targets.dtype) == targets[..., None]
    logprobs = jnp.sum(jnp.where(is_target, logits, 0), axis=-1) - logsumexp
    # Σ p·log p as it stands: logsumexp − Σ p·logit would cancel where the logits are large.
    log_p = jax.lax.stop_gradient(logits - logsumexp[..., None])
    entropy = -jnp.sum(jnp.exp(log_p) * jnp.maximum(log_p, _LOWEST), axis=-1)
    return logprobs, entropy


def _aligned(predicted: Float[Array, "B T"], is_predicted: Any) -> Float[Array, "B T"]:
    """Move each value from the column that predicts to the column of the predicted token."""
    return jnp.where(is_predicted, jnp.roll(predicted, 1, axis=1), 0)
