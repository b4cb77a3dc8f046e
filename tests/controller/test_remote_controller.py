"""Sessions on remote workers, in virtual time: places, ends, losses, restarts."""

from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from agentrl_jax.controller.remote_controller import RemoteController, open_remote_controller
from agentrl_jax.controller.wire_types import WireProblem
from agentrl_jax.controller.workers import WorkerStatus
from agentrl_jax.engines.http import HttpResponse
from agentrl_jax.testing.virtual import run_virtual
from tests.controller.remote_world import (
    CONFIG,
    SAY,
    FakeRemote,
    Loss,
    beat,
    controlling,
    num_taken,
    play,
    problem_of,
)

START_FAILED, INTERACT_FAILED = "failed to start sample", "failed to interact with session"


async def test_a_session_from_start_to_end(autojump_clock: MockClock) -> None:
    worker = FakeRemote()
    async with controlling(worker) as controller:
        record, answer = await controller.start("three", 7)
        assert (answer.status, answer.messages[0].content, num_taken(controller)) == ("running", "index 7", 1)
        assert worker.sessions == {record.session_id: 7}
        for _ in range(2):
            assert (await controller.interact(record, SAY)).status == "running"
        last = await controller.interact(record, SAY)
        assert (last.status, last.reward, bytes(last.metric)) == ("completed", 0.5, b'{"score":0.25}')
        assert num_taken(controller) == 0
        gone = await problem_of(partial(controller.session, record.session_id))
        assert gone == (400, "session not found", "completed")
        counts = controller.book.counts("three")
        assert (counts.num_started, counts.num_turns, counts.ends) == (1, 3, Counter(completed=1))


async def test_starts_at_ten_times_the_capacity_are_all_served(autojump_clock: MockClock) -> None:
    worker = FakeRemote(num_places=4)
    ended = []

    async def one(controller: RemoteController) -> None:
        ended.append(await play(controller))

    async with controlling(worker) as controller:
        async with trio.open_nursery() as nursery:
            for _ in range(40):
                nursery.start_soon(one, controller)
        assert (len(ended), worker.peak, num_taken(controller)) == (40, 4, 0)
        assert all(statuses[-1] == "completed" for statuses in ended)


async def test_with_refuse_a_start_without_a_place_fails_at_once(autojump_clock: MockClock) -> None:
    async with controlling(FakeRemote(num_places=1), config=replace(CONFIG, full="refuse")) as controller:
        await controller.start("three", 0)
        refused = await problem_of(partial(controller.start, "three", 1))
        assert refused == (400, "no workers available for task three", "full")


async def test_waiting_for_a_place_has_an_end(autojump_clock: MockClock) -> None:
    async with controlling(FakeRemote(num_places=1), config=replace(CONFIG, queue_s=30.0)) as controller:
        await controller.start("three", 0)
        begun = trio.current_time()
        refused = await problem_of(partial(controller.start, "three", 1))
        assert refused == (400, "no workers available for task three", "queue_timeout")
        assert trio.current_time() == pytest.approx(begun + 30.0)


@pytest.mark.parametrize(
    ("index", "custom", "sent"),
    [(0, None, "a"), (1, None, "b"), ("b", None, "b"), (-1, b'{"x":1}', -1), ("a", b'{"x":1}', "a")],
)
async def test_indices_are_mapped(
    index: int | str, custom: bytes | None, sent: int | str, autojump_clock: MockClock
) -> None:
    worker = FakeRemote()
    async with open_remote_controller() as controller:
        beat(controller, worker, indices=[-1, "a", "b"])
        await controller.start("three", index, custom)
        body = worker.bodies[-1]
        assert body["index"] == sent
        assert body.get("custom_task") == ({"x": 1} if sent == -1 else None)


@pytest.mark.parametrize(
    ("index", "custom", "message"),
    [
        (10, None, "task three does not support index 10"),
        ("0", None, "task three does not support index 0"),
        (-1, b"{}", "task three does not support index -1"),
    ],
)
async def test_what_is_not_served_is_refused(
    index: int | str, custom: bytes | None, message: str, autojump_clock: MockClock
) -> None:
    async with controlling(FakeRemote()) as controller:
        assert (await problem_of(partial(controller.start, "three", index, custom)))[:2] == (400, message)
        assert (await problem_of(partial(controller.start, "four", 0)))[1] == "task four does not exist"
        assert num_taken(controller) == 0


