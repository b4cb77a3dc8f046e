"""A model, a batch and a loss that are small enough to look at, for all tests of the learner."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.algo.aggregate import masked_sum
from agentrl_jax.algo.losses import LossConfig, make_loss
from agentrl_jax.batch import LossOutput, TokenBatch
from agentrl_jax.learner import Learner, LearnerConfig
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.params import init_params
from agentrl_jax.packing import PackedBatch, PackingConfig, pack_demonstrations
from agentrl_jax.sharding import make_mesh, parse_mesh

MODEL = ModelConfig(vocab_size=32, width=16, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=4, mlp_width=32)
PARAMS = init_params(MODEL, 0)
OTHER = init_params(MODEL, 1)
# A large eps makes the update a smooth function of the gradient, so that comparing params compares gradients.
CONFIG = LearnerConfig(learning_rate=0.1, eps=1.0, max_grad_norm=1e3, temperature=0.8, logprob_chunk=16)
SFT = make_loss(LossConfig(name="sft"))


def make_learner(mesh: str = "1", *, config: LearnerConfig = CONFIG, loss: Any = SFT, **extras: Any) -> Learner:
    return Learner(MODEL, config, loss, make_mesh(parse_mesh(mesh)), extras.pop("params", PARAMS), **extras)


def make_batch(seed: int = 0, *, rows: int = 4, row_tokens: tuple[int, ...] = (16,)) -> PackedBatch:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(4, row_tokens[0] + 1, 16)
    demonstrations = [(rng.integers(0, 32, n).astype(np.int32), np.r_[False, rng.random(n - 1) < 0.7]) for n in lengths]
    return pack_demonstrations(demonstrations, PackingConfig(row_tokens=row_tokens, rows_per_micro_batch=rows))


def distance_to_reference(logprobs: Any, batch: TokenBatch) -> LossOutput:
    """The mean square of log π − log π_ref over the tokens of the mask; the metric is the mean of log π_ref."""
    assert batch.reference_logprobs is not None
    loss = masked_sum(jnp.square(logprobs - batch.reference_logprobs), batch.loss_mask)
    return LossOutput(loss=loss, metrics={"reference": masked_sum(batch.reference_logprobs, batch.loss_mask)})


def flat(tree: Any) -> Any:
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)])


def same_bits(first: Any, second: Any) -> bool:
    return jax.tree.all(jax.tree.map(lambda a, b: np.asarray(a).tobytes() == np.asarray(b).tobytes(), first, second))


def on_host(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: np.array(leaf), tree)
