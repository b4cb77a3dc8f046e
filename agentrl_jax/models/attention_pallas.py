"""JAX's own Triton flash attention (Dao 2023) for NVIDIA GPUs: forward and backward, with segment ids."""

import warnings
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from agentrl_jax.models.attention_shards import on_each_device, repeat_heads

MAX_HEAD_DIM = 256
MIN_CAPABILITY = (8, 0)

# Triton multiplies matrices of at least 16 rows, and a tile has a power of two of them.
_MIN_BLOCK, _MAX_BLOCK, _BACKWARD_BLOCK = 16, 128, 32
# Bytes of a tile's row up to which 128 rows of q, and twice 128 of k and v, fit into shared memory.
_WIDE_ROW_BYTES = 256


def why_not_pallas(device: jax.Device, *, head_dim: int, dtype: jnp.dtype) -> str | None:
    """Return why this backend cannot run on `device`, as the rest of a sentence; None if it can."""
    version = capability(device)
    if version is None:
        return f"needs an NVIDIA GPU, but the mesh is of {device.device_kind} devices"
    if version < MIN_CAPABILITY:
        return f"needs compute capability {_dotted(MIN_CAPABILITY)}, but {device.device_kind} has {_dotted(version)}"
    if head_dim > MAX_HEAD_DIM:
        return f"needs heads of at most {MAX_HEAD_DIM} numbers, but the model's have {head_dim}"
    if dtype not in (jnp.bfloat16, jnp.float16):
        return f"multiplies in bfloat16 or float16, but the compute dtype is {dtype}"
    return None


def capability(device: jax.Device) -> tuple[int, int] | None:
    """Return the CUDA compute capability of an NVIDIA GPU; None for another device."""
    numbers = str(getattr(device, "compute_capability", "")).split(".")
    if device.platform != "gpu" or len(numbers) != 2 or not all(number.isdigit() for number in numbers):
        return None
    return int(numbers[0]), int(numbers[1])


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def attend_pallas(
    q: Float[Array, "B T H Dh"],
    k: Float[Array, "B T K Dh"],
    v: Float[Array, "B T K Dh"],
    segment_ids: Int[Array, "B T"],
    positions: Int[Array, "B T"],
    /,
    *,
    interpret: bool = False,
) -> Float[Array, "B T H Dh"]:
    """See `models.attention.Attend`. Scores and softmax are float32; no more than a tile of them exists.

    interpret: run the kernels as plain operations, on any platform, to test them.
    """
    del positions  # they ascend with the columns within a segment
    return on_each_device(partial(flash_attention, interpret=interpret), q, k, v, segment_ids)


def flash_attention(
    q: Float[Array, "B T H Dh"],
    k: Float[Array, "B T K Dh"],
    v: Float[Array, "B T K Dh"],
    segment_ids: Int[Array, "B T"],
    *,
    interpret: bool = False,
) -> Float[Array, "B T H Dh"]:
    """One device's share of `attend_pallas`. Padding attends to padding, and gets what comes of it."""
    # Where it is used: the module needs jaxlib's GPU dialects, which a build for another platform may lack.
    with warnings.catch_warnings():
        # Newer versions of jax point to a package of its own.
        warnings.filterwarnings("ignore", r"jax\.experimental\.pallas\.ops\.gpu\.attention", DeprecationWarning)
        from jax.experimental.pallas.ops.gpu import attention as kernels

    length, num_heads, head_dim = q.shape[1:]
    k, v = repeat_heads(k, num_heads), repeat_heads(v, num_heads)
    block = _block_rows(length, head_dim * q.dtype.itemsize)
    padding = -length % block
    if padding:
        q, k, v = (jnp.pad(array, ((0, 0), (0, padding), (0, 0), (0, 0))) for array in (q, k, v))
        segment_ids = jnp.pad(segment_ids, ((0, 0), (0, padding)))
    backward = min(block, _BACKWARD_BLOCK)
    sizes = kernels.BlockSizes(
        block_q=block,
        block_k=block,
        block_q_dkv=backward,
        block_kv_dkv=backward,
        block_q_dq=backward,
        block_kv_dq=backward,
    )
    out: Array = kernels.mha(
        q, k, v, segment_ids, sm_scale=head_dim**-0.5, causal=True, block_sizes=sizes, interpret=interpret
    )
    return out[:, :length]


def _block_rows(length: int, row_bytes: int) -> int:
    largest = _MAX_BLOCK if row_bytes <= _WIDE_ROW_BYTES else _MAX_BLOCK // 2
    return min(largest, max(_MIN_BLOCK, 1 << (length - 1).bit_length()))
