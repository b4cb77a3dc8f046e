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
from agentrl_jax.models.save import save_pretrained
from agentrl_jax.models.hf_config import from_hf_config, to_hf_config
from agentrl_jax.models.load import load_pretrained
from agentrl_jax.models.params import init_params

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


@pytest.mark.parametrize("name", ["tied", "untied"])
def test_what_transformers_wrote_survives_a_round_trip(tmp_path, name):
    config, params = load_pretrained(GOLDEN / name)
    save_pretrained(params, config, tmp_path)
    ours, theirs = load_file(tmp_path / "model.safetensors"), load_file(GOLDEN / name / "model.safetensors")
    assert ours.keys() == theirs.keys()
    for tensor in ours:
        np.testing.assert_array_equal(ours[tensor], theirs[tensor])
    written = json.loads((tmp_path / "config.json").read_text())
    reference = json.loads((GOLDEN / name / "config.json").read_text())
    shared = written.keys() & reference.keys()
    assert {key: written[key] for key in shared} == {key: reference[key] for key in shared}


def split_into_two(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    parts = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    for file, members in parts.items():
        save_file({name: tensors[name] for name in members}, folder / file)
    weight_map = {name: file for file, members in parts.items() for name in members}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / "model.safetensors").unlink()


def test_sharded_checkpoints_are_read(tmp_path):
    params = init_params(CONFIG, 4)
    save_pretrained(params, CONFIG, tmp_path)
    split_into_two(tmp_path)
    assert_same_bits(load_pretrained(tmp_path)[1], params)
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"b\.safetensors"):
        load_pretrained(tmp_path)


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


def test_older_files_say_less():
    old = {
        "model_type": "qwen2",
        "vocab_size": 13,
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 10,
        "rope_theta": 1e6,
        "sliding_window": 99,
        "use_sliding_window": False,
    }
    config = from_hf_config(old, source="x")
    assert (config.head_dim, config.rope_theta, config.tie_embeddings) == (2, 1e6, False)


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "mixtral"},
        {"hidden_act": "gelu"},
        {"use_sliding_window": True},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6}},
        {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": None},
        {"quantization_config": {"bits": 4}},
        {"vocab_size": None},
    ],
)
def test_what_we_do_not_compute_is_refused(changes):
    data = to_hf_config(CONFIG, dtype="float32")
    assert from_hf_config(data, source="x") == CONFIG
    with pytest.raises(ConfigError, match=next(iter(changes)).split("_")[0]):
        from_hf_config(data | changes, source="the file")
