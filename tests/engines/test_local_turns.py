"""A turn's progress by hand: where it is cut, which version sampled what, and what a record makes of it."""

import numpy as np
import pytest

from agentrl_jax.engines.local.turns import ServedTurn
from agentrl_jax.types import SamplingParams, VersionSpan, as_ids


def new(max_new_tokens: int = 9, *, is_watched: bool = False) -> ServedTurn:
    sampling = SamplingParams(temperature=1.0, max_new_tokens=max_new_tokens, seed=0, stop_ids=(7, 8))
    return ServedTurn(5, as_ids([1]), sampling, "s", is_watched=is_watched)


@pytest.mark.parametrize(
    ("limit", "room", "taken", "reason"),
    [(9, 9, [1, 2, 8], "stop"), (9, 3, [1, 2, 8], "stop"), (3, 9, [1, 2, 8], "stop"), (2, 9, [1, 2], "length"),
     (9, 2, [1, 2], "length")],
)  # fmt: skip
def test_a_block_is_cut_behind_the_first_stop_id_or_at_the_first_limit(
    limit: int, room: int, taken: list[int], reason: str
) -> None:
    turn = new(limit)
    assert turn.extend([1, 2, 8, 3, 7], [-0.1, -0.2, -0.3, -0.4, -0.5], version=0, room=room) == len(taken)
    assert (turn.ids, turn.finish_reason) == (taken, reason)
    assert turn.logprobs == [-0.1, -0.2, -0.3][: len(taken)]


def test_each_version_has_the_span_that_it_sampled_and_what_is_not_finite_is_masked() -> None:
    turn = new(6)
    assert turn.extend([1, 2], [-1.0, 1e-7], version=3, room=9) == 2  # rounded to just above 0
    with pytest.raises(ValueError, match="turn 5 of session 's' has not finished"):
        turn.completion(engine="e", pool="current")
    for version, logprob in ((4, float("nan")), (4, -2.0), (6, float("-inf")), (6, -3.0)):
        turn.extend([1], [logprob], version=version, room=9)
    completion = turn.completion(engine="e", pool="current")
    assert completion.version_spans == tuple(
        VersionSpan(version=version, start=start, end=start + 2) for version, start in ((3, 0), (4, 2), (6, 4))
    )
    assert completion.logprobs.tolist() == [-1.0, 0.0, 0.0, -2.0, 0.0, -3.0]
    assert completion.loss_mask.tolist() == [True, True, False, True, False, True]
    np.testing.assert_array_equal(completion.ids, [1, 2, 1, 1, 1, 1])


def test_only_a_watched_turn_has_news_and_each_piece_once() -> None:
    turn, quiet = new(is_watched=True), new()
    for one in (turn, quiet):
        assert one.news() is None
        one.extend([1, 2], [-1.0, -2.0], version=3, room=9)
    assert quiet.news() is None
    first = turn.news()
    assert first is not None
    assert (first.ids, first.logprobs, first.version) == ((1, 2), (-1.0, -2.0), 3)
    assert turn.news() is None
    turn.extend([3], [-3.0], version=4, room=9)
    second = turn.news()
    assert second is not None
    assert (second.ids, second.logprobs, second.version) == ((3,), (-3.0,), 4)
