"""The engines of a training run, on servers: from buckets of the learner's params to a pool.

`run_local_engines.py` is their counterpart in this process. What needs a device comes in as functions.
"""

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import trio

from agentrl_jax.config import TrainConfig
from agentrl_jax.engines.addresses import parse_addresses
from agentrl_jax.engines.export_folders import export_folder, sweep
from agentrl_jax.engines.exports import Export, ExportFolder, WeightDType, open_exports
from agentrl_jax.engines.fleet import EngineFleet, ServedModel, examine, open_fleet
from agentrl_jax.engines.http import open_http_client
from agentrl_jax.engines.pool import EnginePool
from agentrl_jax.engines.probe import Score, probe_logprobs
from agentrl_jax.engines.protocol import Engine
from agentrl_jax.engines.publish import PublishStatistics
from agentrl_jax.engines.sglang_weights import ServerWeights
from agentrl_jax.errors import ConfigError, EngineError
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.families import hf_entries
from agentrl_jax.models.hf_config import to_hf_config
from agentrl_jax.models.load import inspect_pretrained
from agentrl_jax.policy import Policy
from agentrl_jax.seeding import derive_seed
from agentrl_jax.types import Ids, Pool, as_ids

Say: TypeAlias = Callable[[str], None]

_TOLERANCES = {"float32": 1e-3, "bfloat16": 0.2}
_PROBE_IDS = 16
_ANSWER_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weights:
    """What is to be served as `version`. take: returns it, as the engines want it; called in a thread."""

    take: Callable[[], Any]
    version: int


class RunEngines(Protocol):
    """The engines of a run, wherever they are."""

    @property
    def pool(self) -> EnginePool: ...

    async def publish(self, weights: Weights) -> Mapping[str, int]:
        """Have every engine that is due serve them; return which version each one serves."""
        ...

    def evaluating(self, weights: Weights) -> AbstractAsyncContextManager[Engine | None]:
        """An engine that no publish reaches, serving these weights; None if there is none: the pool's then."""
        ...

    def statistics(self) -> Mapping[str, PublishStatistics]:
        """Of publishing, by engine; {} where it cannot fail by itself."""
        ...


class ServedEngines:
    """Implements `RunEngines`. Made by `open_served_engines`; weights are taken as an iterator of buckets."""

    def __init__(self, fleet: EngineFleet, pool: EnginePool) -> None:
        self._fleet, self._pool = fleet, pool

    @property
    def pool(self) -> EnginePool:
        return self._pool

    async def publish(self, weights: Weights) -> Mapping[str, int]:
        """See `RunEngines.publish`. Raises EngineError only if the export cannot be written."""
        export = await self._export(weights)
        served = await self._pool.publish(export, weights.version)
        self._fleet.keep_exports()
        return served

    @asynccontextmanager
    async def evaluating(self, weights: Weights) -> AsyncIterator[Engine | None]:
        """None: evaluations run on the current servers, and say which versions they met."""
        await trio.lowlevel.checkpoint()
        yield None

    def statistics(self) -> Mapping[str, PublishStatistics]:
        return self._fleet.statistics()

    async def begin(self, current: Weights, lagging: Weights | None) -> None:
        """Publish for the first time, to all. Raises EngineError if a server does not take it."""
        export = await self._export(current)
        exports: dict[Pool, Export] = {"current": export}
        if lagging is not None:
            exports["lagging"] = export if lagging.version == current.version else await self._export(lagging)
        await self._fleet.begin(exports)

    async def _export(self, weights: Weights) -> Export:
        def write() -> Export:
            return self._fleet.exports.write(weights.version, weights.take())

        return await trio.to_thread.run_sync(write)


