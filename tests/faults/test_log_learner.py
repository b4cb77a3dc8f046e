"""LOG rows on the learner's side: temperature, precision of params and of rotary tables."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.algo.losses import LossConfig, make_loss
from agentrl_jax.config import TrainConfig
from agentrl_jax.errors import ConfigError
from agentrl_jax.learner import Learner, LearnerConfig
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.decoder import head_matrix, hidden_states
from agentrl_jax.models.layers import rope_tables
from agentrl_jax.models.params import init_params
from agentrl_jax.packing import PackingConfig, pack_demonstrations
from agentrl_jax.sharding import MeshShape, make_mesh
from launch.config import parse_training

MODEL = ModelConfig(vocab_size=32, width=16, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=4, mlp_width=32)
PARAMS = init_params(MODEL, 0)
IDS = np.random.default_rng(0).integers(0, 32, 16).astype(np.int32)
PACKED = pack_demonstrations([(IDS, np.arange(16) > 0)], PackingConfig(row_tokens=(16,), rows_per_micro_batch=8))


def make_learner(config, **extras):
    return Learner(MODEL, config, make_loss(LossConfig(name="sft")), make_mesh(MeshShape()), PARAMS, **extras)


def sampled(params, temperature):
    """What an engine at this temperature says of IDS[1:], in float64."""
    ones = np.ones((1, 16), np.int32)
    hidden = jax.jit(hidden_states, static_argnums=0)(MODEL, params, IDS[None], np.arange(16)[None], ones)
    scaled = np.asarray(hidden @ head_matrix(params), np.float64)[0] / temperature
    return (scaled - np.log(np.exp(scaled).sum(-1, keepdims=True)))[np.arange(15), IDS[1:]]


def test_log_01_the_sampling_temperature_divides_the_logits():
    learner = make_learner(LearnerConfig(temperature=0.8, logprob_chunk=6))
    ours = learner.logprobs(PACKED.micro_batches[0])[0, 1:]
    np.testing.assert_allclose(ours, sampled(PARAMS, 0.8), atol=1e-5)
    assert np.abs(ours - sampled(PARAMS, 1.0)).max() > 1e-2
    # The loss sees the same log-probabilities.
    assert learner.step(PACKED).loss == pytest.approx(-sampled(PARAMS, 0.8).mean(), abs=1e-5)


def test_log_01_the_reference_is_scored_at_the_same_temperature():
    reference = init_params(MODEL, 1)
    learner = make_learner(LearnerConfig(temperature=0.8, logprob_chunk=6), reference=reference)
    learner.step(PACKED)
    (scores,) = learner.scores
    np.testing.assert_allclose(scores.reference_logprobs[0, 1:], sampled(reference, 0.8), atol=1e-5)
    np.testing.assert_allclose(scores.logprobs[0, 1:], sampled(PARAMS, 0.8), atol=1e-5)


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf")])
def test_log_04_a_temperature_of_zero_is_refused_before_the_start(temperature, capsys):
    with pytest.raises(ConfigError, match="temperature must be finite and > 0"):
        LearnerConfig(temperature=temperature)
    with pytest.raises(ConfigError, match="--temperature must be > 0 and finite"):
        TrainConfig(temperature=temperature)
    with pytest.raises(SystemExit) as caught:
        parse_training([f"--temperature={temperature}"], program="launch.train")
    assert caught.value.code == 2
    assert "--temperature must be > 0" in capsys.readouterr().err


def test_log_08_updates_of_a_millionth_are_not_lost():
    learner = make_learner(LearnerConfig(learning_rate=1e-6, compute_dtype="bfloat16"))
    for _ in range(100):
        learner.step(PACKED)
    before, after = PARAMS["layers"]["mlp"]["up"]["kernel"], learner.host_params()["layers"]["mlp"]["up"]["kernel"]
    assert after.dtype == np.float32
    moved = np.abs(after - before)
    assert 3e-5 < np.median(moved) < 1.1e-4
    # In bfloat16 each of these updates would have been rounded away.
    tiny = jnp.asarray(before, jnp.bfloat16) + jnp.asarray(1e-6, jnp.bfloat16)
    assert np.mean(np.asarray(tiny != jnp.asarray(before, jnp.bfloat16))) < 0.01


@pytest.mark.parametrize("theta", [10_000.0, 1_000_000.0])
def test_log_09_rotary_tables_are_exact_at_the_far_end(theta):
    positions = np.array([0, 1, 4_097, 32_767, 32_768])
    angles = positions[:, None] * theta ** (-np.arange(0, 64, 2) / 64)
    cos, sin = rope_tables(positions, 64, theta)
    assert cos.dtype == sin.dtype == jnp.float32
    np.testing.assert_allclose(cos, np.cos(angles), atol=1e-4)
    np.testing.assert_allclose(sin, np.sin(angles), atol=1e-4)
