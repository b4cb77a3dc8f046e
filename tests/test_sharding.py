"""Mesh names and the rules that place arrays on a mesh."""

import subprocess
import sys

import jax
import pytest
from jax.sharding import PartitionSpec as P

from agentrl_jax import sharding
from agentrl_jax.errors import ConfigError
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.params import build_tree, param_specs
from agentrl_jax.sharding import (
    RULES,
    MeshShape,
    check_axes,
    check_rows,
    constrain,
    local_rows,
    make_mesh,
    parse_mesh,
    partition,
)

LARGE = ModelConfig(
    vocab_size=1024, width=256, num_layers=2, num_heads=8, num_kv_heads=4, head_dim=32, mlp_width=512,
    tie_embeddings=False,
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("1", MeshShape()),
        ("16", MeshShape(fsdp=16)),
        ("data=2,fsdp=4,tensor=2", MeshShape(data=2, fsdp=4, tensor=2)),
        ("tensor=2, data=3", MeshShape(data=3, tensor=2)),
        ("fsdp=8", MeshShape(fsdp=8)),
    ],
)
def test_meshes_are_parsed(text, shape):
    assert parse_mesh(text) == shape


@pytest.mark.parametrize(
    "text",
    ["", "0", "-1", "1.5", "two", "²", "data=3,foo=2", "data=2,data=2", "data=", "=4", "data=0", "4,2", "8,tensor=2",
     "data=2,", "data=2=3", ",", "=", "data", "data=2;fsdp=2", "data:2", "+4", "0x10", "1e1", "1_6", "4 4",
     "\uff14", "inf", "Data=2", "data=-1", "data=2,tensor=", "9" * 5000, "data=" + "9" * 5000, "None", "auto", "16,16"],
)  # fmt: skip
def test_wrong_meshes_are_refused_with_one_message(text):
    with pytest.raises(ConfigError, match=r"mesh must be a number of devices like 16, or sizes .* got ") as caught:
        parse_mesh(text)
    assert repr(text) in str(caught.value)


def test_parsing_needs_no_jax():
    code = "import sys; from agentrl_jax.sharding import parse_mesh; parse_mesh('16'); sys.exit('jax' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_counts():
    shape = MeshShape(data=2, fsdp=4, tensor=2)
    assert (shape.num_devices, shape.num_row_shards) == (16, 8)
    with pytest.raises(ConfigError, match="tensor must be >= 1, got 0"):
        MeshShape(tensor=0)


def test_too_few_devices_names_both_numbers():
    available = jax.device_count()
    with pytest.raises(ConfigError, match=rf"needs {available * 2} devices, but JAX sees {available} \(cpu\)"):
        make_mesh(MeshShape(data=2, fsdp=available))


def test_mesh_takes_the_first_devices():
    mesh = make_mesh(MeshShape(data=2, tensor=3))
    assert dict(mesh.shape) == {"data": 2, "fsdp": 1, "tensor": 3}
    assert set(mesh.devices.flat) == set(jax.devices()[:6])


def test_every_process_must_hold_some_of_the_mesh(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ConfigError, match=r"a mesh of 2 devices is held by 1 of 2 processes.*name a larger --mesh"):
        make_mesh(MeshShape(fsdp=2))


@pytest.mark.parametrize(("held", "piece"), [([(0, 2), (2, 4)], slice(0, 4)), ([(4, 6), (6, 8)], slice(4, 8))])
def test_a_process_gives_the_rows_of_its_devices(held, piece, monkeypatch):
    hold(held, monkeypatch)
    assert local_rows(make_mesh(MeshShape(fsdp=4)), 8) == piece


def test_a_process_must_hold_its_rows_in_one_piece(monkeypatch):
    hold([(0, 2), (4, 6)], monkeypatch)
    with pytest.raises(ConfigError, match=r"hold rows \[\(0, 2\), \(4, 6\)\] of 8, which are not one piece"):
        local_rows(make_mesh(MeshShape(fsdp=4)), 8)


def hold(pieces, monkeypatch):
    """Let this process's devices hold these rows, as they do on a mesh of several processes."""

    class Held:
        def addressable_devices_indices_map(self, shape):
            return {number: (slice(*piece), slice(None)) for number, piece in enumerate(pieces)}

    monkeypatch.setattr(sharding, "named_sharding", lambda *_: Held())


@pytest.mark.parametrize(("rows", "fits"), [(8, True), (16, True), (4, False), (12, False), (0, False)])
def test_rows_must_split_evenly(rows, fits):
    shape = MeshShape(data=2, fsdp=4, tensor=2)
    if fits:
        check_rows(rows, shape)
    else:
        with pytest.raises(ConfigError, match=rf"multiple of data\*fsdp = 8.* got {rows}"):
            check_rows(rows, shape)


def test_each_leaf_lies_where_the_table_says():
    sizes = {"data": 2, "fsdp": 4, "tensor": 2}
    specs = build_tree(LARGE, lambda spec: partition(spec.axes, spec.shape, sizes))
    tensor, fsdp = ("tensor",), ("fsdp",)
    assert specs["embed"]["embedding"] == P(("tensor", "fsdp"), None)
    assert specs["lm_head"]["kernel"] == P(fsdp, tensor)
    assert specs["layers"]["attention"]["q"] == {
        "kernel": P(None, fsdp, tensor, None),
        "bias": P(None, tensor, None),
    }
    assert specs["layers"]["attention"]["o"]["kernel"] == P(None, tensor, None, fsdp)
    assert specs["layers"]["mlp"]["gate"]["kernel"] == P(None, fsdp, tensor)
    assert specs["layers"]["mlp"]["down"]["kernel"] == P(None, tensor, fsdp)
    assert specs["layers"]["input_norm"]["scale"] == P(None, None)
    assert partition(("rows", None), (8, 5), sizes) == P(("data", "fsdp"), None)


def test_what_does_not_divide_is_not_split():
    sizes = {"data": 1, "fsdp": 4, "tensor": 4}
    assert partition(("width", "kv_heads", "head_dim"), (256, 2, 8), sizes) == P(("fsdp",), None, None)
    # A vocabulary that does not divide leaves fsdp to the width.
    assert partition(("vocab", "vocab_width"), (1001, 256), sizes) == P(None, ("fsdp",))


def test_two_axes_of_an_array_cannot_share_a_mesh_axis():
    with pytest.raises(ConfigError, match="'heads' and 'mlp' of one array are both split over mesh axis 'tensor'"):
        check_axes(("width", "heads", None, "mlp"))
    with pytest.raises(ConfigError, match="'width' and 'width' of one array"):
        check_axes(("width", "width"))
    with pytest.raises(ConfigError, match=r"'widht' has no rule; .* knows rows, vocab"):
        partition(("widht",), (4,), {"data": 1, "fsdp": 2, "tensor": 1})
    check_axes(("rows", "head_vocab", None, "head_dim"))


def test_a_wrong_rule_is_refused(monkeypatch):
    monkeypatch.setitem(RULES, "mlp", ("fsdp", "model"))
    with pytest.raises(ConfigError, match="rule of logical axis 'mlp' names 'model'; mesh axes are data, fsdp, tensor"):
        check_axes(("mlp",))
    monkeypatch.setitem(RULES, "mlp", ("fsdp",))
    with pytest.raises(ConfigError, match="'width' and 'mlp' of one array"):
        param_specs(LARGE)


def test_constraints_are_nothing_without_a_mesh():
    array = jax.numpy.ones((4, 3))
    assert constrain(array, "rows", None) is array
