"""The decoder: token ids to hidden states, a Flax module that reads its parameters from the table of `params`.

The modules declare no parameters of their own: shapes, initial values and shardings stand in models/params.py.
Layers are one scanned block, so that the time to compile does not grow with depth. Between layers the tokens of all
rows are one axis N = B·T: plain matrix products, whose gradients take half the time of batched ones on a CPU.
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from agentrl_jax.models.attention import attention
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.layers import apply_rope, rms_norm, rope_tables, swiglu
from agentrl_jax.models.params import Params
from agentrl_jax.sharding import constrain


class _Leaf(nn.Module):
    """A node of the tree; `leaf("kernel")` is its array in the compute dtype."""

    dtype: Any

    def __call__(self, name: str) -> Any:
        return self.get_variable("params", name).astype(self.dtype)


class _Attention(nn.Module):
    config: ModelConfig
    dtype: Any

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "N D"],
        rope: tuple[Float[Array, "B T half"], Float[Array, "B T half"]],
        segment_ids: Int[Array, "B T"],
        positions: Int[Array, "B T"],
    ) -> Float[Array, "N D"]:
        q, k, v = (self._project(x, name).reshape(*segment_ids.shape, -1, self.config.head_dim) for name in "qkv")
        q, k = apply_rope(q, *rope), apply_rope(k, *rope)
        out = attention(q, k, v, segment_ids, positions)
        kernel = _Leaf(self.dtype, name="o")("kernel")
        mixed: Array = out.reshape(x.shape[0], -1) @ kernel.reshape(-1, self.config.width)
        return mixed

    def _project(self, x: Float[Array, "N D"], name: str) -> Float[Array, "N HDh"]:
        leaf = _Leaf(self.dtype, name=name)
        projected: Array = x @ leaf("kernel").reshape(self.config.width, -1) + leaf("bias").reshape(-1)
        return projected


class _Mlp(nn.Module):
    dtype: Any

    @nn.compact
    def __call__(self, x: Float[Array, "N D"]) -> Float[Array, "N D"]:
        gate, up, down = (_Leaf(self.dtype, name=name)("kernel") for name in ("gate", "up", "down"))
        return swiglu(x, gate, up, down)


class _Block(nn.Module):
    """One layer, as nn.scan wants it: (carry, what all layers share) -> (carry, nothing)."""

    config: ModelConfig
    dtype: Any

    @nn.compact
    def __call__(self, x: Float[Array, "N D"], shared: Any) -> tuple[Float[Array, "N D"], None]:
        eps = self.config.norm_eps
        normed = rms_norm(x, _Leaf(jnp.float32, name="input_norm")("scale"), eps=eps)
        x = x + _Attention(self.config, self.dtype, name="attention")(normed, *shared)
        normed = rms_norm(x, _Leaf(jnp.float32, name="post_norm")("scale"), eps=eps)
        x = x + _Mlp(self.dtype, name="mlp")(normed)
        return constrain(x, "rows", None), None


class Decoder(nn.Module):
    """A Qwen2-architecture decoder without its head; `logprobs.token_logprobs` is the head.

    dtype: what activations and matrix products are computed in; params stay in their own. Norms, rotary tables
      and attention scores are float32 whatever it is.
    remat: keep only the input of each layer for the backward pass and compute the layer again there.
    """

    config: ModelConfig
    dtype: Any = jnp.float32
    remat: bool = True

    @nn.compact
    def __call__(
        self, ids: Int[Array, "B T"], positions: Int[Array, "B T"], segment_ids: Int[Array, "B T"]
    ) -> Float[Array, "B T D"]:
        """Return hidden states after the final norm. Only the tokens of a segment see each other."""
        config = self.config
        embedding = _Leaf(self.dtype, name="embed")("embedding")
        x = constrain(embedding[ids.reshape(-1)], "rows", None)
        shared = (rope_tables(positions, config.head_dim, config.rope_theta), segment_ids, positions)
        block = nn.remat(_Block, prevent_cse=False) if self.remat else _Block
        layers = nn.scan(
            block,
            variable_axes={"params": 0},
            split_rngs={},
            in_axes=nn.broadcast,
            length=config.num_layers,
        )
        x, _ = layers(config, self.dtype, name="layers")(x, shared)
        x = rms_norm(x, _Leaf(jnp.float32, name="final_norm")("scale"), eps=config.norm_eps)
        return x.reshape(*ids.shape, config.width)


def hidden_states(
    config: ModelConfig,
    params: Params,
    ids: Int[Array, "B T"],
    positions: Int[Array, "B T"],
    segment_ids: Int[Array, "B T"],
    *,
    dtype: Any = jnp.float32,
    remat: bool = False,
) -> Float[Array, "B T D"]:
    """`Decoder` as a function of params and arrays."""
    decoder = Decoder(config, dtype, remat)
    out: Array = decoder.apply({"params": params}, ids, positions, segment_ids)
    return out


def head_matrix(params: Params) -> Float[Array, "D V"]:
    """The matrix that turns hidden states into logits: `lm_head`, or the transposed embedding of a tied model."""
    if "lm_head" in params:
        head: Array = params["lm_head"]["kernel"]
    else:
        head = params["embed"]["embedding"].T
    return head
