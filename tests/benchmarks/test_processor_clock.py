"""The processor clock: waiting takes no time at all, computing takes what it takes, and deadlines keep their order."""

import time

import trio

from benchmarks.processor_clock import ProcessorClock


def compute(seconds: float) -> None:
    begun = time.process_time()
    while time.process_time() - begun < seconds:
        pass


def test_waiting_is_skipped_and_computing_counts() -> None:
    async def main() -> float:
        begun = trio.current_time()
        await trio.sleep(3600.0)
        compute(0.2)
        return trio.current_time() - begun

    begun = time.process_time()
    passed = trio.run(main, clock=ProcessorClock())
    assert 3600.2 <= passed < 3600.2 + 0.3
    assert time.process_time() - begun < 1.0


def test_a_task_that_computes_makes_others_late() -> None:
    lags = []

    async def sleeper(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        due = trio.current_time() + 0.1
        task_status.started()
        await trio.sleep_until(due)
        lags.append(trio.current_time() - due)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(sleeper)
            compute(0.3)

    trio.run(main, clock=ProcessorClock())
    assert 0.15 < lags[0] < 0.5
