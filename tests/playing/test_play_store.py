"""The folder of an evaluation: what is kept, what is refused."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.env import Message
from agentrl_jax.errors import ConfigError
from agentrl_jax.playing.records import EpisodeRecord, TurnRecord
from agentrl_jax.playing.store import EvaluationStore
from agentrl_jax.types import EpisodeEnd, Task
from tests.playing.world import act, record

RICH = EpisodeRecord(
    mixture="turn:x+y",
    task=Task(env="a", split="train", index=2, seed=77),
    sample=4,
    end=EpisodeEnd.MAX_TURNS,
    reward=-0.2,
    env_reward=0.5,
    turns=(
        TurnRecord(
            policy="x",
            num_calls=2,
            num_call_errors=1,
            num_prompt_tokens=30,
            num_sampled_tokens=4,
            versions=(0, 3),
            reward=0.5,
            seconds=0.25,
        ),
    ),
    messages=(Message(role="user", content="Où\u2028?"), act(at="é", n=[1, {"x": None}]), Message(role="tool")),
    metrics={"score": 0.5},
    begun=12.5,
    wall_s=1.5,
    env_s=0.5,
    error="closing: x",
)


def test_records_survive_json(tmp_path: Path) -> None:
    with EvaluationStore(tmp_path, {}) as store:
        store.add(RICH)
    with EvaluationStore(tmp_path, {}) as store:
        assert list(store.episodes.values()) == [RICH]


@given(st.integers(0, 2000))
def test_wherever_a_kill_cuts_the_file_whole_lines_stay_and_it_goes_on(cut: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with EvaluationStore(folder, {}) as store:
            for index in range(3):
                store.add(record(solved=True, index=index))
        path = folder / "episodes.jsonl"
        data = path.read_bytes()
        path.write_bytes(data[:cut])
        with EvaluationStore(folder, {}) as store:
            assert len(store.episodes) == data[:cut].count(b"\n")
            store.add(record(solved=False, index=9))
        with EvaluationStore(folder, {}) as store:
            assert len(store.episodes) == data[:cut].count(b"\n") + 1


def test_what_infrastructure_ended_is_played_again_and_the_last_record_counts(tmp_path: Path) -> None:
    with EvaluationStore(tmp_path, {}) as store:
        store.add(record(None))
        assert not store.is_finished(record(None).key)
        store.add(record(solved=True))
        assert store.is_finished(record(None).key)
        assert not store.is_finished(record(None, sample=1).key)
    with EvaluationStore(tmp_path, {}) as store:
        assert [episode.is_success for episode in store.episodes.values()] == [True]


def test_another_evaluation_is_not_gone_on_with(tmp_path: Path) -> None:
    with EvaluationStore(tmp_path, {"seed": 1, "tasks": "kg"}):
        pass
    with pytest.raises(ConfigError, match=r"another evaluation \(seed = 1, now 2; level = None|seed = 1, now 2"):
        EvaluationStore(tmp_path, {"seed": 2, "tasks": "kg"})


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with EvaluationStore(tmp_path, {}), pytest.raises(ConfigError, match="in use by another evaluation"):
        EvaluationStore(tmp_path, {})
    with EvaluationStore(tmp_path, {}):
        pass


def test_folders_of_something_else_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty, and no evaluation"):
        EvaluationStore(tmp_path, {})
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        EvaluationStore(tmp_path / "file", {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "notes.txt"]


def test_a_line_that_is_no_episode_is_named(tmp_path: Path) -> None:
    with EvaluationStore(tmp_path, {}) as store:
        store.add(record(solved=True))
    with (tmp_path / "episodes.jsonl").open("a") as file:
        file.write('{"mixture": 1}\n')
    with pytest.raises(ConfigError, match="line 2: expected an episode"):
        EvaluationStore(tmp_path, {})
