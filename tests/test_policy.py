"""A policy folder: opened without its weights, loaded where they are wanted, and saved as it came."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest

from agentrl_jax.env import Message, Tool
from agentrl_jax.errors import ConfigError
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.params import Params, init_params
from agentrl_jax.models.save import save_pretrained
from agentrl_jax.policy import NetworkConfig, check_model_folder, create_policy, open_policy
from agentrl_jax.rendering.config import RenderingConfig
from agentrl_jax.rendering.templates import TEMPLATES
from agentrl_jax.rendering.transcript import TemplateRenderer
from agentrl_jax.sharding import make_mesh, parse_mesh
from tests.models.test_gguf_file import write

NETWORK = NetworkConfig(vocab_size=280, width=16, num_layers=1, num_heads=2, num_kv_heads=1, mlp_width=16)
GENERATION = {"eos_token_id": [2, 3], "temperature": 0.7}


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    create_policy([], folder, network=NETWORK, keep_whole=(), seed=0)
    return folder


def imported(folder: Path, tokenizer_folder: Path) -> tuple[ModelConfig, Params]:
    """A bfloat16 GLM checkpoint as a hub would have it."""
    model = replace(
        NETWORK.model_config(280), family="glm4", qkv_bias=False, rotary_frac=0.5, tie_embeddings=False, head_dim=8
    )
    params = jax.tree.map(lambda leaf: leaf.astype(ml_dtypes.bfloat16), init_params(model, 3))
    save_pretrained(params, model, folder, source=tokenizer_folder, max_file_bytes=5_000)
    described = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(described | {"eos_token_id": [2, 3], "pad_token_id": 0}))
    (folder / "generation_config.json").write_text(json.dumps(GENERATION))
    return model, params


def test_a_fresh_policy_is_drawn_from_its_seed(tokenizer_folder: Path, tmp_path: Path) -> None:
    policies = [create_policy([], tmp_path, network=NETWORK, keep_whole=(), seed=seed) for seed in (0, 0, 1)]
    first, again, other = (policy.load_params(None)["embed"]["embedding"] for policy in policies)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert policies[0].dtype == "float32"


def test_a_system_message_that_conversations_share_is_one_token_with_its_tools(tmp_path: Path) -> None:
    tool = Tool(name="look", description="Look.", parameters={"type": "object"})
    asked = Message(role="user", content="Where is it?")
    shared = ((Message(role="system", content="Look it up."), asked), (tool,))
    rare = ((Message(role="system", content="Say where it is."), asked), ())
    policy = create_policy([shared] * 98 + [rare], tmp_path, network=NETWORK, keep_whole=(), seed=0)
    renderer = TemplateRenderer(policy.tokenizer, tools=(tool,))
    lengths = [len(renderer.prompt(*conversation)) for conversation in (shared, rare, ((asked,), ()))]
    # <|im_start|>, system\n (7 bytes at most), the block, <|im_end|>, \n
    assert lengths[0] - lengths[2] <= 1 + 7 + 1 + 1 + 1
    assert lengths[1] - lengths[2] > 11


def test_a_system_message_that_one_conversation_has_is_read_however_few_there_are(tmp_path: Path) -> None:
    conversations = [
        ((Message(role="system", content=f"You are in room {room}."), Message(role="user", content="Go.")), ())
        for room in range(4)
    ]
    policy = create_policy(conversations, tmp_path, network=NETWORK, keep_whole=(), seed=0)
    assert all(len(policy.tokenizer.encode(f"You are in room {room}.")) > 1 for room in range(4))


def test_an_imported_policy_leaves_as_it_came(tokenizer_folder: Path, tmp_path: Path) -> None:
    model, params = imported(tmp_path / "in", tokenizer_folder)
    policy = open_policy(tmp_path / "in")
    assert (policy.model, policy.dtype) == (model, "bfloat16")
    trained = jax.tree.map(lambda leaf: leaf.astype(np.float32), policy.load_params(None))
    policy.save(trained, tmp_path / "out")
    again = open_policy(tmp_path / "out")
    assert (again.model, again.dtype) == (model, "bfloat16")
    jax.tree.map(np.testing.assert_array_equal, again.load_params(None), params)
    described = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (described["eos_token_id"], described["pad_token_id"], described["bos_token_id"]) == ([2, 3], 0, None)
    assert described["dtype"] == "bfloat16"
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text()) == GENERATION
    assert again.tokenizer.encode("Zürich") == policy.tokenizer.encode("Zürich")


def test_params_are_placed_on_a_mesh_in_their_own_precision(tokenizer_folder: Path, tmp_path: Path) -> None:
    _, params = imported(tmp_path, tokenizer_folder)
    mesh = make_mesh(parse_mesh("fsdp=2,tensor=2"))
    placed = open_policy(tmp_path).load_params(mesh)
    jax.tree.map(np.testing.assert_array_equal, placed, params)
    kernel = placed["layers"]["mlp"]["gate_up"]["kernel"]
    assert kernel.sharding.mesh == mesh
    assert kernel.addressable_shards[0].data.shape == (1, 8, 2, 8)


def test_a_policy_may_be_saved_over_itself(tokenizer_folder: Path, tmp_path: Path) -> None:
    imported(tmp_path, tokenizer_folder)
    policy = open_policy(tmp_path)
    policy.save(jax.tree.map(lambda leaf: leaf * 2, policy.load_params(None)), tmp_path)
    doubled = policy.load_params(None)["final_norm"]["scale"]
    np.testing.assert_array_equal(doubled, np.full(16, 2))
    assert json.loads((tmp_path / "config.json").read_text())["eos_token_id"] == [2, 3]


def test_a_gguf_file_without_a_tokenizer_needs_one_beside_it(tokenizer_folder: Path, tmp_path: Path) -> None:
    write(tmp_path / "model.gguf", "llama")
    check_model_folder(tmp_path)
    with pytest.raises(ConfigError, match=r"put the model's tokenizer\.json and tokenizer_config\.json beside it"):
        open_policy(tmp_path)
    for file in tokenizer_folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    check_model_folder(tmp_path)
    with pytest.raises(ConfigError, match=r"has 2\d\d ids, but the model only 64 embeddings"):
        open_policy(tmp_path)


def test_a_policy_takes_its_tokenizer_and_template_along_wherever_they_are_from(
    tokenizer_folder: Path, tmp_path: Path
) -> None:
    imported(tmp_path / "in", tokenizer_folder)
    rendering = RenderingConfig(chat_template="hermes")
    policy = replace(open_policy(tmp_path / "in"), tokenizer_folder=tmp_path, rendering=rendering)
    policy.save(policy.load_params(None), tmp_path / "out")
    again = open_policy(tmp_path / "out")
    assert again.rendering == rendering
    assert again.tokenizer.chat_template == TEMPLATES["hermes"] != policy.tokenizer.chat_template
    text = "<|im_start|>user\nx  y<|im_end|>"
    assert again.tokenizer.encode(text) == policy.tokenizer.encode(text)
    assert again.tokenizer.eos_tokens == policy.tokenizer.eos_tokens


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json, tokenizer\.json, model\.safetensors or its index"):
        open_policy(tmp_path)


def test_a_run_directory_is_pointed_to_its_policy(tokenizer_folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "my run"
    imported(run / "model", tokenizer_folder)
    (run / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"index; a run's policy is in --model '.*/my run/model'$"):
        open_policy(run)
