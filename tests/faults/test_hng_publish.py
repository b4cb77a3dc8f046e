"""HNG: publishing does not wait for what is running. Rows of the fault list that loop and engines decide together."""

import trio
from trio.testing import MockClock

from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.controller.group import AdmittedGroup
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.testing.envs import EnvScript
from agentrl_jax.testing.learner import FakeLearner
from agentrl_jax.testing.simulation import SHORT_EPISODES, Simulation
from agentrl_jax.testing.virtual import run_virtual
from agentrl_jax.types import Group
from tests.faults.invariants import check_invariants


def test_hng_26_a_publish_completes_while_two_hundred_episodes_wait() -> None:
    engine = FakeEngine(script=lambda prompt, sampling: [5] * 7, max_running=4, publish_s=1.0)
    engine.token_latency = lambda session, sampling: 1.0
    run = Simulation(
        config=RolloutConfig(group_size=4, min_groups_per_batch=2, max_groups_per_batch=2, max_staleness=29),
        engine=engine,
    )
    published: list[tuple[float, float, int]] = []

    class Timed(FakeLearner):
        async def step(self, groups: object, version: int) -> object:  # type: ignore[override]
            assert engine.statistics().waiting >= 200
            return await super().step(groups, version)  # type: ignore[arg-type]

    run.learner = Timed()

    async def main() -> None:
        publish = run.engine_pool.publish

        async def timed(weights: object, version: int) -> object:
            begun = trio.current_time()
            served = await publish(weights, version)
            published.append((begun, trio.current_time(), engine.statistics().waiting))
            return served

        run.engine_pool.publish = timed  # type: ignore[method-assign, assignment]
        check_invariants(run, await run.run(3))

    run_virtual(main)
    assert [ended - begun for begun, ended, _ in published] == [1.0, 1.0, 1.0]
    assert all(waiting >= 180 for _, _, waiting in published)


async def test_hng_26_an_episode_that_generates_for_ever_holds_up_no_publish(autojump_clock: MockClock) -> None:
    class OneForEver(Simulation):
        async def run_one_group(self, admitted: AdmittedGroup) -> Group:
            if admitted.group_id == 0:
                self.engine.token_latency = lambda session, sampling: float("inf") if session == "g0-m0" else 1.0
            return await super().run_one_group(admitted)

    run = OneForEver(
        config=RolloutConfig(group_size=2, min_groups_per_batch=2, max_staleness=3),
        engine=FakeEngine(script=lambda prompt, sampling: [], publish_s=1.0),
        episodes=SHORT_EPISODES,
    )
    result = await run.run(3)
    check_invariants(run, result)
    # Three versions while it runs; the fourth step would wait for it, until its deadline.
    assert (result.version, trio.current_time() < 20.0) == (3, True)
    assert 0 not in {group.group_id for record in run.records for group in record.groups}


async def test_hng_06_a_long_group_keeps_no_freed_place_from_others(autojump_clock: MockClock) -> None:
    numbers = iter(range(10**6))
    run = Simulation(
        config=RolloutConfig(group_size=2, min_groups_per_batch=2, max_staleness=3),
        script=lambda task: EnvScript(step_s=500.0 if next(numbers) < 2 else 1.0),
        engine=FakeEngine(script=lambda prompt, sampling: []),
        num_places=2,
        episodes=SHORT_EPISODES,
    )
    result = await run.run(3)
    check_invariants(run, result)
    assert trio.current_time() < 10.0
