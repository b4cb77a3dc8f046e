"""A decoder layer as functions of arrays, shared by the learner's model and the embedded engine.

A layer is two functions with attention between them: `project` to queries, keys and values, `finish` from what the
heads attended to the next layer's input. Params are cast to the dtype of the activations where they are used;
norms, rotary tables and the softmax are float32 whatever it is.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.rope import rope_tables, rotate_halves, rotate_neighbours

Layer = Any
"""The tree under `layers` of the params, without the leading axis."""


class Rope(NamedTuple):
    """cos and sin of each position's angles, float32."""

    cos: Float[Array, "*b half"]
    sin: Float[Array, "*b half"]


def rms_norm(x: Float[Array, "*b D"], scale: Float[Array, " D"], *, eps: float) -> Float[Array, "*b D"]:
    """x / sqrt(mean(x²) + eps) · scale, computed in float32 and returned in x's dtype (Zhang & Sennrich 2019)."""
    x32 = x.astype(jnp.float32)
    normed = x32 * jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + eps)
    return (normed * scale.astype(jnp.float32)).astype(x.dtype)


def rope_of(config: ModelConfig, positions: Int[Array, "*b"]) -> Rope:
    """The angles that `config` turns its heads by at `positions`."""
    return Rope(*rope_tables(positions, config.rotary_dim, config.rope_theta, config.rope_scaling))


def embed(params: Any, ids: Int[Array, "*b"], dtype: Any) -> Float[Array, "*b D"]:
    """The input of the first layer."""
    out: Array = params["embed"]["embedding"].astype(dtype)[ids]
    return out


def project(
    layer: Layer, x: Float[Array, "*b D"], rope: Rope, config: ModelConfig
) -> tuple[Float[Array, "*b H Dh"], Float[Array, "*b K Dh"], Float[Array, "*b K Dh"]]:
    """Queries, keys (both rotated) and values of a layer's input; queries are not scaled yet."""
    attention = layer["attention"]
    normed = rms_norm(x, layer["input_norm"]["scale"], eps=config.norm_eps)
    q, k, v = (_heads(normed, attention[name]) for name in "qkv")
    if config.traits.has_qk_norm:
        q = rms_norm(q, attention["q_norm"]["scale"], eps=config.norm_eps)
        k = rms_norm(k, attention["k_norm"]["scale"], eps=config.norm_eps)
    rotate = rotate_neighbours if config.traits.rotates_neighbours else rotate_halves
    return rotate(q, *rope), rotate(k, *rope), v


def _heads(x: Float[Array, "*b D"], weights: Any) -> Float[Array, "*b H Dh"]:
    kernel = weights["kernel"].astype(x.dtype)
    heads: Array = _adapted(x @ kernel.reshape(kernel.shape[0], -1), x, weights)
    if "bias" in weights:
        heads = heads + weights["bias"].astype(x.dtype).reshape(-1)
    return heads.reshape(*x.shape[:-1], *kernel.shape[1:])


def finish(
    layer: Layer, x: Float[Array, "*b D"], heads: Float[Array, "*b HDh"], config: ModelConfig
) -> Float[Array, "*b D"]:
    """The next layer's input, from this one's and what its heads attended to."""
    output = layer["attention"]["o"]["kernel"].astype(x.dtype)
    added = _adapted(heads @ output.reshape(-1, output.shape[-1]), heads, layer["attention"]["o"])
    x = x + _out_norm(layer, "attention_out_norm", added, config)
    added = _mlp(layer["mlp"], rms_norm(x, layer["post_norm"]["scale"], eps=config.norm_eps))
    out: Array = x + _out_norm(layer, "mlp_out_norm", added, config)
    return out


def _out_norm(layer: Layer, name: str, added: Float[Array, "*b D"], config: ModelConfig) -> Float[Array, "*b D"]:
    return rms_norm(added, layer[name]["scale"], eps=config.norm_eps) if config.traits.has_out_norms else added


def _mlp(weights: Any, x: Float[Array, "*b D"]) -> Float[Array, "*b D"]:
    """(silu(x·gate) ⊙ (x·up))·down, kernels as [D, F], [D, F], [F, D] (Shazeer 2020); fused: gate_up as [D, 2, F]."""
    if "gate_up" in weights:
        both = jnp.tensordot(x, weights["gate_up"]["kernel"].astype(x.dtype), axes=1)
        both = _adapted(both, x, weights["gate_up"])
        gate, up = both[..., 0, :], both[..., 1, :]
    else:
        gate, up = (_adapted(x @ weights[name]["kernel"].astype(x.dtype), x, weights[name]) for name in ("gate", "up"))
    inner = jax.nn.silu(gate) * up
    return _adapted(inner @ weights["down"]["kernel"].astype(x.dtype), inner, weights["down"])


def _adapted(out: Float[Array, "*b O"], x: Float[Array, "*b I"], weights: Any) -> Float[Array, "*b O"]:
    """`out` + x·A·B where `weights` hold a low-rank adapter A [I, r], B [r, O] (Hu et al. 2021), its scale in B."""
    if "lora_a" not in weights:
        return out
    first, second = weights["lora_a"].astype(x.dtype), weights["lora_b"].astype(x.dtype)
    added: Array = jnp.tensordot(x @ first.reshape(-1, first.shape[-1]), second, axes=1)
    return out + added.reshape(out.shape)


def final_norm(params: Any, x: Float[Array, "*b D"], config: ModelConfig) -> Float[Array, "*b D"]:
    """Hidden states, from the last layer's output; `head_matrix` turns them into logits."""
    return rms_norm(x, params["final_norm"]["scale"], eps=config.norm_eps)


def head_matrix(params: Any) -> Float[Array, "D V"]:
    """The matrix that turns hidden states into logits: `lm_head`, or the transposed embedding of a tied model."""
    if "lm_head" in params:
        head: Array = params["lm_head"]["kernel"]
    else:
        head = params["embed"]["embedding"].T
    return head


def ban(logits: Float[Array, "*b V"], banned_ids: tuple[int, ...]) -> Float[Array, "*b V"]:
    """Give `banned_ids` probability 0. Log-probabilities are then those of the remaining, renormalised ids."""
    if not banned_ids:
        return logits
    allowed = np.ones(logits.shape[-1], np.bool_)
    allowed[list(banned_ids)] = False
    return jnp.where(allowed, logits, -jnp.inf)
