"""Task classes of AgentRL, hosted unchanged: the golden transcript of its worker, and what must cost one session only.

The names of `agentrl.worker` are our own here; tests marked agentrl use the package's.
"""

import json
import sys

import pytest
import trio

from agentrl_jax.controller.hosted_sessions import HostConfig
from agentrl_jax.errors import ConfigError
from envs.worker.task_service import open_task_service
from tests.envs.worker_world import MINI, TOOL, call, open_mini


@pytest.fixture
def mini(tmp_path, monkeypatch):
    """The name of a module with the task classes, of this test's own."""
    name = f"mini_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(MINI)
    monkeypatch.syspath_prepend(tmp_path)
    for module in [module for module in sys.modules if module.split(".")[0] == "agentrl"]:
        monkeypatch.delitem(sys.modules, module)
    yield name
    for module in [module for module in sys.modules if module.split(".")[0] in ("agentrl", name)]:
        del sys.modules[module]


START = {
    "messages": [{"role": "system", "content": "You act."}, {"role": "user", "content": "Task 0."}],
    "tools": [TOOL],
    "status": "running",
    "finish": False,
    "reward": 0,
    "metric": {},
}


async def test_the_golden_transcript(mini):
    async with open_mini(f"{mini}:Mini") as worker:
        assert worker.api.service.name == "mini"
        assert await worker("get_indices") == (200, [0, 1, 2, 3, 4, 5, 6, "s"])
        assert await worker("get_sessions") == (200, {})
        reply = await worker.api.call("start_sample", b'{"index":0,"session_id":7}')
        assert (reply.status, reply.session_id, json.loads(reply.body)) == (200, 7, START)
        assert list(json.loads(reply.body)) == ["messages", "tools", "status", "finish", "reward", "metric"]
        assert await worker("get_sessions") == (200, {"7": 0})
        again = await worker("start_sample", {"index": 0, "session_id": 7})
        assert again == (400, {"detail": "Session ID already exists"})
        status, body = await worker.turn(7, call("act", "{}"), reasoning_content="hm")
        assert (status, body["env_out"]["messages"]) == (
            200,
            [{"content": "obs0", "role": "tool", "tool_call_id": "c"}],
        )
        for bad in ([{"role": "user", "content": "x"}], [], None, [{"role": "assistant", "content": 5}]):
            assert (await worker("interact", {"session_id": 7, "messages": bad}))[0] == 500
        missing = await worker("interact", {"session_id": 7})
        assert missing == (422, {"detail": [{"type": "missing", "loc": ["body", "messages"], "msg": "Field required"}]})
        last = await worker.turn(7, call("act", "{}"))
        assert last == (
            200,
            {
                "session_id": 7,
                "env_out": {
                    "messages": [{"content": "obs1", "role": "tool", "tool_call_id": "c"}],
                    "tools": [TOOL],
                    "status": "completed",
                    "finish": True,
                    "reward": 0.5,
                    "metric": {"score": 0.25, "m": 1},
                },
            },
        )
        assert await worker.turn(7) == (400, {"detail": "No such session"})


async def test_a_task_that_ends_at_once_says_how(mini):
    async with open_mini(f"{mini}:Mini") as worker:
        for index, status in ((1, "unknown"), (2, "task error"), (3, "task error"), (4, "cancelled")):
            code, body = await worker("start_sample", {"index": index, "session_id": index})
            assert (code, body) == (
                200,
                {"messages": [], "tools": [TOOL], "status": status, "finish": True, "reward": 0, "metric": {}},
            )
        code, body = await worker("start_sample", {"index": 99, "session_id": 99})
        assert (code, body["status"]) == (200, "running")
        assert await worker("worker_status") == (200, {"concurrency": 3, "current": 1})


async def test_a_start_beyond_the_concurrency_is_refused(mini):
    async with open_mini(f"{mini}:Mini") as worker:
        for number in range(3):
            assert (await worker("start_sample", {"index": 0, "session_id": number}))[0] == 200
        refused = await worker("start_sample", {"index": 0, "session_id": 3})
        assert refused == (406, {"detail": "Sample concurrency limit reached: 3"})
        assert await worker("cancel", {"session_id": 1}) == (200, {"session_id": 1})
        assert (await worker("start_sample", {"index": "s", "session_id": 3}))[1]["messages"][1]["content"] == "Task s."


