"""HNG: nothing blocks the one loop that runs every episode. Measured as on a core that nobody else uses."""

import time

import trio

from agentrl_jax.controller.collector import calm_collector
from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.controller.monitor import LoopMonitor, LoopStatistics
from agentrl_jax.controller.ports import StepOutcome
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.testing.envs import EnvScript
from agentrl_jax.testing.learner import FakeLearner
from agentrl_jax.testing.simulation import Simulation
from agentrl_jax.types import Group
from benchmarks.processor_clock import ProcessorClock


class Watched(Simulation):
    """Of 1,000 live episodes each takes three turns of 2 to 4 s; a learner may block the loop."""

    def __init__(self, blocks_s: float = 0.0) -> None:
        super().__init__(
            config=RolloutConfig(group_size=8, min_groups_per_batch=25, max_groups_per_batch=25, max_staleness=4),
            script=lambda task: EnvScript(rewards=(0.0, 0.0, 1.0), step_s=2.0 + task.index % 41 / 20),
            engine=FakeEngine(script=lambda prompt, sampling: []),
            learner=Blocking(blocks_s),
            tasks_per_env=1000,
        )

    def lags(self, num_steps: int) -> LoopStatistics:
        monitor = LoopMonitor()

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                await nursery.start(monitor.run)
                await self.run(num_steps)
                nursery.cancel_scope.cancel()

        with calm_collector():  # as training has it; by default it looks at whatever the other tests have left
            trio.run(main, clock=ProcessorClock())
        return monitor.statistics()


class Blocking(FakeLearner):
    def __init__(self, blocks_s: float) -> None:
        super().__init__(latency_s=lambda step: 1.0)
        self._blocks_s = blocks_s

    async def step(self, groups: tuple[Group, ...], version: int) -> StepOutcome:
        end = time.process_time() + self._blocks_s
        while time.process_time() < end:
            pass
        return await super().step(groups, version)


def test_hng_07_with_a_thousand_episodes_the_loop_is_never_late() -> None:
    run = Watched()
    lags = run.lags(6)
    assert run.log.peak_open == 1000
    assert lags.num_samples >= 50
    assert lags.lag_p99_s < 0.05


def test_hng_07_a_call_that_blocks_the_loop_is_seen() -> None:
    assert Watched(blocks_s=0.3).lags(2).lag_p99_s > 0.15
