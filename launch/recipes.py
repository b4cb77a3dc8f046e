"""Recipes: whole configs of a training run by name, as Python values. Flags are changes to one of them.

docs/recipes.md says where the published ones come from, and in what they differ from what was published.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from agentrl_jax.algo.advantages import AdvantageConfig
from agentrl_jax.algo.losses import LossConfig
from agentrl_jax.config import TrainConfig
from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.engines.local.config import LocalEngineConfig
from agentrl_jax.engines.pool import PoolConfig
from agentrl_jax.errors import ConfigError
from agentrl_jax.evaluation import EvaluationConfig
from agentrl_jax.learner import LearnerConfig
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.published import PUBLISHED
from agentrl_jax.policy import NetworkConfig
from agentrl_jax.rendering.config import RenderingConfig
from agentrl_jax.sft import WarmUpConfig
from agentrl_jax.types import EpisodeEnd
from launch.packaged_model import packaged_model

AGENTBENCH = "alfworld,dbbench,knowledgegraph,os_interaction,webshop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """description: one line for `--help`.

    model: the Hugging Face model that it is meant for, where the user has to bring one.
    needs_data: it is about the environments' real tasks.
    needs_servers: what it samples at a time is more than an engine in the learner's process can hold.
    is_packaged: its model comes with a Python package, which `packaged_model` finds.
    """

    description: str
    config: TrainConfig
    model: str | None = None
    needs_data: bool = False
    needs_servers: bool = False
    is_packaged: bool = False

    @property
    def architecture(self) -> ModelConfig | None:
        """Of `model`; None where the recipe does not say."""
        return None if self.model is None else PUBLISHED[self.model.split("/")[-1]]

    @property
    def for_accelerators(self) -> bool:
        """Whether nobody would run it on a CPU."""
        return self.model is not None and not self.is_packaged

    def with_model(self, config: TrainConfig) -> TrainConfig:
        """`config`, a change to this recipe, with the packaged model if it names none. Raises ConfigError."""
        if config.model is not None or not self.is_packaged:
            return config
        return replace(config, model=packaged_model())

    def lacks_servers(self, config: TrainConfig) -> bool:
        """Whether `config`, a change to this recipe, still has to name servers."""
        return self.needs_servers and config.has_local_engines and config.engine == self.config.engine

    def missing(self, config: TrainConfig) -> list[str]:
        """What only the user has, and `config`, a change to this recipe, does not name yet; a phrase each."""
        wanted = {
            f"the folder of {self.model}, or of a model like it (--model DIR)": self.model and config.model is None,
            "the folder of the environments' own tasks (--data DIR; python -m envs.data verify DIR tells what is in it)"
            "": self.needs_data and config.data is None,
            f"inference servers for {config.engine.num_slots:,} episodes at a time (--engines sglang:http://HOST:PORT "
            "… --lagging-engines sglang:http://HOST:PORT …), or a smaller --engine.num-slots for an engine in this "
            "process": self.lacks_servers(config),
        }
        return [phrase for phrase, is_missing in wanted.items() if is_missing]


QUICKSTART = TrainConfig(
    recipe="quickstart",
    tasks="alfworld,dbbench,knowledgegraph,os_interaction|kg,webshop",
    network=NetworkConfig(vocab_size=1280),
    warm_up=WarmUpConfig(demonstrations=4000, noise=0.35, steps=330),
    rollout=RolloutConfig(group_size=8, min_groups_per_batch=20),
    engine=LocalEngineConfig(num_slots=160),
    max_steps=120,
    max_minutes=8.0,
)
"""A small agent from nothing, within minutes and without a GPU."""


def _single(env: str) -> Recipe:
    config = replace(QUICKSTART, recipe=f"single-{env}", tasks=env)
    return Recipe(description=f"a small agent from nothing, in one environment ({env})", config=config)


def _published(name: str, model: str, *, mesh: str, size: str) -> tuple[str, Recipe]:
    """The hyper-parameters of AgentRL's released code for five tasks."""
    config = TrainConfig(
        recipe=name,
        tasks=AGENTBENCH,
        eval_set={"alfworld": "std"},
        with_warm_up=False,
        mesh=mesh,
        max_steps=1000,
        eval_every=25,
        save_every=25,
        temperature=0.8,
        max_turns=20,
        max_context_tokens=8192,
        rows_per_device=2,
        row_buckets=3,
        record_batches=False,
        rollout=RolloutConfig(group_size=8, min_groups_per_batch=256),
        episode=replace(TrainConfig().episode, max_new_tokens=1024),
        advantages=AdvantageConfig(task_normalisation="paper"),
        loss=LossConfig(clip_low=0.2, clip_high=0.2, dual_clip=3.0, kl_coefficient=1e-4, kl_estimator="k3"),
        learner=LearnerConfig(learning_rate=1e-6, beta2=0.999),
        engine=LocalEngineConfig(num_slots=2048, prefill_shapes=((1, 512), (8, 512)), decode_block=16),
        pool=PoolConfig(lagging_prob=0.25, lagging_period=25),
        evaluation=EvaluationConfig(num_tasks=93, max_concurrent=512),
    )
    description = f"AgentRL as published: five tasks, {size}, on real data, {mesh} learner devices of 80 GB and servers"
    return name, Recipe(description=description, config=config, model=model, needs_data=True, needs_servers=True)


