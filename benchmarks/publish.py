"""What does a publish cost: gigabytes per second of each transport, the pause that requests see, and what is verified?

    python -m benchmarks.publish [--json] [--quick] [--engine URL --model FOLDER [--python PYTHON]]

`export` takes float32 params from JAX, casts them to bfloat16, and writes them to the publish folder: gather, checksum
and write overlap. `disk` only writes buckets that are on the host already; `memcpy` writes the same bytes to a fresh
file in the same folder by one call, in the same repeat: what this machine can do at best. `reader` publishes to a
server of this package, whose weights are copied out of the file, and which samples meanwhile. Rates and pauses are
those of ordinary publishes, where a server hashes its weights once; after them comes one of which every tensor is
compared. A pause is a load (`load_s_per_gb`) and a check (`check_s_per_gb`), as no token may be sampled before the
check has passed. Servers of this package do both ahead of it, so that `reader`'s pause is a swap; SGLang does them in
it: on a CPU SHA-256, for which a core with SHA instructions needs 0.52 s/GB, on a GPU a kernel at the memory's speed.
Its `load_s_per_gb` begins while it computes a forward pass, which it ends first: what `in_place` has more of than
`drain` gives tokens.
`cpu_s_per_gb` is what a publish to a server in this process computed, on all threads: a figure that other work on the
machine leaves alone.

With --engine, a real server (SGLang, or `python -m launch.engine`) that was started with FOLDER gets its own weights
by each transport that it offers, in each in-flight mode, while turns run on it; --python is an interpreter with torch
for `distributed`.

A good answer: `disk` at least half of `memcpy`, `pause_s_per_gb` of at most 1 in `in_place`, `verified_frac` 1.
`stall_frac` is the share of a step in which engines pause, for a 14B model (29.5 GB) and a step of 2M tokens on 16 GPUs
of 989 TFLOP/s at 40 % (the recipe's modelled step), at the pause measured here.
"""

import json
import os
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import trio

from agentrl_jax.engines.addresses import ServerAddress
from agentrl_jax.engines.export_folders import export_folder
from agentrl_jax.engines.exports import open_exports
from agentrl_jax.engines.fleet import ServedModel, open_fleet
from agentrl_jax.engines.publish_config import InFlightMode, PublishConfig, TransportName
from agentrl_jax.engines.served_generation import ServedModel as ServerModel
from agentrl_jax.engines.server import EngineServer
from agentrl_jax.models.buckets import HostBucket
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.export import export_buckets, export_bytes
from agentrl_jax.models.families import hf_entries
from agentrl_jax.models.hf_config import to_hf_config
from agentrl_jax.models.load import load_pretrained
from agentrl_jax.models.params import init_params
from agentrl_jax.models.published import PUBLISHED
from agentrl_jax.testing.engine import FakeEngine, constant_latency
from agentrl_jax.types import SamplingParams, as_ids
from benchmarks.figures import Figure, json_lines, summarise, table
from launch.config import parse
from launch.engine import weights_hasher
from launch.estimates import step_flops

NAME = "publish"
MODEL = ModelConfig(
    vocab_size=32_000, width=1024, num_layers=12, num_heads=16, num_kv_heads=4, head_dim=64, mlp_width=4096
)
RECIPE = "Qwen2.5-14B-Instruct"
STEP_TOKENS, STEP_LENGTH, STEP_FLOPS_PER_S = 2_000_000, 8192, 16 * 989e12 * 0.4
TURNS, TURN_TOKENS, TOKEN_S = 8, 64, 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a publish costs."""

    json: bool = False
    """One JSON line per figure instead of a table"""
    quick: bool = False
    """A small model, and one repeat"""
    engine: str | None = None
    """A server at http://host:port to publish to, besides the ones of this process"""
    model: Path | None = None
    """The folder that it was started with"""
    python: Path | None = None
    """Interpreter with torch; without it --engine is not asked to take broadcasts"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Of one publish: pause, its load and its check in seconds, and processor seconds of this process in all of it;
    bytes sent and compared; the longest turn of those that ran."""

    pause_s: float
    load_s: float
    check_s: float
    cpu_s: float
    num_bytes: int
    num_verified: int
    longest_turn_s: float


def main(arguments: list[str] | None = None) -> None:
    options = parse(Options, arguments, program=f"benchmarks.{NAME}")
    model = replace(MODEL, num_layers=2, vocab_size=8000) if options.quick else MODEL
    repeats = 1 if options.quick else 5
    figures = [*measure_files(model, repeats), *measure_reader(model, repeats)]
    if options.engine is not None and options.model is not None:
        figures += measure_server(options.engine, options.model, options.python, repeats)
    print("\n".join(json_lines(figures)) if options.json else table(figures))


