"""The published ALFWorld games, from the packs of a data folder (`--data`).

`FOLDER/alfworld/common.json.xz` holds what all games share: the PDDL domain, the text grammar, and tables of what
can contain what. `FOLDER/alfworld/SPLIT.jsonl.xz` holds one game a line: path, task, walkthrough, PDDL problem, and
which table it uses. ALFWorld and ALFRED are published under the MIT licence.
"""

import hashlib
import json
import lzma
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from agentrl_jax.errors import ConfigError
from envs.alfworld.game import Game
from envs.alfworld.problem import parse_pairs, parse_problem

FOLDER = "alfworld"
COMMON_FILE = "common.json.xz"
SPLITS = ("train", "valid_seen", "valid_unseen", "valid_train")
# The executor is written for these two texts: other versions of them would be played wrongly.
DIGESTS = {
    "pddl_domain": "0af55e7f92d12b09d28515aa730e4d03fddd17228ef1fd7b18a3ee8ba49b27b9",
    "grammar_template": "07d7aea101c66e17ad4c9c6d3979a8710fcf72090fd878eb2bcd39b107f1604f",
}
# A parsed game takes about 60 KiB; the members of a group ask for the same one.
_MAX_PARSED = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """What all games share. can_contain: for each table its pairs (receptacle type, object type)."""

    help_text: str
    can_contain: tuple[frozenset[tuple[str, str]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A game as it lies in a pack. path names it; walkthrough: commands that win it."""

    path: str
    task: str
    walkthrough: tuple[str, ...]
    problem: str
    table: int


class Pack:
    """The games of one split. Only the compressed lines stay in memory; games are parsed when they are asked for."""

    def __init__(self, folder: Path, split: str) -> None:
        self._common = load_common(folder)
        self._path = folder / f"{split}.jsonl.xz"
        self._lines = _compressed_lines(self._path)
        self.game = lru_cache(maxsize=_MAX_PARSED)(self._game)

    def __len__(self) -> int:
        return len(self._lines)

    @cached_property
    def vocabulary(self) -> tuple[str, ...]:
        """The words for the objects and receptacles that the shared tables name, sorted."""
        types = {name for table in self._common.can_contain for pair in table for name in pair}
        return tuple(sorted(name.removesuffix("Type").lower() for name in types))

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """What names each game."""
        return tuple(self.record(index).path for index in range(len(self)))

    def record(self, index: int) -> Record:
        """Raises ConfigError for a line that is no game."""
        try:
            line = json.loads(zlib.decompress(self._lines[index]))
            return Record(
                path=line["path"],
                task=line["task"],
                walkthrough=tuple(line["walkthrough"]),
                problem=line["problem"],
                table=line["cc"],
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{self._path}, line {index + 1}: expected a game, but {error!r}") from error

    def _game(self, index: int) -> Game:
        record = self.record(index)
        if not 0 <= record.table < len(self._common.can_contain):
            raise ConfigError(f"{self._path}, line {index + 1}: no table {record.table} in {COMMON_FILE}")
        return parse_problem(
            record.problem,
            task=record.task,
            help_text=self._common.help_text,
            can_contain=self._common.can_contain[record.table],
        )


def load_pack(data: Path, split: str) -> Pack:
    """The pack of a split, read once per process. Raises ConfigError naming the file that is at fault."""
    return _load_pack(data.resolve() / FOLDER, split)


@lru_cache(maxsize=8)
def _load_pack(folder: Path, split: str) -> Pack:
    missing = [name for name in (COMMON_FILE, f"{split}.jsonl.xz") if not (folder / name).is_file()]
    if missing:
        raise ConfigError(f"environment alfworld expects ALFWorld's games in {folder}; missing: {', '.join(missing)}")
    return Pack(folder, split)


@lru_cache(maxsize=4)
def load_common(folder: Path) -> Common:
    """Raises ConfigError if the file is broken, or of another version of ALFWorld than is implemented here."""
    path = folder / COMMON_FILE
    try:
        common: Mapping[str, Any] = json.loads(_read(path))
        for name, digest in DIGESTS.items():
            if hashlib.sha256(common[name].encode()).hexdigest() != digest:
                raise ConfigError(f"{path}: {name} is of another version of ALFWorld than the one implemented here")
        tables = tuple(parse_pairs(" ".join(table)) for table in common["can_contain"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: expected what all ALFWorld games share, but {error!r}") from error
    _, _, rest = common["grammar_template"].partition("action help")
    help_text = rest.split('feedback :: "', 1)[1].split('"', 1)[0]
    # The grammar's parser drops white space at the start of a text.
    return Common(help_text=help_text.lstrip(), can_contain=tables)


def _read(path: Path) -> bytes:
    try:
        return lzma.decompress(path.read_bytes())
    except lzma.LZMAError as error:
        raise ConfigError(f"{path}: expected a file compressed with xz, but {error}") from error


def _compressed_lines(path: Path) -> tuple[bytes, ...]:
    try:
        with lzma.open(path, "rb") as file:
            return tuple(zlib.compress(line, 1) for line in file if line.strip())
    except (lzma.LZMAError, EOFError) as error:
        raise ConfigError(f"{path}: expected a file compressed with xz, but {error}") from error
