"""Messages to token ids and back, as the controller sees it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from agentrl_jax.env import Action, Message, Tool
from agentrl_jax.types import Ids


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Context:
    """What comes before the next turn.

    ids: int32 [n]; behind all that stands, or the whole prompt of a new segment.
    starts_segment: the policy on history has rewritten what stood.
    """

    ids: Ids
    starts_segment: bool


class Stream(Protocol):
    """The ids of one episode, for one caller at a time."""

    def is_slow(self, messages: Sequence[Message], *, is_first: bool) -> bool:
        """Whether `begin` (`is_first`) or `follow` may take over a millisecond for `messages`."""
        ...

    def begin(self, messages: Sequence[Message]) -> Ids:
        """The ids before the first assistant turn, generation prompt included."""
        ...

    def follow(self, sampled: Ids, messages: Sequence[Message]) -> Context:
        """The ids before the next turn, when `messages` answer the turn `sampled`, which ended with a stop id."""
        ...


class Renderer(Protocol):
    """One chat template with one tokenizer. Sampled ids are never decoded and encoded again.

    For canonical turns of a template that only appends: `prompt(m0, tools) + sampled_1 + reply(m1) + sampled_2 + …`
    equals, id for id, the template's rendering of the whole conversation with a generation prompt.
    """

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end an assistant turn."""
        ...

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Ids:
        """The ids before the first assistant turn, generation prompt included."""
        ...

    def reply(self, messages: Sequence[Message], *, after: int | None = None) -> Ids:
        """The ids between a turn that ended with the stop id `after` and the next one: the template's separator, the
        messages (a run of tool messages as the template groups it), the generation prompt. Costs the same at every
        turn. Where the stop id is also the header of the first message, that header stands already.

        after: default, the one that the template would have written.
        """
        ...

    def stream(self, tools: Sequence[Tool]) -> Stream:
        """A new episode's ids."""
        ...

    def parse(self, ids: Ids) -> Action:
        """The assistant turn that `ids` (stop id included) spell. Never raises: malformed calls are `errors`."""
        ...
