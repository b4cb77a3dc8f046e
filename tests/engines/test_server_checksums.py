"""What a server must hash to: against hashes of arrays that this test fuses, splits and pads itself."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import trio

from agentrl_jax.engines.http import open_http_client
from agentrl_jax.engines.http_server import Answer, HttpRequest
from agentrl_jax.engines.server_checksums import Layout, bytes_hash, check_server, shards, words_hash
from agentrl_jax.engines.sglang_weights import RankChecksums, ServerWeights
from agentrl_jax.errors import EngineError
from tests.engines.http_fakes import connect_to
from tests.engines.weight_fakes import NUM_KV_HEADS, exports_in, in_buckets, random_arrays

LAYER = "model.layers.0."


def sha(*arrays: Any) -> str:
    return sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()[:16]


def fused(arrays: dict[str, Any], rank: int = 0, size: int = 1) -> dict[str, str]:
    """As SGLang holds them: written out, without loops over names."""
    a = {name.removeprefix(LAYER): array for name, array in arrays.items()}

    def rows(array: Any) -> Any:
        step = len(array) // size
        return array[rank * step : (rank + 1) * step]

    def heads(array: Any) -> Any:  # of keys and values: two heads of two rows; each on two ranks where there are four
        return rows(array) if size <= 2 else array[2 * (rank // 2) : 2 * (rank // 2) + 2]

    def columns(array: Any) -> Any:
        step = array.shape[1] // size
        return array[:, rank * step : (rank + 1) * step]

    padded = np.zeros((64, 8), a["model.embed_tokens.weight"].dtype)
    padded[:10] = a["model.embed_tokens.weight"]
    qkv = {
        kind: [
            rows(a[f"self_attn.q_proj.{kind}"]),
            heads(a[f"self_attn.k_proj.{kind}"]),
            heads(a[f"self_attn.v_proj.{kind}"]),
        ]
        for kind in ("weight", "bias")
    }
    return {
        "model.embed_tokens.weight": sha(rows(padded)),
        f"{LAYER}input_layernorm.weight": sha(a["input_layernorm.weight"]),
        f"{LAYER}self_attn.qkv_proj.weight": sha(*qkv["weight"]),
        f"{LAYER}self_attn.qkv_proj.bias": sha(*qkv["bias"]),
        f"{LAYER}self_attn.o_proj.weight": sha(columns(a["self_attn.o_proj.weight"])),
        f"{LAYER}self_attn.q_norm.weight": sha(a["self_attn.q_norm.weight"]),
        f"{LAYER}mlp.gate_up_proj.weight": sha(rows(a["mlp.gate_proj.weight"]), rows(a["mlp.up_proj.weight"])),
        f"{LAYER}mlp.down_proj.weight": sha(columns(a["mlp.down_proj.weight"])),
        "model.norm.weight": sha(a["model.norm.weight"]),
    }


def answer(checksums: dict[str, str], rank: int = 0, size: int = 1) -> RankChecksums:
    places = [{"tp_rank": rank, "tp_size": size}]
    return msgspec.convert({"checksums": checksums, "parallelism_info": places}, RankChecksums)


@pytest.fixture
def arrays() -> dict[str, Any]:
    return random_arrays(7)


def check(tmp_path: Path, arrays: dict[str, Any], *ranks: RankChecksums, vocab_multiple: int = 64) -> int:
    with exports_in(tmp_path / "e") as exports:
        export = exports.write(1, in_buckets(arrays))
        return check_server(export, ranks, num_kv_heads=NUM_KV_HEADS, device="cpu", vocab_multiple=vocab_multiple)


@pytest.mark.parametrize("size", [1, 2])
def test_every_tensor_of_every_rank_is_compared(tmp_path: Path, arrays: dict[str, Any], size: int) -> None:
    compared = check(tmp_path, arrays, *(answer(fused(arrays, rank, size), rank, size) for rank in range(size)))
    whole = sum(array.nbytes for array in arrays.values()) + 54 * 8 * 4  # the vocabulary's padding
    norms = (8 + 8 + 4) * 4
    assert compared == whole + (size - 1) * norms


def test_a_key_head_may_be_held_by_several_ranks(tmp_path: Path, arrays: dict[str, Any]) -> None:
    layout = Layout(num_kv_heads=NUM_KV_HEADS, vocab_multiple=64)
    with exports_in(tmp_path / "e") as exports:
        export = exports.write(1, in_buckets(arrays))
        for rank in range(4):
            names = [f"{LAYER}self_attn.{name}_proj.weight" for name in "qkv"]
            parts = [part for name in names for part in shards(name, export.read(name), layout, rank, 4)]
            assert bytes_hash(parts) == fused(arrays, rank, 4)[f"{LAYER}self_attn.qkv_proj.weight"]


def test_tensors_that_a_server_does_not_fuse_are_compared_as_they_are(tmp_path: Path, arrays: dict[str, Any]) -> None:
    check(tmp_path, arrays, answer({name: sha(array) for name, array in arrays.items()}), vocab_multiple=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({f"{LAYER}mlp.down_proj.weight": "0" * 16}, r"its model.layers.0.mlp.down_proj.weight is another"),
        ({"model.extra": "0" * 16}, "nothing was published for its model.extra"),
        ({"model.norm.weight": None}, "it lacks model.norm.weight"),
    ],
)
def test_any_tensor_that_differs_is_named(
    tmp_path: Path, arrays: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    checksums = {name: value for name, value in {**fused(arrays), **change}.items() if value is not None}
    with pytest.raises(EngineError, match=message):
        check(tmp_path, arrays, answer(checksums))


@pytest.mark.parametrize("places", [[], [(0, 2)], [(1, 2), (1, 2)], [(0, 1), (1, 2)], [(2, 2), (0, 2), (1, 2)]])
def test_ranks_that_are_not_all_of_a_servers_prove_nothing(
    tmp_path: Path, arrays: dict[str, Any], places: list[tuple[int, int]]
) -> None:
    ranks = [answer(fused(arrays, 0, size), rank, size) for rank, size in places]
    with pytest.raises(EngineError, match=r"expected hashes of each of its ranks, got (none|\d of \d)"):
        check(tmp_path, arrays, *ranks)


def test_a_layout_that_cannot_be_is_an_engine_error(tmp_path: Path, arrays: dict[str, Any]) -> None:
    ranks = [answer(fused(arrays), rank, 3) for rank in range(3)]
    with pytest.raises(EngineError, match=r"q_proj.weight of shape \(8, 8\) cannot be split into 3 equal parts"):
        check(tmp_path, arrays, *ranks, vocab_multiple=3)


@pytest.mark.parametrize(
    "rank",
    [
        {"checksums": {}},
        {"checksums": {}, "parallelism_info": []},
        {"checksums": {}, "parallelism_info": {"tp_rank": 0}},
        {"checksums": {}, "parallelism_info": [{"tp_rank": -1, "tp_size": 1}]},
        {"checksums": {}, "parallelism_info": {"tp_rank": 0, "tp_size": 0}},
        {"checksums": {"w": None}, "parallelism_info": {"tp_rank": 0, "tp_size": 1}},
        {"parallelism_info": {"tp_rank": 0, "tp_size": 1}},
        "rank",
    ],
)
async def test_a_malformed_rank_is_an_engine_error(nursery: trio.Nursery, rank: Any) -> None:
    async def handle(request: HttpRequest) -> Answer:
        await trio.lowlevel.checkpoint()
        return Answer(body=msgspec.json.encode({"success": True, "ranks": [rank], "per_engine_checksum": "0"}))

    async with open_http_client("http://e", connect=connect_to(nursery, lambda: handle)) as client:
        with pytest.raises(EngineError, match="expected JSON, got"):
            await ServerWeights(client, "e").checksums()
    nursery.cancel_scope.cancel()


def test_a_head_of_its_own_that_the_server_ties_to_its_embedding_is_the_embedding(
    tmp_path: Path, arrays: dict[str, Any]
) -> None:
    checksums = fused(arrays)
    checksums["lm_head.weight"] = checksums["model.embed_tokens.weight"]
    check(tmp_path, arrays, answer(checksums))


def scalar_words_hash(data: bytes) -> str:
    """One word at a time, with Python's own integers."""

    def mix(x: int) -> int:
        x ^= x >> 16
        x = x * 0x85EBCA6B & 0xFFFFFFFF
        x ^= x >> 13
        x = x * 0xC2B2AE35 & 0xFFFFFFFF
        return x ^ x >> 16

    def rotated(x: int, bits: int) -> int:
        return (x << bits | x >> (32 - bits)) & 0xFFFFFFFF

    data += b"\0" * (-len(data) % 4)
    words = [int.from_bytes(data[i : i + 4], "little") for i in range(0, len(data), 4)]
    seeds = 0x243F6A88, (0x243F6A88 * 0x9E3779B1 ^ 0xDEADBEEF) & 0xFFFFFFFF
    total = 0
    for begin in range(0, len(words), 8192):
        sums = [0, 0]
        for index in range(begin, min(begin + 8192, len(words))):
            for k, (factor, bits) in enumerate(((0x27D4EB2D, 15), (0x165667B1, 13))):
                place = (index * factor + seeds[k] & 0xFFFFFFFF) ^ rotated(index, bits)
                sums[k] += mix(words[index] ^ place)
        halves = [mix((s & 0xFFFFFFFF) ^ len(words) * 4) for s in sums]
        total += halves[0] << 32 | halves[1]
    x = total & (1 << 64) - 1
    for bits, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ x >> bits) * factor & (1 << 64) - 1
    return f"{x ^ x >> 31:016x}"


