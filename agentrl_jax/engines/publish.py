"""Publishing to one server: prepared → paused → loading → verified → serving. No jax.

Invariants:
- The server samples nothing between the first tensor that is written and the verification of all of them.
- Every publish ends within its bound: served, or failed with the server left out.
- A failure before anything was written leaves the server going on as it was; after that it stays paused, because
  nobody knows what it would sample with, until a later publish has been verified.
- Publishing a version again has no second effect.
"""

from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum

import trio

from agentrl_jax.engines.exports import Export
from agentrl_jax.engines.publish_config import PublishConfig
from agentrl_jax.engines.sglang_weights import ServerFacts, ServerWeights
from agentrl_jax.engines.transports.protocol import Transport
from agentrl_jax.engines.turn_gate import TurnGate
from agentrl_jax.engines.verification import Verdict, Verification
from agentrl_jax.errors import EngineError

_CLEANUP_S = 5.0
"""How long a publish that failed may take to let the server go on."""

_NUM_RESUMES = 3

ANSWER_S = 30.0
"""How long a server may take for what it does at once."""


class PublishState(StrEnum):
    """Of one server. QUARANTINED and EVICTED get no turns; the first is being brought back, the second given up."""

    PREPARED = "prepared"
    PAUSED = "paused"
    LOADING = "loading"
    VERIFIED = "verified"
    SERVING = "serving"
    QUARANTINED = "quarantined"
    EVICTED = "evicted"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishStatistics:
    """Counts since the start. `last_*`: of the last publish that succeeded, seconds between pause and going on, and
    those of them in which weights were loaded, and hashed and compared; bytes compared tensor by tensor."""

    state: str
    version: int
    num_publishes: int
    num_failures: int
    last_pause_s: float
    last_load_s: float
    last_verify_s: float
    last_bytes_verified: int


class Publisher:
    """The state of one server, and what changes it.

    facts: what the server said of itself. gate: of our turns there.
    """

    def __init__(
        self,
        name: str,
        weights: ServerWeights,
        facts: ServerFacts,
        transport: Transport,
        config: PublishConfig,
        verification: Verification,
        gate: TurnGate,
    ) -> None:
        self.state = PublishState.PREPARED
        self.num_pauses = 0
        self._name, self._weights, self._transport = name, weights, transport
        self._facts, self._config, self._verification, self._gate = facts, config, verification, gate
        self._served: tuple[Export, Verdict] | None = None
        self._version = -1
        self._is_written = False  # with something that has not been verified
        self._num_publishes = self._num_failures = 0
        self._pause_s = self._load_s = self._verify_s = 0.0

    @property
    def version(self) -> int:
        """What the server was last seen to serve, until a publish has ended; -1: nothing of ours."""
        return self._version

    def statistics(self) -> PublishStatistics:
        return PublishStatistics(
            state=self.state.value,
            version=self.version,
            num_publishes=self._num_publishes,
            num_failures=self._num_failures,
            last_pause_s=self._pause_s,
            last_load_s=self._load_s,
            last_verify_s=self._verify_s,
            last_bytes_verified=0 if self._served is None else self._served[1].num_bytes,
        )

    def distrust(self) -> None:
        """Forget what the server serves: it has been out of sight."""
        self._served = None
        self.state = PublishState.QUARANTINED

    async def publish(self, export: Export) -> None:
        """Have the server serve `export`. Raises EngineError; the server is then QUARANTINED."""
        with self._failing(export), trio.fail_after(self._config.timeout_s):
            self.state = PublishState.PREPARED
            if self._served is not None and self._served[0].version == export.version and not await self.doubt():
                self.state = PublishState.SERVING
                return
            await self._transport.prepare(export)
            async with AsyncExitStack() as held:
                if self._config.mode == "drain":
                    await held.enter_async_context(self._gate.closed())
                    with trio.move_on_after(self._config.timeout_s / 2):  # then those that still run are retracted
                        await self._gate.until_idle()
                await self._replace(export)
            self.state = PublishState.SERVING
            self._num_publishes += 1

    async def _replace(self, export: Export) -> None:
        before, self._served = self._served, None
        paused_at = trio.current_time()
        with trio.fail_after(ANSWER_S):
            await self._pause(is_known=before is not None)
        verdict = await self._load(export, before)
        with trio.fail_after(ANSWER_S):
            await self._resume()
        self._served, self._version = (export, verdict), export.version
        self._pause_s = trio.current_time() - paused_at

    async def doubt(self) -> str:
        """Why the server cannot be said to serve what it was given last; "" if it can."""
        if self._served is None:
            return "nobody knows what it serves"
        export, verdict = self._served
        if self._verification.is_disproved(export, self._facts, verdict):
            return f"its weights are not those of version {export.version}, as another server's are"
        try:
            with trio.fail_after(ANSWER_S):
                said = (await self._weights.model_facts()).weight_version
        except EngineError as error:
            return str(error)
        except trio.TooSlowError:
            return f"it said nothing for {ANSWER_S:g} s"
        return "" if said == str(export.version) else f"it was given version {export.version}, and says {said!r}"

    async def _pause(self, *, is_known: bool) -> None:
        is_paused = False
        try:
            # Turns that keep their cache keep SGLang from flushing what an earlier run has left there.
            await self._weights.pause(self._config.pause_mode if is_known else "retract")
            is_paused = True
        finally:
            if not (is_paused or self._is_written):  # the answer may have been lost on its way
                with trio.CancelScope(shield=True, deadline=trio.current_time() + _CLEANUP_S), suppress(EngineError):
                    await self._weights.resume()
        self.num_pauses += 1
        self.state = PublishState.PAUSED

    async def _resume(self) -> None:
        """Telling it twice does no harm; a turn that waits for ever does."""
        for _ in range(_NUM_RESUMES - 1):
            with suppress(EngineError):
                await self._weights.resume()
                return
        await self._weights.resume()

    async def _load(self, export: Export, before: tuple[Export, Verdict] | None) -> Verdict:
        self.state = PublishState.LOADING
        begun = trio.current_time()
        is_flushed = before is None or self._config.flush_cache
        self._is_written = True
        await self._transport.load(export, str(export.version), flush_cache=is_flushed)
        loaded = trio.current_time()
        verdict = await self._verification.verify(export, self._weights, self._facts, before=before)
        self._load_s, self._verify_s = loaded - begun, trio.current_time() - loaded
        self._is_written = False
        self.state = PublishState.VERIFIED
        return verdict

    @contextmanager
    def _failing(self, export: Export) -> Iterator[None]:
        problem = ""
        try:
            yield
        except EngineError as error:
            problem = str(error)
        except trio.TooSlowError:
            problem = f"it took too long while it was {self.state.value}"
        finally:
            if self.state is not PublishState.SERVING:
                self._num_failures += 1
                self.distrust()
        if problem:
            raise EngineError(f"engine {self._name} did not take version {export.version}: {problem}")
