"""The ledger by hand: due dates, stragglers, ends, and what a step may leave behind."""

import pytest
import trio

from agentrl_jax.controller.ledger import EndedGroups, Ledger
from agentrl_jax.errors import ConfigError, NoProgressError
from agentrl_jax.types import EpisodeEnd
from tests.controller.ledger_book import Book, ids_of, make_config


async def with_straggler(**changes: object) -> Book:
    """At version 1, where group 0 is the only one of version 0 and has age 1; group 3 is there besides."""
    book = Book(**changes)
    await book.admit("slow", "a", "a", "a")
    book.settle(1, 2)
    assert await book.step() == [1, 2]
    return book


async def test_a_batch_is_every_complete_group_oldest_first(autojump_clock: trio.testing.MockClock) -> None:
    book = Book()
    await book.admit("a", "a", "a", "a")
    book.settle(3)
    assert await book.blocks(book.ledger.collect)  # one is not enough
    book.settle(0, 2)
    assert await book.step() == [0, 2, 3]
    assert book.ledger.open_tasks == (book.admitted[1].task,)
    assert book.admission.statistics().num_held == 1


async def test_what_does_not_fit_stays_for_the_next_step(autojump_clock: trio.testing.MockClock) -> None:
    book = Book(max_groups_per_batch=3, max_staleness=2)
    await book.admit(*"aaaaa")
    book.settle(4, 3, 2, 1, 0)
    assert await book.step() == [0, 1, 2]
    assert await book.step() == [3, 4]


async def test_permits_come_back_after_the_publish_and_not_before(autojump_clock: trio.testing.MockClock) -> None:
    book = Book(max_staleness=0)
    await book.admit("a", "a")
    book.settle(0, 1)
    batch = await book.ledger.collect()
    assert (len(batch.groups), batch.ages) == (2, (0, 0))
    assert book.admission.statistics().num_free == 0
    assert book.ledger.statistics().num_consumed == 2
    book.ledger.finish_step(1)
    assert book.admission.statistics().num_free == 2


async def test_wait_holds_the_step_until_the_straggler_is_in_it(autojump_clock: trio.testing.MockClock) -> None:
    book = await with_straggler()
    await book.admit("a", "a")
    book.settle(3, 4, 5)
    # Group 0 has age 1 = max_staleness, so that no step may start without it.
    async with book.collecting() as found:
        await trio.sleep(7.0)
        assert not found
        book.settle(0)
    assert ids_of(found[0]) == [0, 3, 4, 5]
    assert found[0].ages == (1, 1, 0, 0)
    assert found[0].straggler_wait_s == {"slow": 7.0}


@pytest.mark.parametrize("end", ["dropped", "cut off"])
async def test_a_straggler_that_comes_to_nothing_holds_no_step(
    end: str, autojump_clock: trio.testing.MockClock
) -> None:
    book = await with_straggler()
    await book.admit("a")
    book.settle(3, 4)
    async with book.collecting() as found:
        await trio.sleep(7.0)
        if end == "dropped":
            book.settle(0, end=EpisodeEnd.ENV_ERROR)
        else:
            book.ledger.abandon(0)
    assert ids_of(found[0]) == [3, 4]
    assert found[0].straggler_wait_s == {"slow": 7.0}


async def test_a_straggler_that_starts_later_after_all_is_not_awaited(autojump_clock: trio.testing.MockClock) -> None:
    book = await with_straggler()
    await book.admit("a", "a")
    book.settle(3, 4)
    async with book.collecting() as found:
        book.admitted[0].is_waiting = True
        book.settle(5)
    assert ids_of(found[0]) == [3, 4, 5]


async def test_waiting_for_enough_groups_is_not_a_straggler_wait(autojump_clock: trio.testing.MockClock) -> None:
    book = Book()
    await book.admit("a", "a")
    async with book.collecting() as found:
        await trio.sleep(7.0)
        book.settle(0, 1)
    assert found[0].straggler_wait_s == {}


