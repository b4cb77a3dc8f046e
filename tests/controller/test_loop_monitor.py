"""The loop monitor measures lateness and nothing else."""

from functools import partial

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from agentrl_jax.controller.monitor import LoopMonitor, LoopStatistics
from agentrl_jax.errors import ConfigError
from agentrl_jax.testing.virtual import run_virtual


async def lags(jumps: list[float], monitor: LoopMonitor, clock: MockClock) -> LoopStatistics:
    """Let the monitor wake once per jump of the clock."""
    async with trio.open_nursery() as nursery:
        await nursery.start(monitor.run)
        for jump in jumps:
            await trio.testing.wait_all_tasks_blocked()
            clock.jump(jump)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    return monitor.statistics()


async def test_before_the_first_wake_there_is_no_lag() -> None:
    expected = LoopStatistics(num_wakes=0, num_samples=0, lag_p50_s=0.0, lag_p99_s=0.0, lag_max_s=0.0)
    assert LoopMonitor().statistics() == expected


async def test_lags_by_hand(mock_clock: MockClock) -> None:
    # Due 0.1 s after each wake: jumps of 0.1, 0.3 and 1.1 s are 0, 0.2 and 1 s late.
    found = await lags([0.1, 1.1, 0.3], LoopMonitor(), mock_clock)
    assert (found.num_wakes, found.num_samples) == (3, 3)
    assert found.lag_p50_s == pytest.approx(0.2)
    assert found.lag_p99_s == found.lag_max_s == pytest.approx(1.0)


async def test_a_long_block_counts_once(mock_clock: MockClock) -> None:
    found = await lags([60.1], LoopMonitor(), mock_clock)
    assert found.num_wakes == 1
    assert found.lag_max_s == pytest.approx(60.0)


async def test_the_window_forgets(mock_clock: MockClock) -> None:
    found = await lags([5.1, 0.1, 0.1], LoopMonitor(window=2), mock_clock)
    assert (found.num_wakes, found.num_samples) == (3, 2)
    assert found.lag_max_s == pytest.approx(0.0, abs=1e-9)


@given(st.lists(st.floats(0.1, 3.0), min_size=1, max_size=40))
def test_percentiles_are_ordered_and_were_measured(jumps: list[float]) -> None:
    clock = MockClock()
    found = trio.run(partial(lags, jumps, LoopMonitor(), clock), clock=clock)
    measured = sorted(jump - 0.1 for jump in jumps)
    assert found.lag_p50_s <= found.lag_p99_s <= found.lag_max_s == pytest.approx(measured[-1], abs=1e-6)
    at_most_p50 = sum(lag <= found.lag_p50_s + 1e-6 for lag in measured)
    assert at_most_p50 >= len(jumps) / 2


def test_an_idle_loop_is_never_late_and_is_asked_ten_times_a_second() -> None:
    async def main() -> LoopStatistics:
        monitor = LoopMonitor()
        async with trio.open_nursery() as nursery:
            await nursery.start(monitor.run)
            await trio.sleep(10.05)
            nursery.cancel_scope.cancel()
        return monitor.statistics()

    found = run_virtual(main)
    assert found.num_wakes == 100
    assert found.lag_max_s == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("wrong", [{"interval_s": 0.05}, {"interval_s": float("nan")}, {"window": 0}])
def test_a_monitor_that_would_be_the_load_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="a monitor's"):
        LoopMonitor(**wrong)  # type: ignore[arg-type]
