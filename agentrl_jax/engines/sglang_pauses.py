"""Whether a SGLang server samples, and has its memory: pauses, and what is given up or taken away in them. No jax."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Literal, TypeAlias, get_args

import trio

from agentrl_jax.engines.http import HttpClient, HttpError
from agentrl_jax.engines.sglang_schema import PauseMode
from agentrl_jax.engines.sglang_weights import ServerWeights
from agentrl_jax.errors import EngineError

MemoryTag: TypeAlias = Literal["kv_cache", "weights", "cuda_graph"]
MEMORY_TAGS: tuple[MemoryTag, ...] = get_args(MemoryTag)

CLEANUP_S = 5.0
"""How long a caller that was cancelled may take to put the server right: end its turn, go on after a pause."""

_NUM_RESUMES = 3


class ServerPauses:
    """State of one server as this client knows it. mode: what a pause does to running turns."""

    def __init__(self, client: HttpClient, weights: ServerWeights, mode: PauseMode) -> None:
        self._client, self._weights, self._mode = client, weights, mode
        self._released: set[MemoryTag] = set()

    @property
    def released(self) -> frozenset[MemoryTag]:
        """The parts of its memory that it does not have."""
        return frozenset(self._released)

    async def pause(self) -> None:
        """Return once nothing is sampled, until `resume`. Raises EngineError."""
        await self._weights.pause(self._mode)

    async def resume(self) -> None:
        """Go on with every turn. Raises EngineError if the server cannot be told."""
        for attempt in range(1, _NUM_RESUMES + 1):
            try:
                await self._weights.resume()
                break
            except HttpError:  # perhaps it has been told: a pause that nobody ends is worse than telling it twice
                if attempt == _NUM_RESUMES:
                    raise

    async def give_up(self, rid: str) -> None:
        """End the turn of this name, once the server is not paused; whatever becomes of the caller."""
        try:
            # SGLang forgets the abort of a turn that came in a pause, and takes no second one.
            await self._weights.going_on()
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + CLEANUP_S), suppress(EngineError):
                await self._client.post("/abort_request", {"rid": rid}, is_idempotent=True)

    async def release_memory(self, tags: Sequence[MemoryTag]) -> None:
        """Pause, and give these parts of the device's memory to somebody else; their contents are lost."""
        await self.pause()  # SGLang ends if it releases memory that a turn of anybody uses
        self._released.update(tags)
        response = await self._client.post("/release_memory_occupation", {"tags": list(tags)}, is_idempotent=False)
        self._check(response.status, response.body)

    async def restore_memory(self, tags: Sequence[MemoryTag]) -> None:
        """Take these parts back; with the last one sampling goes on."""
        response = await self._client.post("/resume_memory_occupation", {"tags": list(tags)}, is_idempotent=False)
        self._check(response.status, response.body)
        self._released.difference_update(tags)
        if not self._released:
            await self.resume()

    def _check(self, status: int, body: bytes) -> None:
        if status != 200:
            raise EngineError(f"{self._client.url} answered {status}: {body[:500].decode(errors='replace')}")
