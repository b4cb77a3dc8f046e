"""RES: prompts and groups that a resume loses, repeats or reorders."""

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.controller.journal import Journal, read_history
from agentrl_jax.controller.journal_resume import begin, plan_start
from agentrl_jax.controller.loop import train_loop
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.testing.envs import EnvScript
from agentrl_jax.testing.simulation import Simulation
from agentrl_jax.testing.virtual import run_virtual
from agentrl_jax.types import EpisodeEnd, Group, Task, Trajectory
from tests.controller.journal_world import World, check, live

SYNC = RolloutConfig(group_size=2, min_groups_per_batch=2, max_staleness=0, max_fruitless_steps=1000)


def trained_keys(world: World, num_steps: int) -> list[str]:
    process = live(world, num_steps)
    check(world, process)
    return [key for _, key in process.trained]


def test_res_01_ten_steps_are_five_and_five_more(tmp_path: Path) -> None:
    whole = World(tmp_path / "whole", SYNC, seed=1, save_every=5)
    halves = World(tmp_path / "halves", SYNC, seed=1, save_every=5)
    first = trained_keys(halves, 5)
    assert first + trained_keys(halves, 10)[len(first) :] == trained_keys(whole, 10)


@pytest.mark.parametrize("num_epochs", [1, 2])
def test_res_03_a_resume_at_the_end_of_an_epoch_goes_on(num_epochs: int, tmp_path: Path) -> None:
    world = World(tmp_path, SYNC, seed=2, save_every=1, tasks_per_env=4)
    steps = (
        6 * num_epochs
    )  # two groups each, of the eight and four draws that an epoch of `fast` and half one of `slow` takes
    before = trained_keys(world, steps)
    after = trained_keys(world, 2 * steps)
    assert len(after) == 2 * len(before) == 4 * steps
    assert after[: len(before)] == before


@pytest.mark.parametrize("kill_after_s", [None, 260])
def test_res_04_a_resume_amid_the_second_epoch_keeps_its_order(kill_after_s: int | None, tmp_path: Path) -> None:
    whole = World(tmp_path / "whole", SYNC, seed=7, save_every=5, tasks_per_env=5)
    parts = World(tmp_path / "parts", SYNC, seed=7, save_every=5, tasks_per_env=5)
    live(parts, 5 if kill_after_s is None else 1000, kill_after_s=kill_after_s)
    num_drawn = parts.checkpoints[max(parts.checkpoints)].loop_state["sampler"]["envs"]["fast"]["num_drawn"]
    assert num_drawn > 5  # of five tasks
    assert num_drawn % 5
    assert trained_keys(parts, 30) == trained_keys(whole, 30)


def test_res_09_buffered_groups_are_trained_by_the_resumed_run(tmp_path: Path) -> None:
    config = RolloutConfig(group_size=2, min_groups_per_batch=2, max_groups_per_batch=2, max_staleness=1)
    world = World(tmp_path, config, seed=3, save_every=1, tasks_per_env=40)  # none comes twice in so few steps
    live(world, 1)
    assert len(world.plans[0].adopted) == 0
    keys = trained_keys(world, 12)
    assert len(world.plans[1].adopted) > 0
    assert len(set(keys)) == len(keys) == 2 * 12
    drawn = world.simulation(0).sampler()
    assert {drawn.draw().key for _ in range(len(keys) - config.num_permits)} <= set(keys)


def test_res_10_a_kill_with_twenty_in_flight_loses_no_prompt(tmp_path: Path) -> None:
    config = RolloutConfig(group_size=2, min_groups_per_batch=10, max_staleness=1, max_fruitless_steps=1000)
    world = World(tmp_path, config, seed=4, save_every=2, tasks_per_env=20)
    live(world, 1000, kill_after_s=40)
    history, _ = read_history(tmp_path)
    assert sum(entry.state != "consumed" for entry in history.groups.values()) == 20
    process = live(world, max(world.checkpoints) + 6)
    check(world, process)
    trained = Counter(key for _, key in process.trained)
    drawn = world.simulation(0).sampler()
    dataset = Counter(drawn.draw().key for _ in range(40))
    assert all(trained[key] >= count for key, count in dataset.items())


