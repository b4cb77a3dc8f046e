"""Random schedules, faults, lost messages, dying workers and cancellations: nothing leaks, nobody hangs or cuts in."""

from collections import Counter
from dataclasses import dataclass, field
from random import Random

import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_jax.controller.cancellation import CancelSwitch
from agentrl_jax.controller.episode import EpisodeConfig, EpisodeSetup, run_episode, single_engine
from agentrl_jax.controller.hosted_sessions import HostConfig, SessionHost, open_session_host
from agentrl_jax.controller.workers import RegistryConfig, WorkerRegistry, open_worker_registry
from agentrl_jax.testing.engine import FakeEngine, constant_latency
from agentrl_jax.testing.envs import EnvScript, SessionLog, scripted_sessions
from agentrl_jax.testing.renderer import FakeRenderer
from agentrl_jax.testing.virtual import run_virtual
from agentrl_jax.testing.workers import FlakyWorker, Loss
from agentrl_jax.types import EpisodeEnd, Task, Trajectory

ENVS = ("a", "b")
REGISTRY = RegistryConfig(coma_after_s=11.0, dead_after_s=60.0, max_waiting=6)
HOST = HostConfig(call_deadline_s=40.0, idle_expiry_s=90.0, close_deadline_s=5.0)
EPISODES = EpisodeConfig(
    max_turns=4,
    max_new_tokens=4,
    max_context_tokens=512,
    wall_budget_s=100.0,
    queue_deadline_s=50.0,
    reset_deadline_s=20.0,
    env_deadline_s=20.0,
    close_deadline_s=5.0,
)


@dataclass
class Chaos:
    """One world: two workers for two envs, whose every behaviour is drawn from `rng`."""

    rng: Random
    log: SessionLog = field(default_factory=SessionLog)
    live: Counter[tuple[int, str]] = field(default_factory=Counter)
    trajectories: list[Trajectory] = field(default_factory=list)
    ended: set[int] = field(default_factory=set)

    def script(self, task: Task) -> EnvScript:
        return EnvScript(
            rewards=(0.0,) * self.rng.randrange(3) + (1.0,),
            reset_s=self.rng.choice([0.0, 1.0, 19.0]),
            step_s=self.rng.choice([0.0, 1.0, 15.0]),
            close_s=self.rng.choice([0.0, 1.0, 100.0]),
            fault=self.rng.choice(["none", "none", "none", "error", "hang"]),
            fault_at=self.rng.randrange(3),
        )

    def loss(self, call: int) -> Loss:
        return self.rng.choice(["none", "none", "none", "request", "answer"])

    async def worker(self, registry: WorkerRegistry, host: SessionHost, name: str) -> None:
        """Beats, pauses, drains, dies and comes back, until it is cancelled."""
        flaky = FlakyWorker(worker=host, loses=self.loss, delay_s=0.1)
        while True:
            registry.register(name, flaky, dict.fromkeys(ENVS, 2))
            await trio.sleep(self.rng.choice([1.0, 8.0, 8.0, 8.0, 20.0, 80.0]))
            if name in registry.statistics().workers:
                self.rng.choice([registry.drain, registry.resume, registry.resume, registry.beat])(name)
                if self.rng.random() < 0.1:
                    registry.remove(name)

    async def episode(self, setup: EpisodeSetup, number: int) -> None:
        task = Task(env=ENVS[number % 2], split="train", index=number, seed=0)
        switch = CancelSwitch()
        with trio.move_on_after(self.rng.choice([5.0, 1e4, 1e4, 1e4])):
            async with trio.open_nursery() as nursery:
                if self.rng.random() < 0.2:
                    nursery.start_soon(self.trip, switch, self.rng.choice([1.0, 10.0, 30.0]))
                await trio.sleep(self.rng.choice([0.0, 5.0, 60.0]))
                self.trajectories.append(await run_episode(task, number, 0, setup=setup, switch=switch))
                nursery.cancel_scope.cancel()
        self.ended.add(number)

    async def trip(self, switch: CancelSwitch, after_s: float) -> None:
        await trio.sleep(after_s)
        switch.trip()

    async def run(self, num_episodes: int) -> None:
        sessions = dict.fromkeys(ENVS, scripted_sessions(self.script, self.log))
        engine = FakeEngine(script=lambda prompt, sampling: [], token_latency=constant_latency(0.5))
        async with (
            open_session_host(sessions, HOST) as first,
            open_session_host(sessions, HOST) as second,
            open_worker_registry(REGISTRY) as registry,
        ):
            setup = EpisodeSetup(
                sessions=registry.session,
                tools=(),
                renderer=FakeRenderer(),
                choose_engine=single_engine(engine),
                config=EPISODES,
                run_seed=0,
            )
            async with trio.open_nursery() as workers:
                workers.start_soon(self.worker, registry, first, "first")
                workers.start_soon(self.worker, registry, second, "second")
                async with trio.open_nursery() as episodes:
                    for number in range(num_episodes):
                        episodes.start_soon(self.episode, setup, number)
                workers.cancel_scope.cancel()
            self.check(registry, num_episodes)
            with trio.move_on_after(HOST.idle_expiry_s + HOST.call_deadline_s + HOST.close_deadline_s + 1.0):
                await trio.sleep_forever()  # what the dead left behind expires
            assert first.statistics().num_live == second.statistics().num_live == 0
        assert engine.sessions == frozenset()

    def check(self, registry: WorkerRegistry, num_episodes: int) -> None:
        statistics = registry.statistics()
        assert all(not any(worker.taken.values()) for worker in statistics.workers.values())
        assert all(line.num_waiting == 0 for line in statistics.lines.values())
        assert self.ended == set(range(num_episodes))
        for trajectory in self.trajectories:
            # An effect too many, or too few, would give the last reward to another turn.
            if trajectory.end is EpisodeEnd.COMPLETED:
                assert [turn.reward for turn in trajectory.turns] == [0.0] * (len(trajectory.turns) - 1) + [1.0]
                assert trajectory.reward == 1.0


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), num_episodes=st.integers(1, 16), random_module=st.random_module())
def test_whatever_happens_to_workers_every_episode_ends_and_nothing_is_left(
    seed: int, num_episodes: int, random_module: object
) -> None:
    chaos = Chaos(Random(seed))

    async def main() -> None:
        with trio.fail_after(5_000.0):
            await chaos.run(num_episodes)

    run_virtual(main)
    assert (chaos.log.num_open, chaos.log.num_closed_again) == (0, 0)


