"""Success-rate bands: rates by hand, what is passed over, and resuming exactly."""

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.controller.curriculum import Curriculum, CurriculumConfig
from agentrl_jax.controller.tasks import TaskSampler
from agentrl_jax.errors import ConfigError
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.testing.envs import EnvScript, ScriptedFamily
from agentrl_jax.testing.simulation import Simulation
from agentrl_jax.testing.virtual import run_virtual
from agentrl_jax.types import EpisodeEnd, Task
from tests.controller.ended_groups import make_group, make_task

BAND = CurriculumConfig(low=0.2, high=0.8, ema=0.5, min_trials=2, outside_prob=0.0)


def sampler_of(config: CurriculumConfig, size: int = 6, seed: int = 1) -> TaskSampler:
    families = [ScriptedFamily(name=name, size=size) for name in "ab"]
    return TaskSampler(families, {"a": 2.0, "b": 1.0}, seed, curriculum=config)


def test_a_rate_is_an_exponential_mean_that_counts_after_enough_trials() -> None:
    curriculum, task = Curriculum(BAND, seed=0), make_task()
    curriculum.observe(task, 1.0)
    assert not curriculum.is_outside(task)  # one trial is not enough
    curriculum.observe(task, 1.0)
    assert curriculum.is_outside(task)  # 1.0 > 0.8
    curriculum.observe(task, 0.0)  # 0.5
    assert not curriculum.is_outside(task)
    curriculum.observe(task, 0.0)  # 0.25
    curriculum.observe(task, 0.0)  # 0.125
    assert curriculum.is_outside(task)
    assert curriculum.state() == {task.key: [0.125, 5]}


def test_tasks_outside_of_the_band_are_passed_over() -> None:
    sampler = sampler_of(BAND)
    solved, unsolved = (sampler._cursors["a"].family.task("train", index) for index in (2, 4))
    for _ in range(2):
        sampler.observe([make_group(1.0, 1.0, task=solved), make_group(0.0, -0.2, task=unsolved)])
    drawn = Counter(task.index for task in (sampler.draw() for _ in range(72)) if task.env == "a")
    assert drawn == {0: 12, 1: 12, 3: 12, 5: 12}
    statistics = sampler.statistics()
    assert (statistics["a"].num_outside, statistics["b"].num_outside) == (2, 0)
    assert statistics["a"].num_drawn == 48
    assert statistics["a"].epoch == pytest.approx(12, abs=0.6)


def test_an_epoch_in_which_nothing_is_wanted_is_drawn_as_it_comes() -> None:
    sampler = sampler_of(BAND, size=3)
    for index in range(3):
        task = sampler._cursors["a"].family.task("train", index)
        for _ in range(2):
            sampler.observe([make_group(1.0, 1.0, task=task)])
    drawn = Counter(task.index for task in (sampler.draw() for _ in range(18)) if task.env == "a")
    assert drawn == {0: 4, 1: 4, 2: 4}


def test_now_and_then_a_task_outside_is_tried_again() -> None:
    curriculum = Curriculum(CurriculumConfig(low=0.2, outside_prob=0.3), seed=3)
    task = make_task()
    for _ in range(2):
        curriculum.observe(task, 0.0)
    verdicts = [curriculum.is_wanted(task, epoch) for epoch in range(2000)]
    assert abs(sum(verdicts) / 2000 - 0.3) < 0.03
    assert verdicts == [curriculum.is_wanted(task, epoch) for epoch in range(2000)]


def test_groups_that_tell_nothing_change_nothing() -> None:
    sampler = sampler_of(BAND)
    sampler.observe([make_group(EpisodeEnd.ENV_ERROR, EpisodeEnd.ENGINE_ERROR)])
    assert sampler.state()["curriculum"] == {}
    off = sampler_of(CurriculumConfig())
    off.observe([make_group(1.0, 0.0)])
    assert off.state()["curriculum"] == {}


def test_only_valid_episodes_count_and_penalties_are_no_success() -> None:
    sampler = sampler_of(BAND)
    task = make_task()
    sampler.observe([make_group(1.0, 0.0, -0.2, EpisodeEnd.ENV_ERROR, task=task)])
    assert sampler.state()["curriculum"] == {task.key: [1 / 3, 1]}


observations = st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0.0, 1.0])), max_size=30)


@given(seen=observations, later=observations, prob=st.sampled_from([0.0, 0.5]), num_draws=st.integers(0, 40))
def test_a_restored_sampler_goes_on_exactly(
    seen: list[tuple[int, float]], later: list[tuple[int, float]], prob: float, num_draws: int
) -> None:
    config = CurriculumConfig(low=0.3, high=0.7, outside_prob=prob)
    sampler, restored = sampler_of(config), sampler_of(config)

    def play(of: TaskSampler, what: list[tuple[int, float]], count: int) -> list[Task]:
        drawn = [of.draw() for _ in range(count)]
        for index, reward in what:
            of.observe([make_group(reward, reward, task=of._cursors["ab"[index % 2]].family.task("train", index))])
        return drawn + [of.draw() for _ in range(count)]

    play(sampler, seen, num_draws)
    restored.restore(json.loads(json.dumps(sampler.state())))
    assert play(restored, later, 20) == play(sampler, later, 20)
    assert restored.state() == sampler.state()
    assert restored.statistics() == sampler.statistics()


