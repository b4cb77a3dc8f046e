"""The run directory: what a run leaves behind, written as it happens.

    config.json      the effective configuration, written once, before anything else
    metrics.jsonl    one line per learner step and per evaluation, in order
    episodes.jsonl   one line per training episode that has ended, its token ids included (`describe`)
    spans.jsonl      with --telemetry: when each call of each episode began and ended (controller/spans.py)
    batches/         step-000001.npz, …: the recorded batches, for replaying a loss on them
    model/           weights and tokenizer in Hugging Face's layout

JSON lines are ASCII-only, so that no reader splits one at a U+2028; they end in "\\n" and are flushed at once.
Values that are not finite are written as null: JSON has no NaN.
"""

import json
import math
import os
import shutil
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TextIO

import numpy as np

from agentrl_jax.errors import ConfigError
from agentrl_jax.evaluation import Evaluation
from agentrl_jax.redaction import redacted, without_passwords
from agentrl_jax.types import Floats, Ids, Trajectory, as_ids
from agentrl_jax.wording import quoted

_BLOCK_BYTES = 1 << 16

Observer = Callable[[str, Mapping[str, Any]], None]
"""Told the kind and the values of a record."""

Fate = Literal["consumed", "dropped", "cancelled"]
"""What became of a group: a step consumed it, it had nothing to teach, or it was cut off."""


def to_json(value: Any) -> str:
    """One line of strict JSON for `value`; not-a-number and infinities become null."""
    return json.dumps(without_nan(value), allow_nan=False, separators=(",", ":"))


