"""What the device is to do next, as host arrays of fixed shapes. No jax."""

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from jaxtyping import Float, Int, UInt32

from agentrl_jax.types import Bools, Ids


def seed_words(seed: int) -> npt.NDArray[np.uint32]:
    """Return the two 32-bit words of `seed`, high word first: the form in which a seed travels to the device."""
    return np.array([(seed >> 32) & 0xFFFFFFFF, seed & 0xFFFFFFFF], np.uint32)


class Draws(NamedTuple):
    """What the draws of a call depend on besides the logits, per row; host or device arrays (see sampler.sample)."""

    seeds: UInt32[Any, "R 2"]
    indices: Int[Any, " R"]
    temperatures: Float[Any, " R"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrefillStep:
    """Feed known ids to some slots. ids [P, C], slots, starts and counts [P]; see forward.prefill_chunk.

    num_rows: the first rows, which have work.
    """

    num_rows: int
    ids: Ids
    slots: Ids
    starts: Ids
    counts: Ids
    draws: Draws


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodeStep:
    """Sample a block in all slots at once. tokens and starts [S]; see forward.decode_block.

    slots: those that have work.
    """

    slots: tuple[int, ...]
    tokens: Ids
    starts: Ids
    draws: Draws


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClearStep:
    """Zero the slots whose `keep` [S] is False."""

    keep: Bools


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CopyStep:
    """Give slots a copy of what others hold. sources and counts [S]; see cache.copy_prefixes."""

    sources: Ids
    counts: Ids


Step: TypeAlias = PrefillStep | DecodeStep | ClearStep | CopyStep
