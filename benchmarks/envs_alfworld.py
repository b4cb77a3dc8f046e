"""ALFWorld: household games, stepped with all that a turn needs (matching, observation, available actions)."""

import gc
import tracemalloc
from collections.abc import Mapping
from itertools import count
from time import process_time

from agentrl_jax.env import Action, FamilyOptions
from benchmarks.env_cases import CaseOptions, EnvCase, expert_turns, steps_per_cpu_s
from envs.alfworld import family
from envs.alfworld.calls import action_call

_fresh = count()


def measure(options: CaseOptions) -> Mapping[str, float]:
    """Games of valid_unseen, or generated ones of the hardest level where there is no data."""
    level = 2 if options.data else 3
    alfworld = family(FamilyOptions(data=options.data, level=level))
    num_games = 20 if options.is_quick else 100
    begun_s = process_time()
    for index in range(num_games):
        alfworld.make(alfworld.task("eval", index)).reset()
    made_s = process_time() - begun_s
    played = expert_turns(alfworld, num_games, noise=0.3)
    return {
        "steps_per_cpu_s": steps_per_cpu_s(alfworld, played, least_s=0.1 if options.is_quick else 1.0),
        "start_ms": 1e3 * made_s / num_games,
        "kb_per_live_game": _kilobytes(FamilyOptions(data=options.data, level=level, seed=1), num_games // 2),
    }


def _kilobytes(options: FamilyOptions, num_games: int) -> float:
    """Of one live game after a turn, its parsed problem included, when no other session plays it."""
    alfworld = family(options)
    # Games that no repeat has played: parsed ones are kept for a while.
    tasks = [alfworld.task("train", next(_fresh)) for _ in range(num_games + 1)]
    alfworld.make(tasks.pop()).reset()
    gc.collect()
    tracemalloc.start()
    alive = [alfworld.make(task) for task in tasks]
    for env in alive:
        env.reset()
        env.step(Action(calls=(action_call("look"),)))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size / len(alive) / 1024


CASES = (
    EnvCase(
        name="alfworld", units={"steps_per_cpu_s": "1/s", "start_ms": "ms", "kb_per_live_game": "KiB"}, measure=measure
    ),
)
