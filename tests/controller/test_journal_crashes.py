"""Crash at any moment, as often as you like, and resume: no prompt lost, none trained twice, no version repeated."""

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.controller.curriculum import CurriculumConfig
from tests.controller.journal_world import World, check, live, next_new_tasks


@st.composite
def configs(draw: st.DrawFn) -> RolloutConfig:
    least = draw(st.integers(1, 3))
    return RolloutConfig(
        group_size=2,
        min_groups_per_batch=least,
        max_groups_per_batch=draw(st.one_of(st.none(), st.integers(least, least + 2))),
        max_staleness=draw(st.integers(0, 3)),
        task_max_staleness=draw(st.sampled_from([{}, {"slow": 3}])),
        stragglers=draw(st.sampled_from(["wait", "cancel"])),
        curriculum=draw(st.sampled_from([CurriculumConfig(), CurriculumConfig(low=0.1, high=0.9, min_trials=1)])),
        dynamic_sampling=draw(st.sampled_from([False, False, True])),
        max_consecutive_failures=1000,
        max_fruitless_steps=1000,
    )


@given(
    config=configs(),
    seed=st.integers(0, 2**20),
    save_every=st.integers(1, 4),
    fault_percent=st.sampled_from([0, 30]),
    num_places=st.sampled_from([None, 1, 3]),
    kills=st.lists(st.tuples(st.integers(0, 100), st.sampled_from([0, 50, 100])), max_size=4),
    schedule=st.random_module(),
)
@settings(max_examples=40)
def test_nothing_is_lost_or_trained_twice(
    config: RolloutConfig,
    seed: int,
    save_every: int,
    fault_percent: int,
    num_places: int | None,
    kills: list[tuple[int, int]],
    schedule: Any,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), config, seed, save_every, fault_percent, num_places=num_places)
        for kill_after_s, lost_percent in kills:
            live(world, 1000, kill_after_s=kill_after_s, lost_percent=lost_percent)
        reached = max(world.checkpoints, default=0)
        last = live(world, reached + 6)
        assert [record.step for record in world.records[-6:]] == list(range(reached, reached + 6))
        check(world, last)


@given(
    seed=st.integers(0, 2**20),
    save_every=st.integers(1, 4),
    tasks_per_env=st.integers(2, 6),
    kills=st.lists(st.integers(5, 100), min_size=1, max_size=3),
    schedule=st.random_module(),
)
@settings(max_examples=40)
def test_a_resumed_run_draws_the_tasks_that_came_next(
    seed: int, save_every: int, tasks_per_env: int, kills: list[int], schedule: Any
) -> None:
    """Also where tasks were passed over, for reasons that nobody remembers after the crash."""
    config = RolloutConfig(
        group_size=2,
        min_groups_per_batch=2,
        max_staleness=2,
        curriculum=CurriculumConfig(low=0.1, high=0.9, min_trials=1),
        dynamic_sampling=True,
        max_consecutive_failures=1000,
        max_fruitless_steps=1000,
    )
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), config, seed, save_every, tasks_per_env=tasks_per_env)
        killed = live(world, 1000, kill_after_s=kills[0]).sampler.state()
        for kill_after_s in (*kills[1:], 0):
            resumed = live(world, 1000, kill_after_s=kill_after_s)
            now = resumed.began_with
            assert (now["envs"], now["credits"]) == (killed["envs"], killed["credits"])
            known = now["curriculum"]
            assert next_new_tasks(world, now, known) == next_new_tasks(world, killed, known)
            killed = resumed.sampler.state()