def test_res_11_a_resume_at_version_500_admits_no_burst() -> None:
    config = RolloutConfig(group_size=2, min_groups_per_batch=3, max_staleness=1, max_fruitless_steps=1000)
    run = Simulation(config=config, script=EnvScript(step_s=2.0), engine=FakeEngine(version=500))

    async def main() -> None:
        await train_loop(
            sampler=run.sampler(),
            config=config,
            run_one_group=run.run_one_group,
            learner=run.learner,
            publish=run.publish,
            max_steps=4,
            on_step=run.on_step,
            initial_version=500,
            first_group_id=7000,
            first_step=500,
        )

    run_virtual(main)
    assert 0 < run.log.peak_open <= config.num_permits * config.group_size
    assert [(record.step, record.version) for record in run.records] == [(500 + n, 500 + n) for n in range(4)]
    assert all(age <= 1 for record in run.records for age in record.ages)


def text_group(group_id: int, error: str = "") -> Group:
    """Two episodes that never spoke: `error` is all they leave."""
    task = Task(env="tool\u2028\x85output", split="train", index=group_id, seed=0)
    members = tuple(
        Trajectory(
            task=task,
            group_id=group_id,
            member=member,
            end=EpisodeEnd.MAX_TURNS,
            reward=float(member),
            env_reward=None,
            segments=(),
            error=error,
        )
        for member in range(2)
    )
    return Group(group_id=group_id, task=task, start_version=0, trajectories=members)


CHILD = """
import os, signal, sys
from pathlib import Path
from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.controller.journal import Journal
from agentrl_jax.controller.journal_resume import begin, plan_start
from tests.faults.test_res_journal import text_group
journal = Journal(Path(sys.argv[1]))
config = RolloutConfig(group_size=2, min_groups_per_batch=4)
begin(journal, config, plan_start(journal, config))
journal.checkpoint_durable(0, 0)
for group_id in range(8):
    group = text_group(group_id)
    journal.admitted(group_id, group.task, 0, None)
    if group_id % 2 == 0 or group_id == 7:
        journal.completed(group)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_res_12_five_complete_groups_survive_a_kill_and_none_twice(tmp_path: Path) -> None:
    config = RolloutConfig(group_size=2, min_groups_per_batch=4)
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    root = Path(__file__).parents[2]
    child = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path)], cwd=root, env=environment, check=False)
    assert child.returncode == -signal.SIGKILL
    for _ in range(2):  # a second kill before anything was trained changes nothing
        with Journal(tmp_path) as journal:
            plan = plan_start(journal, config, step=0, version=0)
            begin(journal, config, plan)
        assert [group.group_id for group in plan.adopted] == [0, 2, 4, 6, 7]
    with Journal(tmp_path) as journal:
        journal.consumed(1, journal.history.version, {0: 0, 2: 0, 4: 0, 6: 0, 7: 0})
        journal.checkpoint_durable(1, 1)
    with Journal(tmp_path) as journal:
        plan = plan_start(journal, config, step=1, version=journal.history.version)
        assert (plan.adopted, plan.reissued) == ((), {})
        assert [task.index for task in journal.history.pending] == [1, 3, 5]
        assert journal.history.problems == []


def test_res_13_line_separators_in_tool_output_split_no_record(tmp_path: Path) -> None:
    error = "a\u2028b\u0085c\x1e\r\n{}"
    group = text_group(0, error)
    with Journal(tmp_path) as journal:
        config = RolloutConfig(group_size=2, min_groups_per_batch=1)
        begin(journal, config, plan_start(journal, config))
        journal.admitted(0, group.task, 0, None)
        journal.completed(group)
    with Journal(tmp_path) as journal:
        loaded = journal.load(0)
        assert journal.history.groups[0].task == group.task
        assert loaded is not None
        assert [trajectory.error for trajectory in loaded.trajectories] == [error, error]
