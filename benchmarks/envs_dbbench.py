"""dbbench: sessions on SQLite in memory, from making the env to closing it."""

from collections.abc import Mapping
from contextlib import closing
from statistics import fmean
from time import process_time

from agentrl_jax.env import FamilyOptions
from benchmarks.env_cases import CaseOptions, EnvCase, expert_turns, steps_per_cpu_s
from envs.dbbench import family


def measure(options: CaseOptions) -> Mapping[str, float]:
    """The published tasks, or generated ones of level 2 where there is no data.

    first_session_ms: of a task that no other session has played, problem and statements included. session_ms: the mean
    over a group of eight.
    """
    dbbench = family(FamilyOptions(data=options.data, level=1 if options.data else 2))
    played = expert_turns(dbbench, 30 if options.is_quick else 300, noise=0.0)
    # What it imports is there if the family could be made.
    from envs.dbbench.bridge import translate
    from envs.dbbench.sqlite import image_of

    translate.cache_clear()
    image_of.cache_clear()
    first: list[float] = []
    later: list[float] = []
    for index, turns in played:
        task = dbbench.task("eval", index)
        for costs in (first, later):
            begun_s = process_time()
            with closing(dbbench.make(task)) as env:
                env.reset()
                for turn in turns:
                    env.step(turn)
            costs.append(process_time() - begun_s)
    return {
        "session_ms": 1e3 * (fmean(first) + 7 * fmean(later)) / 8,
        "first_session_ms": 1e3 * fmean(first),
        "steps_per_cpu_s": steps_per_cpu_s(dbbench, played, least_s=0.1 if options.is_quick else 1.0),
    }


CASES = (
    EnvCase(
        name="dbbench",
        units={"session_ms": "ms", "first_session_ms": "ms", "steps_per_cpu_s": "1/s"},
        measure=measure,
    ),
)
