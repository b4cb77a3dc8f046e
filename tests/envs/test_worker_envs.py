"""Our envs behind AgentRL's worker API: ids, order and faults of calls, limits, repeated requests."""

import json
from contextlib import asynccontextmanager
from random import Random

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.controller.hosted_sessions import HostConfig, open_session_host
from agentrl_jax.controller.sessions import thread_sessions
from agentrl_jax.env import FamilyOptions
from agentrl_jax.testing.envs import EnvScript, ScriptedFamily, SessionLog, scripted_sessions
from agentrl_jax.types import EpisodeEnd
from envs.alfworld import family as alfworld_family
from envs.worker.service import EnvService
from envs.worker.wire import BadTurn, read_turn
from tests.envs.worker_world import call, open_api


@asynccontextmanager
async def open_scripted(script=None, *, max_turns=10, concurrency=2, config=None):
    family, log = ScriptedFamily(script=script or EnvScript()), SessionLog()
    factories = {family.name: scripted_sessions(family.script, log)}
    async with open_session_host(factories, config or HostConfig()) as host:
        service = EnvService(family, "train", host, name="s-train", concurrency=concurrency, max_turns=max_turns)
        async with open_api(service) as worker:
            worker.log = log
            yield worker
    assert log.num_open == log.num_closed_again == 0


async def test_a_session_of_ours_looks_like_one_of_agentrls():
    async with open_scripted(EnvScript(rewards=(0.25, 0.5))) as worker:
        assert await worker("get_indices") == (200, list(range(8)))
        status, body = await worker("start_sample", {"index": 3, "session_id": 1})
        assert (status, body["messages"][0]["role"], body["status"], body["reward"]) == (200, "user", "running", 0)
        assert body["tools"] == [tool.to_json() for tool in ScriptedFamily().tools]
        _, body = await worker.turn(1, call("act", {}, "x1"))
        assert body["env_out"]["messages"] == [{"content": "act done", "role": "tool", "tool_call_id": "x1"}]
        assert body["env_out"]["reward"] == 0
        _, body = await worker.turn(1, call("act", {}))
        assert (body["env_out"]["status"], body["env_out"]["reward"]) == ("completed", 0.75)
        assert await worker("get_sessions") == (200, {})


async def test_answers_keep_the_ids_and_the_order_of_calls_also_of_malformed_ones():
    async with open_scripted(EnvScript(rewards=(0.0, 0.0, 1.0))) as worker:
        await worker("start_sample", {"index": 0, "session_id": 1})
        turn = read_turn(
            [
                {
                    "role": "assistant",
                    "content": [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}],
                    "tool_calls": [call("act", "{", "bad"), call("one", "{}", "p"), 7, call("two", '{"x": 1}', None)],
                }
            ]
        )
        assert turn.action.content == "ab"
        assert [c.name for c in turn.action.calls] == ["one", "two"]
        assert (turn.call_ids, turn.places) == (("p", "call_4", "bad", "call_3"), (1, 3, 0, 2))
        _, body = await worker.turn(1, call("act", "{", "bad"), call("one", "{}", "p"))
        messages = body["env_out"]["messages"]
        # A scripted env answers good calls only; ours answer every one (tests of the contract).
        assert messages == [{"content": "one done", "role": "tool", "tool_call_id": "p"}]


def play(alfworld, index):
    task = alfworld.task("train", index)
    turns = [m for m in alfworld.demonstrate(task, Random(0), noise=0.0) if m.role == "assistant"]
    return [[call(c.name, json.dumps(c.arguments), f"id{n}") for n, c in enumerate(turn.tool_calls)] for turn in turns]


@asynccontextmanager
async def open_alfworld(max_turns):
    alfworld = alfworld_family(FamilyOptions())
    factories = {"alfworld": thread_sessions(alfworld.make, trio.CapacityLimiter(4))}
    async with open_session_host(factories, HostConfig()) as host:
        service = EnvService(alfworld, "train", host, name="alfworld-train", concurrency=4, max_turns=max_turns)
        async with open_api(service) as worker:
            yield alfworld, worker


