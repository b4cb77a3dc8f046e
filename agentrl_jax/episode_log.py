"""Reads one episode back from a run directory's episodes.jsonl, whole: `runlog.describe` is what wrote it."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from agentrl_jax.errors import ConfigError
from agentrl_jax.runlog import ids_from_text
from agentrl_jax.types import EpisodeEnd, Ids, Task

_NUM_NEAR = 5
_EPISODE = re.compile(r'"episode":"([^"]*)"')


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedTurn:
    """See `types.Turn` and `types.Completion`. versions: the policy versions that sampled it, in order."""

    context_ids: Ids
    ids: Ids
    finish_reason: str
    engine: str
    pool: str
    versions: tuple[int, ...]
    reward: float
    num_calls: int
    call_errors: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedEpisode:
    """See `types.Trajectory`. step: the learner step that consumed it, or at which it was lost."""

    episode_id: str
    step: int
    task: Task
    end: EpisodeEnd
    reward: float | None
    env_reward: float | None
    error: str
    turns: tuple[RecordedTurn, ...]


def read_episode(run_dir: Path, episode_id: str) -> RecordedEpisode:
    """The episode of this id, in the last version of it if a resumed run consumed it anew.

    Raises ConfigError: no run directory, no such episode (naming those whose ids are nearest), or recorded without
    token ids.
    """
    path = run_dir / "episodes.jsonl"
    if not path.is_file():
        raise ConfigError(f"{run_dir} has no episodes.jsonl; expected the run directory of a training run")
    found = ""
    known: dict[str, None] = {}  # in order
    with path.open(encoding="ascii") as lines:
        for line in lines:
            match = _EPISODE.search(line)
            if match is None or not line.endswith("\n"):  # a note, or a line that a crash cut short
                continue
            known[match[1]] = None
            found = line if match[1] == episode_id else found
    if not found:
        raise ConfigError(_unknown(run_dir, episode_id, list(known)))
    return _episode(run_dir, json.loads(found))


def _unknown(run_dir: Path, episode_id: str, known: list[str]) -> str:
    if not known:
        return f"{run_dir} has recorded no episode yet"
    near = get_close_matches(episode_id, known, n=_NUM_NEAR, cutoff=0.0)
    return (
        f"{run_dir} has no episode {episode_id!r} among its {len(known)} (g<group>-m<member>). The nearest: "
        f"{', '.join(near)}"
    )


def _episode(run_dir: Path, values: Mapping[str, Any]) -> RecordedEpisode:
    if "seed" not in values or any("ids" not in turn for turn in values["turns"]):
        raise ConfigError(
            f"{run_dir} was recorded by an earlier version, which kept the text of an episode but not its token ids: "
            "it can be read, but not played again"
        )
    return RecordedEpisode(
        episode_id=values["episode"],
        step=values["step"],
        task=Task(env=values["env"], split=values["split"], index=values["index"], seed=values["seed"]),
        end=EpisodeEnd(values["end"]),
        reward=values["reward"],
        env_reward=values["env_reward"],
        error=values["error"],
        turns=tuple(_turn(turn) for turn in values["turns"]),
    )


def _turn(values: Mapping[str, Any]) -> RecordedTurn:
    return RecordedTurn(
        context_ids=ids_from_text(values["context_ids"]),
        ids=ids_from_text(values["ids"]),
        finish_reason=values["finish_reason"],
        engine=values["engine"],
        pool=values["pool"],
        versions=tuple(version for version, _, _ in values["versions"]),
        reward=values["reward"],
        num_calls=values["calls"],
        call_errors=tuple(values["call_errors"]),
    )
