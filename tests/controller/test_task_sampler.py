"""Which task comes next: permutations, shares, and resuming exactly."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.controller.tasks import TaskSampler
from agentrl_jax.errors import ConfigError
from agentrl_jax.testing.envs import ScriptedFamily
from agentrl_jax.types import Task

SIZES = {"a": 3, "b": 5, "c": 2}


def sampler_of(weights: dict[str, float], seed: int = 1, sizes: dict[str, int] = SIZES) -> TaskSampler:
    return TaskSampler([ScriptedFamily(name=name, size=sizes[name]) for name in weights], weights, seed)


def draws(sampler: TaskSampler, count: int) -> list[Task]:
    return [sampler.draw() for _ in range(count)]


def test_equal_weights_take_turns() -> None:
    assert "".join(task.env for task in draws(sampler_of({"a": 0.1, "b": 0.1, "c": 0.1}), 9)) == "abcabcabc"


def test_unequal_weights_are_spread_smoothly() -> None:
    # By hand: shares 3/4 and 1/4; b is owed 1/4, 1/2, 3/4 after draws of a.
    assert "".join(task.env for task in draws(sampler_of({"a": 3.0, "b": 1.0}), 8)) == "aabaaaba"


def test_a_limit_leaves_the_first_tasks_of_each_env() -> None:
    families = [ScriptedFamily(name=name, size=size) for name, size in SIZES.items()]
    sampler = TaskSampler(families, dict.fromkeys(SIZES, 1.0), 1, limit=3)
    assert Counter((task.env, task.index) for task in draws(sampler, 36)) == {
        **{(env, index): 4 for env in "ab" for index in range(3)},
        **{("c", index): 6 for index in range(2)},
    }


def test_every_epoch_is_a_fresh_permutation_of_all_tasks() -> None:
    sampler = sampler_of({"b": 1.0}, sizes={"b": 20})
    epochs = [[task.index for task in draws(sampler, 20)] for _ in range(3)]
    assert all(sorted(epoch) == list(range(20)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert [task.index for task in draws(sampler_of({"b": 1.0}, sizes={"b": 20}), 20)] == epochs[0]
    assert [task.index for task in draws(sampler_of({"b": 1.0}, seed=2, sizes={"b": 20}), 20)] != epochs[0]


@given(weights=st.fixed_dictionaries({name: st.floats(0.01, 1.0) for name in SIZES}), count=st.integers(1, 300))
def test_shares_are_kept_within_one_draw(weights: dict[str, float], count: int) -> None:
    drawn = Counter(task.env for task in draws(sampler_of(weights), count))
    for name, weight in weights.items():
        assert abs(drawn[name] - count * weight / sum(weights.values())) < 1


@given(before=st.integers(0, 40), requeued=st.integers(0, 3), weights=st.sampled_from([(1.0, 1.0), (0.3, 0.9)]))
def test_a_restored_sampler_goes_on_exactly(before: int, requeued: int, weights: tuple[float, float]) -> None:
    sampler = sampler_of(dict(zip("ab", weights, strict=True)))
    seen = draws(sampler, before)
    sampler.requeue(seen[:requeued])
    state = json.loads(json.dumps(sampler.state()))
    restored = sampler_of(dict(zip("ab", weights, strict=True)))
    restored.restore(state)
    expected = draws(sampler, 30)
    assert expected[: len(seen[:requeued])] == seen[:requeued]
    assert draws(restored, 30) == expected


def test_positions_count_the_tasks_of_an_env_and_not_those_that_come_again() -> None:
    sampler = sampler_of({"a": 1.0, "c": 1.0})
    positions = [(sampler.draw().env, sampler.last_position) for _ in range(6)]
    assert positions == [("a", 0), ("c", 0), ("a", 1), ("c", 1), ("a", 2), ("c", 2)]
    sampler.requeue(draws(sampler, 1))
    sampler.draw()
    assert sampler.last_position is None


@given(count=st.integers(0, 20))
def test_peeking_tells_the_next_draw_and_changes_nothing(count: int) -> None:
    sampler = sampler_of({"a": 0.7, "b": 0.2})
    draws(sampler, count)
    state = sampler.state()
    peeked = [sampler.peek(), sampler.peek()]
    assert sampler.state() == state
    assert peeked == [sampler.draw()] * 2


def test_changed_weights_go_on_without_catching_up() -> None:
    sampler = sampler_of({"a": 1.0, "b": 1.0})
    draws(sampler, 1000)
    changed = sampler_of({"a": 9.0, "b": 1.0})
    changed.restore(sampler.state())
    drawn = Counter(task.env for task in draws(changed, 100))
    assert abs(drawn["b"] - 10) <= 1


def test_another_data_set_cannot_be_resumed() -> None:
    state = sampler_of({"a": 1.0}).state()
    for other in (
        sampler_of({"a": 1.0}, seed=2),
        sampler_of({"a": 1.0}, sizes={"a": 4}),
        sampler_of({"a": 1.0, "b": 1.0}),
    ):
        with pytest.raises(ConfigError, match="cannot resume"):
            other.restore(state)


@pytest.mark.parametrize(
    ("names", "weights"),
    [
        ([], {}),
        (["a"], {"b": 1.0}),
        (["a", "a"], {"a": 1.0}),
        (["a"], {"a": 0.0}),
        (["a"], {"a": float("nan")}),
        (["a"], {"a": float("inf")}),
    ],
)
def test_impossible_weights_are_refused(names: list[str], weights: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        TaskSampler([ScriptedFamily(name=name) for name in names], weights, 0)


def test_an_empty_data_set_is_refused() -> None:
    with pytest.raises(ConfigError, match="no task"):
        sampler_of({"a": 1.0}, sizes={"a": 0})
