"""The same supervised step by Tunix, if it is installed: its own trainer, model and loss."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from agentrl_jax.models.config import ModelConfig


def is_installed() -> bool:
    """True if `google-tunix` can be imported."""
    return find_spec("tunix") is not None


def tunix_step(model: ModelConfig, *, num: int, length: int) -> Callable[[], None]:
    """A step over `num` sequences of `length` tokens: forward, backward, AdamW.

    Tunix accumulates no micro-batches unless the caller cuts them, so it takes the batch as its trainer does: whole.
    """
    from flax import nnx

    # By name: where it is not installed, there is nothing for a type checker to find either.
    qwen2 = import_module("tunix.models.qwen2.model")
    peft_trainer, utils = import_module("tunix.sft.peft_trainer"), import_module("tunix.sft.utils")
    settings = qwen2.ModelConfig(
        num_layers=model.num_layers,
        vocab_size=model.vocab_size,
        embed_dim=model.width,
        hidden_dim=model.mlp_width,
        num_heads=model.num_heads,
        head_dim=model.head_dim,
        num_kv_heads=model.num_kv_heads,
        rope_theta=int(model.rope_theta),
        norm_eps=model.norm_eps,
        use_tied_embedding=model.tie_embeddings,
    )
    ids = np.random.default_rng(0).integers(0, model.vocab_size, (num, length)).astype(np.int32)
    mesh = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    with mesh:
        network = qwen2.Qwen2(settings, rngs=nnx.Rngs(0))
        config = peft_trainer.TrainingConfig(eval_every_n_steps=10**9)
        trainer = peft_trainer.PeftTrainer(network, optax.adamw(4e-4), config)

    def model_input(given: Any) -> dict[str, Any]:
        mask = given.input_mask
        return {
            "input_tokens": given.input_tokens,
            "input_mask": mask,
            "positions": utils.build_positions_from_mask(mask),
            "attention_mask": utils.make_causal_attn_mask(mask),
        }

    trainer = trainer.with_gen_model_input_fn(model_input)
    given = peft_trainer.TrainingInput(input_tokens=ids, input_mask=np.ones(ids.shape, np.bool_))
    with mesh:
        train_step, _ = trainer.jit_train_and_eval_step(cache_nnx_graph=True)

    def step() -> None:
        with mesh:
            jax.block_until_ready(train_step(given)[0])  # type: ignore[no-untyped-call]

    return step
