"""The surrogate by hand, against a scalar reference, its gradient, and what must not change it."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads

from agentrl_jax.algo.aggregate import masked_sum
from agentrl_jax.algo.kl import k3
from agentrl_jax.algo.losses import LossConfig, make_loss
from agentrl_jax.algo.metrics import means
from agentrl_jax.algo.surrogates import clipped_surrogate, negative_log_likelihood
from agentrl_jax.batch import TokenBatch, Totals
from agentrl_jax.errors import ConfigError


def make_tokens(
    behavior: list[float],
    advantages: list[float],
    *,
    loss_mask: list[bool] | None = None,
    has_signal: list[bool] | None = None,
    version_lag: list[int] | None = None,
) -> TokenBatch:
    """One row of tokens."""
    num = len(behavior)
    mask = loss_mask or [True] * num
    return TokenBatch(
        ids=np.ones((1, num), np.int32),
        positions=np.arange(num, dtype=np.int32)[None],
        segment_ids=np.ones((1, num), np.int32),
        loss_mask=np.array([mask]),
        has_signal=np.array([has_signal or mask]),
        behavior_logprobs=np.array([behavior], np.float32),
        advantages=np.array([advantages], np.float32),
        version_lag=np.array([version_lag or [0] * num], np.int32),
        task_ids=np.zeros((1, num), np.int32),
        sequence_tokens=np.where([mask], np.sum(mask), 0),
        totals=Totals(np.sum(mask), np.sum(has_signal or mask), 1, int(np.any(has_signal or mask))),
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.5, 2.0, -2.4, 0.0),  # clip_high: no more reward for going further
        (0.5, 2.0, -1.0, -1.0),
        (1.0, -2.0, 2.0, 2.0),
        (0.5, -2.0, 1.6, 0.0),  # clip_low
        (2.0, -2.0, 4.0, 4.0),
        (5.0, -2.0, 6.0, 0.0),  # dual clip: 3 · |A|
        (5.0, 0.0, 0.0, 0.0),
    ],
)
def test_surrogate_and_slope_by_hand(ratio: float, advantage: float, loss: float, slope: float) -> None:
    def at(logprob: jax.Array) -> jax.Array:
        return clipped_surrogate(logprob, jnp.array(-1.0), jnp.array(advantage))

    value, gradient = jax.value_and_grad(at)(jnp.array(math.log(ratio) - 1.0))
    np.testing.assert_allclose(value, loss, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, slope, rtol=1e-5, atol=1e-6)


def test_without_dual_clip_the_loss_of_a_bad_token_is_unbounded() -> None:
    loss = clipped_surrogate(jnp.log(jnp.array(5.0)), jnp.array(0.0), jnp.array(-2.0), dual_clip=None)
    np.testing.assert_allclose(loss, 10.0, rtol=1e-6)


@given(st.floats(-8, 8), st.floats(-3, 3), st.sampled_from([None, 1.5, 3.0]))
@settings(max_examples=80, deadline=None)
def test_surrogate_equals_the_scalar_reference(log_ratio: float, advantage: float, dual_clip: float | None) -> None:
    ratio = math.exp(log_ratio)
    expected = max(-advantage * ratio, -advantage * min(max(ratio, 0.9), 1.3))
    if advantage < 0 and dual_clip is not None:
        expected = min(expected, -dual_clip * advantage)
    with jax.enable_x64(True):
        arrays = (np.float64(log_ratio - 2.0), np.float64(-2.0), np.float64(advantage))
        loss = clipped_surrogate(*map(jnp.asarray, arrays), clip_low=0.1, clip_high=0.3, dual_clip=dual_clip)
    np.testing.assert_allclose(loss, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("advantage", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("logprob", [-500.0, 0.0])
@pytest.mark.parametrize("dual_clip", [None, 3.0])
def test_extreme_ratios_stay_finite(advantage: float, logprob: float, dual_clip: float | None) -> None:
    def at(value: jax.Array) -> jax.Array:
        return clipped_surrogate(value, jnp.array(-250.0), jnp.array(advantage), dual_clip=dual_clip)

    loss, gradient = jax.value_and_grad(at)(jnp.array(logprob))
    assert np.isfinite(loss)
    assert np.isfinite(gradient)


def test_gradients_agree_with_finite_differences() -> None:
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        behavior = jnp.asarray(-rng.uniform(0.1, 3.0, 24))
        logprobs = behavior + rng.normal(0.0, 1.0, 24)  # no ratio within 1e-3 of a kink with this seed
        advantages = jnp.asarray(rng.normal(0.0, 1.0, 24))
        ratio = np.exp(logprobs - behavior)
        assert np.abs(ratio[:, None] - np.array([0.8, 1.2, 3.0])).min() > 1e-3
        check_grads(lambda x: clipped_surrogate(x, behavior, advantages), (logprobs,), order=1, modes=["rev"])
        check_grads(lambda x: k3(behavior, x), (logprobs,), order=1, modes=["rev"])


def test_behaviour_and_advantages_are_constants() -> None:
    arrays = jnp.array([-1.0]), jnp.array([-1.1]), jnp.array([0.7])
    gradients = jax.grad(lambda *a: clipped_surrogate(*a).sum(), argnums=(1, 2))(*arrays)
    assert [g.tolist() for g in gradients] == [[0.0], [0.0]]


def test_on_policy_gradient_is_minus_the_advantage() -> None:
    logprobs, advantages = jnp.array([-1.0, -2.0]), jnp.array([0.7, -0.3])
    gradient = jax.grad(lambda x: clipped_surrogate(x, logprobs, advantages).sum())(logprobs)
    np.testing.assert_allclose(gradient, -advantages, rtol=1e-6)


def test_k3_is_an_unbiased_and_never_negative_estimate() -> None:
    p, q = np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.3, 0.5])
    estimates = np.asarray(k3(jnp.log(jnp.asarray(p)), jnp.log(jnp.asarray(q))))
    assert (estimates >= 0).all()
    np.testing.assert_allclose((p * estimates).sum(), (p * np.log(p / q)).sum(), rtol=1e-5)
    assert np.isfinite(k3(jnp.array(-500.0), jnp.array(0.0)))


def test_likelihood_loss_by_hand() -> None:
    tokens = make_tokens([0.0] * 3, [1.0] * 3, loss_mask=[False, True, True])
    loss, metrics, *_ = make_loss(LossConfig(name="sft"))(jnp.array([[-9.0, -1.0, -2.0]]), tokens)
    assert (float(loss.total), float(loss.weight), metrics) == (3.0, 2.0, {})
    assert negative_log_likelihood(jnp.array(-1.5)).tolist() == 1.5


@pytest.mark.parametrize(("log_ratio", "gradient"), [(19.5, math.exp(19.5)), (20.5, 0.0), (-20.5, 0.0)])
def test_the_gradient_stops_where_the_ratio_would_overflow(log_ratio: float, gradient: float) -> None:
    def loss(logprobs: jax.Array) -> jax.Array:
        return clipped_surrogate(logprobs, jnp.zeros(()), -jnp.ones(()), dual_clip=None, clip_low=0.99)

    value, slope = jax.value_and_grad(loss)(jnp.array(log_ratio))
    assert float(value) == pytest.approx(math.exp(min(log_ratio, 20.0)) if log_ratio > 0 else 0.01, rel=1e-4)
    assert float(slope) == pytest.approx(gradient, rel=1e-4)


def test_metrics_by_hand() -> None:
    ratios = [1.0, 1.5, 2.0, 0.5, 5.0, 3.0]
    tokens = make_tokens(
        [-2.0] * 6,
        [1.0, 1.0, -1.0, -1.0, -1.0, 0.0],
        has_signal=[True, True, True, True, True, False],
        version_lag=[0, 1, 2, 3, 4, 8],
    )
    loss, metrics, *_ = make_loss(LossConfig())(jnp.log(jnp.array([ratios])) - 2.0, tokens)
    np.testing.assert_allclose(loss.total, -1.0 - 1.2 + 2.0 + 0.8 + 3.0, rtol=1e-5)
    assert float(loss.weight) == 5.0
    expected = {
        "clip_low_frac": 1 / 5,
        "clip_high_frac": 1 / 5,
        "dual_clip_frac": 1 / 5,
        "ratio_mean": 13.0 / 6,
        "behavior_kl": sum(r - 1 - math.log(r) for r in ratios) / 6,
        "logprob_abs_diff": sum(abs(math.log(r)) for r in ratios) / 6,
        "token_staleness": 3.0,
    }
    assert means(metrics) == pytest.approx(expected, rel=1e-5)
    assert "dual_clip_frac" not in make_loss(LossConfig(dual_clip=None))(jnp.zeros((1, 6)), tokens).metrics


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["grpo", "sft"])
def test_what_stands_off_the_mask_changes_neither_loss_nor_gradient(name: str, poison: float) -> None:
    loss_fn = make_loss(LossConfig(name=name))
    mask = [True, False, True, False]
    clean = make_tokens([-1.0, 0.0, -2.0, 0.0], [0.5, 0.0, -0.5, 0.0], loss_mask=mask)
    dirty = make_tokens([-1.0, poison, -2.0, poison], [0.5, poison, -0.5, poison], loss_mask=mask)

    def run(values: list[float], tokens: TokenBatch) -> tuple[float, np.ndarray, dict[str, float]]:
        def objective(logprobs: jax.Array) -> tuple[jax.Array, object]:
            output = loss_fn(logprobs, tokens)
            return output.loss.total, output.metrics

        (total, metrics), gradient = jax.value_and_grad(objective, has_aux=True)(jnp.array([values]))
        return float(total), np.asarray(gradient), means(metrics)

    expected = run([-1.1, -5.0, -1.9, -5.0], clean)
    got = run([-1.1, poison, -1.9, poison], dirty)
    assert got[0] == expected[0]
    assert got[1].tolist() == expected[1].tolist()
    assert got[1][0, 1] == got[1][0, 3] == 0.0
    assert got[2] == expected[2]


@pytest.mark.parametrize("name", ["grpo", "sft"])
def test_an_all_masked_batch_costs_exactly_nothing(name: str) -> None:
    tokens = make_tokens([np.nan] * 3, [np.nan] * 3, loss_mask=[False] * 3)
    loss_fn = make_loss(LossConfig(name=name))
    total, gradient = jax.value_and_grad(lambda x: loss_fn(x, tokens).loss.total)(jnp.full((1, 3), jnp.nan))
    output = loss_fn(jnp.full((1, 3), jnp.nan), tokens)
    assert (float(total), float(output.loss.weight)) == (0.0, 0.0)
    assert gradient.tolist() == [[0.0] * 3]
    assert all(float(value.total) == 0.0 == float(value.weight) for value in output.metrics.values())
    assert all(math.isnan(value) for value in means(output.metrics).values())


def test_metrics_carry_no_gradient() -> None:
    tokens = make_tokens([-1.0, -2.0], [1.0, -1.0])
    loss_fn = make_loss(LossConfig())
    for name in loss_fn(jnp.zeros((1, 2)), tokens).metrics:
        gradient = jax.grad(lambda x, name=name: loss_fn(x, tokens).metrics[name].total)(jnp.array([[-1.5, -1.0]]))
        assert gradient.tolist() == [[0.0, 0.0]], name


@pytest.mark.parametrize(
    ("option", "value"), [("clip_low", 0.4), ("clip_high", 0.6), ("dual_clip", 4.0), ("dual_clip", None)]
)
def test_every_option_reaches_the_loss(option: str, value: float | None) -> None:
    tokens = make_tokens([-3.0] * 3, [1.0, -1.0, -1.0])
    logprobs = jnp.log(jnp.array([[1.9, 0.3, 9.0]])) - 3.0
    default = make_loss(LossConfig())(logprobs, tokens).loss.total
    assert float(make_loss(LossConfig(**{option: value}))(logprobs, tokens).loss.total) != float(default)


@pytest.mark.parametrize(
    "options",
    [
        {"name": "ppo"},
        {"clip_low": 1.0},
        {"clip_high": 0.0},
        {"dual_clip": 1.0},
        {"name": "sft", "clip_low": 0.1},
        {"name": "sft", "dual_clip": None},
    ],
)
def test_wrong_or_ineffective_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        LossConfig(**options)


def test_masked_sum_counts_what_it_adds() -> None:
    total, weight = masked_sum(jnp.array([1.0, jnp.inf, 3.0]), jnp.array([True, False, True]))
    assert (float(total), float(weight)) == (4.0, 2.0)


def test_masked_sum_counts_past_256_in_bfloat16() -> None:
    total, weight = masked_sum(jnp.ones(1001, jnp.bfloat16), jnp.ones(1001, jnp.bool_))
    assert (float(total), float(weight)) == (1001.0, 1001.0)
