"""What a server's tensors must hash to, computed on our side from an export. No jax.

SGLang fuses tensors as it loads them (q, k and v; gate and up), splits them over its ranks, and rounds the vocabulary
up, on a CPU the width of the MLP too. Its `/weights_checker` hashes what it ends up with, by its own names. Each of
those is rebuilt here from the export.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from agentrl_jax.engines.exports import Export
from agentrl_jax.engines.sglang_weights import RankChecksums
from agentrl_jax.errors import EngineError

Words: TypeAlias = npt.NDArray[Any]
Hash: TypeAlias = Callable[[Sequence[Words]], str]
"""Hash of the bytes of the arrays, one after the other, as 16 hex digits."""

_FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
_BY_INPUTS = ("o_proj.weight", "down_proj.weight")  # split along the inputs; all else along the outputs
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_MAX_SHOWN = 3


def check_server(
    export: Export,
    ranks: Sequence[RankChecksums],
    *,
    num_kv_heads: int,
    device: str,
    vocab_multiple: int,
    mlp_multiple: int = 1,
) -> int:
    """Raise EngineError unless every tensor of every rank is what `export` makes of it; return the bytes compared.

    ranks: of the answer of `/weights_checker`: all that the server has. device: the server's, which decides how it
    hashes. vocab_multiple, mlp_multiple: what the server rounds the vocabulary up to, and the width of
    the MLP on each rank.
    """
    digest = words_hash if device == "cuda" else bytes_hash
    layout = Layout(num_kv_heads=num_kv_heads, vocab_multiple=vocab_multiple, mlp_multiple=mlp_multiple)
    _check_places(ranks)
    num_bytes = 0
    for rank in ranks:
        expected = dict(rank_parts(export, rank.checksums, layout, rank.place.tp_rank, rank.place.tp_size))
        with ThreadPoolExecutor(thread_name_prefix="checksum") as pool:
            hashes = dict(zip(expected, pool.map(digest, expected.values()), strict=True))
        _compare(hashes, rank.checksums)
        num_bytes += sum(part.nbytes for parts in expected.values() for part in parts)
    return num_bytes


def _check_places(ranks: Sequence[RankChecksums]) -> None:
    """Raise EngineError unless there is a rank for every part of the model."""
    found = sorted({(rank.place.tp_rank, rank.place.tp_size) for rank in ranks})
    if not found or found != [(number, len(found)) for number in range(len(found))]:
        named = ", ".join(f"{rank} of {size}" for rank, size in found) or "none"
        raise EngineError(f"the server's weights are not known: expected hashes of each of its ranks, got {named}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What of a server's layout is not in the names."""

    num_kv_heads: int
    vocab_multiple: int
    mlp_multiple: int = 1


def rank_parts(
    export: Export, names: Collection[str], layout: Layout, rank: int, size: int
) -> Iterator[tuple[str, list[Words]]]:
    """Yield (server's name, the arrays that its tensor consists of, one after the other), all tensors of one rank.

    names: of the server's tensors: what is not fused there is taken as it is.
    """
    done: set[str] = set()
    for name in export.places:
        fused, parts = _fused(name)
        if fused not in names or not all(part in export.places for part in parts):
            fused, parts = name, [name]
        if fused not in done:
            done.add(fused)
            yield fused, [shard for p in parts for shard in shards(p, export.read(p), layout, rank, size)]
    if _HEAD in names and _HEAD not in export.places:  # tied, and held twice
        yield _HEAD, shards(_HEAD, export.read(_EMBEDDING), layout, rank, size)


def _fused(name: str) -> tuple[str, list[str]]:
    for fused, parts in _FUSED.items():
        for part in parts:
            if f".{part}." in name:
                return name.replace(f".{part}.", f".{fused}."), [
                    name.replace(f".{part}.", f".{other}.") for other in parts
                ]
    return name, [name]


