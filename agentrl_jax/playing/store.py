"""The folder of an evaluation: every finished episode as a line, so that a killed evaluation goes on where it was.

    evaluation.json   what is evaluated, and how: whoever goes on must mean the same
    episodes.jsonl    one line per finished episode, in the order in which they ended
    results.json      the scores (written at the end, and by whoever reads them)

Lines are ASCII and flushed at once; a torn last line is cut off when the folder is opened again. An episode that
infrastructure has ended is kept as a line too, and played again by the next process: the last line of a key counts.
"""

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from agentrl_jax.errors import ConfigError
from agentrl_jax.playing.records import EpisodeKey, EpisodeRecord
from agentrl_jax.runlog import to_json, write_atomically

_SETTINGS, _EPISODES = "evaluation.json", "episodes.jsonl"


class EvaluationStore:
    """One evaluation's folder, for one process at a time. Use it as a context manager.

    episodes: the newest record of every key, in the order of the lines.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Begin an evaluation in `folder`, or go on with the one that is there.

        settings: plain JSON of all that an episode depends on. Raises ConfigError if the folder is another
        evaluation's, something else's, in use by another process, or cannot be written.
        """
        self.folder = folder
        self.episodes: dict[EpisodeKey, EpisodeRecord] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._check_settings(json.loads(to_json(settings)))
            self._file = (folder / _EPISODES).open("a+b")
        except OSError as error:
            raise ConfigError(f"--out {folder} cannot be written: {error.strerror or error}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._read()
        except BlockingIOError as error:
            self._file.close()
            raise ConfigError(f"--out {folder} is in use by another evaluation that is still running") from error
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> "EvaluationStore":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def is_finished(self, key: EpisodeKey) -> bool:
        """Whether this episode need not be played (again)."""
        record = self.episodes.get(key)
        return record is not None and record.end.is_valid

    def add(self, record: EpisodeRecord) -> None:
        """Keep a record: once this returns, killing the process does not lose it."""
        self._file.write(to_json(record.to_json()).encode("ascii") + b"\n")
        self._file.flush()
        self.episodes[record.key] = record

    def write_results(self, results: Mapping[str, Any]) -> Path:
        """Replace results.json, and return its path."""
        path = self.folder / "results.json"
        write_atomically(path, json.dumps(json.loads(to_json(results)), indent=2) + "\n")
        return path

    def _check_settings(self, settings: dict[str, Any]) -> None:
        path = self.folder / _SETTINGS
        if not path.is_file():
            if any(self.folder.iterdir()):
                raise ConfigError(f"--out {self.folder} is not empty, and no evaluation: name a new folder")
            write_atomically(path, json.dumps(settings, indent=2) + "\n")
            return
        try:
            saved = json.loads(path.read_text(encoding="utf-8"))
            changed = [name for name in sorted({*saved, *settings}) if saved.get(name) != settings.get(name)]
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path} cannot be read: {error}") from error
        if changed:
            was = ", ".join(f"{name} = {saved.get(name)!r}, now {settings.get(name)!r}" for name in changed)
            raise ConfigError(
                f"--out {self.folder} holds another evaluation ({was}): repeat its settings to go on with it, or "
                "name a new folder"
            )

    def _read(self) -> None:
        self._file.seek(0)
        data = self._file.read()
        whole = data.rfind(b"\n") + 1
        self._file.truncate(whole)
        self._file.seek(0, os.SEEK_END)
        for number, line in enumerate(data[:whole].splitlines(), 1):
            try:
                record = EpisodeRecord.from_json(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                where = f"{self.folder / _EPISODES}, line {number}"
                raise ConfigError(f"{where}: expected an episode of an evaluation, got {line[:80]!r}") from error
            self.episodes[record.key] = record
