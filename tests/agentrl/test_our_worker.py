"""Our worker beside AgentRL's own: the same task class, the same requests, the same answers.

Both host the class unchanged, on the stock package. Where the stock worker is wrong (a SystemExit ends it, a
cancellation that escapes leaks the place) only ours is asked.
"""

import json
import os
import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from agentrl_jax.engines.http import HttpError, open_http_client
from tests.agentrl.stock_processes import free_port
from tests.envs.worker_world import MINI, call

pytestmark = pytest.mark.agentrl

ROOT = Path(__file__).resolve().parents[2]
OURS = "import sys; sys.path += sys.argv.pop(1).split(':'); from launch.worker import main; sys.exit(main())"


@asynccontextmanager
async def serving(commands, ports, folder):
    """Clients of worker processes, once these answer."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{folder}"}
    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        for command in commands:
            run = partial(trio.run_process, command, cwd=folder, env=environment, check=False)
            process = await nursery.start(partial(run, stderr=subprocess.DEVNULL))
            stack.callback(process.kill)
        urls = [f"http://127.0.0.1:{port}/api" for port in ports]
        clients = [await stack.enter_async_context(open_http_client(url)) for url in urls]
        with trio.fail_after(60):
            for client in clients:
                await answering(client)
        yield clients


async def answering(client):
    while True:
        try:
            await client.get("/get_sessions")
            return
        except HttpError:
            await trio.sleep(0.1)


@asynccontextmanager
async def both(stock, folder, name="Mini", *, is_stock_needed=True):
    """Clients of AgentRL's worker and of ours, each with the same task class; or of ours alone."""
    (folder / "mini_task.py").write_text(MINI)
    parameters = {"name": "mini", "concurrency": 3}
    entry = {"mini": {"module": f"mini_task.{name}", "parameters": parameters}}
    (folder / "tasks.json").write_text(json.dumps(entry))
    theirs, ours, nobody = (free_port() for _ in range(3))
    where = await trio.run_process([stock, "-c", "import site; print(site.getsitepackages()[0])"], capture_stdout=True)
    packages = where.stdout.decode().strip()
    common = ["mini", "-c", "tasks.json", "-C", f"http://127.0.0.1:{nobody}/api", "--host", "127.0.0.1"]
    stock_command = [str(stock), "-m", "agentrl.worker", *common, "--port", str(theirs)]
    our_command = [sys.executable, "-c", OURS, packages, *common, "--port", str(ours)]
    first = 0 if is_stock_needed else 1
    async with serving([stock_command, our_command][first:], [theirs, ours][first:], folder) as clients:
        yield clients


def turn(session_id, **message):
    return {"session_id": session_id, "messages": [{"role": "assistant", **message}]}


ACT = call("act", "{}")
REQUESTS = [
    ("GET", "/get_indices", None),
    ("GET", "/worker_status", None),
    ("POST", "/start_sample", {"index": 0, "session_id": 7}),
    ("GET", "/get_sessions", None),
    ("POST", "/start_sample", {"index": 0, "session_id": 7}),
    ("POST", "/interact", turn(7, content=None, tool_calls=[ACT], reasoning_content="hm")),
    ("POST", "/interact", {"session_id": 7, "messages": [{"role": "user", "content": "x"}]}),
    ("POST", "/interact", {"session_id": 7, "messages": []}),
    ("POST", "/interact", {"session_id": 7, "messages": None}),
    ("POST", "/interact", {"session_id": 7}),
    ("POST", "/interact", {"session_id": "x", "messages": []}),
    ("POST", "/interact", turn(7, content=5)),
    ("POST", "/interact", turn(7, content="done", tool_calls=[ACT])),
    ("POST", "/interact", turn(7, content="again")),
    ("POST", "/start_sample", {"index": 1, "session_id": 8}),
    ("POST", "/start_sample", {"index": 2, "session_id": 9}),
    ("POST", "/start_sample", {"index": 99, "session_id": 10}),
    ("POST", "/start_sample", {"index": "s", "session_id": 11}),
    ("POST", "/start_sample", {"index": 0, "session_id": 12}),
    ("POST", "/start_sample", {"index": 0, "session_id": 13}),
    ("POST", "/start_sample", {"session_id": 14}),
    ("POST", "/cancel", {"session_id": 99}),
    ("POST", "/sample_status", {"session_id": 99}),
    ("POST", "/calculate_overall", {"name": "mini", "results": [{"index": 0, "result": {"turns": 2}}]}),
    ("POST", "/nothing", {}),
    ("GET", "/interact", None),
]


async def ask(client, method, target, body):
    answer = await client.request(
        method, target, b"" if body is None else json.dumps(body).encode(), is_idempotent=True
    )
    return answer.status, answer.body


def comparable(status, body):
    """What callers can rely on: of refusals of the caller's own mistakes the kind and the place, not the wording."""
    if status == 500:
        return status, None
    value = json.loads(body)
    if status == 422:
        return status, [(problem["type"], problem["loc"]) for problem in value["detail"]]
    return status, body


async def test_every_answer_is_the_stock_workers_byte_for_byte(stock_python, tmp_path):
    async with both(stock_python, tmp_path) as (theirs, ours):
        for request in REQUESTS:
            expected = comparable(*await ask(theirs, *request))
            assert comparable(*await ask(ours, *request)) == expected, request


async def test_coroutines_and_custom_tasks_answer_alike(stock_python, tmp_path):
    async with both(stock_python, tmp_path, "Async") as (theirs, ours):
        for request in (
            ("POST", "/start_sample", {"index": 0, "session_id": 1}),
            ("POST", "/interact", turn(1, content="x")),
            ("POST", "/start_sample", {"index": -1, "session_id": 2, "custom_task": {"text": "mine"}}),
            ("POST", "/interact", turn(2, content="x")),
        ):
            assert await ask(ours, *request) == await ask(theirs, *request), request


async def test_what_ends_the_stock_worker_costs_ours_one_session(stock_python, tmp_path):
    async with both(stock_python, tmp_path, is_stock_needed=False) as (ours,):
        await ask(ours, "POST", "/start_sample", {"index": 0, "session_id": 1})
        for index, status in ((3, "task error"), (4, "cancelled")):
            code, body = await ask(ours, "POST", "/start_sample", {"index": index, "session_id": 10 + index})
            assert (code, json.loads(body)["status"]) == (200, status)
        assert json.loads((await ask(ours, "GET", "/get_sessions", None))[1]) == {"1": 0}
