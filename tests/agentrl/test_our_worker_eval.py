"""The stock `agentrl-eval` plays whole episodes on our environments, through our controller and our worker.

Its model is a server made for the purpose, which knows the expert's turns by what an episode begins with.
"""

import json
from contextlib import AsyncExitStack
from functools import partial
from random import Random

import pytest
import trio

from agentrl_jax.engines.http_server import ServerLimits, json_answer, serve_http
from agentrl_jax.env import Message
from envs.worker.serve import Place, serve
from launch.worker import WorkerConfig, make_family, open_service
from tests.envs.test_worker_controller import controller_at

pytestmark = pytest.mark.agentrl

NUM_TASKS = 4


class Expert:
    """OpenAI's chat completions by a scripted expert."""

    def __init__(self, families):
        self._turns = {}
        for family in families:
            for index in range(NUM_TASKS):
                shown = family.demonstrate(family.task("eval", index), Random(0), noise=0.0)
                opening = next(message.content for message in shown if message.role == "user")
                self._turns[opening] = [message for message in shown if message.role == "assistant"]
        assert len(self._turns) == NUM_TASKS * len(families)

    async def handle(self, request):
        if request.method == "GET":
            return json_answer({"object": "list", "data": [{"id": "expert", "object": "model", "created": 0}]})
        messages = json.loads(request.body)["messages"]
        opening = next(message["content"] for message in messages if message["role"] == "user")
        opening = opening if isinstance(opening, str) else "".join(part["text"] for part in opening)
        number = sum(message["role"] == "assistant" for message in messages)
        # Before it starts, the client says hello.
        turn = self._turns[opening][number] if opening in self._turns else Message(role="assistant", content="Hi.")
        calls = [
            {
                "id": f"call_{number}_{n}",
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for n, call in enumerate(turn.tool_calls)
        ]
        said = {"role": "assistant", "content": turn.content or None, **({"tool_calls": calls} if calls else {})}
        choice = {"index": 0, "message": said, "finish_reason": "tool_calls" if calls else "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        answer = {"id": "x", "object": "chat.completion", "created": 0, "model": "expert"}
        return json_answer({**answer, "choices": [choice], "usage": usage})


ENVS = ("alfworld", "dbbench", "kg", "knowledgegraph", "webshop")


async def test_the_expert_is_perfect_in_the_eyes_of_agentrl_eval(stock_python, tmp_path):
    configs = [WorkerConfig(task=env, split="eval", concurrency=4) for env in ENVS]
    expert, stop = Expert([make_family(config) for config in configs]), trio.Event()
    async with controller_at(0) as client, AsyncExitStack() as stack:
        services = [await stack.enter_async_context(open_service(config)) for config in configs]
        nursery = await stack.enter_async_context(trio.open_nursery())
        names = [service.name for service in services]
        place = Place(controller=client.url, port=0, drain_s=0.0)
        for service in services:
            await nursery.start(partial(serve, service, place, lambda line: None, stop))
            await client.controller.roster.wait_served(service.name)
        port = await nursery.start(partial(serve_http, expert.handle, host="127.0.0.1", port=0, limits=ServerLimits()))
        command = [stock_python.parent / "agentrl-eval", "-m", "expert", "-k", "x", "--chat-completions"]
        command += ["-u", f"http://127.0.0.1:{port}/v1", "--controller", client.url, "--no-interactive"]
        command += ["--indices-range", f"0-{NUM_TASKS - 1}", "--output", tmp_path / "out", *names]
        with trio.fail_after(240):
            done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
        said = done.stdout.decode() + done.stderr.decode()
        assert done.returncode == 0, said
        (results,) = (tmp_path / "out").rglob("results.jsonl")
        rows = [json.loads(line) for line in results.read_text().splitlines()]
        found = sorted((row["task"], row["index"]["int_value"]) for row in rows)
        assert found == [(name, index) for name in sorted(names) for index in range(NUM_TASKS)], said
        assert {(row["status"], row["metric_success_rate"]) for row in rows} == {("completed", 1.0)}, rows
        stop.set()
        nursery.cancel_scope.cancel()