@settings(max_examples=30)
@given(
    capacities=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    stays=st.lists(st.sampled_from([0.0, 1.0, 2.5, 7.0]), min_size=1, max_size=25),
    patience=st.sampled_from([0.5, 3.0, 1e4]),
    random_module=st.random_module(),
)
def test_places_are_never_exceeded_lost_or_given_out_of_turn(
    capacities: list[int], stays: list[float], patience: float, random_module: object
) -> None:
    config = RegistryConfig(max_waiting=100)
    log = SessionLog()
    arrivals: list[int] = []
    served: list[tuple[float, int]] = []  # when, and as which of those who came

    async def stay(registry: WorkerRegistry, number: int, seconds: float) -> None:
        session = registry.session(Task(env="a", split="train", index=number, seed=0))
        arrivals.append(number)
        turn = len(arrivals)
        with trio.move_on_after(patience) as waiting:
            await session.reserve()
        try:
            if not waiting.cancelled_caught:
                served.append((trio.current_time(), turn))
                await session.start()
                await trio.sleep(seconds)
        finally:
            with trio.CancelScope(shield=True):
                await session.close()

    async def main() -> int:
        make = scripted_sessions(EnvScript(), log)
        async with open_session_host({"a": make}) as host, open_worker_registry(config) as registry:
            for number, capacity in enumerate(capacities):
                registry.register(f"w{number}", host, {"a": capacity}, beats=False)
            async with trio.open_nursery() as nursery:
                for number, seconds in enumerate(stays):
                    nursery.start_soon(stay, registry, number, seconds)
            return registry.statistics().lines["a"].num_granted

    num_granted = run_virtual(main)
    assert log.peak_open <= sum(capacities)
    if 0.0 not in stays:
        assert log.peak_open == min(sum(capacities), len(stays))
    assert len(served) == log.num_made <= num_granted
    # Nobody is served before somebody who came earlier (in one moment, trio shuffles whom it wakes first).
    turns = sorted(served)
    assert [turn for _, turn in turns] == sorted(turn for _, turn in turns)
    assert log.num_open == 0
