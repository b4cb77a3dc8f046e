"""An engine on a server that may fail and come back, and is brought to the version that is due first. No jax.

Invariants:
- A server that missed a publish, or has been out of sight, serves no turn before it has what is due, verified.
- What is due is the last export that was published to this engine: a lagging one comes back with its own version.
- A turn has the version that was served when it began, or one that was published since; nothing older, nothing foreign.
- A failed publish raises nothing: it costs this engine its turns, not the run.
"""

from collections.abc import Callable
from typing import Any

import trio

from agentrl_jax.engines.exports import Export
from agentrl_jax.engines.protocol import EngineStatistics
from agentrl_jax.engines.publish import ANSWER_S, Publisher, PublishState, PublishStatistics
from agentrl_jax.engines.publish_config import PublishConfig
from agentrl_jax.engines.sglang import SGLangEngine
from agentrl_jax.engines.turn_gate import TurnGate
from agentrl_jax.errors import EngineError
from agentrl_jax.types import Completion, Ids, Pool, SamplingParams

_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.5, 30.0
"""Between attempts to bring an engine back: twice as long each time."""

_LOOK_EVERY_S = 30.0
"""A machine that is gone without a word fails no request, so that nothing but a question finds out."""


class RemoteEngine:
    """Implements `engines.protocol.Engine`. `run` brings it back when it is out.

    gate: the publisher's too. on_change: called when it begins or ceases to be out, or is given up.
    """

    def __init__(
        self,
        turns: SGLangEngine,
        publisher: Publisher,
        gate: TurnGate,
        config: PublishConfig,
        on_change: Callable[[], None],
    ) -> None:
        self._turns, self._config, self._on_change = turns, config, on_change
        self._publisher, self._gate = publisher, gate
        self._publishing = trio.Lock()
        self._due: Export | None = None
        self._bringing: Export | None = None
        self._out = trio.Event()  # set while it is out
        self._to_look = trio.Event()
        self.why_out = ""

    @property
    def name(self) -> str:
        return self._turns.name

    @property
    def pool(self) -> Pool:
        return self._turns.pool

    @property
    def version(self) -> int:
        """What it serves; while it is out, what it will serve when it comes back."""
        return self._due.version if self._due is not None and not self.is_serving else self._publisher.version

    @property
    def needed(self) -> set[int]:
        """Versions whose exports the server is being given, or will be brought back with."""
        return {export.version for export in (self._due, self._bringing) if export is not None}

    @property
    def is_serving(self) -> bool:
        """Whether a turn that begins now is served, perhaps after the publish that is under way."""
        return self._due is not None and not self._out.is_set()

    @property
    def is_out(self) -> bool:
        """Whether it has served and does not now."""
        return self._out.is_set()

    @property
    def is_evicted(self) -> bool:
        return self._publisher.state is PublishState.EVICTED

    def statistics(self) -> EngineStatistics:
        return self._turns.statistics()

    def publish_statistics(self) -> PublishStatistics:
        return self._publisher.statistics()

    async def begin(self, export: Export) -> None:
        """Publish for the first time. Raises EngineError: nothing is left out before it has served once."""
        self._due = export
        async with self._publishing:
            await self._bring(export)

    async def publish(self, weights: Any, version: int) -> None:
        """Have `weights`, an Export, served from now on.

        An engine that is out, or does not take it, gets it when it comes back; this returns then all the same.
        """
        assert isinstance(weights, Export)
        assert weights.version == version
        self._due = weights
        if not self.is_serving:
            await trio.lowlevel.checkpoint()
            return
        async with self._publishing:
            try:
                await self._bring(weights)
            except EngineError as error:
                self._leave_out(str(error))

    async def generate(self, prompt_ids: Ids, sampling: SamplingParams, *, session: str) -> Completion:
        """See `Engine.generate`. A turn that a publish aborted is sampled again."""
        while True:
            num_pauses = self._publisher.num_pauses
            try:
                async with self._gate.turn():
                    if not self.is_serving:
                        raise EngineError(f"engine {self.name} is out: {self.why_out}")
                    served = self._publisher.version
                    completion = await self._turns.generate(prompt_ids, sampling, session=session)
                    self._check_versions(completion, served)
                    return completion
            except EngineError as error:
                if self._config.mode == "abort":
                    async with self._publishing:  # the answer to a turn may overtake the one to the pause that ended it
                        pass
                if not self.is_serving:  # and who asks for the turn can ask another one
                    raise
                if self._config.mode != "abort" or self._publisher.num_pauses == num_pauses:
                    await self._make_sure(str(error))
                    raise

    async def end_session(self, session: str) -> None:
        """See `Engine.end_session`. An engine that is out has nothing to forget."""
        if self.is_serving:
            await self._turns.end_session(session)
        else:
            self._turns.forget(session)
            await trio.lowlevel.checkpoint()

    async def run(self) -> None:
        """See now and then whether the engine serves, and bring it back when it is out; returns once it is given up."""
        while True:
            with trio.move_on_after(_LOOK_EVERY_S):
                await self._to_look.wait()
            self._to_look = trio.Event()
            if self._due is not None:
                await self._make_sure("")
            if self._out.is_set() and not await self._recover():
                return

    def look(self) -> None:
        """Have `run` see whether the server still serves what it was given."""
        self._to_look.set()

    async def _recover(self) -> bool:
        pause_s = _FIRST_PAUSE_S
        for attempt in range(self._config.evict_after):
            if attempt:
                await trio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LAST_PAUSE_S)
            async with self._publishing:
                if await self._brought_back():
                    return True
        self._publisher.state = PublishState.EVICTED
        self.why_out = f"given up after {self._config.evict_after} attempts; the last: {self.why_out}"
        self._on_change()
        return False

    async def _brought_back(self) -> bool:
        """One attempt; what became due meanwhile is published too, before any turn is served."""
        assert self._due is not None
        try:
            await self._refresh()
            export = None
            while export is not self._due:
                export = self._due
                await self._bring(export)
        except EngineError as error:
            self.why_out = str(error)
            return False
        self._out = trio.Event()
        self.why_out = ""
        self._on_change()
        return True

    async def _bring(self, export: Export) -> None:
        self._bringing = export
        try:
            await self._publisher.publish(export)
        finally:
            self._bringing = None
        await self._refresh()  # what its turns are checked against

    async def _refresh(self) -> None:
        try:
            with trio.fail_after(ANSWER_S):
                await self._turns.refresh()
        except trio.TooSlowError as error:
            raise EngineError(f"engine {self.name} said nothing for {ANSWER_S:g} s") from error

    def _leave_out(self, why: str) -> None:
        if self._out.is_set():
            return
        self.why_out = why
        self._publisher.distrust()
        self._out.set()
        self._to_look.set()
        self._gate.fail_all(f"engine {self.name} was left out: {why}")
        self._on_change()

    async def _make_sure(self, suspicion: str) -> None:
        """Leave the engine out if it does not serve what it was given. Returns once that is known.

        suspicion: what a turn said that failed; "": none has.
        """
        async with self._publishing:  # a publish that is under way finds out by itself
            if self.is_serving and (doubt := await self._publisher.doubt()):
                self._leave_out(suspicion or doubt)

    def _check_versions(self, completion: Completion, served: int) -> None:
        """served: when the turn began. Raises EngineError for weights that this run has not put there since."""
        assert self._due is not None
        versions = [span.version for span in completion.version_spans]
        if min(versions) < served or max(versions) > self._due.version:
            raise EngineError(
                f"engine {self.name} sampled with versions {sorted(set(versions))}, but was given {served} to "
                f"{self._due.version}: it has been restarted, or somebody else publishes to it"
            )
