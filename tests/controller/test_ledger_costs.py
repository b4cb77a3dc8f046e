"""What a group costs the ledger does not grow with how many are under way."""

import pytest
import trio

from agentrl_jax.controller.ledger import Ledger
from tests.controller.ledger_book import Book


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Whose due dates ledgers have looked at."""
    found, due = [], Ledger._due

    def noted(self: Ledger, entry: object) -> int:
        found.append(entry)
        return due(self, entry)  # type: ignore[arg-type]

    monkeypatch.setattr(Ledger, "_due", noted)
    return found


async def test_groups_that_end_while_an_admission_waits_cost_it_nothing(
    autojump_clock: trio.testing.MockClock, looks: list[object]
) -> None:
    sizes = {"min_groups_per_batch": 10, "max_groups_per_batch": 10}
    book = Book(max_staleness=4, task_max_staleness={"urgent": 0}, **sizes)
    await book.admit(*["urgent"] * 10, *"a" * 20)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(book.ledger.admissible, "urgent")
        await trio.testing.wait_all_tasks_blocked()
        looks.clear()
        for group_id in range(30):
            book.settle(group_id)
            await trio.testing.wait_all_tasks_blocked()
        assert looks == []
        await book.step()


async def test_a_group_costs_as_much_in_a_run_of_a_thousand(
    autojump_clock: trio.testing.MockClock, looks: list[object]
) -> None:
    """How many due dates are looked at for each group, where all others end one by one while a straggler is awaited."""

    async def looks_per_group(size: int) -> float:
        looks.clear()
        book = Book(min_groups_per_batch=size, max_groups_per_batch=size, max_staleness=2)
        await book.admit(*"a" * 3 * size)
        for step in range(2):
            book.settle(*range(1 + step * size, 1 + (step + 1) * size))
            await book.ledger.collect()
            book.ledger.finish_step(step + 1)
            await book.admit(*"a" * size)
        async with book.collecting() as found:
            for group_id in (*range(1 + 2 * size, 5 * size), 0):
                assert not found
                book.settle(group_id)
                await trio.testing.wait_all_tasks_blocked()
        return len(looks) / len(book.admitted)

    assert await looks_per_group(300) < 3 * await looks_per_group(10)