def measure_files(model: ModelConfig, repeats: int) -> Iterator[Figure]:
    """Rates of writing one export, in GB/s of what is written."""
    params = jax.tree.map(jnp.asarray, init_params(model, 0))
    gathered = list(_buckets(params, model))
    seconds: dict[str, list[float]] = {"export": [], "disk": [], "memcpy": []}
    with tempfile.TemporaryDirectory() as run_dir, _exports(model, Path(run_dir)) as exports:
        for number in range(repeats + 1):
            begun = time.perf_counter()
            exports.write(number, _buckets(params, model))
            seconds["export"].append(time.perf_counter() - begun)
            exports.keep(())
            begun = time.perf_counter()
            exports.write(number, gathered)
            seconds["disk"].append(time.perf_counter() - begun)
            exports.keep(())
            seconds["memcpy"].append(_copy_once(gathered, exports.folder / "memcpy"))
    size = export_bytes(model, dtype="bfloat16")
    for case, found in seconds.items():
        yield _figure(case, "rate", [size / 1e9 / one for one in found[1:]], "GB/s")
    of_memcpy = [copy / disk for copy, disk in zip(seconds["memcpy"], seconds["disk"], strict=True)]
    yield _figure("disk", "of_memcpy", of_memcpy[1:])


def _copy_once(buckets: Sequence[HostBucket], file: Path) -> float:
    data = np.concatenate([t.array.reshape(-1).view(np.uint8) for bucket in buckets for t in bucket.tensors])
    begun = time.perf_counter()
    handle = os.open(file, os.O_RDWR | os.O_CREAT)
    view, offset = data.data, 0
    while offset < len(data):
        offset += os.pwrite(handle, view[offset:], offset)
    os.close(handle)
    seconds = time.perf_counter() - begun
    file.unlink()
    return seconds


def measure_reader(model: ModelConfig, repeats: int) -> Iterator[Figure]:
    """A publish to a server that copies all tensors out of the file."""
    params = init_params(model, 0)

    async def measure() -> list[Published]:
        async with _reading_server(model) as url:
            return await _publish(url, model, list(_buckets(params, model)), PublishConfig(mode="in_place"), repeats)

    yield from _figures("reader/in_place", trio.run(measure), is_here=True)


@asynccontextmanager
async def _reading_server(model: ModelConfig) -> AsyncIterator[str]:
    engine = FakeEngine(token_latency=constant_latency(TOKEN_S))
    served = ServerModel(
        path="",
        vocab_size=model.vocab_size,
        max_prompt_tokens=4096,
        load_weights=_read_all,
        hash_weights=weights_hasher(model),
    )
    server = EngineServer(engine, served)
    async with trio.open_nursery() as nursery:
        port: int = await nursery.start(partial(server.serve, host="127.0.0.1", port=0))
        yield f"http://127.0.0.1:{port}"
        nursery.cancel_scope.cancel()


def _read_all(folder: Path) -> Any:
    return jax.tree.map(np.array, load_pretrained(folder)[1])


def measure_server(url: str, folder: Path, python: Path | None, repeats: int) -> Iterator[Figure]:
    """A real server gets the weights that it has, by every transport, and by `disk` in every mode."""
    model, params = load_pretrained(folder)
    dtype = json.loads((folder / "config.json").read_text())["dtype"]
    buckets = list(export_buckets(params, model, dtype=dtype, bucket_bytes=512 << 20))
    modes: tuple[InFlightMode, ...] = ("in_place", "retract", "abort", "drain")
    transports: tuple[TransportName, ...] = ("tensor", *(("distributed",) if python else ()))
    configs = [PublishConfig(mode=mode) for mode in modes]
    for transport in transports:
        by_broadcast = {"python": python, "backend": "gloo"} if transport == "distributed" else {}
        configs.append(PublishConfig(transport=transport, **by_broadcast))  # type: ignore[arg-type]
    for config in configs:
        found = trio.run(_publish, url, model, buckets, config, repeats)
        yield from _figures(f"server/{config.transport}/{config.mode}", found, is_here=False)


