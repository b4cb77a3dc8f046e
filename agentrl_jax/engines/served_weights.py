"""The endpoints that replace weights, and stop and go on with sampling for it. No jax."""

import shutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trio
from safetensors.numpy import save_file

from agentrl_jax.engines.http_server import Answer, HttpProblem, HttpRequest, json_answer
from agentrl_jax.engines.served import ServableEngine
from agentrl_jax.engines.served_generation import ServedModel
from agentrl_jax.engines.served_names import WeightNames
from agentrl_jax.engines.served_tensors import Tensors, read_tensors
from agentrl_jax.engines.served_turns import ServedTurns
from agentrl_jax.engines.sglang_schema import (
    CheckWeights,
    Nothing,
    PauseGeneration,
    StageWeights,
    UpdateFromDisk,
    UpdateFromTensor,
    parse_body,
)
from agentrl_jax.errors import ConfigError, EngineError


class WeightEndpoints:
    """Each method answers the requests of one path. path: where the weights that serve came from."""

    def __init__(
        self,
        engine: ServableEngine,
        model: ServedModel,
        turns: ServedTurns,
        names: WeightNames,
        forget_prefixes: Callable[[], Awaitable[None]],
    ) -> None:
        self._engine, self._model, self._turns, self._names = engine, model, turns, names
        self._forget_prefixes = forget_prefixes
        self.path = model.path
        self.is_paused = False
        self._loaded: _Weights | None = None  # None: what `path` holds
        self._staged: tuple[str, _Weights] | None = None
        self._last_folder: tuple[str, str] | None = (model.path, names.current)  # None: tensors came later
        self._update: _TensorUpdate | None = None
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

    async def release(self, request: HttpRequest) -> Answer:
        """As SGLang without its memory saver: memory is kept, and prefixes are forgotten."""
        parse_body(request.body, Nothing)
        if not len(self._turns):
            await self._forget_prefixes()
        elif not self.is_paused:
            raise HttpProblem(400, "memory is released while no turn runs, or in a pause")
        return json_answer(None)

    async def take_back(self, request: HttpRequest) -> Answer:
        parse_body(request.body, Nothing)
        await trio.lowlevel.checkpoint()
        return json_answer(None)

    async def begin(self, request: HttpRequest) -> Answer:
        parse_body(request.body, Nothing)
        await trio.lowlevel.checkpoint()
        if self._update is not None:
            return _verdict("A weight update is already open.")
        self._update = _TensorUpdate()
        return _verdict()

    async def end(self, request: HttpRequest) -> Answer:
        """Serve the tensors that have come since `begin`, all of the model's; without any, nothing happens."""
        parse_body(request.body, Nothing)
        async with self._lock:
            update, self._update = self._update, None
            if update is None:
                return _verdict("No weight update is open.")
            if not update.tensors:
                return _verdict()
            try:
                weights = await trio.to_thread.run_sync(self._load_tensors, update.tensors)
                await self._publish(_Weights(weights), update.weight_version, aborts=update.aborts)
                self._last_folder = None
            except (ConfigError, EngineError) as error:
                return _verdict(str(error))
        return _verdict()

    async def from_tensors(self, request: HttpRequest) -> Answer:
        """Take some tensors of the update that is open; the engine serves them when it ends."""
        asked = parse_body(request.body, UpdateFromTensor)
        async with self._lock:
            if self._update is None:
                return _verdict("Tensors are taken between begin_weight_update and end_weight_update.")
            try:
                found = await trio.to_thread.run_sync(read_tensors, asked.serialized_named_tensors[0])
            except EngineError as error:
                return _verdict(str(error))
            self._update.tensors |= found
            self._update.aborts |= asked.abort_all_requests
            self._update.weight_version = asked.weight_version or self._update.weight_version
        return _verdict()

    async def check(self, request: HttpRequest) -> Answer:
        """Hashes of the tensors that were handed to the engine: by Hugging Face's names, as nothing is fused here."""
        parse_body(request.body, CheckWeights)
        hash_weights = self._model.hash_weights
        if hash_weights is None:
            raise HttpProblem(501, "this engine cannot tell what its tensors hash to")
        async with self._lock:
            loaded = self._loaded
            if loaded is None:
                try:
                    loaded = await trio.to_thread.run_sync(self._load, self.path)
                except ConfigError as error:
                    return _verdict(str(error))
            checksums = loaded.hashes
            if checksums is None:
                checksums = await trio.to_thread.run_sync(hash_weights, loaded.weights)
            self._loaded = _Weights(loaded.weights, checksums)
        whole = sha256("".join(f"{name}{checksums[name]}" for name in sorted(checksums)).encode()).hexdigest()[:16]
        place = {"tp_rank": 0, "tp_size": 1}
        rank = {"checksums": checksums, "per_gpu_checksum": whole, "parallelism_info": place}
        return json_answer({"success": True, "message": "Success.", "ranks": [rank], "per_engine_checksum": whole})

    async def stage(self, request: HttpRequest) -> Answer:
        """Load and hash a folder's weights while others serve, so that `from_disk` of it need not in a pause."""
        path = parse_body(request.body, StageWeights).model_path
        async with self._lock:
            if not self._is_staged(path):
                self._staged = None  # room for the next ones
                try:
                    self._staged = path, await trio.to_thread.run_sync(self._load_and_hash, path)
                except ConfigError as error:
                    return _verdict(str(error))
        return _verdict()

    async def from_disk(self, request: HttpRequest) -> Answer:
        """Names and shapes are checked before anything changes; a repeated request changes nothing, unless the folder
        has been staged again for it."""
        asked = parse_body(request.body, UpdateFromDisk)
        async with self._lock:
            name = asked.weight_version
            is_repeated = (asked.model_path, name) == self._last_folder and name == self._names.current
            if is_repeated and not self._is_staged(asked.model_path):
                return _verdict()
            try:
                weights = await self._found(asked.model_path)
                await self._publish(weights, name, aborts=asked.abort_all_requests)
            except (ConfigError, EngineError) as error:
                return _verdict(str(error))
            self.path = asked.model_path
            self._last_folder = asked.model_path, self._names.current
        return _verdict()

    def _is_staged(self, path: str) -> bool:
        return self._staged is not None and self._staged[0] == path

    async def _found(self, path: str) -> "_Weights":
        staged, self._staged = self._staged, None
        if staged is not None and staged[0] == path:
            return staged[1]
        return await trio.to_thread.run_sync(self._load, path)

    def _load(self, path: str) -> "_Weights":
        return _Weights(self._model.load_weights(Path(path)))

    def _load_and_hash(self, path: str) -> "_Weights":
        weights, hash_weights = self._load(path).weights, self._model.hash_weights
        return _Weights(weights, None if hash_weights is None else hash_weights(weights))

    async def _publish(self, weights: "_Weights", name: str | None, *, aborts: bool) -> None:
        if aborts:
            self._turns.abort_all()
        unnamed = str(self._engine.version + 1)
        await self._engine.publish(weights.weights, self._names.next_version(unnamed if name is None else name))
        self._loaded = weights

    def _load_tensors(self, tensors: Tensors) -> Any:
        """By way of a folder, so that names, shapes and architecture are checked as those of any other."""
        with TemporaryDirectory(prefix="agentrl_jax-") as name:
            folder = Path(name)
            save_file(tensors, folder / "model.safetensors")
            if (config := Path(self._model.path) / "config.json").is_file():
                shutil.copy(config, folder)
            return self._model.load_weights(folder)


@dataclass(frozen=True, slots=True)
class _Weights:
    """As `load_weights` returns them. hashes: None as long as nobody has asked for them."""

    weights: Any
    hashes: Mapping[str, str] | None = None


class _TensorUpdate:
    """What has come between `begin_weight_update` and `end_weight_update`."""

    def __init__(self) -> None:
        self.tensors: Tensors = {}
        self.weight_version: str | None = None
        self.aborts = False


def _verdict(problem: str = "") -> Answer:
    verdict = {"success": not problem, "message": problem or "Succeeded."}
    return json_answer(verdict, 400 if problem else 200)