async def test_cancel_steps_without_the_straggler(autojump_clock: trio.testing.MockClock) -> None:
    book = await with_straggler(stragglers="cancel")
    tripped = [admitted.switch.is_tripped for admitted in book.admitted]
    assert tripped == [False] * 4  # group 0 has age 0: it may still be consumed from version 1
    await book.admit("a")
    book.settle(3, 4)
    assert await book.step() == [3, 4]
    assert book.admitted[0].switch.is_tripped
    assert book.admission.statistics().num_held == 1  # until its sessions are closed
    book.settle(0, end=EpisodeEnd.CANCELLED)
    assert book.admission.statistics().num_held == 0
    assert book.ledger.statistics().num_cancelled == 1
    ended = book.ledger.drain_ended()
    assert (ended.dropped, [group.group_id for group in ended.cancelled]) == ([], [0])
    assert book.ledger.drain_ended() == EndedGroups()


async def test_an_env_with_its_own_bound_is_not_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    book = Book(task_max_staleness={"slow": 3})
    await book.admit("slow", "a", "a")
    book.settle(1, 2)
    assert await book.step() == [1, 2]
    await book.admit("a", "a")
    book.settle(3, 4)
    assert await book.step() == [3, 4]  # version 1
    await book.admit("a", "a")
    book.settle(5, 6)
    assert await book.step() == [5, 6]  # version 2
    await book.admit("a", "a")
    book.settle(7, 8)
    assert await book.blocks(book.ledger.collect)  # version 3: its age is 3
    book.settle(0)
    assert await book.step() == [0, 7, 8]


async def test_the_most_urgent_go_first_when_a_batch_is_full(autojump_clock: trio.testing.MockClock) -> None:
    book = Book(max_groups_per_batch=2, task_max_staleness={"urgent": 0})
    await book.admit("a", "a", "urgent", "urgent")
    book.settle(0, 1, 2, 3)
    assert await book.step() == [2, 3]
    assert await book.step() == [0, 1]


async def test_no_group_is_admitted_that_could_not_be_consumed_in_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    book = Book(max_groups_per_batch=2, task_max_staleness={"urgent": 0})
    await book.admit("urgent", "urgent")
    assert await book.blocks(lambda: book.ledger.admissible("urgent"))  # only two fit into this version's batch
    assert not await book.blocks(lambda: book.ledger.admissible("a"))
    book.settle(0, 1)
    await book.ledger.collect()
    assert await book.blocks(lambda: book.ledger.admissible("urgent"))  # this step has begun without it
    book.ledger.finish_step(1)
    assert not await book.blocks(lambda: book.ledger.admissible("urgent"))


async def test_a_small_batch_limit_cannot_make_groups_overdue(autojump_clock: trio.testing.MockClock) -> None:
    # Four slow groups of version 0, batches of two: a third step of fast groups would leave four due at once.
    book = Book(max_groups_per_batch=2, max_staleness=2)
    await book.admit(*"aaaaaa")
    book.settle(4, 5)
    assert await book.step() == [4, 5]  # version 0: four left, due by 2, two steps to come
    await book.admit(*"aa")
    book.settle(6, 7)
    assert await book.blocks(book.ledger.collect)  # version 1: four left would not fit into step 2
    book.settle(0, 1)
    assert await book.step() == [0, 1]
    book.settle(2, 3)
    assert await book.step() == [2, 3]
    assert await book.step() == [6, 7]


async def test_a_group_that_waits_for_places_grows_no_staler(autojump_clock: trio.testing.MockClock) -> None:
    # Due by 1, were its age counted from version 0, at which it was admitted.
    book = Book(max_staleness=1)
    await book.admit(*"aaaa")
    book.admitted[3].is_waiting = True
    book.settle(0, 1)
    assert await book.step() == [0, 1]
    await book.admit(*"aa")
    book.settle(2, 4)
    assert await book.step() == [2, 4]  # version 1: it has nothing yet that could be too old
    book.admitted[3].is_waiting = False
    book.ledger.start(book.admitted[3])
    assert book.admitted[3].start_version == 2
    await book.admit("a")
    book.settle(5, 6)
    assert await book.step() == [5, 6]  # 2: it may be consumed from 3 as well
    await book.admit(*"aa")
    book.settle(7, 8)
    assert await book.blocks(book.ledger.collect)  # 3: now it is due
    book.settle(3)
    batch = await book.ledger.collect()
    assert (batch.groups[0].group_id, batch.ages[0]) == (3, 1)


