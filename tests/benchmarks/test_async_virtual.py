"""The published set-up in virtual time: asynchrony pays, near its bound and never beyond it, nor beyond its ages."""

import json
from dataclasses import replace
from statistics import median

import pytest

from agentrl_jax.errors import ConfigError
from benchmarks import async_virtual, service_calibration
from benchmarks.async_virtual import (
    Repeat,
    Size,
    Way,
    fraction_of_bound,
    on,
    play,
    size_figures,
    with_room,
)
from benchmarks.async_vs_sync import main
from benchmarks.service_bound import bounds
from benchmarks.service_cases import Case, Outcome, Work, colocated, work_of
from benchmarks.service_model import Tail, load
from benchmarks.service_runs import simulate_all
from benchmarks.service_world import simulate

FIELDS = {"benchmark", "case", "metric", "value", "unit", "min", "max", "repeats", "commit", "machine", "versions"}
MODEL = load()
TAIL = MODEL.published_tail
WAYS = (Way(0), Way(4), Way(4, keeps_caches=True))
SMALL = replace(MODEL, batch=replace(MODEL.batch, episodes_per_gpu=8))
"""Half the episodes of the published batch, for tests."""


@pytest.fixture(scope="module")
def sync() -> Outcome:
    return simulate(colocated(8, num_steps=2), SMALL, TAIL)


@pytest.fixture(scope="module")
def asynchronous(sync: Outcome) -> Outcome:
    division = with_room(SMALL, sync.work, 8, 0.85)
    return simulate(on(division, Way(4), crowding=1.0, num_steps=3), SMALL, TAIL)


def test_asynchrony_pays_and_no_run_is_faster_than_its_bound(sync: Outcome, asynchronous: Outcome) -> None:
    assert asynchronous.tokens_per_s > 1.3 * sync.tokens_per_s
    assert 0.5 < fraction_of_bound(SMALL, asynchronous) <= 1.0
    assert fraction_of_bound(SMALL, sync) < 0.6


def test_a_synchronous_run_generates_and_trains_by_turns(sync: Outcome) -> None:
    assert (sync.age_max, sync.lag_max) == (0, 0)
    assert sync.learner_busy_frac + sync.engine_busy_frac < 1.0 + SMALL.publish_s / sync.step_s
    assert sync.num_live == 0  # nothing runs when a step has ended


def test_ages_reach_their_bound_and_not_more(asynchronous: Outcome) -> None:
    assert 1 <= asynchronous.age_max <= 4
    assert asynchronous.lag_max <= asynchronous.age_max


def test_a_seed_decides_everything_whatever_runs_beside_it() -> None:
    case = Case(num_engines=2, num_learner_gpus=2, max_staleness=1, num_steps=1)
    cases = [case, replace(case, seed=1)]
    found = simulate_all(cases, SMALL, TAIL)
    assert found == [simulate(case, SMALL, TAIL) for case in cases]
    assert found[0].seconds != found[1].seconds


def test_prompts_are_computed_once_unless_a_publish_or_a_full_cache_takes_them(
    sync: Outcome, asynchronous: Outcome
) -> None:
    assert 1.0 <= sync.prefill_over_new < 1.05  # no publish in between, and all fit; but some sessions move
    assert asynchronous.prefill_over_new > sync.prefill_over_new
    narrow = replace(MODEL, engine=replace(MODEL.engine, memory_frac=0.40))
    assert narrow.sessions_per_engine == 4  # of the sixteen episodes of a GPU
    few, many = (replace(colocated(2, num_steps=1), crowding=crowding) for crowding in (1.0, 8.0))
    assert simulate(many, narrow, TAIL).prefill_over_new > 1.5 * simulate(few, narrow, TAIL).prefill_over_new


