"""Generated chores: what they are, that their words can be kept whole, and that only what is asked for solves them."""

import re
from contextlib import closing
from random import Random

import pytest

from agentrl_jax.env import Action, FamilyOptions
from agentrl_jax.types import Task
from envs.os_interaction import family
from envs.os_interaction.calls import answer_call, bash_call, finish_call
from envs.os_interaction.expert import demonstrate, random_call
from envs.os_interaction.generated import KINDS, LEVELS, GeneratedSource, Unused, level_of, split_of
from envs.os_interaction.words import CONTENTS, FILES, FOLDERS
from tests.envs.sandbox_world import bubblewrap_driver

FILES_OF_LEVEL_3 = {"box/apple": "red", "bag/plum": "blue", "box/pear": "green", "shelf/fig": "pink"}
UNUSED = Unused(name="kiwi", content="gold")


def task(index, split="train"):
    return Task(env="os_interaction", split=split, index=index, seed=index)


@pytest.mark.parametrize(
    ("kind", "text", "steps", "answer"),
    [
        ("lookup", "What is in the file apple in the folder box?", ("cat box/apple",), "red"),
        ("search", "Which file in the folder box contains red?", ("cd box; grep -l red *",), "apple"),
        (
            "hop",
            "The file apple in the folder box names a file. What is in that file?",
            ("cat box/apple", "cat bag/plum"),
            "blue",
        ),
        ("find", "Some folder has a file apple. What is in it?", ("find . -name apple", "cat box/apple"), "red"),
        ("where", "Which folder has a file that contains red?", ("dirname $(grep -l red */*)",), "box"),
    ],
)
def test_questions_by_hand(kind, text, steps, answer):
    drawn = KINDS[kind](FILES_OF_LEVEL_3, UNUSED)
    assert (drawn.text, drawn.steps, drawn.answer, drawn.after) == (text, steps, answer, None)


@pytest.mark.parametrize(
    ("kind", "text", "changes"),
    [
        ("write", "Write gold into the file apple in the folder box.", {"box/apple": "gold"}),
        ("rename", "Rename the file apple in the folder box to kiwi.", {"box/apple": None, "box/kiwi": "red"}),
        ("copy", "Copy the file apple in the folder box to kiwi beside it.", {"box/kiwi": "red"}),
        ("delete", "Delete the file apple in the folder box.", {"box/apple": None}),
        ("move", "Some folder has a file apple. Move it to the folder bag.", {"box/apple": None, "bag/apple": "red"}),
        ("replace", "Replace red by gold in every file that contains it.", {"box/apple": "gold", "bag/plum": "gold"}),
        ("delete all", "Delete every file that contains red.", {"box/apple": None, "bag/plum": None}),
    ],
)
def test_changes_by_hand(kind, text, changes):
    drawn = KINDS[kind](FILES_OF_LEVEL_3, UNUSED)
    expected = {path: held for path, held in (FILES_OF_LEVEL_3 | changes).items() if held is not None}
    assert (drawn.text, drawn.after, drawn.answer) == (text, expected, None)


def test_a_count_is_of_the_files_as_they_are_made():
    drawn = KINDS["count"](FILES_OF_LEVEL_3, UNUSED)
    assert list(drawn.changed.values()).count("red") == int(drawn.answer)


@pytest.mark.parametrize("level", LEVELS)
def test_a_split_holds_no_chore_of_the_other(level):
    source = GeneratedSource(level_of(level))
    seen = {"train": set(), "eval": set()}
    for split, found in seen.items():
        for index in range(300):
            chore = source.chore(task(index, split))
            assert chore == source.chore(task(index, split))
            found.add((chore.description, chore.answer))
    assert not seen["train"] & seen["eval"]
    assert len(seen["train"]) > 150


def test_the_split_follows_from_question_and_answer_alone():
    one, other = (KINDS["lookup"](files, UNUSED) for files in (FILES_OF_LEVEL_3, {"box/apple": "red"}))
    assert split_of(one) == split_of(other)


