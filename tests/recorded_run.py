"""A run directory as a training run leaves it, made in seconds: random batches, a real learner, no engines."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from agentrl_jax.algo.losses import LossConfig, make_loss
from agentrl_jax.batch import TokenBatch
from agentrl_jax.batch_files import save_batch
from agentrl_jax.checkpoint import CheckpointStore
from agentrl_jax.config import TrainConfig
from agentrl_jax.learner import Learner
from agentrl_jax.learning import begin_learning
from agentrl_jax.packing import PackedBatch, pack_demonstrations
from agentrl_jax.policy import NetworkConfig, create_policy
from agentrl_jax.preparation import play_demonstrations
from agentrl_jax.runlog import RunLog
from agentrl_jax.sharding import make_mesh, parse_mesh
from launch.config import make_families

NETWORK = NetworkConfig(width=16, num_layers=1, num_heads=2, num_kv_heads=1, mlp_width=16)
NUM_STEPS = 4
SILENT = 3
"""The step in which no group has a signal."""


def record_run(folder: Path, loss: LossConfig, *, checkpoints: tuple[int, ...] = (0, NUM_STEPS)) -> TrainConfig:
    """Write the run directory of four steps with `loss`, of which checkpoints of `checkpoints` are left."""
    config = TrainConfig(run_dir=folder, loss=loss, network=NETWORK, rows_per_device=2).with_context(32)
    mesh = make_mesh(parse_mesh(config.mesh))
    conversations = play_demonstrations(make_families(config), 8, noise=0.1, seed=0)
    with RunLog(folder) as log, CheckpointStore(folder / "checkpoints", keep=NUM_STEPS + 1) as store:
        log.write_config(config.to_json())
        policy = create_policy(conversations, log.model_folder, network=NETWORK, keep_whole=(), seed=0)
        params = policy.load_params(None)
        policy.save(params, log.model_folder)
        learner = begin_learning(config, policy.model, make_loss(loss), mesh, params, folder)
        for step in range(NUM_STEPS + 1):
            if step:
                batch = random_batch(learner, config, step)
                outcome = learner.step(batch)
                save_batch(log.batch_path(step), batch, learner.scores)
                log.log_metrics("step", {"step": step, "metrics": {**batch.stats, **outcome.as_dict()}})
            if step in checkpoints:
                store.save(step, learner.state, {})
    return config


def random_batch(learner: Learner, config: TrainConfig, step: int) -> PackedBatch:
    """Ten segments of random ids and advantages, sampled by a policy that is close to the learner's."""
    rng = np.random.default_rng(step)
    segments = [
        (rng.integers(3, 200, length).astype(np.int32), np.arange(length) > 2) for length in rng.integers(6, 20, 10)
    ]
    batch = pack_demonstrations(segments, config.packing)
    has_signal = step != SILENT

    def scored(micro: TokenBatch) -> TokenBatch:
        noise = rng.normal(0, 0.3, micro.ids.shape).astype(np.float32)
        good = np.where(micro.segment_ids % 2, np.float32(1.0), np.float32(-0.5))
        return micro._replace(
            has_signal=micro.loss_mask & has_signal,
            behavior_logprobs=np.where(micro.loss_mask, learner.logprobs(micro) + noise, 0),
            advantages=np.where(micro.loss_mask, good, 0) * has_signal,
        )

    micro_batches = tuple(scored(micro) for micro in batch.micro_batches)
    return replace(batch, micro_batches=micro_batches, loss_weight=batch.loss_weight * has_signal)
