"""The table of parameters of each model family: the one place that names a tensor.

Initial values, abstract shapes, shardings, import, export, the engines' names and checkpoint templates follow from it.
"""

from collections.abc import Iterator

from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.specs import ParamSpec, matrix, table, vector


def param_specs(config: ModelConfig) -> tuple[ParamSpec, ...]:
    """Return the table of all leaves of `config`, in the order in which Hugging Face lists them."""
    width = {"width": config.width}
    embedding = table(
        "embed.embedding", "model.embed_tokens.weight", {"vocab": config.vocab_size, "vocab_width": config.width}
    )
    layers = (
        spec.stacked("model.layers", config.num_layers) for spec in (*_attention_specs(config), *_mlp_specs(config))
    )
    final_norm = vector("final_norm.scale", "model.norm.weight", {"norm": config.width}, "ones")
    lm_head = matrix("lm_head", "lm_head", width, {"head_vocab": config.vocab_size})
    return (embedding, *layers, final_norm, *(() if config.tie_embeddings else (lm_head,)))


def _attention_specs(config: ModelConfig) -> Iterator[ParamSpec]:
    traits = config.traits
    width = {"width": config.width}
    heads = {"heads": config.num_heads, "head_dim": config.head_dim}
    kv_heads = {"kv_heads": config.num_kv_heads, "head_dim": config.head_dim}
    yield vector("input_norm.scale", "input_layernorm.weight", _norm(config), "ones")
    for name, outputs in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
        yield matrix(f"attention.{name}", f"self_attn.{name}_proj", width, outputs)
        if config.qkv_bias:
            yield vector(f"attention.{name}.bias", f"self_attn.{name}_proj.bias", outputs, "zeros")
    yield matrix("attention.o", "self_attn.o_proj", heads, width)
    if traits.has_qk_norm:
        for name in "qk":
            head = {"head_norm": config.head_dim}
            yield vector(f"attention.{name}_norm.scale", f"self_attn.{name}_norm.weight", head, "ones")
    if traits.has_out_norms:
        yield vector("attention_out_norm.scale", "post_self_attn_layernorm.weight", _norm(config), "ones")


def _mlp_specs(config: ModelConfig) -> Iterator[ParamSpec]:
    traits = config.traits
    width, inner = {"width": config.width}, {"mlp": config.mlp_width}
    # The name that Hugging Face gives to the norm in front of the MLP, whatever else stands behind the attention.
    yield vector("post_norm.scale", "post_attention_layernorm.weight", _norm(config), "ones")
    if traits.has_fused_gate_up:
        yield matrix("mlp.gate_up", "mlp.gate_up_proj", width, {"gate_up": 2} | inner)
    else:
        yield matrix("mlp.gate", "mlp.gate_proj", width, inner)
        yield matrix("mlp.up", "mlp.up_proj", width, inner)
    yield matrix("mlp.down", "mlp.down_proj", inner, width)
    if traits.has_out_norms:
        yield vector("mlp_out_norm.scale", "post_mlp_layernorm.weight", _norm(config), "ones")


def _norm(config: ModelConfig) -> dict[str, int]:
    return {"norm": config.width}  # too small to be worth splitting


def hf_entries(config: ModelConfig) -> Iterator[tuple[str, ParamSpec, int | None]]:
    """Yield (Hugging Face name, spec, layer) of every tensor, layer by layer; layer None for unstacked leaves."""
    specs = param_specs(config)
    stacked = [spec for spec in specs if spec.is_stacked]
    first = next(i for i, spec in enumerate(specs) if spec.is_stacked)
    for spec in specs[:first]:
        yield spec.hf_name, spec, None
    for layer in range(config.num_layers):
        for spec in stacked:
            yield spec.hf_name.format(layer=layer), spec, layer
    for spec in specs[first + len(stacked) :]:
        yield spec.hf_name, spec, None
