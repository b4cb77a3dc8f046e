"""An `Engine` that is a SGLang server, or this package's own behind the same interface, on the network. No jax.

Weights travel as a folder that the server can read too. Invariants:
- Names and shapes are checked on this side before anything is sent: SGLang ignores unknown names, and ends at a wrong
  shape.
- Whatever happens to a publish, the server is asked to go on with sampling.
- Prefixes are kept apart by version, so that no prompt builds on a cache that other weights have computed.
"""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import trio

from agentrl_jax.engines.http import Connect, HttpClient, HttpResponse, open_http_client
from agentrl_jax.engines.protocol import EngineStatistics
from agentrl_jax.engines.sglang_schema import Generated, ModelInfo, PauseMode, ServerInfo, Verdict, WeightVersion
from agentrl_jax.engines.weight_folder import TensorShapes, check_tensors
from agentrl_jax.errors import EngineError, RecordError
from agentrl_jax.types import Completion, FinishReason, Ids, Pool, SamplingParams, VersionSpan

_UNNAMED = "default"
"""What a server calls the weights that it was started with."""

_CLEANUP_S = 5.0
"""How long a cancelled publish may take to let the server go on with sampling."""


@asynccontextmanager
async def open_sglang_engine(
    url: str,
    *,
    tensors: TensorShapes,
    name: str,
    pool: Pool = "current",
    version: int = 0,
    token: str | None = None,
    pause_mode: PauseMode = "retract",
    connect: Connect | None = None,
) -> AsyncIterator["SGLangEngine"]:
    """The engine at `url`, for the length of the block; turns that are unfinished then are aborted.

    tensors: every tensor of the model (`weight_folder.tensor_shapes` of any checkpoint). version: of the weights that
    the server was started with, where it does not say itself. pause_mode: what a publish does to running turns.
    retract: they go on, their cache computed anew by the new weights; in_place: with the cache of the old ones, which
    is quicker and leaves log-probabilities that no single version explains; abort: they fail with EngineError.
    Raises EngineError if the server does not answer or refuses the token, ConfigError for a URL that is none.
    """
    async with open_http_client(url, token=token, connect=connect) as client, trio.open_nursery() as nursery:
        engine = SGLangEngine(
            client, nursery, tensors=tensors, name=name, pool=pool, version=version, pause_mode=pause_mode
        )
        await engine.refresh()
        yield engine
        nursery.cancel_scope.cancel()


