"""A process with torch broadcasts the export's file to the server, over NCCL or gloo. No jax, no torch here.

Every server has a process and a group of its own: one that fails or hangs holds up no other, and is left by ending its
process. The file is mapped by that process, so that on one machine nothing but the broadcast itself copies weights.
"""

import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import trio

from agentrl_jax.engines.exports import Export
from agentrl_jax.engines.sglang_weights import ServerWeights
from agentrl_jax.engines.transports.protocol import buckets
from agentrl_jax.errors import EngineError

_SCRIPT = Path(__file__).with_name("distributed_sidecar.py")
_NUMBERS = count()


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributedSettings:
    """python: an interpreter with the server's torch. host: of this machine, as the server reaches it.
    timeout_s: of joining, and of one broadcast."""

    python: Path
    host: str
    backend: str
    device: str
    bucket_bytes: int
    timeout_s: float


class DistributedTransport:
    """See `Transport`. The process starts with the first load, and ends with `nursery`."""

    def __init__(
        self, weights: ServerWeights, tp_size: int, settings: DistributedSettings, nursery: trio.Nursery
    ) -> None:
        self._weights, self._tp_size, self._settings, self._nursery = weights, tp_size, settings, nursery
        self._sidecar: _Sidecar | None = None

    async def prepare(self, export: Export) -> None:
        """See `Transport.prepare`."""
        await self._joined()

    async def load(self, export: Export, weight_version: str, *, flush_cache: bool) -> None:
        """See `Transport.load`."""
        is_done = False
        try:
            sidecar = await self._joined()
            is_open = await self._weights.begin()
            runs = list(buckets(export, self._settings.bucket_bytes))
            for number, run in enumerate(runs):
                is_last = number == len(runs) - 1
                body = self._body(export, run, sidecar.group)
                body |= {"flush_cache": flush_cache and is_last, "weight_version": weight_version if is_last else None}
                await _both(partial(sidecar.send, _range(export, run)), partial(self._weights.from_broadcast, body))
            if is_open:
                await self._weights.end()
            is_done = True
        finally:
            if not is_done:  # its group may wait for ever
                self._leave()

    async def _joined(self) -> "_Sidecar":
        if self._sidecar is not None and self._sidecar.is_running:
            return self._sidecar
        sidecar = _Sidecar(f"publish-{next(_NUMBERS)}-{uuid4().hex[:8]}")
        self._sidecar = sidecar
        command = [str(self._settings.python), "-u", str(_SCRIPT), self._settings.host, str(1 + self._tp_size)]
        command += [sidecar.group, self._settings.backend, self._settings.device, str(self._settings.timeout_s)]
        await self._nursery.start(sidecar.run, command)
        is_joined = False
        try:
            port = (await sidecar.answer())["port"]
            body = {"master_address": self._settings.host, "master_port": port, "rank_offset": 1}
            body |= {"world_size": 1 + self._tp_size, "group_name": sidecar.group, "backend": self._settings.backend}
            await _both(sidecar.answer, partial(self._weights.join_group, body))
            is_joined = True
        finally:
            if not is_joined:  # else the next publish would take it for one that has
                self._leave()
        return sidecar

    def _leave(self) -> None:
        if self._sidecar is not None:
            self._sidecar.end()
            self._sidecar = None

    def _body(self, export: Export, run: list[str], group: str) -> dict[str, Any]:
        return {
            "names": run,
            "dtypes": [export.dtype] * len(run),
            "shapes": [list(export.places[name].shape) for name in run],
            "group_name": group,
            "load_format": "flattened_bucket",
        }


class _Sidecar:
    """One process and its group."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.is_running = False
        self._scope = trio.CancelScope()
        self._process: trio.Process | None = None
        self._said = b""

    async def run(self, command: list[str], *, task_status: trio.TaskStatus[None]) -> None:
        pipes: Mapping[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": sys.stderr}
        try:
            self._process = await trio.lowlevel.open_process(command, **pipes)
        except OSError as error:
            raise EngineError(f"--publish.python {command[0]}: cannot be started: {error}") from error
        self.is_running = True
        try:
            with self._scope:
                task_status.started()
                await self._process.wait()
        finally:
            self.is_running = False
            with trio.CancelScope(shield=True):  # a process that is killed ends at once
                self._process.kill()
                await self._process.wait()
                for pipe in (self._process.stdin, self._process.stdout):
                    assert pipe is not None
                    await trio.aclose_forcefully(pipe)

    def end(self) -> None:
        self._scope.cancel()

    async def send(self, order: Mapping[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            await self._process.stdin.send_all(json.dumps(order).encode() + b"\n")
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise EngineError("the broadcasting process has ended") from error
        await self.answer()

    async def answer(self) -> dict[str, Any]:
        """The next line that it says. Raises EngineError if it ends instead."""
        assert self._process is not None
        assert self._process.stdout is not None
        while b"\n" not in self._said:
            data = await self._process.stdout.receive_some()
            if not data:
                raise EngineError("the broadcasting process has ended; its reason is on the standard error output")
            self._said += data
        line, self._said = self._said.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        return answer


async def _both(*calls: Callable[[], Awaitable[object]]) -> None:
    """Make the calls at the same time; the first that fails cancels the other, and is raised."""
    errors: list[EngineError] = []

    async def make(call: Callable[[], Awaitable[object]]) -> None:
        try:
            await call()
        except EngineError as error:
            errors.append(error)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for call in calls:
            nursery.start_soon(make, call)
    if errors:
        raise errors[0]


def _range(export: Export, run: list[str]) -> dict[str, Any]:
    first, last = export.places[run[0]], export.places[run[-1]]
    end = last.offset + last.num_bytes
    return {"file": str(export.file), "offset": first.offset, "num_bytes": end - first.offset}
