"""Several simulated runs at a time. Their order and their number change nothing: a case decides its outcome."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, get_context

from benchmarks.service_cases import Case, Outcome
from benchmarks.service_model import ServiceModel, Tail
from benchmarks.service_world import simulate


@contextmanager
def workers(num_cases: int) -> Iterator[ProcessPoolExecutor]:
    """As many processes as there are cores for them. Whoever leaves by an exception does not wait for their work."""
    num_cores = min(num_cases, len(os.sched_getaffinity(0)))
    others = set(active_children())
    with ProcessPoolExecutor(num_cores, mp_context=get_context("spawn")) as pool:
        try:
            yield pool
        except BaseException:
            for process in set(active_children()) - others:
                process.terminate()
            raise


def simulate_all(cases: Sequence[Case], model: ServiceModel, tail: Tail) -> list[Outcome]:
    """`simulate` of each case, in their order, as many at a time as there are cores for this process."""
    if min(len(cases), len(os.sched_getaffinity(0))) < 2:
        return [simulate(case, model, tail) for case in cases]
    with workers(len(cases)) as pool:
        begun = [pool.submit(simulate, case, model, tail) for case in cases]
        return [outcome.result() for outcome in begun]
