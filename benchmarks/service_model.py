"""How long an engine, a learner, a publish and an environment take: the model behind the simulated benchmarks.

Its values stand in service_model.toml. Everything is counted per turn or per batch, never per token:

    a decode iteration of b turns whose contexts hold K tokens together   t0 + kappa × K seconds, for b tokens
        t0 = iteration_s + weight bytes / bandwidth,  kappa = KV bytes of a token / bandwidth
    prefill of n tokens, during which nothing decodes                      n × prefill_s
    a learner step on n tokens with g GPUs                                 n × learn_s / g + fixed_s
    a publish: engines and learner stand still                             weight bytes / bytes_per_s + fixed_s
    an environment's answer, and the tokens of a turn                      log-normal with the tail's sigma, clipped

The latency's median belongs to the tail: for every sigma it is the one at which the colocated synchronous baseline
makes the published 9K tokens/s on 16 GPUs. The mean number of sampled tokens is the same for every sigma.
"""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import NormalDist
from typing import Any, TypeVar

from agentrl_jax.errors import ConfigError

FILE = Path(__file__).with_suffix(".toml")

_NORMAL = NormalDist()
_SEEDS = 2**63  # derive_seed gives numbers below this

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What the paper reports, by number of GPUs. ratios: asynchronous over synchronous."""

    gpus: tuple[int, ...]
    sync_tokens_per_s: tuple[float, ...]
    ratios: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    flops: float
    memory_bytes: float
    memory_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """value_bytes: of a parameter and of a cached key or value alike."""

    num_params: float
    num_layers: int
    num_kv_heads: int
    head_size: int
    value_bytes: int

    @property
    def weight_bytes(self) -> float:
        return self.num_params * self.value_bytes

    @property
    def kv_bytes(self) -> float:
        """Keys and values of one token."""
        return 2.0 * self.num_layers * self.num_kv_heads * self.head_size * self.value_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineShares:
    """Which share of the GPU's rates an engine reaches. iteration_s: of each decode iteration beside the reading.
    memory_frac: of the memory, for weights and cache together. max_running: turns at a time."""

    prefill_flops_frac: float
    decode_bandwidth_frac: float
    iteration_s: float
    memory_frac: float
    max_running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerShares:
    """fixed_s: of a step, whatever its size (gradient reduction, optimiser, packing)."""

    flops_per_param: float
    flops_frac: float
    fixed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Publishing:
    bytes_per_s: float
    fixed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSize:
    episodes_per_gpu: int
    group_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeLengths:
    """Of WebShop. Turns are log-normal, clipped to [least_turns, max_turns]; prompt and replies always as long."""

    max_turns: int
    least_turns: int
    turns_median: float
    turns_sigma: float
    max_new_tokens: int
    max_context_tokens: int
    prompt_tokens: int
    reply_tokens: int
    sampled_tokens_mean: float
    least_latency_s: float
    most_latency_s: float

    def num_turns(self, seed: int) -> int:
        """Of one episode."""
        drawn = round(_log_normal(seed, self.turns_median, self.turns_sigma))
        return min(max(drawn, self.least_turns), self.max_turns)

    def num_sampled(self, seed: int, sigma: float) -> int:
        """Tokens of one turn, in [1, max_new_tokens]."""
        median = self.sampled_tokens_mean / math.exp(sigma * sigma / 2)
        return min(max(round(_log_normal(seed, median, sigma)), 1), self.max_new_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """How unequal turns are. sync_tokens_per_s: of the colocated baseline at each published size, as simulated."""

    sigma: float
    latency_median_s: float
    sync_tokens_per_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceModel:
    """See the module."""

    published: Published
    gpu: Gpu
    network: Network
    engine: EngineShares
    learner: LearnerShares
    publish: Publishing
    batch: BatchSize
    episode: EpisodeLengths
    tails: tuple[Tail, ...] = ()

    @property
    def iteration_s(self) -> float:
        """t0: a decode iteration without any context, in seconds."""
        return self.engine.iteration_s + self.network.weight_bytes / self._bandwidth

    @property
    def context_token_s(self) -> float:
        """kappa: what each token of the running contexts adds to an iteration."""
        return self.network.kv_bytes / self._bandwidth

    @property
    def prefill_s(self) -> float:
        """Of one token, on one engine."""
        return 2.0 * self.network.num_params / (self.gpu.flops * self.engine.prefill_flops_frac)

    @property
    def cache_tokens(self) -> int:
        """What one engine's cache holds."""
        room = self.gpu.memory_bytes * self.engine.memory_frac - self.network.weight_bytes
        return int(room / self.network.kv_bytes)

    @property
    def learn_s(self) -> float:
        """Of one token, in seconds of one GPU."""
        return self.learner.flops_per_param * self.network.num_params / (self.gpu.flops * self.learner.flops_frac)

    @property
    def publish_s(self) -> float:
        return self.network.weight_bytes / self.publish.bytes_per_s + self.publish.fixed_s

    @property
    def _bandwidth(self) -> float:
        return self.gpu.memory_bytes_per_s * self.engine.decode_bandwidth_frac

    def step_s(self, num_tokens: float, num_gpus: int) -> float:
        """A learner step."""
        return num_tokens * self.learn_s / num_gpus + self.learner.fixed_s

    def num_groups(self, num_gpus: int) -> int:
        """Groups of one batch. Raises ConfigError if the GPUs are too few for any."""
        num_groups = num_gpus * self.batch.episodes_per_gpu // self.batch.group_size
        if num_groups < 1:
            raise ConfigError(f"{num_gpus} GPUs are too few for a batch of one group of {self.batch.group_size}")
        return num_groups

    @property
    def sessions_per_engine(self) -> int:
        """Episodes of mean length that an engine's cache holds."""
        episode = self.episode
        turns = episode.turns_median * math.exp(episode.turns_sigma**2 / 2)
        per_turn = episode.sampled_tokens_mean + episode.reply_tokens
        return max(1, int(self.cache_tokens / (episode.prompt_tokens + per_turn * turns / 2)))

    def tail(self, sigma: float) -> Tail:
        """The calibrated tail of this sigma. Raises ConfigError if there is none."""
        for tail in self.tails:
            if tail.sigma == sigma:
                return tail
        raise ConfigError(f"no tail of sigma {sigma}; there are {', '.join(str(tail.sigma) for tail in self.tails)}")

    @property
    def published_tail(self) -> Tail:
        """The one whose synchronous throughput comes closest to the published one at all sizes: the smallest sum of
        squared logarithms of the ratios. Raises ConfigError without any calibrated tail."""
        if not self.tails:
            raise ConfigError("the service model has no calibrated tail: run python -m benchmarks.service_calibration")
        return min(self.tails, key=self.misfit)

    def misfit(self, tail: Tail) -> float:
        """Sum over sizes of ln(simulated / published synchronous throughput)²."""
        pairs = zip(tail.sync_tokens_per_s, self.published.sync_tokens_per_s, strict=True)
        return sum(math.log(simulated / published) ** 2 for simulated, published in pairs)


