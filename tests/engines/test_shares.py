"""Shares of the policies that follow what they achieve: by hand, on a bandit, off, and across a restart."""

import json
import math
from functools import cache, partial
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.engines.pool import EnginePool, PoolConfig
from agentrl_jax.engines.shares import AdaptiveConfig, PolicyShares
from agentrl_jax.errors import ConfigError
from agentrl_jax.seeding import derive_seed
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.testing.envs import EnvScript
from agentrl_jax.testing.simulation import Simulation
from agentrl_jax.testing.virtual import run_virtual
from agentrl_jax.types import Completion, EpisodeEnd, Group, Pool, Segment, Task, Trajectory, Turn, VersionSpan, as_ids

TASK = Task(env="a", split="train", index=0, seed=0)
ON = AdaptiveConfig(step=0.1)


@cache
def turn(pool: Pool) -> Turn:
    span = VersionSpan(version=0, start=0, end=1)
    ids, logprobs = as_ids([5]), np.zeros(1, np.float32)
    completion = Completion(
        ids=ids, logprobs=logprobs, version_spans=(span,), finish_reason="stop", engine=pool, pool=pool
    )
    return Turn(context_ids=as_ids([1]), completion=completion)


def group(members: list[tuple[float | None, list[Pool]]]) -> Group:
    trajectories = tuple(
        Trajectory(
            task=TASK,
            group_id=0,
            member=number,
            end=EpisodeEnd.ENGINE_ERROR if reward is None else EpisodeEnd.COMPLETED,
            reward=reward,
            env_reward=reward,
            segments=(Segment(turns=tuple(map(turn, pools))),),
        )
        for number, (reward, pools) in enumerate(members)
    )
    return Group(group_id=0, task=TASK, start_version=0, trajectories=trajectories)


def test_one_group_moves_the_preferences_as_the_formula_says() -> None:
    shares = PolicyShares(0.25, AdaptiveConfig(step=0.5, floor=0.05))
    before = shares.state()["preferences"]
    assert math.exp(before[1]) / (math.exp(before[0]) + math.exp(before[1])) == pytest.approx(0.2 / 0.9)
    assert shares.lagging == 0.25
    assert shares.by_pool()["lagging"] == pytest.approx(0.25)
    shares.observe([group([(1.0, ["lagging", "lagging"]), (0.0, ["current", "current", "current", "lagging"])])])
    # Advantages ±1/√2 ÷ (std 1/√2) = ±0.7071; half of all six turns are lagging; the mean length is 3.
    a = 0.5 / (math.sqrt(0.5) + 1e-6)
    lagging = (a * (2 - 0.5 * 2) - a * (1 - 0.5 * 4)) / math.sqrt(3) / 2
    after = shares.state()["preferences"]
    assert after[1] - before[1] == pytest.approx(0.5 * lagging, rel=1e-12)
    assert after[0] - before[0] == pytest.approx(-0.5 * lagging, rel=1e-12)
    expected = 0.05 + 0.9 * math.exp(after[1]) / (math.exp(after[0]) + math.exp(after[1]))
    assert shares.lagging == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "members",
    [
        [(1.0, ["lagging"]), (1.0, ["current"])],  # no signal
        [(1.0, ["lagging"]), (None, ["current"])],  # nothing to compare with
        [(1.0, ["lagging"] * 3), (0.0, ["lagging"])],  # no choice was made
        [],
    ],
)
def test_groups_that_say_nothing_about_the_policies_move_nothing(
    members: list[tuple[float | None, list[Pool]]],
) -> None:
    shares = PolicyShares(0.25, ON)
    before = shares.state()["preferences"]
    shares.observe([group(members)])
    assert shares.state()["preferences"] == pytest.approx(before, abs=1e-15)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.5, 1.0, -0.2]),
            st.lists(st.sampled_from(["current", "lagging"]), min_size=1, max_size=3),
        ),
        min_size=2,
        max_size=4,
    ),
    st.floats(0.001, 10.0),
)
def test_whatever_is_observed_shares_stay_shares(members: list[tuple[float | None, list[Pool]]], step: float) -> None:
    shares = PolicyShares(0.3, AdaptiveConfig(step=step, floor=0.05))
    for _ in range(10):
        shares.observe([group(members)])
    found = shares.by_pool()
    assert sum(found.values()) == pytest.approx(1.0)
    assert all(0.05 - 1e-9 <= share <= 0.95 + 1e-9 for share in found.values())
    mirrored = PolicyShares(0.3, AdaptiveConfig(step=step))
    other: dict[Pool, Pool] = {"current": "lagging", "lagging": "current"}
    start = shares.state()["preferences"]
    for _ in range(10):
        mirrored.observe([group([(reward, [other[pool] for pool in pools]) for reward, pools in members])])
    moved = [after - before for before, after in zip(mirrored.state()["preferences"], start, strict=True)]
    base = PolicyShares(0.3, AdaptiveConfig(step=step)).state()["preferences"]
    # What one pool gains, the other would have gained in its place.
    assert moved[0] == pytest.approx(2 * (start[0] - base[0]), rel=1e-6, abs=1e-9)


