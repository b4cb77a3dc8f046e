"""Each row of the table of episode ends, decided at its source and nowhere else."""

import math
from dataclasses import replace

import pytest
import trio

from agentrl_jax.controller.cancellation import CancelSwitch
from agentrl_jax.controller.episode import EpisodeConfig, EpisodeSetup, run_episode, single_engine
from agentrl_jax.env import Message
from agentrl_jax.errors import ConfigError, EngineError
from agentrl_jax.testing.engine import FakeEngine, constant_latency
from agentrl_jax.testing.envs import EnvScript, SessionLog, scripted_sessions
from agentrl_jax.testing.renderer import FakeRenderer
from agentrl_jax.types import EpisodeEnd, Task, Trajectory

TASK = Task(env="scripted", split="train", index=3, seed=5)
SAYS = FakeRenderer().spell(Message(role="assistant", content="hello"))  # 6 ids
GOOD = EnvScript(rewards=(0.25, 0.5))
CONFIG = EpisodeConfig(
    max_turns=4,
    max_new_tokens=8,
    max_context_tokens=4096,
    wall_budget_s=100.0,
    reset_deadline_s=30.0,
    env_deadline_s=40.0,
    engine_deadline_s=50.0,
)


def speaking_engine(**options: object) -> FakeEngine:
    return replace(FakeEngine(script=lambda prompt, sampling: SAYS.tolist()), **options)  # type: ignore[arg-type]


async def play(
    script: EnvScript,
    *,
    config: EpisodeConfig = CONFIG,
    engine: FakeEngine | None = None,
    switch: CancelSwitch | None = None,
) -> Trajectory:
    log = SessionLog()
    engine = engine or speaking_engine()
    setup = EpisodeSetup(
        sessions=scripted_sessions(script, log),
        tools=(),
        renderer=FakeRenderer(),
        choose_engine=single_engine(engine),
        config=config,
        run_seed=1,
    )
    trajectory = await run_episode(TASK, 7, 2, setup=setup, switch=switch)
    assert (log.num_made, log.num_closed, log.num_closed_again) == (1, 1, 0)
    assert engine.sessions == frozenset()
    return trajectory


def facts(trajectory: Trajectory) -> tuple[EpisodeEnd, float | None, float | None, int]:
    return trajectory.end, trajectory.reward, trajectory.env_reward, len(trajectory.turns)


async def test_completed_has_the_rewards_of_all_steps(autojump_clock: trio.testing.MockClock) -> None:
    trajectory = await play(GOOD)
    assert facts(trajectory) == (EpisodeEnd.COMPLETED, 0.75, 0.75, 2)
    assert [turn.reward for turn in trajectory.turns] == [0.25, 0.5]
    assert trajectory.error == ""


@pytest.mark.parametrize("end", [EpisodeEnd.INVALID_ACTION, EpisodeEnd.VALIDATION_FAILED, EpisodeEnd.MAX_TURNS])
async def test_an_end_declared_by_the_env_keeps_its_reason(
    end: EpisodeEnd, autojump_clock: trio.testing.MockClock
) -> None:
    assert facts(await play(replace(GOOD, end=end))) == (end, -0.2, 0.75, 2)


async def test_max_turns(autojump_clock: trio.testing.MockClock) -> None:
    endless = EnvScript(rewards=(0.5, 0.0, 0.0, 0.0, 0.0), end=None)
    assert facts(await play(endless)) == (EpisodeEnd.MAX_TURNS, -0.2, 0.5, 4)
    # The env's own end in the last turn counts.
    assert facts(await play(GOOD, config=replace(CONFIG, max_turns=2))) == (EpisodeEnd.COMPLETED, 0.75, 0.75, 2)


async def test_turn_truncated_is_not_shown_to_the_env(autojump_clock: trio.testing.MockClock) -> None:
    trajectory = await play(GOOD, config=replace(CONFIG, max_new_tokens=5))
    assert facts(trajectory) == (EpisodeEnd.TURN_TRUNCATED, -0.2, None, 1)
    assert trajectory.turns[0].completion.ids.tolist() == SAYS[:5].tolist()


