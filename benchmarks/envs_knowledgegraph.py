"""The knowledge graph with seven tools: gold programs over witness graphs, and whole episodes of them.

gold_ms: a gold program's answers, from nothing but its graph. build_ms: the graph itself, once a question.
"""

from collections.abc import Mapping
from time import process_time

from agentrl_jax.env import FamilyOptions
from benchmarks.env_cases import CaseOptions, EnvCase, expert_turns, steps_per_cpu_s
from envs.kg_tools.tasks import make_family


def measure(options: CaseOptions) -> Mapping[str, float]:
    """The published questions, or generated ones of the hardest level where there is no data."""
    kg = make_family(FamilyOptions(data=options.data, level=1 if options.data else 3))
    num_tasks = 40 if options.is_quick else 150
    begun_s = process_time()
    problems = [kg.problem(kg.task("eval", index)) for index in range(num_tasks)]
    built_s = process_time() - begun_s
    begun_s = process_time()
    for problem in problems:
        problem.backend().answers(problem.gold)
    answered_s = process_time() - begun_s
    played = expert_turns(kg, num_tasks, noise=0.0)
    return {
        "gold_ms": 1e3 * answered_s / num_tasks,
        "build_ms": 1e3 * built_s / num_tasks,
        "steps_per_cpu_s": steps_per_cpu_s(kg, played, least_s=0.1 if options.is_quick else 1.0),
    }


CASES = (
    EnvCase(
        name="knowledgegraph",
        units={"gold_ms": "ms", "build_ms": "ms", "steps_per_cpu_s": "1/s"},
        measure=measure,
    ),
)
