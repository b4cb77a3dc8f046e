"""Engines behind this package's own server, reached over memory streams in virtual or real time."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import trio
from safetensors.numpy import save_file

from agentrl_jax.engines.http_connect import Connect
from agentrl_jax.engines.http_server import HttpProblem, HttpRequest
from agentrl_jax.engines.served import ServableEngine
from agentrl_jax.engines.served_generation import ServedModel
from agentrl_jax.engines.server import EngineServer
from agentrl_jax.engines.sglang import SGLangEngine, open_sglang_engine
from tests.engines.http_fakes import connect_to

FAKE_TENSORS = {"w": (2, 3)}
FAKE_MODEL = ServedModel(path="fake", vocab_size=16, max_prompt_tokens=40, load_weights=lambda folder: str(folder))


class Host:
    """A server that can be killed and started again: what it serves comes from `serve`."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._server: EngineServer | None = None
        self.requests: list[HttpRequest] = []
        self.connect: Connect = connect_to(nursery, lambda: self._handle)
        self._scope = trio.CancelScope()

    def serve(self, engine: ServableEngine, model: ServedModel = FAKE_MODEL, token: str | None = None) -> None:
        self._server = EngineServer(engine, model, token=token)

    async def _handle(self, request: HttpRequest) -> Any:
        self.requests.append(request)
        if self._server is None:
            raise HttpProblem(502, "nobody is here")
        return await self._server.handle(request)

    @property
    def paths(self) -> list[str]:
        return [request.path for request in self.requests]


@asynccontextmanager
async def open_served(
    engine: ServableEngine,
    *,
    model: ServedModel = FAKE_MODEL,
    tensors: Mapping[str, tuple[int, ...]] = FAKE_TENSORS,
    server_token: str | None = None,
    host: Host | None = None,
    **options: Any,
) -> AsyncIterator[tuple[SGLangEngine, Host]]:
    """The client's side of `engine`, and its host."""
    async with trio.open_nursery() as nursery:
        host = host or Host(nursery)
        host.serve(engine, model, server_token)
        options = {"name": "engine-0", "pool": "lagging", "truncates": True, **options}
        async with open_sglang_engine("http://engine", tensors=tensors, connect=host.connect, **options) as client:
            yield client, host
        nursery.cancel_scope.cancel()


def fake_weights(folder: Path, version: int, **tensors: Any) -> Path:
    """A folder with FAKE_TENSORS, or what is asked for instead."""
    target = folder / f"weights-{version}-{'-'.join(tensors)}"
    target.mkdir(exist_ok=True)
    save_file(tensors or {"w": np.full((2, 3), version, np.float32)}, target / "model.safetensors")
    return target


def with_limit(max_prompt_tokens: int) -> ServedModel:
    return replace(FAKE_MODEL, max_prompt_tokens=max_prompt_tokens)
