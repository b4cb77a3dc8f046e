"""TOK: what templates do to earlier turns, and what reaches the policy. Each test is one published fault."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import trio

from agentrl_jax.config import TrainConfig
from agentrl_jax.controller.episode import run_episode, single_engine
from agentrl_jax.env import Message
from agentrl_jax.errors import ConfigError
from agentrl_jax.policy import NetworkConfig
from agentrl_jax.preparation import prepare, settle_rendering
from agentrl_jax.rendering.config import HistoryThinking, RenderingConfig, read_rendering
from agentrl_jax.rendering.transcript import TemplateRenderer
from agentrl_jax.sft import WarmUpConfig
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.testing.tokenizers import TemplateKind, toy_template, toy_tokenizer
from agentrl_jax.types import EpisodeEnd
from launch.config import make_families
from tests.rendering.chat import SHORT, TOOLS, assistant, call, small_folder, small_renderer, tokenizer_with, tool, user
from tests.rendering.episodes import CONFIG, TASK, RecordingEngine, Script, setup_for
from tests.rendering.families import FAMILIES, NAMES, THOUGHT, toy_renderer

TALK = (user("How are you?"), assistant(f"{THOUGHT}I am good!"), user("What is your name?"))


def text_of(renderer: TemplateRenderer, ids: object) -> str:
    return renderer.tokenizer.decode(np.asarray(ids).tolist())


@pytest.mark.parametrize(("history", "is_shown"), [("keep", True), ("strip", False)])
async def test_tok_05_both_policies_on_thinking_record_what_the_engine_received(
    history: str, is_shown: bool, autojump_clock: trio.testing.MockClock
) -> None:
    renderer = toy_renderer("qwen3", history)  # type: ignore[arg-type]
    engine = RecordingEngine(renderer, said=TALK[1::2])
    session = Script(opening=TALK[0].content, answers=[TALK[2:]])
    setup = replace(setup_for(renderer, session, ()), choose_engine=single_engine(engine))
    trajectory = await run_episode(TASK, 0, 0, setup=setup)
    assert len(trajectory.segments) == (1 if is_shown else 2)
    recorded = [segment.ids[: -len(segment.turns[-1].completion.ids)] for segment in trajectory.segments]
    assert recorded[-1].tolist() == engine.prompts[-1].tolist()
    assert recorded[0].tolist() == engine.prompts[len(trajectory.segments[0].turns) - 1].tolist()
    assert ("hm" in text_of(renderer, engine.prompts[-1])) is is_shown


def test_tok_06_a_policy_remembers_its_history_and_another_one_is_said(tmp_path: Path) -> None:
    network = NetworkConfig(width=16, num_layers=1, num_heads=2, num_kv_heads=1, mlp_width=16)
    config = TrainConfig(network=network, warm_up=WarmUpConfig(demonstrations=8))
    made = prepare(config, make_families(config), tmp_path / "new", lambda line: None).policy
    trained = replace(made, tokenizer=toy_tokenizer("qwen3"))
    said: list[str] = []
    kept = settle_rendering(replace(trained, rendering=None), RenderingConfig(history_thinking="keep"), said.append)
    replace(made, rendering=kept).save(made.load_params(None), tmp_path / "model")
    recorded = read_rendering(tmp_path / "model")
    assert recorded == kept
    assert settle_rendering(replace(trained, rendering=recorded), RenderingConfig(), said.append) == kept
    assert said == []
    with pytest.raises(ConfigError, match=r"the policy in .*--history-thinking keep .* --history-thinking strip"):
        settle_rendering(replace(trained, rendering=None), RenderingConfig(), said.append)
    asked = RenderingConfig(history_thinking="strip")
    assert settle_rendering(replace(trained, rendering=recorded), asked, said.append).history_thinking == "strip"
    assert said == [
        "warning: the policy was trained with history_thinking = keep, and meets history_thinking = strip now"
    ]


def test_tok_07_a_user_message_that_deletes_thinking_is_rendered_as_it_is_alone() -> None:
    kept = toy_renderer("qwen3", "keep")
    alone = text_of(kept, kept.reply([user("And?")]))
    assert alone == "\n<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n"
    whole = text_of(kept, kept.full_render([*TALK[:2], user("And?")], (), add_generation_prompt=True))
    assert whole.endswith(alone)
    stream = kept.stream(())
    stream.begin(TALK[:1])
    assert text_of(kept, stream.follow(kept.encode_turn(TALK[1]), [user("And?")]).ids) == alone


def test_tok_09_a_thinking_block_that_the_template_puts_into_last_turns_is_in_no_reply() -> None:
    renderer = toy_renderer("qwen3", "keep")
    assert "<think>" in text_of(renderer, renderer.encode_turn(assistant("", call("look"))))
    talk = [user("Go."), assistant("", call("look")), tool("empty")]
    full = text_of(renderer, renderer.full_render(talk, (), add_generation_prompt=True))
    reply = text_of(renderer, renderer.reply(talk[2:]))
    assert "<think>" not in reply
    assert full.endswith("<|im_end|>" + reply)


@pytest.mark.parametrize("identity", ["Bo", "A model of many words"])
def test_tok_11_what_a_template_reads_besides_messages_moves_no_border(identity: str) -> None:
    tokenizer = tokenizer_with(small_folder(), "{{- '<|im_start|>system\\n' + identity + '<|im_end|>\\n' }}" + SHORT)
    tokenizer.constants["identity"] = identity
    renderer = TemplateRenderer(tokenizer, tools=TOOLS)
    ((ids, mask),) = renderer.demonstration_segments([*TALK, assistant("Bob.")], TOOLS)
    assert ids.tolist() == renderer.full_render([*TALK, assistant("Bob.")], TOOLS, add_generation_prompt=False).tolist()
    assert text_of(renderer, ids[mask]) == f"{THOUGHT}I am good!<|im_end|>Bob.<|im_end|>"


def test_tok_13_white_space_that_an_engine_would_strip_from_text_stands_in_the_ids() -> None:
    renderer = small_renderer()
    stop, newline = renderer.stop_ids[0], renderer.tokenizer.encode("\n")[0]
    for turn in (assistant("I wait."), assistant("I wait. \n\n")):
        ids = [*renderer.prompt([user("Go.")], ()), *renderer.encode_turn(turn), *renderer.reply([user("So?")])]
        assert ids == renderer.full_render([user("Go."), turn, user("So?")], (), add_generation_prompt=True).tolist()
        assert ids[len(renderer.prompt([user("Go.")], ())) + len(renderer.encode_turn(turn)) - 1 :][:2] == [
            stop,
            newline,
        ]


def test_tok_16_thinking_that_the_prompt_opened_is_one_block_and_the_answer_is_intact() -> None:
    made = toy_tokenizer("qwen3")
    prompt = "{{- '<|im_start|>assistant\\n' }}"
    made.chat_template = toy_template("qwen3").replace(prompt, prompt.replace("' }}", "<think>\\n' }}"))
    renderer = TemplateRenderer(made, config=RenderingConfig(history_thinking="strip"))
    sampled = np.array([*made.encode("reasoning</think>answer"), renderer.stop_ids[0]], np.int32)
    assert renderer.parse(sampled).content == "reasoning</think>answer"
    stream = renderer.stream(())
    stream.begin([user("Go.")])
    within = text_of(renderer, stream.follow(sampled, [tool("x")]).ids)
    assert within.count("<think>\nreasoning\n</think>\n\nanswer<|im_end|>") == 1
    assert within.count("<think>") == 2  # and the one that the next turn begins with
    after = text_of(renderer, stream.follow(sampled, [user("So?")]).ids)
    assert after.count("<|im_start|>assistant\nanswer<|im_end|>") == 2
    assert "reasoning" not in after


async def test_tok_17_a_result_that_does_not_fit_ends_the_episode_and_no_part_of_it_is_recorded(
    autojump_clock: trio.testing.MockClock,
) -> None:
    renderer = toy_renderer("qwen3", "keep")
    setup = setup_for(renderer, Script(answers=[(tool("z" * 5000),)]))
    trajectory = await run_episode(TASK, 0, 0, setup=setup)
    assert (trajectory.end, len(trajectory.turns)) == (EpisodeEnd.CONTEXT_LIMIT, 1)
    assert "z" not in text_of(renderer, trajectory.segments[0].ids)


def test_tok_18_neither_side_of_a_result_is_ever_cut() -> None:
    content = "HEAD" + "…" * 10_000 + "TAIL"
    for kind in ("qwen2_5", "llama3", "glm"):
        renderer = toy_renderer(kind)  # type: ignore[arg-type]
        assert content in text_of(renderer, renderer.reply([tool(content)]))


@pytest.mark.parametrize(("kind", "history"), FAMILIES, ids=NAMES)
async def test_tok_23_no_end_is_put_behind_a_turn_that_sampled_none(
    kind: TemplateKind, history: HistoryThinking, autojump_clock: trio.testing.MockClock
) -> None:
    """Such a turn ends the episode, whose ids are those of the prompt and exactly what was sampled."""
    renderer = toy_renderer(kind, history)
    engine = FakeEngine(script=lambda prompt, sampling: [65] * 99)
    setup = replace(setup_for(renderer, Script()), choose_engine=single_engine(engine))
    setup = replace(setup, config=replace(CONFIG, max_new_tokens=4))
    trajectory = await run_episode(TASK, 0, 0, setup=setup)
    (segment,) = trajectory.segments
    assert trajectory.end is EpisodeEnd.TURN_TRUNCATED
    assert segment.ids[segment.loss_mask].tolist() == segment.ids[-4:].tolist() == [65] * 4
    prompt = renderer.full_render([user(Script().opening)], TOOLS, add_generation_prompt=True)
    assert segment.ids[:-4].tolist() == prompt.tolist()


async def test_tok_24_ids_of_control_tokens_are_the_engines_and_only_read_as_text(
    autojump_clock: trio.testing.MockClock,
) -> None:
    renderer = toy_renderer("glm")
    said = [*renderer.tokenizer.encode("\nI say<|user|>"), *renderer.tokenizer.encode_plain("<|user|>")]
    said = [id_ for id_ in said if id_ != renderer.tokenizer.special_tokens["<|user|>"]]
    assistant_id = renderer.tokenizer.special_tokens["<|assistant|>"]
    engine = FakeEngine(script=lambda prompt, sampling: [*said, assistant_id])
    session = Script(answers=[])
    setup = replace(setup_for(renderer, session), choose_engine=single_engine(engine))
    (turn,) = (await run_episode(TASK, 0, 0, setup=setup)).turns
    assert turn.completion.ids[:-1].tolist() == [*said, assistant_id]
    assert renderer.parse(turn.completion.ids).content == "I say<|user|>"


def test_tok_27_a_template_that_wants_a_user_first_is_probed_within_its_rules() -> None:
    rule = "{%- if messages[0].role not in ('system', 'user') %}{{ raise_exception('begin with a user') }}{%- endif %}"
    renderer = TemplateRenderer(tokenizer_with(small_folder(), rule + SHORT), tools=TOOLS)
    turn: Message = assistant("Hm.", call("look", room="hall"))
    assert renderer.encode_turn(turn).tolist() == small_renderer().encode_turn(turn).tolist()
    assert renderer.reply([tool("x")]).tolist() == small_renderer().reply([tool("x")]).tolist()
