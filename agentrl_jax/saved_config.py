"""Config dataclasses as plain JSON and back, for the config.json of a run directory."""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from agentrl_jax.errors import ConfigError

ConfigT = TypeVar("ConfigT")


def config_to_json(config: Any) -> dict[str, Any]:
    """Plain JSON values of every field of a dataclass."""
    return {f.name: _plain(getattr(config, f.name)) for f in fields(config)}


def config_from_json(config_type: type[ConfigT], values: Any) -> ConfigT:
    """The inverse of `config_to_json`. Raises ConfigError for no object, or a field that is unknown or refused."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"a saved config is a JSON object, got {str(values)[:100]}")
    unknown = sorted(set(values) - {f.name for f in fields(config_type)})  # type: ignore[arg-type]
    if unknown:
        raise ConfigError(f"a saved config has fields that this version does not know: {', '.join(unknown)}")
    try:
        return msgspec.convert(values, config_type, dec_hook=_decode)
    except msgspec.ValidationError as error:
        raise ConfigError(f"a saved config does not fit this version: {error}") from error


def read_config(config_type: type[ConfigT], run_dir: Path, *, flag: str = "") -> ConfigT:
    """The config.json of a run directory, which `flag` names. Raises ConfigError if there is none, or no such one."""
    path = run_dir / "config.json"
    if not path.is_file():
        raise ConfigError(f"{flag}{run_dir}: expected the directory of a run, but it has no config.json")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{flag}{run_dir}: its config.json is not JSON: {error}") from error
    return config_from_json(config_type, values)


def config_changes(old: Any, new: Any) -> dict[str, str]:
    """What differs between two configs of one type, by dotted name: "old → new"."""
    before, after = flattened(config_to_json(old)), flattened(config_to_json(new))
    return {name: f"{before.get(name)} → {after[name]}" for name in after if before.get(name) != after[name]}


def _decode(wanted: type, value: Any) -> Any:
    if wanted is Path:
        return Path(value)
    raise TypeError(f"cannot read a {wanted.__name__}")


def flattened(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by dotted name."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        is_section = isinstance(value, dict) and value
        flat |= flattened(value, f"{prefix}{name}.") if is_section else {prefix + name: value}
    return flat


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {key: _plain(item) for key, item in asdict(value).items()}
    if isinstance(value, dict):
        return {getattr(key, "value", key): _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