def test_what_is_under_way_is_counted_by_episode_and_every_turn_once(sync: Outcome, asynchronous: Outcome) -> None:
    assert (sync.num_open, sync.num_turns) == (0, sync.work.num_turns)
    assert asynchronous.num_live < asynchronous.num_open < asynchronous.num_live * SMALL.batch.group_size
    assert asynchronous.num_turns > asynchronous.work.num_turns
    assert 0 < asynchronous.engine_busy_frac <= 1.0 + 1e-9
    assert 0 < asynchronous.learner_busy_frac <= 1.0 + 1e-9


def test_work_counts_what_each_token_had_before_it() -> None:
    case = colocated(8, num_steps=1)
    work = simulate(case, SMALL, TAIL).work
    assert work.num_groups == 8
    assert work.new_tokens == work.num_tokens - work.sampled_tokens
    # every sampled token stands behind the prompt at least, and behind the longest context at most
    assert 350 * work.sampled_tokens < work.context_tokens < 8192 * work.sampled_tokens
    assert work_of([]) == Work(
        num_steps=1, num_groups=0, num_turns=0, num_tokens=0, sampled_tokens=0, new_tokens=0, context_tokens=0
    )
    assert work.scaled(2.0).context_tokens == 2 * work.context_tokens


def test_calibration_finds_the_latency_that_makes_the_published_throughput(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(model: object, tail: Tail, num_gpus: int, num_steps: int) -> float:
        return 1000.0 * num_gpus / (1.0 + tail.latency_median_s)

    monkeypatch.setattr(service_calibration, "sync_tokens_per_s", fake)
    tail = service_calibration.calibrate(MODEL, 0.5, tolerance=1e-6)
    assert tail.latency_median_s == pytest.approx(16 / 9 - 1, abs=1e-4)
    assert tail.sync_tokens_per_s == (9000.0, 18000.0, 36000.0)
    assert "sync_tokens_per_s = [9000.0, 18000.0, 36000.0]" in service_calibration.table(tail)

    def jump(model: object, tail: Tail, num_gpus: int, num_steps: int) -> float:
        return 9300.0 if tail.latency_median_s < 0.7 else 8700.0

    monkeypatch.setattr(service_calibration, "sync_tokens_per_s", jump)  # never within one per cent
    assert service_calibration.calibrate(MODEL, 0.5).latency_median_s == pytest.approx(0.7, abs=1e-4)
    monkeypatch.setattr(service_calibration, "sync_tokens_per_s", lambda *arguments: 1.0)
    with pytest.raises(ConfigError, match=r"sigma 0.5: 9000.0 tokens/s lie outside"):
        service_calibration.calibrate(MODEL, 0.5)


def test_the_committed_tails_cover_the_sensitivity_table() -> None:
    assert [tail.sigma for tail in MODEL.tails] == [0.3, 0.5, 0.7, 1.0, 1.3, 1.5]
    for tail in MODEL.tails:
        assert tail.sync_tokens_per_s[0] == pytest.approx(9000.0, rel=0.02)


def outcome(tokens_per_s: float, max_staleness: int, **more: float) -> Outcome:
    work = Work(
        num_steps=1,
        num_groups=2,
        num_turns=10,
        num_tokens=1e6,
        sampled_tokens=2e5,
        new_tokens=8e5,
        context_tokens=4e8,
    )
    case = Case(num_engines=4, num_learner_gpus=12, max_staleness=max_staleness)
    found = Outcome(
        case=case,
        work=work,
        seconds=1e6 / tokens_per_s,
        total_s=1.0,
        num_turns=10,
        learner_busy_frac=0.5,
        engine_busy_frac=0.5,
        prefill_over_new=1.0,
        num_live=1.0,
        num_open=8.0,
        most_open=8,
        straggler_wait_frac=0.0,
        age_max=0,
        lag_max=0,
        group_s=1.0,
        slowest_group_s=1.0,
    )
    return replace(found, **more)  # type: ignore[arg-type]


def test_figures_by_hand() -> None:
    repeats = [
        Repeat(baseline=outcome(base, 0), runs={Way(0): outcome(8_000.0, 0), Way(4): outcome(fast, 4)})
        for base, fast in ((10_000.0, 20_000.0), (10_000.0, 24_000.0), (12_000.0, 21_600.0))
    ]
    division = bounds(MODEL, repeats[0].baseline.work, 16)[0]
    found = {(figure.case, figure.metric): figure for figure in size_figures(MODEL, division, 1.5, repeats)}
    assert found["gpus=16 best", "max_staleness"].value == 4
    assert found["gpus=16 best", "over_colocated"] == replace(
        found["gpus=16 best", "over_colocated"], value=2.0, min=1.8, max=2.4, repeats=3
    )
    assert found["gpus=16 max_staleness=4", "over_same_division"].value == pytest.approx(2.7)
    limit = bounds(MODEL, repeats[0].baseline.work, 16)[0].tokens_per_s
    assert found["gpus=16 best", "fraction_of_bound"].value == pytest.approx(21_600 / limit)
    assert found["gpus=16 best", "bound_over_colocated"].value == pytest.approx(median([limit / 1e4, limit / 1e4]))
    assert found["gpus=16 best", "published_ratio"].value == 1.9
    assert found["gpus=16 best", "crowding"].value == 1.5


def test_the_division_leaves_engines_the_room_that_is_asked_for(sync: Outcome) -> None:
    every = bounds(SMALL, sync.work, 64)
    for room in (0.7, 0.85, 1.0):
        found = with_room(SMALL, sync.work, 64, room)
        assert found.engine_s <= room * found.learner_s
        better = [other for other in every if other.step_s < found.step_s]
        assert all(other.engine_s > room * other.learner_s for other in better)
    assert with_room(SMALL, sync.work, 64, 0.0) == every[0]  # nothing leaves so much


def test_caches_that_publishes_leave_are_not_computed_again(sync: Outcome, asynchronous: Outcome) -> None:
    kept = simulate(replace(asynchronous.case, keeps_caches=True), SMALL, TAIL)
    assert 1.0 <= kept.prefill_over_new < 1.1 < asynchronous.prefill_over_new
    assert (
        kept.group_s < asynchronous.group_s
    )  # engines have more time for it; the learner is busy all the time in both
    assert kept.lag_max <= kept.age_max <= 4


def test_every_run_stands_beside_the_baseline_of_its_seed(monkeypatch: pytest.MonkeyPatch, sync: Outcome) -> None:
    monkeypatch.setattr(async_virtual, "simulate_all", lambda cases, *more: [replace(sync, case=c) for c in cases])
    size = Size(gpus=(8,), sigmas=(), num_steps=2, repeats=2, tail_repeats=1, ways=WAYS)
    division = with_room(SMALL, sync.work, 8, 0.85)
    repeats = play(SMALL, TAIL, division, 1.5, size, range(2))
    assert [(r.baseline.case.seed, r.baseline.case.is_colocated) for r in repeats] == [(0, True), (1, True)]
    assert [tuple(found.runs) for found in repeats] == [WAYS, WAYS]
    asked = [
        (run.case.seed, (run.case.max_staleness, run.case.keeps_caches), run.case.crowding)
        for found in repeats
        for run in found.runs.values()
    ]
    assert asked == [(seed, way, 1.5) for seed in (0, 1) for way in WAYS]


@pytest.mark.parametrize(
    "flags", [["--mode=virtual", "--model=."], ["--mode=real", "--model=/no/such/folder"], ["--mode=imagined"]]
)
def test_wrong_settings_are_refused_before_anything_runs(flags: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(flags)
    assert exit_.value.code == 2


@pytest.mark.soak
def test_the_published_size_comes_close_to_its_bound(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", "--quick", "--mode=virtual"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert all(set(line) == FIELDS for line in lines)
    found = {(line["case"], line["metric"]): line["value"] for line in lines}
    assert found["gpus=16 best", "fraction_of_bound"] >= 0.7
    assert found["gpus=16 best", "over_colocated"] > 1.8
    assert found["gpus=16 colocated", "tokens_per_s"] == pytest.approx(9000.0, rel=0.2)