class SGLangEngine:
    """Implements `engines.protocol.Engine`. Made by `open_sglang_engine`."""

    def __init__(
        self,
        client: HttpClient,
        nursery: trio.Nursery,
        *,
        tensors: TensorShapes,
        name: str,
        pool: Pool,
        version: int,
        pause_mode: PauseMode,
    ) -> None:
        self._client, self._nursery, self._tensors = client, nursery, tensors
        self._name, self._pool = name, pool
        self._version = self._first_version = version
        self._pause_mode = pause_mode
        self._info = ServerInfo()
        self._publishing = trio.Lock()
        self._running = self._num_requests = self._num_aborted = self._num_publishes = 0
        self._prompt_tokens = self._cached_tokens = self._sampled_tokens = self._num_nonfinite = 0

    @property
    def name(self) -> str:
        return self._name

    @property
    def pool(self) -> Pool:
        return self._pool

    @property
    def version(self) -> int:
        """The policy version that the server is known to serve."""
        return self._version

    @property
    def server(self) -> ServerInfo:
        """What the server said of itself at the last `refresh`."""
        return self._info

    def statistics(self) -> EngineStatistics:
        """Of what was asked for by this client."""
        return EngineStatistics(
            version=self._version,
            running=self._running,
            waiting=0,
            num_requests=self._num_requests,
            num_aborted=self._num_aborted,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            sampled_tokens=self._sampled_tokens,
            num_nonfinite_logprobs=self._num_nonfinite,
            num_publishes=self._num_publishes,
        )

    async def refresh(self) -> ModelInfo:
        """Ask the server what it is and serves; also whether it is there at all. Raises EngineError."""
        self._info = self._checked(await self._client.get("/server_info")).decode(ServerInfo)
        model = self._checked(await self._client.get("/model_info")).decode(ModelInfo)
        self._version = self._to_version(model.weight_version)
        return model

    async def generate(self, prompt_ids: Ids, sampling: SamplingParams, *, session: str) -> Completion:
        """See `Engine.generate`. Raises EngineError also for a turn that somebody else aborted, and where the server
        serves an older version than it was given: it has been restarted, and `version` says what it has."""
        if not len(prompt_ids):
            raise EngineError(f"engine {self._name}: a prompt needs at least one id, got none (session {session!r})")
        self._num_requests += 1
        self._running += 1
        rid, expected, is_over = uuid4().hex, self._version, False
        try:
            response = await self._client.post(
                "/generate", _generate_body(rid, prompt_ids, sampling, session, expected), is_idempotent=True
            )
            is_over = True
        except EngineError:
            is_over = True
            raise
        finally:
            self._running -= 1
            if not is_over:  # cancelled
                self._num_aborted += 1
                self._nursery.start_soon(self._abort, rid)
        generated = self._checked(response).decode(Generated)
        try:
            completion = self._completion(generated, session)
        except (RecordError, OverflowError) as error:
            raise EngineError(
                f"engine {self._name} answered a turn of session {session!r} by no turn: {error}"
            ) from error
        self._count(completion, len(prompt_ids))
        self._check_version(completion, expected)
        return completion

    async def end_session(self, session: str) -> None:
        """See `Engine.end_session`. SGLang's own cache is one for all, and drops what is not used."""
        if self._info.engine != "sglang":
            self._checked(await self._client.post("/close_session", {"session_id": session}, is_idempotent=True))
        else:
            await trio.lowlevel.checkpoint()

    async def pause(self) -> None:
        """Return once the server samples nothing, until `resume`. Raises EngineError."""
        self._checked(await self._client.post("/pause_generation", {"mode": self._pause_mode}, is_idempotent=True))

    async def resume(self) -> None:
        """Go on with every turn. Raises EngineError."""
        self._checked(await self._client.post("/continue_generation", {}, is_idempotent=True))

    async def abort_all(self) -> None:
        """End every turn of the server, whoever asked for it. Raises EngineError."""
        self._checked(await self._client.post("/abort_request", {"abort_all": True}, is_idempotent=True))

    async def publish(self, weights: Any, version: int) -> None:
        """See `Engine.publish`. weights: a folder, as a path, that the server can read; it must not change later.

        Repeating a publish whose answer was lost is fine.
        """
        folder = Path(weights)
        async with self._publishing:
            known = self._version
            model = await self.refresh()
            if known < version == self._version and model.model_path == str(folder):
                return
            if version <= self._version:
                raise EngineError(f"engine {self._name}: versions must increase, got {version} after {self._version}")
            await trio.to_thread.run_sync(check_tensors, folder, self._tensors)
            await self._update(folder, version)
            self._version = version
            self._num_publishes += 1

    async def _update(self, folder: Path, version: int) -> None:
        body = {
            "model_path": str(folder),
            "weight_version": str(version),
            "flush_cache": self._pause_mode != "in_place",  # SGLang cannot while turns keep their cache
        }
        is_resumed = False
        try:
            await self.pause()
            response = await self._client.post("/update_weights_from_disk", body, is_idempotent=True)
            await self.resume()
            is_resumed = True
        finally:
            if not is_resumed:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + _CLEANUP_S), suppress(EngineError):
                    await self.resume()
        verdict = self._checked(response).decode(Verdict)
        if not verdict.success:
            raise EngineError(f"engine {self._name} did not take version {version}: {verdict.message}")

    async def _abort(self, rid: str) -> None:
        # Closing the connection aborts a turn too, but SGLang may notice seconds later.
        with suppress(EngineError):
            await self._client.post("/abort_request", {"rid": rid}, is_idempotent=True)

    def _checked(self, response: HttpResponse) -> HttpResponse:
        if response.status != 200:
            said = response.body[:500].decode(errors="replace")
            raise EngineError(f"engine {self._name} at {self._client.url} answered {response.status}: {said}")
        return response

    def _to_version(self, said: str | int) -> int:
        if said == _UNNAMED:
            return self._first_version
        try:
            return int(said)
        except ValueError as error:
            raise EngineError(
                f"engine {self._name}: expected a weight version that is a number, the server has {said!r}; somebody "
                "else publishes to it"
            ) from error

    def _completion(self, generated: Generated, session: str) -> Completion:
        meta, ids = generated.meta_info, generated.output_ids
        kind = meta.finish_reason.type if meta.finish_reason is not None else "no reason"
        if kind not in ("stop", "length"):
            message = meta.finish_reason.message if meta.finish_reason is not None else ""
            raise EngineError(f"engine {self._name} ended a turn of session {session!r} by {kind}: {message}")
        reported = meta.output_token_logprobs
        if reported is None or [token for _, token, _ in reported] != ids or not ids:
            raise EngineError(
                f"engine {self._name}: expected a log-probability for each of {len(ids)} ids, got "
                f"{'none' if reported is None else len(reported)} (session {session!r})"
            )
        raw = np.array([math.nan if logprob is None else logprob for logprob, _, _ in reported], np.float32)
        is_finite = np.isfinite(raw)
        spans = meta.weight_versions or [WeightVersion(version=meta.weight_version or _UNNAMED, start=0, end=len(ids))]
        finish_reason: FinishReason = "stop" if kind == "stop" else "length"
        return Completion(
            ids=np.array(ids, np.int32),
            logprobs=np.where(is_finite, np.minimum(raw, 0.0), 0.0),
            loss_mask=is_finite,
            version_spans=tuple(
                VersionSpan(version=self._to_version(span.version), start=span.start, end=span.end) for span in spans
            ),
            finish_reason=finish_reason,
            engine=self._name,
            pool=self._pool,
            cached_tokens=meta.cached_tokens,
        )

    def _count(self, completion: Completion, num_prompt: int) -> None:
        self._prompt_tokens += num_prompt
        self._cached_tokens += completion.cached_tokens
        self._sampled_tokens += len(completion.ids)
        self._num_nonfinite += int((~completion.loss_mask).sum())

    def _check_version(self, completion: Completion, expected: int) -> None:
        served = completion.version_spans[-1].version
        if served < expected:
            self._version = min(self._version, served)
            raise EngineError(
                f"engine {self._name} at {self._client.url} serves version {served}, but was given {expected}: it has "
                "been restarted since; publish to it again"
            )


def _generate_body(rid: str, prompt: Ids, sampling: SamplingParams, session: str, version: int) -> dict[str, Any]:
    return {
        "rid": rid,
        "input_ids": prompt.tolist(),
        "sampling_params": {
            "temperature": sampling.temperature,
            "max_new_tokens": sampling.max_new_tokens,
            "stop_token_ids": list(sampling.stop_ids),
            "sampling_seed": sampling.seed,
            "top_k": sampling.truncation.top_k or -1,
            "top_p": sampling.truncation.top_p,
            "min_p": sampling.truncation.min_p,
        },
        "return_logprob": True,
        "session_id": session,
        "cache_salt": f"v{version}",
    }
