"""The decoder: token ids to hidden states, a Flax module that reads its parameters from the table of `families`.

The modules declare no parameters of their own: shapes, initial values and shardings stand in models/families.py.
Layers are one scanned block, so that the time to compile does not grow with depth. Between layers the tokens of all
rows are one axis N = B·T: plain matrix products, whose gradients take half the time of batched ones on a CPU.
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from agentrl_jax.models.attention import Attend
from agentrl_jax.models.attention_xla import attend_xla
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.layers import Rope, embed, final_norm, finish, head_matrix, project, rope_of
from agentrl_jax.models.params import Params
from agentrl_jax.sharding import constrain

__all__ = ["Decoder", "head_matrix", "hidden_states"]


class _Block(nn.Module):
    """One layer, as nn.scan wants it: (carry, what all layers share) -> (carry, nothing)."""

    config: ModelConfig
    attend: Attend

    @nn.compact
    def __call__(
        self, x: Float[Array, "N D"], shared: tuple[Rope, Int[Array, "B T"], Int[Array, "B T"]]
    ) -> tuple[Float[Array, "N D"], None]:
        rope, segment_ids, positions = shared
        layer = self.variables["params"]
        projected = project(layer, x, rope, self.config)
        q, k, v = (part.reshape(*positions.shape, *part.shape[1:]) for part in projected)
        heads = self.attend(q, k, v, segment_ids, positions)
        x = finish(layer, x, heads.reshape(x.shape[0], -1), self.config)
        return constrain(x, "rows", None), None


class Decoder(nn.Module):
    """A decoder of any family without its head; `logprobs.token_logprobs` is the head.

    dtype: what activations and matrix products are computed in; params stay in their own. Norms, rotary tables
      and attention scores are float32 whatever it is.
    remat: keep only the input of each layer for the backward pass and compute the layer again there.
    attend: the attention backend, one of `models.attention.BACKENDS`.
    """

    config: ModelConfig
    dtype: Any = jnp.float32
    remat: bool = True
    attend: Attend = attend_xla

    @nn.compact
    def __call__(
        self, ids: Int[Array, "B T"], positions: Int[Array, "B T"], segment_ids: Int[Array, "B T"]
    ) -> Float[Array, "B T D"]:
        """Return hidden states after the final norm. Only the tokens of a segment see each other."""
        config, params = self.config, self.variables["params"]
        x = constrain(embed(params, ids.reshape(-1), self.dtype), "rows", None)
        shared = (rope_of(config, positions.reshape(-1)), segment_ids, positions)
        block = nn.remat(_Block, prevent_cse=False) if self.remat else _Block
        layers = nn.scan(
            block,
            variable_axes={"params": 0},
            split_rngs={},
            in_axes=nn.broadcast,
            length=config.num_layers,
        )
        x, _ = layers(config, self.attend, name="layers")(x, shared)
        return final_norm(params, x, config).reshape(*ids.shape, config.width)


def hidden_states(
    config: ModelConfig,
    params: Params,
    ids: Int[Array, "B T"],
    positions: Int[Array, "B T"],
    segment_ids: Int[Array, "B T"],
    *,
    dtype: Any = jnp.float32,
    remat: bool = False,
    attend: Attend = attend_xla,
) -> Float[Array, "B T D"]:
    """`Decoder` as a function of params and arrays."""
    decoder = Decoder(config, dtype, remat, attend)
    out: Array = decoder.apply({"params": params}, ids, positions, segment_ids)
    return out