def without_nan(value: Any) -> Any:
    """Plain JSON values: None for numbers that are not finite, texts for paths and keys."""
    if isinstance(value, Mapping):
        return {str(key): without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Path):
        return str(value)
    return value


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` by `text` so that a reader, or a crash, sees the old or the new file, never half of one."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


class RunLog:
    """Writes one run directory. Use it as a context manager; it owns its files."""

    def __init__(self, folder: Path, *, resume: bool = False) -> None:
        """Claim `folder`: absent or empty for a new run, an earlier run's to resume. Raises ConfigError otherwise."""
        if not resume:
            check_unused(folder)
        self.folder = folder
        self._observers: list[Observer] = []
        try:
            (folder / "batches").mkdir(parents=True, exist_ok=resume)
            for name in ("metrics.jsonl", "episodes.jsonl") if resume else ():
                _cut_torn_line(folder / name)
            self._metrics = (folder / "metrics.jsonl").open("a", encoding="ascii")
            self._episodes = (folder / "episodes.jsonl").open("a", encoding="ascii")
        except OSError as error:
            raise ConfigError(f"--run-dir {folder} cannot be written: {error.strerror or error}") from error

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._metrics.close()
        self._episodes.close()

    @property
    def model_folder(self) -> Path:
        return self.folder / "model"

    def batch_path(self, step: int) -> Path:
        return self.folder / "batches" / f"step-{step:06d}.npz"

    def write_config(self, config: Mapping[str, Any]) -> None:
        write_atomically(
            self.folder / "config.json", json.dumps(without_nan(redacted(config)), indent=2, allow_nan=False) + "\n"
        )

    def log_metrics(self, kind: str, values: Mapping[str, Any]) -> None:
        """Append one record of a `kind` ("warm_up", "step", "evaluation") to metrics.jsonl, and tell the observers."""
        record = redacted(values)
        _append(self._metrics, {"kind": kind, **record})
        for observe in self._observers:
            observe(kind, record)

    def add_observers(self, observers: Iterable[Observer]) -> None:
        """Call each of them with the kind and the values of every record of metrics.jsonl from now on."""
        self._observers += observers

    def discard(self) -> None:
        """Remove the folder and all that is in it: a new run that never began."""
        self._metrics.close()
        self._episodes.close()
        shutil.rmtree(self.folder)

    def log_resume(self, step: int, version: int, **details: Any) -> None:
        """Note in both files that steps after `step` were undone and are taken again, from `version`."""
        self.log_metrics("resume", {"step": step, "version": version, **details})
        _append(self._episodes, {"kind": "resume", "step": step, "version": version})

    def earlier_evaluations(self, when: str, *, step: int) -> dict[str, dict[str, Evaluation]]:
        """Evaluations of `step` that an earlier process logged, by mode and env; the last of each counts."""
        found: dict[str, dict[str, Evaluation]] = {}
        for record in read_records(self.folder / "metrics.jsonl"):
            if record["kind"] == "evaluation" and (record["when"], record["step"]) == (when, step):
                found.setdefault(record["mode"], {})[record["env"]] = Evaluation.from_json(record)
        return found

    def log_episode(
        self, step: int, trajectory: Trajectory, decode: Callable[[Ids], str], *, fate: Fate = "consumed"
    ) -> None:
        """Append an episode to episodes.jsonl, its ids spelt out by `decode`. fate: what became of its group."""
        _append(self._episodes, {"step": step, "fate": fate, **describe(trajectory, decode)})


def _append(file: TextIO, record: Mapping[str, Any]) -> None:
    file.write(to_json(record) + "\n")
    file.flush()


def _cut_torn_line(path: Path) -> None:
    """Remove a last line that a crash cut short."""
    if not path.is_file():
        return
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - _BLOCK_BYTES)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                file.truncate(start + newline + 1)
                return
            end = start
        file.truncate(0)


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records of a JSON-lines file of a run directory, in order; a torn last line is left out."""
    lines = path.read_text(encoding="ascii").split("\n")[:-1]
    return [json.loads(line) for line in lines]


def surviving_steps(path: Path) -> list[dict[str, Any]]:
    """The "step" records of metrics.jsonl that later resumes did not undo, in order."""
    steps: list[dict[str, Any]] = []
    for record in read_records(path):
        if record["kind"] == "resume":
            steps = [step for step in steps if step["step"] <= record["step"]]
        elif record["kind"] == "step":
            steps.append(record)
    return steps


def check_unused(folder: Path) -> None:
    """Raise ConfigError unless `folder` can become a new run directory."""
    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(
            f"--run-dir {folder} is not empty; runs never overwrite each other. Name a new folder; go on with an "
            f"earlier run by --resume {quoted(folder)}, or start anew from its weights by --model "
            f"{quoted(folder / 'model')}"
        )
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--run-dir {folder} is a file; name a folder")


def describe(trajectory: Trajectory, decode: Callable[[Ids], str]) -> dict[str, Any]:
    """An episode as JSON: what was asked, sampled and answered, by which policy, and how it ended.

    Of the task: env, split, index, seed. Of each turn: `context` and `sampled` are the text of what was added before it
    and of what an engine sampled, `context_ids` and `ids` the token ids themselves, as little-endian int32 in base64
    (`ids_from_text`). Nothing else can be played again exactly: several ids may spell one text. `logprobs` are the
    engine's of what it sampled, as little-endian float32 in base64 (`floats_from_text`), `masked` the places among them
    at which it gave none that is finite. The first turn of a `segment` has its whole prompt before it.
    """
    return {
        "episode": trajectory.episode_id,
        "group": trajectory.group_id,
        "member": trajectory.member,
        "env": trajectory.task.env,
        "split": trajectory.task.split,
        "index": trajectory.task.index,
        "seed": trajectory.task.seed,
        "end": trajectory.end.value,
        "reward": trajectory.reward,
        "env_reward": trajectory.env_reward,
        "tokens": trajectory.num_tokens,
        "loss_tokens": trajectory.num_loss_tokens,
        "wall_s": round(trajectory.wall_s, 4),
        "env_s": round(trajectory.env_s, 4),
        "engine_s": round(trajectory.engine_s, 4),
        "error": without_passwords(trajectory.error),
        "turns": [
            {
                "segment": number,
                "context": decode(turn.context_ids),
                "sampled": decode(turn.completion.ids),
                "context_ids": ids_as_text(turn.context_ids),
                "ids": ids_as_text(turn.completion.ids),
                "logprobs": floats_as_text(turn.completion.logprobs),
                "masked": np.flatnonzero(~turn.completion.loss_mask).tolist(),
                "versions": [[span.version, span.start, span.end] for span in turn.completion.version_spans],
                "pool": turn.completion.pool,
                "engine": turn.completion.engine,
                "finish_reason": turn.completion.finish_reason,
                "cached_tokens": turn.completion.cached_tokens,
                "reward": turn.reward,
                "calls": turn.num_calls,
                "call_errors": list(turn.call_errors),
            }
            for number, segment in enumerate(trajectory.segments)
            for turn in segment.turns
        ],
    }


def ids_as_text(ids: Ids) -> str:
    """Token ids as base64 of little-endian int32: 5.3 characters each, and fifty times as fast as JSON numbers."""
    return b64encode(ids.astype("<i4", copy=False).tobytes()).decode("ascii")


def ids_from_text(text: str) -> Ids:
    """The inverse of `ids_as_text`. Raises ValueError for anything else."""
    return as_ids(np.frombuffer(b64decode(text, validate=True), "<i4"))


def floats_as_text(values: Floats) -> str:
    """Numbers as base64 of little-endian float32, exactly."""
    return b64encode(values.astype("<f4", copy=False).tobytes()).decode("ascii")


def floats_from_text(text: str) -> Floats:
    """The inverse of `floats_as_text`. Raises ValueError for anything else."""
    return np.frombuffer(b64decode(text, validate=True), "<f4")
