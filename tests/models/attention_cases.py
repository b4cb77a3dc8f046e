"""Packed rows for attention, and what it should make of them."""

import numpy as np

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 16
LENGTHS = ((5, 9, 3), (20,), ())  # of the segments of each row; the rest is padding


def make_rows(length: int, lengths=LENGTHS, seed: int = 0, heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM):
    """Return (q, k, v, segment_ids, positions)."""
    rng = np.random.default_rng(seed)
    segment_ids = np.zeros((len(lengths), length), np.int32)
    positions = np.zeros_like(segment_ids)
    for row, sizes in enumerate(lengths):
        start = 0
        for number, size in enumerate(sizes, start=1):
            segment_ids[row, start : start + size] = number
            positions[row, start : start + size] = np.arange(size)
            start += size
    q = rng.standard_normal((len(lengths), length, heads, head_dim)).astype(np.float32)
    k, v = rng.standard_normal((2, len(lengths), length, kv_heads, head_dim)).astype(np.float32)
    return q, k, v, segment_ids, positions


def by_loops(q, k, v, segment_ids, positions):
    """One token and head at a time, in float64."""
    out = np.zeros(q.shape, np.float64)
    for b, t in np.argwhere(segment_ids > 0):
        seen = (segment_ids[b] == segment_ids[b, t]) & (positions[b] <= positions[b, t])
        for h in range(q.shape[2]):
            kv = h // (q.shape[2] // k.shape[2])
            scores = k[b, seen, kv].astype(np.float64) @ q[b, t, h] / np.sqrt(q.shape[3])
            weights = np.exp(scores - scores.max())
            out[b, t, h] = weights @ v[b, seen, kv] / weights.sum()
    return out
