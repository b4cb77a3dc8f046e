"""What the device is to do next, as host arrays of fixed shapes. No jax."""

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from jaxtyping import Float, Int, UInt32

from agentrl_jax.types import Bools, Ids, SamplingParams


def seed_words(seed: int) -> npt.NDArray[np.uint32]:
    """Return the two 32-bit words of `seed`, high word first: the form in which a seed travels to the device."""
    return np.array([(seed >> 32) & 0xFFFFFFFF, seed & 0xFFFFFFFF], np.uint32)


class Truncations(NamedTuple):
    """`types.Truncation` by row."""

    top_ks: Int[Any, " R"]
    top_ps: Float[Any, " R"]
    min_ps: Float[Any, " R"]


class Draws(NamedTuple):
    """What the draws of a call depend on besides the logits, per row; host or device arrays (see sampler.sample)."""

    seeds: UInt32[Any, "R 2"]
    indices: Int[Any, " R"]
    temperatures: Float[Any, " R"]
    truncations: Truncations | None = None


class Samplings:
    """How the turns in the slots are sampled, in arrays that steps take their rows from."""

    def __init__(self, num_slots: int) -> None:
        self._seeds = np.zeros((num_slots, 2), np.uint32)
        self._temperatures, self._top_ps, self._min_ps = np.zeros((3, num_slots), np.float32)
        self._top_ks = np.zeros(num_slots, np.int32)
        self._top_ps[:] = 1.0

    def assign(self, slot: int, sampling: SamplingParams) -> None:
        cut = sampling.truncation
        self._seeds[slot], self._temperatures[slot] = seed_words(sampling.seed), sampling.temperature
        self._top_ks[slot], self._top_ps[slot], self._min_ps[slot] = cut.top_k, cut.top_p, cut.min_p

    def release(self, slot: int) -> None:
        """A slot without a turn must not make a call look for what to cut off."""
        self._top_ks[slot], self._top_ps[slot], self._min_ps[slot] = 0, 1.0, 0.0

    def draws(self, slots: Ids, indices: Ids) -> Draws:
        """Copies of the rows of `slots`."""
        cuts = Truncations(self._top_ks[slots], self._top_ps[slots], self._min_ps[slots])
        return Draws(self._seeds[slots], indices, self._temperatures[slots], cuts)


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
