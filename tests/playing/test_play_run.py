"""A whole evaluation on fakes: complete, resumable, bounded, and over when nothing works."""

from pathlib import Path

import pytest
import trio

from agentrl_jax.errors import ConfigError, NoProgressError
from agentrl_jax.playing.mixtures import make_mixtures
from agentrl_jax.playing.run import evaluate, jobs
from agentrl_jax.playing.store import EvaluationStore
from agentrl_jax.testing.envs import EnvScript, SessionLog
from agentrl_jax.types import Task
from tests.playing.world import SayingPolicy, setup_of

TASKS = [Task(env="a", split="eval", index=index, seed=index) for index in range(6)]
LIMITS = {"max_concurrent": 4, "max_failures": 5}
ONCE = EnvScript(rewards=(1.0,), step_s=1.0)


def quiet(line: str) -> None:
    pass


async def test_everything_wanted_is_played_once_and_some_at_a_time(tmp_path: Path, autojump_clock: object) -> None:
    policies = [SayingPolicy(name, lambda messages: "Hm.") for name in ("x", "y")]
    wanted = jobs(make_mixtures(["x", "y"], ["single", "turn"]), TASKS, 2)
    assert len(wanted) == 3 * 6 * 2
    assert [job.sample for job in wanted] == [0] * 18 + [1] * 18
    log, lines = SessionLog(), list[str]()
    with EvaluationStore(tmp_path, {}) as store:
        setups = {"a": setup_of(policies, ONCE, log=log)}
        found = await evaluate(wanted, setups, store, lines.append, **LIMITS)
    assert [episode.key for episode in found] == [job.key for job in wanted]
    assert (log.num_made, log.peak_open, log.num_open) == (36, 4, 0)
    assert 1 <= len(lines) <= 20
    assert lines[-1].startswith("36/36 episodes  ")
    assert "x 100.0% of 12" in lines[-1]


async def test_what_a_cut_left_is_played_and_nothing_else(tmp_path: Path, autojump_clock: object) -> None:
    whole = SayingPolicy("x", lambda messages: "Hm.")
    wanted = jobs(make_mixtures(["x"], ["single"]), TASKS, 2)
    slow = EnvScript(rewards=(1.0,), step_s=10.0)
    with EvaluationStore(tmp_path, {}) as store, trio.move_on_after(25.0):
        await evaluate(wanted, {"a": setup_of([whole], slow)}, store, quiet, **LIMITS)
    lines: list[str] = []
    again = SayingPolicy("x", lambda messages: "Hm.")
    with EvaluationStore(tmp_path, {}) as store:
        kept = len(store.episodes)
        assert kept == 8
        found = await evaluate(wanted, {"a": setup_of([again], slow)}, store, lines.append, **LIMITS)
    assert len(found) == 12
    assert len(again.seen) == 4
    assert lines[0] == "8 of 12 episodes are there already, 4 are to be played"


async def test_broken_episodes_in_a_row_end_it_and_are_played_again(tmp_path: Path, autojump_clock: object) -> None:
    wanted = jobs(make_mixtures(["x"], ["single"]), TASKS, 2)
    broken, log = SayingPolicy("x", lambda messages: ""), SessionLog()
    with (
        EvaluationStore(tmp_path, {}) as store,
        pytest.raises(NoProgressError, match=r"5 episodes of a in a row by x came to nothing.*engine_error: x is out"),
    ):
        await evaluate(wanted, {"a": setup_of([broken], ONCE, log=log)}, store, quiet, **LIMITS)
    assert log.num_open == 0
    working = SayingPolicy("x", lambda messages: "Hm.")
    with EvaluationStore(tmp_path, {}) as store:
        found = await evaluate(wanted, {"a": setup_of([working], ONCE)}, store, quiet, **LIMITS)
    assert all(episode.is_success for episode in found)
    assert len(working.seen) == 12


async def test_a_policy_that_never_works_ends_it_at_once(tmp_path: Path, autojump_clock: object) -> None:
    def refuse(messages: object) -> str:
        raise ConfigError("wrong key")

    wanted = jobs(make_mixtures(["x"], ["single"]), TASKS, 1)
    with EvaluationStore(tmp_path, {}) as store, pytest.raises(ConfigError, match="wrong key"):
        await evaluate(wanted, {"a": setup_of([SayingPolicy("x", refuse)], ONCE)}, store, quiet, **LIMITS)


async def test_one_policy_with_all_the_weight_plays_as_alone(tmp_path: Path, autojump_clock: object) -> None:
    def by_seed(name: str) -> SayingPolicy:
        return SayingPolicy(name, lambda messages: f"{len(messages)}")

    mixtures = make_mixtures(["x", "y"], ["single", "turn", "episode"], [1, 0])
    policies = [by_seed("x"), by_seed("y")]
    with EvaluationStore(tmp_path, {}) as store:
        setups = {"a": setup_of(policies, EnvScript(rewards=(0.0, 1.0)))}
        found = await evaluate(jobs(mixtures, TASKS, 1), setups, store, quiet, **LIMITS)
    alone = [e for e in found if e.mixture == "x"]
    for name in ("turn:x*1+y*0", "episode:x*1+y*0"):
        mixed = [e for e in found if e.mixture == name]
        assert [(e.task, e.messages, e.reward) for e in mixed] == [(e.task, e.messages, e.reward) for e in alone]
    seeds = [settings.seed for _, settings in policies[0].seen]
    assert {seeds.count(seed) for seed in seeds} == {3}
