"""The server reads the export's folder itself. No jax."""

import trio

from agentrl_jax.engines.exports import Export
from agentrl_jax.engines.sglang_weights import ServerWeights


class DiskTransport:
    """See `Transport`. stages: whether the server can load an export ahead of its pause, as SGLang cannot."""

    def __init__(self, weights: ServerWeights, *, stages: bool) -> None:
        self._weights, self._stages = weights, stages

    async def prepare(self, export: Export) -> None:
        """See `Transport.prepare`."""
        if self._stages:
            await self._weights.stage(export.folder)
        else:
            await trio.lowlevel.checkpoint()

    async def load(self, export: Export, weight_version: str, *, flush_cache: bool) -> None:
        """See `Transport.load`."""
        await self._weights.from_disk(export.folder, weight_version, flush_cache=flush_cache)
