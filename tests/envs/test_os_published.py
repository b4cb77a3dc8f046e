"""AgentBench's OS tasks: both forms of their files, and how they are judged."""

import json
import lzma
from contextlib import closing

import pytest

from agentrl_jax.env import FamilyOptions
from agentrl_jax.errors import ConfigError
from agentrl_jax.testing.env_contract import (
    check_declarations,
    check_opening,
    check_order_of_calls,
    check_splits,
    check_tasks,
)
from envs.os_interaction import family, published
from envs.os_interaction.chores import Match, Script
from envs.os_interaction.sweep import main, sweep
from envs.sandbox.shared import SharedDriver, shared_driver
from tests.envs.sandbox_world import bubblewrap_driver, running_engine

# Wrong answers are accepted, or right ones are not, whatever judges: an example that prints two lines for a number, and
# one whose answer changes each time.
UNJUSTIFIABLE = (252, 683)
SAMPLE = [index for index in range(5, 1000, 17) if index not in UNJUSTIFIABLE]
PACKED = {
    "id": "x#0",
    "description": "How many?",
    "image": "default",
    "init": [{"language": "bash", "code": "touch a"}],
    "start": None,
    "check": [None, {"language": "python", "code": "exit(0)"}],
    "match": None,
    "example": {"language": "bash", "code": "ls | wc -l"},
    "labels": None,
}
PUBLISHED = {
    "description": "How many?",
    "create": {"local": "packages", "init": {"file": "init/make.sh"}},
    "start": "cd /",
    "evaluation": {"check": [None, {"language": "python", "file": "check/same.py"}], "example": {"code": "ls | wc -l"}},
    "labels": ["x"],
}


def bash(code):
    return Script(language="bash", code=code)


def write_pack(data, **sets):
    folder = data / "os_interaction"
    folder.mkdir(exist_ok=True)
    for name, entries in sets.items():
        lines = "\n".join(json.dumps(entry) for entry in entries)
        (folder / f"{name}.jsonl.xz").write_bytes(lzma.compress(lines.encode()))
    return data


def write_published(data, entries, name="4/Q1.json"):
    folder = data / "os_interaction"
    for sub in ("data/4", "scripts/4/init", "scripts/4/check", "scripts/dev", "train_0317"):
        (folder / sub).mkdir(parents=True, exist_ok=True)
    (folder / "scripts/4/init/make.sh").write_text("touch a b")
    (folder / "scripts/4/check/same.py").write_text("exit(1)")
    (folder / "scripts/4/secret.sh").write_text("")
    (folder / "scripts/outside.sh").write_text("")
    (folder / "data" / name).write_text(json.dumps(entries))
    return data


def loaded(data, name):
    published.load.cache_clear()
    return published.load(data, name)


def test_a_pack_is_read(tmp_path):
    other = PACKED | {"check": None, "match": "a", "example": None, "start": {"language": "bash", "code": "cd /"}}
    first, second = loaded(write_pack(tmp_path, std=[PACKED, other]), "std")
    assert first.init == (bash("touch a"),)
    assert first.checks == (None, Script(language="python", code="exit(0)"))
    assert first.example == bash("ls | wc -l")
    assert (second.match, second.checks, second.start) == (Match(answer="a"), (), bash("cd /"))
    assert loaded(tmp_path, "dev") is None


def test_published_files_are_read_with_their_scripts(tmp_path):
    (chore,) = loaded(write_published(tmp_path, PUBLISHED), "std")
    assert (chore.image, chore.init, chore.start) == ("packages", (bash("touch a b"),), bash("cd /"))
    assert chore.checks == (None, Script(language="python", code="exit(1)"))
    assert chore.expert_steps == ("ls | wc -l",)


@pytest.mark.parametrize(
    ("create", "init", "image"),
    [
        ({}, (), "default"),
        ({"init": "a"}, (bash("a"),), "default"),
        ({"init": ["a", {"code": "b"}]}, (bash("a"), bash("b")), "default"),
        ({"image": "local-os/ubuntu"}, (), "ubuntu"),
        (None, (), "default"),
    ],
)
def test_every_form_of_init(tmp_path, create, init, image):
    (chore,) = loaded(write_published(tmp_path, [PUBLISHED | {"create": create}]), "std")
    assert (chore.init, chore.image) == (init, image)


@pytest.mark.parametrize(
    ("evaluation", "match", "checks"),
    [
        ({"match": "a"}, Match(answer="a"), ()),
        ({"match": {"answer": "a", "strip": False}}, Match(answer="a", is_stripped=False), ()),
        ({"match": {"regex": "^a+$"}}, Match(pattern="^a+$"), ()),
        ({"check": "true"}, None, (bash("true"),)),
        ({"check": {"language": "python", "code": "1"}}, None, (Script(language="python", code="1"),)),
    ],
)
def test_every_form_of_evaluation(tmp_path, evaluation, match, checks):
    (chore,) = loaded(write_published(tmp_path, [PUBLISHED | {"evaluation": evaluation}]), "std")
    assert (chore.match, chore.checks) == (match, checks)