async def test_a_cancelled_sessions_place_is_free_once_its_worker_says_so(autojump_clock: MockClock) -> None:
    worker = FakeRemote()
    async with controlling(worker, gives_notice=False) as controller:
        record, _ = await controller.start("three", 0)
        controller.book.cancel(record)
        await trio.sleep(10.0)
        assert (num_taken(controller), worker.calls.count("cancel_with_notice")) == (1, 1)
        refused = await problem_of(partial(controller.interact, record, SAY))
        assert refused == (500, INTERACT_FAILED, "cancelling")
        controller.book.noticed(record.session_id)
        assert num_taken(controller) == 0
        controller.book.noticed(record.session_id)  # a second notice changes nothing
        with pytest.raises(WireProblem, match="session not found"):
            controller.book.noticed(5)


async def test_a_worker_that_cannot_cancel_with_notice_is_waited_for(autojump_clock: MockClock) -> None:
    def loses(endpoint: str, call: int) -> Loss:
        return "answer" if endpoint == "cancel_with_notice" else "none"

    worker = FakeRemote(loses=loses)
    async with controlling(worker, gives_notice=False) as controller:
        record, _ = await controller.start("three", 0)
        controller.book.cancel(record)
        await trio.sleep(19.0)
        assert num_taken(controller) == 1
        await trio.sleep(2.0)
        assert (num_taken(controller), worker.sessions) == (0, {})


async def test_a_busy_session_takes_no_second_turn(autojump_clock: MockClock) -> None:
    worker = FakeRemote(step_s=5.0)
    async with controlling(worker) as controller, trio.open_nursery() as nursery:
        record, _ = await controller.start("three", 0)
        nursery.start_soon(controller.interact, record, SAY)
        await trio.sleep(1.0)
        assert await problem_of(partial(controller.interact, record, SAY)) == (500, INTERACT_FAILED, "busy")
    assert worker.turns == {record.session_id: 1}


async def test_a_turn_that_never_reached_its_worker_is_sent_again(autojump_clock: MockClock) -> None:
    worker = FakeRemote()
    async with controlling(worker) as controller:
        record, _ = await controller.start("three", 0)
        seen = len(worker.calls)
        worker.loses = lambda endpoint, call: "request" if call < seen + 3 else "none"
        assert (await controller.interact(record, SAY)).status == "running"
        assert worker.turns == {record.session_id: 1}
        (entry,) = controller.roster.entries()
        assert entry.status is WorkerStatus.COMA  # until its next heartbeat
        await trio.sleep(8.0)
        assert entry.status is WorkerStatus.ALIVE


async def test_a_worker_that_cannot_be_reached_for_long_fails_the_turn_and_not_yet_the_session(
    autojump_clock: MockClock,
) -> None:
    worker = FakeRemote()
    async with controlling(worker) as controller:
        record, _ = await controller.start("three", 0)
        worker.loses = lambda endpoint, call: "request"
        failed = await problem_of(partial(controller.interact, record, SAY))
        assert failed == (500, INTERACT_FAILED, "worker_unreachable")
        worker.loses = lambda endpoint, call: "none"
        assert (await controller.interact(record, SAY)).status == "running"


async def test_a_lost_answer_ends_the_session_and_nothing_is_done_twice(autojump_clock: MockClock) -> None:
    worker = FakeRemote()
    async with controlling(worker) as controller:
        record, _ = await controller.start("three", 0)
        worker.loses = lambda endpoint, call: "answer" if endpoint == "interact" else "none"
        failed = await problem_of(partial(controller.interact, record, SAY))
        assert failed == (500, INTERACT_FAILED, "answer_lost")
        await trio.sleep(5.0)
        assert (worker.turns, worker.sessions, num_taken(controller)) == ({record.session_id: 1}, {}, 0)
        assert (await problem_of(partial(controller.session, record.session_id)))[2] == "answer_lost"


async def test_a_turn_that_takes_too_long_ends_as_env_timeout(autojump_clock: MockClock) -> None:
    worker = FakeRemote(step_s=50.0)
    async with controlling(worker, config=replace(CONFIG, interact_s=60.0)) as controller:
        record, _ = await controller.start("three", 0)
        worker.step_s = 100.0
        failed = await problem_of(partial(controller.interact, record, SAY))
        assert failed == (500, INTERACT_FAILED, "env_timeout")
        await trio.sleep(5.0)
        assert (worker.sessions, num_taken(controller)) == ({}, 0)


async def test_an_idle_session_expires(autojump_clock: MockClock) -> None:
    worker = FakeRemote()
    async with controlling(worker) as controller:
        record, _ = await controller.start("three", 0)
        await trio.sleep(299.0)
        assert (await controller.interact(record, SAY)).status == "running"  # its time begins anew
        await trio.sleep(299.0)
        assert worker.sessions
        await trio.sleep(2.0)
        assert (worker.sessions, num_taken(controller)) == ({}, 0)
        gone = await problem_of(partial(controller.session, record.session_id))
        assert gone == (400, "session not found", "session_expired")
        await trio.sleep(601.0)
        assert (await problem_of(partial(controller.session, record.session_id)))[2] == ""  # forgotten


