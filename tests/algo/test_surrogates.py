"""What a token costs: by hand, against scalar references, and its gradient."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads

from agentrl_jax.algo.surrogates import cispo, clipped_surrogate, gspo, negative_log_likelihood, policy_gradient


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


def test_behaviour_and_advantages_are_constants() -> None:
    arrays = jnp.array([-1.0]), jnp.array([-1.1]), jnp.array([0.7])
    gradients = jax.grad(lambda *a: clipped_surrogate(*a).sum(), argnums=(1, 2))(*arrays)
    assert [g.tolist() for g in gradients] == [[0.0], [0.0]]


def test_on_policy_gradient_is_minus_the_advantage() -> None:
    logprobs, advantages = jnp.array([-1.0, -2.0]), jnp.array([0.7, -0.3])
    gradient = jax.grad(lambda x: clipped_surrogate(x, logprobs, advantages).sum())(logprobs)
    np.testing.assert_allclose(gradient, -advantages, rtol=1e-6)


@pytest.mark.parametrize(("log_ratio", "gradient"), [(19.5, math.exp(19.5)), (20.5, 0.0), (-20.5, 0.0)])
def test_the_gradient_stops_where_the_ratio_would_overflow(log_ratio: float, gradient: float) -> None:
    def loss(logprobs: jax.Array) -> jax.Array:
        return clipped_surrogate(logprobs, jnp.zeros(()), -jnp.ones(()), dual_clip=None, clip_low=0.99)

    value, slope = jax.value_and_grad(loss)(jnp.array(log_ratio))
    assert float(value) == pytest.approx(math.exp(min(log_ratio, 20.0)) if log_ratio > 0 else 0.01, rel=1e-4)
    assert float(slope) == pytest.approx(gradient, rel=1e-4)


def gspo_ratios(ratios: list[float], segment_ids: list[int], advantages: list[float], **options: float | None):
    """(costs, slopes in log π) of one row whose behaviour probabilities are all e⁻³."""
    ids = jnp.array([segment_ids])

    @jax.jit
    def objective(logprobs: jax.Array) -> tuple[jax.Array, jax.Array]:
        costs = gspo(logprobs, jnp.full_like(logprobs, -3.0), jnp.array([advantages]), ids, ids > 0, **options)
        return costs.sum(), costs

    (_, costs), slopes = jax.value_and_grad(objective, has_aux=True)(jnp.log(jnp.array([ratios])) - 3.0)
    return costs[0], slopes[0]


def test_gspo_gives_all_tokens_of_a_segment_its_geometric_mean_ratio() -> None:
    costs, slopes = gspo_ratios([2.0, 8.0, 0.5, 9.0], [1, 1, 2, 0], [1.0, -1.0, 1.0, 0.0], clip_low=0.9, clip_high=9.0)
    np.testing.assert_allclose(costs, [-4.0, 4.0, -0.5, 0.0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(slopes, [-4.0, 4.0, -0.5, 0.0], rtol=1e-5, atol=1e-6)


def test_gspo_clips_whole_segments() -> None:
    costs, slopes = gspo_ratios([1.0, 1.21, 1.0], [1, 1, 2], [1.0, 1.0, 1.0], clip_high=0.05, clip_low=0.05)
    np.testing.assert_allclose(costs, [-1.05, -1.05, -1.0], rtol=1e-5)
    np.testing.assert_allclose(slopes, [0.0, 0.0, -1.0], atol=1e-6)
    costs, slopes = gspo_ratios([8.0, 2.0], [1, 1], [-1.0, -1.0], dual_clip=3.0)
    np.testing.assert_allclose(costs, [3.0, 3.0], rtol=1e-5)
    assert slopes.tolist() == [0.0, 0.0]


def test_gspo_has_the_gradient_of_the_sequence_objective() -> None:
    """With one advantage a segment, the mean over its tokens has the gradient of −A·s, s the sequence's ratio."""
    with jax.enable_x64(True):
        logprobs = jnp.array([[-1.0, -2.0, -0.5]])
        behavior = logprobs + jnp.array([[0.01, -0.02, 0.015]])
        ones = jnp.ones((1, 3), int)

        def ours(values: jax.Array) -> jax.Array:
            return gspo(values, behavior, 0.7 * ones, ones, ones > 0, clip_low=0.5, clip_high=0.5).mean()

        def sequence_objective(values: jax.Array) -> jax.Array:
            return -0.7 * jnp.exp((values - behavior).mean())

        check_grads(sequence_objective, (logprobs,), order=1, modes=["rev"])
        np.testing.assert_allclose(jax.grad(ours)(logprobs), jax.grad(sequence_objective)(logprobs), rtol=1e-12)


@pytest.mark.parametrize(
    ("ratio", "advantage", "weight"), [(1.0, 2.0, 1.0), (9.0, 2.0, 5.0), (9.0, -2.0, 5.0), (0.01, -2.0, 0.01)]
)
def test_cispo_bounds_the_weight_and_keeps_the_gradient(ratio: float, advantage: float, weight: float) -> None:
    def at(logprob: jax.Array) -> jax.Array:
        return cispo(logprob, logprob_behavior, jnp.array(advantage))

    logprob = jnp.array(-1.5)
    logprob_behavior = logprob - math.log(ratio)
    value, slope = jax.value_and_grad(at)(logprob)
    np.testing.assert_allclose(value, weight * advantage * 1.5, rtol=1e-5)
    np.testing.assert_allclose(slope, -weight * advantage, rtol=1e-5)


def test_cispo_has_a_lower_bound_if_asked_for_one() -> None:
    cost = cispo(jnp.array(-1.0), jnp.array(1.0), jnp.array(1.0), clip_low=0.4)
    np.testing.assert_allclose(cost, 0.6, rtol=1e-6)


def test_policy_gradient_and_likelihood_agree_with_finite_differences() -> None:
    with jax.enable_x64(True):
        logprobs, advantages = jnp.array([-0.3, -2.0]), jnp.array([0.7, -1.2])
        check_grads(lambda x: policy_gradient(x, advantages), (logprobs,), order=1, modes=["rev"])
        check_grads(negative_log_likelihood, (logprobs,), order=1, modes=["rev"])
        np.testing.assert_allclose(policy_gradient(logprobs, advantages), [0.21, -2.4], rtol=1e-12)
    constant = jax.grad(lambda a: policy_gradient(jnp.array([-1.0]), a).sum())(jnp.array([2.0]))
    assert constant.tolist() == [0.0]


def test_nothing_but_the_policy_has_a_gradient() -> None:
    ones = jnp.ones((1, 2), int)
    arrays = jnp.array([[-1.0, -2.0]]), jnp.array([[-1.1, -1.9]]), jnp.array([[0.7, -0.4]])
    for function in (lambda *a: gspo(*a, ones, ones > 0, clip_low=0.5, clip_high=0.5), cispo):
        gradients = jax.grad(lambda *a, function=function: function(*a).sum(), argnums=(1, 2))(*arrays)
        assert [g.tolist() for g in gradients] == [[[0.0, 0.0]], [[0.0, 0.0]]]
