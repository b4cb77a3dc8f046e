"""Messages to token ids and back, as the controller sees it."""

from collections.abc import Sequence
from typing import Protocol

from agentrl_jax.env import Action, Message, Tool
from agentrl_jax.types import Ids


class Renderer(Protocol):
    """One chat template with one tokenizer. Sampled ids are never decoded and encoded again.

    For canonical turns: `prompt(m0, tools) + sampled_1 + reply(m1) + sampled_2 + …` equals, id for id, the
    template's rendering of the whole conversation with a generation prompt.
    """

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end an assistant turn."""
        ...

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Ids:
        """The ids before the first assistant turn, generation prompt included."""
        ...

    def reply(self, messages: Sequence[Message]) -> Ids:
        """The ids between a turn that ended with a stop id and the next one: the template's separator, the
        messages (a run of tool messages as the template groups it), the generation prompt. Costs the same at
        every turn."""
        ...

    def parse(self, ids: Ids) -> Action:
        """The assistant turn that `ids` (stop id included) spell. Never raises: malformed calls are `errors`."""
        ...