def bandit(rates: dict[Pool, float], seed: int, *, turns: int, num_groups: int = 200) -> float:
    """The lagging policy's share after so many groups of 8, when each turn succeeds at its policy's rate."""
    shares, random = PolicyShares(0.25, ON), Random(seed)
    for _ in range(num_groups):
        members: list[tuple[float | None, list[Pool]]] = []
        for _ in range(8):
            pools: list[Pool] = ["lagging" if random.random() < shares.lagging else "current" for _ in range(turns)]
            members.append((sum(random.random() < rates[pool] for pool in pools) / turns, pools))
        shares.observe([group(members)])
    return shares.lagging


@pytest.mark.parametrize(("turns", "seed"), [(1, 0), (1, 1), (6, 2)])
def test_on_a_bandit_the_better_policy_gets_most_of_the_turns(turns: int, seed: int) -> None:
    assert bandit({"current": 0.2, "lagging": 0.8}, seed, turns=turns) > 0.8
    assert bandit({"current": 0.8, "lagging": 0.2}, seed, turns=turns) < 0.2


def test_policies_that_are_alike_keep_something_of_both() -> None:
    found = [bandit({"current": 0.5, "lagging": 0.5}, seed, turns=2, num_groups=60) for seed in range(4)]
    assert 0.1 < sum(found) / 4 < 0.45  # the mean stays where it began, at 0.25


def test_off_the_draw_is_the_fixed_one_bit_for_bit() -> None:
    pool = EnginePool([FakeEngine(name="c")], [FakeEngine(name="l", pool="lagging")], PoolConfig(lagging_prob=0.3), 7)
    before = pool.shares.state()
    pool.shares.observe([group([(1.0, ["lagging"]), (0.0, ["current"])])] * 5)
    assert pool.shares.state() == before
    for number in range(2000):
        key = number // 100, number // 10 % 10, number % 10
        expected = "lagging" if derive_seed(7, "pool", *key) < 0.3 * 2**63 else "current"
        assert pool(*key).pool == expected
    assert pool.statistics().shares == {"current": 0.7, "lagging": 0.3}


def test_on_it_begins_with_the_fixed_draw_bit_for_bit() -> None:
    def draws(config: PoolConfig) -> list[str]:
        pool = EnginePool([FakeEngine(name="c")], [FakeEngine(name="l", pool="lagging")], config, 7)
        return [pool(number, 0, 0).pool for number in range(500)]

    assert draws(PoolConfig(lagging_prob=0.3)) == draws(PoolConfig(lagging_prob=0.3, adaptive=ON))


def test_a_saved_state_goes_on_where_it_was() -> None:
    told = [group([(1.0, ["lagging"]), (0.0, ["current"])]), group([(1.0, ["current"]), (0.5, ["lagging"])])]
    whole, first, second = (PolicyShares(0.25, ON) for _ in range(3))
    whole.observe(told * 2)
    first.observe(told)
    second.restore(json.loads(json.dumps(first.state())))
    second.observe(told)
    assert second.state() == whole.state()
    assert second.lagging == whole.lagging != 0.25
    elsewhere = PolicyShares(0.4, ON)
    elsewhere.restore(first.state())
    assert elsewhere.lagging == 0.4
    elsewhere.restore(None)
    off = PolicyShares(0.25, AdaptiveConfig())
    off.restore(first.state())
    assert (elsewhere.lagging, off.lagging) == (0.4, 0.25)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step": -0.1}, "step must be finite and >= 0"),
        ({"step": math.nan}, "step must be finite and >= 0"),
        ({"step": 0.1, "floor": 0.5}, r"floor must be in \(0, 0.5\), got 0.5"),
        ({"step": 0.1, "floor": 0.0}, "got 0.0"),
        ({"floor": 0.1}, "floor has no effect while adaptive step is 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AdaptiveConfig(**changes)


@pytest.mark.parametrize("prob", [0.0, 0.05, 0.96])
def test_a_policy_cannot_begin_below_its_floor(prob: float) -> None:
    with pytest.raises(ConfigError, match=f"between their floor 0.05 and 1 - floor, got {prob}"):
        PoolConfig(lagging_prob=prob, adaptive=ON)


def test_in_the_loop_the_shares_follow_the_engine_that_succeeds() -> None:
    async def share(step: float) -> float:
        engines = [FakeEngine(name="current-0", pool="current"), FakeEngine(name="lagging-0", pool="lagging")]
        pool = PoolConfig(lagging_prob=0.25, lagging_period=4, adaptive=AdaptiveConfig(step=step))
        run = Simulation(
            config=RolloutConfig(group_size=8, min_groups_per_batch=4, max_staleness=0, max_fruitless_steps=1000),
            script=EnvScript(rewards=(1.0,)),
            engine=engines[0],
            other_engines=engines[1:],
            cross_policy=pool,
        )
        # Turns of the current engine are cut short, and cost the penalty.
        engines[0].script = lambda prompt, sampling: [3] * 99
        engines[1].script = lambda prompt, sampling: [3]
        await run.run(20)
        assert run.records[-1].version == 19
        return run.engine_pool.shares.lagging

    assert run_virtual(partial(share, 0.0)) == 0.25
    assert run_virtual(partial(share, 0.2)) > 0.6
