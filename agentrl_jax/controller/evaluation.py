"""Running a fixed list of tasks to their ends: evaluation. It holds no training permits."""

from collections.abc import Sequence

import trio

from agentrl_jax.controller.cancellation import unwrapped_errors
from agentrl_jax.controller.group import AdmittedGroup
from agentrl_jax.controller.ports import RunOneGroup
from agentrl_jax.types import Group, Task


async def run_tasks(
    tasks: Sequence[Task], run_one_group: RunOneGroup, *, version: int, max_concurrent: int
) -> tuple[Group, ...]:
    """Return one group per task, in the order of `tasks`, whatever its episodes ended as.

    At most `max_concurrent` groups run at a time. Group ids are the positions in `tasks`, so that the seeds of an
    evaluation do not depend on when it runs. Every task is accounted for: a failed episode is a trajectory too.
    """
    groups: dict[int, Group] = {}
    slots = trio.Semaphore(max_concurrent)

    async def run_one(position: int) -> None:
        try:
            groups[position] = await run_one_group(
                AdmittedGroup(group_id=position, task=tasks[position], start_version=version)
            )
        finally:
            slots.release()

    with unwrapped_errors():
        async with trio.open_nursery() as nursery:
            for position in range(len(tasks)):
                await slots.acquire()
                nursery.start_soon(run_one, position)
    return tuple(groups[position] for position in range(len(tasks)))
