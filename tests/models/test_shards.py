"""Checkpoints of several files: written whole or not at all, and read in the parts that a device needs."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from agentrl_jax.errors import ConfigError
from agentrl_jax.models import load
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.export import export_bytes
from agentrl_jax.models.families import hf_entries
from agentrl_jax.models.load import load_pretrained
from agentrl_jax.models.params import init_params, leaf_at
from agentrl_jax.models.save import save_pretrained
from agentrl_jax.sharding import make_mesh, parse_mesh

CONFIG = ModelConfig(
    family="glm4",
    vocab_size=16,
    width=8,
    num_layers=4,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    mlp_width=12,
    rotary_frac=0.5,
    tie_embeddings=False,
)
PARAMS = init_params(CONFIG, 4)
INDEX = "model.safetensors.index.json"


def assert_equal(params, expected):
    jax.tree.map(np.testing.assert_array_equal, params, expected)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_large_checkpoints_are_spread_over_files(tmp_path):
    save_pretrained(PARAMS, CONFIG, tmp_path, max_file_bytes=2_000)
    index = json.loads((tmp_path / INDEX).read_text())
    names = sorted(set(index["weight_map"].values()))
    assert files(tmp_path) == ["config.json", *names, INDEX]
    assert names[0] == f"model-00001-of-{len(names):05}.safetensors"
    assert len(names) > 3
    assert index["metadata"]["total_size"] == export_bytes(CONFIG, dtype="float32")
    assert list(index["weight_map"]) == [name for name, _, _ in hf_entries(CONFIG)]
    for name in names:
        tensors = load_file(tmp_path / name)
        assert set(tensors) == {tensor for tensor, file in index["weight_map"].items() if file == name}
        assert sum(tensor.nbytes for tensor in tensors.values()) <= 2_000
    assert_equal(load_pretrained(tmp_path)[1], PARAMS)


def test_a_save_replaces_the_files_of_another_number(tmp_path):
    for max_file_bytes in (2_000, 10**9, 3_000):
        save_pretrained(PARAMS, CONFIG, tmp_path, max_file_bytes=max_file_bytes)
        assert_equal(load_pretrained(tmp_path)[1], PARAMS)
        weights = [name for name in files(tmp_path) if name.endswith(".safetensors")]
        if max_file_bytes == 10**9:
            assert files(tmp_path) == ["config.json", "model.safetensors"]
        else:
            assert set(json.loads((tmp_path / INDEX).read_text())["weight_map"].values()) == set(weights)


def test_no_crash_leaves_tensors_of_two_checkpoints(tmp_path, monkeypatch):
    old, new = PARAMS, init_params(CONFIG, 5)
    real = Path.replace
    for crash_at in range(30):
        folder = tmp_path / str(crash_at)
        save_pretrained(old, CONFIG, folder, max_file_bytes=2_000)
        left = crash_at

        def replace(self, target):
            nonlocal left
            if left == 0:
                raise OSError("gone")
            left -= 1
            return real(self, target)

        monkeypatch.setattr(Path, "replace", replace)
        try:
            save_pretrained(new, CONFIG, folder, max_file_bytes=2_000)
        except OSError:
            monkeypatch.undo()
            try:
                loaded = load_pretrained(folder)[1]
            except ConfigError:
                continue
            first = loaded["embed"]["embedding"]
            assert_equal(loaded, old if np.array_equal(first, old["embed"]["embedding"]) else new)
        else:
            assert crash_at > 5
            return
        finally:
            monkeypatch.undo()
    pytest.fail("no save came to its end")


def test_a_missing_file_is_named(tmp_path):
    save_pretrained(PARAMS, CONFIG, tmp_path, max_file_bytes=2_000)
    next(tmp_path.glob("model-00002-*")).unlink()
    with pytest.raises(ConfigError, match="model-00002-of"):
        load_pretrained(tmp_path)


def test_a_tensor_in_two_files_is_refused(tmp_path):
    save_pretrained(PARAMS, CONFIG, tmp_path, max_file_bytes=2_000)
    first, second, *_ = sorted(tmp_path.glob("model-*.safetensors"))
    save_file({**load_file(second), **dict([next(iter(load_file(first).items()))])}, second)
    with pytest.raises(ConfigError, match=r"tensor model\.embed_tokens\.weight stands in two files"):
        load_pretrained(tmp_path)


@pytest.mark.parametrize("text", ["{}", '{"weight_map": 3}'])
def test_an_index_that_names_no_file_is_refused(tmp_path, text):
    save_pretrained(PARAMS, CONFIG, tmp_path)
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(ConfigError, match="weight_map"):
        load_pretrained(tmp_path)


class CountingSlice:
    def __init__(self, view, counts, name):
        self.view, self.counts, self.name = view, counts, name

    def __getitem__(self, rectangle):
        part = self.view[rectangle]
        self.counts[self.name] = self.counts.get(self.name, 0) + part.size
        return part


@pytest.mark.parametrize("mesh", ["1", "8", "data=2,fsdp=2,tensor=2"])
def test_a_mesh_reads_each_part_once(tmp_path, mesh, monkeypatch):
    save_pretrained(PARAMS, CONFIG, tmp_path, max_file_bytes=2_000, dtype="bfloat16")
    counts = {}
    read_part = load._read_part

    def counted(spec, index, tensors):
        return read_part(spec, index, {name: CountingSlice(view, counts, name) for name, view in tensors.items()})

    monkeypatch.setattr(load, "_read_part", counted)
    placed_on = make_mesh(parse_mesh(mesh))
    config, params = load_pretrained(tmp_path, mesh=placed_on)
    assert config == CONFIG
    for name, spec, _ in hf_entries(CONFIG):
        leaf = leaf_at(params, spec.path)
        assert str(leaf.dtype) == "bfloat16"
        assert leaf.sharding.mesh == placed_on
        assert counts[name] == np.prod(spec.hf_shape)
    if mesh == "data=2,fsdp=2,tensor=2":
        fused = params["layers"]["mlp"]["gate_up"]["kernel"]
        assert fused.addressable_shards[0].data.shape == (4, 4, 2, 6)
    assert_equal(params, jax.tree.map(lambda leaf: leaf.astype(fused_dtype(params)), PARAMS))


def fused_dtype(params):
    return params["embed"]["embedding"].dtype
