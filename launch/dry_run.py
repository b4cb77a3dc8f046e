"""`--dry-run`: what a training run would be. Nothing is started or written, and devices are only counted."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import jax

from agentrl_jax.config import TrainConfig
from agentrl_jax.engines.publish_config import TransportName
from agentrl_jax.env import EnvFamily
from agentrl_jax.errors import ConfigError
from agentrl_jax.models.export import export_bytes
from agentrl_jax.models.params import num_params
from agentrl_jax.packing import PACKED_FIELDS
from agentrl_jax.saved_config import flattened
from agentrl_jax.wording import counted
from launch.estimates import device_kind
from launch.plan import Machine, RunPlan, kinds_by_memory, make_plan
from launch.recipes import Recipe
from launch.remote import is_remote

_GB = 1e9
_TRANSPORTS: dict[TransportName, str] = {"disk": "files", "tensor": "HTTP", "distributed": "broadcast"}
_PLANNED_FOR = "H800"
"""The device of the published runs: what a plan for accelerators is made for on a machine without any."""


def show_plan(config: TrainConfig, recipe: Recipe, families: Sequence[EnvFamily], say: Callable[[str], None]) -> None:
    """Say what `config` would be as a run. families: those that can be made without what `recipe` still misses.

    Raises ConfigError for a model folder that cannot be used, or a model that is too short for the episodes.
    """
    devices = jax.devices()
    machine = Machine(kind=devices[0].device_kind, num_devices=len(devices))
    plan = make_plan(config, recipe, machine)
    if plan.context > plan.model.config.max_positions:
        raise ConfigError(
            f"episodes of up to {plan.context} tokens do not fit the model's {plan.model.config.max_positions} "
            "positions; set --max-context-tokens"
        )
    sections = {
        "settings, as config.json will have them (* not the recipe's)": _settings(plan.config, recipe),
        "model": _model(plan),
        "memory": _memory(plan, machine),
        "each step": _step(plan, machine),
        "what would be started": _started(plan, families),
        "what would be written": _written(plan),
    }
    for title, lines in sections.items():
        say(title)
        for line in lines:
            say(f"  {line}".rstrip())
        say("")
    missing = recipe.missing(config)
    say("nothing was started" + (f"; before it can be, it needs {', and '.join(missing)}" if missing else ""))


def _settings(config: TrainConfig, recipe: Recipe) -> Iterator[str]:
    usual = flattened(recipe.config.to_json())
    for name, value in flattened(config.to_json()).items():
        if name in _NOT_SHOWN:
            continue
        is_changed = usual.get(name) != value and name not in _SETTLED
        yield f"{'*' if is_changed else ' '} {name:<36} {value}"


_REMEDIES = "a larger --mesh, --lora.rank, fewer --rows-per-device or --engine.num-slots, or --engines elsewhere help"

_NOT_SHOWN = ("dry_run", "episode.max_turns", "episode.queue_deadline_s")
"""What is no setting of a run, or is another for each environment."""

_SETTLED = frozenset(
    {
        *("run_dir", "max_context_tokens", "episode.max_context_tokens", "engine.cache_tokens"),
        *("episode.temperature", "learner.temperature", "learner.banned_ids"),
    }
)
"""What follows from other settings."""


def _model(plan: RunPlan) -> Iterator[str]:
    model = plan.model.config
    yield f"{num_params(model):,} parameters, {plan.model.source}"
    yield (
        f"{model.family}: {model.num_layers} layers of width {model.width}, {model.num_heads} heads on "
        f"{model.num_kv_heads} of keys and values, vocabulary {model.vocab_size:,}"
    )


def _memory(plan: RunPlan, machine: Machine) -> Iterator[str]:
    kind = "float32" if plan.itemsize(plan.config.learner.compute_dtype) == 4 else "bfloat16"
    phase = "in the update" if plan.step.updating > plan.step.adding else "while gradients are added up"
    yield f"each of the learner's {_count(plan.mesh.num_devices, 'device')}, computing in {kind}, {phase}, in GB:"
    yield from _parts(plan.learner)
    if plan.engines:
        where = "the first of them besides" if plan.engines_share_devices else "each of the engines' devices"
        yield f"{where}, in GB:"
        yield from _parts(plan.engines)
        yield f"the fullest device: {plan.most_on_a_device / _GB:.3g} GB"
    else:
        model = plan.model.config
        weights, keys = export_bytes(model, dtype="bfloat16"), _key_bytes(plan) * plan.config.engine.num_slots
        yield (
            f"servers, all of a policy together: {weights / _GB:.3g} GB of weights on each, and up to "
            f"{keys / _GB:,.0f} GB of keys and values for {plan.config.engine.num_slots:,} episodes of full length"
        )
    yield from _verdict(plan, machine)


def _parts(parts: Mapping[str, int]) -> Iterator[str]:
    for name, size in parts.items():
        if size:
            yield f"  {name:<24}{size / _GB:8.3g}"
    yield f"  {'in all':<24}{sum(parts.values()) / _GB:8.3g}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _key_bytes(plan: RunPlan) -> int:
    model = plan.model.config
    return 2 * 2 * model.num_layers * model.num_kv_heads * model.head_dim * plan.context


def _verdict(plan: RunPlan, machine: Machine) -> Iterator[str]:
    share = f"{plan.usable_share:.0%} of a device's memory, which is what JAX takes (--memory-fraction)"
    if plan.is_cpu:
        if not plan.fits_here:
            yield "WARNING: this machine has less memory than all of them together"
        return
    names = kinds_by_memory()
    fitting = [name for name in names if plan.fits(name)]
    yield f"fits {_named(fitting, names) or 'none of the devices that we know'}, by {share}"
    too_small = [name for name in names if name not in fitting]
    if too_small:
        yield f"WARNING: does not fit {_named(too_small, names)}: {_REMEDIES}"
    own = device_kind(machine.kind)
    if own is not None and plan.most_on_a_device > plan.usable_share * own.memory:
        yield f"WARNING: does not fit this machine's {machine.kind}"
    if not machine.is_cpu and machine.num_devices < plan.mesh.num_devices:
        yield f"WARNING: this machine has {machine.num_devices} {machine.kind}, the mesh needs {plan.mesh.num_devices}"
    if machine.is_cpu:
        yield "this machine has no accelerator; the plan is for one that has"


def _named(names: Sequence[str], memory: Mapping[str, float]) -> str:
    """Some devices are sold with several memories: their names alone do not say which is meant."""
    return ", ".join(name if "GB" in name else f"{name} {memory[name] / 2**30:.0f}GB" for name in names)


def _step(plan: RunPlan, machine: Machine) -> Iterator[str]:
    config = plan.config
    rollout, packing = config.rollout, config.packing
    most = rollout.batch_capacity
    yield (
        f"{rollout.min_groups_per_batch:,} groups at least, {most:,} at the most, of {rollout.group_size} episodes: "
        f"{plan.num_episodes:,} episodes or more"
    )
    yield (
        f"{rollout.num_permits:,} groups in flight at the most (age up to {rollout.max_staleness}); "
        f"{max(config.engine.num_slots, rollout.group_size):,} episodes play at a time"
    )
    lengths = ", ".join(f"{length:,}" for length in packing.row_tokens)
    yield (
        f"up to {plan.context:,} tokens an episode: at most {plan.num_tokens:,} tokens, in rows of {lengths}"
        + ("" if config.max_context_tokens is not None else " (the longest demonstration decides)")
    )
    yield (
        f"{packing.rows_per_micro_batch} rows a micro-batch ({plan.rows_per_device} a device): at most "
        f"{plan.num_micro_batches:,} micro-batches, then one update"
    )
    if not plan.is_cpu:
        seconds = plan.step_seconds(_PLANNED_FOR)
        yield f"the learner's part: {seconds:,.0f} s on {_PLANNED_FOR} at 40 % of their peak, if all are that long"
    yield f"{counted(config.max_steps, 'step')}: {config.max_steps * plan.num_episodes:,} episodes or more"
    if config.evaluation.num_tasks:
        when = "before and after" + (f", and every {config.eval_every} steps" if config.eval_every else "")
        num = 2 * config.evaluation.num_tasks * len(config.env_names)
        yield f"evaluation {when}: {num:,} episodes, half of them greedy"


def _started(plan: RunPlan, families: Sequence[EnvFamily]) -> Iterator[str]:
    config = plan.config
    if plan.engines:
        slots, names = config.one_engine.num_slots, " and ".join(plan.engines)
        yield f"in this process: {names}, of {slots} slots each"
    else:
        how = _TRANSPORTS[config.publish.transport]
        servers = "servers that are not named yet" if config.has_local_engines else " ".join(config.engines)
        yield f"no engines: {servers} are there already, and get weights by {how}"
        if config.lagging_engines:
            yield f"  for the lagging policy {' '.join(config.lagging_engines)}"
    num_sessions = max(config.engine.num_slots, config.evaluation.max_concurrent)
    for name, kind in config.session_kinds(families).items():
        where = "on a thread each" if kind == "thread" else "in a process each"
        yield f"{name}: up to {num_sessions:,} sessions, {where}"
    made = {family.name for family in families}
    for name in config.env_names:
        if is_remote(name):
            listen = config.remote.listen
            yield f"{name}: sessions on workers that register at port {listen.port} of {listen.host}"
        elif name not in made:
            yield f"{name}: sessions in this process"
    group = config.runtime
    if group.is_named:
        yield f"one of {group.num_processes} processes, which meet at {group.coordinator_address}"


def _written(plan: RunPlan) -> Iterator[str]:
    config, model = plan.config, plan.model.config
    yield f"run directory {config.resume or config.run_dir}"
    checkpoints = (config.keep_checkpoints + 1) * plan.checkpoint_bytes
    yield (
        f"checkpoints/ up to {checkpoints / _GB:.3g} GB: {config.keep_checkpoints} and the newest, every "
        f"{config.save_every} steps"
    )
    yield f"model/ {4 * num_params(model) / _GB:.3g} GB in float32, half of it in bfloat16"
    if config.record_batches:
        num_kept = min(config.max_steps, config.keep_batches) + max(0, config.max_steps - config.keep_batches) // 10
        size = 4 * len(PACKED_FIELDS) * plan.num_tokens * num_kept
        yield f"batches/ at most {size / _GB:.3g} GB (--no-record-batches: none)"
    if config.loss.needs_reference or config.lora.is_on:
        yield "reference/ the policy that reinforcement learning begins with, as large as model/"
