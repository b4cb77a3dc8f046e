"""What the controller of remote workers stands between: a worker and its clients, each a process of its own.

`python -m benchmarks.remote_load worker CONTROLLER PLACES` serves sessions that cost next to nothing, over the worker's
HTTP API; `python -m benchmarks.remote_load clients CONTROLLER SESSIONS THINK_S` keeps so many sessions going, each of
which thinks for about THINK_S before a turn.
"""

import random
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
import trio

from agentrl_jax.engines.http import HttpClient, open_http_client
from agentrl_jax.engines.http_server import Answer, HttpProblem, HttpRequest, ServerLimits, json_answer, serve_http

TASK = "load"
NUM_TURNS = 10
"""Of a session."""

_HEARTBEAT_S = 8.0
_TEXT = "You see a shelf, a lamp and a drawer that is closed. " * 16
_TURN = {
    "role": "assistant",
    "content": "I look into the drawer.",
    "tool_calls": [{"id": "0", "type": "function", "function": {"name": "look", "arguments": '{"at":"drawer"}'}}],
}
_TOOLS = [{"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}}]


class Worker:
    """Sessions of NUM_TURNS turns, each answered by 200 words."""

    def __init__(self) -> None:
        self._turns: dict[int, int] = {}

    async def handle(self, request: HttpRequest) -> Answer:
        """A `Handler` for the endpoints that a controller calls."""
        await trio.lowlevel.checkpoint()
        endpoint = request.path.rpartition("/")[2]
        body: dict[str, Any] = msgspec.json.decode(request.body) if request.body else {}
        if endpoint == "get_sessions":
            return json_answer({str(session): 0 for session in self._turns})
        session = body["session_id"]
        if endpoint == "start_sample":
            self._turns[session] = 0
            return json_answer(self._said(session, {"role": "user", "content": _TEXT}))
        if endpoint == "interact" and session in self._turns:
            self._turns[session] += 1
            message = {"role": "tool", "tool_call_id": "0", "content": _TEXT}
            return json_answer({"session_id": session, "env_out": self._said(session, message)})
        self._turns.pop(session, None)
        raise HttpProblem(400, "no such session")

    def _said(self, session: int, message: dict[str, str]) -> dict[str, Any]:
        is_over = self._turns[session] == NUM_TURNS
        if is_over:
            del self._turns[session]
        status = "completed" if is_over else "running"
        return {"messages": [message], "tools": _TOOLS, "status": status, "reward": float(is_over), "metric": {}}


async def serve_worker(controller: str, places: int) -> None:
    """Serve until killed, and send heartbeats."""
    async with trio.open_nursery() as nursery, open_http_client(controller) as client:
        serve = partial(serve_http, Worker().handle, host="127.0.0.1", port=0, limits=ServerLimits())
        port = await nursery.start(serve)
        beat = {"name": TASK, "address": f"http://127.0.0.1:{port}/api", "concurrency": places, "indices": [0]}
        while True:
            await client.post("/receive_heartbeat", beat, is_idempotent=True)
            await trio.sleep(_HEARTBEAT_S)


async def run_clients(controller: str, sessions: int, think_s: float) -> None:
    """Play `sessions` sessions at a time, until killed. Starts are spread over one think time."""
    async with open_http_client(controller) as client, trio.open_nursery() as nursery:
        for number in range(sessions):
            nursery.start_soon(_play_forever, client, think_s * number / sessions, think_s)


async def _play_forever(client: HttpClient, wait_s: float, think_s: float) -> None:
    await trio.sleep(wait_s)
    while True:
        started = await _checked(client.post, "/start_sample", {"name": TASK, "index": 0})
        headers = [("session_id", str(started["session_id"]))]
        turn = msgspec.json.encode({"messages": [_TURN]})
        is_over = False
        while not is_over:
            await trio.sleep(think_s * random.uniform(0.5, 1.5))
            request = partial(client.request, headers=headers)
            is_over = (await _checked(request, "POST", "/interact", turn))["finish"]


async def _checked(call: Callable[..., Awaitable[Any]], *arguments: Any) -> dict[str, Any]:
    response = await call(*arguments, is_idempotent=False)
    if response.status != 200:
        raise RuntimeError(f"{arguments[0]} was answered with {response.status}: {response.body!r}")
    answer: dict[str, Any] = msgspec.json.decode(response.body)
    return answer


if __name__ == "__main__":
    role, url, count, *rest = sys.argv[1:]
    if role == "worker":
        trio.run(serve_worker, url, int(count))
    else:
        trio.run(run_clients, url, int(count), float(rest[0]))
