"""The figures of real runs by hand; and one real pair of runs, each core with its own work."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl_jax.errors import ConfigError
from benchmarks.async_real import Measurement, bound_episodes_per_s, figures, measure, quick_size, run_once, two_cores
from benchmarks.async_real_run import LATENCY, RunSettings
from benchmarks.figures import Figure

SYNC = Measurement(
    seconds=10.0,
    num_steps=2,
    num_episodes=100,
    num_tokens=5000,
    learner_core_s=2.0,
    engine_core_s=3.0,
    age_max=0,
    lag_max=0,
)
ASYNC = replace(SYNC, seconds=4.0, learner_core_s=2.5, engine_core_s=3.6, age_max=1, lag_max=1)


def values(found: list[Figure], case: str) -> dict[str, float]:
    return {figure.metric: figure.value for figure in found if figure.case == case}


def test_the_bound_is_the_busier_cores_least_work() -> None:
    assert bound_episodes_per_s([SYNC, ASYNC]) == pytest.approx(100 / 3.0)
    idle_engine = replace(ASYNC, engine_core_s=1.0)
    assert bound_episodes_per_s([SYNC, idle_engine]) == pytest.approx(100 / 2.0)  # now the learner's: its least


def test_figures_by_hand() -> None:
    found = values(list(figures([{0: SYNC, 1: ASYNC}])), "real kg max_staleness=1")
    assert found == pytest.approx(
        {
            "episodes_per_s": 25.0,
            "tokens_per_s": 1250.0,
            "step_s": 2.0,
            "over_sync": 2.5,
            "fraction_of_bound": 0.75,
            "learner_core_busy_frac": 0.625,
            "engine_core_busy_frac": 0.9,
            "group_age_max": 1,
            "token_staleness_max": 1,
        }
    )


@pytest.mark.parametrize("old", [{"age_max": 2}, {"lag_max": 2}])
def test_a_broken_bound_fails_the_benchmark(old: dict[str, int]) -> None:
    with pytest.raises(RuntimeError, match="max_staleness 1 was broken"):
        list(figures([{0: SYNC, 1: replace(ASYNC, **old)}]))


def test_settings_survive_the_command_line() -> None:
    settings = RunSettings(folder="/x", cores=(0, 1), model="/y", max_staleness=2)
    assert RunSettings.from_json(settings.to_json()) == settings
    config = settings.config()
    assert config.rollout.max_staleness == 2
    assert config.engine.num_slots == settings.group_size * settings.num_places
    assert (LATENCY.median_s, LATENCY.sigma) == (0.3, 1.0)


def test_one_core_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3})
    with pytest.raises(ConfigError, match="needs two cores"):
        two_cores()


@pytest.mark.soak
def test_a_run_that_fails_says_why(tmp_path: Path) -> None:
    settings = RunSettings(folder=str(tmp_path), cores=(0, 1), model="/no/such/folder")
    with pytest.raises(RuntimeError, match="no/such/folder"):
        run_once(settings)


@pytest.mark.soak
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_engine_and_learner_compute_on_cores_of_their_own(tmp_path: Path) -> None:
    settings = quick_size().settings
    run_once(replace(settings, folder=str(tmp_path / "warm")))
    model = str(tmp_path / "warm" / "model")
    found = measure(replace(settings, folder=str(tmp_path / "run"), model=model, max_staleness=1), 2)
    assert (found.num_steps, found.num_episodes) == (2, 32)
    assert found.age_max <= 1
    assert 0 < found.engine_core_s <= found.seconds * 1.05
    assert 0 < found.learner_core_s <= found.seconds * 1.05
