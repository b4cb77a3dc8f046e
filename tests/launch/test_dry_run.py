"""`--dry-run`: what it says, and that it does nothing."""

import json
from collections.abc import Callable
from pathlib import Path
from shutil import which

import jax
import pytest

from agentrl_jax.config import TrainConfig
from agentrl_jax.models.params import num_params
from agentrl_jax.models.published import PUBLISHED
from agentrl_jax.policy import NetworkConfig, create_policy
from launch.plan import Machine, make_plan
from launch.recipes import RECIPES
from launch.train import main

Plan = Callable[..., str]


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Plan:
    """What a dry run prints. It must not leave a file, or an array on a device."""
    monkeypatch.chdir(tmp_path)

    def run(*flags: str) -> str:
        before = sorted(tmp_path.rglob("*"))
        arrays = jax.live_arrays()  # held here, so that none of them goes meanwhile
        assert main([*flags, "--dry-run"]) == 0
        assert sorted(tmp_path.rglob("*")) == before
        assert len(jax.live_arrays()) == len(arrays)
        printed = capsys.readouterr()
        assert printed.err == ""
        return " ".join(printed.out.split())

    return run


@pytest.mark.parametrize("name", [name for name in RECIPES if name != "smollm2"])
def test_every_recipe_can_be_planned_without_weights_or_data(name: str, planned: Plan) -> None:
    if name == "single-os_interaction" and which("bwrap") is None:
        pytest.skip("sandboxes need bubblewrap, which is not here")
    printed = planned(f"--recipe={name}")
    assert f"recipe {name}" in printed
    if (model := RECIPES[name].architecture) is not None:
        assert f"{num_params(model):,} parameters, the architecture of {RECIPES[name].model}" in printed
    if name.startswith("paper-"):
        assert "nothing was started; before it can be, it needs the folder of" in printed
        assert "256 groups at least, 512 at the most, of 8 episodes: 2,048 episodes or more" in printed
        assert "up to 8,192 tokens an episode: at most 16,777,216 tokens, in rows of 2,048, 4,096, 8,192" in printed
        assert "servers that are not named yet" in printed
    else:
        assert "current engine" in printed


def test_batch_arithmetic_by_hand(planned: Plan) -> None:
    flags = ("--mesh=data=2,fsdp=2", "--rows-per-device=3", "--max-context-tokens=500", "--row-buckets=2")
    pace = ("--rollout.group-size=4", "--rollout.min-groups-per-batch=10", "--rollout.max-staleness=2")
    printed = planned(*flags, *pace, "--max-steps=7", "--engine.num-slots=10", "--tasks=kg,alfworld")
    # Rows are a multiple of 32 long; 3 of them on each of 4 devices; 40 episodes fill 4 micro-batches of 12.
    assert "10 groups at least, 30 at the most, of 4 episodes: 40 episodes or more" in printed
    assert "30 groups in flight at the most (age up to 2); 10 episodes play at a time" in printed
    assert "up to 512 tokens an episode: at most 20,480 tokens, in rows of 256, 512" in printed
    assert "12 rows a micro-batch (3 a device): at most 4 micro-batches, then one update" in printed
    assert "7 steps: 280 episodes or more" in printed
    assert "evaluation before and after: 512 episodes, half of them greedy" in printed
    assert "each of the learner's 4 devices, computing in float32" in printed
    assert "current engine and lagging engine, of 5 slots each" in printed


def test_changes_to_the_recipe_are_marked(planned: Plan) -> None:
    printed = planned("--learner.learning-rate=0.001", "--max-steps=60")
    assert "* learner.learning_rate 0.001" in printed
    assert printed.count("*") == 2  # the other one explains the mark


def test_what_servers_and_workers_are_met(planned: Plan) -> None:
    assert "no engines: servers that are not named yet" in planned("--recipe=paper-7b")
    tasks = ("--tasks=kg,remote:os-std", "--remote.listen.port=5999")
    printed = planned("--recipe=paper-7b", "--engine.num-slots=64", *tasks)
    assert "remote:os-std: sessions on workers that register at port 5999 of 127.0.0.1" in printed
    assert "current engine and lagging engine and evaluation's engine, of 32 slots each" in printed


def test_a_mesh_that_is_too_small_is_warned_about(planned: Plan) -> None:
    printed = planned("--recipe=paper-32b", "--mesh=1")
    assert "fits none of the devices that we know" in printed
    assert "WARNING: does not fit" in printed
    assert "H800 80GB" in printed.split("WARNING")[1]
    assert "A100 40GB" in printed  # sold with 80 GB as well


def test_the_memory_of_the_devices_here_is_looked_at() -> None:
    recipe = RECIPES["paper-7b"]
    here = make_plan(recipe.config, recipe, Machine(kind="NVIDIA H800", num_devices=8))
    assert here.fits("H800")
    assert not here.fits("4090")
    assert here.step_seconds("H800") == pytest.approx(here.step_seconds("H20") * 148 / 989)


def test_a_plan_of_adapters_needs_less(planned: Plan) -> None:
    recipe = RECIPES["paper-7b"]
    assert recipe.architecture == PUBLISHED["Qwen2.5-7B-Instruct"]
    printed = planned("--recipe=paper-7b", "--lora.rank=16", "--mesh=1", "--pool.lagging-prob=0.25")
    assert "params, merged" in printed
    assert "optimizer" in printed


def test_settings_of_which_no_run_could_be_made_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for flags, message in {
        "--temperature=0": "--temperature must be > 0",
        "--data=/no/such/folder": "/no/such/folder",
        "--model=/no/such/folder": "expected config.json, weights and tokenizer",
        "--recipe=paper-3b --max-context-tokens=40000": "do not fit the model's 32768 positions",
        "--tasks=nope": "unknown environment 'nope'",
    }.items():
        with pytest.raises(SystemExit) as caught:
            main([*flags.split(" "), "--dry-run", f"--run-dir={tmp_path / 'run'}"])
        assert caught.value.code == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_resumed_run_of_a_recipe_that_is_gone_can_be_planned(planned: Plan, tmp_path: Path) -> None:
    saved = TrainConfig(recipe="gone", model=tmp_path, max_context_tokens=64, run_dir=tmp_path)
    network = NetworkConfig(vocab_size=280, width=16, num_layers=1, num_heads=2, num_kv_heads=1, mlp_width=16)
    policy = create_policy([], tmp_path / "model", network=network, keep_whole=(), seed=0)
    policy.save(policy.load_params(None), tmp_path / "model")
    (tmp_path / "config.json").write_text(json.dumps(saved.to_json()), encoding="utf-8")
    printed = planned(f"--resume={tmp_path}", "--max-steps=77")
    assert f"{num_params(policy.model):,} parameters, in {tmp_path / 'model'}" in printed
    assert "77 steps:" in printed
    assert f"run directory {tmp_path}" in printed
