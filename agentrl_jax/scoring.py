"""The learner's log-probabilities of given ids, at any temperature: what engines are compared with."""

from dataclasses import replace

import jax
import numpy as np

from agentrl_jax.algo.losses import LossConfig, make_loss
from agentrl_jax.learner import Learner
from agentrl_jax.learner.gradients import gradient_programs
from agentrl_jax.learner.trained import Trained
from agentrl_jax.packing import PackingConfig, pack_segments
from agentrl_jax.sharding import num_row_shares
from agentrl_jax.types import Floats, Ids


def score_ids(learner: Learner, packing: PackingConfig, ids: Ids, temperature: float) -> Floats:
    """Return float32 [n - 1]: log softmax(logits / temperature) of ids[1:] [n], each after what precedes it.

    Raises RecordError for ids that are longer than the longest row, or not in the vocabulary.
    """
    one_row_each = replace(packing, rows_per_micro_batch=num_row_shares(learner.mesh))
    (batch,) = pack_segments([len(ids)], {"ids": np.asarray(ids)}, one_row_each)
    if temperature == learner.config.temperature:
        found = learner.logprobs(batch)
    else:
        config = replace(learner.config, temperature=temperature)
        programs = gradient_programs(
            Trained(learner.model, None), config, make_loss(LossConfig(name="sft")), learner.mesh
        )
        with jax.set_mesh(learner.mesh):
            found = np.asarray(programs.logprobs(learner.params, {}, batch))
    row, *_ = np.nonzero(batch.segment_ids.any(1))[0]
    scores: Floats = found[row, 1 : len(ids)]
    return scores
