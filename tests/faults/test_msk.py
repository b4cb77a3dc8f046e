"""Published faults of loss masks."""

from dataclasses import replace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.algo.advantages import AdvantageConfig
from agentrl_jax.algo.losses import LossConfig, make_loss
from agentrl_jax.batch import TokenBatch
from agentrl_jax.errors import RecordError
from agentrl_jax.packing import PackedBatch, PackingConfig, build_batch, pack_demonstrations, unpack
from agentrl_jax.types import EpisodeEnd, Group, Turn, VersionSpan, as_ids
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
    return Group(group_id=0, task=members[0].task, start_version=0, trajectories=members)


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


def spoken(text: str, *, before: str) -> Turn:
    """A turn whose ids are the bytes of what was said before it, and of what the policy said."""
    turn = make_turn(1, len(text))
    completion = replace(turn.completion, ids=as_ids(list(text.encode())))
    return replace(turn, context_ids=as_ids(list(before.encode())), completion=completion)


def test_msk_03_what_is_trained_reads_as_the_actions_and_nothing_else() -> None:
    talk = [("look", "You are in a room."), ("open door", " It has a door."), ("done", " Open.")]
    turns = [spoken(action, before=observation) for action, observation in talk]
    packing = PackingConfig(row_tokens=(64,), rows_per_micro_batch=1)
    group = make_group([1.0, 0.0], segments=[[make_segment(*turns)], [make_segment(spoken("quit", before="?"))]])
    _, columns = unpack(build_batch([group], advantages=PLAIN, packing=packing, learner_version=0))
    mask = columns["loss_mask"]
    assert bytes(columns["ids"][mask].tolist()).decode() == "lookopen doordone" + "quit"
    assert bytes(columns["ids"][~mask].tolist()).decode() == "".join(text for _, text in talk) + "?"


def test_msk_11_a_stop_id_that_is_the_id_of_padding_is_trained() -> None:
    """Padding has id 0; what counts is where a segment ends, not which id stands there."""
    stop = replace(make_turn(1, 2), completion=replace(make_turn(1, 2).completion, ids=as_ids([7, 0])))
    batch = build([make_group([1.0, 0.0], segments=[[make_segment(stop)]] * 2)])
    (tokens,) = batch.micro_batches
    assert (tokens.ids == 0).sum() == 2 + 10
    assert tokens.ids[tokens.loss_mask].tolist() == [7, 0, 7, 0]
    loss = make_loss(LossConfig())
    slopes = jax.grad(lambda x: loss(x, tokens).loss.total)(jnp.full((1, 16), -0.4))
    assert (np.asarray(slopes) != 0).tolist() == tokens.loss_mask.tolist()


def test_msk_13_a_turn_that_goes_on_has_a_mask_as_long_as_its_ids() -> None:
    """Two interruptions: what was sampled before the last one is masked, the rest is trained."""
    first = replace(make_turn(1, 2).completion, loss_mask=np.zeros(2, np.bool_))
    spans = tuple(VersionSpan(version=i, start=2 * i, end=2 * i + 2) for i in range(3))
    longer = {"ids": as_ids(range(10, 16)), "logprobs": np.full(6, -0.5, np.float32), "version_spans": spans}
    with pytest.raises(RecordError, match="one length, got 6, 6 and 2"):
        replace(first, **longer)
    whole = replace(first, **longer, loss_mask=np.arange(6) >= 4)
    segment = make_segment(replace(make_turn(1, 2), completion=whole))
    vectors = segment.ids, segment.loss_mask, segment.behavior_logprobs, segment.versions
    assert {len(vector) for vector in vectors} == {7}
    batch = build_batch(
        [make_group([1.0, 0.0], segments=[[segment], [make_segment()]])],
        advantages=PLAIN,
        packing=PACKING,
        learner_version=2,
    )
    (tokens,) = batch.micro_batches
    assert tokens.ids[tokens.loss_mask].tolist() == [14, 15, 10, 11, 12]
    assert tokens.version_lag[tokens.loss_mask].tolist() == [0, 0, 2, 2, 2]


def test_msk_15_turns_within_their_cap_are_kept_whole_however_many() -> None:
    """A cap of 8 is a turn's: three turns of 6 are 18 trained tokens."""
    segment = make_segment(*(make_turn(1, 6, first_id=10 * i) for i in (1, 2, 3)))
    packing = PackingConfig(row_tokens=(32,), rows_per_micro_batch=1)
    group = make_group([1.0, 0.0], segments=[[segment], [make_segment(make_turn(1, 1, first_id=50))]])
    batch = build_batch([group], advantages=PLAIN, packing=packing, learner_version=0)
    (tokens,) = batch.micro_batches
    assert tokens.ids[tokens.loss_mask].tolist() == [10 * i + n for i in (1, 2, 3) for n in range(6)] + [50]


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
