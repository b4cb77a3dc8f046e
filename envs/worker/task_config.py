"""Configuration files of AgentRL's workers: YAML or JSON, with imports, defaults and overrides.

An entry is `{module, parameters}`. `import` names files whose contents come first; `default` and `overwrite` are
merged into every entry beside them, under and over it. Then come the file in AGENTRL_CONFIG_OVERRIDE, and variables of
the environment: the path of a value in capitals, `-` as `_` (KG_STD_PARAMETERS_CONCURRENCY). AgentRL's third source,
Consul, is not read.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from agentrl_jax.errors import ConfigError

Tree = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEntry:
    """A task class, as `package.module.Class`, and what it is made with."""

    module: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


def read_entry(path: Path, name: str, environment: Mapping[str, str] = os.environ) -> TaskEntry:
    """The entry `name` of a configuration file. Raises ConfigError naming the file that is at fault."""
    config = _read(path, ())
    if override := environment.get("AGENTRL_CONFIG_OVERRIDE"):
        config = _merged(config, _read(Path(override), ()))
    if name not in config:
        known = ", ".join(sorted(config)) or "none"
        raise ConfigError(f"{path} has no task {name!r}: it has {known}")
    entry = _overridden(config[name], name, environment)
    if not isinstance(entry, dict) or not isinstance(entry.get("module"), str):
        raise ConfigError(f"{path}: expected {name} to have a module and parameters, got {entry!r}")
    parameters = entry.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise ConfigError(f"{path}: expected the parameters of {name} to be a mapping, got {parameters!r}")
    return TaskEntry(module=entry["module"], parameters=parameters)


def _read(path: Path, within: tuple[Path, ...]) -> Tree:
    path = path.resolve()
    if path in within:
        raise ConfigError(f"{path} imports itself, by way of {', '.join(map(str, within))}")
    try:
        text = path.read_text(encoding="utf-8")
        value = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(f"{path}: expected a configuration file, but {error}") from error
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: expected YAML or JSON, but {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: expected a mapping of tasks, got {value!r}")
    tree: Tree = _with_defaults(_with_imports(value, path, (*within, path)))
    return tree


def _with_imports(value: Any, path: Path, within: tuple[Path, ...]) -> Any:
    if isinstance(value, list):
        return [_with_imports(item, path, within) for item in value]
    if not isinstance(value, dict):
        return value
    names = value.get("import", [])
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{path}: expected import to be a file or a list of files, got {names!r}")
    found: Tree = {}
    for name in names:
        found = _merged(found, _read(path.parent / name, within))
    own = {key: _with_imports(item, path, within) for key, item in value.items() if key != "import"}
    merged: Tree = _merged(found, own)
    return merged


def _with_defaults(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    entries = {key: _with_defaults(item) for key, item in value.items() if key not in ("default", "overwrite")}
    if "default" in value:
        under = _with_defaults(value["default"])
        entries = {key: _merged(under, item) for key, item in entries.items()}
    if "overwrite" in value:
        over = _with_defaults(value["overwrite"])
        entries = {key: _merged(item, over) for key, item in entries.items()}
    return entries


def _merged(base: Any, new: Any) -> Any:
    if not (isinstance(base, dict) and isinstance(new, dict)):
        return new
    return {**base, **{key: _merged(base[key], item) if key in base else item for key, item in new.items()}}


def _overridden(value: Any, path: str, environment: Mapping[str, str]) -> Any:
    if not isinstance(value, dict):
        return value
    found = {}
    for key, item in value.items():
        name = f"{path}_{key}".replace("-", "_").upper()
        found[key] = (
            _converted(environment[name], item) if name in environment else _overridden(item, name, environment)
        )
    return found


def _converted(text: str, like: Any) -> Any:
    """`text` as a value of the kind that it replaces, if it can be one."""
    if isinstance(like, bool):
        return text.lower() in ("true", "1", "yes")
    if isinstance(like, int | float):
        try:
            return type(like)(text)
        except ValueError:
            return text
    return text
