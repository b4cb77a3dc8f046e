"""Servers of toy engines behind this package's server, and a fleet on them, all in one event loop."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import trio
from safetensors.numpy import load_file

from agentrl_jax.engines.addresses import ServerAddress
from agentrl_jax.engines.exports import Export
from agentrl_jax.engines.fleet import EngineFleet, ServedModel, open_fleet
from agentrl_jax.engines.http_server import HttpProblem, HttpRequest
from agentrl_jax.engines.pool import EnginePool, PoolConfig
from agentrl_jax.engines.publish_config import PublishConfig
from agentrl_jax.engines.server import EngineServer
from agentrl_jax.engines.server_checksums import bytes_hash
from agentrl_jax.engines.sglang import open_sglang_engine
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.types import Completion, Pool, SamplingParams, as_ids
from tests.engines.http_fakes import connect_to
from tests.engines.served_engines import FAKE_MODEL
from tests.engines.weight_fakes import NUM_KV_HEADS, exports_in, in_buckets, random_arrays

Fault = Callable[[HttpRequest], Awaitable[Any]]
MODEL = ServedModel(model_type="toy", vocab_size=16, num_kv_heads=NUM_KV_HEADS, dtype="float32", context_tokens=41)
SAMPLING = SamplingParams(temperature=1.0, max_new_tokens=6, seed=3, stop_ids=(15,))
ENDLESS = SamplingParams(temperature=1.0, max_new_tokens=30, seed=3, stop_ids=(15,))


def hash_folder(weights: Any) -> dict[str, str]:
    """Of each tensor in the folder that a toy engine holds as its weights."""
    return {name: bytes_hash([array]) for name, array in load_file(f"{weights}/model.safetensors").items()}


@dataclass
class Host:
    """A server process: it can die, and come back as one that was just started. fault: sees requests first.
    hashes: of its weights, which it may get wrong; None: it has none to offer."""

    nursery: trio.Nursery
    name: str
    pool: Pool
    settings: dict[str, Any]
    paths: list[str] = field(default_factory=list)
    fault: Fault | None = None
    hashes: Callable[[Any], Mapping[str, str]] | None = None

    def __post_init__(self) -> None:
        self.connect = connect_to(self.nursery, lambda: self._handle)
        self.start()

    def start(self) -> None:
        self.engine = FakeEngine(name=self.name, pool=self.pool, version=0, **self.settings)
        model = FAKE_MODEL if self.hashes is None else replace(FAKE_MODEL, hash_weights=lambda w: self.hashes(w))
        self._server: EngineServer | None = EngineServer(self.engine, model)

    def kill(self) -> None:
        self.engine.die()
        self._server = None

    async def _handle(self, request: HttpRequest) -> Any:
        self.paths.append(request.path)
        if self.fault is not None:
            await self.fault(request)
        if self._server is None:
            raise HttpProblem(502, "nobody is here")
        return await self._server.handle(request)


@dataclass
class World:
    """hosts: by engine name. said: lines that the fleet has said."""

    fleet: EngineFleet
    pool: EnginePool
    hosts: dict[str, Host]
    said: list[str]

    def export(self, version: int) -> Export:
        return self.fleet.exports.write(version, in_buckets(random_arrays(version)))

    async def publish(self, version: int) -> dict[str, int]:
        served = await self.pool.publish(self.export(version), version)
        self.fleet.keep_exports()
        return dict(served)

    async def turn(self, group: int = 0, member: int = 0, turn: int = 0, *, sampling: Any = SAMPLING) -> Completion:
        seat = self.pool(group, member, turn)
        return await seat.generate(as_ids([2, 3, 4]), sampling, session=f"g{group}-m{member}")


@asynccontextmanager
async def open_world(
    folder: Path,
    *,
    current: int = 2,
    lagging: int = 0,
    period: int = 4,
    begin: int = 1,
    settings: dict[str, Any] | None = None,
    hashes: Callable[[Any], Mapping[str, str]] | None = None,
    **config: Any,
) -> AsyncIterator[World]:
    """A fleet that serves version `begin`. settings, hashes: of the engines."""
    names: list[tuple[str, Pool]] = [(f"current-{i}", "current") for i in range(current)]
    names += [(f"lagging-{i}", "lagging") for i in range(lagging)]
    pooling = PoolConfig(lagging_prob=0.5, lagging_period=period) if lagging else PoolConfig(lagging_prob=0.0)
    said: list[str] = []
    async with trio.open_nursery() as nursery:
        hosts = {name: Host(nursery, name, pool, settings or {}, hashes=hashes) for name, pool in names}
        addresses = [ServerAddress(url=f"http://{name}", name=name, pool=pool) for name, pool in names]

        def open_engine(url: str, **options: Any) -> Any:
            return partial(open_sglang_engine, connect=hosts[options["name"]].connect)(url, **options)

        with exports_in(folder / "exports") as exports:
            publishing = PublishConfig(**config)
            opening = open_fleet(
                addresses,
                model=MODEL,
                exports=exports,
                config=publishing,
                token=None,
                say=said.append,
                open_engine=open_engine,
            )
            async with opening as fleet:
                pool = EnginePool(fleet.of_pool("current"), fleet.of_pool("lagging"), pooling, 0, fleet)
                world = World(fleet, pool, hosts, said)
                first = world.export(begin)
                await fleet.begin({"current": first, "lagging": first})
                yield world
        nursery.cancel_scope.cancel()
