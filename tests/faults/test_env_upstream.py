"""Published faults 9, 10, 12 and 29: not ours, and reproduced where --upstream-compat asks for them."""

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from trio.testing import MockClock

from agentrl_jax.algo.advantages import AdvantageConfig, compute_advantages
from agentrl_jax.algo.metrics import is_success
from agentrl_jax.algo.outcomes import outcomes_of
from agentrl_jax.config import TrainConfig
from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.controller.episode import EpisodeConfig
from agentrl_jax.env import Action, EnvFamily, FamilyOptions
from agentrl_jax.errors import NoProgressError
from agentrl_jax.rollouts import Rollouts
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.testing.envs import EnvScript
from agentrl_jax.testing.simulation import SHORT_EPISODES, Simulation
from agentrl_jax.types import EpisodeEnd, Group, Trajectory
from envs import alfworld
from envs.os_interaction.tasks import PublishedSource

CONFIG = RolloutConfig(group_size=4, min_groups_per_batch=2, max_consecutive_failures=10)


# 9: a won game is punished for a bad turn that came before.


def end_of_game(*, upstream_compat: bool) -> tuple[EpisodeEnd, float]:
    """How an episode that the expert wins after one turn without a call ends, and what the game gave for it."""
    family: EnvFamily = alfworld.family(FamilyOptions(upstream_compat=upstream_compat))
    task = family.task("train", 0)
    shown = family.demonstrate(task, Random(0), noise=0.0)
    env = family.make(task)
    env.reset()
    env.step(Action(content="I wonder."))
    results = [env.step(Action(calls=message.tool_calls)) for message in shown if message.role == "assistant"]
    assert results[-1].end is not None
    return results[-1].end, sum(result.reward for result in results)


def recorded(end: EpisodeEnd, given: float, config: EpisodeConfig) -> Trajectory:
    task = alfworld.family(FamilyOptions()).task("train", 0)
    reward = config.reward(end, given)
    return Trajectory(task=task, group_id=0, member=0, end=end, reward=reward, env_reward=given, segments=())


def test_published_fault_9_a_won_game_is_punished_for_an_earlier_turn_and_yet_counts_as_won() -> None:
    right, published = (recorded(*end_of_game(upstream_compat=compat), SHORT_EPISODES) for compat in (False, True))
    assert (right.end, right.reward) == (EpisodeEnd.COMPLETED, 1.0)
    assert (published.end, published.reward) == (EpisodeEnd.VALIDATION_FAILED, -0.2)
    assert is_success(right)
    assert is_success(published)


# 10: the policy is punished for what is not its fault.


class OneFails(Simulation):
    """One of each group's sessions fails."""

    async def run_one_group(self, admitted):  # type: ignore[no-untyped-def]
        numbers = iter(range(self.config.group_size))
        self.script = lambda task: EnvScript(
            fault="error" if next(numbers) == self.config.group_size - 1 else "none", fault_at=1
        )
        return await super().run_one_group(admitted)


async def groups_with(episodes: EpisodeConfig) -> list[Group]:
    engine = FakeEngine(script=lambda prompt, sampling: [])
    run = OneFails(config=CONFIG, engine=engine, episodes=episodes)
    await run.run(1)
    return [group for record in run.records for group in record.groups]


@pytest.mark.parametrize("is_published", [False, True])
async def test_published_fault_10_infrastructure_is_punished_only_on_request(
    autojump_clock: MockClock, is_published: bool
) -> None:
    groups = await groups_with(replace(SHORT_EPISODES, penalises_infrastructure=is_published))
    config = AdvantageConfig(task_normalisation="off")
    for group in groups:
        (failed,) = (each for each in group.trajectories if each.end is EpisodeEnd.ENV_ERROR)
        assert failed.reward == (-0.2 if is_published else None)
        assert failed.votes is config.teaches(failed) is is_published
        # Three members that did the same, and one that was unlucky: there is nothing to learn.
        assert group.has_signal is is_published
    played = [trajectory for group in groups for trajectory in group.trajectories]
    outcomes = outcomes_of(groups, [config.teaches(each) for each in played], ["a"])
    advantages = compute_advantages(outcomes, config).advantages
    assert advantages.any() == is_published


def test_published_fault_10_the_switch_is_upstream_compat_and_evaluations_never_punish() -> None:
    family = alfworld.family(FamilyOptions())
    found = {}
    for compat in (False, True):
        rollouts = Rollouts.__new__(Rollouts)
        rollouts._families = [family]
        rollouts._sessions = rollouts._renderers = {family.name: None}  # type: ignore[dict-item, assignment]
        rollouts._telemetry = rollouts._render_threads = None  # type: ignore[assignment]
        rollouts._config = replace(TrainConfig(), upstream_compat=compat)
        for purpose in ("train", "evaluation"):
            setup = rollouts._setups(None, purpose, 1.0)[family.name]  # type: ignore[arg-type]
            found[compat, purpose] = setup.config.reward(EpisodeEnd.ENGINE_ERROR, 1.0)
    assert found == {
        (False, "train"): None,
        (False, "evaluation"): None,
        (True, "train"): -0.2,
        (True, "evaluation"): None,
    }


# 12 (null, NaN, "" and 0 are one value, lists are sets, changes of SQLite files are lost) is tested where both sides of
# the comparison are: tests/envs/test_dbbench_env.py and tests/envs/test_dbbench_answers.py.


# 29: an index means another problem on another machine.


@pytest.mark.parametrize("is_published", [False, True])
def test_published_fault_29_files_are_in_the_file_systems_order_only_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_published: bool
) -> None:
    folder = tmp_path / "os_interaction"
    (folder / "data/1").mkdir(parents=True)
    (folder / "train_0317").mkdir()
    for name in "bca":
        entry = {"description": name, "evaluation": {"match": "x"}}
        (folder / f"data/1/{name}.json").write_text(json.dumps(entry))
    train = [{"description": "t", "evaluation": {"match": "x"}}]
    (folder / "train_0317/training.json").write_text(json.dumps(train))
    find = Path.glob
    stored = lambda self, pattern: iter(sorted(find(self, pattern), reverse=True))  # noqa: E731
    monkeypatch.setattr(Path, "glob", stored)
    source = PublishedSource(tmp_path, None, upstream_compat=is_published)
    found = [source._chores["eval"][index].description for index in range(source.num_tasks("eval"))]
    assert found == (["c", "b", "a"] if is_published else ["a", "b", "c"])


@pytest.mark.parametrize("is_dynamic", [False, True])
async def test_published_fault_10_an_env_that_is_broken_for_good_ends_the_run_all_the_same(
    autojump_clock: MockClock, is_dynamic: bool
) -> None:
    run = Simulation(
        config=replace(CONFIG, dynamic_sampling=is_dynamic, max_fruitless_steps=1000),
        script=lambda task: EnvScript(fault="error" if task.env == "broken" else "none", fault_at=1),
        engine=FakeEngine(script=lambda prompt, sampling: []),
        episodes=replace(SHORT_EPISODES, penalises_infrastructure=True),
        weights={"fine": 1.0, "broken": 1.0},
    )
    with pytest.raises(NoProgressError, match="10 groups in a row of env 'broken' had no valid member"):
        await run.run(100)