async def test_a_start_whose_caller_leaves_leaves_no_session(autojump_clock: MockClock) -> None:
    for leaves_after_s in (0.005, 0.5, 3.0):  # on the way, while it starts, and while it waits for a place
        worker = FakeRemote(num_places=1)
        async with controlling(worker) as controller:
            if leaves_after_s == 3.0:
                await controller.start("three", 1)
            with trio.move_on_after(leaves_after_s):
                await controller.start("three", 0)
            await trio.sleep(5.0)
            expected = int(leaves_after_s == 3.0)
            assert (len(worker.sessions), num_taken(controller)) == (expected, expected)


async def test_a_caller_who_leaves_a_turn_undoes_nothing(autojump_clock: MockClock) -> None:
    worker = FakeRemote(num_turns=1)
    async with controlling(worker) as controller:
        record, _ = await controller.start("three", 0)
        with trio.move_on_after(0.5):
            await controller.interact(record, SAY, request_id="a")
        with pytest.raises(WireProblem) as caught:
            await controller.interact(record, SAY)
        assert caught.value.reason == "busy"
        answer = await controller.interact(record, SAY, request_id="a")
        assert (answer.status, answer.reward) == ("completed", 0.5)
        assert (worker.turns[record.session_id], num_taken(controller)) == (1, 0)


async def test_a_worker_that_is_full_against_expectation_is_asked_what_it_has(autojump_clock: MockClock) -> None:
    worker = FakeRemote(num_places=2)
    async with controlling(worker) as controller:
        worker.sessions = {3: 4, 5: 6}  # somebody else's
        worker.turns = {3: 0, 5: 0}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(controller.start, "three", 0)
            await trio.sleep(10.0)
            assert set(controller.book.store.live) == {3, 5}
            for record in list(controller.book.store.live.values()):
                controller.book.cancel(record)
        assert list(worker.sessions.values()) == [0]


async def test_a_session_that_its_worker_has_forgotten_is_over(autojump_clock: MockClock) -> None:
    worker = FakeRemote()
    async with controlling(worker) as controller:
        record, _ = await controller.start("three", 0)
        other, _ = await controller.start("three", 1)
        worker.sessions.clear()
        failed = await problem_of(partial(controller.interact, other, SAY))
        assert failed == (500, INTERACT_FAILED, "session_lost")
        await controller.roster.sync_all()
        assert (await problem_of(partial(controller.session, record.session_id)))[2] == "session_lost"
        assert num_taken(controller) == 0


async def test_sessions_of_a_worker_without_heartbeats_end_with_it(autojump_clock: MockClock) -> None:
    worker = FakeRemote()
    async with open_remote_controller() as controller:
        beat(controller, worker)
        record, _ = await controller.start("three", 0)
        (entry,) = controller.roster.entries()
        await trio.sleep(12.0)
        assert entry.status is WorkerStatus.COMA
        await trio.sleep(300.0)
        assert (controller.roster.entries(), worker.is_closed, entry.places.num_taken) == ([], True, 0)
        assert (await problem_of(partial(controller.session, record.session_id)))[2] == "worker_lost"
        assert controller.statistics()["three"].capacity == 0


async def test_a_turn_under_way_ends_when_its_worker_is_removed(autojump_clock: MockClock) -> None:
    worker = FakeRemote(step_s=5.0)
    async with open_remote_controller() as controller, trio.open_nursery() as nursery:
        beat(controller, worker, address="http://w0/api")
        record, _ = await controller.start("three", 0)
        found = []

        async def turn() -> None:
            found.append(await problem_of(partial(controller.interact, record, SAY)))

        nursery.start_soon(turn)
        await trio.sleep(1.0)
        # The same address serves another task now.
        beat(controller, FakeRemote(), name="other", address="http://w0/api")
        await trio.sleep(1.0)
        assert found == [(500, INTERACT_FAILED, "worker_lost")]
        assert {entry.worker.task.name for entry in controller.roster.entries()} == {"other"}


async def test_sessions_go_on_after_a_restart_of_the_controller(autojump_clock: MockClock) -> None:
    worker = FakeRemote(num_places=50)
    async with controlling(worker) as controller:
        before = [(await controller.start("three", index % 10))[0] for index in range(50)]
    ids = [record.session_id for record in before]
    done = []

    async def go_on(controller: RemoteController, session_id: int) -> None:
        record = await controller.session(session_id)  # before its worker has reported
        while (await controller.interact(record, SAY)).status == "running":
            pass
        done.append(session_id)

    async with open_remote_controller() as controller, trio.open_nursery() as nursery:
        for session_id in ids:
            nursery.start_soon(go_on, controller, session_id)
        await trio.sleep(7.0)
        assert not done
        worker.gives_notice = controller.book.noticed
        beat(controller, worker, address="http://w0/api")
        await trio.sleep(6.0)
        record, _ = await controller.start("three", 0)
        assert sorted(done) == ids
        assert record.session_id > max(ids)
        assert num_taken(controller) == 1


