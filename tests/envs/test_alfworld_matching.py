"""Which admissible command a policy meant. The scores are nltk 3.10's sentence_bleu with smoothing method 4."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.alfworld.matching import bleu_scores, resolve

COMMANDS = [
    "go to desk 1",
    "take mug 1 from desk 1",
    "inventory",
    "look",
    "help",
    "examine mug 1",
    "open fridge 1",
    "move mug 1 to sinkbasin 1",
    "heat apple 2 with microwave 1",
    "go to shelf 10",
]
NLTK = {
    "go to desk": [0.412521213, 0.02667034, 0, 0, 0, 0, 0, 0.02667034, 0, 0.151746816],
    "take the mug 1 from the desk 1": [
        *(0.071227227, 0.217258854, 0, 0, 0, 0.071227227, 0.028599617, 0.078825884, 0.028599617, 0),
    ],
    "look around": [0, 0, 0, 0.067544361, 0, 0, 0, 0, 0, 0],
    "put mug 1 in sinkbasin 1": [
        0.037593405,
        0.107544212,
        0,
        0,
        0,
        0.097177166,
        0.037593405,
        0.137429266,
        0.037593405,
        0,
    ],
    "mug": [0, 0.006737947, 0, 0, 0, 0.135335283, 0, 0.006737947, 0, 0],
    "desk 1 desk 1 desk 1 desk 1": [
        *(0.071227227, 0.078825884, 0, 0, 0, 0.028599617, 0.028599617, 0.034010868, 0.028599617, 0),
    ],
    "1": [0.049787068, 0.006737947, 0, 0, 0, 0.135335283, 0.135335283, 0.006737947, 0.006737947, 0],
    "dance": [0] * 10,
    "i will go to shelf 10": [0.097177166, 0, 0, 0, 0, 0, 0, 0.037593405, 0, 0.508132748],
}


@pytest.mark.parametrize("text", list(NLTK))
def test_scores_are_nltks(text):
    assert bleu_scores(COMMANDS, text.split()) == pytest.approx(NLTK[text], abs=1e-8)


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("look", "look"),
        ("  Go To Desk 1 \nand then look", "go to desk 1"),
        ("go to desk", "go to desk 1"),
        ("put mug 1 in sinkbasin 1", "move mug 1 to sinkbasin 1"),
        ("heat the apple 2 with the microwave 1", "heat apple 2 with microwave 1"),
        # The first of equals.
        ("1", "examine mug 1"),
        # Too far from every command.
        ("dance", "dance"),
        ("", ""),
        ("desk", "go to desk 1"),
        ("from", "from"),
    ],
)
def test_the_nearest_command_is_taken_if_it_is_near_enough(text, command):
    assert resolve(text, COMMANDS) == command


@given(text=st.text(st.sampled_from("go to desk 1 mug\n ")))
def test_any_text_becomes_an_admissible_command_or_one_line(text):
    resolved = resolve(text, COMMANDS)
    assert resolved in COMMANDS or resolved == text.strip().lower().split("\n")[0].rstrip()


@given(words=st.lists(st.sampled_from(" ".join(COMMANDS).split()), min_size=1, max_size=9))
def test_scores_lie_between_0_and_1_and_1_means_equal(words):
    for command, score in zip(COMMANDS, bleu_scores(COMMANDS, words), strict=True):
        assert 0.0 <= score <= 1.0
        if len(words) >= 4:
            assert (score == pytest.approx(1.0)) == (command.split() == words)
