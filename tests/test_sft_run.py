"""Supervised fine-tuning: what is learnt, that it is learnt, and that a stopped run goes on as if it had not."""

import json
import re
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
import trio

from agentrl_jax.config import TrainConfig
from agentrl_jax.env import FamilyOptions
from agentrl_jax.errors import ConfigError, TemplateError
from agentrl_jax.policy import NetworkConfig, create_policy, open_policy
from agentrl_jax.preparation import play_demonstrations
from agentrl_jax.rendering.transcript import TemplateRenderer
from agentrl_jax.runlog import RunLog, read_records
from agentrl_jax.sft_config import SftConfig
from agentrl_jax.sft_data import Conversation
from agentrl_jax.sft_run import SftData, SftResult, run_sft, segments_of, split_conversations
from agentrl_jax.sharding import make_mesh, parse_mesh
from agentrl_jax.types import Bools, Ids
from envs.knowledge_graph import family
from tests.launch.test_replay_episode import expert_episode

NETWORK = NetworkConfig(width=16, num_layers=1, num_heads=2, num_kv_heads=1, mlp_width=16)
CONFIG = SftConfig(data=Path("data.jsonl"), network=NETWORK, batch_size=8, max_steps=6, evaluate_every=3, save_every=4)
KG = family(FamilyOptions(seed=0))


def conversation(messages: tuple, tools: tuple) -> Conversation:  # type: ignore[type-arg]
    num_turns = sum(message.role == "assistant" for message in messages)
    return Conversation(messages=messages, tools=tools, is_learnt=(True,) * num_turns)


CONVERSATIONS = [conversation(*played) for played in play_demonstrations([KG], 40, noise=0.2, seed=0)]
DATA = split_conversations(CONVERSATIONS, 0.2, seed=0)


def carry_out(
    config: SftConfig, folder: Path, *, data: SftData = DATA, resume: bool = False, num_steps: int | None = None
) -> tuple[SftResult, list[str]]:
    """A run in `folder`, asked to stop after `num_steps` steps of this process."""
    said: list[str] = []
    asked = 0

    def should_stop() -> bool:
        nonlocal asked
        asked += 1
        return num_steps is not None and asked > num_steps

    with RunLog(folder, resume=resume) as run:
        return run_sft(config, data, make_mesh(parse_mesh(config.mesh)), run, said.append, should_stop), said


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SftResult, list[str]]:
    folder = tmp_path_factory.mktemp("sft") / "run"
    return folder, *carry_out(CONFIG, folder)


def test_a_run_learns_and_leaves_a_policy_and_its_figures(unbroken: tuple[Path, SftResult, list[str]]) -> None:
    folder, result, said = unbroken
    assert (result.num_steps, result.is_stopped, result.model_folder) == (6, False, folder / "model")
    assert result.first is not None
    assert result.last is not None
    assert result.last.mean_loss < result.first.mean_loss
    records = read_records(folder / "metrics.jsonl")
    assert [r["step"] for r in records if r["kind"] == "step"] == [1, 2, 3, 4, 5, 6]
    assert [r["step"] for r in records if r["kind"] == "validation"] == [0, 3, 6]
    last = [r for r in records if r["kind"] == "validation"][-1]
    assert (last["mean_loss"], last["accuracy"]) == (result.last.mean_loss, result.last.accuracy)
    rates = [r["metrics"]["learning_rate"] for r in records if r["kind"] == "step"]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == pytest.approx(3e-3)
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["step-00000004", "step-00000006"]
    assert said[0].startswith("32 conversations to learn from, 8 to validate on, the longest of ")
    assert said[-1] == f"validation loss {result.first.mean_loss:.3f} → {result.last.mean_loss:.3f}"
    assert open_policy(folder / "model").load_params(None)


