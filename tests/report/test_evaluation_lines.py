"""Evaluations and gains as lines of a terminal: columns stay columns, however long an environment's name is."""

import pytest

from agentrl_jax.algo.metrics import TaskMetrics
from agentrl_jax.evaluation import Evaluation
from agentrl_jax.report.progress import evaluation_lines, gain_lines


def evaluations(successes: int, *envs: str) -> dict[str, Evaluation]:
    metrics = TaskMetrics(num_episodes=16, num_valid=16, num_successes=successes)
    return {env: Evaluation(env=env, mode="sampled", metrics=metrics, versions=(0, 0)) for env in envs}


@pytest.mark.parametrize(("envs", "column"), [(("kg", "alfworld"), 22), (("kg", "knowledgegraph"), 24)])
def test_columns_stand_under_each_other(envs: tuple[str, ...], column: int) -> None:
    before, after = evaluations(4, *envs), evaluations(8, *envs)
    for line in (*evaluation_lines("before ", before.values()), *gain_lines(before, after)):
        assert line.index("sampled") == column


def test_what_they_say() -> None:
    before, after = evaluations(4, "kg"), evaluations(8, "kg")
    assert evaluation_lines("after  ", after.values()) == [
        "after    kg           sampled  success 50.0 % [28.0, 72.0] (8/16)"
    ]
    assert gain_lines(before, after) == ["gain     kg           sampled  +25.0 points [-7.9, +51.5]"]