async def check_servers(config: TrainConfig) -> None:
    """Raise ConfigError if a server that `config` names does not answer, or was started for another model.

    Comes before anything that takes time, or is written.
    """
    if config.has_local_engines:
        return
    assert config.model is not None
    model, dtype = inspect_pretrained(config.model)
    for address in parse_addresses(config.engines, config.lagging_engines):
        problem = ""
        try:
            async with open_http_client(address.url, token=engine_token(config)) as client:
                with trio.fail_after(_ANSWER_S):
                    await examine(ServerWeights(client, address.name), _served_model(model, dtype, None))
        except EngineError as error:
            problem = str(error)
        except trio.TooSlowError:
            problem = f"it said nothing for {_ANSWER_S:g} s"
        if problem:
            flag = "--lagging-engines" if address.pool == "lagging" else "--engines"
            raise ConfigError(f"{flag} sglang:{address.url} cannot be used: {problem}")


def _served_model(model: ModelConfig, dtype: WeightDType, context_tokens: int | None) -> ServedModel:
    return ServedModel(
        model_type=to_hf_config(model, dtype=dtype)["model_type"],
        vocab_size=model.vocab_size,
        num_kv_heads=model.num_kv_heads,
        dtype=dtype,
        context_tokens=context_tokens,
    )


def engine_token(config: TrainConfig) -> str | None:
    """What servers are told: the environment's, as it must not stand on a command line."""
    return os.environ.get(config.publish.token_variable) or None


@asynccontextmanager
async def open_served_engines(
    config: TrainConfig,
    policy: Policy,
    run_dir: Path,
    *,
    current: Weights,
    lagging: Weights | None,
    score: Score | None,
    say: Say,
) -> AsyncIterator[ServedEngines]:
    """The servers that `config` names, serving `current` and `lagging`, checked against the learner's `score`.

    score: None where several processes share the learner; nothing is compared then.
    Raises EngineError for a server that cannot be used, does not take the weights, or gives them other
    log-probabilities than the learner; ConfigError for a folder that exports cannot lie in.
    """
    model = policy.model
    hf_config = to_hf_config(model, dtype=policy.dtype)
    shapes = {name: spec.hf_shape for name, spec, _ in hf_entries(model)}
    served = _served_model(model, policy.dtype, config.max_context_tokens)
    addresses = parse_addresses(config.engines, config.lagging_engines)
    async with AsyncExitStack() as stack:
        folder = export_folder(config.publish.folder, run_dir)
        sweep(folder.parent)
        exports: ExportFolder = stack.enter_context(open_exports(folder, shapes, dtype=policy.dtype, config=hf_config))
        opening = open_fleet(
            addresses, model=served, exports=exports, config=config.publish, token=engine_token(config), say=say
        )
        fleet = await stack.enter_async_context(opening)
        seed = derive_seed(config.seed, "pool")
        pool = EnginePool(fleet.of_pool("current"), fleet.of_pool("lagging"), config.pool, seed, fleet)
        engines = ServedEngines(fleet, pool)
        await engines.begin(current, lagging)
        if score is not None:
            await _probe(fleet, config, policy, score, current.version, say)
        yield engines


async def _probe(fleet: EngineFleet, config: TrainConfig, policy: Policy, score: Score, version: int, say: Say) -> None:
    """Compare log-probabilities of all engines that serve the learner's own version."""
    tolerance = config.publish.probe_tolerance or _TOLERANCES[policy.dtype]
    worst = 0.0
    for engine in fleet.engines:
        if engine.version == version:
            worst = max(
                worst,
                await probe_logprobs(
                    engine,
                    score,
                    prompt=_probe_prompt(policy),
                    stop_ids=(policy.model.vocab_size - 1,),
                    temperature=config.temperature,
                    tolerance=tolerance,
                ),
            )
    say(f"engines hold version {version}, and agree with the learner's log-probabilities within {worst:.2g} nats")


def _probe_prompt(policy: Policy) -> Ids:
    """Ids from all over the vocabulary, the same in every run."""
    size = min(policy.model.vocab_size, policy.tokenizer.vocab_size)
    return as_ids([derive_seed("probe", index) % size for index in range(_PROBE_IDS)])
