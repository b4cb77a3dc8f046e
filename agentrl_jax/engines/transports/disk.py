"""The server reads the export's folder itself. No jax."""

import trio

from agentrl_jax.engines.exports import Export
from agentrl_jax.engines.sglang_weights import ServerWeights


class DiskTransport:
    """See `Transport`."""

    def __init__(self, weights: ServerWeights) -> None:
        self._weights = weights

    async def prepare(self) -> None:
        """See `Transport.prepare`."""
        await trio.lowlevel.checkpoint()

    async def load(self, export: Export, weight_version: str, *, flush_cache: bool) -> None:
        """See `Transport.load`."""
        await self._weights.from_disk(export.folder, weight_version, flush_cache=flush_cache)
