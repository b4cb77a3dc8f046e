"""`TrainConfig`: everything a training run is made of, composed from the configs of its parts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from agentrl_jax.algo.advantages import AdvantageConfig
from agentrl_jax.algo.losses import LossConfig
from agentrl_jax.batch_files import KEEP_BATCHES
from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.controller.episode import EpisodeConfig
from agentrl_jax.controller.remote_config import REMOTE_PREFIX, RemoteTasks
from agentrl_jax.engines.addresses import LOCAL, check_addresses
from agentrl_jax.engines.local.config import LocalEngineConfig
from agentrl_jax.engines.pool import PoolConfig
from agentrl_jax.engines.publish_config import PublishConfig
from agentrl_jax.env import EnvFamily, SessionKind, traits_of
from agentrl_jax.errors import ConfigError
from agentrl_jax.evaluation import EvaluationConfig
from agentrl_jax.learner import LearnerConfig, LoraConfig
from agentrl_jax.packing import PackingConfig
from agentrl_jax.policy import NetworkConfig
from agentrl_jax.rendering.config import RenderingConfig
from agentrl_jax.report.sinks import SinkName
from agentrl_jax.row_sizes import packing_for, rounded
from agentrl_jax.runtime import RuntimeConfig
from agentrl_jax.saved_config import config_changes, config_from_json, config_to_json
from agentrl_jax.sft import WarmUpConfig
from agentrl_jax.sharding import parse_mesh


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Asynchronous multi-turn reinforcement learning of an agent on one machine.

    Without --model it starts from nothing: it trains a tokenizer and a small network on demonstrations of scripted
    experts first.
    """

    recipe: str = "single-kg"
    """Where the defaults of all other settings come from, by its name in the list above"""
    dry_run: bool = False
    """Print what would be done and the memory it takes, and do nothing: no file is written, no device used"""
    tasks: str = "kg"
    """Environments to train on, separated by commas; NAME|OTHER: OTHER where this machine cannot play NAME;
    remote:NAME: a task that env workers serve, which register with this run as with AgentRL's controller (see
    --remote.*)"""
    data: Path | None = None
    """Folder of real task data; without it every environment generates its own tasks"""
    level: int = 1
    """Difficulty of the tasks"""
    eval_set: Mapping[str, str] = field(default_factory=dict)
    """Named data set that the held-out tasks are, by environment, such as `alfworld valid_unseen`"""
    upstream_compat: bool = False
    """Let environments reproduce the faults of the published ones too, and punish the policy for what infrastructure
    ended, to compare with published results"""
    sandbox: str | None = None
    """What runs the programs that the policy writes: bubblewrap, bubblewrap:FOLDER (a root file system), docker, or
    docker:URL (default: this machine's Docker engine if it has the images, else bubblewrap)"""
    limit: int | None = None
    """Train on at most so many tasks of each environment, the first ones (default: all of them)"""
    model: Path | None = None
    """Start from the weights and the tokenizer in this folder (Hugging Face layout, or RUN_DIR/model)"""
    with_warm_up: bool | None = None
    """Supervised warm-up before reinforcement learning (default: only without --model)"""
    mesh: str = "1"
    """Learner devices: a number (all on fsdp), or axes such as data=2,fsdp=4,tensor=2"""
    engine_devices: int | None = None
    """Devices that each engine's model is split over: on a CPU the learner's, else those outside of its mesh (default:
    engines are on the first device)"""
    engines: tuple[str, ...] = (LOCAL,)
    """Where turns are sampled: local (in this process), or servers that were started with this model, such as
    sglang:http://host:30000 (SGLang, or python -m launch.engine)"""
    lagging_engines: tuple[str, ...] = ()
    """Servers of the lagging policy, where --engines names servers and --pool.lagging-prob is above 0"""
    run_dir: Path | None = None
    """Where the run is recorded; must be new or empty (default: runs/DATE-TIME)"""
    max_steps: int = 60
    """Learner steps of reinforcement learning; 0 stops after the warm-up and its evaluation"""
    max_minutes: float | None = None
    """Stop reinforcement learning after this time, if it has not taken max_steps by then"""
    temperature: float = 0.8
    """Sampling temperature, of rollouts and in the loss alike"""
    seed: int = 0
    """Everything random is derived from it"""
    max_turns: int | None = None
    """Turns of an episode at the most (default: the environment's own limit)"""
    session_kind: SessionKind | None = None
    """Where an episode's environment runs: on a thread, or in a process of its own that can be killed if it hangs
    (default: what each environment declares that it needs)"""
    task_session_kind: Mapping[str, SessionKind] = field(default_factory=dict)
    """The same by environment, where it differs"""
    max_context_tokens: int | None = None
    """Longest episode, in tokens (default: a quarter more than the longest demonstration, at most 1024)"""
    rows_per_device: int | None = None
    """Rows of a micro-batch on each device of the mesh's data and fsdp axes; a row holds one of the longest episodes
    (default: four rows in all, but one on each device at least)"""
    row_buckets: int = 1
    """Lengths that rows may have: the longest episode's, then a half of it, a quarter, and so on; a batch takes the
    one that wastes least. Each is compiled before the first step"""
    resume: Path | None = None
    """Go on with the run in this directory, from its newest checkpoint and with its settings"""
    save_every: int = 5
    """Steps between checkpoints; there is always one at the end"""
    keep_checkpoints: int = 2
    """Checkpoints that stay; an older one is deleted once a newer one is durable"""
    eval_every: int | None = None
    """Also evaluate after each so-many-th step, at that step's policy and beside training (default: only before the
    first step and after the last)"""
    stop_at: float | None = None
    """Stop reinforcement learning once an evaluation beside it (--eval-every) has this success, above 0 and up to 1:
    the mean over the environments, sampled (default: success does not end it)"""
    mismatch_alarm: float = 0.01
    """Warn where engines and learner disagree about tokens of one version by more than this (nats a token)"""
    profile: int = 0
    """Learner steps to profile into RUN_DIR/profile, from the second one of this process on"""
    telemetry: bool = False
    """Write OpenTelemetry spans of every episode to RUN_DIR/spans.jsonl, and to the exporters that
    OTEL_TRACES_EXPORTER names (needs the package opentelemetry-sdk)"""
    track: tuple[SinkName, ...] = ()
    """Also write all figures for TensorBoard or Weights & Biases (offline), below RUN_DIR (needs agentrl_jax[track])"""
    record_batches: bool = True
    """Keep packed batches in RUN_DIR/batches, for the report and for replaying a loss"""
    keep_batches: int = KEEP_BATCHES
    """Recorded batches that stay: so many of the newest, and each tenth of the older ones"""

    remote: RemoteTasks = field(default_factory=RemoteTasks)
    rollout: RolloutConfig = field(default_factory=lambda: RolloutConfig(group_size=8, min_groups_per_batch=16))
    episode: EpisodeConfig = field(
        default_factory=lambda: EpisodeConfig(max_turns=1, max_new_tokens=64, max_context_tokens=1024)
    )
    advantages: AdvantageConfig = field(default_factory=AdvantageConfig)
    loss: LossConfig = field(default_factory=lambda: LossConfig(clip_high=0.28))
    learner: LearnerConfig = field(default_factory=lambda: LearnerConfig(learning_rate=4e-4))
    lora: LoraConfig = field(default_factory=LoraConfig)
    engine: LocalEngineConfig = field(default_factory=lambda: LocalEngineConfig(num_slots=128))
    pool: PoolConfig = field(default_factory=PoolConfig)
    publish: PublishConfig = field(default_factory=PublishConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    rendering: Annotated[RenderingConfig, tyro.conf.OmitArgPrefixes] = field(default_factory=RenderingConfig)
    warm_up: WarmUpConfig = field(default_factory=WarmUpConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    runtime: Annotated[RuntimeConfig, tyro.conf.OmitArgPrefixes] = field(default_factory=RuntimeConfig)

    def __post_init__(self) -> None:
        if self.max_steps < 0:
            raise ConfigError(f"--max-steps must be >= 0, got {self.max_steps}")
        if self.profile < 0:
            raise ConfigError(f"--profile must be >= 0 steps, got {self.profile}")
        if self.max_minutes is not None and not self.max_minutes > 0:
            raise ConfigError(f"--max-minutes must be > 0, got {self.max_minutes}")
        if not 0.0 < self.temperature < float("inf"):
            raise ConfigError(
                f"--temperature must be > 0 and finite, got {self.temperature}: reinforcement learning samples from "
                "the policy (evaluation also reports greedy success)"
            )
        if self.max_turns is not None and self.max_turns < 1:
            raise ConfigError(f"--max-turns must be >= 1, got {self.max_turns}")
        if self.max_context_tokens is not None and self.max_context_tokens < 2:
            raise ConfigError(f"--max-context-tokens must be >= 2, got {self.max_context_tokens}")
        if self.rows_per_device is not None and self.rows_per_device < 1:
            raise ConfigError(f"--rows-per-device must be >= 1, got {self.rows_per_device}")
        for name in ("save_every", "keep_checkpoints", "row_buckets"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name.replace('_', '-')} must be >= 1, got {getattr(self, name)}")
        if self.engine_devices is not None and self.engine_devices < 1:
            raise ConfigError(f"--engine-devices must be >= 1, got {self.engine_devices}")
        if self.eval_every is not None and (self.eval_every < 1 or not self.evaluation.num_tasks):
            raise ConfigError(
                f"--eval-every must be >= 1, and --evaluation.num-tasks too, got {self.eval_every} and "
                f"{self.evaluation.num_tasks}"
            )
        if self.stop_at is not None and (not 0.0 < self.stop_at <= 1.0 or self.eval_every is None):
            raise ConfigError(
                f"--stop-at must be in (0, 1], and goes with --eval-every, got {self.stop_at} and {self.eval_every}"
            )
        if not self.mismatch_alarm > 0.0:
            raise ConfigError(f"--mismatch-alarm must be > 0, got {self.mismatch_alarm}")
        self._check_batches()
        self._check_loss()
        self._check_engines()
        if self.rollout.dynamic_sampling and self.advantages.credit == "turn":
            raise ConfigError(
                "--rollout.dynamic-sampling drops groups whose final rewards are equal, from which --advantages.credit "
                "turn may still learn: choose one of them"
            )
        parse_mesh(self.mesh)
        if self.limit is not None and self.limit < 1:
            raise ConfigError(f"--limit must be >= 1, got {self.limit}")
        by_task = {
            "--rollout.task-max-staleness": self.rollout.task_max_staleness,
            "--task-session-kind": self.task_session_kind,
            "--eval-set": self.eval_set,
        }
        for flag, settings in by_task.items():
            strangers = sorted(set(settings) - set(self.env_names))
            if strangers:
                raise ConfigError(f"{flag} names {', '.join(strangers)}, but --tasks is {self.tasks}")
        if self.seed < 0:
            raise ConfigError(f"--seed must be >= 0, got {self.seed}")
        if not self.env_names:
            raise ConfigError(f"--tasks must name at least one environment, got {self.tasks!r}")
        named = [name for choices in self.task_choices for name in choices]
        if len(set(named)) < len(named):
            raise ConfigError(f"--tasks names an environment twice: {self.tasks!r}")
        if "" in named:
            raise ConfigError(f"--tasks expects an environment on both sides of |, got {self.tasks!r}")
        self.rollout.weights(self.env_names)
        self._check_remote()

    def _check_remote(self) -> None:
        local = [name for name in self.env_names if not name.startswith(REMOTE_PREFIX)]
        if len(local) == len(self.env_names) and self.remote != RemoteTasks():
            raise ConfigError(f"--remote.* has no effect without a task of remote workers: --tasks {REMOTE_PREFIX}NAME")
        if local:
            return
        if self.has_warm_up or self.model is None:
            raise ConfigError(
                f"tasks of remote workers have no expert to learn from first: --tasks {self.tasks} needs --model, and "
                "no warm-up"
            )
        if self.max_context_tokens is None:
            raise ConfigError(f"nothing says how long episodes of {self.tasks} are: set --max-context-tokens")

    def _check_batches(self) -> None:
        if self.keep_batches < 1:
            raise ConfigError(f"--keep-batches must be >= 1, got {self.keep_batches}; --no-record-batches keeps none")
        if not self.record_batches and self.keep_batches != KEEP_BATCHES:
            raise ConfigError("--keep-batches has no effect with --no-record-batches: leave one of them out")

    def _check_loss(self) -> None:
        if self.loss.name == "sft":
            raise ConfigError("--loss.name sft is the warm-up's: reinforcement learning needs one that uses advantages")
        if self.loss.settings.correction != "none" or self.loss.is_external:
            return
        stale = [env for env, bound in self.rollout.task_max_staleness.items() if bound > 0]
        if self.rollout.max_staleness > 0:
            stale.append("--rollout.max-staleness")
        if self.pool.has_lagging:
            stale.append("--pool.lagging-prob")
        if stale:
            raise ConfigError(
                f"--loss.correction none: asynchronous training with no correction ({', '.join(stale)} above 0) "
                "would take tokens of other policies for the learner's own; choose another correction, or set them to 0"
            )

    def _check_engines(self) -> None:
        check_addresses(self.engines, self.lagging_engines)
        if self.has_local_engines:
            if self.publish != PublishConfig():
                raise ConfigError(f"--publish.* has no effect with --engines {LOCAL}: leave it out, or name servers")
            return
        if self.pool.has_lagging != bool(self.lagging_engines):
            raise ConfigError(
                f"--pool.lagging-prob {self.pool.lagging_prob} and {len(self.lagging_engines)} --lagging-engines: name "
                "at least one server for the lagging policy, or set --pool.lagging-prob 0"
            )
        if self.model is None:
            raise ConfigError("servers are started with a model: --engines needs --model, the folder of the same one")
        if self.engine.banned_ids:
            raise ConfigError("--engine.banned-ids has no effect on servers: leave it out, or use --engines local")
        if self.engine_devices is not None:
            raise ConfigError("--engine-devices has no effect with servers: leave it out, or use --engines local")

    @property
    def has_local_engines(self) -> bool:
        """Whether turns are sampled in this process."""
        return LOCAL in self.engines

    def with_context(self, max_context_tokens: int) -> "TrainConfig":
        """The config with every size that follows from the longest episode, and with one temperature."""
        size = rounded(max_context_tokens)
        return replace(
            self,
            max_context_tokens=size,
            episode=replace(self.episode, max_context_tokens=size, temperature=self.temperature),
            learner=replace(self.learner, temperature=self.temperature, banned_ids=self.engine.banned_ids),
            engine=replace(self.engine, cache_tokens=size),
        )

    @property
    def one_engine(self) -> LocalEngineConfig:
        """Of the engine of each pool: half the slots if there are two, so that both run the same compiled programs."""
        num_engines = 2 if self.pool.has_lagging else 1
        return replace(self.engine, num_slots=-(-self.engine.num_slots // num_engines))

    @property
    def packing(self) -> PackingConfig:
        """Rows for the learner. Raises ConfigError before `with_context` has settled the sizes."""
        if self.max_context_tokens is None:
            raise ConfigError("the rows of a batch are not known before the longest episode is")
        return packing_for(
            self.max_context_tokens,
            mesh=self.mesh,
            rows_per_device=self.rows_per_device,
            row_buckets=self.row_buckets,
        )

    @property
    def env_names(self) -> tuple[str, ...]:
        """The first choice of each task."""
        return tuple(choices[0] for choices in self.task_choices)

    @property
    def task_choices(self) -> tuple[tuple[str, ...], ...]:
        """The environments that may be played for each task, the preferred one first."""
        listed = (names.split("|") for names in self.tasks.split(",") if names.strip())
        return tuple(tuple(name.strip() for name in names) for names in listed)

    def session_kinds(self, families: Iterable[EnvFamily]) -> dict[str, SessionKind]:
        """By environment: what a flag says, else what the family declares."""
        return {
            family.name: self.task_session_kind.get(family.name) or self.session_kind or traits_of(family).session_kind
            for family in families
        }

    @property
    def has_warm_up(self) -> bool:
        return self.model is None if self.with_warm_up is None else self.with_warm_up

    def check_resumes(self, saved: "TrainConfig") -> None:
        """Raise ConfigError if a run that began as `saved` cannot go on as this."""
        changed = [name for name in _FIXED if getattr(self, name) != getattr(saved, name)]
        if (self.data is None) != (saved.data is None):  # the folder may have moved
            changed.append("data")
        if changed:
            was = ", ".join(f"{name} = {getattr(saved, name)}" for name in changed)
            raise ConfigError(
                f"--resume goes on with the run's own tasks and network: it began with {was}, which cannot change now. "
                "Leave these flags out, or start a new run with --model"
            )

    def changes_from(self, saved: "TrainConfig") -> dict[str, str]:
        """What differs, secrets left out, by dotted name: "old → new"."""
        return config_changes(saved._without_secrets(), self._without_secrets())

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values of every field but secrets, for RUN_DIR/config.json."""
        return config_to_json(self._without_secrets())

    def _without_secrets(self) -> "TrainConfig":
        return replace(self, remote=replace(self.remote, listen=replace(self.remote.listen, token=None)))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "TrainConfig":
        """The inverse of `to_json`. Raises ConfigError if a field is unknown, missing its type, or refused."""
        return config_from_json(cls, values)


_FIXED = (
    "recipe",
    "tasks",
    "level",
    "eval_set",
    "upstream_compat",
    "limit",
    "seed",
    "model",
    "with_warm_up",
    "warm_up",
    "network",
    "lora",
    "max_context_tokens",
    "rendering",
)
"""What a run is made of: a resumed run cannot change it."""
