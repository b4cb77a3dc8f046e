"""Published faults of groups that the pure side decides: who votes, who teaches, what an end means."""

import numpy as np
import pytest

from agentrl_jax.algo.advantages import AdvantageConfig
from agentrl_jax.algo.metrics import task_metrics
from agentrl_jax.errors import RecordError
from agentrl_jax.packing import PackingConfig, build_batch
from agentrl_jax.types import EpisodeEnd, Group
from tests.algo.record_builders import make_segment, make_trajectory, make_turn


def group_of(*members: tuple[float | None, float | None, EpisodeEnd]) -> Group:
    """Each (reward, what the env gave, end); the ids that member i sampled start at 10 · (i + 1)."""
    trajectories = tuple(
        make_trajectory(
            reward, make_segment(make_turn(1, 2, first_id=10 * (i + 1))), member=i, end=end, env_reward=given
        )
        for i, (reward, given, end) in enumerate(members)
    )
    return Group(group_id=0, task=trajectories[0].task, start_version=0, trajectories=trajectories)


def advantage_of_ids(group: Group) -> dict[int, float]:
    batch = build_batch(
        [group],
        advantages=AdvantageConfig(estimator="dr_grpo", task_normalisation="off"),
        packing=PackingConfig(row_tokens=(32,), rows_per_micro_batch=1),
        learner_version=0,
    )
    (row,) = batch.micro_batches
    present = row.segment_ids > 0
    ids = np.where(row.loss_mask, row.ids, 0)[present]
    return {int(i): float(a) for i, a in zip(ids, row.advantages[present], strict=True) if i}


@pytest.mark.parametrize("end", [end for end in EpisodeEnd if end.is_infrastructure])
def test_grp_06_the_accidental_reward_of_a_dead_episode_is_not_reinforced(end: EpisodeEnd) -> None:
    with pytest.raises(RecordError, match=r"cannot have reward 1\.0"):
        make_trajectory(1.0, end=end)
    group = group_of((1.0, 1.0, EpisodeEnd.COMPLETED), (None, 1.0, end), (0.0, 0.0, EpisodeEnd.COMPLETED))
    assert advantage_of_ids(group) == {10: 0.5, 11: 0.5, 30: -0.5, 31: -0.5}
    assert task_metrics([group])["search"].num_successes == 1


@pytest.mark.parametrize("end", [end for end in EpisodeEnd if end.is_valid and end is not EpisodeEnd.COMPLETED])
def test_grp_09_only_ends_that_the_policy_caused_are_punished(end: EpisodeEnd) -> None:
    completed = (1.0, 1.0, EpisodeEnd.COMPLETED)
    advantages = advantage_of_ids(group_of(completed, (-0.2, 0.0, end), (None, None, EpisodeEnd.ENV_ERROR)))
    assert advantages == pytest.approx({10: 0.6, 11: 0.6, 20: -0.6, 21: -0.6})
