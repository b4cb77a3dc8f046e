"""A ledger with its permits, moved by hand."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from agentrl_jax.controller.admission import Admission
from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.controller.group import AdmittedGroup
from agentrl_jax.controller.ledger import CollectedBatch, Ledger
from agentrl_jax.types import EpisodeEnd, Group, Task
from tests.controller.ended_groups import make_group


def make_config(**changes: object) -> RolloutConfig:
    options: dict[str, object] = {"group_size": 2, "min_groups_per_batch": 2, "max_staleness": 1}
    return RolloutConfig(**(options | changes))  # type: ignore[arg-type]


class Book:
    """A ledger with its permits, and short ways to move groups through it."""

    def __init__(self, **changes: object) -> None:
        self.config = make_config(**changes)
        self.admission = Admission(self.config.num_permits)
        self.ledger = Ledger(self.config)
        self.admitted: list[AdmittedGroup] = []

    async def admit(self, *envs: str) -> None:
        for env in envs:
            permit = await self.admission.acquire()
            await self.ledger.admissible(env)
            task = Task(env=env, split="train", index=len(self.admitted), seed=0)
            self.admitted.append(self.ledger.admit(task, permit))

    def settle(self, *group_ids: int, end: EpisodeEnd = EpisodeEnd.COMPLETED) -> None:
        for group_id in group_ids:
            self.ledger.settle(ended_group(self.admitted[group_id], end))

    async def step(self) -> list[int]:
        batch = await self.ledger.collect()
        self.ledger.finish_step(self.ledger.version + 1)
        return ids_of(batch)

    async def blocks(self, call: Callable[[], object]) -> bool:
        with trio.move_on_after(1.0) as scope:
            await call()  # type: ignore[misc]
        return scope.cancelled_caught

    @asynccontextmanager
    async def collecting(self) -> AsyncIterator[list[CollectedBatch]]:
        """Collect while the body goes on, and a minute longer; the list gets the batch."""
        found: list[CollectedBatch] = []

        async def collect() -> None:
            found.append(await self.ledger.collect())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(collect)
            await trio.testing.wait_all_tasks_blocked()
            yield found
            nursery.cancel_scope.deadline = trio.current_time() + 60.0
        assert len(found) == 1


def ids_of(batch: CollectedBatch) -> list[int]:
    return [group.group_id for group in batch.groups]


def ended_group(admitted: AdmittedGroup, end: EpisodeEnd) -> Group:
    """Of two members: an infrastructure's end loses both."""
    rewards = (end, end) if end.is_infrastructure else (0.0, 1.0)
    return make_group(
        *rewards, task=admitted.task, group_id=admitted.group_id, num_turns=0, version=admitted.start_version
    )
