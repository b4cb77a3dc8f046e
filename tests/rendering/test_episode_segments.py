"""Whole episodes on templates that rewrite history: what engines got is what is recorded, segment by segment."""

import threading
from dataclasses import replace

import numpy as np
import pytest
import trio

from agentrl_jax.algo.advantages import AdvantageConfig
from agentrl_jax.controller.episode import run_episode, single_engine
from agentrl_jax.controller.episode_replay import replay
from agentrl_jax.env import Action, Message, StepResult
from agentrl_jax.episode_log import RecordedEpisode, RecordedTurn
from agentrl_jax.packing import PackingConfig, build_batch
from agentrl_jax.rendering.streams import QUICK_CHARS
from agentrl_jax.rendering.transcript import TemplateRenderer
from agentrl_jax.types import EpisodeEnd, Group, Ids, Task, Trajectory, Turn
from tests.rendering.chat import TOOLS, user
from tests.rendering.episodes import CONFIG, TASK, RecordingEngine, Script, setup_for
from tests.rendering.families import toy_renderer


async def play(renderer: TemplateRenderer) -> tuple[Trajectory, list[Ids]]:
    engine = RecordingEngine(renderer)
    setup = replace(setup_for(renderer, Script()), choose_engine=single_engine(engine))
    return await run_episode(TASK, 0, 0, setup=setup), engine.prompts


def as_sent(trajectory: Trajectory, prompts: list[Ids]) -> list[list[int]]:
    """The last prompt of each segment and what was sampled upon it."""
    last = np.cumsum([len(segment.turns) for segment in trajectory.segments]) - 1
    return [[*prompts[index], *trajectory.turns[index].completion.ids] for index in last]


@pytest.mark.parametrize(("history", "lengths"), [("keep", [3]), ("strip", [2, 1])])
async def test_each_segment_is_exactly_what_the_engine_saw(
    history: str, lengths: list[int], autojump_clock: trio.testing.MockClock
) -> None:
    trajectory, prompts = await play(toy_renderer("qwen3", history))  # type: ignore[arg-type]
    assert trajectory.end is EpisodeEnd.COMPLETED, trajectory.error
    assert [len(segment.turns) for segment in trajectory.segments] == lengths
    assert [segment.ids.tolist() for segment in trajectory.segments] == as_sent(trajectory, prompts)
    sampled = [turn.completion.ids for turn in trajectory.turns]
    assert (
        np.concatenate([s.ids[s.loss_mask] for s in trajectory.segments]).tolist() == np.concatenate(sampled).tolist()
    )


async def test_all_segments_of_an_episode_share_its_advantage(autojump_clock: trio.testing.MockClock) -> None:
    good, _ = await play(toy_renderer("qwen3", "strip"))
    bad = replace(good, member=1, reward=0.0)
    group = Group(group_id=0, task=TASK, start_version=0, trajectories=(good, bad))
    advantages = AdvantageConfig(estimator="dr_grpo", task_normalisation="off")
    packing = PackingConfig(row_tokens=(2048,), rows_per_micro_batch=1)
    batch = build_batch([group], advantages=advantages, packing=packing, learner_version=0)
    values = np.concatenate([rows.advantages[rows.loss_mask] for rows in batch.micro_batches])
    assert sorted(set(values.tolist())) == [-0.5, 0.5]
    assert (values == 0.5).sum() == (values == -0.5).sum() == good.num_loss_tokens
    # "sequence" means the trajectory: both segments count its tokens together.
    counts = np.concatenate([rows.sequence_tokens[rows.loss_mask] for rows in batch.micro_batches])
    assert set(counts.tolist()) == {good.num_loss_tokens}


async def test_the_context_bounds_each_segment(autojump_clock: trio.testing.MockClock) -> None:
    renderer = toy_renderer("qwen3", "strip")
    whole, _ = await play(renderer)
    longest = max(len(segment.ids) for segment in whole.segments)
    assert longest < whole.num_tokens
    setup = replace(setup_for(renderer, Script()), config=replace(CONFIG, max_context_tokens=longest))
    assert (await run_episode(TASK, 0, 0, setup=setup)).end is EpisodeEnd.COMPLETED


class ScriptedEnv:
    """The env that `Script` is a session of."""

    def __init__(self, task: Task) -> None:
        self._script = Script()

    def reset(self) -> tuple[Message, ...]:
        return (user(self._script.opening),)

    def step(self, action: Action) -> StepResult:
        return self._script.answer()

    def close(self) -> None:
        pass


def recorded_turn(turn: Turn) -> RecordedTurn:
    return RecordedTurn(
        context_ids=turn.context_ids, ids=turn.completion.ids, finish_reason="stop", engine="fake-0", pool="current",
        versions=(0,), reward=turn.reward, num_calls=turn.num_calls, call_errors=turn.call_errors,
    )  # fmt: skip


@pytest.mark.parametrize(("history", "replayed_with"), [("keep", "keep"), ("strip", "strip"), ("strip", "keep")])
async def test_a_replay_rebuilds_every_segment_and_notices_another_policy_on_history(
    history: str, replayed_with: str, autojump_clock: trio.testing.MockClock
) -> None:
    trajectory, _ = await play(toy_renderer("qwen3", history))  # type: ignore[arg-type]
    episode = RecordedEpisode(
        episode_id="g0-m0", step=0, task=TASK, end=trajectory.end, reward=1.0, env_reward=1.0, error="",
        turns=tuple(map(recorded_turn, trajectory.turns)),
    )  # fmt: skip
    parts = list(replay(episode, ScriptedEnv, toy_renderer("qwen3", replayed_with), TOOLS))  # type: ignore[arg-type]
    divergences = [part.divergence for part in parts if part.divergence]
    assert len(parts) == (4 if history == replayed_with else 3)
    assert bool(divergences) is (history != replayed_with)


@pytest.mark.parametrize("history", ["keep", "strip"])
@pytest.mark.parametrize(("num_chars", "is_slow"), [(10, False), (QUICK_CHARS + 1, True)])
async def test_slow_rendering_leaves_the_event_loop_if_there_is_a_thread_for_it(
    history: str, num_chars: int, is_slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    renderer = TemplateRenderer(toy_renderer("qwen3", "keep").tokenizer, config=toy_renderer("qwen3", history).config)  # type: ignore[arg-type]
    threads: list[bool] = []
    encode = renderer._encode
    monkeypatch.setattr(renderer, "_encode", lambda text: (threads.append(on_loop()), encode(text))[1])

    def on_loop() -> bool:
        return threading.current_thread() is threading.main_thread()

    limiter = trio.CapacityLimiter(1)
    for render_threads in (limiter, None):
        session = Script(opening="x" * num_chars, answers=[])
        setup = replace(setup_for(renderer, session, ()), render_threads=render_threads)
        threads.clear()
        await run_episode(TASK, 0, 0, setup=setup)
        assert threads[0] is not (is_slow and render_threads is not None)
        renderer._encode_prompt.cache_clear()
    assert limiter.borrowed_tokens == 0
