"""Are all published tasks judged as they should be? `python -m envs.dbbench.sweep --data FOLDER`

Carries out the published solution of every task that changes a table, and gives the label of every question as its
answer; prints how many are right, and what a session costs. With `--option-file FILE` the sessions run on the server
that FILE, a MySQL option file, names. A good answer: 239 of the 240 changes, for the label of one follows from no
solution, and all questions; the exit code is 1 if fewer are right.
"""

import sys
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import tyro

from agentrl_jax.env import Action
from agentrl_jax.errors import AgentRLError, ConfigError
from envs.dbbench.calls import commit_call, sql_call
from envs.dbbench.database import Backend
from envs.dbbench.env import DbbenchEnv
from envs.dbbench.mysql import backend_of
from envs.dbbench.problems import Problem
from envs.dbbench.published import PublishedTasks, find_tasks
from envs.dbbench.sqlite import SqliteBackend
from envs.dbbench.tasks import DEV, STANDARD

MOST_WRONG = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepConfig:
    """Solves every published dbbench task."""

    data: Path
    """Folder of task data, with a folder `dbbench` in it"""
    option_file: Path | None = None
    """MySQL option file of a server for the sessions (default: SQLite in this process)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """changes, questions: how many there are, and how many are right. session_ms: processor time of this process."""

    changes: int
    right_changes: int
    questions: int
    right_questions: int
    session_ms: float


def is_solved(problem: Problem, backend: Backend) -> bool:
    """Whether the published solution, or the label, earns the reward."""
    with closing(DbbenchEnv(problem, backend)) as env:
        env.reset()
        if problem.is_change:
            env.step(Action(calls=(sql_call(problem.gold or ""),)))
        return env.step(Action(calls=(commit_call(problem.answer or ()),))).reward == 1.0


def sweep(problems: Iterable[Problem], backend: Backend) -> Tally:
    """Solve all of them."""
    right: dict[bool, list[bool]] = {False: [], True: []}
    begun_s = time.process_time()
    for problem in problems:
        right[problem.is_change].append(is_solved(problem, backend))
    used_s = time.process_time() - begun_s
    return Tally(
        changes=len(right[True]),
        right_changes=sum(right[True]),
        questions=len(right[False]),
        right_questions=sum(right[False]),
        session_ms=1e3 * used_s / max(1, sum(map(len, right.values()))),
    )


def published_problems(data: Path) -> list[Problem]:
    """Those of both files. Raises ConfigError if there are none."""
    paths = [path for name in (DEV, STANDARD) if (path := find_tasks(data, name)) is not None]
    if not paths:
        raise ConfigError(f"expected {STANDARD}.jsonl.xz or the like in {data / 'dbbench'}")
    return [tasks.problem(index) for tasks in map(PublishedTasks, paths) for index in range(len(tasks))]


def main() -> None:
    config = tyro.cli(SweepConfig)
    try:
        backend = SqliteBackend() if config.option_file is None else backend_of(config.option_file)
        tally = sweep(published_problems(config.data), backend)
    except AgentRLError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    print(f"changes    {tally.right_changes} of {tally.changes} right")
    print(f"questions  {tally.right_questions} of {tally.questions} right")
    print(f"session    {tally.session_ms:.2f} ms")
    wrong = tally.changes - tally.right_changes + tally.questions - tally.right_questions
    sys.exit(wrong > MOST_WRONG)


if __name__ == "__main__":
    main()
