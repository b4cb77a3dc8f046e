"""Whole losses by hand: sums, weights and metrics of one row, and of rows with nothing to learn from."""

import math
from collections.abc import Sequence

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import ArrayLike

from agentrl_jax.algo.histograms import histogram_figures
from agentrl_jax.algo.losses import LossConfig, make_loss
from agentrl_jax.algo.metrics import means
from agentrl_jax.algo.policy_metrics import mismatch_alarm
from agentrl_jax.algo.surrogates import negative_log_likelihood
from agentrl_jax.batch import LossOutput, TokenBatch, Totals
from agentrl_jax.errors import RecordError

NUM = 8
"""Tokens of every row here, the last of them padding: one shape, so that nothing compiles twice."""


def padded(values: Sequence[float], dtype: type) -> np.ndarray:
    return np.array([[*values, *[0] * (NUM - len(values))]], dtype)


def row(values: ArrayLike) -> jax.Array:
    """Log-probabilities [1, NUM] of the first tokens."""
    return jnp.asarray(padded(np.asarray(values).tolist(), np.float32))


def make_tokens(
    behavior: list[float],
    advantages: list[float],
    *,
    loss_mask: list[bool] | None = None,
    has_signal: list[bool] | None = None,
    version_lag: list[int] | None = None,
    reference: list[float] | None = None,
) -> TokenBatch:
    """One row: a segment of these tokens, and padding."""
    mask = padded(loss_mask or [True] * len(behavior), np.bool_)
    signal = mask & padded(has_signal or [True] * len(behavior), np.bool_)
    return TokenBatch(
        ids=np.ones((1, NUM), np.int32),
        positions=np.arange(NUM, dtype=np.int32)[None],
        segment_ids=padded([1] * len(behavior), np.int32),
        loss_mask=mask,
        has_signal=signal,
        behavior_logprobs=padded(behavior, np.float32),
        advantages=padded(advantages, np.float32),
        version_lag=padded(version_lag or [0] * len(behavior), np.int32),
        task_ids=np.zeros((1, NUM), np.int32),
        sequence_tokens=np.where(mask, np.sum(mask), 0).astype(np.int32),
        totals=Totals(*map(np.float32, (mask.sum(), signal.sum(), mask.any(), signal.any()))),
        reference_logprobs=None if reference is None else padded(reference, np.float32),
    )


def test_likelihood_loss_by_hand() -> None:
    tokens = make_tokens([0.0] * 3, [1.0] * 3, loss_mask=[False, True, True])
    loss, metrics, *_ = make_loss(LossConfig(name="sft"))(row([-9.0, -1.0, -2.0]), tokens)
    assert (float(loss.total), float(loss.weight), metrics) == (3.0, 2.0, {})
    without_signal = tokens._replace(has_signal=padded([False, True, False], np.bool_))
    assert make_loss(LossConfig(name="sft"))(row([-9.0, -1.0, -2.0]), without_signal).loss == (1.0, 1.0)
    assert negative_log_likelihood(jnp.array(-1.5)).tolist() == 1.5


def test_metrics_by_hand() -> None:
    ratios = [1.0, 1.5, 2.0, 0.5, 5.0, 3.0]
    tokens = make_tokens(
        [-2.0] * 6,
        [1.0, 1.0, -1.0, -1.0, -1.0, 0.0],
        has_signal=[True, True, True, True, True, False],
        version_lag=[0, 1, 2, 3, 4, 8],
    )
    loss, metrics, *_ = make_loss(LossConfig())(row(np.log(ratios) - 2.0), tokens)
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
        "mismatch_kl": 0.0,
    }
    assert means(metrics) == pytest.approx(expected, rel=1e-5)
    assert "dual_clip_frac" not in make_loss(LossConfig(dual_clip="off"))(row([]), tokens).metrics


