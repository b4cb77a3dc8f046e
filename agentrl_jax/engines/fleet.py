"""The inference servers of a run: looked at before they are used, watched, and brought back when they fail. No jax.

Invariants:
- Nothing is published to a server that was started for another model.
- As long as one current engine serves, the run goes on; without one it waits, for a bounded time.
- An export stays as long as an engine serves it, or is to be brought back with it.
"""

import math
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import trio

from agentrl_jax.engines.addresses import ServerAddress
from agentrl_jax.engines.exports import Export, ExportFolder
from agentrl_jax.engines.publish import Publisher, PublishStatistics
from agentrl_jax.engines.publish_config import PublishConfig
from agentrl_jax.engines.remote import RemoteEngine
from agentrl_jax.engines.sglang import SGLangEngine, open_sglang_engine
from agentrl_jax.engines.sglang_weights import ModelFacts, ServerFacts, ServerWeights
from agentrl_jax.engines.transports.disk import DiskTransport
from agentrl_jax.engines.transports.distributed import DistributedSettings, DistributedTransport
from agentrl_jax.engines.transports.protocol import Transport
from agentrl_jax.engines.transports.tensor import TensorTransport
from agentrl_jax.engines.turn_gate import TurnGate
from agentrl_jax.engines.verification import Verification
from agentrl_jax.errors import EngineError, NoProgressError
from agentrl_jax.types import Pool

Say = Callable[[str], None]
OpenEngine: TypeAlias = Callable[..., AbstractAsyncContextManager[SGLangEngine]]

