"""Every end of an evaluated episode, in virtual time: none can hang."""

from dataclasses import replace

import pytest
import trio

from agentrl_jax.controller.episode import EpisodeConfig
from agentrl_jax.env import Message
from agentrl_jax.errors import ConfigError
from agentrl_jax.playing.episode import play_episode
from agentrl_jax.playing.mixtures import make_mixtures
from agentrl_jax.playing.records import EpisodeRecord
from agentrl_jax.testing.envs import EnvScript, SessionLog
from agentrl_jax.types import EpisodeEnd
from tests.playing.world import CONFIG, TASK, SayingPolicy, act, alone, setup_of

TIMED = EpisodeConfig(
    max_turns=4,
    max_new_tokens=8,
    max_context_tokens=64,
    wall_budget_s=50.0,
    reset_deadline_s=5.0,
    env_deadline_s=6.0,
    engine_deadline_s=7.0,
    close_deadline_s=3.0,
)


@pytest.mark.parametrize(
    ("script", "seconds", "end", "reward", "error"),
    [
        (EnvScript(rewards=(0.0, 1.0)), 0.0, EpisodeEnd.COMPLETED, 1.0, ""),
        (EnvScript(rewards=(0.0,), end=EpisodeEnd.INVALID_ACTION), 0.0, EpisodeEnd.INVALID_ACTION, -0.2, ""),
        (EnvScript(rewards=(0.0,) * 9), 0.0, EpisodeEnd.MAX_TURNS, -0.2, ""),
        (EnvScript(fault="hang"), 0.0, EpisodeEnd.ENV_TIMEOUT, None, "reset took longer than its deadline of 5.0 s"),
        (EnvScript(fault="hang", fault_at=1), 0.0, EpisodeEnd.ENV_TIMEOUT, None, "step took longer than its deadline"),
        (EnvScript(fault="error", fault_at=1), 0.0, EpisodeEnd.ENV_ERROR, None, "failed on purpose at 1"),
        (EnvScript(rewards=(0.0, float("nan"))), 0.0, EpisodeEnd.ENV_ERROR, None, "must be finite"),
        (EnvScript(), 8.0, EpisodeEnd.ENGINE_ERROR, None, "p: turn 0 took longer than 7.0 s"),
        (EnvScript(rewards=(0.0,) * 9, step_s=5.9), 6.9, EpisodeEnd.MAX_TURNS, -0.2, "took longer than its 50.0 s"),
        (EnvScript(rewards=(1.0,), close_s=99.0), 0.0, EpisodeEnd.COMPLETED, 1.0, "closing took longer than 3.0 s"),
    ],
)
async def test_every_end(
    script: EnvScript, seconds: float, end: EpisodeEnd, reward: float | None, error: str, autojump_clock: object
) -> None:
    config = TIMED
    if "50.0" in error:
        config, end = replace(TIMED, max_turns=99), EpisodeEnd.WALL_TIMEOUT
    policy, log = SayingPolicy("p", lambda messages: "Hm.", seconds), SessionLog()
    played = await play_episode(alone("p"), TASK, 0, setup_of([policy], script, config, log))
    assert (played.end, played.reward) == (end, reward)
    assert error in played.error
    assert bool(played.error) == bool(error)
    assert (log.num_open, log.num_closed_again) == (0, 0)
    assert policy.num_left == bool(policy.seen)
    assert EpisodeRecord.from_json(played.to_json()).key == played.key


async def test_a_policy_that_is_out_ends_the_episode_and_one_that_never_works_the_evaluation(
    autojump_clock: object,
) -> None:
    def refuse(messages: object) -> str:
        raise ConfigError("wrong key")

    out = await play_episode(alone("p"), TASK, 0, setup_of([SayingPolicy("p", lambda m: "")], EnvScript()))
    assert (out.end, out.reward, out.env_reward, out.error) == (EpisodeEnd.ENGINE_ERROR, None, None, "p is out")
    log = SessionLog()
    with pytest.raises(ConfigError, match="wrong key"):
        await play_episode(alone("p"), TASK, 0, setup_of([SayingPolicy("p", refuse)], EnvScript(), log=log))
    assert log.num_open == 0


async def test_calls_beyond_a_budget_are_answered_but_not_executed(autojump_clock: object) -> None:
    two = Message(role="assistant", tool_calls=act(n=1).tool_calls * 2)
    policy = SayingPolicy("p", lambda messages: two)
    config = replace(CONFIG, max_calls_per_turn=1, max_calls=2)
    played = await play_episode(alone("p"), TASK, 0, setup_of([policy], EnvScript(rewards=(0.0,) * 9), config))
    assert (played.end, played.error) == (EpisodeEnd.MAX_TURNS, "used up its 2 tool calls")
    assert [m.content for m in played.messages if m.role == "tool"] == ["act done", "not executed: too many calls"] * 2


async def test_sampled_tokens_are_bounded_over_all_policies(autojump_clock: object) -> None:
    policies = [SayingPolicy(name, lambda messages: "Hm.") for name in ("x", "y")]  # three tokens each
    (mixture,) = make_mixtures(["x", "y"], ["turn"])
    config = replace(CONFIG, max_sampled_tokens=7, max_turns=9)
    played = await play_episode(mixture, TASK, 0, setup_of(policies, EnvScript(rewards=(0.0,) * 9), config))
    assert (played.end, len(played.turns)) == (EpisodeEnd.CONTEXT_LIMIT, 3)
    bounds = [settings.max_new_tokens for policy in policies for _, settings in policy.seen]
    assert sorted(bounds) == [1, 4, 7]


async def test_all_policies_see_one_conversation_and_are_told_of_its_end(autojump_clock: object) -> None:
    policies = [SayingPolicy("x", lambda messages: "I am x."), SayingPolicy("y", lambda messages: "I am y.")]
    (mixture,) = make_mixtures(["x", "y"], ["turn"])
    setup = setup_of(policies, EnvScript(rewards=(0.0, 0.0, 0.0, 1.0)))
    played = [await play_episode(mixture, TASK, sample, setup) for sample in range(8)]
    assert {turn.policy for episode in played for turn in episode.turns} == {"x", "y"}
    for episode in played:
        said = [message.content for message in episode.messages if message.role == "assistant"]
        assert said == [f"I am {turn.policy}." for turn in episode.turns]
    for policy in policies:
        assert policy.num_left == sum(policy.name in {turn.policy for turn in e.turns} for e in played)


async def test_cancelling_closes_everything(autojump_clock: object) -> None:
    policy, log = SayingPolicy("p", lambda messages: "Hm.", 100.0), SessionLog()
    with trio.move_on_after(2.0) as scope:
        await play_episode(alone("p"), TASK, 0, setup_of([policy], EnvScript(), log=log))
    assert scope.cancelled_caught
    assert (log.num_open, policy.num_left) == (0, 1)
