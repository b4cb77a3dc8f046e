"""Published faults of reductions that the host decides: whose reward counts, what is masked, how many there are."""

import numpy as np
import pytest
from trio.testing import MockClock

from agentrl_jax.algo.advantages import AdvantageConfig
from agentrl_jax.algo.metrics import task_metrics
from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.packing import PackingConfig, build_batch, unpack
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.testing.envs import EnvScript
from agentrl_jax.testing.simulation import Simulation
from agentrl_jax.types import EpisodeEnd, Group, Segment
from tests.algo.record_builders import make_group, make_segment, make_trajectory, make_turn

PLAIN = AdvantageConfig(estimator="dr_grpo", task_normalisation="off")
PACKING = PackingConfig(row_tokens=(32,), rows_per_micro_batch=1)


def group_of(*members: tuple[float, EpisodeEnd, Segment | None]) -> Group:
    trajectories = tuple(
        make_trajectory(reward, *([segment] if segment else []), member=i, end=end)
        for i, (reward, end, segment) in enumerate(members)
    )
    return Group(group_id=0, task=trajectories[0].task, start_version=0, trajectories=trajectories)


@pytest.mark.parametrize("num_prompt_tokens", [1, 20])
def test_agg_17_the_length_of_a_prompt_changes_neither_penalty_nor_mask(num_prompt_tokens: int) -> None:
    cut = make_segment(make_turn(num_prompt_tokens, 3, first_id=50))
    group = group_of(
        (1.0, EpisodeEnd.COMPLETED, make_segment(make_turn(num_prompt_tokens, 2))),
        (-0.2, EpisodeEnd.TURN_TRUNCATED, cut),
    )
    for overlong, expected in (("train", [0.6] * 2 + [-0.6] * 3), ("mask", [0.6] * 2)):
        config = AdvantageConfig(estimator="dr_grpo", task_normalisation="off", overlong=overlong)
        _, columns = unpack(build_batch([group], advantages=config, packing=PACKING, learner_version=0))
        np.testing.assert_allclose(columns["advantages"][columns["loss_mask"]], expected, rtol=1e-6)


async def test_agg_18_a_step_on_three_prompts_plays_twelve_episodes(autojump_clock: MockClock) -> None:
    engine = FakeEngine(script=lambda prompt, sampling: [])
    config = RolloutConfig(group_size=4, min_groups_per_batch=3, max_groups_per_batch=3, max_staleness=0)
    run = Simulation(config=config, engine=engine, script=EnvScript(rewards=(0.0, 1.0)))
    await run.run(2)
    assert [(len(record.groups), sum(record.ends.values())) for record in run.records] == [(3, 12)] * 2
    assert (run.log.num_made, engine.statistics().num_requests) == (2 * 12, 2 * 12 * 2)


def test_agg_18_three_prompts_of_four_are_twelve_episodes() -> None:
    groups = [make_group([1.0, 0.0, 0.0, 0.0], group_id=i, index=i) for i in range(3)]
    batch = build_batch(groups, advantages=PLAIN, packing=PACKING, learner_version=0)
    assert (batch.stats["num_groups"], batch.stats["num_trajectories"], batch.stats["num_segments"]) == (3, 12, 12)
    assert task_metrics(groups)["search"].num_episodes == 12


@pytest.mark.parametrize("end", [EpisodeEnd.CONTEXT_LIMIT, EpisodeEnd.WALL_TIMEOUT])
def test_agg_21_an_episode_that_sampled_nothing_places_its_reward_nowhere(end: EpisodeEnd) -> None:
    """Valid, but without a vote: what the policy did not do says nothing about it. It stays an attempt that failed."""
    silent = (10.0, end, None)
    alone = group_of(silent, (0.0, EpisodeEnd.COMPLETED, make_segment()))
    batch = build_batch([alone], advantages=PLAIN, packing=PACKING, learner_version=0)
    assert not unpack(batch)[1]["advantages"].any()
    assert (batch.loss_weight, batch.stats["num_silent"], batch.stats["num_signal_groups"]) == (0, 1, 0)
    both = (0.0, EpisodeEnd.COMPLETED, make_segment()), (1.0, EpisodeEnd.COMPLETED, make_segment())
    with_silent, without = (
        build_batch([group], advantages=PLAIN, packing=PACKING, learner_version=0)
        for group in (group_of(silent, *both), group_of(*both))
    )
    for name, values in unpack(without)[1].items():
        assert values.tolist() == unpack(with_silent)[1][name].tolist(), name
    metrics = task_metrics([alone])["search"]
    assert (metrics.num_valid, metrics.num_episodes, metrics.num_successes) == (2, 2, 1)


def test_agg_21_a_turn_whose_tokens_are_all_masked_still_votes() -> None:
    """The policy did act; only its log-probabilities are not known."""
    masked = make_segment(make_turn(1, 2, masked=[0, 1]))
    group = group_of((0.0, EpisodeEnd.COMPLETED, masked), (1.0, EpisodeEnd.COMPLETED, make_segment()))
    batch = build_batch([group], advantages=PLAIN, packing=PACKING, learner_version=0)
    columns = unpack(batch)[1]
    assert set(columns["advantages"][columns["loss_mask"]].tolist()) == {0.5}


def test_agg_22_one_prompt_of_n_is_a_batch() -> None:
    group = make_group([1.0, 0.0, 0.0, 0.0])
    packing = PackingConfig(row_tokens=(8,), rows_per_micro_batch=8)
    batch = build_batch([group], advantages=AdvantageConfig(), packing=packing, learner_version=0)
    assert batch.loss_weight == 12
    assert [micro_batch.ids.shape for micro_batch in batch.micro_batches] == [(8, 8)]