RATIOS = [1.0, 1.5, 8.0, 0.25]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LossConfig(correction="tis"), {"correction_weight_mean": 4.75 / 4, "correction_capped_frac": 1 / 4}),
        (LossConfig(correction="icepop"), {"correction_weight_mean": 2.5 / 4, "correction_masked_frac": 2 / 4}),
        (LossConfig(correction="decoupled"), {"correction_weight_mean": 10.75 / 4}),
        (LossConfig(correction="none"), {}),
        # The geometric mean ratio is 3 ** 0.25 = 1.32.
        (LossConfig(correction="sequence_mask", clip_high=9.0), {"correction_masked_frac": 1.0, "clip_low_frac": 0.0}),
        (LossConfig(name="gspo"), {"clip_high_frac": 0.5, "clip_low_frac": 0.0}),
        (LossConfig(name="cispo"), {"clip_high_frac": 0.25, "clip_low_frac": 0.0}),
        (LossConfig(name="cispo", clip_low=0.5), {"clip_high_frac": 0.25, "clip_low_frac": 0.25}),
        (LossConfig(name="policy_gradient", correction="none"), {}),
    ],
)
def test_metrics_of_corrections_and_clips_by_hand(config: LossConfig, expected: dict[str, float]) -> None:
    tokens = make_tokens([-3.0] * 4, [1.0, -1.0, -1.0, 1.0])
    figures = means(make_loss(config)(row(np.log(RATIOS) - 3.0), tokens).metrics)
    assert {name: figures[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    others = {name for name in figures if name.startswith(("clip", "dual", "correction"))} - set(expected)
    assert others <= ({"dual_clip_frac", "clip_high_frac"} if config.settings.has_clip else set())


def test_mismatch_is_measured_on_tokens_of_the_learners_own_version() -> None:
    tokens = make_tokens([-2.0] * 4, [0.0] * 4, version_lag=[0, 0, 3, 0], loss_mask=[True, True, True, False])
    output = make_loss(LossConfig())(row([-2.0, -1.5, -1.0, -99.0]), tokens)
    assert means(output.metrics)["mismatch_kl"] == pytest.approx((math.exp(0.5) - 1 - 0.5) / 2, rel=1e-5)
    assert float(output.maxima["mismatch_abs_max"]) == 0.5
    figures = means(output.metrics) | {name: float(value) for name, value in output.maxima.items()}
    assert "divergence of 0.0744 nats" in mismatch_alarm(figures, 0.01)
    assert mismatch_alarm(figures, 0.1) is None
    old = make_tokens([-2.0], [0.0], version_lag=[1])
    assert float(make_loss(LossConfig())(row([]), old).maxima["mismatch_abs_max"]) == -math.inf
    assert mismatch_alarm(means(make_loss(LossConfig())(row([]), old).metrics), 0.1) is None


def test_engines_that_agree_raise_no_alarm() -> None:
    """Rounding of float32 log-probabilities is far below the default threshold."""
    exact = -np.geomspace(1e-3, 20.0, NUM)
    tokens = make_tokens((exact * (1 + 3e-7)).tolist(), [0.0] * NUM)
    figures = means(make_loss(LossConfig())(row(exact), tokens).metrics)
    assert figures["logprob_abs_diff"] > 0
    assert figures["mismatch_kl"] < 1e-9
    assert mismatch_alarm(figures, 1e-6) is None


def test_quantiles_of_the_ratio_reach_the_log() -> None:
    output = make_loss(LossConfig())(row([-2.0] * 6 + [-1.0]), make_tokens([-2.0] * 7, [0.0] * 7))
    figures = histogram_figures(output.histograms)
    assert figures["ratio_p50"] == pytest.approx(1.0, abs=1e-3)
    assert figures["ratio_p99"] == pytest.approx(math.e, rel=0.25)


def test_the_kl_counts_tokens_without_a_signal_and_is_logged_unscaled() -> None:
    signal = [True, True, False, False]
    tokens = make_tokens([-1.0] * 4, [1.0] * 2 + [0.0] * 2, has_signal=signal, reference=[-1.0, -1.0, -2.0, -2.0])
    config = LossConfig(kl_coefficient=0.1)
    loss, metrics, *_ = make_loss(config)(row([-1.0] * 4), tokens)
    divergence = math.exp(-1.0) - 1 + 1  # of the last two tokens; 0 of the others
    np.testing.assert_allclose(loss.total / loss.weight, -1.0 + 0.1 * 2 * divergence / 4, rtol=1e-5)
    assert means(metrics)["reference_kl"] == pytest.approx(2 * divergence / 4, rel=1e-5)
    with pytest.raises(RecordError, match="needs batches with reference_logprobs"):
        make_loss(config)(row([-1.0] * 4), make_tokens([-1.0] * 4, [1.0] * 4))


def test_without_a_signal_anywhere_the_kl_trains_nothing() -> None:
    tokens = make_tokens([-1.0], [0.0], has_signal=[False], reference=[-3.0])
    loss, *_ = make_loss(LossConfig(kl_coefficient=0.1))(row([-1.0]), tokens)
    assert (float(loss.total), float(loss.weight)) == (0.0, 0.0)


EVERY = [
    LossConfig(name="sft"),
    *[LossConfig(correction=name, kl_coefficient=0.1) for name in ("behavior_clip", "tis", "icepop", "sequence_mask")],
    LossConfig(name="gspo", kl_coefficient=0.1, kl_estimator="k2"),
    LossConfig(name="cispo", aggregation="sequence_mean_token_mean"),
    LossConfig(name="policy_gradient", aggregation="constant_length", constant_length=7),
]


@pytest.mark.parametrize("config", EVERY)
def test_what_stands_off_the_mask_changes_nothing(config: LossConfig) -> None:
    """NaN, infinities and garbage in every float field and in the policy's log-probabilities."""
    loss_fn = make_loss(config)
    mask = [True, False, True, False]

    def run(poison: float) -> tuple:
        def at(first: float, second: float) -> list[float]:
            return [first, poison, second, poison]

        tokens = make_tokens(at(-1.0, -2.0), at(0.5, -0.5), loss_mask=mask, reference=at(-1.3, -2.2))
        tokens = tokens._replace(sequence_tokens=padded([2, -7, 2, 0, -1], np.int32))
        tokens = tokens._replace(version_lag=padded([0, -9, 1, 99], np.int32))

        def objective(logprobs: jax.Array) -> tuple[jax.Array, object]:
            output = loss_fn(logprobs, tokens)
            return output.loss.total, output

        return jax.device_get(jax.value_and_grad(objective, has_aux=True)(row(at(-1.1, -1.9))))

    expected = run(-5.0)
    assert np.isfinite(expected[0][0])
    assert expected[1][0, 1] == expected[1][0, 3] == 0.0 != expected[1][0, 0]
    for poison in (np.nan, np.inf, -np.inf, 1e30):
        chex.assert_trees_all_equal(run(poison), expected)


@pytest.mark.parametrize("config", EVERY)
def test_an_all_masked_batch_costs_exactly_nothing(config: LossConfig) -> None:
    tokens = make_tokens([np.nan] * 3, [np.nan] * 3, loss_mask=[False] * 3, reference=[np.nan] * 3)

    def objective(logprobs: jax.Array) -> tuple[jax.Array, LossOutput]:
        output = make_loss(config)(logprobs, tokens)
        return output.loss.total, output

    (total, output), gradient = jax.value_and_grad(objective, has_aux=True)(jnp.full((1, NUM), jnp.nan))
    assert (float(total), float(output.loss.weight)) == (0.0, 0.0)
    assert not gradient.any()
    assert all(float(value.total) == 0.0 == float(value.weight) for value in output.metrics.values())
    assert all(math.isnan(value) for value in means(output.metrics).values())
    assert all(float(value) == -math.inf for value in output.maxima.values())


def test_metrics_carry_no_gradient() -> None:
    tokens = make_tokens([-1.0, -2.0], [1.0, -1.0], reference=[-1.2, -1.2])
    loss_fn = make_loss(LossConfig(correction="tis", kl_coefficient=0.1))

    def added_up(logprobs: jax.Array) -> jax.Array:
        output = loss_fn(logprobs, tokens)
        parts = jax.tree.leaves((output.metrics, output.maxima, output.histograms))
        return sum(jnp.sum(part) for part in parts)

    assert not jax.grad(added_up)(row([-1.5, -1.0])).any()
