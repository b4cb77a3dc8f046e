"""Adapters: what they compute, that they alone are trained, and that merging changes nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.errors import ConfigError
from agentrl_jax.learner import LoraConfig
from agentrl_jax.learner.lora import adapter_specs, attach, init_adapters, merge
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.decoder import hidden_states
from agentrl_jax.models.params import init_params, leaf_at
from tests.learner.small import (
    MODEL,
    PARAMS,
    distance_to_reference,
    flat,
    make_batch,
    make_learner,
    on_host,
    same_bits,
)

LORA = LoraConfig(rank=3, alpha=6.0)
FUSED = ModelConfig(
    vocab_size=32, width=16, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=4, mlp_width=32, family="glm4"
)


def random_adapters(model: ModelConfig, lora: LoraConfig) -> dict[str, object]:
    """As if after some training: B is not 0."""
    rng = np.random.default_rng(5)
    return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape, scale=0.2), init_adapters(model, lora))


def test_merging_by_hand() -> None:
    first, second = np.array([[[1.0], [2.0]]]), np.array([[[3.0, 5.0]]])
    base = {"layers": {"mlp": {"up": {"kernel": np.ones((1, 2, 2))}, "down": {"kernel": np.ones((1, 2, 2))}}}}
    merged = merge(base, {"layers": {"mlp": {"up": {"lora_a": first, "lora_b": second}}}}, scale=0.5)
    np.testing.assert_array_equal(merged["layers"]["mlp"]["up"]["kernel"], [[[2.5, 3.5], [4.0, 6.0]]])
    np.testing.assert_array_equal(merged["layers"]["mlp"]["down"]["kernel"], np.ones((1, 2, 2)))


@pytest.mark.parametrize("model", [MODEL, FUSED], ids=["qwen2", "glm4"])
def test_adapters_and_merged_weights_compute_the_same(model: ModelConfig) -> None:
    params, adapters = init_params(model, 0), random_adapters(model, LORA)
    batch = make_batch().micro_batches[0]
    where = (batch.ids, batch.positions, batch.segment_ids)
    forward = jax.jit(hidden_states, static_argnums=0)
    beside = forward(model, attach(params, adapters, LORA.scale), *where)
    merged = forward(model, merge(params, adapters, LORA.scale), *where)
    np.testing.assert_allclose(beside, merged, atol=1e-5)
    assert np.abs(np.asarray(merged) - np.asarray(forward(model, params, *where))).max() > 0.1


def test_every_kernel_of_a_layer_gets_two_leaves_of_the_rank() -> None:
    specs = {spec.path: spec.shape for spec in adapter_specs(MODEL, LORA)}
    assert specs["layers", "attention", "q", "lora_a"] == (2, 16, 3)
    assert specs["layers", "attention", "q", "lora_b"] == (2, 3, 4, 4)
    assert specs["layers", "attention", "o", "lora_a"] == (2, 4, 4, 3)
    assert specs["layers", "attention", "o", "lora_b"] == (2, 3, 16)
    assert {path[-2] for path in specs} == {"q", "k", "v", "o", "gate", "up", "down"}
    assert {spec.path[-2] for spec in adapter_specs(MODEL, LoraConfig(rank=1, targets=("q", "v")))} == {"q", "v"}
    assert "gate_up" in {spec.path[-2] for spec in adapter_specs(FUSED, LORA)}


def test_fresh_adapters_leave_the_policy_as_it_is() -> None:
    learner = make_learner(lora=LORA)
    assert same_bits(learner.params, PARAMS)
    batch = make_batch().micro_batches[0]
    np.testing.assert_array_equal(learner.logprobs(batch), make_learner().logprobs(batch))


def test_a_step_is_that_of_the_chain_rule() -> None:
    """dL/dB = scale · Aᵀ·dL/dW and dL/dA = 0 while B is 0, from the gradient of the whole kernel."""
    whole, learner = make_learner(), make_learner(lora=LORA)
    packed = make_batch()
    adapters = on_host(learner.state.params)
    assert learner.step(packed).loss == whole.step(packed).loss
    for name in ("q", "o"):
        path = ("layers", "attention", name)
        before, after = leaf_at(PARAMS, (*path, "kernel")), np.asarray(leaf_at(whole.params, (*path, "kernel")))
        moved = (np.asarray(before, np.float64) - after) / 0.1
        grad = moved / (1 - np.abs(moved))  # Adam's first step with eps = 1: g / (|g| + 1)
        first = np.asarray(leaf_at(adapters, (*path, "lora_a")), np.float64).reshape(2, 16, 3)
        expected = LORA.scale * np.einsum("lir,lio->lro", first, grad.reshape(2, 16, -1))
        second = np.asarray(leaf_at(learner.state.params, (*path, "lora_b")), np.float64).reshape(2, 3, -1)
        np.testing.assert_allclose(second, -0.1 * expected / (np.abs(expected) + 1), atol=2e-6)
        np.testing.assert_array_equal(
            leaf_at(learner.state.params, (*path, "lora_a")), leaf_at(adapters, (*path, "lora_a"))
        )


def test_adapters_alone_are_trained_and_kept_in_the_state() -> None:
    learner = make_learner(lora=LORA)
    losses = [learner.step(make_batch()).loss for _ in range(20)]
    assert losses[-1] < 0.8 * losses[0]
    sizes = {leaf.size for leaf in jax.tree.leaves(learner.state)}
    assert max(sizes) < min(leaf.size for leaf in jax.tree.leaves(PARAMS["layers"]["mlp"]))
    params = learner.host_params()
    assert same_bits(params["embed"], PARAMS["embed"])
    assert same_bits(params["final_norm"], PARAMS["final_norm"])
    assert not same_bits(params["layers"]["mlp"], PARAMS["layers"]["mlp"])
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype, leaf.sharding), learner.params) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype, leaf.sharding), learner.abstract_params()
    )


def test_merged_params_are_those_that_the_learner_computes_with() -> None:
    learner = make_learner(lora=LORA)
    for _ in range(3):
        learner.step(make_batch())
        stale = learner.params
    learner.step(make_batch())
    assert not same_bits(stale, learner.params)
    merged = make_learner(params=learner.host_params())
    batch = make_batch(1).micro_batches[0]
    np.testing.assert_allclose(learner.logprobs(batch), merged.logprobs(batch), atol=1e-5)


@pytest.mark.slow
def test_a_frozen_base_keeps_its_dtype_and_its_values() -> None:
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), PARAMS)
    learner = make_learner(lora=LORA, params=half)
    assert learner.step(make_batch()).is_applied
    params = learner.host_params()
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype(np.float32)}
    np.testing.assert_array_equal(params["embed"]["embedding"], half["embed"]["embedding"].astype(np.float32))
    assert {leaf.dtype for leaf in jax.tree.leaves(learner.state.params)} == {np.dtype(np.float32)}


@pytest.mark.slow
def test_the_mesh_changes_nothing() -> None:
    one, many = make_learner(lora=LORA), make_learner("data=2,fsdp=2,tensor=2", lora=LORA)
    for _ in range(2):
        first, second = one.step(make_batch()), many.step(make_batch())
    assert second.loss == pytest.approx(first.loss, abs=1e-5)
    np.testing.assert_allclose(flat(many.host_params()), flat(one.host_params()), atol=5e-6)
    kernel = many.state.params["layers"]["mlp"]["up"]["lora_b"]
    assert not kernel.sharding.is_fully_replicated


def test_the_base_itself_is_the_reference_without_a_second_copy() -> None:
    learner = make_learner(lora=LORA, reference=PARAMS, loss=distance_to_reference)
    assert learner._reference is learner._frozen
    assert learner.step(make_batch()).loss < 1e-12
    assert learner.step(make_batch()).metrics["reference"] == learner.step(make_batch()).metrics["reference"]


def test_state_can_be_restored_onto_the_same_base() -> None:
    first, second = make_learner(lora=LORA), make_learner(lora=LoraConfig(rank=3, alpha=6.0, seed=9))
    first.step(make_batch())
    assert not same_bits(first.state.params, second.state.params)
    second.restore(on_host(first.state))
    assert same_bits(first.params, second.params)
    assert first.step(make_batch(2)) == second.step(make_batch(2))
    assert same_bits(first.state, second.state)


def test_rank_zero_trains_everything() -> None:
    learner = make_learner(lora=LoraConfig())
    assert same_bits(learner.state.params, PARAMS)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rank": -1}, "rank must be >= 0"),
        ({"rank": 2, "alpha": 0.0}, "alpha must be finite and > 0"),
        ({"rank": 2, "targets": ("q", "q")}, "names a kernel twice"),
        ({"rank": 2, "seed": -1}, "seed must be >= 0"),
        ({"alpha": 8.0, "targets": ("q",)}, "lora alpha, targets has no effect without a rank"),
    ],
)
def test_settings_that_make_no_sense_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LoraConfig(**values)  # type: ignore[arg-type]


def test_a_target_that_the_model_does_not_have_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="no kernel qq in this model; it has q, k, v, o, gate, up, down"):
        make_learner(lora=LoraConfig(rank=2, targets=("qq",)))