@pytest.mark.parametrize("num_bytes", [1, 4, 4 * 8192, 4 * 8192 + 2, 4 * (2 * 8192 + 300)])
def test_the_hash_of_gpus_is_the_one_word_at_a_time(num_bytes: int) -> None:
    data = np.random.default_rng(num_bytes).integers(0, 256, num_bytes, dtype=np.uint8)
    cut = num_bytes // 3
    assert words_hash([data[:cut], data[cut:]]) == scalar_words_hash(data.tobytes())
    changed = data.copy()
    changed[-1] ^= 1
    assert words_hash([changed]) != words_hash([data])


def test_nothing_hashes_to_zero_on_a_gpu() -> None:
    assert words_hash([np.zeros(0, np.uint8)]) == "0" * 16


@pytest.mark.parametrize("size", [1, 2])
def test_a_server_on_a_cpu_widens_the_mlp_with_zeros(tmp_path: Path, size: int) -> None:
    arrays = random_arrays(0)
    gate, up, down = (arrays[f"{LAYER}mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))  # six wide
    wide = {1: 8, 2: 16}[size]  # to a multiple of eight on each rank
    zeros = np.zeros((wide - 6, 8), np.float32)
    ranks = []
    for rank in range(size):
        own = slice(rank * wide // size, (rank + 1) * wide // size)
        widened = {
            f"{LAYER}mlp.gate_up_proj.weight": sha(
                np.concatenate([gate, zeros])[own], np.concatenate([up, zeros])[own]
            ),
            f"{LAYER}mlp.down_proj.weight": sha(np.concatenate([down, zeros.T], axis=1)[:, own]),
        }
        ranks.append(answer(fused(arrays, rank, size) | widened, rank, size))
    settings: dict[str, Any] = {"num_kv_heads": NUM_KV_HEADS, "device": "cpu", "vocab_multiple": 64}
    with exports_in(tmp_path / "exports") as exports:
        export = exports.write(0, in_buckets(arrays))
        check_server(export, ranks, **settings, mlp_multiple=8)
        with pytest.raises(EngineError, match="down_proj"):
            check_server(export, ranks, **settings)