@pytest.mark.parametrize("num_steps", [1, 4])
def test_a_stopped_run_goes_on_as_if_it_had_not(
    num_steps: int, unbroken: tuple[Path, SftResult, list[str]], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    stopped, _ = carry_out(CONFIG, folder, num_steps=num_steps)
    assert (stopped.num_steps, stopped.is_stopped) == (num_steps, True)
    resumed, said = carry_out(replace(CONFIG, data=None), folder, resume=True)
    assert f"resumed at step {num_steps}" in said
    assert (resumed.num_steps, resumed.first) == (6, None)
    assert resumed.last == unbroken[1].last
    steps = [r["metrics"] for r in read_records(folder / "metrics.jsonl") if r["kind"] == "step"]
    expected = [r["metrics"] for r in read_records(unbroken[0] / "metrics.jsonl") if r["kind"] == "step"]
    assert steps == expected
    weights = [(run / "model" / "model.safetensors").read_bytes() for run in (folder, unbroken[0])]
    assert weights[0] == weights[1]


def test_a_run_goes_on_only_with_its_own_conversations(
    unbroken: tuple[Path, SftResult, list[str]], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    carry_out(CONFIG, folder, num_steps=1)
    with pytest.raises(ConfigError, match="not the conversations"):
        carry_out(CONFIG, folder, resume=True, data=replace(DATA, train=DATA.train[1:]))
    with pytest.raises(ConfigError, match="has taken all its 6 steps"):
        carry_out(CONFIG, unbroken[0], resume=True)


def test_ids_and_mask_are_those_that_reinforcement_learning_records(tmp_path: Path) -> None:
    create_policy([(c.messages, c.tools) for c in CONVERSATIONS], tmp_path, network=NETWORK, keep_whole=(), seed=0)
    trajectory = trio.run(expert_episode, TrainConfig(seed=0), tmp_path, 0)
    renderer = TemplateRenderer(tmp_path)
    played = KG.demonstrate(KG.task("train", 1), Random(0), noise=0.0)
    ((ids, mask),) = segments_of(conversation(played, KG.tools), renderer)
    (recorded,) = trajectory.segments
    assert ids[: len(recorded.ids)].tolist() == recorded.ids.tolist()
    assert mask[: len(recorded.ids)].tolist() == recorded.loss_mask.tolist()
    assert not mask[len(recorded.ids) :].any()
    assert mask.sum() == trajectory.num_loss_tokens > 0


def test_a_turn_of_weight_0_is_context_and_no_more(tmp_path: Path) -> None:
    create_policy([(c.messages, c.tools) for c in CONVERSATIONS], tmp_path, network=NETWORK, keep_whole=(), seed=0)
    renderer = TemplateRenderer(tmp_path)
    whole = next(c for c in CONVERSATIONS if len(c.is_learnt) == 3)
    ((ids, mask),) = segments_of(whole, renderer)
    ((same_ids, middle),) = segments_of(replace(whole, is_learnt=(False, True, False)), renderer)
    assert same_ids.tolist() == ids.tolist()
    turn = renderer.encode_turn([m for m in whole.messages if m.role == "assistant"][1])
    assert ids[middle].tolist() == turn.tolist()
    assert not (middle & ~mask).any()


def test_weights_are_of_turns_across_the_segments_of_a_template_that_rewrites() -> None:
    """Two prompts of one turn each, then one of none: the second weight is the second prompt's."""

    class Rewriting:
        def demonstration_segments(self, *conversation: object) -> list[tuple[Ids, Bools]]:
            masks = ([False, True, True], [False, False, True, False], [False, False])
            return [(np.arange(len(mask), dtype=np.int32), np.array(mask)) for mask in masks]

    for learnt in ((True, False), (False, True)):
        found = segments_of(replace(CONVERSATIONS[0], is_learnt=learnt), Rewriting())  # type: ignore[arg-type]
        assert [bool(mask.any()) for _, mask in found] == [*learnt, False]


def test_conversations_of_no_weight_take_no_place_in_a_batch(tmp_path: Path) -> None:
    mute = [replace(c, is_learnt=(False,) * len(c.is_learnt)) for c in DATA.train[8:]]
    data = replace(DATA, train=[*DATA.train[:8], *mute])
    carry_out(replace(CONFIG, max_steps=2), tmp_path / "run", data=data)
    steps = [record for record in read_records(tmp_path / "run" / "metrics.jsonl") if record["kind"] == "step"]
    # Every batch is the same eight.
    assert len({step["metrics"]["num_loss_tokens"] for step in steps}) == 1
    assert all(step["metrics"]["is_applied"] for step in steps)


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    mute = [replace(c, is_learnt=(False,) * len(c.is_learnt)) for c in DATA.train[:3]]
    data = replace(DATA, train=[*mute, *DATA.train[3:]])
    _, said = carry_out(replace(CONFIG, max_steps=1, max_context_tokens=90), tmp_path / "run", data=data)
    long, silent = [line for line in said if line.startswith("warning")]
    assert re.fullmatch(r"warning: \d+ conversations of more than 96 tokens are left out; none is ever cut", long)
    assert silent == "warning: 3 conversations whose every weight is 0 are left out"
    longest = sorted(DATA.train, key=lambda c: sum(len(message.content) for message in c.messages))[-8:]
    with pytest.raises(ConfigError, match="within 32 tokens: set --max-context-tokens"):
        carry_out(replace(CONFIG, max_context_tokens=8), tmp_path / "short", data=replace(DATA, train=longest))


def test_the_held_out_part_follows_from_the_seed_and_is_apart() -> None:
    assert (len(DATA.train), len(DATA.valid)) == (32, 8)
    again, other = (split_conversations(CONVERSATIONS, 0.2, seed=seed) for seed in (0, 1))
    assert again.valid == DATA.valid != other.valid
    assert sorted(map(id, [*DATA.train, *DATA.valid])) == sorted(map(id, CONVERSATIONS))
    assert len(split_conversations(CONVERSATIONS, 0.001, seed=0).valid) == 1
    assert split_conversations(CONVERSATIONS, 0.0, seed=0).valid == []
    with pytest.raises(ConfigError, match="leaves none to learn from"):
        split_conversations(CONVERSATIONS[:1], 0.5, seed=0)


@pytest.mark.slow
def test_adapters_are_learnt_beside_the_model_they_came_to(
    unbroken: tuple[Path, SftResult, list[str]], tmp_path: Path
) -> None:
    model = unbroken[0] / "model"
    lora = replace(CONFIG.lora, rank=2)
    config = replace(CONFIG, model=model, lora=lora, max_steps=4)
    whole, _ = carry_out(config, tmp_path / "whole")
    carry_out(config, tmp_path / "parts", num_steps=2)
    resumed, _ = carry_out(config, tmp_path / "parts", resume=True)
    assert resumed.last == whole.last
    assert whole.first == unbroken[1].last  # the model as it came
    assert whole.last != whole.first


def test_a_saved_config_comes_back(tmp_path: Path) -> None:
    assert SftConfig.from_json(json.loads(json.dumps(CONFIG.to_json()))) == CONFIG
    assert CONFIG.num_steps(1000) == 6
    assert replace(CONFIG, max_steps=None, epochs=2.5).num_steps(1000) == round(2500 / 8)
    settings = CONFIG.learner_for(100)
    assert (settings.temperature, settings.decay_steps) == (1.0, 100)
    assert replace(CONFIG, constant_rate=True).learner_for(100).decay_steps == 0
    np.testing.assert_equal(CONFIG.packing(90).row_tokens, (96,))


def test_a_conversation_that_the_template_refuses_is_named() -> None:
    class Refusing:
        def demonstration_segments(self, messages: object, tools: object) -> None:
            raise TemplateError("roles must alternate")

    with pytest.raises(ConfigError, match="in line 7 cannot be rendered: roles must alternate"):
        segments_of(replace(CONVERSATIONS[0], line=7), Refusing())  # type: ignore[arg-type]
