"""Whoever stops a benchmark does not wait for the simulations that are under way."""

import time
from collections.abc import Iterator
from contextlib import closing
from multiprocessing import active_children

import pytest

from benchmarks.service_runs import workers

LONG_S = 90.0
"""Of a simulation that nobody waits for."""


def test_an_interruption_ends_the_workers_at_once() -> None:
    def interrupted() -> None:
        with workers(2) as pool:
            pool.submit(abs, -1.0).result()
            for _ in range(4):
                pool.submit(time.sleep, LONG_S)
            raise KeyboardInterrupt

    others, begun = set(active_children()), time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert time.monotonic() - begun < LONG_S / 2
    assert set(active_children()) <= others


def test_so_does_whoever_asks_for_no_more() -> None:
    def results() -> Iterator[float]:
        with workers(2) as pool:
            yield pool.submit(abs, -1.0).result()
            yield pool.submit(time.sleep, LONG_S).result()

    others, begun = set(active_children()), time.monotonic()
    with closing(results()) as found:
        assert next(found) == 1.0
    assert time.monotonic() - begun < LONG_S / 2
    assert set(active_children()) <= others
