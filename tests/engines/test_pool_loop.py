"""Cross-policy sampling in the whole loop, in virtual time: shares, lags, ages, and nothing else changed."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.controller.episode import EpisodeSetup, single_engine
from agentrl_jax.controller.group import AdmittedGroup, run_group
from agentrl_jax.engines.pool import PoolConfig
from agentrl_jax.seeding import derive_seed
from agentrl_jax.testing.engine import FakeEngine, constant_latency
from agentrl_jax.testing.envs import EnvScript
from agentrl_jax.testing.learner import FakeLearner
from agentrl_jax.testing.renderer import FakeRenderer
from agentrl_jax.testing.simulation import Simulation
from agentrl_jax.testing.virtual import run_virtual
from agentrl_jax.types import Group, Task, Turn

SYNCHRONOUS = RolloutConfig(group_size=4, min_groups_per_batch=4, max_staleness=0)


@dataclass(kw_only=True)
class PooledSimulation(Simulation):
    """Remembers which version each engine served after each publish."""

    served: list[dict[str, int]] = field(default_factory=list)

    async def publish(self, version: int) -> None:
        self.served.append(dict(await self.engine_pool.publish(None, version)))


def script(task: Task) -> EnvScript:
    draw = derive_seed(task.key)
    return EnvScript(rewards=(0.0,) * (draw % 4) + (float(draw // 7 % 2),), step_s=1.0 + draw // 11 % 3)


def turns_of(run: Simulation) -> list[tuple[int, int, Turn]]:
    """(version of the learner, age of the group, turn) of everything that was consumed."""
    return [
        (record.version, age, turn)
        for record in run.records
        for group, age in zip(record.groups, record.ages, strict=True)
        for trajectory in group.trajectories
        for turn in trajectory.turns
    ]


@given(
    period=st.integers(1, 9),
    staleness=st.integers(0, 2),
    publish_s=st.tuples(*[st.sampled_from([0.0, 3.0, 20.0])] * 3),
    token_s=st.tuples(*[st.sampled_from([0.0, 0.5, 2.0])] * 3),
    prob=st.sampled_from([0.1, 0.25, 0.8]),
    skipped=st.frozensets(st.integers(0, 11), max_size=3),
    schedule=st.random_module(),
)
@settings(max_examples=30)
def test_lags_are_bounded_and_ages_are_what_they_were(
    period: int, staleness: int, publish_s: Any, token_s: Any, prob: float, skipped: frozenset[int], schedule: Any
) -> None:
    names = (("current-0", "current"), ("current-1", "current"), ("lagging-0", "lagging"))
    engines = [
        FakeEngine(name=name, pool=pool, publish_s=p, token_latency=constant_latency(t))  # type: ignore[arg-type]
        for (name, pool), p, t in zip(names, publish_s, token_s, strict=True)
    ]
    run = PooledSimulation(
        config=replace(SYNCHRONOUS, group_size=2, min_groups_per_batch=2, max_staleness=staleness),
        script=script,
        learner=FakeLearner(latency_s=lambda step: 4.0, non_finite=skipped),
        engine=engines[0],
        other_engines=engines[1:],
        cross_policy=PoolConfig(lagging_prob=prob, lagging_period=period),
        seed=3,
    )
    result = run_virtual(lambda: run.run(12))
    assert result.version == 12 - len(skipped)
    for version, age, turn in turns_of(run):
        lags = version - turn.completion.versions
        is_lagging = turn.completion.pool == "lagging"
        assert turn.completion.engine.startswith(turn.completion.pool)
        assert 0 <= age <= staleness
        assert 0 <= lags.min() <= lags.max() <= age + (period - 1 if is_lagging else 0)
    for served in run.served:
        assert served["lagging-0"] == served["current-0"] // period * period
    statistics = run.engine_pool.statistics()
    assert set(statistics.num_sessions.values()) == {0}
    assert all(not engine.sessions for engine in engines)


def test_lagging_turns_get_their_share_and_lag_as_far_as_they_may() -> None:
    engines = [FakeEngine(name="a"), FakeEngine(name="b", pool="lagging")]
    run = PooledSimulation(
        config=SYNCHRONOUS, script=script, engine=engines[0], other_engines=engines[1:], cross_policy=PoolConfig()
    )
    run_virtual(lambda: run.run(80))
    turns = turns_of(run)
    lagging = [version - turn.completion.versions for version, _, turn in turns if turn.completion.pool == "lagging"]
    assert len(turns) > 1500
    assert abs(len(lagging) / len(turns) - 0.25) < 0.03
    assert {int(lag) for lags in lagging for lag in lags} == set(range(8))
    assert run.engine_pool.statistics().num_turns["lagging"] == len(lagging)
    mixed = [
        t
        for record in run.records
        for group in record.groups
        for t in group.trajectories
        if len({*pools(t.turns)}) == 2
    ]
    assert len(mixed) > 100  # the choice is made anew for each turn, not once per episode


def pools(turns: tuple[Turn, ...]) -> list[str]:
    return [turn.completion.pool for turn in turns]


class WithoutPool(Simulation):
    async def run_one_group(self, admitted: AdmittedGroup) -> Group:
        setup = EpisodeSetup(
            sessions=self.sessions(),
            tools=(),
            renderer=FakeRenderer(),
            choose_engine=single_engine(self.engine),
            config=self.episodes,
            run_seed=self.seed,
        )
        return await run_group(admitted, group_size=self.config.group_size, setup=setup)


def test_without_lagging_engines_every_draw_is_that_of_a_single_engine() -> None:
    single = WithoutPool(config=SYNCHRONOUS, script=script)
    pooled = Simulation(config=SYNCHRONOUS, script=script)
    run_virtual(lambda: single.run(10))
    run_virtual(lambda: pooled.run(10))
    expected, found = turns_of(single), turns_of(pooled)
    assert len(expected) == len(found) > 200
    for (version, age, a), (other_version, other_age, b) in zip(expected, found, strict=True):
        assert (version, age, a.reward) == (other_version, other_age, b.reward)
        assert np.array_equal(a.completion.ids, b.completion.ids)
        assert np.array_equal(a.completion.logprobs, b.completion.logprobs)
        assert (a.completion.engine, a.completion.version_spans) == (b.completion.engine, b.completion.version_spans)
