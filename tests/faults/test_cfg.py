"""Published faults of configuration: settings that were misread, ignored, or overruled by others."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from agentrl_jax.algo.advantages import AdvantageConfig
from agentrl_jax.algo.losses import LossConfig
from agentrl_jax.config import TrainConfig
from agentrl_jax.controller.tasks import TaskSampler
from agentrl_jax.engines.local.config import LocalEngineConfig
from agentrl_jax.engines.publish_config import PublishConfig
from agentrl_jax.errors import ConfigError
from agentrl_jax.sharding import parse_mesh
from launch.config import make_families, parse_training
from launch.flags import check_all_known, flag_names


def refused(*flags: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as caught:
        parse_training(flags, program="launch.train")
    assert caught.value.code == 2
    return capsys.readouterr().err


def test_cfg_03_a_typing_error_in_a_section_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    for flag in flag_names(TrainConfig()):
        section, _, name = flag.rpartition(".")
        if section:
            mistyped = f"{section}.{name}x"
            with pytest.raises(ConfigError, match=f"unknown flag {mistyped}=1: did you mean .*{flag}"):
                check_all_known([f"{mistyped}=1"], TrainConfig())
    assert "did you mean --evaluation.num-tasks?" in refused("--evaluation.num-task=3", capsys=capsys)
    with pytest.raises(ConfigError, match="fields that this version does not know: evaluatoin"):
        TrainConfig.from_json({**TrainConfig().to_json(), "evaluatoin": {}})
    saved = TrainConfig().to_json()
    saved["evaluation"] = {**saved["evaluation"], "num_tasks": "many"}
    with pytest.raises(ConfigError, match="does not fit this version"):
        TrainConfig.from_json(saved)


_SERVERS: dict[str, Any] = {"engines": ("sglang:http://a:1",), "lagging_engines": ("sglang:http://b:1",)}


def test_cfg_04_an_option_that_an_engine_does_not_take_is_an_error(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path_factory.mktemp("model")
    for changes in ({"engine": LocalEngineConfig(banned_ids=(3,))}, {"engine_devices": 2}):
        with pytest.raises(ConfigError, match=r"no effect (on|with) servers"):
            TrainConfig(model=model, **_SERVERS, **changes)
        TrainConfig(model=model, **changes)
    with pytest.raises(ConfigError, match="no effect with --engines local"):
        TrainConfig(publish=PublishConfig(mode="drain"))
    TrainConfig(model=model, publish=PublishConfig(mode="drain"), **_SERVERS)
    servers = (f"--model={model}", "--engines", "sglang:http://a:1", "--lagging-engines", "sglang:http://b:1")
    for flag in ("--engine.dtype=bfloat16", "--engine.decode-block=2", "--engine.prefill-shapes 1 8"):
        assert "of no effect on servers" in refused(*servers, *flag.split(" "), capsys=capsys)
        parse_training([f"--model={model}", *flag.split(" ")], program="launch.train")
    assert parse_training([*servers, "--engine.num-slots=7"], program="launch.train")[0].engine.num_slots == 7


_TAKEN = {
    "grpo": {"clip_low", "clip_high", "dual_clip"},
    "gspo": {"clip_low", "clip_high", "dual_clip"},
    "cispo": {"clip_low", "clip_high"},
    "policy_gradient": {"correction_cap"},
}
_OPTIONS = {"clip_low": 0.1, "clip_high": 0.1, "dual_clip": 2.0, "correction_cap": 3.0, "correction_low": 0.6}


@pytest.mark.parametrize(("name", "option"), list(product(_TAKEN, _OPTIONS)))
def test_cfg_04_an_option_of_a_loss_is_used_or_an_error(name: str, option: str) -> None:
    given: dict[str, Any] = {option: _OPTIONS[option]}
    if option in _TAKEN[name]:
        used = LossConfig(name=name, **given).settings
        assert getattr(used, option) == _OPTIONS[option]
        assert used != LossConfig(name=name).settings
    else:
        with pytest.raises(ConfigError, match=f"loss {option} has no effect"):
            LossConfig(name=name, **given)


def test_cfg_04_aggregation_and_kl_are_used_or_an_error() -> None:
    assert LossConfig(aggregation="sequence_mean_token_mean").settings.aggregation == "sequence_mean_token_mean"
    with pytest.raises(ConfigError, match="aggregation has no effect"):
        LossConfig(name="my_loss:loss", aggregation="token_mean")
    with pytest.raises(ConfigError, match="no effect without a kl_coefficient"):
        LossConfig(kl_estimator="k2")
    with pytest.raises(ConfigError, match="discount has no effect"):
        AdvantageConfig(discount=0.5)


@pytest.mark.parametrize(
    "abbreviation", ["--lo=grpo", "--lo.name=grpo", "--max-st=3", "--rec=quickstart", "--dat=/tmp"]
)
def test_cfg_05_flags_cannot_be_abbreviated(abbreviation: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"unknown flag {abbreviation}" in refused(abbreviation, capsys=capsys)


def test_cfg_06_a_limit_of_tasks_holds_where_groups_are_drawn() -> None:
    config = TrainConfig(tasks="kg,alfworld", limit=10)
    sampler = TaskSampler(make_families(config), config.rollout.weights(config.env_names), 0, limit=config.limit)
    drawn = {(task.env, task.index) for task in (sampler.draw() for _ in range(100))}
    assert drawn == {(env, index) for env in ("kg", "alfworld") for index in range(10)}


@pytest.mark.parametrize(
    ("mesh", "rows_per_device"), list(product(("1", "4", "data=2,fsdp=4", "data=2,fsdp=2,tensor=4"), (None, 1, 3)))
)
def test_cfg_07_one_context_and_one_count_of_devices(mesh: str, rows_per_device: int | None) -> None:
    config = TrainConfig(mesh=mesh, rows_per_device=rows_per_device, row_buckets=2).with_context(500)
    context = 512  # a multiple of 32
    sizes = (config.max_context_tokens, config.episode.max_context_tokens, config.engine.cache_tokens)
    assert {*sizes, *config.packing.row_tokens[-1:]} == {context}
    shards = parse_mesh(mesh).num_row_shards  # the tensor axis has no rows of its own
    rows = rows_per_device or max(1, 4 // shards)
    assert config.packing.rows_per_micro_batch == rows * shards
    assert replace(config, temperature=0.5).with_context(500).learner.temperature == 0.5