@pytest.mark.parametrize("kind", ["thread", "process"])
async def test_what_one_session_does_costs_no_other(mini, kind):
    """A SystemExit ends AgentRL's own worker with all its sessions; a cancellation that escapes leaks the place."""
    async with open_mini(f"{mini}:Mini", kind=kind) as worker:
        await worker("start_sample", {"index": 0, "session_id": 1})
        for index in (2, 3, 4):
            assert (await worker("start_sample", {"index": index, "session_id": 10 + index}))[1]["finish"]
        assert await worker("get_sessions") == (200, {"1": 0})
        await worker.turn(1, call("act", "{}"))
        assert (await worker.turn(1, call("act", "{}")))[1]["env_out"]["reward"] == 0.5


async def test_a_busy_session_takes_no_turn_and_its_cancellation_sends_a_notice_once(mini):
    answers = []
    async with open_mini(f"{mini}:Mini") as worker:
        module = sys.modules[mini]
        await worker("start_sample", {"index": 5, "session_id": 30})

        async def play():
            answers.append(await worker.turn(30, call("act", "{}")))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(play)
            await trio.testing.wait_all_tasks_blocked()
            busy = await worker.turn(30)
            assert busy == (400, {"detail": "Task Executing, please do not send new request."})
            assert (await worker("sample_status", {"session_id": 30}))[1]["status"]["waiting_for_env"]
            for _ in range(2):
                assert await worker("cancel_with_notice", {"session_id": 30}) == (200, {"session_id": 30})
            assert await worker("worker_status") == (200, {"concurrency": 3, "current": 1})
            module.gate.set()
            await worker.notified.wait()
        assert worker.notices == [30]
        assert answers[0][1]["env_out"]["status"] == "cancelled"
        assert await worker("get_sessions") == (200, {})
    assert module.seen[-2:] == ["cancelled", "released"]


async def test_a_session_whose_task_hangs_gives_its_place_back(mini):
    async with open_mini(f"{mini}:Mini", close_deadline_s=0.1) as worker:
        await worker("start_sample", {"index": 5, "session_id": 1})
        with trio.move_on_after(0.05):  # the caller goes away
            await worker.turn(1)
        assert await worker("cancel", {"session_id": 1}) == (200, {"session_id": 1})
        assert worker.api.service.num_left == 1
        assert (await worker("start_sample", {"index": 0, "session_id": 2}))[0] == 200
        sys.modules[mini].gate.set()


async def test_a_hanging_process_is_killed(mini):
    async with open_mini(f"{mini}:Mini", kind="process", close_deadline_s=0.5) as worker:
        await worker("start_sample", {"index": 5, "session_id": 1})
        with trio.move_on_after(0.1):
            await worker.turn(1)
        with trio.fail_after(5):
            assert await worker("cancel", {"session_id": 1}) == (200, {"session_id": 1})


async def test_coroutines_custom_tasks_and_tools_of_a_session(mini):
    async with open_mini(f"{mini}:Async") as worker:
        await worker("start_sample", {"index": 0, "session_id": 1})
        _, body = await worker.turn(1, content="hello")
        assert (body["env_out"]["status"], body["env_out"]["reward"]) == ("completed", 1.0)
        _, body = await worker("start_sample", {"index": -1, "session_id": 2, "custom_task": {"text": "Mine."}})
        assert body["messages"] == [{"role": "user", "content": "Mine."}]
        _, body = await worker.turn(2, content="x")
        assert (body["env_out"]["status"], body["env_out"]["finish"]) == ("task limit reached", True)


async def test_a_reward_that_is_no_number_is_a_task_error(mini):
    async with open_mini(f"{mini}:Mini") as worker:
        await worker("start_sample", {"index": 6, "session_id": 1})
        _, body = await worker.turn(1)
        assert (body["env_out"]["status"], body["env_out"]["reward"]) == ("task error", 0)


async def test_the_summary_is_the_tasks_own(mini):
    results = [{"index": 0, "status": "completed", "result": {"turns": 2}}] * 3
    for kind in ("thread", "process"):
        async with open_mini(f"{mini}.Mini", kind=kind) as worker:
            assert await worker("calculate_overall", {"name": "mini", "results": results}) == (200, {"turns": 6})
            assert (await worker("calculate_overall", {"name": "mini", "results": [{"result": None}]}))[0] == 500
            assert (await worker("calculate_overall", {"name": "mini"}))[0] == 422


async def test_a_task_that_cannot_be_made_is_named(mini, tmp_path):
    (tmp_path / "needs_more.py").write_text("import agentrl.worker.environment\n")
    for module, message in (
        ("no_such_module:Task", "no_such_module:Task cannot be imported"),
        (f"{mini}:Nothing", "there is no"),
        ("Nothing", "expected package.module.Class"),
        ("needs_more:Task", "install the package agentrl-worker"),
    ):
        with pytest.raises(ConfigError, match=message):
            async with open_task_service(module, {}, kind="thread", config=HostConfig()):
                pass
