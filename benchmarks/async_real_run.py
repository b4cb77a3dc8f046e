"""One real training run with slow environments, engine and learner on a core each: a child of benchmarks.async_real.

    python -m benchmarks.async_real_run SETTINGS     # JSON of RunSettings

Everything but the engine (learner, controller, envs) computes on one core, the engine's thread on another. XLA computes
in the thread that asks for it, so that this holds for the programs too. Each step's record in metrics.jsonl says how
many CPU-seconds both cores have given so far (`learner_core_s`, `engine_core_s`).
"""

import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from agentrl_jax.config import TrainConfig
from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.engines.local.config import LocalEngineConfig
from agentrl_jax.engines.pool import PoolConfig
from agentrl_jax.env import FamilyOptions
from agentrl_jax.evaluation import EvaluationConfig
from agentrl_jax.learner import LearnerConfig
from agentrl_jax.pipeline import train
from agentrl_jax.policy import NetworkConfig
from agentrl_jax.runlog import RunLog
from agentrl_jax.sft import WarmUpConfig
from agentrl_jax.sharding import make_mesh, parse_mesh
from agentrl_jax.testing.latency import DelayedEnv, DelayedFamily, StepLatency
from agentrl_jax.types import Task
from envs.knowledge_graph import family as knowledge_graph

ONE_THREAD = {"NPROC": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "JAX_PLATFORMS": "cpu"}
"""The environment that these runs need: XLA has no threads of its own to spread a program to."""

LATENCY = StepLatency(median_s=0.3, sigma=1.0, least_s=0.01, most_s=10.0)
_ENGINE = "engine current-0"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """One run. cores: of the learner, and of the engine. max_steps 0: only make a policy. num_places: groups."""

    folder: str
    cores: tuple[int, int]
    model: str | None = None
    max_staleness: int = 0
    max_steps: int = 0
    group_size: int = 4
    groups_per_batch: int = 32
    num_places: int = 128
    is_tiny: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "RunSettings":
        values = json.loads(text)
        return cls(**{**values, "cores": tuple(values["cores"])})

    def config(self) -> TrainConfig:
        """The rate is next to nothing: every case plays with the same policy to the end."""
        config = TrainConfig(
            tasks="kg",
            rollout=RolloutConfig(
                group_size=self.group_size,
                min_groups_per_batch=self.groups_per_batch,
                max_groups_per_batch=self.groups_per_batch,
                max_staleness=self.max_staleness,
            ),
            engine=LocalEngineConfig(num_slots=self.group_size * self.num_places),
            learner=LearnerConfig(learning_rate=1e-9),
            pool=PoolConfig(lagging_prob=0.0),
            evaluation=EvaluationConfig(num_tasks=0),
            record_batches=False,
            max_steps=self.max_steps,
        )
        if self.model is not None:
            return replace(config, model=Path(self.model))
        if self.is_tiny:
            network = NetworkConfig(width=32, num_layers=1, num_heads=2, num_kv_heads=1, mlp_width=64)
            warm_up = WarmUpConfig(demonstrations=64, copy_steps=2, steps=6, batch_size=8)
            return replace(config, network=network, warm_up=warm_up)
        # Enough for well-formed calls, which keep the environments busy; not to be good.
        return replace(config, warm_up=WarmUpConfig(demonstrations=1500, copy_steps=80, steps=120))


class _TimedLog(RunLog):
    """A run log whose steps know what both cores have done."""

    def log_metrics(self, kind: str, values: Mapping[str, Any]) -> None:
        super().log_metrics(kind, {**values, **core_seconds()} if kind == "step" else values)


def core_seconds() -> dict[str, float]:
    """CPU-seconds so far: of the engine's thread, and of the rest of the process."""
    engine_s = sum(time.clock_gettime(_clock_of(thread)) for thread in _engine_threads())
    return {"engine_core_s": engine_s, "learner_core_s": time.process_time() - engine_s}


def _engine_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == _ENGINE]


def _clock_of(thread: threading.Thread) -> int:
    if thread.ident is None:
        raise RuntimeError(f"{thread.name} has not been started")
    return time.pthread_getcpuclockid(thread.ident)


@dataclass(kw_only=True, eq=False)
class _PinningFamily(DelayedFamily):
    """Moves the engine's thread to its core before the first env is made: it runs by then."""

    engine_core: int
    is_pinned: bool = False

    def make(self, task: Task) -> DelayedEnv:
        if not self.is_pinned:
            (engine,) = _engine_threads()
            if engine.native_id is None:
                raise RuntimeError(f"{engine.name} has not been started")
            os.sched_setaffinity(engine.native_id, {self.engine_core})
            self.is_pinned = True
        return super().make(task)


def main() -> int:
    """Carry out the run that the only argument describes."""
    settings = RunSettings.from_json(sys.argv[1])
    learner_core, engine_core = settings.cores
    os.sched_setaffinity(0, {learner_core})  # and with it every thread that is started from here on

    import jax

    jax.config.update("jax_cpu_enable_async_dispatch", False)  # type: ignore[no-untyped-call]
    family = _PinningFamily(family=knowledge_graph(FamilyOptions()), latency=LATENCY, engine_core=engine_core)
    with _TimedLog(Path(settings.folder)) as run:
        result = train(settings.config(), [family], make_mesh(parse_mesh("1")), run, lambda line: None)
    return int(result.is_stopped)


if __name__ == "__main__":
    raise SystemExit(main())
