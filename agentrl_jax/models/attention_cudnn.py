"""cuDNN's flash attention. Segments are told by their starts and lengths; never by a mask, which would be [T, T].

Where cuDNN has its packed layout, rows may hold several segments, up to a number that is fixed when the program is
compiled; elsewhere one. Rows with more go to the Pallas kernel, within the same program.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from agentrl_jax.models.attention_pallas import capability, flash_attention, why_not_pallas
from agentrl_jax.models.attention_shards import on_each_device, repeat_heads

MIN_PACKED_VERSION = 90_600  # of cuDNN
MIN_PACKED_CAPABILITY = (9, 0)
TOKENS_PER_SEGMENT = 128
"""A row of T columns may hold T / this many segments. cuDNN's cost grows with the number that it is prepared for."""


def why_not_cudnn(device: jax.Device, *, head_dim: int, dtype: jnp.dtype) -> str | None:
    """Return why this backend cannot run on `device`, as the rest of a sentence; None if it can."""
    obstacle = why_not_pallas(device, head_dim=head_dim, dtype=dtype)
    if obstacle is not None:
        return obstacle
    largest = 256 if (capability(device) or (0, 0)) >= MIN_PACKED_CAPABILITY else 128
    if head_dim > largest or head_dim % 8:
        return f"needs heads of a multiple of 8, at most {largest} numbers here, but the model's have {head_dim}"
    if cudnn_version() is None:
        return "needs cuDNN, which this installation of JAX does not find"
    return None


def cudnn_version() -> int | None:
    """Return cuDNN's version as 10,000·major + 100·minor + patch; None without it."""
    from jax._src.lib import cuda_versions

    return None if cuda_versions is None else int(cuda_versions.cudnn_get_version())


def has_packed_layout() -> bool:
    """Whether cuDNN and the GPU can take rows of several segments."""
    device = jax.local_devices(backend="gpu")[0]
    return (cudnn_version() or 0) >= MIN_PACKED_VERSION and (capability(device) or (0, 0)) >= MIN_PACKED_CAPABILITY


def attend_cudnn(
    q: Float[Array, "B T H Dh"],
    k: Float[Array, "B T K Dh"],
    v: Float[Array, "B T K Dh"],
    segment_ids: Int[Array, "B T"],
    positions: Int[Array, "B T"],
    /,
) -> Float[Array, "B T H Dh"]:
    """See `models.attention.Attend`. bfloat16 or float16."""
    del positions  # they ascend with the columns within a segment
    max_segments = max(2, q.shape[1] // TOKENS_PER_SEGMENT) if has_packed_layout() else 1

    def kernel(
        q: Float[Array, "B T H Dh"],
        k: Float[Array, "B T K Dh"],
        v: Float[Array, "B T K Dh"],
        segment_ids: Int[Array, "B T"],
    ) -> Float[Array, "B T H Dh"]:
        def fused(q: Any, k: Any, v: Any, segment_ids: Any) -> Array:
            return _packed(q, k, v, segment_ids, max_segments) if max_segments > 1 else _padded(q, k, v, segment_ids)

        out: Array = jax.lax.cond(segment_ids.max() <= max_segments, fused, flash_attention, q, k, v, segment_ids)
        return out

    return on_each_device(kernel, q, k, v, segment_ids)


def _padded(q: Any, k: Any, v: Any, segment_ids: Int[Array, "B T"]) -> Array:
    """One segment a row, then padding."""
    lengths = jnp.sum(segment_ids > 0, axis=1, dtype=jnp.int32)
    return jax.nn.dot_product_attention(
        q, k, v, is_causal=True, query_seq_lengths=lengths, key_value_seq_lengths=lengths, implementation="cudnn"
    )


def _packed(q: Any, k: Any, v: Any, segment_ids: Int[Array, "B T"], max_segments: int) -> Array:
    # The only way to the packed layout; `jax.nn.dot_product_attention` does not expose it.
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    starts, lengths = segment_bounds(segment_ids, max_segments)
    # Repeated, because it takes the offsets of keys and values in strides of all query heads.
    k, v = repeat_heads(k, q.shape[2]), repeat_heads(v, q.shape[2])
    out: Array = cudnn.dot_product_attention(
        q,
        k,
        v,
        q_seqlen=lengths,
        kv_seqlen=lengths,
        q_offsets=starts,
        kv_offsets=starts,
        scale=q.shape[3] ** -0.5,
        mask_type=cudnn.MaskType.PADDING_CAUSAL,
    )
    return out


def segment_bounds(segment_ids: Int[Array, "B T"], max_segments: int) -> tuple[Int[Array, "B M+1"], Int[Array, "B M"]]:
    """Return the first column of each segment of a row and its length; -1 where the row has no such segment.

    The starts have one more column, always -1.
    """
    numbers = jnp.arange(1, max_segments + 1)
    is_of: Bool[Array, "B M T"] = segment_ids[:, None, :] == numbers[None, :, None]
    lengths = jnp.sum(is_of, axis=2, dtype=jnp.int32)
    starts = jnp.argmax(is_of, axis=2).astype(jnp.int32)
    starts, lengths = (jnp.where(lengths > 0, array, -1) for array in (starts, lengths))
    return jnp.pad(starts, ((0, 0), (0, 1)), constant_values=-1), lengths
