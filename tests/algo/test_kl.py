"""Estimators of the divergence: by hand, unbiased, and with the gradients that their docstrings promise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from agentrl_jax.algo.kl import LIMIT, k1, k2, k3, kl_to_reference

P, Q = np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.3, 0.5])


@pytest.mark.parametrize(("estimator", "expected"), [(k1, 2.0), (k2, 2.0), (k3, np.exp(-2.0) + 1.0)])
def test_estimates_by_hand(estimator, expected: float) -> None:
    np.testing.assert_allclose(estimator(jnp.array(-1.0), jnp.array(-3.0)), expected, rtol=1e-6)


@pytest.mark.parametrize("estimator", [k1, k3])
def test_k1_and_k3_are_unbiased(estimator) -> None:
    estimates = np.asarray(estimator(jnp.log(jnp.asarray(P)), jnp.log(jnp.asarray(Q))))
    np.testing.assert_allclose((P * estimates).sum(), (P * np.log(P / Q)).sum(), rtol=1e-5)


@pytest.mark.parametrize("estimator", [k2, k3])
def test_k2_and_k3_are_never_negative(estimator) -> None:
    assert (np.asarray(estimator(jnp.linspace(-5.0, 0.0, 101), jnp.array(-2.0))) >= 0).all()


@pytest.mark.parametrize("estimator", [k1, k2, k3])
def test_far_apart_policies_stay_finite_and_have_no_gradient(estimator) -> None:
    value, slope = jax.value_and_grad(lambda x: estimator(x, jnp.array(0.0)))(jnp.array(-500.0))
    assert value == estimator(jnp.array(-LIMIT), jnp.array(0.0))
    assert slope == 0.0


def test_log_ratios_are_limited_to_ten_nats_as_published() -> None:
    values, slopes = jax.vmap(jax.value_and_grad(lambda x: k3(x, jnp.array(0.0))))(jnp.array([-9.5, -10.5, 10.5]))
    np.testing.assert_allclose(values, [np.exp(9.5) - 10.5, np.exp(10.0) - 11.0, np.exp(-10.0) + 9.0], rtol=1e-5)
    np.testing.assert_allclose(slopes, [1.0 - np.exp(9.5), 0.0, 0.0], rtol=1e-5)


@pytest.mark.parametrize("estimator", [k1, k2, k3])
def test_gradients_agree_with_finite_differences(estimator) -> None:
    with jax.enable_x64(True):
        arrays = jnp.array([-1.0, -0.2, -3.0]), jnp.array([-1.5, -0.1, -2.0])
        check_grads(estimator, arrays, order=1, modes=["rev"])


@pytest.mark.parametrize(("name", "divergence"), [("k1", None), ("k2", "P‖Q"), ("k3", "Q‖P")])
def test_the_mean_gradient_is_that_of_the_promised_divergence(name: str, divergence: str | None) -> None:
    """Of a softmax policy, averaged exactly over its own samples; k1's is 0, which is why no loss may use it."""
    with jax.enable_x64(True):
        q = jnp.asarray(Q)

        def estimate(logits: jax.Array) -> jax.Array:
            logprobs = jax.nn.log_softmax(logits)
            return jax.lax.stop_gradient(jnp.exp(logprobs)) @ kl_to_reference(logprobs, jnp.log(q), estimator=name)

        def exact(logits: jax.Array) -> jax.Array:
            logprobs = jax.nn.log_softmax(logits)
            if divergence is None:
                return 0.0 * logprobs.sum()
            forward, backward = jnp.exp(logprobs) @ (logprobs - jnp.log(q)), q @ (jnp.log(q) - logprobs)
            return forward if divergence == "P‖Q" else backward

        logits = jnp.log(jnp.asarray(P))
        np.testing.assert_allclose(jax.grad(estimate)(logits), jax.grad(exact)(logits), atol=1e-12)


@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
def test_the_reference_is_a_constant(name: str) -> None:
    slope = jax.grad(lambda x: kl_to_reference(jnp.array(-1.0), x, estimator=name))(jnp.array(-2.0))
    assert slope == 0.0
