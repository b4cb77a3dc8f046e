"""What a learner trains: every leaf of the params, or adapters beside some of them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from agentrl_jax.learner.lora import AdapterSpec, LoraConfig, adapter_tree, attach, merge
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.params import Params, build_tree
from agentrl_jax.models.specs import ParamSpec
from agentrl_jax.sharding import named_sharding


class Trained(NamedTuple):
    """The table of the trained leaves. lora: None if they are the params themselves."""

    model: ModelConfig
    lora: LoraConfig | None

    def build(self, leaf: Callable[[ParamSpec | AdapterSpec], Any]) -> Params:
        """Return a tree of their structure with `leaf(spec)` at each leaf."""
        return build_tree(self.model, leaf) if self.lora is None else adapter_tree(self.model, self.lora, leaf)

    def shapes(self) -> Params:
        """They are float32 whatever the compute dtype: updates of 1e-6 vanish in bfloat16."""
        return self.build(lambda spec: shape_of(spec.shape, jnp.float32))

    def shardings(self, mesh: Mesh) -> Params:
        return self.build(lambda spec: named_sharding(mesh, spec.axes, spec.shape))

    def whole(self, trained: Params, frozen: Params) -> Params:
        """Return what models/decoder.py takes: the params, with adapters where there are some."""
        return trained if self.lora is None else attach(frozen, trained, self.lora.scale)

    def merged(self, trained: Params, frozen: Params) -> Params:
        """Return float32 params without adapters that compute the same."""
        return trained if self.lora is None else merge(frozen, trained, self.lora.scale)


def param_shardings(model: ModelConfig, mesh: Mesh) -> Params:
    """Return the sharding of each leaf of whole params."""
    return build_tree(model, lambda spec: named_sharding(mesh, spec.axes, spec.shape))


def shape_of(shape: tuple[int, ...], dtype: Any, sharding: Any = None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)  # type: ignore[no-untyped-call]