@pytest.mark.parametrize(
    "change",
    [
        {"evaluation": {}},
        {"evaluation": {"check": [None]}},
        {"evaluation": {"match": {"regex": "("}}},
        {"create": {"init": {"file": "../outside.sh"}}},
        {"create": {"init": {"file": "init/none.sh"}}},
        {"create": {"init": {"language": "c", "code": "int main;"}}},
        {"create": {"init": {"language": "bash"}}},
        {"start": 5},
    ],
)
def test_broken_tasks_are_named(tmp_path, change):
    with pytest.raises(ConfigError, match=r"Q1\.json, task 2"):
        loaded(write_published(tmp_path, [PUBLISHED, PUBLISHED | change]), "std")


def test_broken_files_are_named(tmp_path):
    (tmp_path / "os_interaction").mkdir()
    for content in (b"no archive", lzma.compress(b"{")):
        (tmp_path / "os_interaction/std.jsonl.xz").write_bytes(content)
        with pytest.raises(ConfigError, match=r"std\.jsonl\.xz"):
            loaded(tmp_path, "std")


@pytest.fixture(scope="module")
def bubblewrap():
    with closing(bubblewrap_driver()):
        yield


def test_what_is_evaluated_on_is_not_trained_on(tmp_path, bubblewrap):
    published.load.cache_clear()
    others = [PACKED | {"description": text} for text in ("How  many?", "What?", "Why?")]
    write_pack(tmp_path, std=[PACKED], dev=[PACKED | {"description": "Why?"}], train=others)
    chores = family(FamilyOptions(data=tmp_path, sandbox="bubblewrap"))
    assert (chores.num_tasks("train"), chores.num_tasks("eval")) == (1, 1)
    assert chores.chore(chores.task("train", 0)).description == "What?"
    assert chores.traits.data_sets == ("std", "dev")
    assert chores.vocabulary() == ()
    with pytest.raises(ConfigError, match="level 1 alone"):
        family(FamilyOptions(data=tmp_path, level=2))


def test_missing_data_is_named(tmp_path):
    published.load.cache_clear()
    with pytest.raises(ConfigError, match="tasks to evaluate on"):
        family(FamilyOptions(data=write_pack(tmp_path, train=[PACKED]), sandbox="bubblewrap"))


@pytest.mark.data
def test_all_tasks_are_there(data_folder, bubblewrap):
    chores = family(FamilyOptions(data=data_folder, sandbox="bubblewrap"))
    assert (chores.num_tasks("eval"), chores.max_turns) == (144, 8)
    assert 980 <= chores.num_tasks("train") <= 1000
    assert len(published.load(data_folder, "dev")) == 26


@pytest.mark.data
@pytest.mark.parametrize("check", [check_declarations, check_tasks, check_opening, check_splits, check_order_of_calls])
@pytest.mark.parametrize("name", ["std", "dev"])
def test_the_contract_holds_where_it_does_not_depend_on_the_moment(data_folder, bubblewrap, name, check):
    options = FamilyOptions(data=data_folder, sandbox="bubblewrap", eval_set=name)
    check(lambda: family(options))


@pytest.mark.data
@pytest.mark.slow
def test_60_tasks_are_judged_rightly(data_folder, bubblewrap):
    chores = published.load(data_folder, "train")
    assert len(SAMPLE) >= 58
    verdicts = sweep(chores, SAMPLE, shared_driver("bubblewrap"), threads=4)
    assert [verdict for verdict in verdicts if verdict.problem is not None] == []


@pytest.mark.data
@pytest.mark.docker
def test_30_tasks_are_judged_rightly_in_docker(data_folder):
    chores = published.load(data_folder, "train")
    with running_engine() as url, closing(SharedDriver("docker", url)) as driver:
        verdicts = sweep(chores, SAMPLE[:30], driver, threads=4)
    assert [verdict for verdict in verdicts if verdict.problem is not None] == []


@pytest.mark.data
@pytest.mark.soak
def test_997_of_1000_tasks_are_judged_rightly(data_folder, bubblewrap):
    assert main(["--data", str(data_folder), "--sandbox", "bubblewrap"]) == 0


@pytest.mark.data
def test_the_sweep_says_what_is_wrong(data_folder, bubblewrap, capsys):
    assert main(["--data", str(data_folder), "--sandbox", "bubblewrap", "--indices", "0,252"]) == 1
    assert capsys.readouterr().out.startswith("train 252: not accepted\n1 of 2 are judged rightly")
    assert main(["--data", str(data_folder), "--name", "none"]) == 2
