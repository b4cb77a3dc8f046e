"""The requests that put weights into a SGLang server, and ask what it holds. Values in, EngineError out. No jax."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import trio

from agentrl_jax.engines.http import HttpClient, HttpResponse
from agentrl_jax.engines.sglang_schema import PauseMode, Verdict
from agentrl_jax.errors import EngineError


class ServerFacts(msgspec.Struct, kw_only=True):
    """What publishing must know of a server, from /server_info. Fields that a server does not have are None."""

    version: str = ""
    engine: str = "sglang"
    device: str | None = None
    dtype: str | None = None
    tp_size: int = 1
    max_req_input_len: int | None = None
    context_length: int | None = None
    vocab_size: int | None = None
    quantization: str | None = None


class ModelFacts(msgspec.Struct, kw_only=True):
    """The same from /model_info."""

    model_path: str = ""
    weight_version: str = "default"
    model_type: str | None = None
    architectures: list[str] | None = None


class RankPlace(msgspec.Struct, kw_only=True):
    """Which of how many ranks that split the model's tensors."""

    tp_rank: Annotated[int, msgspec.Meta(ge=0)]
    tp_size: Annotated[int, msgspec.Meta(ge=1)]


class RankChecksums(msgspec.Struct, kw_only=True):
    """checksums: by the server's names of its tensors. parallelism_info: its place, once for each model that it has."""

    checksums: dict[str, str]
    parallelism_info: RankPlace | Annotated[list[RankPlace], msgspec.Meta(min_length=1)]

    @property
    def place(self) -> RankPlace:
        found = self.parallelism_info
        return found[0] if isinstance(found, list) else found


class Checksums(msgspec.Struct, kw_only=True):
    """The answer of /weights_checker: of each rank its tensors' hashes, and one hash of everything."""

    success: bool = True
    message: str = ""
    ranks: list[RankChecksums] = msgspec.field(default_factory=list)
    per_engine_checksum: str = ""


class ServerWeights:
    """The weights of one server. Every method raises EngineError if the server does not answer, or refuses."""

    def __init__(self, client: HttpClient, name: str) -> None:
        self._client, self._name = client, name
        self._going_on = trio.Event()
        self._going_on.set()

    @property
    def is_paused(self) -> bool:
        """Whether a pause was asked for here, and nobody has ended it."""
        return not self._going_on.is_set()

    async def going_on(self) -> None:
        """Return once it is not paused."""
        await self._going_on.wait()

    async def server_facts(self) -> ServerFacts:
        return self._checked(await self._client.get("/server_info")).decode(ServerFacts)

    async def model_facts(self) -> ModelFacts:
        return self._checked(await self._client.get("/model_info")).decode(ModelFacts)

    async def pause(self, mode: PauseMode) -> None:
        """Return once the server samples nothing, until `resume`."""
        if not self.is_paused:
            self._going_on = trio.Event()
        self._checked(await self._client.post("/pause_generation", {"mode": mode}, is_idempotent=True))

    async def resume(self) -> None:
        self._checked(await self._client.post("/continue_generation", {}, is_idempotent=True))
        self._going_on.set()

    async def abort_all(self) -> None:
        """End every turn of the server, whoever asked for it. Not while it is paused in_place: SGLang defers it."""
        self._checked(await self._client.post("/abort_request", {"abort_all": True}, is_idempotent=True))

    async def begin(self) -> bool:
        """Open an update, which tensors and broadcasts need; one that somebody left open is ended first.

        False for servers older than SGLang 0.5.21, which do without.
        """
        response = await self._client.post("/begin_weight_update", {}, is_idempotent=True)
        if response.status == 404:
            return False
        if response.status != 200 and b"open" in response.body:
            await self.end()
            response = await self._client.post("/begin_weight_update", {}, is_idempotent=True)
        self._verdict(response)
        return True

    async def end(self) -> None:
        """Finish the update that is open."""
        self._verdict(await self._client.post("/end_weight_update", {}, is_idempotent=True))

    async def stage(self, folder: Path) -> None:
        """Have a server of this package load and hash a folder while it samples, which `from_disk` then need not."""
        self._verdict(await self._client.post("/stage_weights", {"model_path": str(folder)}, is_idempotent=True))

    async def from_disk(self, folder: Path, weight_version: str, *, flush_cache: bool) -> None:
        """Load a folder of config.json and safetensors that the server can read under the same path."""
        body = {"model_path": str(folder), "weight_version": weight_version, "flush_cache": flush_cache}
        self._verdict(await self._client.post("/update_weights_from_disk", body, is_idempotent=True))

    async def from_tensors(self, body: Mapping[str, Any]) -> None:
        """Load tensors that the request itself holds; within an update that is open."""
        self._verdict(await self._client.post("/update_weights_from_tensor", body, is_idempotent=True))

    async def join_group(self, body: Mapping[str, Any]) -> None:
        """Join a process group for broadcasts; returns once all of its members have."""
        self._verdict(await self._client.post("/init_weights_update_group", body, is_idempotent=False))

    async def leave_group(self, group_name: str) -> None:
        body = {"group_name": group_name}
        self._verdict(await self._client.post("/destroy_weights_update_group", body, is_idempotent=False))

    async def from_broadcast(self, body: Mapping[str, Any]) -> None:
        """Receive one broadcast, which must be sent at the same time; within an update that is open."""
        self._verdict(await self._client.post("/update_weights_from_distributed", body, is_idempotent=False))

    async def checksums(self) -> Checksums | None:
        """Hashes of all tensors as the server holds them; None if it cannot tell."""
        response = await self._client.post("/weights_checker", {"action": "checksum"}, is_idempotent=True)
        if response.status in (404, 501):
            return None
        found = self._checked(response).decode(Checksums)
        if not found.success:
            raise EngineError(f"engine {self._name} could not hash its weights: {found.message}")
        return found

    def _verdict(self, response: HttpResponse) -> None:
        verdict = self._checked(response).decode(Verdict)
        if not verdict.success:
            raise EngineError(f"engine {self._name} at {self._client.url} refused weights: {verdict.message}")

    def _checked(self, response: HttpResponse) -> HttpResponse:
        if response.status != 200:
            said = response.body[:500].decode(errors="replace")
            raise EngineError(f"engine {self._name} at {self._client.url} answered {response.status}: {said}")
        return response
