"""Configuration files of AgentRL's workers: imports, defaults, overrides."""

import json

import pytest

from agentrl_jax.errors import ConfigError
from envs.worker.task_config import read_entry


def write(folder, name, text):
    path = folder / name
    path.write_text(text)
    return path


def test_an_entry_with_imports_defaults_and_overwrites(tmp_path):
    write(tmp_path, "base.json", json.dumps({"kg-std": {"module": "m.Kg", "parameters": {"round": 15, "url": "a"}}}))
    path = write(
        tmp_path,
        "all.yaml",
        """
import: base.json
default:
  parameters: {concurrency: 8, round: 1}
overwrite:
  parameters: {url: b}
kg-std:
  parameters: {name: kg-std}
os-std: {module: m.Os}
""",
    )
    # Under an import's own entries lie the defaults of the file that imports them.
    entry = read_entry(path, "kg-std", {})
    assert (entry.module, entry.parameters) == (
        "m.Kg",
        {"concurrency": 8, "round": 15, "url": "b", "name": "kg-std"},
    )
    assert read_entry(path, "os-std", {}).parameters == {"concurrency": 8, "round": 1, "url": "b"}


def test_overrides_come_from_a_file_and_then_from_variables(tmp_path):
    path = write(tmp_path, "c.yaml", "db-std: {module: m.Db, parameters: {n: 3, x: 0.5, flag: false, deep: {a-b: c}}}")
    other = write(tmp_path, "o.yaml", "db-std: {parameters: {n: 4, deep: {more: 1}}}")
    variables = {
        "AGENTRL_CONFIG_OVERRIDE": str(other),
        "DB_STD_PARAMETERS_N": "5",
        "DB_STD_PARAMETERS_X": "half",
        "DB_STD_PARAMETERS_FLAG": "yes",
        "DB_STD_PARAMETERS_DEEP_A_B": "d",
        "DEFAULT_PARAMETERS_N": "9",
    }
    assert read_entry(path, "db-std", variables).parameters == {
        "n": 5,
        "x": "half",
        "flag": True,
        "deep": {"a-b": "d", "more": 1},
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "expected YAML or JSON"),
        ("[1]", "expected a mapping of tasks"),
        ("import: c.yaml", "imports itself"),
        ("import: [3]", "a file or a list of files"),
        ("import: none.yaml", "expected a configuration file"),
        ("other: {module: m.T}", "has no task 't': it has other"),
        ("t: {parameters: {}}", "to have a module"),
        ("t: {module: m.T, parameters: [1]}", "to be a mapping"),
    ],
)
def test_a_file_that_is_wrong_is_named(tmp_path, text, message):
    path = write(tmp_path, "c.yaml", text)
    with pytest.raises(ConfigError, match=message) as wrong:
        read_entry(path, "t", {})
    assert str(tmp_path) in str(wrong.value)