_UNKNOWN_VERSION = -1
_START_S = 60.0
"""How long a server may take to say what it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """What every server must have been started for. model_type: of its config.json. context_tokens: of the longest
    episode; None where that is not known yet."""

    model_type: str
    vocab_size: int
    num_kv_heads: int
    dtype: str
    context_tokens: int | None


class EngineFleet:
    """Made by `open_fleet`. Implements `engines.pool.Outages`."""

    def __init__(self, engines: Sequence[RemoteEngine], exports: ExportFolder, say: Say, max_outage_s: float) -> None:
        self.engines = tuple(engines)
        self.exports = exports
        self._say, self._max_outage_s = say, max_outage_s
        self._by_name = {engine.name: engine for engine in engines}
        self._begun, self._changed = trio.Event(), trio.Event()
        self._said: dict[str, str] = {}
        self.is_any_out = True  # nobody serves before `begin`

    def of_pool(self, pool: Pool) -> tuple[RemoteEngine, ...]:
        return tuple(engine for engine in self.engines if engine.pool == pool)

    def is_serving(self, name: str) -> bool:
        """Whether a turn that begins now at this engine is served."""
        return self._by_name[name].is_serving

    async def until_any(self, names: Collection[str]) -> None:
        """Return once one of these engines serves."""
        while not any(map(self.is_serving, names)):
            await self._changed.wait()

    def statistics(self) -> Mapping[str, PublishStatistics]:
        """By engine."""
        return {engine.name: engine.publish_statistics() for engine in self.engines}

    async def begin(self, exports: Mapping[Pool, Export]) -> None:
        """Publish to all engines for the first time. Raises EngineError for the first that does not take it."""
        errors: list[EngineError] = []

        async def begin(engine: RemoteEngine) -> None:
            try:
                await engine.begin(exports[engine.pool])
            except EngineError as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            for engine in self.engines:
                nursery.start_soon(begin, engine)
        if errors:
            raise errors[0]
        self._look_for_outages()
        self._begun.set()

    def keep_exports(self) -> None:
        """Delete exports that no engine needs any more."""
        self.exports.keep(set[int]().union(*(engine.needed for engine in self.engines)))

    def note_change(self) -> None:
        """An engine began or ceased to be out: wake up whoever waits for that, and say so."""
        self._look_for_outages()
        changed, self._changed = self._changed, trio.Event()
        changed.set()
        for engine in self.engines:
            state = "given up" if engine.is_evicted else "out" if engine.is_out else ""
            if state != self._said.get(engine.name, ""):
                self._said[engine.name] = state
                why = f"WARNING: {engine.name} is {state}: {engine.why_out}"
                self._say(why if state else f"{engine.name} serves again, as version {engine.version}")

    def _look_for_outages(self) -> None:
        self.is_any_out = not all(engine.is_serving for engine in self.engines)

    async def watch(self) -> None:
        """Raise NoProgressError once no current engine has served for too long, or all of them are given up."""
        await self._begun.wait()
        current = self.of_pool("current")
        names = [engine.name for engine in current]
        while True:
            while any(map(self.is_serving, names)):
                await self._changed.wait()
            self._say(f"WARNING: no current engine serves; turns wait for one, up to {self._max_outage_s:g} s")
            with trio.move_on_after(self._max_outage_s) as waiting:
                while not any(map(self.is_serving, names)):
                    if all(engine.is_evicted for engine in current):
                        break
                    await self._changed.wait()
            if waiting.cancelled_caught or all(engine.is_evicted for engine in current):
                reasons = "; ".join(f"{engine.name}: {engine.why_out}" for engine in current)
                raise NoProgressError(
                    f"no current engine serves any more ({reasons}). Start the servers again, and go on with --resume"
                )


@asynccontextmanager
async def open_fleet(
    addresses: Sequence[ServerAddress],
    *,
    model: ServedModel,
    exports: ExportFolder,
    config: PublishConfig,
    token: str | None,
    say: Say,
    open_engine: OpenEngine = open_sglang_engine,
) -> AsyncIterator[EngineFleet]:
    """Engines on the servers at `addresses`, watched for the length of the block; `EngineFleet.begin` comes first.

    Raises EngineError, naming the server, for one that does not answer or was started for something else.
    """
    engines: list[RemoteEngine] = []

    def look_at_all() -> None:
        for engine in engines:
            engine.look()

    verification = Verification(num_kv_heads=model.num_kv_heads, every=config.verify_every, on_disproof=look_at_all)
    changes: list[Callable[[], None]] = []
    async with AsyncExitStack() as stack:
        sidecars = await stack.enter_async_context(trio.open_nursery())
        stack.callback(sidecars.cancel_scope.cancel)
        for address in addresses:
            settings = {"token": token, "pause_mode": config.pause_mode}
            turns, facts = await _open(address, exports, model, settings, say, stack, open_engine)
            gate = TurnGate()
            transport = _transport(config, turns.weights, facts, sidecars)
            publisher = Publisher(address.name, turns.weights, facts, transport, config, verification, gate)
            engines.append(RemoteEngine(turns, publisher, gate, config, lambda: changes[0]()))
        fleet = EngineFleet(engines, exports, say, config.max_outage_s)
        changes.append(fleet.note_change)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fleet.watch)
            for remote in engines:
                nursery.start_soon(remote.run)
            yield fleet
            nursery.cancel_scope.cancel()


async def _open(
    address: ServerAddress,
    exports: ExportFolder,
    model: ServedModel,
    settings: Mapping[str, Any],
    say: Say,
    stack: AsyncExitStack,
    open_engine: OpenEngine,
) -> tuple[SGLangEngine, ServerFacts]:
    place = {"name": address.name, "pool": address.pool, "version": _UNKNOWN_VERSION}
    opening = open_engine(address.url, tensors=exports.shapes, **place, **settings)
    problems = []
    # Around all that is opened: a scope cannot be left before what was entered within it.
    patience = stack.enter_context(trio.CancelScope(deadline=trio.current_time() + _START_S))
    try:
        turns = await stack.enter_async_context(opening)
        facts, served = await examine(turns.weights, model)
    except* EngineError as errors:
        problems = [str(error) for error in errors.exceptions]
    except* trio.Cancelled:
        if not patience.cancel_called:
            raise
        problems = [f"it said nothing for {_START_S:g} s"]
    patience.deadline = math.inf
    if problems:
        raise EngineError(f"engine {address.name} at {address.url} cannot be used: {'; '.join(problems)}")
    say(f"{address.name}: {facts.engine} {facts.version} at {address.url}, started with {served.model_path}")
    return turns, facts


def _transport(config: PublishConfig, weights: ServerWeights, facts: ServerFacts, sidecars: trio.Nursery) -> Transport:
    if config.transport == "disk":
        return DiskTransport(weights, stages=facts.engine == "agentrl_jax")
    if config.transport == "tensor":
        return TensorTransport(weights, facts.tp_size)
    assert config.python is not None
    settings = DistributedSettings(
        python=config.python,
        host=config.host,
        backend=config.backend,
        device="cuda" if config.backend == "nccl" else "cpu",
        bucket_bytes=config.bucket_bytes,
        timeout_s=config.timeout_s,
    )
    return DistributedTransport(weights, facts.tp_size, settings, sidecars)


async def examine(weights: ServerWeights, model: ServedModel) -> tuple[ServerFacts, ModelFacts]:
    """What a server says of itself. Raises EngineError if it does not answer, or was started for something else."""
    facts, served = await weights.server_facts(), await weights.model_facts()
    found: Sequence[tuple[str, object, object]] = (
        ("architecture", served.model_type, model.model_type),
        ("vocabulary", facts.vocab_size, model.vocab_size),
        ("precision", None if facts.dtype == "auto" else facts.dtype, model.dtype),
        ("quantization", facts.quantization or "none", "none"),
    )
    problems = [f"its {what} is {its}, ours {ours}" for what, its, ours in found if its is not None and its != ours]
    room, needed = facts.max_req_input_len, (model.context_tokens or 1) - 1
    if room is not None and room < needed:
        problems.append(f"it takes prompts of {room} tokens, episodes need {needed}")
    if problems:
        raise EngineError(f"it was started for something else: {'; '.join(problems)}")
    return facts, served