def _log_normal(seed: int, median: float, sigma: float) -> float:
    quantile = ((seed >> 10) + 0.5) / (_SEEDS >> 10)
    return math.exp(_NORMAL.inv_cdf(quantile) * sigma) * median


def _record(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    expected = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    if unknown := set(values) - expected:
        raise ConfigError(f"{FILE.name}, {where}: unknown values {sorted(unknown)}")
    frozen = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    try:
        return kind(**frozen)
    except TypeError as error:
        raise ConfigError(f"{FILE.name}, {where}: {error}") from error


def load(path: Path = FILE) -> ServiceModel:
    """The committed model. Raises ConfigError for values that are missing or unknown."""
    with path.open("rb") as file:
        values = tomllib.load(file)
    tails = values.pop("tail", [])
    kinds: dict[str, type[Any]] = {
        "published": Published,
        "gpu": Gpu,
        "network": Network,
        "engine": EngineShares,
        "learner": LearnerShares,
        "publish": Publishing,
        "batch": BatchSize,
        "episode": EpisodeLengths,
    }
    if set(values) != set(kinds):
        raise ConfigError(f"{FILE.name} needs exactly the tables {sorted(kinds)}, got {sorted(values)}")
    parts = {name: _record(kind, values[name], f"[{name}]") for name, kind in kinds.items()}
    return ServiceModel(**parts, tails=tuple(_record(Tail, tail, "[[tail]]") for tail in tails))
