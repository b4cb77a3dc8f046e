"""Server processes that are stopped and killed in the middle of a publish and of turns, and started again."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import trio

from agentrl_jax.engines.addresses import ServerAddress
from agentrl_jax.engines.exports import Export, ExportFolder, open_exports
from agentrl_jax.engines.fleet import ServedModel, open_fleet
from agentrl_jax.engines.pool import EnginePool, PoolConfig
from agentrl_jax.engines.publish_config import PublishConfig
from agentrl_jax.engines.weight_folder import tensor_shapes
from agentrl_jax.models.export import export_buckets
from agentrl_jax.models.hf_config import to_hf_config
from agentrl_jax.models.params import init_params
from agentrl_jax.types import Completion, SamplingParams, as_ids
from tests.engines.tiny_engine import reference_logprobs
from tests.launch.engine_process import MODEL, server, write_policy

PROMPT = as_ids([5, 6, 7, 8])
WEIGHTS = {version: init_params(MODEL, version) for version in range(1, 4)}
SERVED = ServedModel(
    model_type="qwen2", vocab_size=MODEL.vocab_size, num_kv_heads=1, dtype="float32", context_tokens=64
)


def export(exports: ExportFolder, version: int) -> Export:
    buckets = export_buckets(WEIGHTS[version], MODEL, dtype="float32", bucket_bytes=20_000)
    return exports.write(version, buckets)


def check(completion: Completion) -> None:
    """Every token has the log-probability that the weights of its version give it."""
    ids = np.concatenate([PROMPT, completion.ids])
    for span in completion.version_spans:
        rows = np.arange(span.start, span.end)
        table = reference_logprobs(WEIGHTS[span.version], ids[:-1], 1.0, MODEL)[len(PROMPT) - 1 :]
        np.testing.assert_allclose(completion.logprobs[rows], table[rows, completion.ids[rows]], atol=1e-4)


@pytest.mark.slow
async def test_a_server_that_is_killed_within_a_publish_and_within_turns_comes_back(tmp_path: Path) -> None:
    folder = tmp_path / "policy"
    write_policy(folder, tmp_path / "tokenizer")
    completions: list[Completion] = []
    said: list[str] = []

    async def play(first: int) -> None:
        for number in range(12):
            group = 12 * first + number
            params = SamplingParams(temperature=1.0, max_new_tokens=30, seed=group, stop_ids=(511,))
            completions.append(await pool(group, 0, 0).generate(PROMPT, params, session=f"g{group}"))

    async def kill_and_restart() -> None:
        os.kill(first.pid, signal.SIGSTOP)
        await trio.sleep(1.0)
        first.kill()
        await first.wait()
        await trio.sleep(0.5)
        nursery.start_soon(keep_server)

    async def keep_server() -> None:
        async with server(folder, ports[0]):
            await trio.sleep_forever()

    exporting = open_exports(
        tmp_path / "exports", tensor_shapes(folder), dtype="float32", config=to_hf_config(MODEL, dtype="float32")
    )
    async with server(folder, 0) as (first, port), server(folder, 0) as (_, second_port):
        ports = [port, second_port]
        addresses = [
            ServerAddress(url=f"http://127.0.0.1:{port}", name=f"current-{i}", pool="current")
            for i, port in enumerate(ports)
        ]
        with exporting as exports:
            opening = open_fleet(
                addresses,
                model=SERVED,
                exports=exports,
                config=PublishConfig(timeout_s=20.0),
                token=None,
                say=said.append,
            )
            async with opening as fleet, trio.open_nursery() as nursery:
                pool = EnginePool(fleet.of_pool("current"), [], PoolConfig(lagging_prob=0.0), 0, fleet)
                await fleet.begin({"current": export(exports, 1)})
                async with trio.open_nursery() as turns:
                    for number in range(4):
                        turns.start_soon(play, number)
                    turns.start_soon(kill_and_restart)
                    await trio.sleep(0.3)
                    assert await pool.publish(export(exports, 2), 2) == {"current-0": 2, "current-1": 2}
                    assert not fleet.is_serving("current-0")
                with trio.fail_after(240.0):  # a server imports and compiles before it is back
                    await fleet.until_any(["current-0"])
                await pool.publish(export(exports, 3), 3)
                await play(10)
                statistics = fleet.statistics()
                nursery.cancel_scope.cancel()
    for completion in completions:
        check(completion)
    assert len(completions) == 60
    assert {s.version for s in statistics.values()} == {3}
    assert {c.version_spans[0].version for c in completions[-12:]} == {3}
    assert any("current-0 is out" in line for line in said)
    assert said[-1] == "current-0 serves again, as version 2"
