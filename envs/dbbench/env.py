"""One episode of one task: `execute_sql` as often as the turns allow, `commit_final_answer` once."""

from enum import Enum

from agentrl_jax.env import Action, Message, StepResult, ToolCall
from agentrl_jax.errors import EnvError
from agentrl_jax.types import EpisodeEnd
from envs.dbbench.answers import is_right
from envs.dbbench.calls import EXECUTE_SQL, BadCall, argument_of
from envs.dbbench.database import Backend, Database
from envs.dbbench.hashing import table_hash, tables_hash
from envs.dbbench.problems import Problem

SYSTEM = (
    "Work on a MySQL database with execute_sql, one statement a call, and end with commit_final_answer: "
    "the values asked for, or anything once the database is changed as asked."
)
NO_CALL = "Call execute_sql or commit_final_answer."
COMMITTED = "done"
NOT_EXECUTED = "not executed: already committed"


class _State(Enum):
    NEW = "is new"
    LIVE = "is live"
    OVER = "is over"
    CLOSED = "is closed"


class DbbenchEnv:
    """Implements `agentrl_jax.env.Env`. Reward 1 for the right answer, or the right tables, at the commit; else 0.

    Every call is carried out in order; a bad one is answered by a text and costs the turn. upstream_compat: answers are
    compared as published; tasks that change a SQLite file cannot be solved, and no statement on one is kept.
    """

    def __init__(self, problem: Problem, backend: Backend, *, upstream_compat: bool = False) -> None:
        self._problem = problem
        self._backend = backend
        self._upstream_compat = upstream_compat
        self._database: Database | None = None
        self._state = _State.NEW
        self._reward = 0.0

    def reset(self) -> tuple[Message, ...]:
        """Raises EnvError if there is no database to be had."""
        self._require(_State.NEW)
        self._database = self._backend.open(self._problem)
        self._state = _State.LIVE
        return (Message(role="system", content=SYSTEM), Message(role="user", content=self._problem.text))

    def step(self, action: Action) -> StepResult:
        """Carry out one assistant turn. Raises EnvError unless the episode is live."""
        self._require(_State.LIVE)
        texts = [self._answer(call) for call in action.calls]
        messages = tuple(Message(role="tool", content=text) for text in (*texts, *action.errors))
        if not messages:
            messages = (Message(role="user", content=NO_CALL),)
        if self._is_over():
            return StepResult(messages=messages, reward=self._reward, end=EpisodeEnd.COMPLETED)
        return StepResult(messages=messages)

    def close(self) -> None:
        self._state = _State.CLOSED
        database, self._database = self._database, None
        if database is not None:
            database.close()

    def _require(self, state: _State) -> None:
        if self._state is not state:
            raise EnvError(f"a dbbench env that {self._state.value} was used as one that {state.value}")

    def _is_over(self) -> bool:
        return self._state is _State.OVER

    def _answer(self, call: ToolCall) -> str:
        if self._is_over():
            return NOT_EXECUTED
        try:
            argument = argument_of(call)
        except BadCall as bad:
            return str(bad)
        assert self._database is not None
        if call.name == EXECUTE_SQL.name:
            return self._execute(self._database, str(argument))
        self._reward = float(self._is_solved(self._database, argument))
        self._state = _State.OVER
        return COMMITTED

    def _execute(self, database: Database, statement: str) -> str:
        if not (self._upstream_compat and self._problem.file is not None):
            return database.execute(statement)
        # As published: every statement runs on a connection of its own, which is closed without a commit.
        database.close()
        self._database = fresh = self._backend.open(self._problem)
        return fresh.execute(statement)

    def _is_solved(self, database: Database, answer: object) -> bool:
        problem = self._problem
        if problem.answer is not None:
            return is_right(
                answer, problem.answer, is_ordered=problem.is_ordered, upstream_compat=self._upstream_compat
            )
        if self._upstream_compat and problem.file is not None:
            return False
        reached = database_hash(database, problem)
        return reached is not None and reached == self._right_hash()

    def _right_hash(self) -> str | None:
        """What the right change leads to; where the data do not say, it is carried out."""
        if self._problem.answer_hash is not None:
            return self._problem.answer_hash
        database = self._backend.open(self._problem)
        try:
            database.execute(self._problem.gold or "")
            return database_hash(database, self._problem)
        finally:
            database.close()


def database_hash(database: Database, problem: Problem) -> str | None:
    """The hash of the problem's tables as they are now; None if one of them, or a column of one, is gone."""
    hashes = []
    for table in problem.tables:
        rows = database.rows(table.name, table.columns)
        if rows is None:
            return None
        hashes.append(table_hash(rows))
    return tables_hash(hashes)