async def test_an_expert_wins_a_household_through_the_worker_and_malformed_calls_are_answered():
    async with open_alfworld(20) as (alfworld, worker):
        await worker("start_sample", {"index": 5, "session_id": 1})
        _, body = await worker.turn(1, call("take_action", "{", "m"), call("take_action", '{"action": "look"}', "g"))
        answers = body["env_out"]["messages"]
        assert [(a["role"], a["tool_call_id"]) for a in answers] == [("tool", "m"), ("tool", "g")]
        assert "invalid JSON" in answers[0]["content"]
        assert "Available actions:" in answers[1]["content"]
        for turn in play(alfworld, 5):
            _, body = await worker.turn(1, *turn)
        assert (body["env_out"]["reward"], body["env_out"]["status"]) == (1.0, "completed")


async def test_the_worker_ends_a_session_at_its_turn_limit():
    async with open_alfworld(2) as (_, worker):
        await worker("start_sample", {"index": 0, "session_id": 1})
        assert (await worker.turn(1, content="hm"))[1]["env_out"]["status"] == "running"
        _, body = await worker.turn(1, content="hm")
        assert (body["env_out"]["status"], body["env_out"]["finish"]) == ("task limit reached", True)
        assert (await worker.turn(1))[0] == 400


@pytest.mark.parametrize(
    ("fault", "at"), [("error", 0), ("error", 1), ("hang", 0), ("hang", 1)], ids=lambda value: str(value)
)
async def test_a_fault_of_the_env_is_a_task_error_of_that_session(autojump_clock, fault, at):
    script = EnvScript(rewards=(0.0, 1.0), fault=fault, fault_at=at)
    async with open_scripted(script, config=HostConfig(call_deadline_s=5)) as worker:
        status, body = await worker("start_sample", {"index": 0, "session_id": 1})
        if at:
            status, body = await worker.turn(1)
            body = body["env_out"]
        assert (status, body["status"], body["finish"]) == (200, "task error", True)
        assert await worker("get_sessions") == (200, {})


async def test_an_index_that_is_not_there_is_a_task_error():
    async with open_scripted() as worker:
        for number, index in enumerate((8, -1, "0", "x")):
            status, body = await worker("start_sample", {"index": index, "session_id": number})
            assert (status, body["status"]) == (200, "task error")


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"index": 0}, "missing"),
        ({"session_id": 1}, "missing"),
        ({"index": 0, "session_id": "one"}, "int_parsing"),
        ({"index": 0, "session_id": True}, "int_parsing"),
        ({"index": 1.5, "session_id": 1}, "int_type"),
        ({"index": 0, "session_id": 1, "custom_task": 3}, "dict_type"),
        ([], "model_attributes_type"),
        ("x", "model_attributes_type"),
    ],
)
async def test_a_body_that_does_not_fit_is_refused_in_fastapis_form(body, kind):
    async with open_scripted() as worker:
        status, answer = await worker("start_sample", body)
        assert (status, answer["detail"][0]["type"]) == (422, kind)


async def test_a_body_that_is_no_json_is_refused():
    async with open_scripted() as worker:
        for body in (b"{", b"\xff", b"[" * 100_000, b'{"session_id": ' + b"9" * 5000 + b"}"):
            assert (await worker.api.call("start_sample", body)).status == 422
        assert (await worker("nothing"))[0] == 404


async def test_a_repeated_request_with_an_id_has_one_effect_and_one_answer():
    async with open_scripted(EnvScript(rewards=(0.0, 1.0))) as worker:
        start = {"index": 0, "session_id": 1, "request_id": 0}
        assert await worker("start_sample", start) == await worker("start_sample", start)
        first = await worker.turn(1, call("act", {}), request_id=1)
        assert await worker.turn(1, call("act", {}), request_id=1) == first
        last = await worker.turn(1, call("act", {}), request_id=2)
        assert last[1]["env_out"]["finish"]
        assert await worker.turn(1, call("act", {}), request_id=2) == last  # though the session is over
        assert (worker.log.num_started, worker.log.num_steps) == (1, 2)


