"""The journal as the training loop uses it: what waits for the disk waits in a thread."""

from collections.abc import Mapping
from dataclasses import dataclass

import trio

from agentrl_jax.controller.group import AdmittedGroup
from agentrl_jax.controller.journal import Journal
from agentrl_jax.controller.ledger import Ending
from agentrl_jax.types import Group


@dataclass(frozen=True, slots=True)
class ThreadedJournal:
    """Implements `ports.JournalPort`. Threads are awaited, never abandoned."""

    journal: Journal

    def admitted(self, group: AdmittedGroup) -> None:
        self.journal.admitted(group.group_id, group.task, group.start_version, group.task_position)

    def started(self, group: AdmittedGroup) -> None:
        self.journal.started(group.group_id, group.start_version)

    async def completed(self, group: Group) -> None:
        await trio.to_thread.run_sync(self.journal.completed, group)

    def ended(self, group_id: int, how: Ending) -> None:
        self.journal.ended(group_id, how)

    async def publishing(self, version: int) -> None:
        await trio.to_thread.run_sync(self.journal.published, version)

    def consumed(self, step: int, version: int, ages: Mapping[int, int]) -> None:
        self.journal.consumed(step, version, ages)
