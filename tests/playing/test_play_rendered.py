"""Models of different tokenizers at one episode, and one model alone, which plays as in training."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.controller.episode import EpisodeConfig, EpisodeSetup, run_episode, single_engine
from agentrl_jax.env import Message
from agentrl_jax.playing.episode import play_episode
from agentrl_jax.playing.mixtures import make_mixtures
from agentrl_jax.seeding import derive_seed
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.testing.envs import EnvScript, SessionLog, scripted_sessions
from agentrl_jax.testing.virtual import run_virtual
from agentrl_jax.types import EpisodeEnd
from tests.playing.world import ACT, CONFIG, TASK, ToyModel, act, alone, hermes, setup_of

FOUR = EnvScript(rewards=(0.0, 0.0, 0.0, 1.0))
CALL_LLAMA = '{"name": "act", "parameters": {"by": "llama"}}'


async def test_each_model_sees_the_conversation_by_its_own_template(autojump_clock: object) -> None:
    qwen = ToyModel("qwen2_5", lambda prompt: "Hm." + "\n" + hermes("act", by="qwen"))
    llama = ToyModel("llama3", lambda prompt: CALL_LLAMA)
    (mixture,) = make_mixtures(["qwen2_5", "llama3"], ["turn"])
    setup = setup_of([qwen.policy, llama.policy], FOUR)
    sample = next(s for s in range(99) if _turns(mixture, setup.seed, s) == ["qwen2_5", "llama3", "qwen2_5", "qwen2_5"])
    played = await play_episode(mixture, TASK, sample, setup)
    assert (played.end, played.is_success, played.error) == (EpisodeEnd.COMPLETED, True, "")
    assert [turn.policy for turn in played.turns] == ["qwen2_5", "llama3", "qwen2_5", "qwen2_5"]
    by_qwen = Message(role="assistant", content="Hm.", tool_calls=act(by="qwen").tool_calls)
    answer = Message(role="tool", content="act done")
    conversation = [*FOUR.reset(TASK), by_qwen, answer, act(by="llama"), answer, by_qwen, answer, by_qwen, answer]
    assert list(played.messages) == conversation
    # The other's turn, as its own template would have written it; then its own turn, as it was sampled.
    prompts = [conversation[:1], conversation[:5], conversation[:7]]
    for prompt, messages in zip(qwen.prompts, prompts, strict=True):
        expected = qwen.renderer.full_render(messages, [ACT], add_generation_prompt=True)
        assert np.array_equal(prompt, expected), (qwen.tokenizer.decode(prompt), qwen.tokenizer.decode(expected))
    (seen,) = llama.prompts
    expected = llama.renderer.full_render(conversation[:3], [ACT], add_generation_prompt=True)
    assert np.array_equal(seen, expected)
    assert '"by": "qwen"' in llama.texts[0]
    assert [turn.num_prompt_tokens for turn in played.turns][1] == len(expected)


def _turns(mixture: object, seed: int, sample: int) -> list[str]:
    return [mixture.choose(seed, TASK, sample, turn) for turn in range(4)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["llama3", "glm"])
async def test_a_call_that_cannot_be_read_is_shown_to_others_as_text(kind: str, autojump_clock: object) -> None:
    broken = '<tool_call>\n{"name": "act", "arguments": {]\n</tool_call>'
    first = ToyModel("qwen2_5", lambda prompt: broken)
    other = ToyModel(kind, lambda prompt: "Go on.")  # type: ignore[arg-type]
    (mixture,) = make_mixtures(["qwen2_5", kind], ["turn"])
    setup = setup_of([first.policy, other.policy], FOUR)
    order = ["qwen2_5", *[kind] * 3]
    sample = next(s for s in range(999) if _turns(mixture, setup.seed, s) == order)
    played = await play_episode(mixture, TASK, sample, setup)
    assert (played.end, played.error) == (EpisodeEnd.COMPLETED, "")
    assert played.messages[1] == Message(role="assistant", content=broken)
    assert (played.turns[0].num_calls, played.turns[0].num_call_errors) == (0, 1)
    assert broken in other.texts[0]


@given(st.integers(0, 1000), st.integers(1, 3), st.sampled_from([0.0, 0.8]), st.integers(3, 9), st.booleans())
def test_one_model_alone_plays_what_training_plays(
    seed: int, max_turns: int, temperature: float, max_new_tokens: int, is_tight: bool
) -> None:
    model = ToyModel("qwen2_5", lambda prompt: "")
    model.engine = FakeEngine(name="m", vocabulary=tuple(range(40, 48)))
    model.policy._engine = model.engine
    config = EpisodeConfig(
        max_turns=max_turns,
        max_new_tokens=max_new_tokens,
        max_context_tokens=420 if is_tight else 4096,
        max_sampled_tokens=11,
        temperature=temperature,
    )
    script = EnvScript(rewards=(0.5, 0.25, 0.25))
    setup = replace(setup_of([model.policy], script, config), seed=seed)
    played = run_virtual(lambda: play_episode(alone("qwen2_5"), TASK, 2, setup))

    class Seeded(FakeEngine):
        """Draws each turn as the evaluation does, whose seeds have other names."""

        async def generate(self, prompt_ids, sampling, *, session, watch=None):  # type: ignore[no-untyped-def]
            turn_seed = derive_seed(seed, "turn", TASK.key, 2, self.num_asked)
            self.num_asked += 1
            return await super().generate(prompt_ids, replace(sampling, seed=turn_seed), session=session, watch=watch)

        num_asked = 0

    training = EpisodeSetup(
        sessions=scripted_sessions(script, SessionLog()),
        tools=(ACT,),
        renderer=model.renderer,
        choose_engine=single_engine(Seeded(name="m", vocabulary=tuple(range(40, 48)))),
        config=config,
        run_seed=seed,
    )
    trained = run_virtual(lambda: run_episode(TASK, 0, 0, setup=training))
    assert (played.end, played.reward, played.env_reward) == (trained.end, trained.reward, trained.env_reward)
    assert [turn.num_sampled_tokens for turn in played.turns] == [len(turn.completion.ids) for turn in trained.turns]
    ids = np.concatenate([segment.ids for segment in trained.segments])
    if trained.turns:
        last = trained.turns[-1].completion
        assert played.turns[-1].num_prompt_tokens + len(last.ids) == len(ids)


async def test_a_prompt_beyond_the_context_ends_the_episode_without_a_turn(autojump_clock: object) -> None:
    model = ToyModel("qwen2_5", lambda prompt: "x")
    config = EpisodeConfig(max_turns=4, max_new_tokens=8, max_context_tokens=10)
    played = await play_episode(alone("qwen2_5"), TASK, 0, setup_of([model.policy], FOUR, config))
    assert (played.end, played.turns, model.prompts) == (EpisodeEnd.CONTEXT_LIMIT, (), [])


async def test_an_engine_s_own_context_counts_where_it_is_shorter(autojump_clock: object) -> None:
    model = ToyModel("qwen2_5", lambda prompt: "x" * 99)
    first = len(model.renderer.prompt(FOUR.reset(TASK), [ACT]))
    model.policy._context_tokens = first + 4
    played = await play_episode(alone("qwen2_5"), TASK, 0, setup_of([model.policy], FOUR))
    assert (played.end, played.turns[0].num_sampled_tokens) == (EpisodeEnd.CONTEXT_LIMIT, 4)
    model.policy._context_tokens = first
    played = await play_episode(alone("qwen2_5"), TASK, 0, setup_of([model.policy], FOUR))
    assert (played.end, played.turns) == (EpisodeEnd.CONTEXT_LIMIT, ())


async def test_a_turn_that_is_cut_short_ends_the_episode(autojump_clock: object) -> None:
    model = ToyModel("qwen2_5", lambda prompt: "x" * 99)
    short = replace(CONFIG, max_new_tokens=5)
    played = await play_episode(alone("qwen2_5"), TASK, 0, setup_of([model.policy], FOUR, short))
    assert (played.end, played.reward) == (EpisodeEnd.TURN_TRUNCATED, -0.2)
    assert played.turns[0].num_sampled_tokens == 5
    assert played.messages[-1].content == "xxxxx"
    assert isinstance(model.engine, FakeEngine)
    assert model.engine.sessions == frozenset()
