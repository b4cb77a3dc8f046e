"""Real SGLang servers in a fleet: the lagging one dies within a publish, and comes back with its own version.

The current one is shared with other tests; the one that dies is this test's own.
"""

import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from agentrl_jax.engines.addresses import ServerAddress
from agentrl_jax.engines.exports import Export, ExportFolder, open_exports
from agentrl_jax.engines.fleet import EngineFleet, ServedModel, open_fleet
from agentrl_jax.engines.pool import EnginePool, PoolConfig
from agentrl_jax.engines.publish_config import PublishConfig
from agentrl_jax.engines.weight_folder import tensor_shapes
from agentrl_jax.models.export import export_buckets, export_bytes
from agentrl_jax.types import Completion, SamplingParams, as_ids
from tests.engines.tiny_engine import check_logprobs, random_weights
from tests.sglang_cpu.models import IDS_MODEL, write_ids_policy
from tests.sglang_cpu.reset import reset
from tests.sglang_cpu.servers import SGLangServer, free_port, running_server

pytestmark = pytest.mark.sglang

PROMPT = as_ids([3, 5, 2, 7, 4, 6, 5])
WEIGHTS = {version: random_weights(version, IDS_MODEL) for version in range(1, 6)}
MODEL = ServedModel(
    model_type="qwen2",
    vocab_size=IDS_MODEL.vocab_size,
    num_kv_heads=IDS_MODEL.num_kv_heads,
    dtype="float32",
    context_tokens=None,
)


PERIOD = 4
FLAGS = ["--skip-tokenizer-init"]


class Servers:
    """The fleet, and what goes on there."""

    def __init__(self, fleet: EngineFleet, exports: ExportFolder) -> None:
        self.fleet, self._exports = fleet, exports
        pooling = PoolConfig(lagging_prob=0.5, lagging_period=PERIOD)
        self._pool = EnginePool(fleet.of_pool("current"), fleet.of_pool("lagging"), pooling, 0, fleet)

    def export(self, version: int) -> Export:
        buckets = export_buckets(WEIGHTS[version], IDS_MODEL, dtype="float32", bucket_bytes=20_000)
        return self._exports.write(version, buckets)

    async def publish(self, version: int) -> dict[str, int]:
        served = await self._pool.publish(self.export(version), version)
        self.fleet.keep_exports()
        return dict(served)

    async def turn(self, group: int) -> Completion:
        """Of eight ids, each with the log-probability that the weights of its version give it."""
        sampling = SamplingParams(temperature=0.7, max_new_tokens=8, seed=group, stop_ids=(IDS_MODEL.vocab_size,))
        seat = self._pool(group, 0, 0)
        completion = await seat.generate(PROMPT, sampling, session=f"g{group}")
        await seat.end_session(f"g{group}")
        check_logprobs(WEIGHTS, PROMPT, completion, 0.7, IDS_MODEL)
        return completion

    async def versions(self) -> dict[str, set[int]]:
        """By engine, those that serve turns now."""
        found: dict[str, set[int]] = {}
        for group in range(12):
            turn = await self.turn(group)
            found.setdefault(turn.engine, set()).update(turn.versions.tolist())
        return found


@asynccontextmanager
async def open_servers(folder: Path, current: str, lagging: str, scratch: Path) -> AsyncIterator[Servers]:
    """A fleet of these two that serves version 1."""
    addresses = [
        ServerAddress(url=current, name="current-0", pool="current"),
        ServerAddress(url=lagging, name="lagging-0", pool="lagging"),
    ]
    config = json.loads((folder / "config.json").read_text())
    with open_exports(scratch / "exports", tensor_shapes(folder), dtype="float32", config=config) as exports:
        opening = open_fleet(
            addresses,
            model=MODEL,
            exports=exports,
            config=PublishConfig(timeout_s=60.0),
            token=None,
            say=lambda line: None,
        )
        async with opening as fleet:
            servers = Servers(fleet, exports)
            first = servers.export(1)
            await fleet.begin({"current": first, "lagging": first})
            yield servers


async def test_a_lagging_server_that_dies_within_a_publish_comes_back_with_its_own_version(
    ids_server: SGLangServer, tmp_path: Path
) -> None:
    await reset(ids_server)
    folder, port = write_ids_policy(tmp_path / "policy", 0), free_port()
    url = f"http://127.0.0.1:{port}"
    with running_server(folder, core=1, port=port, flags=FLAGS) as dying:
        async with open_servers(folder, ids_server.url, url, tmp_path) as servers:
            for version in range(2, PERIOD):
                await servers.publish(version)
            assert await servers.versions() == {"current-0": {3}, "lagging-0": {1}}
            stop_sampling(dying)
            async with trio.open_nursery() as nursery:
                for group in range(12):
                    nursery.start_soon(servers.turn, group)  # some of them there, which the other server samples then
                nursery.start_soon(kill_soon, dying)
                assert await servers.publish(PERIOD) == {"current-0": 4, "lagging-0": 4}  # or will serve it
            assert not servers.fleet.is_serving("lagging-0")
            await servers.publish(5)
            assert await servers.versions() == {"current-0": {5}}
            with running_server(folder, core=1, port=port, flags=FLAGS):
                with trio.fail_after(120.0):
                    await servers.fleet.until_any(["lagging-0"])
                assert await servers.versions() == {"current-0": {5}, "lagging-0": {4}}
                verified = servers.fleet.statistics()["lagging-0"].last_bytes_verified
                assert verified >= export_bytes(IDS_MODEL, dtype="float32")
    await reset(ids_server)


def stop_sampling(server: SGLangServer) -> None:
    """Leave it a front that takes requests, and nobody behind it who answers: what is under way then hangs."""
    pid = server.process.pid
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        os.kill(int(child), signal.SIGSTOP)


async def kill_soon(server: SGLangServer) -> None:
    await trio.sleep(2.0)
    server.kill()
