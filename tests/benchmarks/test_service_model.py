"""Service times by hand, and the bound that follows from them."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl_jax.errors import ConfigError
from benchmarks.service_bound import bound, bounds
from benchmarks.service_cases import Case, Work, colocated
from benchmarks.service_model import FILE, ServiceModel, Tail, load

MODEL = load()
WORK = Work(
    num_steps=2,
    num_groups=4,
    num_turns=4000,
    num_tokens=2_000_000,
    sampled_tokens=400_000,
    new_tokens=1_600_000,
    context_tokens=8e8,
)


def test_rates_by_hand() -> None:
    assert MODEL.network.weight_bytes == pytest.approx(29.54e9)
    assert MODEL.network.kv_bytes == 196_608  # 2 × 48 layers × 8 heads × 128 × 2 bytes
    bandwidth = 0.7 * 3.35e12
    assert MODEL.iteration_s == pytest.approx(0.004 + 29.54e9 / bandwidth)
    assert MODEL.context_token_s == pytest.approx(196_608 / bandwidth)
    assert 1 / MODEL.prefill_s == pytest.approx(989e12 * 0.5 / (2 * 14.77e9))
    assert 1 / MODEL.learn_s == pytest.approx(989e12 * 0.35 / (10 * 14.77e9))
    assert MODEL.cache_tokens == int((0.85 * 80e9 - 29.54e9) / 196_608)
    assert MODEL.publish_s == pytest.approx(29.54 / 25 + 1.0)
    assert MODEL.step_s(1_000_000, 4) == pytest.approx(1e6 * MODEL.learn_s / 4 + 2.0)
    assert MODEL.num_groups(16) == 32


def test_draws_have_the_median_and_the_mean_that_they_should() -> None:
    num = 4001
    seeds = [(2**63 // num) * index + 2**40 for index in range(num)]
    for sigma in (0.3, 1.0):
        drawn = sorted(MODEL.episode.num_sampled(seed, sigma) for seed in seeds)
        assert drawn[num // 2] == pytest.approx(120 / math.exp(sigma**2 / 2), rel=0.02)
        assert sum(drawn) / num == pytest.approx(120, rel=0.02)
    turns = [MODEL.episode.num_turns(seed) for seed in seeds]
    assert min(turns) == 3
    assert 0.01 < sum(drawn == 20 for drawn in turns) / num < 0.035  # 2 % reach the limit, as published


def test_the_bound_by_hand() -> None:
    found = bound(MODEL, WORK, num_engines=4, num_learner_gpus=12)
    assert found.learner_s == pytest.approx(1e6 * MODEL.learn_s / 12 + 2.0 + MODEL.publish_s)
    iterations = 8e8 / MODEL.cache_tokens  # more than 400,000 / 256
    engine_s = 1.6e6 * MODEL.prefill_s + iterations * MODEL.iteration_s + 8e8 * MODEL.context_token_s
    assert found.engine_s == pytest.approx(engine_s / 4 / 2 + MODEL.publish_s)
    assert found.tokens_per_s == pytest.approx(1e6 / max(found.learner_s, found.engine_s))


def test_the_best_division_comes_first_and_any_other_is_slower() -> None:
    every = bounds(MODEL, WORK, 16)
    assert len(every) == 15
    assert every[0].step_s == min(found.step_s for found in every)
    assert all(found.num_engines + found.num_learner_gpus == 16 for found in every)


def test_the_published_tail_is_the_one_that_fits_synchronous_figures_best() -> None:
    exact = Tail(sigma=0.7, latency_median_s=1.0, sync_tokens_per_s=(9000.0, 16000.0, 29000.0))
    off = Tail(sigma=0.3, latency_median_s=1.0, sync_tokens_per_s=(9000.0, 18000.0, 36000.0))
    model = replace(MODEL, tails=(off, exact))
    assert model.published_tail is exact
    assert model.misfit(off) == pytest.approx(math.log(18 / 16) ** 2 + math.log(36 / 29) ** 2)
    assert model.tail(0.3) is off
    with pytest.raises(ConfigError, match=r"no tail of sigma 2.0; there are 0.3, 0.7"):
        model.tail(2.0)
    with pytest.raises(ConfigError, match="has no calibrated tail"):
        _ = replace(MODEL, tails=()).published_tail


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("fixed_s = 2.0", "fixed_s = 2.0\nluck = 1", r"\[learner\]: unknown values \['luck'\]"),
        ("fixed_s = 2.0", "", r"\[learner\]: .*missing"),
        ("[learner]", "[teacher]", "needs exactly the tables"),
    ],
)
def test_a_file_that_says_something_else_is_refused(old: str, new: str, message: str, tmp_path: Path) -> None:
    text = FILE.read_text()
    assert old in text
    (tmp_path / "model.toml").write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigError, match=message):
        load(tmp_path / "model.toml")


def test_a_run_on_the_same_gpus_cannot_be_asynchronous() -> None:
    assert colocated(16).num_gpus == 16
    assert Case(num_engines=4, num_learner_gpus=12, max_staleness=1).num_gpus == 16
    with pytest.raises(ConfigError, match="a colocated run has max_staleness 0"):
        Case(num_engines=8, num_learner_gpus=8, max_staleness=1, is_colocated=True)


def test_too_few_gpus_for_one_group_are_refused() -> None:
    small: ServiceModel = replace(MODEL, batch=replace(MODEL.batch, episodes_per_gpu=1))
    with pytest.raises(ConfigError, match="4 GPUs are too few"):
        small.num_groups(4)
