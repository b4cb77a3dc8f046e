"""A learner that two processes share, led by the first: `python tests/planned_steps.py FOLDER COORDINATOR PROCESS_ID`.

The first process prints what its steps reported; alone, it does the same with the mesh to itself.
"""

import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agentrl_jax.algo.losses import make_loss
from agentrl_jax.checkpoint import CheckpointStore
from agentrl_jax.config import TrainConfig
from agentrl_jax.distributed import ProcessError, together
from agentrl_jax.errors import AgentRLError
from agentrl_jax.follow import follow_training
from agentrl_jax.lead import Beginning, Leader, leading
from agentrl_jax.learner import LearnerConfig
from agentrl_jax.learning import begin_learning
from agentrl_jax.models.export import export_buckets
from agentrl_jax.models.load import place_params
from agentrl_jax.models.params import init_params
from agentrl_jax.models.save import save_pretrained
from agentrl_jax.packing import PackedBatch
from agentrl_jax.runtime import RuntimeConfig
from agentrl_jax.seeding import derive_seed
from agentrl_jax.sharding import parse_mesh
from agentrl_jax.step_plan import StepPlan
from launch.devices import open_mesh
from tests.learner.small import MODEL, make_batch

MESH = "data=2,fsdp=2,tensor=2"
CONFIG = TrainConfig(
    mesh=MESH,
    max_context_tokens=32,
    rows_per_device=2,
    with_warm_up=False,
    learner=LearnerConfig(learning_rate=0.01, temperature=0.8, logprob_chunk=16),
)
NUM_STEPS, SAVE_AT = 5, 3


def batch(seed: int) -> PackedBatch:
    """Rows of the shape that `CONFIG` has."""
    packing = CONFIG.packing
    return make_batch(seed, rows=packing.rows_per_micro_batch, row_tokens=packing.row_tokens[-1:])


def lead_steps(folder: Path, mesh: jax.sharding.Mesh, lead: Leader) -> dict[str, Any]:
    """Five steps, a checkpoint after three of them, weights for engines, an exported policy; what came of all that."""
    stops: list[int] = []
    lead.on_stop = lambda: stops.append(len(losses))
    lead.begin(
        Beginning(
            config=CONFIG, model=MODEL, dtype="float32", run_dir=folder, weights=None, num_copy_steps=0, step=None
        )
    )
    params = place_params(MODEL, init_params(MODEL, derive_seed(CONFIG.seed, "init")), mesh)
    make = lead.make_learner
    learner = begin_learning(CONFIG, MODEL, make_loss(CONFIG.loss), mesh, params, folder, make_learner=make)
    losses, scores = [], []

    def before_save(step: int) -> None:
        lead(StepPlan(save=True, step=step))

    with CheckpointStore(folder / "checkpoints", before_save=before_save) as store:
        learner.compile_ahead(CONFIG.packing)
        for step in range(1, NUM_STEPS + 1):
            losses.append(learner.step(batch(step)).as_dict())
            scores.append(float(sum(np.abs(part.logprobs).sum() for part in learner.scores)))
            if step == SAVE_AT:
                store.save(step, learner.state, {"stood": "here"})
    lead(StepPlan(export=True))
    save_pretrained(learner.params, MODEL, folder / "model")
    weights = lead.engine_weights(learner)
    norm = float(sum(np.abs(np.asarray(leaf, np.float64)).sum() for leaf in jax.tree.leaves(weights)))
    return {"losses": losses, "scores": scores, "norm": norm, "stops": stops}


def share_params(folder: Path, mesh: jax.sharding.Mesh) -> dict[str, Any]:
    """What all processes do alike: buckets, and a folder that the first one cannot write."""
    params = place_params(MODEL, init_params(MODEL, 3), mesh)
    buckets = export_buckets(params, MODEL, dtype="bfloat16", bucket_bytes=2_000)
    found = {"checksums": [tensor.checksum for bucket in buckets for tensor in bucket.tensors], "failures": []}
    (folder / "a file").touch()
    try:
        save_pretrained(params, MODEL, folder / "a file" / "model")
    except (OSError, ProcessError) as error:
        found["failures"].append(type(error).__name__)
    try:
        with together():
            if jax.process_index() == 1:
                raise AgentRLError("the second one")
    except AgentRLError as error:
        found["failures"].append(type(error).__name__)
    return found


def main(folder: str, coordinator: str, process_id: str) -> None:
    runtime = RuntimeConfig(coordinator_address=coordinator, num_processes=2, process_id=int(process_id))
    mesh = open_mesh(parse_mesh(MESH), lambda line: print(line, flush=True), runtime)
    shared = share_params(Path(folder), mesh)
    if process_id == "0":
        with leading() as lead:
            found = lead_steps(Path(folder), mesh, lead)
    else:
        asked = iter([False] * 4 + [True] * 100)  # after the second step
        found = {"num_steps": follow_training(mesh, lambda: next(asked))}
    print(json.dumps({**found, **shared}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
