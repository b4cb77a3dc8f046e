"""The episodes of a run as columns: every line once, undone and unfinished ones left out."""

from pathlib import Path

import numpy as np
import pytest

from agentrl_jax.errors import RecordError
from agentrl_jax.report.episode_table import read_table
from agentrl_jax.runlog import RunLog
from agentrl_jax.types import EpisodeEnd
from tests.algo.record_builders import make_segment, make_trajectory, make_turn


def logged(log: RunLog, step: int, group: int, reward: float | None = 1.0, error: str = "") -> None:
    turns = make_turn(4, 2), make_turn(1, 3, pool="lagging")
    end = EpisodeEnd.ENV_ERROR if reward is None else EpisodeEnd.COMPLETED
    trajectory = make_trajectory(reward, make_segment(*turns), group_id=group, member=2, env="kg", index=7, end=end)
    object.__setattr__(trajectory, "error", error)
    log.log_episode(step, trajectory, lambda ids: "x" * len(ids), fate="dropped" if reward is None else "consumed")


def test_columns_say_what_was_logged(tmp_path: Path) -> None:
    with RunLog(tmp_path / "run") as log:
        logged(log, 1, 4)
        logged(log, 2, 5, None, error="e" * 999)
    table = read_table(tmp_path / "run")
    assert len(table) == 2
    counts = ("step", "group", "member", "index", "turns", "tokens", "loss_tokens")
    assert [table.columns[name][0] for name in counts] == [1, 4, 2, 7, 2, 10, 5]
    assert table.column("reward")[0] == 1.0
    assert np.isnan(table.column("reward")[1])
    named = {name: [table.names(name)[n] for n in table.columns[name]] for name in ("env", "end", "fate")}
    assert named == {"env": ["kg", "kg"], "end": ["completed", "env_error"], "fate": ["consumed", "dropped"]}
    assert table.errors == {1: "e" * 400}
    assert [table.episode_id(row) for row in (0, 1)] == ["g4-m2", "g5-m2"]
    assert b'"episode":"g5-m2"' in table.line(1)


def test_what_a_resume_undid_is_gone_and_the_last_of_an_id_counts(tmp_path: Path) -> None:
    with RunLog(tmp_path / "run") as log:
        for step, group in ((1, 0), (2, 1), (3, 2)):
            logged(log, step, group, None, error=f"at {step}")
        log.log_resume(1, 9)
        logged(log, 2, 1, 0.5)
    table = read_table(tmp_path / "run")
    assert table.column("step").tolist() == [1, 2]
    assert table.errors == {0: "at 1"}
    assert table.row_of("g1-m2") == 1
    assert table.row_of("g2-m2") is None
    assert b'"reward":0.5' in table.line(1)


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    with RunLog(tmp_path / "run") as log:
        logged(log, 1, 0)
    path = tmp_path / "run" / "episodes.jsonl"
    path.write_text(path.read_text() + '{"step":2,"epis')
    assert len(read_table(tmp_path / "run")) == 1


def test_a_run_without_episodes_has_an_empty_table(tmp_path: Path) -> None:
    assert len(read_table(tmp_path)) == 0
    assert read_table(tmp_path).column("reward").tolist() == []


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    with RunLog(tmp_path / "run") as log:
        logged(log, 1, 0)
    path = tmp_path / "run" / "episodes.jsonl"
    path.write_text(path.read_text() + '{"step":"two"}\n')
    with pytest.raises(RecordError, match=r"episodes\.jsonl, line 2: expected an episode"):
        read_table(tmp_path / "run")