async def test_context_limit_before_during_and_at_a_turn(autojump_clock: trio.testing.MockClock) -> None:
    prompt = len((await play(GOOD)).turns[0].context_ids)
    reply = len((await play(GOOD)).turns[1].context_ids)

    async def limited(max_context_tokens: int) -> tuple[EpisodeEnd, float | None, float | None, int]:
        return facts(await play(GOOD, config=replace(CONFIG, max_context_tokens=max_context_tokens)))

    assert await limited(prompt) == (EpisodeEnd.CONTEXT_LIMIT, -0.2, None, 0)
    assert await limited(prompt + 5) == (EpisodeEnd.CONTEXT_LIMIT, -0.2, None, 1)  # the turn was clipped to 5 ids
    assert await limited(prompt + 6) == (EpisodeEnd.CONTEXT_LIMIT, -0.2, 0.25, 1)  # the reply does not fit
    assert await limited(prompt + 6 + reply) == (EpisodeEnd.CONTEXT_LIMIT, -0.2, 0.25, 1)
    assert await limited(prompt + 6 + reply + 6) == (EpisodeEnd.COMPLETED, 0.75, 0.75, 2)


async def test_wall_timeout_counts_from_the_first_prompt(autojump_clock: trio.testing.MockClock) -> None:
    slow = replace(GOOD, reset_s=29.0, step_s=39.0, rewards=(0.0, 0.0, 0.0, 1.0))
    trajectory = await play(slow)
    assert facts(trajectory) == (EpisodeEnd.WALL_TIMEOUT, -0.2, 0.0, 3)
    assert trajectory.wall_s == pytest.approx(129.0)
    assert trajectory.env_s == pytest.approx(129.0)


@pytest.mark.parametrize(("at", "seconds", "turns"), [(0, 30.0, 0), (1, 40.0, 1), (2, 40.0, 2)])
async def test_env_timeout(at: int, seconds: float, turns: int, autojump_clock: trio.testing.MockClock) -> None:
    trajectory = await play(replace(GOOD, fault="hang", fault_at=at))
    assert (trajectory.end, trajectory.reward, len(trajectory.turns)) == (EpisodeEnd.ENV_TIMEOUT, None, turns)
    assert trajectory.wall_s == pytest.approx(seconds)
    assert f"deadline of {seconds} s" in trajectory.error


@pytest.mark.parametrize(("at", "turns"), [(0, 0), (1, 1), (2, 2)])
async def test_env_error_keeps_the_turn_it_failed_on(
    at: int, turns: int, autojump_clock: trio.testing.MockClock
) -> None:
    trajectory = await play(replace(GOOD, fault="error", fault_at=at))
    assert (trajectory.end, trajectory.reward, len(trajectory.turns)) == (EpisodeEnd.ENV_ERROR, None, turns)
    assert "failed on purpose" in trajectory.error


@pytest.mark.parametrize("reward", [math.nan, math.inf])
async def test_a_reward_that_is_not_finite_is_an_env_error(
    reward: float, autojump_clock: trio.testing.MockClock
) -> None:
    assert facts(await play(replace(GOOD, rewards=(reward,)))) == (EpisodeEnd.ENV_ERROR, None, None, 1)


async def test_engine_error(autojump_clock: trio.testing.MockClock) -> None:
    trajectory = await play(GOOD, engine=speaking_engine(fails=lambda session, sampling: True))
    assert facts(trajectory) == (EpisodeEnd.ENGINE_ERROR, None, None, 0)
    assert "failed on purpose" in trajectory.error


async def test_an_engine_that_hangs_is_to_blame_not_the_policy(autojump_clock: trio.testing.MockClock) -> None:
    trajectory = await play(GOOD, engine=speaking_engine(token_latency=constant_latency(math.inf)))
    assert facts(trajectory) == (EpisodeEnd.ENGINE_ERROR, None, None, 0)
    assert trajectory.engine_s == trajectory.wall_s == pytest.approx(50.0)


