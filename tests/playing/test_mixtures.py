"""Which policy plays a turn."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.errors import ConfigError
from agentrl_jax.playing.mixtures import Mixture, make_mixtures
from agentrl_jax.types import Task


def tasks(count: int) -> list[Task]:
    return [Task(env="a", split="eval", index=index, seed=index) for index in range(count)]


def test_what_is_evaluated() -> None:
    single, mixed = (
        make_mixtures(["x", "y"], ["single"]),
        make_mixtures(["x", "y"], ["single", "turn", "episode"], [1, 3]),
    )
    assert [(m.name, m.policies, m.shares) for m in single] == [("x", ("x",), (1.0,)), ("y", ("y",), (1.0,))]
    assert [m.name for m in mixed] == ["x", "y", "turn:x*1+y*3", "episode:x*1+y*3"]
    assert mixed[2].shares == mixed[3].shares == (0.25, 0.75)
    assert make_mixtures(["x", "y"], ["turn"])[0].name == "turn:x+y"


@pytest.mark.parametrize("granularity", ["turn", "episode"])
def test_each_policy_has_its_share(granularity: str) -> None:
    (mixture,) = make_mixtures(["x", "y", "z"], [granularity], [1, 1, 2])  # type: ignore[list-item]
    chosen = Counter(mixture.choose(3, task, sample, 0) for task in tasks(500) for sample in range(4))
    for name, share in {"x": 0.25, "y": 0.25, "z": 0.5}.items():
        assert abs(chosen[name] / 2000 - share) < 0.04


def test_by_episodes_a_policy_stays_and_by_turns_it_changes() -> None:
    by_episode, by_turn = make_mixtures(["x", "y"], ["episode", "turn"])
    for task in tasks(20):
        assert len({by_episode.choose(0, task, 1, turn) for turn in range(30)}) == 1
        assert len({by_turn.choose(0, task, 1, turn) for turn in range(30)}) == 2
    assert len({by_episode.choose(0, task, sample, 0) for task in tasks(4) for sample in range(4)}) == 2


@given(st.integers(0, 2**40), st.integers(0, 50), st.integers(0, 9), st.integers(0, 20))
def test_a_policy_without_weight_never_plays(seed: int, index: int, sample: int, turn: int) -> None:
    for mixture in make_mixtures(["x", "y", "z"], ["turn", "episode"], [0, 1, 0]):
        assert mixture.choose(seed, tasks(51)[index], sample, turn) == "y"


def test_rounding_gives_the_last_draw_to_one_that_has_a_share() -> None:
    shares = (0.1,) * 9 + (0.0,)  # sums to less than 1, as rounding might
    mixture = Mixture(name="m", granularity="turn", policies=tuple("abcdefghij"), shares=shares)
    chosen = {mixture.choose(0, task, 0, turn) for task in tasks(20) for turn in range(20)}
    assert chosen == set("abcdefghi")


@pytest.mark.parametrize(
    ("policies", "mix", "weights", "message"),
    [
        ([], ["single"], [], "name at least one policy"),
        (["x", "x"], ["single"], [], "different names, got x, x"),
        (["x"], [], [], "--mix names each"),
        (["x", "y"], ["turn", "turn"], [], "--mix names each"),
        (["x"], ["turn"], [], "needs at least two policies, got x alone"),
        (["x", "y"], ["single"], [1, 2], "--weights has no effect"),
        (["x", "y"], ["turn"], [1], "a weight for each of x, y, got 1"),
        (["x", "y"], ["turn"], [0, 0], "not all 0"),
        (["x", "y"], ["turn"], [-1, 2], "must be >= 0"),
        (["x", "y"], ["turn"], [float("nan"), 2], "must be >= 0"),
        (["x", "y"], ["turn"], [float("inf"), 2], "finite"),
    ],
)
def test_what_cannot_be_played_is_refused(
    policies: list[str], mix: list[str], weights: list[float], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_mixtures(policies, mix, weights)  # type: ignore[arg-type]
