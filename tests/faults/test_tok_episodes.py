"""TOK and MSK rows that whole episodes decide: which ids an engine is given, and which of them are recorded."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from shutil import copytree

import pytest
from trio.testing import MockClock

from agentrl_jax.controller.episode import EpisodeConfig, run_episode, single_engine
from agentrl_jax.env import Action, StepResult
from agentrl_jax.rendering.transcript import TemplateRenderer
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.types import EpisodeEnd, Ids, SamplingParams, Trajectory
from tests.rendering.chat import TOOLS, call, small_folder, small_renderer, tool
from tests.rendering.episodes import CONFIG, TASK, Script, setup_for
from tests.rendering.families import toy_renderer

CALL = '<tool_call>\n{"name": "look", "arguments": {"room": "hall"}}\n</tool_call>'


class Saying(FakeEngine):
    """Says the same ids in every turn, and keeps what it was given."""

    def __init__(self, ids: list[int]) -> None:
        self.prompts: list[Ids] = []
        super().__init__(script=lambda prompt, sampling: self._say(prompt, ids))

    def _say(self, prompt: Ids, ids: list[int]) -> list[int]:
        self.prompts.append(prompt)
        return ids


@dataclass
class Asked(Script):
    """Keeps what it was asked."""

    actions: list[Action] = field(default_factory=list)

    async def interact(self, action: Action) -> StepResult:
        self.actions.append(action)
        return await super().interact(action)


async def play(
    engine: FakeEngine, session: Script, *, renderer: TemplateRenderer | None = None, config: EpisodeConfig = CONFIG
) -> Trajectory:
    setup = setup_for(renderer or small_renderer(), session)
    return await run_episode(TASK, 0, 0, setup=replace(setup, choose_engine=single_engine(engine), config=config))


async def test_tok_04_the_next_prompt_holds_the_sampled_ids_however_they_are_split(autojump_clock: MockClock) -> None:
    renderer = small_renderer()
    by_bytes = [renderer.tokenizer.encode(char)[0] for char in CALL]
    assert len(by_bytes) > len(renderer.tokenizer.encode(CALL))
    engine, session = Saying(by_bytes), Asked(answers=[(tool("empty"),)])
    trajectory = await play(engine, session)
    first, second = engine.prompts
    assert second.tolist() == [*first, *by_bytes, renderer.stop_ids[0], *renderer.reply([tool("empty")])]
    (segment,) = trajectory.segments
    assert segment.ids.tolist() == [*second, *by_bytes, renderer.stop_ids[0]]
    assert len(segment.ids) == len(segment.loss_mask)
    assert segment.ids[segment.loss_mask].tolist() == [*by_bytes, renderer.stop_ids[0]] * 2
    assert [action.calls for action in session.actions] == [(call("look", room="hall"),)] * 2


@pytest.mark.parametrize("end", ["<|observation|>", "<|endoftext|>", "<|user|>"])
async def test_tok_21_the_header_of_an_answer_stands_once_whatever_ended_the_turn(
    end: str, autojump_clock: MockClock
) -> None:
    """The template's stop ids are the headers of whoever answers, and a policy may end its turn with another."""
    renderer = toy_renderer("glm")
    special = renderer.tokenizer.special_tokens
    engine = Saying([*renderer.tokenizer.encode("Hm."), special[end]])
    trajectory = await play(engine, Script(answers=[(tool("empty"),)]), renderer=renderer)
    assert len(trajectory.turns) == 2
    followed = engine.prompts[1].tolist()[len(engine.prompts[0]) + len(trajectory.turns[0].completion.ids) - 1 :]
    assert followed[0] == special[end]
    assert followed.count(special["<|observation|>"]) == 1
    assert renderer.tokenizer.decode(followed).removeprefix(end).removeprefix("<|observation|>").startswith("\nempty")


async def test_tok_22_a_turn_that_is_cut_ends_its_episode_before_anything_is_glued_to_it(
    autojump_clock: MockClock,
) -> None:
    engine, session = Saying(small_renderer().tokenizer.encode(CALL)), Asked()
    trajectory = await play(engine, session, config=replace(CONFIG, max_new_tokens=4))
    assert trajectory.end is EpisodeEnd.TURN_TRUNCATED
    (segment,) = trajectory.segments
    assert segment.ids.tolist() == [*engine.prompts[0], *small_renderer().tokenizer.encode(CALL)[:4]]
    assert len(engine.prompts) == 1
    assert session.actions == []


@pytest.mark.parametrize("is_list", [True, False])
async def test_msk_10_the_ends_that_a_policys_folder_names_end_its_turns(
    is_list: bool, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Its template ends turns with one id; generation_config.json names others."""
    folder = copytree(small_folder(), tmp_path / "policy")
    special = small_renderer().tokenizer.special_tokens
    (own,) = small_renderer().stop_ids[:1]
    others = sorted(set(special.values()) - set(small_renderer().stop_ids))[: 2 if is_list else 1]
    (folder / "generation_config.json").write_text(f'{{"eos_token_id": {others if is_list else others[0]}}}')
    renderer = TemplateRenderer(folder, tools=TOOLS)
    assert {own, *others} <= set(renderer.stop_ids)
    for end in (own, *others):
        said = [*renderer.tokenizer.encode(CALL), end, *renderer.tokenizer.encode("never")]
        session = Asked(answers=[])
        trajectory = await play(Saying(said), session, renderer=renderer)
        assert trajectory.end is EpisodeEnd.COMPLETED
        assert trajectory.turns[0].completion.ids[-1] == end
        assert session.actions == [Action(calls=(call("look", room="hall"),))]


async def test_msk_15_the_cap_of_a_turn_is_not_one_of_the_episode(autojump_clock: MockClock) -> None:
    """At most 8 tokens a turn: three turns of 6 are 18 trained tokens."""
    bounds: list[int] = []

    def say(prompt: Ids, sampling: SamplingParams) -> list[int]:
        bounds.append(sampling.max_new_tokens)
        return [65] * 5

    trajectory = await play(FakeEngine(script=say), Script(), config=replace(CONFIG, max_new_tokens=8))
    assert trajectory.end is EpisodeEnd.COMPLETED
    assert bounds == [8] * 3
    assert [len(turn.completion.ids) for turn in trajectory.turns] == [6] * 3
    (segment,) = trajectory.segments
    assert segment.loss_mask.sum() == 18
