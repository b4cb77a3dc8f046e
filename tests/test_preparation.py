"""What a run prepares: sizes that fit the model and the demonstrations, or a refusal before anything is trained."""

import json
from pathlib import Path

import pytest

from agentrl_jax.config import TrainConfig
from agentrl_jax.errors import ConfigError
from agentrl_jax.policy import NetworkConfig
from agentrl_jax.preparation import Prepared, prepare
from agentrl_jax.sft import WarmUpConfig
from launch.config import make_families

CONFIG = TrainConfig(
    network=NetworkConfig(width=16, num_layers=1, num_heads=2, num_kv_heads=1, mlp_width=16),
    warm_up=WarmUpConfig(demonstrations=8),
)


def prepared(config: TrainConfig, folder: Path) -> Prepared:
    return prepare(config, make_families(config), folder, lambda line: None)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    policy = prepared(CONFIG, folder / "new").policy
    policy.save(policy.load_params(None), folder / "model")
    return folder / "model"


def changed(**changes: object) -> TrainConfig:
    return TrainConfig(**{"network": CONFIG.network, "warm_up": CONFIG.warm_up, **changes})  # type: ignore[arg-type]


def test_a_context_without_room_for_any_demonstration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none of the 8 demonstrations fits 32 tokens, the shortest has \d+: set"):
        prepared(changed(max_context_tokens=4, level=3), tmp_path)


def test_without_a_warm_up_no_demonstration_needs_to_fit(model_folder: Path, tmp_path: Path) -> None:
    config = prepared(changed(max_context_tokens=4, model=model_folder), tmp_path).config
    assert config.max_context_tokens == config.engine.cache_tokens == config.packing.row_tokens[-1] == 32


def test_a_size_that_only_rounding_takes_past_the_models_positions_is_refused(
    model_folder: Path, tmp_path: Path
) -> None:
    described = json.loads((model_folder / "config.json").read_text())
    (model_folder / "config.json").write_text(json.dumps(described | {"max_position_embeddings": 700}))
    with pytest.raises(ConfigError, match=r"up to 704 tokens do not fit the model's 700 positions"):
        prepared(changed(max_context_tokens=690, model=model_folder), tmp_path)
    assert prepared(changed(max_context_tokens=672, model=model_folder), tmp_path).config.max_context_tokens == 672