ONE_GPU = TrainConfig(
    recipe="one-gpu",
    tasks="alfworld,dbbench,knowledgegraph,webshop",
    with_warm_up=False,
    max_steps=500,
    eval_every=25,
    save_every=25,
    max_context_tokens=4096,
    rows_per_device=2,
    row_buckets=2,
    rollout=RolloutConfig(group_size=8, min_groups_per_batch=16),
    episode=replace(TrainConfig().episode, max_new_tokens=512),
    learner=LearnerConfig(learning_rate=1e-6, beta2=0.999),
    engine=LocalEngineConfig(num_slots=128, prefill_shapes=((1, 256), (8, 256)), decode_block=16),
    evaluation=EvaluationConfig(num_tasks=64),
)
"""A real model, its engines and its learner on one GPU."""

SMOLLM2 = TrainConfig(
    recipe="smollm2",
    tasks="alfworld",
    with_warm_up=False,
    max_steps=20,
    max_turns=6,
    max_context_tokens=1536,
    rows_per_device=1,
    rollout=RolloutConfig(group_size=4, min_groups_per_batch=1),
    # It never wins. What it can learn is to end its turns.
    episode=replace(TrainConfig().episode, penalties={EpisodeEnd.TURN_TRUNCATED: -0.4}),
    learner=LearnerConfig(learning_rate=1e-5, beta2=0.999, logprob_chunk=128),
    engine=LocalEngineConfig(num_slots=8, prefill_shapes=((1, 64), (4, 64))),
    pool=PoolConfig(lagging_prob=0.0),
    rendering=RenderingConfig(chat_template="hermes"),
    evaluation=EvaluationConfig(num_tasks=0),
)
"""Pretrained weights, through the whole line, on a CPU: a step takes minutes. Its own template knows no tools."""

RECIPES: Mapping[str, Recipe] = {
    "single-kg": Recipe(
        description="a small agent from nothing, in one environment (kg); what counts without --recipe",
        config=TrainConfig(),
    ),
    **{f"single-{env}": _single(env) for env in ("alfworld", "dbbench", "knowledgegraph", "os_interaction", "webshop")},
    "quickstart": Recipe(
        description="a small agent from nothing, in several environments at once (make quickstart)", config=QUICKSTART
    ),
    "smollm2": Recipe(
        description="a pretrained model of 135M, which a Python package carries, without a GPU: minutes a step",
        config=SMOLLM2,
        model="HuggingFaceTB/SmolLM2-135M-Instruct",
        is_packaged=True,
    ),
    "one-gpu": Recipe(
        description="four tasks on one GPU of 80 GB, learner and engines together",
        config=ONE_GPU,
        model="Qwen/Qwen2.5-0.5B-Instruct",
    ),
    **dict(
        [
            _published("paper-3b", "Qwen/Qwen2.5-3B-Instruct", mesh="4", size="3B"),
            _published("paper-7b", "Qwen/Qwen2.5-7B-Instruct", mesh="8", size="7B"),
            _published("paper-14b", "Qwen/Qwen2.5-14B-Instruct", mesh="16", size="14B"),
            _published("paper-32b", "Qwen/Qwen2.5-32B-Instruct", mesh="32", size="32B"),
            _published("paper-glm4-9b", "zai-org/GLM-4-9B-0414", mesh="8", size="GLM-4-9B"),
        ]
    ),
}


def recipe_named(name: str) -> Recipe:
    """Raises ConfigError for an unknown name, and says which one it may be."""
    if name in RECIPES:
        return RECIPES[name]
    near = difflib.get_close_matches(name, RECIPES, n=1, cutoff=0.5)
    meant = f" (did you mean {near[0]}?)" if near else ""
    raise ConfigError(f"unknown recipe {name!r}{meant}: known ones are {', '.join(RECIPES)}")


def recipe_of(config: TrainConfig) -> Recipe:
    """The recipe that `config` began as; `config` itself where a resumed run names one that is gone."""
    return RECIPES.get(config.recipe) or Recipe(description="of an earlier version", config=config)
