"""How long episodes are lost: by hand, against simulated truths, and without crying wolf."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.controller.censoring import estimate_censoring


def test_by_hand() -> None:
    # Valid episodes of 1 to 4 turns: 4, 2, 2 and 2; short is 1, long is 4. At 2 turns one of 8 is lost, at 4 one of 3.
    episodes = [(1, False)] * 4 + [(turns, False) for turns in (2, 3, 4)] * 2 + [(2, True), (4, True)]
    estimate = estimate_censoring(episodes)
    assert estimate is not None
    assert (estimate.short_turns, estimate.long_turns) == (1, 4)
    assert estimate.lost_frac == pytest.approx(1 - 7 / 8 * 2 / 3)
    assert estimate.lost_frac_low == 0.0  # one of three proves nothing


def test_resets_that_fail_hit_all_alike() -> None:
    estimate = estimate_censoring([(0, True)] * 90 + [(n, False) for n in range(1, 11)])
    assert estimate is not None
    assert estimate.lost_frac == 0.0


def test_without_a_valid_episode_nothing_is_known() -> None:
    assert estimate_censoring([(3, True)] * 9) is None
    assert estimate_censoring([]) is None


def test_where_everything_beyond_a_turn_is_lost() -> None:
    episodes = [(n, False) for n in range(1, 11) for _ in range(5)] + [(10, True)] * 100
    estimate = estimate_censoring(episodes)
    assert estimate is not None
    assert (estimate.short_turns, estimate.long_turns) == (1, 9)
    assert estimate.lost_frac == 0.0  # lost at 10 turns, and 9 is as far as it looks
    all_lost = estimate_censoring([(1, False)] * 20 + [(4, True)] * 20 + [(5, False)])
    assert all_lost is not None
    assert all_lost.long_turns == 1


def simulated(hazard: float, number: int, seed: int) -> list[tuple[int, bool]]:
    """Episodes of 1 to 10 turns that are lost in each turn with probability `hazard`."""
    rng, episodes = Random(seed), []
    for _ in range(number):
        length = rng.randint(1, 10)
        lost_at = next((turn for turn in range(1, length + 1) if rng.random() < hazard), None)
        episodes.append((length, False) if lost_at is None else (lost_at, True))
    return episodes


@pytest.mark.parametrize("hazard", [0.02, 0.05, 0.1])
def test_it_finds_the_share_that_is_really_lost(hazard: float) -> None:
    estimate = estimate_censoring(simulated(hazard, 5000, 1))
    assert estimate is not None
    truth = 1 - (1 - hazard) ** (estimate.long_turns - estimate.short_turns)
    assert estimate.lost_frac == pytest.approx(truth, abs=0.03)
    assert estimate.lost_frac_low < truth


def test_the_bound_holds_about_as_often_as_it_says() -> None:
    hazard, num_above = 0.05, 0
    for seed in range(300):
        estimate = estimate_censoring(simulated(hazard, 200, seed))
        assert estimate is not None
        truth = 1 - (1 - hazard) ** (estimate.long_turns - estimate.short_turns)
        num_above += estimate.lost_frac_low > truth
    assert num_above / 300 < 0.05  # it says 0.025


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=60))
def test_it_is_a_share_whatever_happened(episodes: list[tuple[int, bool]]) -> None:
    estimate = estimate_censoring(episodes)
    if estimate is not None:
        assert 0.0 <= estimate.lost_frac_low <= estimate.lost_frac <= 1.0
        assert estimate.short_turns <= estimate.long_turns
