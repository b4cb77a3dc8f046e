"""IDM: retries and idempotency, of sessions on env workers, in virtual time."""

import pytest
from trio.testing import MockClock

from agentrl_jax.controller.episode import EpisodeConfig, EpisodeSetup, run_episode, single_engine
from agentrl_jax.controller.hosted_sessions import open_session_host
from agentrl_jax.controller.workers import WorkerRegistry, open_worker_registry
from agentrl_jax.env import Action
from agentrl_jax.errors import UnknownSession
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.testing.envs import EnvScript, SessionLog, scripted_sessions
from agentrl_jax.testing.renderer import FakeRenderer
from agentrl_jax.testing.workers import FlakyWorker
from agentrl_jax.types import EpisodeEnd, Task

TASK = Task(env="a", split="train", index=0, seed=0)


def setup_over(registry: WorkerRegistry) -> EpisodeSetup:
    return EpisodeSetup(
        sessions=registry.session,
        tools=(),
        renderer=FakeRenderer(),
        choose_engine=single_engine(FakeEngine(script=lambda prompt, sampling: [])),
        config=EpisodeConfig(max_turns=8, max_new_tokens=4, max_context_tokens=512),
        run_seed=0,
    )


async def test_idm_04_ten_failed_attempts_leave_no_session_behind(autojump_clock: MockClock) -> None:
    log = SessionLog()
    script = EnvScript(rewards=(0.0, 0.0, 1.0), fault="error", fault_at=2)
    async with open_session_host({"a": scripted_sessions(script, log)}) as host, open_worker_registry() as registry:
        registry.register("w", host, {"a": 4}, beats=False)
        for attempt in range(10):
            trajectory = await run_episode(TASK, attempt, 0, setup=setup_over(registry))
            assert trajectory.end is EpisodeEnd.ENV_ERROR
            assert host.statistics().num_live == 0
    assert (log.num_made, log.peak_open, log.num_open) == (10, 1, 0)


async def test_idm_05_a_lost_answer_is_asked_for_again_and_nothing_is_done_twice(autojump_clock: MockClock) -> None:
    log = SessionLog()
    script = EnvScript(rewards=(0.0, 0.25, 0.5), step_s=1.0)
    async with open_session_host({"a": scripted_sessions(script, log)}) as host, open_worker_registry() as registry:
        # Every other message is lost: now the request, now the answer.
        losses = ("request", "none", "answer", "none")
        flaky = FlakyWorker(worker=host, loses=lambda call: losses[call % 4])  # type: ignore[arg-type,return-value]
        registry.register("w", flaky, {"a": 4}, beats=False)
        for number in range(5):
            trajectory = await run_episode(TASK, number, 0, setup=setup_over(registry))
            assert (trajectory.end, trajectory.error) == (EpisodeEnd.COMPLETED, "")
            assert [turn.reward for turn in trajectory.turns] == [0.0, 0.25, 0.5]
        assert registry.statistics().num_retries > 20
        assert host.statistics().num_repeated > 5
    assert (log.num_made, log.num_started, log.num_steps, log.num_open) == (5, 5, 15, 0)


async def test_idm_05_a_restarted_worker_is_an_error_and_no_second_effect(autojump_clock: MockClock) -> None:
    log = SessionLog()
    make = scripted_sessions(EnvScript(rewards=(0.0, 1.0)), log)
    async with open_worker_registry() as registry, open_session_host({"a": make}) as new:
        session = registry.session(TASK)
        async with open_session_host({"a": make}) as old:
            registry.register("w", old, {"a": 1}, beats=False)
            await session.reserve()
            await session.start()
        registry.register("w", new, {"a": 1}, beats=False)

        with pytest.raises(UnknownSession, match=r"no session .* on this worker"):
            await session.interact(Action())
        await session.close()
    assert (log.num_steps, log.num_open) == (0, 0)
