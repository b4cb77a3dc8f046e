"""A recorded episode, played again, is identical; whatever has changed since is found at the turn where it shows."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.controller.episode import EpisodeConfig, EpisodeSetup, run_episode, single_engine
from agentrl_jax.controller.episode_replay import CallBudget, Closing, ReplayedTurn, replay
from agentrl_jax.env import Action, Message, StepResult, ToolCall
from agentrl_jax.episode_log import RecordedEpisode, read_episode
from agentrl_jax.errors import ConfigError
from agentrl_jax.runlog import RunLog, ids_as_text, ids_from_text, to_json
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.testing.envs import EnvScript, ScriptedEnv, SessionLog, scripted_sessions
from agentrl_jax.testing.renderer import FakeRenderer
from agentrl_jax.testing.virtual import run_virtual
from agentrl_jax.types import EpisodeEnd, Task, Trajectory, as_ids

TASK = Task(env="scripted", split="train", index=3, seed=7)
THREE_TURNS = EnvScript(rewards=(0.0, 0.5, 1.0))
CONFIG = EpisodeConfig(max_turns=4, max_new_tokens=8, max_context_tokens=512)
SAYS = FakeRenderer().spell(Message(role="assistant", content="hello"))


def played(script: EnvScript = THREE_TURNS, config: EpisodeConfig = CONFIG, says: object = None) -> Trajectory:
    engine = FakeEngine(script=lambda prompt, sampling: SAYS.tolist() if says is None else says)  # type: ignore[arg-type,return-value]
    setup = EpisodeSetup(
        sessions=scripted_sessions(script, SessionLog()),
        tools=(),
        renderer=FakeRenderer(),
        choose_engine=single_engine(engine),
        config=config,
        run_seed=0,
    )

    async def main() -> Trajectory:
        return await run_episode(TASK, 4, 1, setup=setup)

    return run_virtual(main)


def recorded(trajectory: Trajectory, folder: Path) -> RecordedEpisode:
    with RunLog(folder / "run", resume=(folder / "run").exists()) as log:
        log.log_episode(2, trajectory, lambda ids: "".join(map(chr, ids)))
    return read_episode(folder / "run", trajectory.episode_id)


def played_again(
    episode: RecordedEpisode, make: Callable[[Task], ScriptedEnv] | EnvScript, budget: CallBudget | None = None
) -> tuple[list[ReplayedTurn], Closing | None]:
    make_env = make if callable(make) else lambda task: ScriptedEnv(task=task, script=make)
    parts = list(replay(episode, make_env, FakeRenderer(), (), budget))
    closing = parts.pop() if isinstance(parts[-1], Closing) else None
    return [part for part in parts if isinstance(part, ReplayedTurn)], closing


def test_a_record_holds_the_episode_exactly(tmp_path: Path) -> None:
    trajectory = played()
    episode = recorded(trajectory, tmp_path)
    assert (episode.episode_id, episode.step, episode.task) == ("g4-m1", 2, TASK)
    assert (episode.end, episode.reward, episode.env_reward) == (EpisodeEnd.COMPLETED, 1.5, 1.5)
    for found, turn in zip(episode.turns, trajectory.turns, strict=True):
        assert np.array_equal(found.context_ids, turn.context_ids)
        assert np.array_equal(found.ids, turn.completion.ids)
        assert (found.reward, found.versions, found.engine) == (turn.reward, (0,), "fake-0")


def test_an_unchanged_world_answers_identically(tmp_path: Path) -> None:
    log = SessionLog()
    episode = recorded(played(), tmp_path)
    turns, closing = played_again(episode, lambda task: ScriptedEnv(task=task, script=THREE_TURNS, log=log))
    assert [turn.number for turn in turns] == [1, 2, 3]
    assert all(not turn.divergence and turn.action == Action(content="hello") for turn in turns)
    assert [turn.result.reward for turn in turns if turn.result] == [0.0, 0.5, 1.0]
    assert closing == Closing()
    assert (log.num_made, log.num_closed, log.num_closed_again) == (1, 1, 0)


@dataclass(kw_only=True)
class OtherWords(ScriptedEnv):
    """Answers its second action differently."""

    def step(self, action: Action) -> StepResult:
        result = super().step(action)
        return replace(result, messages=(Message(role="user", content="No."),)) if self.num_steps == 2 else result


@dataclass(kw_only=True)
class OtherTask(ScriptedEnv):
    task: Task = field(default_factory=lambda: replace(TASK, index=9))


@pytest.mark.parametrize(
    ("world", "number", "text"),
    [
        (lambda task: OtherTask(script=THREE_TURNS), 1, "the ids before this turn differ from position"),
        (lambda task: OtherWords(task=task, script=THREE_TURNS), 3, "the ids before this turn differ from position 2"),
        (EnvScript(rewards=(0.0, 0.25, 1.0)), 2, "gives reward 0.25; recorded is 0.5"),
        (EnvScript(rewards=(0.0, 0.5)), 2, "ends the episode here as completed; recorded are further turns"),
        (EnvScript(rewards=(0.0, 0.5, 1.0, 0.0)), 3, "goes on; the episode was recorded as completed"),
        (EnvScript(rewards=(0.0, 0.5, 1.0), end=EpisodeEnd.INVALID_ACTION), 3, "as invalid_action; it was recorded as"),
    ],
)
def test_a_changed_world_diverges_where_it_shows(
    world: Callable[[Task], ScriptedEnv] | EnvScript, number: int, text: str, tmp_path: Path
) -> None:
    turns, closing = played_again(recorded(played(), tmp_path), world)
    assert closing is None
    assert [bool(turn.divergence) for turn in turns] == [False] * (number - 1) + [True]
    assert text in turns[-1].divergence


@pytest.mark.parametrize("fault_at", [0, 2])
def test_a_failure_is_reproduced_or_a_divergence(fault_at: int, tmp_path: Path) -> None:
    broken = replace(THREE_TURNS, fault="error", fault_at=fault_at)
    failed = recorded(played(broken), tmp_path)
    assert failed.end is EpisodeEnd.ENV_ERROR
    turns, closing = played_again(failed, broken)
    assert len(turns) == fault_at
    assert closing is not None
    assert (closing.divergence, "fails here again: scripted/train/3/7: failed on purpose" in closing.note) == ("", True)
    _, closing = played_again(failed, THREE_TURNS)  # the fault has gone: nothing to compare, and it is said
    assert closing is not None
    assert "cut off by env_error" in closing.note
    whole = recorded(played(), tmp_path)
    _, closing = played_again(whole, broken)
    assert closing is not None
    assert "the environment fails" in closing.divergence


def test_calls_beyond_the_budget_are_answered_as_they_were(tmp_path: Path) -> None:
    calls = tuple(ToolCall(name=name, arguments={}) for name in "abc")
    said = FakeRenderer().spell(Message(role="assistant", tool_calls=calls))
    config = replace(CONFIG, max_new_tokens=64, max_calls_per_turn=2, max_calls=5)
    episode = recorded(played(config=config, says=said.tolist()), tmp_path)
    assert len(episode.turns) == 3
    turns, closing = played_again(episode, THREE_TURNS, CallBudget(max_calls_per_turn=2, max_calls=5))
    assert [turn.divergence for turn in turns] == [""] * 3
    assert closing == Closing()
    turns, _ = played_again(episode, THREE_TURNS, CallBudget(max_calls_per_turn=2))
    assert [bool(turn.divergence) for turn in turns] == [False, False, False]  # the third turn's notice was never seen
    turns, _ = played_again(episode, THREE_TURNS)
    assert [bool(turn.divergence) for turn in turns] == [False, True]


def test_a_truncated_turn_never_reaches_the_environment(tmp_path: Path) -> None:
    episode = recorded(played(config=replace(CONFIG, max_new_tokens=2)), tmp_path)
    assert episode.end is EpisodeEnd.TURN_TRUNCATED
    log = SessionLog()
    turns, closing = played_again(episode, lambda task: ScriptedEnv(task=task, script=THREE_TURNS, log=log))
    assert (len(turns), log.num_steps, closing) == (1, 0, Closing())


@given(
    rewards=st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=6),
    limits=st.tuples(st.integers(1, 4), st.integers(1, 8), st.integers(20, 120)),
    ids=st.lists(st.integers(2, 60), max_size=6),
)
def test_every_episode_is_identical_in_its_own_world(
    rewards: list[float], limits: tuple[int, int, int], ids: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    script = EnvScript(rewards=tuple(rewards))
    config = EpisodeConfig(max_turns=limits[0], max_new_tokens=limits[1], max_context_tokens=limits[2])
    trajectory = played(script, config, says=ids)
    turns, closing = played_again(recorded(trajectory, tmp_path_factory.mktemp("replay")), script)
    assert [turn.divergence for turn in turns] == [""] * len(trajectory.turns)
    assert closing == Closing()


def test_unknown_ids_name_near_ones(tmp_path: Path) -> None:
    recorded(played(), tmp_path)
    with pytest.raises(ConfigError, match=r"no episode 'g4-m2' among its 1 .*nearest: g4-m1"):
        read_episode(tmp_path / "run", "g4-m2")
    with pytest.raises(ConfigError, match=r"has no episodes\.jsonl"):
        read_episode(tmp_path, "g4-m1")


def test_records_without_ids_are_refused_clearly(tmp_path: Path) -> None:
    recorded(played(), tmp_path)
    path = tmp_path / "run" / "episodes.jsonl"
    values = json.loads(path.read_text())
    for turn in values["turns"]:
        del turn["ids"]
    path.write_text(to_json(values) + "\n")
    with pytest.raises(ConfigError, match="recorded by an earlier version, which kept the text"):
        read_episode(tmp_path / "run", "g4-m1")


def test_the_last_record_of_an_id_counts_and_torn_lines_do_not(tmp_path: Path) -> None:
    recorded(played(), tmp_path)
    with RunLog(tmp_path / "run", resume=True) as log:
        log.log_resume(0, 5)
        log.log_episode(1, played(EnvScript(rewards=(1.0,))), lambda ids: "")
    with (tmp_path / "run" / "episodes.jsonl").open("a") as file:
        file.write('{"step":9,"episode":"g4-m1","torn')
    episode = read_episode(tmp_path / "run", "g4-m1")
    assert (episode.step, len(episode.turns)) == (1, 1)


@given(st.lists(st.integers(0, 2**31 - 1), max_size=20))
def test_ids_survive_as_text(ids: list[int]) -> None:
    assert ids_from_text(ids_as_text(as_ids(ids))).tolist() == ids
