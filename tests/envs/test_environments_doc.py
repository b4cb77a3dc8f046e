"""The example of docs/environments.md runs, fits the protocol, and gives its expert the reward."""

import re
import runpy
from pathlib import Path
from random import Random

import pytest

from agentrl_jax.env import Action, EnvFamily, FamilyOptions, ToolCall
from agentrl_jax.errors import EnvError

DOC = Path(__file__).resolve().parents[2] / "docs" / "environments.md"


@pytest.fixture(scope="module")
def guess(tmp_path_factory):
    example = re.findall(r"^```python\n(.*?)^```", DOC.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)[0]
    path = tmp_path_factory.mktemp("doc") / "guess.py"
    path.write_text(example, encoding="utf-8")
    return runpy.run_path(str(path))["family"](FamilyOptions(seed=3))


def test_the_example_family_fits_the_protocol_and_its_splits_share_no_secret(guess):
    assert isinstance(guess, EnvFamily)
    secrets = [guess.task(split, i).seed for split in ("train", "eval") for i in range(guess.num_tasks(split))]
    assert sorted(secrets) == list(range(16))


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_the_example_expert_earns_the_reward_of_every_task(guess, noise):
    for split in ("train", "eval"):
        for i in range(guess.num_tasks(split)):
            task = guess.task(split, i)
            turns = [m for m in guess.demonstrate(task, Random(i), noise=noise) if m.role == "assistant"]
            env = guess.make(task)
            env.reset()
            assert [env.step(Action(calls=turn.tool_calls)).reward for turn in turns][-1] == 1.0
            assert noise or len(turns) <= guess.max_turns
            with pytest.raises(EnvError):
                env.step(Action())


def test_the_example_env_answers_bad_turns(guess):
    env = guess.make(guess.task("train", 0))
    env.reset()
    bad = (ToolCall(name="peek", arguments={}), ToolCall(name="guess", arguments={"number": "7"}))
    result = env.step(Action(calls=bad, errors=("not JSON",)))
    assert [message.content for message in result.messages] == [
        "error: unknown tool",
        "error: guess needs the integer number",
        "not JSON",
    ]
    assert env.step(Action(content="7")).messages[0].role == "user"
    assert result.end is None
