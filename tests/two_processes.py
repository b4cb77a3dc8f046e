"""One of two processes that share a mesh: `python tests/two_processes.py MESH COORDINATOR PROCESS_ID`."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agentrl_jax.batch import TokenBatch, map_tokens
from agentrl_jax.runtime import RuntimeConfig
from agentrl_jax.sharding import local_rows, parse_mesh
from launch.devices import open_mesh
from tests.learner.small import make_batch, make_learner

MESHES = ("data=2,fsdp=2,tensor=2", "tensor=8")
"""The processes hold half of the rows each; both hold all rows, and half of the heads."""


def learn(mesh: jax.sharding.Mesh) -> dict[str, Any]:
    """Take three steps on the mesh, this process with its own rows, and return what they report."""
    axes = ",".join(f"{name}={size}" for name, size in mesh.shape.items())
    learner = make_learner(axes)

    def own(batch: TokenBatch) -> TokenBatch:
        rows = local_rows(mesh, batch.ids.shape[0])
        return map_tokens(lambda array: array[rows], batch)

    metrics = []
    for seed in range(3):
        packed = make_batch(seed, rows=8)
        mine = replace(packed, micro_batches=tuple(own(batch) for batch in packed.micro_batches))
        metrics.append(learner.step(mine).as_dict())
    logprobs = learner.logprobs(own(make_batch(9, rows=8).micro_batches[0]))
    kernel = learner.params["layers"]["mlp"]["up"]["kernel"]
    return {
        "metrics": metrics,
        "logprobs": np.asarray(logprobs).ravel().tolist(),
        "is_split": not kernel.sharding.is_fully_replicated,
    }


def main(mesh: str, coordinator: str, process_id: str) -> None:
    runtime = RuntimeConfig(coordinator_address=coordinator, num_processes=2, process_id=int(process_id))
    result = learn(open_mesh(parse_mesh(mesh), lambda line: print(line, flush=True), runtime))
    assert jax.process_count() == 2
    assert jax.local_device_count() == 4
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
