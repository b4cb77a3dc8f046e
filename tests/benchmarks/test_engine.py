"""The engine's benchmark counts what it says, at a size of seconds, and its bounds hold with room for busy machines."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import pytest
import trio

from agentrl_jax.models.config import ModelConfig
from benchmarks import engine_race, engine_savings
from benchmarks.compiles import counted_compiles
from benchmarks.engine import CASES, Options, compare, race
from benchmarks.engine_embedded import required_gflop
from benchmarks.engine_load import Load


def test_compilations_in_a_block_are_counted() -> None:
    with counted_compiles() as compiles:
        assert float(jnp.arange(7.0).sum()) == 21.0
    assert compiles
    num_compiles = len(compiles)
    jnp.arange(9.0).sum()
    assert len(compiles) == num_compiles


def test_a_load_by_hand() -> None:
    load = Load(sessions=4, group=2, turns=3, prompt_tokens=10, new_tokens=5, env_tokens=2)
    assert load.longest == 10 + 5 + 2 + 5 + 2 + 5
    assert load.sampled_tokens == 4 * 3 * 5
    assert load.asked_tokens == 4 * (10 + 17 + 24)
    assert load.prompts(1, 50).shape == (2, 10)
    assert load.replies(1, 50).shape == (4, 3, 2)
    assert (load.prompts(1, 50) != load.prompts(2, 50)).any()
    assert Load.from_json(load.to_json()) == load


def test_required_operations_by_hand() -> None:
    model = ModelConfig(vocab_size=10, width=4, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=4, mlp_width=8)
    layers = 4 * 4 * 4 + 3 * 4 + 3 * 4 * 8 + 2 * 4 + 4  # q, k, v, o, their biases, the MLP, norms
    load = Load(sessions=2, group=2, turns=3, prompt_tokens=9, new_tokens=5, env_tokens=2)
    # 30 ids are drawn; all of them are fed again but the last of each turn, beside 40 of prompts.
    expected = 2 * (layers * (40 + 30 - 6) + 40 * 30) / 1e9
    assert required_gflop(model, load, prefilled=40, sampled=30) == pytest.approx(expected)
    untied = replace(model, tie_embeddings=False)
    assert required_gflop(untied, load, prefilled=40, sampled=30) == pytest.approx(expected)


def test_the_ratio_is_to_the_best_peer_and_within_repeats() -> None:
    own = {"matmul_frac": 0.5, "prefill_saved_frac": 0.8, "num_late_compiles": 0.0}
    outcomes = {
        "embedded": [{"cpu_s": cpu_s, "wall_s": 1.0, **own} for cpu_s in (1.0, 2.0, 4.0)],
        "slow": [{"cpu_s": 9.0, "wall_s": 1.5}] * 3,
        "quick": [{"cpu_s": 3.0, "wall_s": 8.0}] * 3,
    }
    ratios = {figure.metric: figure for figure in compare("x", outcomes) if "ratio" in figure.metric}
    by_cpu, by_wall = ratios["ratio_to_best_peer"], ratios["ratio_to_best_peer_by_wall"]
    assert (by_cpu.value, by_cpu.min, by_cpu.max) == (1.5, 0.75, 3.0)
    assert by_wall.value == 1.5
    assert not [figure for figure in compare("x", {"embedded": outcomes["embedded"]}) if "ratio" in figure.metric]


def test_a_contestant_that_samples_less_is_no_contestant() -> None:
    class Lazy:
        def __init__(self, asked: engine_race.Race) -> None:
            self.played = {"sampled_tokens": asked.load.sampled_tokens - 1.0}

        def __enter__(self) -> engine_race.Play:
            return lambda seed: self.played

        def __exit__(self, *_: object) -> None:
            return None

    with pytest.raises(RuntimeError, match="lazy: expected 8192 sampled_tokens, got 8191"):
        engine_race.play_in_turns(tiny_race(), {"lazy": Lazy}, 1)  # type: ignore[dict-item]


def test_the_seconds_of_a_process_group_are_counted() -> None:
    command = [sys.executable, "-c", "sum(range(10**7)); print(flush=True); input()"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert 0.05 < engine_race.group_cpu_s(process.pid) < 10
        process.kill()
    assert engine_race.group_cpu_s(process.pid) == 0


def test_a_core_is_bound_for_the_block_only() -> None:
    before = os.sched_getaffinity(0)
    with engine_race.bound_to_core(min(before)):
        assert os.sched_getaffinity(0) == {min(before)}
    assert os.sched_getaffinity(0) == before


def tiny_race() -> engine_race.Race:
    case = CASES["tiny"]
    return engine_race.Race(folder=Path(), vocab_size=case.model.vocab_size, load=case.load, dtype="float32")


@pytest.mark.slow
@pytest.mark.parametrize(("has_lagging", "saved"), [(False, 0.6), (True, 0.4)])
def test_prefixes_save_their_share_and_nothing_compiles_late(has_lagging: bool, saved: float) -> None:
    _, outcome = trio.run(engine_savings.repeat, has_lagging, 2)
    load = engine_savings.LOAD
    assert outcome.sampled_tokens == engine_savings.WAVES * load.sampled_tokens
    assert outcome.prompt_tokens == engine_savings.WAVES * load.asked_tokens
    assert 1 - outcome.prefilled_tokens / outcome.prompt_tokens >= saved
    assert outcome.num_compiles == 0


@pytest.mark.soak
@pytest.mark.sglang
def test_the_embedded_engine_is_ahead_of_its_peers() -> None:
    if not engine_race.has_peers():
        if os.environ.get("CI"):
            pytest.fail("SGLang and transformers must be installed in CI: run tools/install_sglang.sh")
        pytest.skip("SGLang and transformers are not installed; tools/install_sglang.sh does it")
    figures = {(figure.case, figure.metric): figure.value for figure in race("tiny", Options(quick=True))}
    assert {figures[f"tiny/{peer}", "is_present"] for peer in CASES["tiny"].peers} == {1.0}
    assert figures["tiny", "ratio_to_best_peer"] > 1.3
    assert figures["tiny", "num_late_compiles"] == 0
    assert figures["tiny", "prefill_saved_frac"] > 0.8
