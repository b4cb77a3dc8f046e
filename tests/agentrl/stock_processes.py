"""Starting stock workers and clients, and a controller for them in this process."""

import http.client
import json
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from agentrl_jax.controller.monitor import LoopMonitor
from agentrl_jax.controller.remote_config import ListenConfig, RemoteConfig
from agentrl_jax.controller.remote_controller import RemoteController, open_remote_controller
from agentrl_jax.controller.remote_server import ControllerServer
from agentrl_jax.controller.workers import WorkerStatus

HERE = Path(__file__).parent
# Its command line as it is, but for an argument of its own class that the command line does not offer.
FREQUENT = """
import functools, runpy
from agentrl.worker import task_worker
task_worker.TaskWorker = functools.partial(task_worker.TaskWorker, heart_rate=1)
runpy.run_module("agentrl.worker", run_name="__main__")
"""
TURN = {"messages": [{"role": "assistant", "content": "hi"}]}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class StockWorker:
    """A stock worker process that serves `ThreeTurns` as `task`, over HTTP or gRPC.

    often: it sends a heartbeat every second, not every eight, for tests that wait for them.
    """

    def __init__(
        self,
        python: Path,
        folder: Path,
        task: str,
        port: int,
        *,
        grpc: bool = False,
        often: bool = False,
        token: str = "",
        **settings: Any,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / f"{task}.json"
        entry = {"module": "stock_tasks.ThreeTurns", "parameters": {"name": task, **settings}}
        config.write_text(json.dumps({task: entry}))
        own, user = free_port(), f"any:{token}@" if token else ""
        controller = f"grpc://127.0.0.1:{port}" if grpc else f"http://{user}127.0.0.1:{port}/api"
        self.address = "" if grpc else f"http://127.0.0.1:{own}/api"
        command = [
            python,
            *(("-c", FREQUENT) if often else ("-m", "agentrl.worker")),
            task,
            "-c",
            config,
            "-C",
            controller,
            "-s",
            self.address,
        ]
        command += ["--host", "127.0.0.1", "--port", str(own), "--log-level", "WARNING"]
        self._log = (folder / f"{task}.log").open("w")
        environment = {**os.environ, "PYTHONPATH": str(HERE)}
        self.process = subprocess.Popen(command, env=environment, stdout=self._log, stderr=self._log)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._log.close()


@contextmanager
def stock_worker(*arguments: Any, **settings: Any) -> Iterator[StockWorker]:
    """A `StockWorker` that is gone after the block."""
    worker = StockWorker(*arguments, **settings)
    try:
        yield worker
    finally:
        worker.kill()


@dataclass(frozen=True)
class Said:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Caller:
    """A client of the controller's HTTP API that is not ours: each request on a thread."""

    def __init__(self, port: int, controller: RemoteController) -> None:
        self.port, self.controller = port, controller
        self._limiter = trio.CapacityLimiter(200)

    async def post(self, name: str, body: Any = None, session: int | str = "") -> Said:
        return await trio.to_thread.run_sync(
            self._post, f"/api/{name}", json.dumps(body), str(session), limiter=self._limiter, abandon_on_cancel=True
        )

    def _post(self, target: str, body: str, session: str) -> Said:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=100)
        try:
            connection.request("POST", target, body, {"session_id": session} if session else {})
            response = connection.getresponse()
            return Said(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()

    async def start(self, task: str, index: int | str = 0, **more: Any) -> tuple[int, Said]:
        said = await self.post("start_sample", {"name": task, "index": index, **more})
        assert said.status == 200, said
        return int(said.headers["session_id"]), said

    async def wait_idle(self) -> None:
        """Return once no place is taken."""
        with trio.fail_after(10):
            for entry in self.controller.roster.entries():
                await self.controller.book.pool.wait_idle(entry.name)

    async def wait_workers(self, count: int) -> None:
        """Return once so many workers are ALIVE, and no others known."""
        with trio.fail_after(90):
            while [entry.status for entry in self.controller.roster.entries()] != [WorkerStatus.ALIVE] * count:
                await self.controller.roster.wait_news()

    def worker_of(self, session: int) -> str:
        return self.controller.book.store.live[session].entry.name

    async def finish(self, session: int) -> dict[str, Any]:
        """Take turns to the end; the last answer."""
        while True:
            said = await self.post("interact", TURN, session)
            assert said.status == 200, said
            answer: dict[str, Any] = said.json
            if answer["finish"]:
                return answer


@asynccontextmanager
async def controller_at(
    port: int, *tasks: str, config: RemoteConfig | None = None, listen: ListenConfig | None = None
) -> AsyncIterator[Caller]:
    """A controller on `port`, and a client of it, once workers serve all of `tasks`."""
    listen = listen or ListenConfig(port=port)
    async with open_remote_controller(config) as controller, trio.open_nursery() as nursery:
        await nursery.start(ControllerServer(controller, listen, LoopMonitor()).serve)
        with trio.fail_after(90):
            for task in tasks:
                await controller.roster.wait_served(task)
        yield Caller(port, controller)
        nursery.cancel_scope.cancel()
