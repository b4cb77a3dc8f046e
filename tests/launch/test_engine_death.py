"""An engine process that is killed while it serves turns: whose episodes end how, and what becomes of the run."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
import trio.testing

from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.controller.episode import EpisodeConfig, EpisodeSetup
from agentrl_jax.controller.group import AdmittedGroup, run_group
from agentrl_jax.controller.loop import train_loop
from agentrl_jax.controller.ports import LoopResult, StepRecord
from agentrl_jax.controller.tasks import TaskSampler
from agentrl_jax.engines.pool import EnginePool, PoolConfig
from agentrl_jax.engines.protocol import Engine
from agentrl_jax.engines.sglang import open_sglang_engine
from agentrl_jax.engines.weight_folder import tensor_shapes
from agentrl_jax.env import Action, Message
from agentrl_jax.errors import NoProgressError
from agentrl_jax.testing.envs import EnvScript, ScriptedFamily, ScriptedSession, SessionLog
from agentrl_jax.testing.learner import FakeLearner
from agentrl_jax.testing.renderer import FakeRenderer
from agentrl_jax.types import EpisodeEnd, Group, Ids, Task
from tests.launch.engine_process import MODEL, server, write_policy

SCRIPT = EnvScript(rewards=(0.0, 1.0))
CONFIG = RolloutConfig(group_size=2, min_groups_per_batch=2, max_staleness=0)


class OneTokenRenderer(FakeRenderer):
    """Any id ends a turn, so that a policy that was never trained takes several."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return tuple(range(MODEL.vocab_size))

    def parse(self, ids: Ids) -> Action:
        return Action(content=f"{len(ids)} ids")


@dataclass(kw_only=True)
class Run:
    """The loop over one engine process, which stops when it is about to get the first second turn."""

    pool: EnginePool
    pid: int
    is_stopped: trio.Event = field(default_factory=trio.Event)
    is_back: trio.Event = field(default_factory=trio.Event)  # until then, nobody begins with an engine that is away
    log: SessionLog = field(default_factory=SessionLog)
    groups: list[Group] = field(default_factory=list)
    records: list[StepRecord] = field(default_factory=list)

    def choose(self, group_id: int, member: int, turn: int) -> Engine:
        if turn == 1 and not self.is_stopped.is_set():
            os.kill(self.pid, signal.SIGSTOP)
            self.is_stopped.set()
        return self.pool(group_id, member, turn)

    async def run_one_group(self, admitted: AdmittedGroup) -> Group:
        setup = EpisodeSetup(
            sessions=lambda task: WaitingSession(task, self),
            tools=(),
            renderer=OneTokenRenderer(),
            choose_engine=self.choose,
            config=EpisodeConfig(max_turns=4, max_new_tokens=8, max_context_tokens=64),
            run_seed=0,
        )
        self.groups.append(await run_group(admitted, group_size=CONFIG.group_size, setup=setup))
        return self.groups[-1]

    async def on_step(self, record: StepRecord) -> None:
        self.records.append(record)

    async def publish(self, version: int) -> None:
        raise AssertionError("no step changes the weights")

    async def __call__(self, num_steps: int) -> LoopResult:
        return await train_loop(
            sampler=TaskSampler([ScriptedFamily(name="a", size=8)], {"a": 1.0}, 0),
            config=CONFIG,
            run_one_group=self.run_one_group,
            learner=FakeLearner(without_signal=range(num_steps)),
            publish=self.publish,
            max_steps=num_steps,
            on_step=self.on_step,
        )


class WaitingSession(ScriptedSession):
    def __init__(self, task: Task, run: Run) -> None:
        super().__init__(task, SCRIPT, run.log)
        self._run = run

    async def start(self) -> tuple[Message, ...]:
        if self._run.is_stopped.is_set():
            await self._run.is_back.wait()
        return await super().start()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policy")
    write_policy(path, tmp_path_factory.mktemp("tokenizer"))
    return path


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[tuple[Run, trio.Process, int]]:
    async with server(folder, 0) as (process, port):
        url = f"http://127.0.0.1:{port}"
        async with open_sglang_engine(url, tensors=tensor_shapes(folder), name="engine-0") as engine:
            pool = EnginePool([engine], [], PoolConfig(lagging_prob=0.0), 0)
            yield Run(pool=pool, pid=process.pid), process, port


async def kill_in_a_turn(run: Run, process: trio.Process) -> None:
    await run.is_stopped.wait()
    await trio.testing.wait_all_tasks_blocked(0.05)  # what was asked of it is on its way
    process.kill()
    await process.wait()


def check_dropped(groups: list[Group], port: int) -> None:
    for trajectory in [t for group in groups for t in group.trajectories]:
        assert trajectory.end is EpisodeEnd.ENGINE_ERROR
        assert trajectory.error is not None
        assert f"http://127.0.0.1:{port}" in trajectory.error


@pytest.mark.slow
async def test_a_killed_engine_costs_the_episodes_in_its_turns_and_the_run_goes_on(folder: Path) -> None:
    results = []
    is_done = trio.Event()
    async with running(folder) as (run, process, port), trio.open_nursery() as nursery:

        async def train() -> None:
            results.append(await run(4))
            is_done.set()

        nursery.start_soon(train)
        await kill_in_a_turn(run, process)
        async with server(folder, port):
            with trio.fail_after(30.0):
                run.is_back.set()
                await is_done.wait()
    (result,) = results
    dropped = [group for record in run.records for group in record.dropped]
    assert (result.num_steps, len(dropped), len(run.groups)) == (4, 2, 10)
    check_dropped(dropped, port)
    consumed = [t for record in run.records for group in record.groups for t in group.trajectories]
    assert {(t.end, t.reward) for t in consumed} == {(EpisodeEnd.COMPLETED, 1.0)}
    assert (result.ledger.num_dropped, result.admission.num_held, run.log.num_open) == (2, 0, 0)


@pytest.mark.slow
async def test_an_engine_that_does_not_come_back_ends_the_run_by_name(folder: Path) -> None:
    failures = []
    async with running(folder) as (run, process, port), trio.open_nursery() as nursery:
        run.is_back.set()

        async def train() -> None:
            with pytest.raises(NoProgressError) as caught:
                await run(4)
            failures.append(str(caught.value))

        nursery.start_soon(train)
        await kill_in_a_turn(run, process)
    assert "10 groups in a row of env 'a' had no valid member, most often because of engine_error" in failures[0]
    assert f"http://127.0.0.1:{port}" in failures[0]
    assert (run.records, run.log.num_open) == ([], 0)
    check_dropped(run.groups, port)
