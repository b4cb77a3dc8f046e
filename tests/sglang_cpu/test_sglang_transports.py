"""Every way in which weights travel ends in a real SGLang server that holds all of them, and samples with them."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl_jax.engines.addresses import ServerAddress
from agentrl_jax.engines.exports import Export, open_exports
from agentrl_jax.engines.fleet import ServedModel, open_fleet
from agentrl_jax.engines.publish_config import PublishConfig
from agentrl_jax.engines.weight_folder import tensor_shapes
from agentrl_jax.models.export import export_buckets, export_bytes
from agentrl_jax.types import SamplingParams, as_ids
from tests.engines.tiny_engine import check_logprobs, random_weights
from tests.sglang_cpu.models import IDS_MODEL
from tests.sglang_cpu.reset import reset
from tests.sglang_cpu.servers import PYTHON, SGLangServer

pytestmark = pytest.mark.sglang

PROMPT = as_ids([3, 5, 2, 7, 4, 6, 5])
PARAMS = SamplingParams(temperature=0.7, max_new_tokens=8, seed=0, stop_ids=(IDS_MODEL.vocab_size,))
WEIGHTS = {version: random_weights(version, IDS_MODEL) for version in (1, 2)}
BUCKET_BYTES = 8_000  # several, so that what lies between them shows
MODEL = ServedModel(
    model_type="qwen2",
    vocab_size=IDS_MODEL.vocab_size,
    num_kv_heads=IDS_MODEL.num_kv_heads,
    dtype="float32",
    context_tokens=None,
)
TRANSPORTS: dict[str, dict[str, Any]] = {
    "disk": {"transport": "disk"},
    "tensor": {"transport": "tensor"},
    "distributed": {"transport": "distributed", "python": PYTHON, "backend": "gloo"},
}


@pytest.mark.parametrize("name", TRANSPORTS)
async def test_all_tensors_arrive(ids_server: SGLangServer, tmp_path: Path, name: str) -> None:
    await reset(ids_server)
    config = PublishConfig(verify_every=1, timeout_s=120.0, bucket_bytes=BUCKET_BYTES, **TRANSPORTS[name])
    address = ServerAddress(url=ids_server.url, name="current-0", pool="current")
    hf_config = json.loads((ids_server.folder / "config.json").read_text())
    shapes = tensor_shapes(ids_server.folder)
    with open_exports(tmp_path / "exports", shapes, dtype="float32", config=hf_config) as exports:

        def export(version: int) -> Export:
            buckets = export_buckets(WEIGHTS[version], IDS_MODEL, dtype="float32", bucket_bytes=BUCKET_BYTES)
            return exports.write(version, buckets)

        said: list[str] = []
        opening = open_fleet([address], model=MODEL, exports=exports, config=config, token=None, say=said.append)
        async with opening as fleet:
            (engine,) = fleet.engines
            await fleet.begin({"current": export(1)})
            for version in (1, 2):
                if version > 1:
                    await engine.publish(export(version), version)
                assert engine.is_serving, engine.why_out
                statistics = engine.publish_statistics()
                assert statistics.last_bytes_verified >= export_bytes(IDS_MODEL, dtype="float32")
                completion = await engine.generate(PROMPT, PARAMS, session="s")
                assert set(completion.versions) == {version}
                check_logprobs(WEIGHTS, PROMPT, completion, PARAMS.temperature, IDS_MODEL)
            assert engine.publish_statistics().num_publishes == 2
    await reset(ids_server)
