"""The turns that a server's clients are waiting for: each has a name, and can be aborted by it. No jax."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import trio

from agentrl_jax.engines.http_server import HttpProblem
from agentrl_jax.engines.served import Sampled, ServableEngine
from agentrl_jax.types import Completion, Ids, SamplingParams, as_ids


@dataclass(slots=True, eq=False)
class Turn:
    """One turn and what is known of it so far. logprobs: None where the engine's was not finite. finish_reason: in
    SGLang's form; None while it runs. failure: why it has none. on_news: called when ids have come.
    name_of: what clients call a version of the engine."""

    rid: str
    prompt: Ids
    sampling: SamplingParams
    session: str
    ids: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    finish_reason: dict[str, Any] | None = None
    failure: Exception | None = None
    started_at: float = 0.0
    on_news: Callable[[], None] = lambda: None
    name_of: Callable[[int], str] = str

    def watch(self, sampled: Sampled) -> None:
        self.ids += sampled.ids
        self.logprobs += (logprob if abs(logprob) < float("inf") else None for logprob in sampled.logprobs)
        self.versions += [sampled.version] * len(sampled.ids)
        self.on_news()

    def finish(self, completion: Completion) -> None:
        pairs = zip(completion.logprobs.tolist(), completion.loss_mask.tolist(), strict=True)
        self.ids = completion.ids.tolist()
        self.logprobs = [logprob if is_finite else None for logprob, is_finite in pairs]
        self.versions = completion.versions.tolist()
        self.cached_tokens = completion.cached_tokens
        if completion.finish_reason == "stop":
            self.finish_reason = {"type": "stop", "matched": self.ids[-1]}
        else:
            self.finish_reason = {"type": "length", "length": len(self.ids)}

    def completed_ids(self) -> Ids:
        return as_ids(self.ids)

    def spans(self, current: int) -> list[dict[str, Any]]:
        """SGLang's `weight_versions`. current: the version of a turn that has no id yet."""
        if not self.versions:
            return [{"version": self.name_of(current), "start": 0, "end": 0}]
        starts = [i for i, version in enumerate(self.versions) if i == 0 or version != self.versions[i - 1]]
        ends = [*starts[1:], len(self.versions)]
        return [
            {"version": self.name_of(self.versions[start]), "start": start, "end": end}
            for start, end in zip(starts, ends, strict=True)
        ]

    def meta_info(self, current: int, *, with_logprobs: bool) -> dict[str, Any]:
        spans = self.spans(current)
        meta = {
            "id": self.rid,
            "finish_reason": self.finish_reason,
            "prompt_tokens": len(self.prompt),
            "completion_tokens": len(self.ids),
            "cached_tokens": self.cached_tokens,
            "weight_version": spans[-1]["version"],
            "weight_versions": spans,
            "num_retractions": len(spans) - 1,  # what a version change makes the engine compute again
            "e2e_latency": trio.current_time() - self.started_at,
        }
        if with_logprobs:
            triples = [(logprob, token, None) for logprob, token in zip(self.logprobs, self.ids, strict=True)]
            meta |= {
                "input_token_logprobs": [],
                "output_token_logprobs": triples,
                "output_token_logprobs_length": len(triples),
            }
        return meta


class ServedTurns:
    """See the module."""

    def __init__(self, engine: ServableEngine) -> None:
        self._engine = engine
        self._scopes: dict[str, trio.CancelScope] = {}

    def __len__(self) -> int:
        return len(self._scopes)

    def check_free(self, rid: str) -> None:
        """Raise HttpProblem if a turn of this name is under way."""
        if rid in self._scopes:
            raise HttpProblem(400, f"Duplicate request ID detected: {rid}")

    def abort(self, rid: str) -> None:
        """End a turn: its client gets what has been sampled. Unknown names are fine: it may just have finished."""
        if rid in self._scopes:
            self._scopes[rid].cancel()

    def abort_all(self) -> None:
        for scope in self._scopes.values():
            scope.cancel()

    async def serve(self, turn: Turn) -> None:
        """Run `turn` until it has finished or was aborted. Raises EngineError, and HttpProblem if its name is taken."""
        turn.started_at = trio.current_time()
        with self._scope(turn.rid) as scope:
            completion = await self._engine.generate(turn.prompt, turn.sampling, session=turn.session, watch=turn.watch)
            turn.finish(completion)
        if scope.cancelled_caught:
            turn.finish_reason = {"type": "abort", "message": "Aborted by a request", "status_code": None}

    @contextmanager
    def _scope(self, rid: str) -> Iterator[trio.CancelScope]:
        self.check_free(rid)
        with trio.CancelScope() as scope:
            self._scopes[rid] = scope
            try:
                yield scope
            finally:
                del self._scopes[rid]