async def _publish(
    url: str, model: ModelConfig, buckets: Sequence[HostBucket], config: PublishConfig, repeats: int
) -> list[Published]:
    """Publish `repeats` times while turns run, and once more with every tensor compared."""
    dtype = str(buckets[0].tensors[0].array.dtype)
    served = ServedModel(
        model_type=to_hf_config(model, dtype=dtype)["model_type"],
        vocab_size=model.vocab_size,
        num_kv_heads=model.num_kv_heads,
        dtype=dtype,
        context_tokens=None,
    )
    address = ServerAddress(url=url, name="current-0", pool="current")
    config = replace(config, verify_every=repeats + 1)
    published = []
    with tempfile.TemporaryDirectory() as run_dir, _exports(model, Path(run_dir), dtype) as exports:
        opening = open_fleet([address], model=served, exports=exports, config=config, token=None, say=lambda line: None)
        async with opening as fleet:
            (engine,) = fleet.engines
            await fleet.begin({"current": exports.write(0, buckets)})
            for version in range(1, repeats + 2):
                export = exports.write(version, buckets)
                times: list[float] = []
                async with trio.open_nursery() as nursery:
                    for seed in range(TURNS):
                        nursery.start_soon(_turn, engine, seed, times)
                    await trio.sleep(TURN_TOKENS * TOKEN_S / 3)  # real time: the turns are in their middle by then
                    cpu_begun = time.process_time()
                    await engine.publish(export, version)
                    cpu_s = time.process_time() - cpu_begun
                    if engine.is_out:
                        raise SystemExit(f"{url}: {engine.why_out}")
                fleet.keep_exports()
                statistics = engine.publish_statistics()
                published.append(
                    Published(
                        pause_s=statistics.last_pause_s,
                        load_s=statistics.last_load_s,
                        check_s=statistics.last_verify_s,
                        cpu_s=cpu_s,
                        num_bytes=export.num_bytes,
                        num_verified=statistics.last_bytes_verified,
                        longest_turn_s=max(times),
                    )
                )
    return published


async def _turn(engine: Any, seed: int, times: list[float]) -> None:
    params = SamplingParams(temperature=1.0, max_new_tokens=TURN_TOKENS, seed=seed, stop_ids=(1,))
    begun = trio.current_time()
    await engine.generate(as_ids(range(2, 34)), params, session=f"s{seed}")
    times.append(trio.current_time() - begun)


def _figures(case: str, published: Sequence[Published], *, is_here: bool) -> Iterator[Figure]:
    *found, compared = published
    gigabytes = [one.num_bytes / 1e9 for one in found]
    pauses = [one.pause_s / size for one, size in zip(found, gigabytes, strict=True)]
    recipe = PUBLISHED[RECIPE]
    step_s = step_flops(recipe, num_tokens=STEP_TOKENS, length=STEP_LENGTH) / STEP_FLOPS_PER_S
    recipe_gb = export_bytes(recipe, dtype="bfloat16") / 1e9
    yield _figure(case, "rate", [size / one.load_s for one, size in zip(found, gigabytes, strict=True)], "GB/s")
    yield _figure(case, "pause", [one.pause_s for one in found], "s")
    yield _figure(case, "pause_s_per_gb", pauses, "s/GB")
    loads = [one.load_s / size for one, size in zip(found, gigabytes, strict=True)]
    yield _figure(case, "load_s_per_gb", loads, "s/GB")
    checks = [one.check_s / size for one, size in zip(found, gigabytes, strict=True)]
    yield _figure(case, "check_s_per_gb", checks, "s/GB")
    if is_here:
        cpu = [one.cpu_s / size for one, size in zip(found, gigabytes, strict=True)]
        yield _figure(case, "cpu_s_per_gb", cpu, "s/GB")
    yield _figure(case, "longest_turn", [one.longest_turn_s for one in found], "s")
    yield _figure(case, "verified_frac", [min(1.0, compared.num_verified / compared.num_bytes)])
    yield _figure(case, "stall_frac", [pause * recipe_gb / (step_s + pause * recipe_gb) for pause in pauses])


def _figure(case: str, metric: str, values: Sequence[float], unit: str = "") -> Figure:
    return summarise(values, benchmark=NAME, case=case, metric=metric, unit=unit)


def _buckets(params: Any, model: ModelConfig) -> Iterator[HostBucket]:
    return export_buckets(params, model, dtype="bfloat16", bucket_bytes=64 << 20)


def _exports(model: ModelConfig, run_dir: Path, dtype: Any = "bfloat16") -> Any:
    shapes = {name: spec.hf_shape for name, spec, _ in hf_entries(model)}
    config = to_hf_config(model, dtype=dtype)
    return open_exports(export_folder(None, run_dir), shapes, dtype=dtype, config=config)


if __name__ == "__main__":
    main()
