"""Several simulated runs at a time. Their order and their number change nothing: a case decides its outcome."""

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context

from benchmarks.service_cases import Case, Outcome
from benchmarks.service_model import ServiceModel, Tail
from benchmarks.service_world import simulate


def simulate_all(cases: Sequence[Case], model: ServiceModel, tail: Tail) -> list[Outcome]:
    """`simulate` of each case, in their order, as many at a time as there are cores for this process."""
    num_cores = min(len(cases), len(os.sched_getaffinity(0)))
    if num_cores < 2:
        return [simulate(case, model, tail) for case in cases]
    with ProcessPoolExecutor(num_cores, mp_context=get_context("spawn")) as pool:
        return list(pool.map(simulate, cases, repeat(model), repeat(tail)))
