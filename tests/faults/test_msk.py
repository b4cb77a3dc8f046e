"""Published faults of loss masks."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.algo.advantages import AdvantageConfig
from agentrl_jax.algo.losses import LossConfig, make_loss
from agentrl_jax.batch import TokenBatch
from agentrl_jax.packing import PackedBatch, PackingConfig, build_batch, pack_demonstrations
from agentrl_jax.types import EpisodeEnd, Group
from tests.algo.record_builders import make_group, make_segment, make_trajectory, make_turn

PACKING = PackingConfig(row_tokens=(16,), rows_per_micro_batch=1)
PLAIN = AdvantageConfig(estimator="dr_grpo", task_normalisation="off")


def build(groups: list[Group]) -> PackedBatch:
    return build_batch(groups, advantages=PLAIN, packing=PACKING, learner_version=0)


def ended(*trajectories: tuple[float | None, EpisodeEnd, bool]) -> Group:
    """Each (reward, end, whether it has tokens)."""
    members = tuple(
        make_trajectory(reward, *([make_segment()] if has_tokens else []), member=i, end=end)
        for i, (reward, end, has_tokens) in enumerate(trajectories)
    )
    return Group(group_id=0, task=members[0].task, admitted_version=0, trajectories=members)


def test_msk_01_the_first_sampled_token_is_trained() -> None:
    ids, mask = np.array([3, 4, 5, 6], np.int32), np.array([False, False, True, True])
    (tokens,) = pack_demonstrations([(ids, mask)], PackingConfig(row_tokens=(4,), rows_per_micro_batch=1)).micro_batches
    logprobs = jnp.array([[-1.0, -10.0, -100.0, -1000.0]])
    loss, *_ = make_loss(LossConfig(name="sft"))(logprobs, tokens)
    assert (float(loss.total), float(loss.weight)) == (1100.0, 2.0)


def test_msk_02_exactly_the_sampled_ids_are_trained() -> None:
    turns = [make_turn(4, 3, first_id=10), make_turn(2, 5, first_id=30)]
    batch = build([make_group([1.0, 0.0], segments=[[make_segment(*turns)], [make_segment(make_turn(3, 1))]])])
    trained = np.concatenate([tokens.ids[tokens.loss_mask] for tokens in batch.micro_batches])
    assert batch.num_loss_tokens == sum(len(turn.completion.ids) for turn in turns) + 1
    assert sorted(trained.tolist()) == [10, 10, 11, 12, 30, 31, 32, 33, 34]


@pytest.mark.parametrize("name", ["grpo", "gspo", "cispo", "policy_gradient", "sft"])
def test_msk_05_advantages_off_the_mask_have_no_influence(name: str) -> None:
    def run(advantages: list[float]) -> tuple[float, list]:
        (tokens,) = build([make_group([1.0, 0.0])]).micro_batches
        changed = np.zeros_like(tokens.advantages)
        changed[0, 2:6] = advantages
        mask = np.zeros_like(tokens.loss_mask)
        mask[0, 2:4] = True
        tokens = tokens._replace(advantages=changed, loss_mask=mask, has_signal=mask)
        loss = make_loss(LossConfig(name=name))
        total, gradient = jax.value_and_grad(lambda x: loss(x, tokens).loss.total)(jnp.full((1, 16), -0.4))
        return float(total), gradient.tolist()

    assert run([1, 1, 10, 10]) == run([1, 1, 0, 0])


def test_msk_12_one_mask_in_the_loss_and_in_its_weight_and_all_truncated_costs_nothing() -> None:
    def total(tokens: TokenBatch) -> tuple[float, float]:
        loss = make_loss(LossConfig())(jnp.full(tokens.ids.shape, jnp.nan), tokens).loss
        return float(loss.total), float(loss.weight)

    truncated = build([ended(*[(-0.2, EpisodeEnd.TURN_TRUNCATED, True)] * 3)])
    assert [total(tokens) for tokens in truncated.micro_batches] == [(0.0, 0.0)]
    assert truncated.loss_weight == 0.0
    mixed = build(
        [make_group([1.0, 0.0]), make_group([0.5, 0.5], group_id=1), make_group([None, 1.0, 0.0], group_id=2)]
    )
    weights = sum(float(make_loss(LossConfig())(jnp.zeros((1, 16)), t).loss.weight) for t in mixed.micro_batches)
    assert weights == mixed.loss_weight == 4 * 3


def test_msk_16_an_env_that_dies_before_the_first_token_leaves_no_row_and_no_vote() -> None:
    batch = build([ended((1.0, EpisodeEnd.COMPLETED, True), (0.0, EpisodeEnd.COMPLETED, True))])
    dead = build(
        [
            ended(
                (1.0, EpisodeEnd.COMPLETED, True),
                (None, EpisodeEnd.ENV_ERROR, False),
                (0.0, EpisodeEnd.COMPLETED, True),
            )
        ]
    )
    assert dead.stats["num_invalid"] == batch.stats["num_invalid"] + 1 == 1
    for alive, with_dead in zip(batch.micro_batches, dead.micro_batches, strict=True):
        chex.assert_trees_all_equal(alive, with_dead)
