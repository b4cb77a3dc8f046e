"""The requests carry the tensors: for small models, and servers that share no file system. No jax, no torch.

Measured at 30 MB/s: JSON, base64 and a pickle are in the way.
"""

import trio

from agentrl_jax.engines.exports import Export
from agentrl_jax.engines.sglang_weights import ServerWeights
from agentrl_jax.engines.transports.protocol import buckets
from agentrl_jax.engines.transports.torch_pickle import flattened_bucket

_BUCKET_BYTES = 32 << 20


class TensorTransport:
    """See `Transport`. tp_size: ranks of the server, each of which gets everything."""

    def __init__(self, weights: ServerWeights, tp_size: int) -> None:
        self._weights, self._tp_size = weights, tp_size

    async def prepare(self, export: Export) -> None:
        """See `Transport.prepare`."""
        await trio.lowlevel.checkpoint()

    async def load(self, export: Export, weight_version: str, *, flush_cache: bool) -> None:
        """See `Transport.load`."""
        is_open = await self._weights.begin()
        runs = list(buckets(export, _BUCKET_BYTES))
        for number, run in enumerate(runs):
            is_last = number == len(runs) - 1
            payload = flattened_bucket(
                [(name, export.places[name].shape, export.read(name)) for name in run], export.dtype
            )
            await self._weights.from_tensors(
                {
                    "serialized_named_tensors": [payload] * self._tp_size,
                    "load_format": "flattened_bucket",
                    "flush_cache": flush_cache and is_last,
                    "weight_version": weight_version if is_last else None,
                }
            )
        if is_open:
            await self._weights.end()
