"""What every inference engine offers to the controller. No jax, no transport."""

from dataclasses import dataclass
from typing import Any, Protocol

from agentrl_jax.types import Completion, Ids, Pool, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatistics:
    """A snapshot of counters since the start (`num_*`, `*_tokens`) and of what is going on now (`running`, …).

    cached_tokens: of prompts, not computed for the turn that asked. shared_tokens: ids whose keys and values came from
    another session's. prefilled_tokens: ids computed before a draw, those computed anew after a publish included.
    """

    version: int
    running: int
    waiting: int
    num_requests: int
    num_aborted: int
    prompt_tokens: int
    cached_tokens: int
    sampled_tokens: int
    num_nonfinite_logprobs: int
    num_publishes: int
    shared_tokens: int = 0
    prefilled_tokens: int = 0

    @property
    def prefill_saved_frac(self) -> float:
        """1 - prefilled_tokens / prompt_tokens: the share of prompts that nobody computed; 0 before the first turn."""
        return 1.0 - self.prefilled_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


class Engine(Protocol):
    """Serves turns by one policy. Coroutine methods may be called from any number of trio tasks at a time."""

    @property
    def name(self) -> str: ...

    @property
    def pool(self) -> Pool: ...

    @property
    def version(self) -> int:
        """The policy version that the next token will be sampled with."""
        ...

    async def generate(self, prompt_ids: Ids, sampling: SamplingParams, *, session: str) -> Completion:
        """Sample one turn after `prompt_ids` (the whole segment so far).

        `session` names the episode: an engine may keep its prefix between turns. Same ids, params, version and
        seed give the same completion whatever else is running, but for rounding: log-probabilities may differ in
        their last digits, and a draw with them where two ids are that close. Cancelling the caller aborts the request.
        Raises EngineError.
        """
        ...

    async def end_session(self, session: str) -> None:
        """Forget what is kept for `session`; unknown sessions are fine."""
        ...

    async def publish(self, weights: Any, version: int) -> None:
        """Serve `weights` as `version` from now on; returns once no further token is sampled by older ones.

        Running turns go on under the new version (their completion then has several version spans). Versions
        must increase. Raises EngineError, and keeps serving the old weights, if `weights` do not fit.
        """
        ...

    def statistics(self) -> EngineStatistics: ...