def shards(name: str, array: Words, layout: Layout, rank: int, size: int) -> list[Words]:
    """What rank `rank` of `size` holds of a tensor, in parts that lie one after the other."""
    if name in (_EMBEDDING, _HEAD):
        rows = -(-len(array) // layout.vocab_multiple) * layout.vocab_multiple // size
        own = array[rank * rows : (rank + 1) * rows]
        return [own, np.zeros((rows - len(own), array.shape[1]), array.dtype)]
    if ".mlp." in name:
        array = _widened(name, array, layout.mlp_multiple * size)
    if size == 1 or not any(part in name for part in (".self_attn.", ".mlp.")) or "_norm." in name:
        return [array]
    if name.endswith(_BY_INPUTS):
        return [np.ascontiguousarray(_split(name, array, size, axis=1)[rank])]
    if ".gate_up_proj." in name:  # fused at home too: a part of each half
        return [_split(name, half, size)[rank] for half in _split(name, array, 2)]
    if any(part in name for part in (".k_proj.", ".v_proj.")) and layout.num_kv_heads < size:
        # a head is held by several ranks
        return [_split(name, array, layout.num_kv_heads)[rank * layout.num_kv_heads // size]]
    return [_split(name, array, size)[rank]]


def _split(name: str, array: Words, size: int, axis: int = 0) -> list[Words]:
    if array.shape[axis] % size:
        raise EngineError(f"{name} of shape {array.shape} cannot be split into {size} equal parts, as the server says")
    return np.split(array, size, axis)


def _widened(name: str, array: Words, multiple: int) -> Words:
    """With zeros for what the MLP has got in addition: inputs of its last matrix, outputs of the others."""
    if name.endswith(_BY_INPUTS):
        return np.pad(array, ((0, 0), (0, -array.shape[1] % multiple))) if array.shape[1] % multiple else array
    halves = 2 if ".gate_up_proj." in name else 1
    missing = -(len(array) // halves) % multiple
    if not missing:
        return array
    rest = ((0, 0),) * (array.ndim - 1)
    return np.concatenate([np.pad(half, ((0, missing), *rest)) for half in np.split(array, halves)])


def bytes_hash(parts: Sequence[Words]) -> str:
    """As SGLang hashes on a CPU: the first 8 bytes of SHA-256."""
    digest = sha256()
    for part in parts:
        digest.update(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
    return digest.digest()[:8].hex()


def words_hash(parts: Sequence[Words]) -> str:
    """As SGLang hashes on a GPU: two sums of mixed 32-bit words for each tile of 8192 of them, in one 64-bit sum.

    With word w at index i: k = fmix(w ^ (i·A + s) ^ rotl(i, r)), with constants of its own for each of the two sums;
    a tile is (fmix(Σk₁ ^ n) << 32) | fmix(Σk₂ ^ n) for n bytes in all, and the sum of tiles is mixed once more.
    """
    joined = np.concatenate([np.ascontiguousarray(part).reshape(-1).view(np.uint8) for part in parts])
    words = np.pad(joined, (0, -len(joined) % 4)).view("<u4")
    if not len(words):
        return f"{0:016x}"
    seed = 0x243F6A88
    seeds = (np.uint32(seed), np.uint32((seed * 0x9E3779B1 ^ 0xDEADBEEF) & 0xFFFFFFFF))
    settings = ((np.uint32(0x27D4EB2D), seeds[0], 15), (np.uint32(0x165667B1), seeds[1], 13))
    num_bytes = np.uint32(len(words) * 4 & 0xFFFFFFFF)
    total = 0
    with np.errstate(over="ignore"):
        for begin in range(0, len(words), _TILE * _TILES_AT_ONCE):
            chunk = words[begin : begin + _TILE * _TILES_AT_ONCE]
            index = np.arange(begin, begin + len(chunk), dtype=np.uint64).astype(np.uint32)
            starts = np.arange(0, len(chunk), _TILE)
            first, second = (
                _fmix(
                    np.add.reduceat(_fmix(chunk ^ (index * by + plus) ^ _rotl(index, bits)), starts, dtype=np.uint32)
                    ^ num_bytes
                ).astype(np.uint64)
                for by, plus, bits in settings
            )
            total += sum(map(int, (first << np.uint64(32)) | second))
    return f"{_splitmix(total):016x}"


_TILE = 8192
_TILES_AT_ONCE = 64


def _rotl(words: Words, bits: int) -> Words:
    return (words << np.uint32(bits)) | (words >> np.uint32(32 - bits))


def _fmix(words: Words) -> Words:
    words = words ^ (words >> np.uint32(16))
    words = words * np.uint32(0x85EBCA6B)
    words ^= words >> np.uint32(13)
    words *= np.uint32(0xC2B2AE35)
    words ^= words >> np.uint32(16)
    return words


def _splitmix(value: int) -> int:
    mask = (1 << 64) - 1
    value &= mask
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & mask
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & mask
    return value ^ (value >> 31)


def _compare(expected: Mapping[str, str], found: Mapping[str, str]) -> None:
    problems = [f"it lacks {name}" for name in expected.keys() - found.keys()]
    problems += [f"nothing was published for its {name}" for name in found.keys() - expected.keys()]
    problems += [f"its {name} is another" for name in expected.keys() & found.keys() if expected[name] != found[name]]
    if problems:
        more = f" and {len(problems) - _MAX_SHOWN} more" if len(problems) > _MAX_SHOWN else ""
        shown = "; ".join(sorted(problems)[:_MAX_SHOWN])
        raise EngineError(f"the server's weights are not the published ones: {shown}{more}")
