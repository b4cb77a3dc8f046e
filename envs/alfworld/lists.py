"""Which published games a data set has: a whole pack, or one of AgentBench's lists of games.

`FOLDER/alfworld/agentbench_NAME.json.xz` holds, by kind of task, the paths of games in the packs. A list may name games
that ALFWorld no longer publishes; they are left out. `FOLDER/alfworld/human_goals.json.xz` holds, by path, the goal of
each game in the words of several people (ALFRED).
"""

import json
import lzma
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentrl_jax.errors import ConfigError
from envs.alfworld.packs import FOLDER, Pack, load_pack

PACKS = ("valid_seen", "valid_unseen", "valid_train")
LISTS: Mapping[str, str] = {"std": "new_std", "standard": "standard", "dev": "dev"}
"""AgentBench's lists by the names that data sets have here: std is the test of its function-calling edition."""

HUMAN_GOALS = "human_goals.json.xz"

Games = Sequence[tuple[Pack, int]]
"""Games as packs and indices."""


def games_of(data: Path, data_set: str) -> Games:
    """The games of a pack or a list, in its order. Raises ConfigError for one that is missing or broken."""
    if data_set not in LISTS:
        pack = load_pack(data, data_set)
        return [(pack, index) for index in range(len(pack))]
    places: dict[str, tuple[Pack, int]] = {}
    for name in ("valid_seen", "valid_unseen"):
        pack = load_pack(data, name)
        places |= {path: (pack, index) for index, path in enumerate(pack.paths)}
    name = f"agentbench_{LISTS[data_set]}.json.xz"
    listed = _read(data.resolve() / FOLDER / name)
    paths = [_path(entry) for entries in listed.values() for entry in entries]
    return [places[path] for path in paths if path in places]


def human_goals(data: Path) -> Mapping[str, Sequence[str]]:
    """The sentences for each game, by its path. Raises ConfigError if they are missing or broken."""
    return _read(data.resolve() / FOLDER / HUMAN_GOALS)


def _path(entry: str) -> str:
    """The pack's path of a game that a list names as a file."""
    return "/".join(entry.split("/")[1:-1])


@lru_cache(maxsize=8)
def _read(path: Path) -> Mapping[str, Sequence[str]]:
    try:
        value: Mapping[str, Any] = json.loads(lzma.decompress(path.read_bytes()))
        if not all(isinstance(text, str) for texts in value.values() for text in texts):
            raise ValueError("not every entry is a string")
    except (OSError, lzma.LZMAError, ValueError, AttributeError, TypeError) as error:
        raise ConfigError(f"{path}: expected lists of strings by name, but {error}") from error
    return value
