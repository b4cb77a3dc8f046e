"""Security of dbbench: what a policy writes is never evaluated, and reaches no file and no other session."""

import os
import threading

import pytest

from agentrl_jax.env import Action, FamilyOptions, ToolCall
from envs.dbbench import family
from envs.dbbench.answers import is_right
from envs.dbbench.calls import commit_call, sql_call

HOSTILE = [
    "[__import__('os').environ.__setitem__('DBBENCH_EVALUATED', '1')]",
    "[print('x')]",
    "[(lambda: 1/0)()]",
    "[open('/etc/passwd').read()]",
    "[" + "9**" * 50 + "9]",
    "[" + "(" * 5000 + ")" * 5000 + "]",
]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("upstream_compat", [False, True])
def test_sec_02_an_answer_is_never_evaluated(text, upstream_compat):
    os.environ.pop("DBBENCH_EVALUATED", None)
    num_threads = threading.active_count()
    assert not is_right(text, ["1"], is_ordered=False, upstream_compat=upstream_compat)
    dbbench = family(FamilyOptions(upstream_compat=upstream_compat))
    env = dbbench.make(dbbench.task("train", 0))
    env.reset()
    result = env.step(Action(calls=(ToolCall(name="commit_final_answer", arguments={"answers": text}),)))
    assert (result.reward, result.messages[0].content) == (0.0, "done")
    assert "DBBENCH_EVALUATED" not in os.environ
    assert threading.active_count() == num_threads


def test_sec_05_no_statement_reaches_the_grading():
    """The right tables are known by their hash, which is nowhere in the database."""
    dbbench = family(FamilyOptions())
    index = next(i for i in range(50) if dbbench.problem(dbbench.task("train", i)).is_change)
    problem = dbbench.problem(dbbench.task("train", index))
    env = dbbench.make(dbbench.task("train", index))
    messages = list(env.reset())
    for statement in (
        "SHOW TABLES",
        "SELECT * FROM people",
        "SELECT * FROM sqlite_master",
        "SELECT table_name FROM information_schema.tables",
        "CREATE VIEW people2 AS SELECT * FROM people",
        "ALTER TABLE people RENAME TO old",
        "CREATE VIEW people AS SELECT * FROM old",
    ):
        messages += env.step(Action(calls=(sql_call(statement),))).messages
    assert all(problem.answer_hash not in message.content for message in messages)
    assert env.step(Action(calls=(commit_call((problem.answer_hash,)),))).reward == 0.0
