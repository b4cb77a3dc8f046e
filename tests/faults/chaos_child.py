"""A controller process to be killed: `python -m tests.faults.chaos_child FOLDER NUM_STEPS`. Fakes, in real time.

It runs the real loop with environments on threads, the journal on disk, and a checkpoint of which the "parameters" are
the list of groups that they were trained on.
"""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.controller.curriculum import CurriculumConfig
from agentrl_jax.controller.journal import Journal
from agentrl_jax.controller.journal_port import ThreadedJournal
from agentrl_jax.controller.journal_resume import begin, plan_start, restore_sampler
from agentrl_jax.controller.loop import train_loop
from agentrl_jax.controller.ports import StepOutcome, StepRecord
from agentrl_jax.controller.sessions import SessionFactory, thread_sessions
from agentrl_jax.controller.tasks import TaskSampler
from agentrl_jax.runlog import write_atomically
from agentrl_jax.seeding import derive_seed
from agentrl_jax.testing.engine import FakeEngine, constant_latency
from agentrl_jax.testing.envs import EnvScript, ScriptedEnv, ScriptedFamily
from agentrl_jax.testing.latency import DelayedFamily, StepLatency
from agentrl_jax.testing.simulation import Simulation
from agentrl_jax.types import Group, Task

CONFIG = RolloutConfig(
    group_size=2,
    min_groups_per_batch=3,
    max_staleness=1,
    dynamic_sampling=True,
    curriculum=CurriculumConfig(high=0.9),
    max_no_signal_groups=10_000,
    max_consecutive_failures=10_000,
)
CHECKPOINT = "checkpoint.json"


@dataclass(kw_only=True)
class Family(ScriptedFamily):
    """Members of half of the tasks differ; one task in nine always fails."""

    num_made: int = 0

    def make(self, task: Task) -> ScriptedEnv:
        self.num_made += 1
        reward = float(self.num_made % 2 and derive_seed(task.key) % 2)
        fault_at = 1 if derive_seed(task.key, "fault") % 9 == 0 else -1
        script = EnvScript(rewards=(0.0, reward), fault="error", fault_at=fault_at)
        return ScriptedEnv(task=task, script=script, log=self.log)


@dataclass(kw_only=True)
class Threaded(Simulation):
    family: DelayedFamily
    limiter: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(16))

    def sessions(self) -> SessionFactory:
        return thread_sessions(self.family.make, self.limiter)


@dataclass(kw_only=True)
class Learner:
    """Implements `LearnerPort`; its parameters are what they were trained on."""

    trained: list[tuple[int, str]]

    async def step(self, groups: tuple[Group, ...], version: int) -> StepOutcome:
        await trio.sleep(0.01)
        self.trained += [(group.group_id, group.task.key) for group in groups]
        return StepOutcome(is_finite=True, is_applied=True, metrics={})


def load(folder: Path) -> dict[str, Any]:
    """The newest checkpoint, or that of no step."""
    path = folder / CHECKPOINT
    if path.exists():
        return dict(json.loads(path.read_text()))
    return {"step": 0, "version": None, "trained": [], "loop": None}


async def run(folder: Path, num_steps: int) -> None:
    saved = load(folder)
    learner = Learner(trained=[(group_id, key) for group_id, key in saved["trained"]])
    with Journal(folder / "ledger") as journal:
        plan = plan_start(journal, CONFIG, step=saved["step"], version=saved["version"])
        family = DelayedFamily(
            family=Family(size=30), latency=StepLatency(median_s=0.01, least_s=0.001, most_s=0.1, sigma=1.0)
        )
        sampler = TaskSampler([family], {family.name: 1.0}, 0, curriculum=CONFIG.curriculum)
        restore_sampler(sampler, journal, saved["loop"], plan)
        begin(journal, CONFIG, plan)
        engine = FakeEngine(
            version=plan.version, script=lambda prompt, sampling: [], token_latency=constant_latency(0.002)
        )
        simulation = Threaded(config=CONFIG, engine=engine, family=family)

        def save(step: int, version: int) -> None:
            loop = {"sampler": sampler.state(), "position": journal.position()}
            state = {"step": step, "version": version, "trained": learner.trained, "loop": loop}
            journal.flush()
            write_atomically(folder / CHECKPOINT, json.dumps(state))
            journal.checkpoint_durable(step, step)

        async def on_step(record: StepRecord) -> None:
            print(f"step {record.step + 1}", flush=True)
            if record.step % 3 == 2 or record.step + 1 == num_steps:
                save(record.step + 1, record.version + record.is_applied)
            await trio.lowlevel.checkpoint()

        if saved["loop"] is None:
            save(0, plan.version)
        await train_loop(
            sampler=sampler,
            config=CONFIG,
            run_one_group=simulation.run_one_group,
            learner=learner,
            publish=simulation.publish,
            max_steps=num_steps - plan.step,
            on_step=on_step,
            initial_version=plan.version,
            first_group_id=plan.next_group_id,
            first_step=plan.step,
            adopted=plan.adopted,
            journal=ThreadedJournal(journal),
        )


if __name__ == "__main__":
    trio.run(run, Path(sys.argv[1]), int(sys.argv[2]))