async def test_a_caller_who_goes_away_finds_its_answer(autojump_clock):
    async with open_scripted(EnvScript(rewards=(0.0, 1.0), step_s=10)) as worker:
        await worker("start_sample", {"index": 0, "session_id": 1})
        with trio.move_on_after(1):
            await worker.turn(1, request_id=1)
        assert (await worker.turn(1, request_id=2))[0] == 400  # busy
        assert (await worker.turn(1, request_id=1))[0] == 200
        assert worker.log.num_steps == 1


async def test_a_session_that_nobody_uses_expires(autojump_clock):
    async with open_scripted(EnvScript(rewards=(0.0, 1.0)), config=HostConfig(idle_expiry_s=50)) as worker:
        await worker("start_sample", {"index": 0, "session_id": 1})
        await trio.sleep(60)
        assert await worker.turn(1) == (400, {"detail": "No such session"})
        assert await worker("get_sessions") == (200, {})


async def test_a_worker_that_drains_takes_no_sessions_and_waits_for_the_last(autojump_clock):
    async with open_scripted(EnvScript(rewards=(1.0,), step_s=5)) as worker, trio.open_nursery() as nursery:
        await worker("start_sample", {"index": 0, "session_id": 1})
        drained = trio.Event()

        async def drain():
            await worker.api.drain()
            drained.set()

        nursery.start_soon(drain)
        await trio.testing.wait_all_tasks_blocked()
        assert (await worker("start_sample", {"index": 0, "session_id": 2}))[0] == 406
        assert not drained.is_set()
        await worker.turn(1)
        await drained.wait()


async def test_cancel_all_ends_what_runs(autojump_clock):
    async with open_scripted(EnvScript(rewards=(1.0,), step_s=50)) as worker, trio.open_nursery() as nursery:
        for number in (1, 2):
            await worker("start_sample", {"index": 0, "session_id": number})
        nursery.start_soon(worker.turn, 1)
        await trio.testing.wait_all_tasks_blocked()
        assert await worker("cancel_all") == (200, None)
        assert await worker("get_sessions") == (200, {})
        await worker("start_sample", {"index": 0, "session_id": 3})
        assert await worker("cancel_all_with_notice") == (200, None)
        await worker.notified.wait()
        assert worker.notices == [3]
        assert (await worker("cancel", {"session_id": 3}))[0] == 400


async def test_the_summary_counts_statuses_and_averages_figures():
    async with open_scripted() as worker:
        results = [
            {"status": "completed", "result": {"reward": 1.0, "score": 0.5}},
            {"status": "completed", "result": {"reward": 0.0}},
            {"status": "task error", "result": "Traceback"},
        ]
        assert await worker("calculate_overall", {"name": "s", "results": results}) == (
            200,
            {"total": 3, "status": {"completed": 2, "task error": 1}, "mean": {"reward": 0.5, "score": 0.5}},
        )


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)
calls = st.lists(
    st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": st.text(), "arguments": json_values})})
    | json_values,
    max_size=3,
)


@given(st.lists(st.fixed_dictionaries({"role": st.just("assistant"), "tool_calls": calls}), min_size=1, max_size=2))
def test_whatever_the_policy_calls_is_a_call_or_an_error_of_its_own(messages):
    num_calls = sum(len(message["tool_calls"]) for message in messages)
    turn = read_turn(messages)
    assert len(turn.action.calls) + len(turn.action.errors) == len(turn.call_ids) == num_calls
    assert sorted(turn.places) == list(range(num_calls))


@given(json_values)
def test_messages_that_are_no_turn_are_refused(messages):
    with pytest.raises(BadTurn):
        read_turn(messages)


async def test_ends_have_agentrls_words():
    for end, word in (
        (EpisodeEnd.INVALID_ACTION, "agent invalid action"),
        (EpisodeEnd.MAX_TURNS, "task limit reached"),
    ):
        async with open_scripted(EnvScript(end=end)) as worker:
            await worker("start_sample", {"index": 0, "session_id": 1})
            assert (await worker.turn(1))[1]["env_out"]["status"] == word
