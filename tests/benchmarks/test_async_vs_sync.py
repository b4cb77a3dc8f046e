"""Asynchrony pays in virtual time, never by breaking the staleness bound; the real mode measures real runs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl_jax.policy import NetworkConfig
from agentrl_jax.sft import WarmUpConfig
from benchmarks.async_vs_sync import (
    STALENESS,
    Measurement,
    Size,
    figures,
    main,
    measure,
    real_config,
    virtual_figures,
    warm_policy,
)
from benchmarks.figures import Figure

SMALL = Size(group_size=2, groups_per_batch=4, num_places=4, num_steps=12, repeats=2)
FIELDS = {"benchmark", "case", "metric", "value", "unit", "min", "max", "repeats", "commit", "machine", "versions"}

Found = dict[tuple[str, str], Figure]


def by_name(found: list[Figure]) -> Found:
    return {(figure.case, figure.metric): figure for figure in found}


@pytest.fixture(scope="module")
def virtual() -> Found:
    return by_name(list(virtual_figures(SMALL)))


@pytest.mark.parametrize("k", STALENESS[1:])
def test_asynchrony_pays_where_learning_takes_as_long_as_rollouts(virtual: Found, k: int) -> None:
    case = f"virtual balanced max_staleness={k}"
    assert virtual[case, "speedup"].min > 1.2
    assert virtual[case, "bound_frac"].min > 0.8
    waits = [virtual[f"virtual balanced max_staleness={n}", "learner_wait_frac"] for n in (0, k)]
    assert waits[0].min > 0.35  # the case is balanced: about half of a synchronous step is waiting
    assert waits[1].max < 0.2


def test_places_bound_what_more_staleness_can_buy(virtual: Found) -> None:
    tight, roomy = (virtual[f"virtual {name} max_staleness=4", "speedup"] for name in ("rollout-bound", "roomy"))
    assert 1.2 < tight.min <= tight.max < 2.3
    assert roomy.min > 3


def test_no_run_is_faster_than_its_bound(virtual: Found) -> None:
    fractions = [figure.max for (_, metric), figure in virtual.items() if metric == "bound_frac"]
    assert len(fractions) == 3 * len(STALENESS[1:])
    assert max(fractions) <= 1 + 1e-9


def test_ages_stay_within_their_bounds_and_reach_them(virtual: Found) -> None:
    for k in STALENESS:
        for metric in ("group_age_max", "token_staleness_max"):
            assert virtual[f"virtual balanced max_staleness={k}", metric].value == k
    assert all(virtual[f"virtual {name} max_staleness=0", "speedup"].value == 1 for name in ("balanced", "roomy"))


SYNC = Measurement(
    step_s=3.0, busy_s=1.0, group_s=1.5, num_episodes=8, num_tokens=80, num_steps=2, age_max=0, lag_max=0
)
ASYNC = replace(SYNC, step_s=2.0, busy_s=1.2, group_s=1.8, age_max=1, lag_max=1)


def test_figures_by_hand() -> None:
    found = by_name(list(figures("c", [{0: SYNC, 1: ASYNC}], replace(SMALL, num_places=8))))
    values = {metric: figure.value for (case, metric), figure in found.items() if case == "c max_staleness=1"}
    assert values == pytest.approx(
        {
            "episodes_per_s": 2.0,
            "tokens_per_s": 20.0,
            "speedup": 1.5,
            "speedup_bound": 2.4,  # 3.0 / max(1.0, 1.5 × 4 / 8, (1.5 + 1.0) / 2)
            "bound_frac": 0.625,
            "learner_wait_frac": 0.4,
            "group_age_max": 1,
            "token_staleness_max": 1,
        }
    )
    few_places = by_name(list(figures("c", [{0: SYNC, 1: ASYNC}], SMALL)))
    assert few_places["c max_staleness=1", "speedup_bound"].value == pytest.approx(2.0)  # 3.0 / 1.5
    assert ("c max_staleness=0", "speedup_bound") not in found


@pytest.mark.parametrize("old", [{"age_max": 2}, {"lag_max": 2}])
def test_a_broken_bound_fails_the_benchmark(old: dict[str, int]) -> None:
    with pytest.raises(RuntimeError, match="max_staleness 1 was broken"):
        list(figures("c", [{0: SYNC, 1: replace(ASYNC, **old)}], SMALL))


def test_json_lines_have_every_field(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("benchmarks.async_vs_sync.VIRTUAL_QUICK", replace(SMALL, num_steps=3))
    assert main(["--json", "--quick", "--mode=virtual"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert all(set(line) == FIELDS for line in lines)
    assert {line["metric"] for line in lines} >= {"episodes_per_s", "speedup", "speedup_bound", "group_age_max"}
    assert all(line["benchmark"] == "async_vs_sync" and line["repeats"] == 2 for line in lines)
    assert all(line["min"] <= line["value"] <= line["max"] for line in lines)


@pytest.mark.parametrize(
    "flags", [["--mode=virtual", "--model=."], ["--mode=real", "--model=/no/such/folder"], ["--mode=imagined"]]
)
def test_wrong_settings_are_refused_before_anything_runs(flags: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(flags)
    assert exit_.value.code == 2


@pytest.mark.slow
def test_a_real_step(tmp_path: Path) -> None:
    size = Size(group_size=2, groups_per_batch=2, num_places=4, num_steps=1, repeats=1)
    network = NetworkConfig(width=32, num_layers=1, num_heads=2, num_kv_heads=1, mlp_width=64)
    config = replace(real_config(size), network=network)
    warm_up = WarmUpConfig(demonstrations=64, copy_steps=2, steps=6, batch_size=8)
    config = replace(config, model=warm_policy(config, warm_up, tmp_path / "warm"))
    runs = {k: measure(config, k, size=size, folder=tmp_path / str(k)) for k in (0, 1)}
    assert all((run.num_steps, run.num_episodes) == (1, 4) for run in runs.values())
    assert runs[0].age_max == runs[0].lag_max == 0
    found = by_name(list(figures("real", [runs], size)))
    assert found["real max_staleness=1", "tokens_per_s"].value > 0
