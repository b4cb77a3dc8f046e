"""The learner of a run: what it keeps of the policy it began with, and that a resumed one goes on exactly."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.algo.losses import LossConfig, make_loss
from agentrl_jax.config import TrainConfig
from agentrl_jax.errors import ConfigError
from agentrl_jax.learner import Learner, LearnerConfig, LoraConfig
from agentrl_jax.learning import begin_learning, compile_ahead, resume_learning
from agentrl_jax.models.load import load_pretrained
from agentrl_jax.packing import PackedBatch
from agentrl_jax.sharding import MeshShape, make_mesh
from tests.learner.small import MODEL, OTHER, PARAMS, make_batch, on_host, same_bits

MESH = make_mesh(MeshShape())
PLAIN = TrainConfig(
    learner=LearnerConfig(learning_rate=0.01, logprob_chunk=16), max_context_tokens=32, loss=LossConfig(clip_high=0.28)
)
KL = replace(PLAIN, loss=LossConfig(kl_coefficient=0.5))
LORA = replace(PLAIN, lora=LoraConfig(rank=2))
BOTH = replace(KL, lora=LoraConfig(rank=2))


def scored(seed: int) -> PackedBatch:
    """A batch whose tokens are worth different things, so that the policy moves away from where it began."""
    packed = make_batch(seed)
    parts = (
        part._replace(
            advantages=np.where(part.loss_mask, np.float32(1) - part.ids / np.float32(16), 0).astype(np.float32)
        )
        for part in packed.micro_batches
    )
    return replace(packed, micro_batches=tuple(parts))


@pytest.mark.parametrize(
    "config",
    [pytest.param(KL, marks=pytest.mark.slow), pytest.param(LORA, marks=pytest.mark.slow), BOTH],
    ids=["kl", "lora", "both"],
)
def test_a_resumed_learner_takes_the_same_steps(config: TrainConfig, tmp_path: Path) -> None:
    loss = make_loss(config.loss)
    unbroken = begin_learning(config, MODEL, loss, MESH, PARAMS, tmp_path)
    for seed in range(2):
        assert unbroken.step(scored(seed)).is_applied
    # Another process: only what is on disk, and the checkpoint's state.
    resumed = resume_learning(config, MODEL, loss, MESH, OTHER, tmp_path)
    resumed.restore(on_host(unbroken.state))
    first, second = unbroken.step(scored(2)), resumed.step(scored(2))
    assert first == second
    assert config is LORA or first.metrics["reference_kl"] > 0
    assert same_bits(unbroken.params, resumed.params)


def test_the_origin_is_kept_only_where_it_is_needed(tmp_path: Path) -> None:
    learner = begin_learning(PLAIN, MODEL, make_loss(PLAIN.loss), MESH, PARAMS, tmp_path)
    assert not list(tmp_path.iterdir())
    assert isinstance(resume_learning(PLAIN, MODEL, make_loss(PLAIN.loss), MESH, learner.params, tmp_path), Learner)
    with pytest.raises(ConfigError, match=r"began without --loss\.kl-coefficient"):
        resume_learning(KL, MODEL, make_loss(KL.loss), MESH, learner.params, tmp_path)


def test_the_origin_is_kept_in_its_own_precision(tmp_path: Path) -> None:
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), PARAMS)
    begin_learning(LORA, MODEL, make_loss(LORA.loss), MESH, half, tmp_path)
    model, kept = load_pretrained(tmp_path / "reference")
    assert model == MODEL
    assert same_bits(kept, half)


@pytest.mark.slow
def test_compiling_ahead_says_so_and_leaves_nothing_to_compile(tmp_path: Path) -> None:
    config = replace(PLAIN, row_buckets=2, max_context_tokens=64, rows_per_device=4)
    assert config.packing.row_tokens == (32, 64)
    learner = begin_learning(config, MODEL, make_loss(config.loss), MESH, PARAMS, tmp_path)
    said: list[str] = []
    compile_ahead(learner, config, said.append)
    assert said[0].startswith("compiled the learner's step for rows of 32, 64 tokens in ")
    for row_tokens in config.packing.row_tokens:
        assert learner.step(make_batch(row_tokens=(row_tokens,))).num_late_compiles == 0


@pytest.mark.parametrize(
    ("context", "buckets", "lengths"),
    [(512, 1, (512,)), (512, 3, (128, 256, 512)), (160, 3, (64, 96, 160)), (32, 3, (32,)), (400, 2, (224, 416))],
)
def test_rows_have_halves_of_the_longest_episode(context: int, buckets: int, lengths: tuple[int, ...]) -> None:
    assert replace(PLAIN, row_buckets=buckets).with_context(context).packing.row_tokens == lengths


def test_no_buckets_make_no_sense() -> None:
    with pytest.raises(ConfigError, match="--row-buckets must be >= 1"):
        replace(PLAIN, row_buckets=0)


def test_adapters_of_another_shape_cannot_be_resumed() -> None:
    with pytest.raises(ConfigError, match="it began with lora"):
        replace(PLAIN, lora=LoraConfig(rank=4)).check_resumes(LORA)
    LORA.check_resumes(LORA)