@pytest.mark.parametrize("version", [0, 1])
async def test_an_admission_that_a_step_has_shut_out_goes_on_after_it(
    version: int, autojump_clock: trio.testing.MockClock
) -> None:
    """No other group begins or ends then; after a step that was not finite, the version is the same too."""
    book = Book(max_groups_per_batch=2, task_max_staleness={"urgent": 0})
    await book.admit("urgent", "urgent")
    book.settle(0, 1)
    await book.ledger.collect()
    admitted = trio.Event()

    async def admit() -> None:
        await book.admit("urgent")
        admitted.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(admit)
        await trio.testing.wait_all_tasks_blocked()
        assert not admitted.is_set()
        book.ledger.finish_step(version)
        with trio.fail_after(1.0):
            await admitted.wait()


async def test_a_step_that_was_not_finite_keeps_the_version(autojump_clock: trio.testing.MockClock) -> None:
    book = Book(max_staleness=0)
    await book.admit("a", "a")
    book.settle(0, 1)
    await book.ledger.collect()
    book.ledger.finish_step(0)
    assert (book.ledger.version, book.admission.statistics().num_free) == (0, 2)
    await book.admit("a")
    assert book.admitted[2].start_version == 0


async def test_a_group_ends_exactly_once(autojump_clock: trio.testing.MockClock) -> None:
    book = Book()
    await book.admit("a", "a")
    book.settle(0)
    with pytest.raises(RuntimeError, match="exactly once"):
        book.settle(0)
    book.settle(1, end=EpisodeEnd.ENV_ERROR)
    for group_id in (1, 5):
        with pytest.raises(RuntimeError, match="exactly once"):
            book.ledger.abandon(group_id)
    book.ledger.close()
    statistics = book.ledger.statistics()
    assert (statistics.num_admitted, statistics.num_dropped, statistics.num_cancelled) == (2, 1, 1)
    assert book.admission.statistics().num_held == 0


async def test_a_group_without_a_valid_member_is_dropped_at_once(autojump_clock: trio.testing.MockClock) -> None:
    book = Book(max_consecutive_failures=3)
    await book.admit("a", "a", "a", "a")
    book.settle(0, 1, end=EpisodeEnd.ENGINE_ERROR)
    assert book.admission.statistics().num_held == 2
    book.settle(2)  # a success in between starts the count anew
    await book.admit("a", "a")
    book.settle(3, 4, end=EpisodeEnd.ENV_TIMEOUT)
    message = (
        r"3 groups in a row of env 'a' had no valid member, most often because of env_timeout "
        r"\(episodes: env_timeout 4, env_error 2\)\. The last group, of task a/train/5/0"
    )
    with pytest.raises(NoProgressError, match=message):
        book.settle(5, end=EpisodeEnd.ENV_ERROR)
    ended = book.ledger.drain_ended()
    assert [group.group_id for group in ended.dropped] == [0, 1, 3, 4, 5]
    assert ended.num_no_signal == 0


async def test_failures_are_counted_by_env(autojump_clock: trio.testing.MockClock) -> None:
    book = Book(max_consecutive_failures=3)
    for good in (0, 2):
        await book.admit("good", "broken")
        book.settle(good + 1, end=EpisodeEnd.ENV_ERROR)
        book.settle(good)  # a success of another env, which shows nothing about the broken one
    await book.step()
    await book.admit("broken")
    with pytest.raises(NoProgressError, match="3 groups in a row of env 'broken' had no valid member"):
        book.settle(4, end=EpisodeEnd.ENV_ERROR)


def test_versions_never_go_back() -> None:
    with pytest.raises(RuntimeError, match="never go back"):
        Ledger(make_config(), initial_version=3).finish_step(2)


@pytest.mark.parametrize(
    "changes",
    [
        {"group_size": 1},
        {"min_groups_per_batch": 0},
        {"max_staleness": -1},
        {"max_groups_per_batch": 1},
        {"task_max_staleness": {"a": -1}},
        {"stragglers": "ignore"},
        {"max_consecutive_failures": 0},
        {"max_fruitless_steps": 0},
    ],
)
def test_impossible_rollout_configs_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        make_config(**changes)


def test_permits_and_bounds_follow_from_the_config() -> None:
    config = make_config(min_groups_per_batch=4, max_staleness=2, task_max_staleness={"slow": 5})
    assert (config.num_permits, config.batch_capacity) == (12, 12)
    assert make_config(max_groups_per_batch=3).batch_capacity == 3
    assert (config.staleness_bound("slow"), config.staleness_bound("other")) == (5, 2)
