"""The numbers of a training run before it begins: its model, the memory of its devices, the arithmetic of its batches.

From settings alone: weights are not read, and no device is used.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from agentrl_jax.config import TrainConfig
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.load import inspect_pretrained
from agentrl_jax.models.params import num_params
from agentrl_jax.row_sizes import MOST_CONTEXT_UNASKED
from agentrl_jax.sharding import MeshShape, parse_mesh
from launch.estimates import DEVICES, StepBytes, engine_bytes, held_numbers, step_bytes, step_flops
from launch.recipes import Recipe

_UNASKED_SHARE = 0.75
"""Of a GPU's memory that JAX takes unless it is told otherwise."""

_UTILISATION = 0.4
"""Of a device's peak that a learner step can be expected to reach."""


class Machine(NamedTuple):
    """What JAX sees here. kind: of its devices, "cpu" for those that are cores."""

    kind: str
    num_devices: int

    @property
    def is_cpu(self) -> bool:
        return self.kind == "cpu"


class PlannedModel(NamedTuple):
    """source: where the architecture is from, in words."""

    config: ModelConfig
    source: str


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """config: with its context settled. is_cpu: whether it is to run on CPUs, and so in float32.

    has_servers: whether turns are sampled by servers, named already or not.
    """

    config: TrainConfig
    model: PlannedModel
    is_cpu: bool
    has_servers: bool

    @property
    def mesh(self) -> MeshShape:
        return parse_mesh(self.config.mesh)

    @property
    def context(self) -> int:
        assert self.config.max_context_tokens is not None
        return self.config.max_context_tokens

    def itemsize(self, dtype: str) -> int:
        """Bytes of a number in `dtype`, where auto depends on the device."""
        is_whole = dtype == "float32" or (dtype == "auto" and self.is_cpu)
        return 4 if is_whole else 2

    @property
    def rows_per_device(self) -> int:
        return self.config.packing.rows_per_micro_batch // self.mesh.num_row_shards

    @cached_property
    def step(self) -> StepBytes:
        """Of the learner."""
        config, model = self.config, self.model.config
        return step_bytes(
            model,
            mesh=self.mesh,
            rows=self.rows_per_device,
            row_tokens=self.context,
            logprob_chunk=config.learner.logprob_chunk,
            itemsize=self.itemsize(config.learner.compute_dtype),
            remat=config.learner.remat,
            lora=config.lora,
            has_reference=config.loss.needs_reference,
            offload=config.learner.offload_optimizer,
        )

    @property
    def learner(self) -> dict[str, int]:
        """Bytes on each device of the mesh in the phase of a step that needs most, by what they hold."""
        config, step = self.config, self.step
        whole = 4 * held_numbers(self.model.config, self.mesh)
        always = {
            "params": step.params,
            "reference": step.reference,
            "lagging policy": whole if config.pool.has_lagging else 0,
            "params, merged": whole if config.lora.is_on else 0,
            "gradients": step.gradients,
        }
        if step.updating > step.adding:
            return always | {"optimizer": step.moments, "update": step.new}
        return always | {
            "optimizer": step.resting_moments,
            "micro-batch's gradients": step.micro_batch,
            "activations": step.activations,
            "logits": step.logits,
        }

    @cached_property
    def engines(self) -> dict[str, int]:
        """Bytes of the embedded engines on each of their devices; {} where turns are sampled by servers."""
        config = self.config
        if self.has_servers:
            return {}
        one = engine_bytes(
            self.model.config,
            num_slots=config.one_engine.num_slots,
            cache_tokens=self.context,
            num_devices=config.engine_devices or 1,
            itemsize=self.itemsize(config.engine.dtype),
        ).total
        names = {"current engine": True, "lagging engine": config.pool.has_lagging}
        names |= {"evaluation's engine": config.eval_every is not None}
        return {name: one for name, is_there in names.items() if is_there}

    @property
    def engines_share_devices(self) -> bool:
        """Whether the embedded engines are on devices of the learner."""
        return not self.has_servers and (self.is_cpu or self.config.engine_devices is None)

    @property
    def most_on_a_device(self) -> int:
        """Bytes on the device that holds most."""
        learner, engines = sum(self.learner.values()), sum(self.engines.values())
        return learner + engines if self.engines_share_devices else max(learner, engines)

    @property
    def usable_share(self) -> float:
        """Of a GPU's memory."""
        return self.config.runtime.memory_fraction or _UNASKED_SHARE

    def fits(self, kind: str) -> bool:
        """Whether a device of `DEVICES` has the memory, as far as JAX may use it."""
        return self.most_on_a_device <= self.usable_share * DEVICES[kind].memory

    @property
    def fits_here(self) -> bool:
        """Whether this machine has the memory for a run on its CPU."""
        on_learner = sum(self.learner.values()) * self.mesh.num_devices + sum(self.engines.values())
        return on_learner <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    @property
    def num_episodes(self) -> int:
        """Of the smallest batch."""
        return self.config.rollout.min_groups_per_batch * self.config.rollout.group_size

    @property
    def num_tokens(self) -> int:
        """Of the smallest batch, if every episode is as long as it may be."""
        return self.num_episodes * self.context

    @property
    def num_micro_batches(self) -> int:
        """The same."""
        return -(-self.num_episodes // self.config.packing.rows_per_micro_batch)

    def step_seconds(self, kind: str) -> float:
        """Of the learner alone, on the smallest batch of longest episodes."""
        flops = step_flops(self.model.config, num_tokens=self.num_tokens, length=self.context)
        return flops / (_UTILISATION * DEVICES[kind].flops * self.mesh.num_devices)

    @property
    def checkpoint_bytes(self) -> int:
        """Of one checkpoint: params, moments, and the lagging policy's params."""
        numbers = num_params(self.model.config)
        return 4 * numbers * (3 + self.config.pool.has_lagging)


def make_plan(config: TrainConfig, recipe: Recipe, machine: Machine) -> RunPlan:
    """Raises ConfigError for a model folder that cannot be used."""
    context = config.max_context_tokens or MOST_CONTEXT_UNASKED
    return RunPlan(
        config=config.with_context(context),
        model=_planned_model(config, recipe),
        is_cpu=machine.is_cpu and not recipe.for_accelerators,
        has_servers=not config.has_local_engines or recipe.lacks_servers(config),
    )


def _planned_model(config: TrainConfig, recipe: Recipe) -> PlannedModel:
    folder = config.model if config.resume is None else config.resume / "model"
    if folder is not None:
        return PlannedModel(inspect_pretrained(folder)[0], f"in {folder}")
    if recipe.architecture is not None:
        return PlannedModel(recipe.architecture, f"the architecture of {recipe.model}")
    most = config.network.vocab_size
    return PlannedModel(config.network.model_config(most), f"from nothing; its tokenizer has at most {most:,} ids")


def kinds_by_memory() -> Mapping[str, float]:
    """The known devices, the smallest memory first."""
    return dict(sorted(((name, kind.memory) for name, kind in DEVICES.items()), key=lambda item: item[1]))