async def test_no_engine_to_choose_is_an_engine_error(autojump_clock: trio.testing.MockClock) -> None:
    def choose(group_id: int, member: int, turn: int) -> FakeEngine:
        raise EngineError("every engine is quarantined")

    setup = EpisodeSetup(
        sessions=scripted_sessions(GOOD, SessionLog()),
        tools=(),
        renderer=FakeRenderer(),
        choose_engine=choose,
        config=CONFIG,
        run_seed=1,
    )
    trajectory = await run_episode(TASK, 0, 0, setup=setup)
    assert facts(trajectory) == (EpisodeEnd.ENGINE_ERROR, None, None, 0)


async def test_cancelled_by_its_group(autojump_clock: trio.testing.MockClock) -> None:
    switch = CancelSwitch()
    trajectory = None

    async def run() -> None:
        nonlocal trajectory
        trajectory = await play(replace(GOOD, step_s=10.0), switch=switch)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await trio.sleep(15.0)
        switch.trip()
    assert trajectory is not None
    assert facts(trajectory) == (EpisodeEnd.CANCELLED, None, 0.25, 2)
    assert trio.current_time() == pytest.approx(15.0)
    # Tripped before it began: a record all the same.
    assert facts(await play(GOOD, switch=switch)) == (EpisodeEnd.CANCELLED, None, None, 0)


async def test_a_cancellation_from_outside_propagates_and_closes(autojump_clock: trio.testing.MockClock) -> None:
    log, engine = SessionLog(), speaking_engine()
    setup = EpisodeSetup(
        sessions=scripted_sessions(replace(GOOD, step_s=10.0, close_s=3.0), log),
        tools=(),
        renderer=FakeRenderer(),
        choose_engine=single_engine(engine),
        config=CONFIG,
        run_seed=1,
    )
    with trio.move_on_after(15.0) as scope:
        await run_episode(TASK, 0, 0, setup=setup, switch=CancelSwitch())
    assert scope.cancelled_caught
    assert (log.num_closed, engine.sessions) == (1, frozenset())
    assert trio.current_time() == pytest.approx(18.0)  # the shielded close


async def test_a_close_that_hangs_is_bounded_and_changes_no_end(autojump_clock: trio.testing.MockClock) -> None:
    trajectory = await play(replace(GOOD, close_s=math.inf))
    assert facts(trajectory) == (EpisodeEnd.COMPLETED, 0.75, 0.75, 2)
    assert "closing took longer than 10.0 s" in trajectory.error
    assert trio.current_time() == pytest.approx(10.0)


def test_penalties_are_set_by_reason() -> None:
    config = replace(CONFIG, penalty=-0.1, penalties={EpisodeEnd.MAX_TURNS: 0.0})
    rewards = {end: config.reward(end, 0.5) for end in EpisodeEnd}
    assert rewards == {
        EpisodeEnd.COMPLETED: 0.5,
        EpisodeEnd.MAX_TURNS: 0.0,
        EpisodeEnd.CONTEXT_LIMIT: -0.1,
        EpisodeEnd.TURN_TRUNCATED: -0.1,
        EpisodeEnd.INVALID_ACTION: -0.1,
        EpisodeEnd.VALIDATION_FAILED: -0.1,
        EpisodeEnd.WALL_TIMEOUT: -0.1,
        EpisodeEnd.ENV_TIMEOUT: None,
        EpisodeEnd.ENV_ERROR: None,
        EpisodeEnd.ENGINE_ERROR: None,
        EpisodeEnd.CANCELLED: None,
    }


@pytest.mark.parametrize(
    "change",
    [
        {"max_turns": 0},
        {"max_new_tokens": 0},
        {"max_context_tokens": 0},
        {"temperature": -1.0},
        {"temperature": math.inf},
        {"wall_budget_s": 0.0},
        {"env_deadline_s": math.nan},
        {"penalty": math.nan},
        {"penalty": 0.1},
        {"penalties": {EpisodeEnd.MAX_TURNS: 0.1}},
        {"penalties": {EpisodeEnd.MAX_TURNS: math.nan}},
        {"penalties": {EpisodeEnd.ENV_ERROR: -0.2}},
        {"penalties": {EpisodeEnd.COMPLETED: -0.2}},
    ],
)
def test_impossible_episode_configs_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        replace(CONFIG, **change)  # type: ignore[arg-type]
