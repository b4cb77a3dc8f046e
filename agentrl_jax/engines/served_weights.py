"""The endpoints that replace weights, and stop and go on with sampling for it. No jax."""

from pathlib import Path
from typing import Any

import trio

from agentrl_jax.engines.http_server import Answer, HttpRequest, json_answer
from agentrl_jax.engines.served import ServableEngine
from agentrl_jax.engines.served_generation import ServedModel
from agentrl_jax.engines.served_names import WeightNames
from agentrl_jax.engines.served_turns import ServedTurns
from agentrl_jax.engines.sglang_schema import Nothing, PauseGeneration, UpdateFromDisk, parse_body
from agentrl_jax.errors import ConfigError, EngineError


class WeightEndpoints:
    """Each method answers the requests of one path. path: where the weights that serve came from."""

    def __init__(self, engine: ServableEngine, model: ServedModel, turns: ServedTurns, names: WeightNames) -> None:
        self._engine, self._model, self._turns, self._names = engine, model, turns, names
        self.path = model.path
        self.is_paused = False
        self._is_open = False
        self._lock = trio.Lock()

    async def pause(self, request: HttpRequest) -> Answer:
        """abort ends the turns that run. Otherwise they go on where they stopped, after an update by its weights."""
        mode = parse_body(request.body, PauseGeneration).mode
        await self._engine.pause()
        self.is_paused = True
        if mode == "abort":
            self._turns.abort_all()
        return json_answer({"message": f"Generation paused ({mode}).", "status": "ok"})

    async def resume(self, request: HttpRequest) -> Answer:
        parse_body(request.body, Nothing)
        await self._engine.resume()
        self.is_paused = False
        return json_answer({"message": "Generation continued.", "status": "ok"})

    async def begin(self, request: HttpRequest) -> Answer:
        parse_body(request.body, Nothing)
        await trio.lowlevel.checkpoint()
        if self._is_open:
            return _verdict("A weight update is already open.")
        self._is_open = True
        return _verdict()

    async def end(self, request: HttpRequest) -> Answer:
        parse_body(request.body, Nothing)
        await trio.lowlevel.checkpoint()
        if not self._is_open:
            return _verdict("No weight update is open.")
        self._is_open = False
        return _verdict()

    async def from_disk(self, request: HttpRequest) -> Answer:
        """Names and shapes are checked before anything changes; a repeated request changes nothing."""
        asked = parse_body(request.body, UpdateFromDisk)
        async with self._lock:
            name = asked.weight_version
            if name == self._names.current and asked.model_path == self.path:
                return _verdict()
            try:
                weights = await trio.to_thread.run_sync(self._model.load_weights, Path(asked.model_path))
                if asked.abort_all_requests:
                    self._turns.abort_all()
                unnamed = str(self._engine.version + 1)
                await self._engine.publish(weights, self._names.next_version(unnamed if name is None else name))
            except (ConfigError, EngineError) as error:
                return _verdict(str(error))
            self.path = asked.model_path
        return _verdict()


def _verdict(problem: str = "") -> Answer:
    verdict: dict[str, Any] = {"success": not problem, "message": problem or "Succeeded.", "num_paused_requests": 0}
    return json_answer(verdict, 400 if problem else 200)