@given(seen=observations, num_draws=st.integers(0, 30), schedule=st.lists(st.booleans(), max_size=30))
def test_draws_are_replayed_without_what_was_observed(
    seen: list[tuple[int, float]], num_draws: int, schedule: list[bool]
) -> None:
    config = CurriculumConfig(low=0.3, high=0.7, outside_prob=0.0)
    sampler, crashed = sampler_of(config), sampler_of(config)
    drawn: list[tuple[Task, int | None]] = []
    upcoming = iter(seen)
    for is_draw in [*schedule, *[True] * num_draws]:
        if is_draw:
            drawn.append((sampler.draw(), sampler.last_position))
        elif (found := next(upcoming, None)) is not None:
            task = sampler._cursors["a"].family.task("train", found[0])
            sampler.observe([make_group(found[1], found[1], task=task)])
    assert all(crashed.replay(task, position) for task, position in drawn)
    was, now = sampler.state(), crashed.state()
    assert (was["envs"], was["credits"]) == (now["envs"], now["credits"])


def test_what_cannot_have_been_drawn_is_not_replayed() -> None:
    sampler = sampler_of(CurriculumConfig())
    state = sampler.state()
    other = sampler_of(CurriculumConfig())
    drawn = [other.draw() for _ in range(3)]  # of a, b and a
    assert not sampler.replay(drawn[2], 0)
    assert not sampler.replay(drawn[0], 6)  # a draw passes over less than an epoch
    assert not sampler.replay(drawn[0], None)  # nothing was requeued
    assert not sampler.replay(Task(env="c", split="train", index=0, seed=0), 0)
    assert sampler.state() == state
    sampler.requeue(drawn[1:2])
    assert not sampler.replay(drawn[0], 0)
    assert not sampler.replay(drawn[0], None)
    assert sampler.replay(drawn[1], None)
    assert sampler.replay(drawn[0], 0)
    assert not sampler.replay(drawn[0], 0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"low": -0.1},
        {"high": 1.1},
        {"low": 0.9, "high": 0.1},
        {"low": 0.1, "ema": 0.0},
        {"low": 0.1, "min_trials": 0},
        {"low": 0.1, "outside_prob": 1.0},
        {"ema": 0.5},
        {"outside_prob": 0.0},
    ],
)
def test_bands_that_make_no_sense_or_no_difference_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        CurriculumConfig(**wrong)


def test_in_the_loop_solved_tasks_leave_the_mix_of_the_envs_as_it_is() -> None:
    def script(task: Task) -> EnvScript:
        return EnvScript(rewards=(1.0,) if task.index < 3 else (0.5,))

    run = Simulation(
        config=RolloutConfig(
            group_size=2,
            min_groups_per_batch=6,
            max_staleness=0,
            curriculum=CurriculumConfig(high=0.9, min_trials=1, outside_prob=0.0),
        ),
        script=script,
        weights={"a": 2.0, "b": 1.0},
        engine=FakeEngine(script=lambda prompt, sampling: []),
        tasks_per_env=6,
    )
    run_virtual(lambda: run.run(20))
    groups = [group for record in run.records for group in record.groups]
    assert Counter(group.task.env for group in groups) == {"a": 80, "b": 40}
    solved = [group for group in groups if group.task.index < 3]
    assert len(solved) == 6  # each once
    assert {record.tasks["a"].num_outside for record in run.records[3:]} == {3}


@given(seed=st.integers(0, 9), gaps=st.lists(st.integers(1, 3), min_size=1, max_size=12))
@example(seed=0, gaps=[1, 3, 3, 2, 2])  # a task that was passed over in one epoch and drawn in the next
def test_whatever_was_passed_over_the_draws_can_be_replayed(seed: int, gaps: list[int]) -> None:
    """A draw passes over less than an epoch; which tasks, only the run that drew knew."""
    replayed = TaskSampler([ScriptedFamily(name="a", size=3)], {"a": 1.0}, seed, curriculum=BAND)
    cursor = replayed._cursors["a"]
    position = -1
    for gap in gaps:
        position += gap
        assert replayed.replay(replayed._at(cursor, position), position)
        assert cursor.position == position + 1
    assert cursor.num_drawn == len(gaps)
    again = TaskSampler([ScriptedFamily(name="a", size=3)], {"a": 1.0}, seed, curriculum=BAND)
    again.restore(replayed.state())
    assert [replayed.draw() for _ in range(5)] == [again.draw() for _ in range(5)]
