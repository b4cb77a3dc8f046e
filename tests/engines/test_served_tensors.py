"""Tensors in requests: what torch and SGLang's own classes have pickled is read, and nothing else is."""

import pickle
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from agentrl_jax.engines.http import open_http_client
from agentrl_jax.engines.served_tensors import read_tensors
from agentrl_jax.engines.transports.torch_pickle import flattened_bucket
from agentrl_jax.engines.weight_folder import tensor_shapes
from agentrl_jax.errors import ConfigError, EngineError
from agentrl_jax.testing.engine import FakeEngine
from tests.engines.served_engines import FAKE_MODEL, Host
from tests.engines.test_server import Served

GOLDEN = Path(__file__).parent / "golden" / "torch_payloads.json"
WEIGHTS = {"w": np.arange(6, dtype=np.float32).reshape(2, 3)}


def payload(tensors: dict[str, Any]) -> str:
    return flattened_bucket([(name, array.shape, array.view(np.uint32)) for name, array in tensors.items()], "float32")


@pytest.mark.parametrize("kind", ["list", "flattened_bucket"])
def test_what_torch_has_pickled(kind: str) -> None:
    found = read_tensors(msgspec.json.decode(GOLDEN.read_bytes())[kind])
    assert {name: tensor.dtype for name, tensor in found.items()} == {
        "a.weight": np.float32,
        "b": ml_dtypes.bfloat16,
        "c": np.float16,
    }
    assert found["a.weight"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found["b"].tolist() == [1.5, -2.0]
    assert found["c"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("kind", "said"), [("transposed", "contiguous"), ("shared_memory", "rebuild_tensor has no place")]
)
def test_what_torch_has_pickled_in_ways_that_are_not_read(kind: str, said: str) -> None:
    with pytest.raises(EngineError, match=said):
        read_tensors(msgspec.json.decode(GOLDEN.read_bytes())[kind])


def test_what_this_package_sends() -> None:
    found = read_tensors(payload(WEIGHTS | {"v": np.ones(5, np.float32)}))
    np.testing.assert_array_equal(found["w"], WEIGHTS["w"])
    assert found["v"].tolist() == [1] * 5


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([("w", print)], "builtins.print has no place"),
        ([("w", Path("x"))], "has no place"),
        ([("w", 3)], "'w' is a int"),
        ([(3, "w")], "3 is a str"),
        ({"flattened_tensor": 1}, "expected"),
        ({"flattened_tensor": 1, "metadata": []}, "no attribute"),
        (7, "holds no tensors"),
    ],
)
def test_other_pickles_are_refused(value: Any, said: str) -> None:
    with pytest.raises(EngineError, match=said):
        read_tensors(b64encode(pickle.dumps(value)).decode())


def test_a_name_that_comes_twice() -> None:
    single = msgspec.json.decode(GOLDEN.read_bytes())["list"]
    twice = b64decode(single).replace(b"\x8c\x01c", b"\x8c\x01b")
    with pytest.raises(EngineError, match="names a tensor twice"):
        read_tensors(b64encode(twice).decode())


@given(st.integers(0, 400), st.binary(min_size=1, max_size=3))
def test_a_damaged_payload_is_refused_or_read_but_never_more(position: int, damage: bytes) -> None:
    raw = bytearray(b64decode(payload(WEIGHTS)))
    raw[position : position + len(damage)] = damage
    try:
        found = read_tensors(b64encode(bytes(raw)).decode())
    except EngineError:
        return
    assert all(isinstance(tensor, np.ndarray) for tensor in found.values())


def load(folder: Path) -> dict[str, float]:
    """As weights: the sum of every tensor."""
    shapes = tensor_shapes(folder)
    if set(shapes) != {"w", "v"}:
        raise ConfigError(f"expected the tensors v and w, got {sorted(shapes)}")
    return {"served": float(sum(np.prod(shape) for shape in shapes.values()))}


@pytest.fixture
async def served(nursery: trio.Nursery) -> AsyncIterator[Served]:
    engine = FakeEngine(accepts=lambda weights: weights["served"] == 7)
    host = Host(nursery)
    hashes = lambda weights: {"w": f"{weights['served']:016.1f}", "v": "0" * 16}  # noqa: E731
    host.serve(engine, replace(FAKE_MODEL, load_weights=load, hash_weights=hashes))
    async with open_http_client("http://e", connect=host.connect) as client:
        yield Served(engine, host, client)


async def send(served: Served, tensors: dict[str, Any], status: int = 200, **fields: Any) -> Any:
    body = {"serialized_named_tensors": [payload(tensors)], "load_format": "flattened_bucket"} | fields
    return await served.post("/update_weights_from_tensor", body, status=status)


async def test_buckets_are_served_together_when_the_update_ends(served: Served) -> None:
    await served.post("/begin_weight_update", {})
    await send(served, WEIGHTS)
    assert served.engine.version == 0
    await send(served, {"v": np.ones(1, np.float32)}, weight_version="8")
    await send(served, {"v": np.ones(1, np.float32)}, weight_version="8")  # repeated: one effect
    assert served.engine.version == 0
    await served.post("/end_weight_update", {})
    assert served.engine.version == 8
    assert (await served.get("/model_info"))["weight_version"] == "8"
    checked = await served.post("/weights_checker", {"action": "checksum"})
    assert checked["ranks"][0]["checksums"] == {"w": "00000000000007.0", "v": "0" * 16}
    assert checked["per_engine_checksum"] == checked["ranks"][0]["per_gpu_checksum"] != ""
    await served.post("/weights_checker", {"action": "reset_tensors"}, status=400)


async def test_an_update_that_lacks_tensors_leaves_the_old_weights(served: Served) -> None:
    await served.post("/begin_weight_update", {})
    await send(served, WEIGHTS, weight_version="8")
    said = (await served.post("/end_weight_update", {}, status=400))["message"]
    assert said == "expected the tensors v and w, got ['w']"
    await served.post("/begin_weight_update", {})
    await send(served, WEIGHTS | {"v": np.ones(9, np.float32)}, weight_version="8")
    assert "do not fit" in (await served.post("/end_weight_update", {}, status=400))["message"]
    assert served.engine.version == 0


async def test_tensors_outside_an_update_and_payloads_that_are_none(served: Served) -> None:
    assert "between begin" in (await send(served, WEIGHTS, status=400))["message"]
    await served.post("/begin_weight_update", {})
    body = {"serialized_named_tensors": ["AAAA"]}
    assert "holds no tensors" in (await served.post("/update_weights_from_tensor", body, status=400))["message"]
    await served.post("/end_weight_update", {})


async def test_a_folder_that_comes_back_after_tensors_is_loaded_again(served: Served, tmp_path: Path) -> None:
    save_file(WEIGHTS | {"v": np.ones(1, np.float32)}, tmp_path / "model.safetensors")
    body = {"model_path": str(tmp_path), "weight_version": "a"}
    await served.post("/update_weights_from_disk", body)
    await served.post("/update_weights_from_disk", body)
    assert served.engine.statistics().num_publishes == 1
    await served.post("/begin_weight_update", {})
    await send(served, WEIGHTS | {"v": np.ones(1, np.float32)}, weight_version="a")
    await served.post("/end_weight_update", {})
    await served.post("/update_weights_from_disk", body)
    assert served.engine.statistics().num_publishes == 3
