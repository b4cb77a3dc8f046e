"""MSK rows that the attention layers decide."""

from dataclasses import replace

import numpy as np

from agentrl_jax.algo.advantages import AdvantageConfig
from agentrl_jax.models.attention_xla import attend_xla
from agentrl_jax.packing import PackingConfig, build_batch
from agentrl_jax.types import as_ids
from tests.algo.record_builders import make_group, make_segment, make_turn
from tests.learner.small import make_learner


def test_msk_06_attention_covers_prompt_and_response_whatever_is_trained() -> None:
    lengths, columns = [5, 3], 5
    segment_ids = (np.arange(columns) < np.array(lengths)[:, None]).astype(np.int32)
    positions = np.arange(columns, dtype=np.int32) * segment_ids
    flat = np.zeros((2, columns, 1, columns), np.float32)
    # With equal scores and unit vectors as values, a token's output says whom it attends.
    whom = np.broadcast_to(np.eye(columns, dtype=np.float32)[None, :, None], flat.shape)
    out = np.asarray(attend_xla(flat, flat, whom, segment_ids, positions))[:, :, 0]
    last = [out[row, length - 1] > 0 for row, length in enumerate(lengths)]
    assert np.array(last).astype(int).tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    np.testing.assert_allclose(out[0, 4], 1 / 5, rtol=1e-6)


def test_msk_06_what_is_sampled_is_scored_after_its_whole_prompt() -> None:
    """Two episodes of 5 and 3 ids, of which 2 and 1 were sampled, as they reach the learner in one row."""
    learner = make_learner()

    def scores(first: int, second: int) -> tuple[np.ndarray, np.ndarray]:
        turns = [replace(make_turn(3, 2), context_ids=as_ids([first, 8, 9]))]
        turns += [replace(make_turn(2, 1), context_ids=as_ids([second, 4]))]
        group = make_group([1.0, 0.0], segments=[[make_segment(turn)] for turn in turns])
        packing = PackingConfig(row_tokens=(8,), rows_per_micro_batch=1)
        plain = AdvantageConfig(task_normalisation="off")
        (tokens,) = build_batch([group], advantages=plain, packing=packing, learner_version=0).micro_batches
        logprobs = learner.logprobs(tokens)[tokens.loss_mask]
        assert logprobs.shape == (3,)
        return logprobs[:2], logprobs[2:]

    (long, short), (other_long, same_short), (same_long, other_short) = scores(7, 3), scores(1, 3), scores(7, 2)
    assert np.abs(long - other_long).min() > 1e-4
    assert np.abs(short - other_short).min() > 1e-4
    np.testing.assert_allclose(same_short, short, atol=1e-6)
    np.testing.assert_allclose(same_long, long, atol=1e-6)
