"""Rows of the embedded engine's cache: which ids each holds, and which other row could spare it computing them."""

from collections.abc import Iterable
from dataclasses import dataclass

from agentrl_jax.engines.local.turns import ServedTurn
from agentrl_jax.types import Ids

# Fewer ids than this are computed rather than copied: a copy is a device call of its own.
WORTH_SHARING = 8


@dataclass(slots=True, eq=False)
class Slot:
    """One row of the cache. ids [T]: the segment it serves, of which the first num_ids count.

    leader: the slot whose first num_shared ids are this one's too, and are copied from there as soon as it holds them.
    """

    index: int
    ids: Ids
    version: int
    num_ids: int = 0
    num_held: int = 0
    session: str | None = None
    turn: ServedTurn | None = None
    last_used: int = 0
    is_poisoned: bool = False  # may hold values that are not finite
    leader: "Slot | None" = None
    num_shared: int = 0

    @property
    def num_pending(self) -> int:
        return self.num_ids - self.num_held

    def num_common(self, prompt: Ids, version: int) -> int:
        """How many ids of `prompt` need not be computed; at least its last one does, to draw after it."""
        if version != self.version or self.is_poisoned:
            return 0
        return count_common(self.ids, prompt, min(self.num_held, len(prompt) - 1))

    def follow(self, slots: Iterable["Slot"]) -> None:
        """Choose the leader: of `slots`, the one that holds, or is computing, most of what this one lacks."""
        self.leader, self.num_shared = None, self.num_held + WORTH_SHARING - 1
        most = self.num_ids - 1  # after the last one there is something to draw, so it is always fed
        if most <= self.num_shared:
            return
        for other in slots:
            reach = min(most, self._reach(other))
            if reach > self.num_shared and other.ids[self.num_shared] == self.ids[self.num_shared]:
                common = count_common(other.ids, self.ids, reach)
                if common > self.num_shared:
                    self.leader, self.num_shared = other, common

    @property
    def is_following(self) -> bool:
        """Whether the leader will still hold, in time, what it was chosen for; an aborted turn's slot may not."""
        leader, count = self.leader, self.num_shared
        return leader is not None and self._reach(leader) >= count == count_common(leader.ids, self.ids, count)

    def _reach(self, other: "Slot") -> int:
        """How many ids `other` holds, or will hold without waiting for this slot: turns wait for earlier ones only."""
        if other is self or other.version != self.version or other.is_poisoned:
            return 0
        assert self.turn is not None
        is_earlier = other.turn is not None and other.turn.request_id < self.turn.request_id
        return other.num_ids if is_earlier else other.num_held


def count_common(a: Ids, b: Ids, length: int) -> int:
    """Return how many of the first `length` ids are equal up to the first that differs."""
    differs = a[:length] != b[:length]
    first = int(differs.argmax()) if length else 0
    return first if length and differs[first] else length
