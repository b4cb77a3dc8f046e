"""An `Engine` that is a SGLang server, or this package's own behind the same interface, on the network. No jax.

Weights travel as a folder that the server can read too; `weights` offers the requests for other ways. Invariants:
- What would end a server (ids outside the vocabulary, tensors of a wrong shape) or be ignored by it (unknown names) is
  refused on this side before anything is sent.
- Whatever happens to a publish, the server is asked to go on with sampling.
- A turn that its caller gives up is ended on the server too, at the latest when a pause is over.
- Prefixes are kept apart by version, so that no prompt builds on a cache that other weights have computed. Where
  publishes are `in_place`, the version is that at which the session began: nothing in its cache is older.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import trio

from agentrl_jax.engines.http import HttpClient, HttpResponse, open_http_client
from agentrl_jax.engines.http_connect import Connect
from agentrl_jax.engines.protocol import EngineStatistics
from agentrl_jax.engines.sglang_pauses import CLEANUP_S, MEMORY_TAGS, MemoryTag, ServerPauses
from agentrl_jax.engines.sglang_schema import Generated, ModelInfo, PauseMode, ServerInfo
from agentrl_jax.engines.sglang_turns import UNNAMED, generate_body, to_completion, unfit
from agentrl_jax.engines.sglang_weights import ServerWeights
from agentrl_jax.engines.weight_folder import TensorShapes, check_tensors
from agentrl_jax.errors import EngineError, RecordError
from agentrl_jax.types import Completion, Ids, Pool, SamplingParams, Truncation


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
    truncates: bool = False,
    connect: Connect | None = None,
) -> AsyncIterator["SGLangEngine"]:
    """The engine at `url`, for the length of the block; turns that are unfinished then are aborted.

    tensors: every tensor of the model (`weight_folder.tensor_shapes` of any checkpoint). version: of the weights that
    the server was started with, where it does not say itself. pause_mode: what a publish does to running turns.
    retract: they go on, their cache computed anew by the new weights; in_place: with the cache of the old ones, as the
    session's next turns do, which is quicker and leaves log-probabilities that no single version explains; abort: they
    fail with EngineError.
    truncates: whether turns may be drawn with a top_k, top_p or min_p, as evaluations may; their log-probabilities
    are not those that they were drawn with, so training must not.
    Raises EngineError if the server does not answer, refuses the token, or draws by other rules than it reports;
    ConfigError for a URL that is none.
    """
    async with open_http_client(url, token=token, connect=connect) as client, trio.open_nursery() as nursery:
        engine = SGLangEngine(
            client,
            nursery,
            tensors=tensors,
            name=name,
            pool=pool,
            version=version,
            pause_mode=pause_mode,
            truncates=truncates,
        )
        await engine.refresh()
        yield engine
        nursery.cancel_scope.cancel()


class SGLangEngine:
    """Implements `engines.protocol.Engine`. Made by `open_sglang_engine`.

    weights: the server's weight endpoints, for whoever publishes by other ways than `publish`.
    """

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
        truncates: bool,
    ) -> None:
        self.weights = ServerWeights(client, name)
        self._client, self._nursery, self._tensors = client, nursery, tensors
        self._name, self._pool = name, pool
        self._version = self._first_version = version
        self._pauses = ServerPauses(client, self.weights, pause_mode)
        self._pause_mode, self._truncates = pause_mode, truncates
        self._begun: dict[str, int] = {}  # the version of each session's first turn, where publishes are in_place
        embeddings = [shape for tensor, shape in tensors.items() if tensor.endswith("embed_tokens.weight")]
        self._vocab_size = embeddings[0][0] if embeddings else None
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
        """Ask the server what it is and serves; also whether it is there at all, and at any time: SGLang's own health
        check fails in a long pause. Raises EngineError, also if it draws by other rules than it reports."""
        self._info = self._checked(await self._client.get("/server_info")).decode(ServerInfo)
        model = self._checked(await self._client.get("/model_info")).decode(ModelInfo)
        if reasons := unfit(self._info, model):
            raise EngineError(
                f"engine {self._name} at {self._client.url} cannot be trained with, as its log-probabilities are not "
                f"those that it draws with: {'; '.join(reasons)}"
            )
        self._version = self._to_version(model.weight_version)
        return model

    async def generate(self, prompt_ids: Ids, sampling: SamplingParams, *, session: str) -> Completion:
        """See `Engine.generate`. Raises EngineError also for a turn that somebody else aborted, and where the server
        serves an older version than it was given: it has been restarted, and `version` says what it has."""
        self._check_turn(prompt_ids, sampling, session)
        self._num_requests += 1
        self._running += 1
        expected = self._version
        try:
            response = await self._ask(prompt_ids, sampling, session)
        finally:
            self._running -= 1
        generated = self._checked(response).decode(Generated)
        try:
            completion = to_completion(
                generated, engine=self._name, pool=self._pool, session=session, to_version=self._to_version
            )
        except (RecordError, OverflowError) as error:
            raise EngineError(
                f"engine {self._name} answered a turn of session {session!r} by no turn: {error}"
            ) from error
        self._count(completion, len(prompt_ids))
        self._check_version(completion, expected)
        return completion

    async def end_session(self, session: str) -> None:
        """See `Engine.end_session`. SGLang's own cache is one for all, and drops what is not used."""
        self.forget(session)
        if self._info.engine != "sglang":
            self._checked(await self._client.post("/close_session", {"session_id": session}, is_idempotent=True))
        else:
            await trio.lowlevel.checkpoint()

    def forget(self, session: str) -> None:
        """End a session on this side alone, as where the server is out: another one may have its name."""
        self._begun.pop(session, None)

    async def pause(self) -> None:
        """Return once the server samples nothing, until `resume`. Raises EngineError."""
        await self._pauses.pause()

    async def resume(self) -> None:
        """Go on with every turn. Raises EngineError if the server cannot be told."""
        await self._pauses.resume()

    async def abort_all(self) -> None:
        """End every turn of the server, whoever asked for it; not in a pause, where SGLang loses some of these
        requests. Raises EngineError."""
        if self.weights.is_paused:
            raise EngineError(f"engine {self._name} is paused: abort before the pause, or after it")
        await self.weights.abort_all()

    async def flush(self) -> None:
        """Forget every cached prefix. Raises EngineError while turns run."""
        self._checked(await self._client.post("/flush_cache", {}, is_idempotent=True))

    async def release_memory(self, tags: Sequence[MemoryTag] = MEMORY_TAGS) -> None:
        """Give the device's memory to somebody else; no turn and no publish until `restore_memory`.

        Contents are lost: publish after the weights are back. A server that was not started for it
        (--enable-memory-saver) only flushes its cache. Raises EngineError while turns run.
        """
        if self._running:
            raise EngineError(f"engine {self._name}: {self._running} turns run, its memory cannot be released")
        await self._pauses.release_memory(tags)

    async def restore_memory(self, tags: Sequence[MemoryTag] = MEMORY_TAGS) -> None:
        """Take memory back; with its last part the server goes on with sampling. Raises EngineError."""
        await self._pauses.restore_memory(tags)

    async def publish(self, weights: Any, version: int) -> None:
        """See `Engine.publish`. weights: a folder, as a path, that the server can read; it must not change later.

        Repeating a publish whose answer was lost is fine.
        """
        folder = Path(weights)
        async with self._publishing:
            if "weights" in self._pauses.released:
                raise EngineError(f"engine {self._name}: the memory of its weights is released; restore it first")
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
        has_memory, is_resumed = not self._pauses.released, False
        try:
            await self.pause()
            # SGLang cannot flush while turns keep their cache.
            await self.weights.from_disk(folder, str(version), flush_cache=self._pause_mode != "in_place")
            if has_memory:  # else nothing is to be sampled before the rest of it is back
                await self.resume()
            is_resumed = True
        finally:
            if has_memory and not is_resumed:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + CLEANUP_S), suppress(EngineError):
                    await self.resume()

    async def _ask(self, prompt: Ids, sampling: SamplingParams, session: str) -> HttpResponse:
        """Send a turn, once more under another name if the server still runs what a broken connection has left."""
        version = self._version
        if self._pause_mode == "in_place":
            version = self._begun.setdefault(session, version)
        for rid in (uuid4().hex, uuid4().hex):
            body = generate_body(rid, prompt, sampling, session=session, cache_version=version)
            try:
                response = await self._client.post("/generate", body, is_idempotent=True)
            except trio.Cancelled:
                # Closing the connection aborts a turn too, but SGLang may notice seconds later.
                self._num_aborted += 1
                self._nursery.start_soon(self._pauses.give_up, rid)
                raise
            if response.status != 400 or b"Duplicate request" not in response.body:
                break
            self._nursery.start_soon(self._pauses.give_up, rid)
        return response

    def _check_turn(self, prompt: Ids, sampling: SamplingParams, session: str) -> None:
        if not len(prompt):
            raise EngineError(f"engine {self._name}: a prompt needs at least one id, got none (session {session!r})")
        if self._vocab_size is not None and prompt.max() >= self._vocab_size:
            raise EngineError(
                f"engine {self._name}: ids must be in [0, {self._vocab_size}), got {prompt.min()} to {prompt.max()} "
                f"(session {session!r})"
            )
        if self._pauses.released:
            raise EngineError(f"engine {self._name}: its memory is released; restore it first (session {session!r})")
        if sampling.truncation != Truncation() and not self._truncates:
            raise EngineError(
                f"engine {self._name}: a turn must be drawn from the whole distribution, which its log-probabilities "
                f"are those of, or importance ratios are biased; got {sampling.truncation} (session {session!r})"
            )

    def _checked(self, response: HttpResponse) -> HttpResponse:
        if response.status != 200:
            said = response.body[:500].decode(errors="replace")
            raise EngineError(f"engine {self._name} at {self._client.url} answered {response.status}: {said}")
        return response

    def _to_version(self, said: str | int) -> int:
        if said == UNNAMED:
            return self._first_version
        try:
            return int(said)
        except ValueError as error:
            raise EngineError(
                f"engine {self._name}: expected a weight version that is a number, the server has {said!r}; somebody "
                "else publishes to it"
            ) from error

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
