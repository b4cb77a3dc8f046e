"""Are all published tasks judged as they should be? `python -m envs.os_interaction.sweep --data FOLDER`

Solves every task as its example does, and then does not: answers wrongly, or finishes without a change. Prints which
are not accepted, or not rejected, and what a session costs. A good answer: 998 of the 1,000 training tasks; the exit
code is 1 if fewer than 997 are right. Two cannot be: an example prints two lines where a number is asked for, and
another's answer changes each time it is run.
"""

import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from agentrl_jax.env import Action, ToolCall
from agentrl_jax.errors import AgentRLError, ConfigError, EnvError
from envs.os_interaction import published
from envs.os_interaction.calls import answer_call, bash_call, finish_call
from envs.os_interaction.chores import Chore
from envs.os_interaction.env import OsEnv
from envs.os_interaction.outputs import EMPTY
from envs.sandbox.shared import SharedDriver, shared_driver

LEAST_RIGHT_FRAC = 0.997
WRONG_ANSWER = "-98765"
Problem = Literal["not accepted", "not rejected"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepConfig:
    """Judges every published OS task with its solution, and without."""

    data: Path
    """Folder of task data, with a folder `os_interaction` in it"""
    name: str = published.TRAIN
    """The set: train, std or dev"""
    sandbox: str | None = None
    """What runs the programs: bubblewrap, bubblewrap:FOLDER, docker, docker:URL (default: as in training)"""
    threads: int = 4
    """Tasks at a time"""
    indices: str = ""
    """Tasks to judge, by number, separated by commas (default: all)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """problem: None for a task that is judged rightly; else what is wrong, or why it could not be judged."""

    index: int
    problem: str | None
    session_s: float


def play(env: OsEnv, calls: Iterable[ToolCall]) -> tuple[float, str]:
    """The reward of the calls, and what the last one that went on was answered by."""
    env.reset()
    reward, said = 0.0, ""
    for call in calls:
        result = env.step(Action(calls=(call,)))
        reward += result.reward
        if result.end is None:
            said = result.messages[0].content
    return reward, said


def answer_in(said: str) -> str:
    """What a command printed, of the text that the agent reads."""
    return "" if said == EMPTY else said.partition("\n\n")[2].strip()


def problem_of(chore: Chore, driver: SharedDriver, *, seed: int) -> Problem | None:
    """Play a task twice. Raises EnvError if its machine cannot be made."""
    with closing(OsEnv(chore, driver.open, seed=seed, command_limit_s=120.0)) as env:
        _, said = play(env, map(bash_call, chore.expert_steps))
        given = chore.match.answer if chore.match is not None else answer_in(said)
        if env.step(Action(calls=(answer_call(given),))).reward != 1.0:
            return "not accepted"
    last = finish_call(WRONG_ANSWER) if chore.checks and chore.checks[0] is not None else answer_call(WRONG_ANSWER)
    with closing(OsEnv(chore, driver.open, seed=seed)) as env:
        reward, _ = play(env, (last,))
    return "not rejected" if reward else None


def judge(chores: Sequence[Chore], index: int, driver: SharedDriver) -> Verdict:
    begun_s = time.monotonic()
    problem: str | None
    try:
        problem = problem_of(chores[index], driver, seed=index)
    except EnvError as error:
        problem = f"no machine: {error}"
    return Verdict(index=index, problem=problem, session_s=(time.monotonic() - begun_s) / 2)


def sweep(chores: Sequence[Chore], indices: Sequence[int], driver: SharedDriver, *, threads: int) -> list[Verdict]:
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda index: judge(chores, index, driver), indices))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what is judged wrongly; see the module for the exit code."""
    config = tyro.cli(SweepConfig, args=arguments, prog="python -m envs.os_interaction.sweep")
    try:
        chores = published.load(config.data, config.name) if config.name in published.SETS else None
        if not chores:
            raise ConfigError(f"--name {config.name}: no such tasks in {config.data / published.FOLDER}")
        driver = shared_driver(config.sandbox)
    except AgentRLError as error:
        print(f"envs.os_interaction.sweep: {error}", file=sys.stderr)
        return 2
    indices = [int(word) for word in config.indices.split(",") if word] or range(len(chores))
    verdicts = sweep(chores, indices, driver, threads=config.threads)
    wrong = [verdict for verdict in verdicts if verdict.problem is not None]
    for verdict in wrong:
        print(f"{config.name} {verdict.index}: {verdict.problem}")
    mean_ms = 1e3 * sum(verdict.session_s for verdict in verdicts) / max(1, len(verdicts))
    num_right = len(verdicts) - len(wrong)
    print(f"{num_right} of {len(verdicts)} are judged rightly; {mean_ms:.0f} ms a session, {config.threads} at a time")
    return int(num_right < LEAST_RIGHT_FRAC * len(verdicts))


if __name__ == "__main__":
    raise SystemExit(main())
