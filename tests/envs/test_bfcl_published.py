"""The published entries: gold calls pass all of them, silence none, and verdicts are those of BFCL's own checker."""

import json
import os
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from agentrl_jax.env import Action, EnvRegistry, FamilyOptions, tools_for
from agentrl_jax.errors import ConfigError
from agentrl_jax.testing.env_contract import CHECKS
from agentrl_jax.types import EpisodeEnd
from envs import register_all
from envs.bfcl import family
from envs.bfcl.entries import CATEGORIES

pytestmark = pytest.mark.bfcl

VENV = Path(__file__).resolve().parents[2] / ".venv-bfcl"
# Reads [id, calls by user turn and step] lines and prints BFCL's verdicts.
CHECKER = """
import json, sys
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker
from bfcl_eval.constants.eval_config import PROMPT_PATH, POSSIBLE_ANSWER_PATH

def rows(path):
    return {row["id"]: row for row in map(json.loads, path.read_text().splitlines())}

verdicts, files = [], {}
for number, (id_, turns) in enumerate(json.load(sys.stdin)):
    name = f"BFCL_v4_{id_.rsplit('_', 1)[0]}.json"
    if name not in files:
        files[name] = rows(PROMPT_PATH / name), rows(POSSIBLE_ANSWER_PATH / name)
    entries, answers = files[name]
    verdict = multi_turn_checker(turns, answers[id_]["ground_truth"], entries[id_], id_, f"model{number}")
    verdicts.append(verdict["valid"])
json.dump(verdicts, sys.stdout)
"""


@pytest.fixture(scope="module")
def data():
    """The environment that tools/install_bfcl.sh makes. In CI its absence is a failure."""
    if not (VENV / ".installed").is_file():
        if os.environ.get("CI"):
            pytest.fail("bfcl-eval must be installed in CI: run tools/install_bfcl.sh")
        pytest.skip("bfcl-eval is not installed; tools/install_bfcl.sh does it")
    return VENV


@pytest.fixture(scope="module")
def bfcl(data):
    return family(FamilyOptions(data=data))


def played(bfcl, task, actions):
    env = bfcl.make(task)
    env.reset()
    for action in actions:
        result = env.step(action)
        if result.end is not None:
            break
    return result


def actions_of(messages):
    return [Action(content=m.content, calls=m.tool_calls) for m in messages if m.role == "assistant"]


def test_there_are_two_hundred_entries_of_each_category(bfcl, data):
    assert bfcl.num_tasks("eval") == 800
    counts = Counter(bfcl.entry(bfcl.task("eval", i)).id.rsplit("_", 1)[0] for i in range(800))
    assert counts == {f"multi_turn_{category}": 200 for category in CATEGORIES}
    registry = EnvRegistry()
    register_all(registry)
    assert registry.make("bfcl", FamilyOptions(data=data, eval_set="miss_func")).num_tasks("eval") == 200
    with pytest.raises(ConfigError, match="known ones are base, miss_func, miss_param, long_context"):
        registry.make("bfcl", FamilyOptions(data=data, eval_set="composite"))


def test_gold_calls_pass_every_entry(bfcl):
    num_passed = 0
    for index in range(800):
        task = bfcl.task("eval", index)
        result = played(bfcl, task, actions_of(bfcl.demonstrate(task, Random(0), noise=0.0)))
        num_passed += result.reward == 1.0 and result.end is EpisodeEnd.COMPLETED
    assert num_passed == 800


def test_silence_passes_no_entry(bfcl):
    silent = [Action(content="Done.")] * 10
    assert sum(played(bfcl, bfcl.task("eval", index), silent).reward for index in range(800)) == 0.0


def changed(turns, rng):
    """A user's turns of calls, with one thing changed in some of them."""
    others = [call for calls in turns for call in calls]
    result = []
    for calls in turns:
        calls = list(calls)
        match rng.randrange(8):
            case 0 if calls:
                calls.pop(rng.randrange(len(calls)))
            case 1:
                calls.insert(rng.randint(0, len(calls)), rng.choice(others))
            case 2:
                rng.shuffle(calls)
            case 3 if calls:
                calls.append(rng.choice(calls))
        result.append(calls)
    return result


def test_verdicts_are_those_of_bfcls_own_checker(bfcl):
    rng, cases, verdicts = Random(7), [], []
    for index in rng.sample(range(800), 240):
        task = bfcl.task("eval", index)
        turns = [[]]
        for action in actions_of(bfcl.demonstrate(task, Random(0), noise=0.0)):
            if action.calls:
                turns[-1] = list(action.calls)
            else:
                turns.append([])
        turns = changed(turns[:-1], rng)
        actions = []
        for calls in turns:
            actions += [Action(calls=(call,)) for call in calls] + [Action(content="Done.")]
        verdicts.append(played(bfcl, task, actions).reward == 1.0)
        spelled = [
            [[f"{call.name}({', '.join(f'{k}={v!r}' for k, v in call.arguments.items())})"] for call in calls]
            for calls in turns
        ]
        cases.append([bfcl.entry(task).id, spelled])
    script = [str(VENV / "bin" / "python"), "-c", CHECKER]
    done = subprocess.run(script, input=json.dumps(cases), capture_output=True, text=True, check=True)
    assert verdicts == json.loads(done.stdout)
    assert 40 < sum(verdicts) < 200


def test_a_task_has_the_functions_of_its_programs_and_no_withheld_one(bfcl):
    for index in (0, 200, 250, 799):
        task = bfcl.task("eval", index)
        entry, names = bfcl.entry(task), [tool.name for tool in tools_for(bfcl, task)]
        added = {tool.name for turn in entry.turns for tool in turn.added}
        assert bool(added) == ("miss_func" in entry.id)
        assert set(names) == entry.functions.keys() - added
        assert 15 < len(names) < 80
        assert {tool.name for tool in bfcl.tools} > set(names)


def test_noisy_demonstrations_fail_where_a_call_is_missing(bfcl):
    task = bfcl.task("eval", 0)
    actions = actions_of(bfcl.demonstrate(task, Random(0), noise=1.0))
    assert played(bfcl, task, actions).reward == 0.0


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_contract_of_environments_is_kept(bfcl, data, check):
    families = [bfcl]
    check(lambda: families.pop() if families else family(FamilyOptions(data=data)))


def test_members_of_a_group_begin_alike(bfcl, data):
    again = family(FamilyOptions(data=data))
    for index in (0, 300, 700):
        task = bfcl.task("eval", index)
        assert bfcl.make(task).reset() == again.make(replace(task)).reset()
