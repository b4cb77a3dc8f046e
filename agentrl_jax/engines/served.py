"""What an engine offers to a server in front of it, besides `Engine`: pauses, and a look at a running turn. No jax."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from agentrl_jax.engines.protocol import Engine
from agentrl_jax.types import Completion, Ids, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """What a running turn has sampled since the last report; logprobs as they came, so perhaps not finite."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    version: int


Watch = Callable[[Sampled], None]
"""Called on trio's thread, in order, with what a running turn samples; the last ids may come by its completion only."""


class ServableEngine(Engine, Protocol):
    """An engine that can stand behind `engines.server`."""

    async def generate(
        self, prompt_ids: Ids, sampling: SamplingParams, *, session: str, watch: Watch | None = None
    ) -> Completion:
        """See `Engine.generate`. watch: is told what the turn has sampled while it runs."""
        ...

    async def pause(self) -> None:
        """Return once no token is being sampled; none is until `resume`. Turns keep what they have, publishes are
        carried out, new turns wait. Pausing twice is pausing once."""
        ...

    async def resume(self) -> None:
        """Go on with every turn; without a pause it does nothing."""
        ...
