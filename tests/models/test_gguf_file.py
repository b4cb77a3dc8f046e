"""GGUF files, written with the gguf package from the golden checkpoints as llama.cpp's converter lays them out."""

import sys
from pathlib import Path

import gguf
import jax
import ml_dtypes
import numpy as np
import pytest

from agentrl_jax.errors import ConfigError
from agentrl_jax.models.export import host_tensors
from agentrl_jax.models.gguf_file import open_gguf
from agentrl_jax.models.load import load_pretrained
from agentrl_jax.models.params import num_params
from agentrl_jax.sharding import make_mesh, parse_mesh

GOLDEN = Path(__file__).with_name("golden")
MODULES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def theirs(name: str, array, num_heads: int | None):
    if num_heads is not None:  # the converter's `permute`, as it is published
        array = array.reshape(num_heads, 2, array.shape[0] // num_heads // 2, *array.shape[1:])
        array = array.swapaxes(1, 2).reshape(-1, array.shape[-1])
    module, _, kind = name.rpartition(".")
    if module.startswith("model.layers."):
        layer, _, module = module.removeprefix("model.layers.").partition(".")
        return f"blk.{layer}.{MODULES[module]}.{kind}", array
    return f"{MODULES[module]}.{kind}", array


def write(path: Path, source: str, *, kind=None, settings=(), leave_out=(), add=()):
    """Write the golden checkpoint `source` to `path`; return its config and params in float32."""
    config, params = load_pretrained(GOLDEN / source)
    architecture = config.family
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_positions)
    writer.add_embedding_length(config.width)
    writer.add_feed_forward_length(config.mlp_width)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_rope_dimension_count(config.head_dim)
    for name, value in settings:
        writer.add_string(f"{architecture}.{name}", value)
    for name, array in host_tensors(params, config, "float32"):
        heads = {"q_proj.weight": config.num_heads, "k_proj.weight": config.num_kv_heads}
        is_permuted = architecture == "llama" and ".self_attn." in name
        tensor, array = theirs(name, array, heads.get(name.split(".self_attn.")[-1]) if is_permuted else None)
        if tensor in leave_out:
            continue
        if kind is not None and array.ndim == 2 and array.shape[1] % 32 == 0:
            writer.add_tensor(tensor, gguf.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(tensor, array)
    for tensor in add:
        writer.add_tensor(tensor, np.ones(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return config, jax.tree.map(lambda leaf: leaf.astype(np.float32), params)


@pytest.mark.parametrize("source", ["llama", "qwen2-untied", "qwen2-tied"])
def test_a_file_is_the_checkpoint_it_was_made_of(tmp_path, source):
    config, params = write(tmp_path / "model.gguf", source)
    read_config, read = load_pretrained(tmp_path)
    assert read_config == config
    jax.tree.map(np.testing.assert_array_equal, read, params)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0"])
def test_tensors_are_dequantised_to_float32(tmp_path, kind):
    _, params = write(tmp_path / "model.gguf", "llama", kind=gguf.GGMLQuantizationType[kind])
    _, read = load_pretrained(tmp_path)
    assert {leaf.dtype for leaf in jax.tree.leaves(read)} == {np.dtype(np.float32)}
    gate = params["layers"]["mlp"]["gate"]["kernel"]
    got = read["layers"]["mlp"]["gate"]["kernel"]
    if kind == "F16":
        np.testing.assert_array_equal(got, gate.astype(np.float16).astype(np.float32))
    elif kind == "BF16":
        np.testing.assert_array_equal(got, gate.astype(ml_dtypes.bfloat16).astype(np.float32))
    else:
        assert 0 < np.abs(got - gate).max() < np.abs(gate).max() / 127
    # Vectors are never quantised.
    np.testing.assert_array_equal(read["final_norm"]["scale"], params["final_norm"]["scale"])


def test_a_folder_with_one_file_is_a_checkpoint_also_on_a_mesh(tmp_path):
    config, params = write(tmp_path / "model.gguf", "llama")
    for mesh in (None, make_mesh(parse_mesh("fsdp=2,tensor=2"))):
        loaded_config, loaded = load_pretrained(tmp_path, mesh=mesh)
        assert loaded_config == config
        jax.tree.map(np.testing.assert_array_equal, loaded, params)
    (tmp_path / "other.gguf").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"one \.gguf file, got model\.gguf, other\.gguf"):
        load_pretrained(tmp_path)


def counting(monkeypatch) -> list[int]:
    """The numbers of each call that dequantises, from now on."""
    counts, dequantize = [], gguf.dequantize

    def counted(data, tensor_type):
        values = dequantize(data, tensor_type)
        counts.append(values.size)
        return values

    monkeypatch.setattr(gguf, "dequantize", counted)
    return counts


@pytest.mark.parametrize(("kind", "num_read"), [(None, 6), ("F16", 6), ("BF16", 6), ("Q8_0", 3 * 32)])
def test_a_part_dequantises_the_blocks_that_hold_it(tmp_path, kind, num_read, monkeypatch):
    write(tmp_path / "model.gguf", "llama", kind=kind and gguf.GGMLQuantizationType[kind])
    _, tensors = open_gguf(tmp_path / "model.gguf")
    for name in ("model.layers.1.mlp.gate_proj.weight", "model.layers.1.self_attn.q_proj.weight"):
        whole = tensors[name][0:32, 0:32]
        counts = counting(monkeypatch)
        np.testing.assert_array_equal(tensors[name][5:8, 30:32], whole[5:8, 30:32])
        assert counts == [num_read]


@pytest.mark.parametrize("kind", [None, "Q8_0"])
@pytest.mark.parametrize("mesh", ["fsdp=2,tensor=2", "8"])
def test_a_mesh_reads_each_part_once(tmp_path, mesh, kind, monkeypatch):
    config, _ = write(tmp_path / "model.gguf", "llama", kind=kind and gguf.GGMLQuantizationType[kind])
    _, whole = load_pretrained(tmp_path)
    counts = counting(monkeypatch)
    _, placed = load_pretrained(tmp_path, mesh=make_mesh(parse_mesh(mesh)))
    jax.tree.map(np.testing.assert_array_equal, placed, whole)
    if kind is None:  # blocks of one number
        assert sum(counts) == num_params(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"settings": [("rope.scaling.type", "yarn")]}, r"settings ask for: rope\.scaling\.type"),
        ({"settings": [("expert_count", "8")]}, "settings ask for: expert_count"),
        ({"leave_out": ["blk.1.attn_q.weight"]}, r"missing \['blk\.1\.attn_q\.weight'\]"),
        ({"leave_out": ["token_embd.weight"]}, "expected token_embd.weight"),
        ({"add": ["rope_freqs.weight"]}, r"unexpected \['rope_freqs\.weight'\]"),
    ],
)
def test_what_we_do_not_compute_is_refused(tmp_path, changes, message):
    write(tmp_path / "model.gguf", "llama", **changes)
    with pytest.raises(ConfigError, match=message):
        open_gguf(tmp_path / "model.gguf")


def test_no_scaling_is_no_scaling(tmp_path):
    config, _ = write(tmp_path / "model.gguf", "llama", settings=[("rope.scaling.type", "none")])
    assert open_gguf(tmp_path / "model.gguf")[0] == config


def test_other_architectures_and_files_are_refused(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "gemma3")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ConfigError, match="must be one of llama, qwen2, got 'gemma3'"):
        open_gguf(tmp_path / "other.gguf")
    (tmp_path / "text.gguf").write_text("no such thing" * 9)
    with pytest.raises(ConfigError, match=r"text\.gguf is no GGUF file"):
        open_gguf(tmp_path / "text.gguf")


def test_without_the_package_the_message_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ConfigError, match="pip install gguf"):
        open_gguf(tmp_path / "model.gguf")
