"""The episodes of a run as columns: one pass over episodes.jsonl, however long, and where each of its lines begins."""

from array import array
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from agentrl_jax.errors import RecordError

_MAX_ERROR_CHARS = 400
COUNTS = ("step", "group", "member", "index", "turns", "tokens", "loss_tokens")
_VALUES = ("reward", "env_reward", "wall_s", "env_s", "engine_s")
NAMES = ("env", "end", "fate")


class _Line(msgspec.Struct):
    """What is wanted of a line, be it an episode or the note of a resume. Other fields are skipped unread."""

    step: int
    version: int = 0
    kind: str = "episode"
    episode: str = ""
    group: int = 0
    member: int = 0
    env: str = ""
    index: int = 0
    end: str = ""
    fate: str = ""
    reward: float | None = None
    env_reward: float | None = None
    tokens: int = 0
    loss_tokens: int = 0
    wall_s: float = 0.0
    env_s: float = 0.0
    engine_s: float = 0.0
    error: str = ""
    turns: list[msgspec.Raw] = []


@dataclass(slots=True, eq=False)
class EpisodeTable:
    """Episodes in the order in which steps consumed them, without those that a resume undid.

    columns: int32 `step`, `group`, `member`, `index`, `turns`, `tokens` and `loss_tokens`; float64 `reward`,
      `env_reward` (NaN: none), `wall_s`, `env_s` and `engine_s`, seconds.
    names: `env`, `end` and `fate` as numbers into `spellings`. offsets: bytes into episodes.jsonl.
    errors: what the infrastructure said, by row.
    """

    path: Path
    columns: "dict[str, array[Any]]" = field(
        default_factory=lambda: {
            **{name: array("i") for name in (*COUNTS, *NAMES)},
            **{name: array("d") for name in _VALUES},
        }
    )
    spellings: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in NAMES})
    offsets: "array[int]" = field(default_factory=lambda: array("q"))
    errors: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.offsets)

    def column(self, name: str) -> npt.NDArray[Any]:
        """One column as an array."""
        values = self.columns[name]
        return np.frombuffer(values, values.typecode) if values else np.zeros(0, values.typecode)

    def names(self, name: str) -> list[str]:
        """The spellings that the numbers of `env`, `end` or `fate` stand for."""
        return self.spellings[name]

    def episode_id(self, row: int) -> str:
        return f"g{self.columns['group'][row]}-m{self.columns['member'][row]}"

    def row_of(self, episode_id: str) -> int | None:
        """The last row of this id; None if there is none."""
        for row in range(len(self) - 1, -1, -1):
            if self.episode_id(row) == episode_id:
                return row
        return None

    def line(self, row: int) -> bytes:
        """The JSON of a row, as it stands in the file."""
        with self.path.open("rb") as file:
            file.seek(self.offsets[row])
            return file.readline()

    def add(self, offset: int, line: _Line) -> None:
        """Append one episode."""
        for name in COUNTS:
            self.columns[name].append(len(line.turns) if name == "turns" else getattr(line, name))
        for name in _VALUES:
            value = getattr(line, name)
            self.columns[name].append(float("nan") if value is None else value)
        for name in NAMES:
            known, spelling = self.spellings[name], getattr(line, name)
            if spelling not in known:
                known.append(spelling)
            self.columns[name].append(known.index(spelling))
        if line.error:
            self.errors[len(self)] = line.error[:_MAX_ERROR_CHARS]
        self.offsets.append(offset)

    def undo_after(self, step: int) -> None:
        """Forget what steps after `step` consumed; steps ascend between two resumes."""
        keep = bisect_right(self.columns["step"], step)
        for values in (*self.columns.values(), self.offsets):
            del values[keep:]
        self.errors = {row: text for row, text in self.errors.items() if row < keep}


def read_table(run_dir: Path) -> EpisodeTable:
    """All episodes of a run directory, also while the run still writes: a line that is not whole yet is left out.

    Raises RecordError if a line is none of `runlog.describe`.
    """
    table = EpisodeTable(run_dir / "episodes.jsonl")
    if not table.path.is_file():
        return table
    decoder, offset = msgspec.json.Decoder(_Line), 0
    with table.path.open("rb") as file:
        for number, text in enumerate(file, 1):
            if not text.endswith(b"\n"):
                break
            try:
                line = decoder.decode(text)
            except msgspec.DecodeError as error:
                raise RecordError(f"{table.path}, line {number}: expected an episode, got {error}") from error
            if line.kind == "resume":
                table.undo_after(line.step)
            else:
                table.add(offset, line)
            offset += len(text)
    return table
