"""Every loss × correction × aggregation equals its token-by-token reference however the tokens are laid out."""

from functools import partial

import chex
import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from agentrl_jax.algo.loss_config import LossConfig
from agentrl_jax.algo.losses import make_loss
from agentrl_jax.batch import TokenBatch, map_tokens
from tests.algo.loss_layouts import QUICK, evaluate, lay_out, one_micro_batch
from tests.algo.loss_reference import random_segments, reference_loss

CHOICES = [
    *[("grpo", name) for name in ("behavior_clip", "tis", "icepop", "decoupled", "sequence_mask", "none")],
    *[("gspo", name) for name in ("behavior_clip", "sequence_mask")],
    *[("cispo", name) for name in ("behavior_clip", "sequence_mask")],
    *[("policy_gradient", name) for name in ("tis", "icepop", "decoupled", "none")],
]
AGGREGATIONS = ("token_mean", "sequence_mean_token_sum", "sequence_mean_token_mean", "constant_length")


def config_of(name: str, correction: str, aggregation: str, *, number: int = 0) -> LossConfig:
    """Every other config has a KL to the reference."""
    kl = {"kl_coefficient": 0.3, "kl_estimator": ("k2", "k3")[number // 2 % 2]} if number % 2 else {}
    length = {"constant_length": 6} if aggregation == "constant_length" else {}
    return LossConfig(name=name, correction=correction, aggregation=aggregation, **kl, **length)


def cases() -> list:
    """The whole product; outside of the slow tests each choice with one aggregation, all of them in turn."""
    found = []
    for i, choice in enumerate(CHOICES):
        for j, aggregation in enumerate(AGGREGATIONS):
            marks = () if i % 4 == j else pytest.mark.slow
            config = config_of(*choice, aggregation, number=i + j)
            found.append(pytest.param(config, id="-".join((*choice, aggregation)), marks=marks))
    return found


@pytest.mark.parametrize("config", cases())
@given(seed=st.integers(0, 10**6), data=st.data())
def test_loss_and_gradient_equal_the_reference_in_any_layout(
    config: LossConfig, seed: int, data: st.DataObject
) -> None:
    segments = random_segments(seed)
    layout = {
        "order": data.draw(st.permutations(range(len(segments)))),
        "row_tokens": data.draw(st.sampled_from([8, 11, 16])),
        "rows": data.draw(st.sampled_from([1, 2])),
        "garbage": data.draw(st.sampled_from([0.0, np.nan, np.inf, -np.inf, 1e9])),
    }
    expected, slopes = reference_loss(segments, config)
    loss = make_loss(config)
    with jax.enable_x64(True):
        output, gradients = evaluate(loss, *lay_out(segments, **layout))
        plain, _ = evaluate(loss, *lay_out(segments, order=range(len(segments))))
    weight = output.loss.weight
    np.testing.assert_allclose(output.loss.total / weight, expected, rtol=1e-9, atol=1e-12)
    for gradient, slope in zip(gradients, slopes, strict=True):
        np.testing.assert_allclose(gradient / weight, slope, rtol=1e-9, atol=1e-12)
    chex.assert_trees_all_close(output, plain, rtol=1e-9)


@pytest.mark.parametrize("choice", [("grpo", "sequence_mask"), ("gspo", "behavior_clip")])
def test_float32_is_as_close_as_float32_can_be(choice: tuple[str, str]) -> None:
    config = config_of(*choice, "sequence_mean_token_mean", number=1)
    for seed in range(20):
        segments = random_segments(seed)
        expected, slopes = reference_loss(segments, config)
        output, gradients = evaluate(
            make_loss(config), *lay_out(segments, order=range(len(segments)), dtype=np.float32)
        )
        weight = output.loss.weight
        scale = max(abs(expected), 0.1)  # costs of both signs nearly cancel in some
        assert abs(output.loss.total / weight - expected) <= 2e-5 * scale
        difference = np.concatenate(gradients) / weight - np.concatenate(slopes)
        assert np.linalg.norm(difference) <= 1e-4 * np.linalg.norm(np.concatenate(slopes))


SHARDED = config_of("gspo", "sequence_mask", "sequence_mean_token_mean", number=1)
"""Sums over segments, over the rows of a device and over devices, with and without a signal."""


def test_sharding_over_devices_changes_nothing() -> None:
    logprobs, batch = one_micro_batch(random_segments(7, num_sequences=8), row_tokens=8)

    @partial(jax.jit, compiler_options=QUICK)
    def everything(logprobs: jax.Array, batch: TokenBatch) -> tuple:
        def objective(values: jax.Array) -> tuple:
            output = make_loss(SHARDED)(values, batch)
            return output.loss.total, output

        return jax.value_and_grad(objective, has_aux=True)(logprobs)

    expected = jax.device_get(everything(logprobs, batch))
    for num_devices in (2, 8):
        rows = NamedSharding(Mesh(np.array(jax.devices()[:num_devices]), ("data",)), P("data"))
        everywhere = NamedSharding(rows.mesh, P())
        placed = map_tokens(partial(jax.device_put, device=rows), batch)
        placed = placed._replace(totals=jax.device_put(batch.totals, everywhere))
        result = everything(jax.device_put(logprobs, rows), placed)
        assert len(result[1].sharding.device_set) == num_devices
        chex.assert_trees_all_close(jax.device_get(result), expected, rtol=2e-5, atol=1e-7)
