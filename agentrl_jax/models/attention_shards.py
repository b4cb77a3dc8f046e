"""Attention kernels on a mesh: the compiler cannot split a kernel, so each device is handed its rows and heads."""

from typing import Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from agentrl_jax.sharding import partition


class Kernel(Protocol):
    """Attention of what one device holds; H is a multiple of K. What padding gets does not matter."""

    def __call__(
        self, q: Float[Array, "B T H Dh"], k: Float[Array, "B T K Dh"], v: Float[Array, "B T K Dh"],
        segment_ids: Int[Array, "B T"], /,
    ) -> Float[Array, "B T H Dh"]: ...  # fmt: skip


def on_each_device(
    kernel: Kernel,
    q: Float[Array, "B T H Dh"],
    k: Float[Array, "B T K Dh"],
    v: Float[Array, "B T K Dh"],
    segment_ids: Int[Array, "B T"],
) -> Float[Array, "B T H Dh"]:
    """Run `kernel` on each device's rows and heads. Padding gets 0 and gives no gradient, whatever the kernel does.

    KV heads that the tensor axis does not divide are repeated, so that each device has those of its query heads.
    """
    is_token = (segment_ids > 0)[..., None, None]
    # Selected on the way in too: a kernel may leave NaN in the gradients of what it was told to skip.
    q, k, v = (jnp.where(is_token, array, 0) for array in (q, k, v))
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return jnp.where(is_token, kernel(q, k, v, segment_ids), 0)
    by_heads = partition(("rows", None, "heads", None), q.shape, mesh.shape)
    by_kv_heads = partition(("rows", None, "kv_heads", None), k.shape, mesh.shape)
    if by_heads != by_kv_heads:
        k, v = repeat_heads(k, q.shape[2]), repeat_heads(v, q.shape[2])
    by_rows = partition(("rows", None), segment_ids.shape, mesh.shape)
    run = jax.shard_map(
        kernel,
        in_specs=(by_heads, by_heads, by_heads, by_rows),
        out_specs=by_heads,
        check_vma=False,  # kernels do not say over which axes their results vary
    )
    out: Array = run(q, k, v, segment_ids)
    return jnp.where(is_token, out, 0)


def repeat_heads(array: Float[Array, "B T K Dh"], num_heads: int) -> Float[Array, "B T H Dh"]:
    """Give each query head its own copy of its KV head; the gradients of the copies add up."""
    num_kv_heads = array.shape[2]
    return array if num_kv_heads == num_heads else jnp.repeat(array, num_heads // num_kv_heads, axis=2)