async def test_unknown_sessions_are_waited_for_only_shortly_after_a_start(autojump_clock: MockClock) -> None:
    async with open_remote_controller() as controller:
        beat(controller, FakeRemote())
        assert (await problem_of(partial(controller.session, 3)))[1] == "session not found"
        assert trio.current_time() == CONFIG.resume_s
        await problem_of(partial(controller.session, 3))
        await problem_of(partial(controller.session, controller.book.store.first_id + 5))
        assert trio.current_time() == CONFIG.resume_s


async def test_without_resuming_sessions_from_before_are_cancelled(autojump_clock: MockClock) -> None:
    worker = FakeRemote(sessions={7: 0}, turns={7: 0})
    async with controlling(worker, config=replace(CONFIG, resume_sessions=False)):
        await trio.sleep(1.0)
        assert "cancel_with_notice" in worker.calls


async def test_indices_are_read_once(autojump_clock: MockClock) -> None:
    num_read = 0

    def read() -> list[int | str]:
        nonlocal num_read
        num_read += 1
        return list(range(11_000))

    async with open_remote_controller() as controller:
        for number in range(30):
            controller.roster.heartbeat(
                "three",
                f"http://w{number % 3}",
                1,
                raw=b"[0,1,...]",
                read_indices=read,
                make_transport=FakeRemote,
            )
        assert num_read == 1
        with pytest.raises(WireProblem, match="task three already exists with different indices"):
            beat(controller, FakeRemote(), address="http://w9", indices=[1])


async def test_a_drained_worker_gets_no_new_sessions(autojump_clock: MockClock) -> None:
    first, second = FakeRemote(), FakeRemote()
    async with controlling(first, second) as controller:
        controller.book.pool.drain("http://w0/api")
        for _ in range(3):
            await controller.start("three", 0)
        assert (len(first.sessions), len(second.sessions)) == (0, 3)


async def test_a_worker_that_says_nonsense_fails_the_call(autojump_clock: MockClock) -> None:
    class Nonsense(FakeRemote):
        async def interact(self, session_id: int, messages: list[object]) -> object:  # type: ignore[override]
            await trio.lowlevel.checkpoint()
            return HttpResponse(*self.said)

        said: tuple[int, bytes] = (200, b"")

    worker = Nonsense()
    async with controlling(worker) as controller:
        record, _ = await controller.start("three", 0)
        for said, reason in [
            ((200, b"<html>"), "bad_answer"),
            ((200, b'{"env_out":{"status":3}}'), "bad_answer"),
            ((200, b'{"env_out":{"status":"running","messages":[]}}'), "no_messages"),
            ((500, b"Internal Server Error"), "worker_error"),
            ((400, b'{"detail":"Task Executing, please do not send new request."}'), "worker_error"),
        ]:
            worker.said = said
            assert await problem_of(partial(controller.interact, record, SAY)) == (500, INTERACT_FAILED, reason)
        assert num_taken(controller) == 1


@given(
    losses=st.lists(st.sampled_from(["none", "none", "request", "answer"]), min_size=1, max_size=12),
    patience=st.lists(st.sampled_from([0.4, 1.5, 4.0, 1000.0]), min_size=1, max_size=6),
    random_module=st.random_module(),
)
def test_whatever_is_lost_nothing_happens_twice_and_every_place_returns(
    losses: list[Loss], patience: list[float], random_module: object
) -> None:
    """Episodes whose callers leave at any time, over a network that loses anything."""

    async def main() -> None:
        worker = FakeRemote(num_places=2)
        worker.loses = lambda endpoint, call: "none" if endpoint == "get_sessions" else losses[call % len(losses)]

        async def episode(controller: RemoteController, seconds: float) -> None:
            record = None
            with trio.move_on_after(seconds):
                try:
                    record, answer = await controller.start("three", 0)
                    for turn in range(1, 4):
                        answer = await controller.interact(record, SAY)
                        assert worker.turns[record.session_id] == turn
                    assert answer.status == "completed"
                except WireProblem:
                    pass
            if record is not None:
                controller.book.cancel(record)

        async with controlling(worker) as controller:
            async with trio.open_nursery() as nursery:
                for seconds in patience:
                    nursery.start_soon(episode, controller, seconds)
            await trio.sleep(1000.0)
            assert num_taken(controller) == 0
            assert worker.peak <= 2
            assert all(turns <= 3 for turns in worker.turns.values())
            counts = controller.book.counts("three")
            assert counts.num_started == counts.ends.total()

    run_virtual(main)
