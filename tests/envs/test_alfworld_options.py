"""Named data sets, goals in people's words, and AgentBench-FC's faults on request."""

import json
import lzma
import os
from random import Random

import pytest

from agentrl_jax.env import Action, FamilyOptions, ToolCall
from agentrl_jax.errors import ConfigError
from agentrl_jax.types import EpisodeEnd
from envs.alfworld import family
from envs.alfworld.calls import action_call
from envs.alfworld.env import NOT_EXECUTED
from envs.alfworld.lists import games_of, human_goals
from envs.alfworld.packs import load_pack


@pytest.fixture(scope="module")
def alfworld_data(data_folder):
    if not (data_folder / "alfworld").is_dir() and not os.environ.get("CI"):  # there its absence is a failure
        pytest.skip(f"no ALFWorld games in {data_folder}")
    return data_folder


@pytest.mark.data
@pytest.mark.parametrize(
    ("data_set", "count"),
    [("valid_seen", 140), ("valid_unseen", 134), ("valid_train", 200), ("std", 93), ("standard", 50), ("dev", 20)],
)
def test_data_sets_have_the_published_games(alfworld_data, data_set, count):
    alfworld = family(FamilyOptions(data=alfworld_data, eval_set=data_set))
    assert data_set in alfworld.traits.data_sets
    assert alfworld.num_tasks("eval") == count
    assert alfworld.num_tasks("train") == 3553


@pytest.mark.data
def test_a_list_of_agentbench_keeps_its_order_and_leaves_out_games_that_are_gone(alfworld_data):
    games = games_of(alfworld_data, "std")
    paths = [pack.record(index).path for pack, index in games]
    packed = (alfworld_data / "alfworld" / "agentbench_new_std.json.xz").read_bytes()
    listed = json.loads(lzma.decompress(packed))
    files = ["/".join(entry.split("/")[1:-1]) for entries in listed.values() for entry in entries]
    assert len(files) == 109
    assert paths == [path for path in files if path in set(load_pack(alfworld_data, "valid_unseen").paths)]
    assert paths[0].startswith("valid_unseen/pick_and_place_simple-Pencil-None-Shelf-308/")


@pytest.mark.data
def test_the_hardest_level_words_goals_as_people_did(alfworld_data):
    plain = family(FamilyOptions(data=alfworld_data, level=2))
    human = family(FamilyOptions(data=alfworld_data, level=3))
    goals = human_goals(alfworld_data)
    assert len(goals) == 4027
    for split in ("train", "eval"):
        for index in range(0, 100, 20):
            task = human.task(split, index)
            path = load_pack(alfworld_data, "train" if split == "train" else "valid_unseen").record(index).path
            said = human.make(task).reset()[-1].content
            assert said == human.make(task).reset()[-1].content
            (line,) = [line for line in said.split("\n") if line.startswith("Your task is to: ")]
            assert line in {f"Your task is to: {text.strip().removesuffix('.')}." for text in goals[path]}
            original = plain.game(plain.task(split, index))
            assert said.replace(line, original.task) == plain.make(plain.task(split, index)).reset()[-1].content
            turns = [m for m in human.demonstrate(task, Random(0), noise=0.0) if m.role == "assistant"]
            env = human.make(task)
            env.reset()
            assert [env.step(Action(calls=turn.tool_calls)).reward for turn in turns][-1] == 1.0


def test_broken_lists_and_goals_are_named(tmp_path):
    (tmp_path / "alfworld").mkdir()
    for content in (b"x", lzma.compress(b"{"), lzma.compress(b"[1]"), lzma.compress(b'{"a": [1]}')):
        path = tmp_path / "alfworld" / "human_goals.json.xz"
        path.write_bytes(content)
        with pytest.raises(ConfigError, match="human_goals"):
            human_goals(tmp_path)


LOOK = action_call("look")
BAD_TURNS = {
    "no call": (Action(content="Hm."), EpisodeEnd.VALIDATION_FAILED),
    "malformed": (Action(errors=("tool call 1: invalid JSON",)), EpisodeEnd.INVALID_ACTION),
    "wrong tool": (Action(calls=(ToolCall(name="fly", arguments={}),)), EpisodeEnd.INVALID_ACTION),
}


def won(options, first):
    """The last step of a game that the expert wins after one other turn."""
    alfworld = family(options)
    task = alfworld.task("train", 0)
    turns = [m for m in alfworld.demonstrate(task, Random(0), noise=0.0) if m.role == "assistant"]
    env = alfworld.make(task)
    env.reset()
    return [env.step(first), *(env.step(Action(calls=turn.tool_calls)) for turn in turns)][-1]


@pytest.mark.parametrize("kind", BAD_TURNS)
def test_published_fault_9_a_won_game_with_a_bad_turn_is_lost_only_on_request(kind):
    bad, end = BAD_TURNS[kind]
    assert (won(FamilyOptions(), bad).reward, won(FamilyOptions(), bad).end) == (1.0, EpisodeEnd.COMPLETED)
    compat = won(FamilyOptions(upstream_compat=True), bad)
    assert (compat.reward, compat.end) == (1.0, end)  # the controller's penalty then replaces the reward
    assert won(FamilyOptions(upstream_compat=True), Action(calls=(LOOK,))).end is EpisodeEnd.COMPLETED


def test_published_fault_39_further_calls_are_left_unanswered_only_on_request():
    answers = {}
    for compat in (False, True):
        alfworld = family(FamilyOptions(upstream_compat=compat))
        env = alfworld.make(alfworld.task("train", 0))
        env.reset()
        answers[compat] = [message.content for message in env.step(Action(calls=(LOOK, LOOK, LOOK))).messages]
    assert answers[False] == [*answers[True], NOT_EXECUTED, NOT_EXECUTED]
    assert len(answers[True]) == 1
