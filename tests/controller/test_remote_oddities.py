"""Workers and clients that do what one does not expect, and what must not come of it."""

import json
import re
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from agentrl_jax.controller.remote_env import RemoteSession
from agentrl_jax.controller.remote_messages import step_result
from agentrl_jax.controller.wire_types import SampleIndex, WireProblem, WorkerAnswer, decoded
from agentrl_jax.engines.http import HttpResponse
from tests.controller.remote_world import CONFIG, SAY, FakeRemote, beat, controlling, num_taken, problem_of

QUICK = replace(CONFIG, dead_after_s=60.0)


class AlwaysFull(FakeRemote):
    async def start_sample(self, index: SampleIndex, session_id: int, custom_task: Any = None) -> HttpResponse:
        await trio.lowlevel.checkpoint()
        return HttpResponse(406, b'{"detail":"Sample concurrency limit reached: 0"}')


async def test_a_place_whose_worker_is_lost_before_the_start_is_exchanged(autojump_clock: MockClock) -> None:
    first, second = FakeRemote(), FakeRemote()
    async with controlling(first, second, config=QUICK) as controller:
        session = RemoteSession(controller, "three", 0, ())
        await session.reserve()
        taken = [entry for entry in controller.roster.entries() if entry.places.num_taken]
        controller.book.pool.remove(taken[0].name)
        await session.start()
        assert len(controller.book.store.live) == 1
        await session.close()
        await trio.sleep(1.0)
        assert (num_taken(controller), controller.book.store.live) == (0, {})


@pytest.mark.parametrize(("full", "waits_s"), [("wait", CONFIG.queue_s), ("refuse", 0.0)])
async def test_a_worker_that_is_always_full_is_given_up(full: Any, waits_s: float, autojump_clock: MockClock) -> None:
    async with controlling(AlwaysFull(), config=replace(CONFIG, full=full)) as controller:
        begun = trio.current_time()
        refused = await problem_of(partial(controller.start, "three", 0))
        assert refused == (500, "failed to start sample", "worker_full")
        assert trio.current_time() - begun == pytest.approx(waits_s, abs=1.0)
        assert (num_taken(controller), controller.book.store.live) == (0, {})


async def test_a_heartbeat_that_is_refused_changes_nothing(autojump_clock: MockClock) -> None:
    def no_url() -> FakeRemote:
        raise WireProblem(400, "no URL", "invalid_address")

    async with controlling(FakeRemote()) as controller:
        record, _ = await controller.start("three", 0)
        with pytest.raises(WireProblem, match="indices must not be empty"):
            beat(controller, FakeRemote(), name="other", address="http://w0/api", indices=[])
        with pytest.raises(WireProblem, match="no URL"):
            controller.roster.heartbeat("other", "x", 1, raw=b"[1]", read_indices=lambda: [1], make_transport=no_url)
        assert set(controller.roster.tasks) == {"three"}
        assert controller.book.store.live == {record.session_id: record}
        # One that is right moves the worker to the other task, and ends its sessions.
        beat(controller, FakeRemote(), name="other", address="http://w0/api")
        assert [entry.worker.task.name for entry in controller.roster.entries()] == ["other"]
        assert controller.book.store.fate(record.session_id) == (record, "worker_lost")


@pytest.mark.parametrize("session_id", [1 << 53, 1 << 63, 0, -5])
async def test_an_id_that_cannot_be_ours_does_not_spoil_later_ones(session_id: int, autojump_clock: MockClock) -> None:
    worker = FakeRemote(sessions={session_id: 0}, turns={session_id: 0})
    async with controlling(worker) as controller:
        assert worker.sessions == {}  # it was cancelled
        record, _ = await controller.start("three", 0)
        assert record.session_id == controller.book.store.first_id


async def test_the_turn_that_ended_a_session_may_be_asked_for_again(autojump_clock: MockClock) -> None:
    worker = FakeRemote(num_turns=1)
    async with controlling(worker) as controller:
        record, _ = await controller.start("three", 0)
        with trio.move_on_after(0.5):
            await controller.interact(record, SAY, request_id="a")
        await trio.sleep(10.0)
        found = await controller.session(record.session_id, request_id="a")
        answer = await controller.interact(found, SAY, request_id="a")
        assert (answer.status, answer.reward, worker.turns[record.session_id]) == ("completed", 0.5, 1)
        for other in ("b", None):
            refused = await problem_of(partial(controller.session, record.session_id, request_id=other))
            assert refused == (400, "session not found", "completed")


@pytest.mark.parametrize(
    ("metric", "figures"),
    [
        (b'{"score":0.25,"turns":3,"won":true}', {"score": 0.25, "turns": 3.0, "won": 1.0}),
        (b'{"text":"x","list":[1],"none":null,"huge":1' + b"0" * 400 + b"}", {}),
        (b"null", {}),
        (b"[1]", {}),
        (b'"\\ud800"', {}),
    ],
)
def test_figures_beside_the_reward_reach_the_episode(metric: bytes, figures: dict[str, float]) -> None:
    answer = decoded(b'{"status":"completed","reward":1,"metric":' + metric + b"}", WorkerAnswer)
    assert step_result(answer, []).metrics == figures


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        (rb'"\ud83d"', "\ufffd"),
        (rb'"\udc00x"', "\ufffdx"),
        (rb'"\ud83d\ude00"', "😀"),
        (rb'"\ud83d\ud83d\ude00\n"', "\ufffd😀\n"),
        (rb'"\\ud83d \ud83d"', "\\ud83d \ufffd"),
    ],
)
def test_halves_of_surrogate_pairs_are_replaced(sent: bytes, read: str) -> None:
    assert decoded(sent, str) == read


@given(st.text(st.characters(codec=None), max_size=8))
def test_whatever_python_writes_is_read(text: str) -> None:
    paired = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    assert decoded(json.dumps(text).encode(), str) == re.sub("[\ud800-\udfff]", "\ufffd", paired)
