"""Which rows batches are packed into, where a user does not say: they follow from the longest episode and the mesh."""

import math

from agentrl_jax.packing import PackingConfig
from agentrl_jax.sharding import parse_mesh

MOST_CONTEXT_UNASKED = 1024
"""Longest episode that a run takes on unasked: the embedded engine's decode reads its whole cache at every step."""

_ROWS = 4
"""Rows of a micro-batch where nothing else is asked for: on a CPU its activations stay in cache."""

_SIZE_STEP = 32
"""Sizes are multiples of this, so that runs that differ a little share their compiled shapes."""


def rounded(num_tokens: float) -> int:
    """The next size that rows have.

    >>> rounded(33)
    64
    """
    return math.ceil(num_tokens / _SIZE_STEP) * _SIZE_STEP


def packing_for(longest: int, *, mesh: str, rows_per_device: int | None, row_buckets: int) -> PackingConfig:
    """Rows that hold `longest` tokens, and a half, a quarter, … of it, `row_buckets` lengths in all.

    >>> packing_for(100, mesh="2", rows_per_device=None, row_buckets=2)
    PackingConfig(row_tokens=(64, 128), rows_per_micro_batch=4)
    """
    shards = parse_mesh(mesh).num_row_shards
    rows = rows_per_device or max(1, _ROWS // shards)
    lengths = {rounded(longest / 2**halvings) for halvings in range(row_buckets)}
    return PackingConfig(row_tokens=tuple(sorted(lengths)), rows_per_micro_batch=rows * shards)
