"""Checkpoints on disk: bit for bit there and back, and nothing wrong is taken in."""

import json
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from agentrl_jax.errors import ConfigError
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.load import load_pretrained
from agentrl_jax.models.params import init_params
from agentrl_jax.models.save import save_pretrained

GOLDEN = Path(__file__).with_name("golden")
CONFIG = ModelConfig(
    vocab_size=13,
    width=8,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=6,  # not width / num_heads
    mlp_width=10,
    rope_theta=5e5,
    norm_eps=1e-5,
    max_positions=77,
)
UNTIED = ModelConfig(
    vocab_size=13, width=8, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=2, mlp_width=10, tie_embeddings=False
)


def assert_same_bits(first, second):
    def same(a, b):
        assert a.dtype == b.dtype
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()

    jax.tree.map(same, first, second)


@pytest.mark.parametrize("config", [CONFIG, UNTIED], ids=["tied", "untied"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_round_trip_is_exact(tmp_path, config, dtype):
    scalar = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}[dtype]
    params = jax.tree.map(lambda leaf: leaf.astype(scalar), init_params(config, 4))
    save_pretrained(params, config, tmp_path / "new", dtype=dtype)
    loaded_config, loaded = load_pretrained(tmp_path / "new")
    assert loaded_config == config
    assert_same_bits(loaded, params)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["config.json", "model.safetensors"]


def test_params_on_devices_are_saved_alike(tmp_path):
    params = init_params(CONFIG, 4)
    save_pretrained(params, CONFIG, tmp_path / "host")
    save_pretrained(jax.tree.map(jax.device_put, params), CONFIG, tmp_path / "device")
    name = "model.safetensors"
    assert (tmp_path / "host" / name).read_bytes() == (tmp_path / "device" / name).read_bytes()


def all_tensors(folder):
    return {name: array for file in folder.glob("*.safetensors") for name, array in load_file(file).items()}


@pytest.mark.parametrize("name", sorted(path.parent.name for path in GOLDEN.glob("*/logits.npz")))
def test_what_transformers_wrote_survives_a_round_trip(tmp_path, name):
    config, params = load_pretrained(GOLDEN / name)
    save_pretrained(params, config, tmp_path, source=GOLDEN / name)
    ours, theirs = all_tensors(tmp_path), all_tensors(GOLDEN / name)
    assert ours.keys() == theirs.keys()
    for tensor in ours:
        assert ours[tensor].dtype == theirs[tensor].dtype == (ml_dtypes.bfloat16 if name == "llama" else np.float32)
        assert ours[tensor].tobytes() == theirs[tensor].tobytes()
    written = json.loads((tmp_path / "config.json").read_text())
    reference = json.loads((GOLDEN / name / "config.json").read_text())
    shared = written.keys() & reference.keys()
    assert {key: written[key] for key in shared} == {key: reference[key] for key in shared}
    assert (
        not set(reference)
        - set(written)
        - {"pretraining_tp", "layer_types", "max_window_layers"}
        - {"transformers_version"}
    )


def drop(tensors):
    del tensors["model.layers.1.mlp.up_proj.weight"]


def add(tensors):
    tensors["value_head.weight"] = np.zeros((1, 8), np.float32)


def reshape(tensors):
    tensors["model.norm.weight"] = np.zeros((9,), np.float32)


def mix_precision(tensors):
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name] = tensors[name].astype(ml_dtypes.bfloat16)


def use_integers(tensors):
    tensors["model.norm.weight"] = np.ones((8,), np.int32)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (drop, "missing model.layers.1.mlp.up_proj.weight"),
        (add, "unexpected value_head.weight"),
        (reshape, r"model.norm.weight must have shape \(8,\), got \(9,\)"),
        (mix_precision, "the same in all layers; got BF16"),
        (use_integers, "model.norm.weight must be one of BF16, F16, F32.*got I32"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(tmp_path, damage, message):
    save_pretrained(init_params(CONFIG, 4), CONFIG, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    damage(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=message):
        load_pretrained(tmp_path)


def test_a_cut_file_is_refused(tmp_path):
    save_pretrained(init_params(CONFIG, 4), CONFIG, tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ConfigError, match="cannot read the weights"):
        load_pretrained(tmp_path)


def test_a_missing_checkpoint_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"no .*config\.json"):
        load_pretrained(tmp_path / "nowhere")


def test_a_failed_save_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    params = init_params(CONFIG, 4)
    save_pretrained(params, CONFIG, tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()

    def full_disk(_):
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="no space"):
        save_pretrained(init_params(CONFIG, 5), CONFIG, tmp_path)
    monkeypatch.undo()
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert_same_bits(load_pretrained(tmp_path)[1], params)