def test_words_are_distinct_and_in_no_other_word():
    words = (*FILES, *CONTENTS, *FOLDERS)
    assert len(set(words)) == len(words)
    assert not [(a, b) for a in CONTENTS for b in CONTENTS if a != b and a in b]


@pytest.mark.parametrize("level", LEVELS)
def test_chores_use_the_vocabulary_of_their_level(level):
    source = GeneratedSource(level_of(level))
    known, others = set(source.vocabulary()), {*FILES, *CONTENTS, *FOLDERS}
    for index in range(100):
        chore = source.chore(task(index))
        used = set(
            f"{chore.description} {chore.init[0].code}".replace("/", " ").replace(".", " ").replace("?", " ").split()
        )
        assert used & others <= known


# On real machines.


@pytest.fixture(scope="module")
def families():
    bubblewrap_driver().close()
    return {level: family(FamilyOptions(level=level, sandbox="bubblewrap")) for level in LEVELS}


def test_random_commands_of_the_expert_keep_to_the_words_of_the_level(families):
    chosen = families[1]
    others = {*FILES, *CONTENTS} - set(chosen.vocabulary())
    for index in range(12):
        shown = chosen.demonstrate(chosen.task("train", index), Random(index), noise=0.8)
        said = " ".join(str(call.arguments) for message in shown for call in message.tool_calls)
        assert not {word for word in re.findall("[a-z]+", said) if word in others}


def reward(family, task, *calls):
    with closing(family.make(task)) as env:
        env.reset()
        return sum(env.step(Action(calls=(call,))).reward for call in calls)


@pytest.mark.parametrize("level", LEVELS)
def test_every_kind_is_solved_by_its_steps_and_by_nothing_less(families, level):
    chosen = families[level]
    kinds = set()
    for index in range(400):
        given = chosen.task("train", index)
        chore = chosen.chore(given)
        kind = chore.description.split()[0] + str(len(chore.steps)) + chore.steps[0].split()[0]
        if kind in kinds:
            continue
        kinds.add(kind)
        last = finish_call("done") if chore.is_change else answer_call(chore.answer)
        assert reward(chosen, given, *map(bash_call, chore.steps), last) == 1.0, chore
        wrong = finish_call("done") if chore.is_change else answer_call("nothing")
        assert reward(chosen, given, wrong) == 0.0, chore
        if chore.is_change:
            assert reward(chosen, given, *map(bash_call, chore.steps), bash_call("echo x > more"), last) == 0.0, chore
    assert len(kinds) >= len(LEVELS[level].kinds) - 1


def test_an_answer_is_not_made_right_by_changing_the_files(families):
    chosen = families[1]
    given = next(t for t in (chosen.task("train", i) for i in range(50)) if "What" in chosen.chore(t).description)
    path = chosen.chore(given).steps[0].split()[1]
    assert reward(chosen, given, bash_call(f"echo mine > {path}"), answer_call("mine")) == 0.0


def test_the_expert_is_shown_with_noise_and_still_ends(families):
    chosen = families[2]
    for index in range(4):
        given = chosen.task("eval", index)
        shown = chosen.demonstrate(given, Random(index), noise=0.5)
        assert shown[-1].content == "done"
        assert len([m for m in shown if m.role == "assistant"]) <= chosen.max_turns


def test_random_calls_only_look():
    rng = Random(0)
    drawn = {str(random_call(rng, ("apple",)).arguments) for _ in range(200)}
    scripts = ("cat apple", "ls", "pwd", "ls -a", "whoami")
    assert drawn == {"{'answer': 'apple'}", *(f"{{'script': '{script}'}}" for script in scripts)}
    with pytest.raises(Exception, match="noise"):
        demonstrate(None, None, rng, noise=2.0, max_turns=3)
