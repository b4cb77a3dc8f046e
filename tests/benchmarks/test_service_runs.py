"""Whoever stops a benchmark does not wait for the simulations that are under way."""

import time
from collections.abc import Iterator
from multiprocessing import active_children

import pytest

from benchmarks.service_runs import workers


def test_an_interruption_ends_the_workers_at_once() -> None:
    def interrupted() -> None:
        with workers(2) as pool:
            under_way = [pool.submit(time.sleep, 600.0) for _ in range(4)]
            while not any(future.running() for future in under_way):
                time.sleep(0.01)
            raise KeyboardInterrupt

    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert time.monotonic() - begun < 60.0
    assert not active_children()


def test_so_does_whoever_asks_for_no_more() -> None:
    def first() -> Iterator[float]:
        with workers(2) as pool:
            pool.submit(time.sleep, 600.0)
            yield pool.submit(abs, -1.0).result()

    begun = time.monotonic()
    results = first()
    assert next(results) == 1.0
    results.close()  # type: ignore[attr-defined]
    assert time.monotonic() - begun < 60.0
    assert not active_children()
