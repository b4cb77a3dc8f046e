"""AgentBench's tasks (Apache licence 2.0), packed or as they are published.

The files of a set are read by their names, so that an index means one task everywhere; as published, with
`is_unsorted`, in the order in which this machine's file system has them.

Packed: FOLDER/NAME.jsonl.xz, a JSON object a line with `description`, `image`, `init`, `start`, `check`, `match` and
`example`, scripts as `language` and `code`. As published: FOLDER/data/1/*.json and so on, FOLDER/data/dev.json and
FOLDER/train_0317/training.json, with scripts in FOLDER/scripts/NAME: objects with `description`, `create`, `start` and
`evaluation`, in which a script is a text, or an object with `code` or `file` and perhaps `language`.
"""

import json
import lzma
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentrl_jax.errors import ConfigError
from envs.os_interaction.chores import Chore, Match, Script

FOLDER = "os_interaction"
STANDARD, DEV, TRAIN = SETS = ("std", "dev", "train")
_SUFFIXES = (".jsonl.xz", ".jsonl")
# Where the published files of a set are, and its scripts.
_PUBLISHED = {
    STANDARD: [(f"data/{number}/*.json", f"scripts/{number}") for number in range(1, 8)],
    DEV: [("data/dev.json", "scripts/dev")],
    TRAIN: [("train_0317/training.json", "scripts/train_0317")],
}
_BROKEN = (KeyError, TypeError, ValueError, AttributeError, IndexError)


@lru_cache(maxsize=8)
def load(data: Path, name: str, *, is_unsorted: bool = False) -> tuple[Chore, ...] | None:
    """The tasks of one set, in their order; None if `data` holds none. Raises ConfigError for files that are broken."""
    folder = data / FOLDER
    for suffix in _SUFFIXES:
        path = folder / f"{name}{suffix}"
        if path.is_file():
            return tuple(_read(path, entry, number, None) for number, entry in enumerate(_packed(path), 1))
    chores = [
        _read(path, entry, number, folder / scripts)
        for pattern, scripts in _PUBLISHED[name]
        for path in (folder.glob(pattern) if is_unsorted else sorted(folder.glob(pattern)))
        for number, entry in enumerate(_listed(path), 1)
    ]
    return tuple(chores) or None


def _packed(path: Path) -> Sequence[Any]:
    try:
        with lzma.open(path, "rb") if path.suffix == ".xz" else path.open("rb") as file:
            return [json.loads(line) for line in file if line.strip()]
    except (OSError, EOFError, lzma.LZMAError, ValueError) as error:
        raise ConfigError(f"{path}: expected OS tasks, but {error}") from error


def _listed(path: Path) -> Sequence[Any]:
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: expected OS tasks, but {error}") from error
    return given if isinstance(given, list) else [given]


def _read(path: Path, entry: Any, number: int, scripts: Path | None) -> Chore:
    """scripts: folder of an entry's scripts, None for an entry of a pack."""
    try:
        return _chore(_flat(entry) if scripts is not None else entry, scripts)
    except _BROKEN as error:
        raise ConfigError(f"{path}, task {number}: expected an OS task, but {error!r}") from error
    except (ConfigError, OSError) as error:
        raise ConfigError(f"{path}, task {number}: {error}") from error


def _flat(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """A published entry with the keys of a packed one."""
    create, evaluation = entry.get("create") or {}, entry["evaluation"]
    image = str(create.get("local") or create.get("image") or "default")
    return {
        "description": entry["description"],
        "image": image.rpartition("/")[2],
        "init": create.get("init"),
        "start": entry.get("start"),
        "check": evaluation.get("check") if "match" not in evaluation else None,
        "match": evaluation.get("match"),
        "example": evaluation.get("example"),
    }


def _chore(entry: Mapping[str, Any], scripts: Path | None) -> Chore:
    checks = None if entry.get("check") is None else tuple(_checks(entry["check"], scripts))
    return Chore(
        description=str(entry["description"]),
        image=str(entry.get("image") or "default"),
        init=tuple(_script(each, scripts) for each in _list(entry.get("init")) if each is not None),
        start=None if entry.get("start") is None else _script(entry["start"], scripts),
        checks=checks or (),
        match=None if checks else _match(entry["match"]),
        example=None if entry.get("example") is None else _script(entry["example"], scripts),
    )


def _list(given: Any) -> list[Any]:
    if given is None:
        return []
    return given if isinstance(given, list) else [given]


def _checks(given: Any, scripts: Path | None) -> Iterator[Script | None]:
    for each in _list(given):
        yield None if each is None else _script(each, scripts)


def _script(given: Any, scripts: Path | None) -> Script:
    if isinstance(given, str):
        return Script(language="bash", code=given)
    code = given.get("code")
    if code is None:
        if scripts is None:
            raise ValueError(f"a script without code: {given!r}")
        path = (scripts / given["file"]).resolve()
        if not path.is_relative_to(scripts.resolve()):
            raise ValueError(f"a script outside of its folder: {given['file']!r}")
        code = path.read_text(encoding="utf-8")
    return Script(language=given.get("language", "bash"), code=code)


def _match(given: Any) -> Match:
    if isinstance(given, str):
        return Match(answer=given)
    if "regex" in given:
        return Match(pattern=given["regex"])
    return Match(answer=given["answer"], is_stripped=bool(given.get("strip", True)))
