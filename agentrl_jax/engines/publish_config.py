"""How new weights reach inference servers. No jax, no trio."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentrl_jax.engines.sglang_schema import PauseMode
from agentrl_jax.errors import ConfigError

TransportName = Literal["disk", "tensor", "distributed"]
InFlightMode = Literal["in_place", "retract", "abort", "drain"]

_POSITIVE = ("verify_every", "timeout_s", "evict_after", "max_outage_s", "bucket_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishConfig:
    """Publishing to the servers that --engines and --lagging-engines name.

    Turns that run during a publish: `retract` computes their prefix anew by the new weights, so that every token is
    explained by exactly one version, and costs that prefill once, as do the next turns of all sessions. `in_place` goes
    on with the caches of the old weights, none older than its session, without that prefill, and leaves tokens that no
    single version explains, recorded with the probabilities that they were drawn with; servers of this package compute
    prefixes anew all the same. `abort` samples the turn again from its beginning, and SGLang pauses a second longer for
    it; `drain` first waits until they have ended, for which all others wait. `retract` and `in_place` pause equally
    long in benchmarks/publish.py (milliseconds, transfer and check): the prefill is all that `retract` costs more (in
    benchmarks/async_vs_sync.py two thirds on top of what prompts need at least, which engines may not have time for),
    and ratios between whole policies are what it buys.
    """

    transport: TransportName = "disk"
    """disk: servers read a file in shared memory, or on a file system that they share; tensor: requests carry the
    weights (small models); distributed: a process with torch broadcasts them (--publish.python)"""
    folder: Path | None = None
    """Where exports lie, under the same path for learner and servers (default: this machine's shared memory)"""
    mode: InFlightMode = "retract"
    """What a publish does to turns that run"""
    verify_every: int = 50
    """Compare all tensors of a server with the published ones after the first publish and each so-many-th version; in
    between one checksum of everything must change with the version and equal the other servers'"""
    timeout_s: float = 600.0
    """How long a server may take for one publish before it is left out"""
    evict_after: int = 20
    """A server that was left out is given up after so many attempts to bring it back, at most half a minute apart"""
    max_outage_s: float = 900.0
    """The run ends if no current engine has served for so long"""
    bucket_bytes: int = 512 << 20
    """Weights are gathered and sent in parts of this size"""
    probe_tolerance: float | None = None
    """Largest difference (nats) between a server's log-probabilities of eight tokens and the learner's at which a run
    starts (default: 0.001 where servers compute in float32, 0.2 in bfloat16)"""
    token_variable: str = "AGENTRL_ENGINE_TOKEN"
    """Environment variable that holds the servers' token, if they want one"""
    python: Path | None = None
    """Interpreter with the servers' torch, for --publish.transport distributed"""
    host: str = "127.0.0.1"
    """This machine's address as servers reach it, for --publish.transport distributed"""
    backend: Literal["nccl", "gloo"] = "nccl"
    """Of --publish.transport distributed: nccl between GPUs, gloo between CPUs"""

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if not getattr(self, name) > 0:
                raise ConfigError(f"--publish.{name.replace('_', '-')} must be > 0, got {getattr(self, name)}")
        if self.probe_tolerance is not None and not self.probe_tolerance > 0:
            raise ConfigError(f"--publish.probe-tolerance must be > 0, got {self.probe_tolerance}")
        is_distributed = self.transport == "distributed"
        if is_distributed != (self.python is not None):
            problem = "needs --publish.python" if is_distributed else "has no use for --publish.python"
            raise ConfigError(f"--publish.transport {self.transport} {problem}, an interpreter with the servers' torch")
        if self.python is not None and not self.python.is_file():
            raise ConfigError(f"--publish.python {self.python}: expected an interpreter, there is no such file")
        if not self.host:
            raise ConfigError("--publish.host must name this machine, got nothing")

    @property
    def pause_mode(self) -> PauseMode:
        """What the server is asked for: after a drain nothing runs that could be retracted."""
        return "retract" if self.mode == "drain" else self.mode

    @property
    def flush_cache(self) -> bool:
        """SGLang cannot flush while turns keep their cache."""
        return self.mode != "in_place"
