"""MSK rows that the attention layers decide."""

import numpy as np

from agentrl_jax.models.attention_xla import attend_xla


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
