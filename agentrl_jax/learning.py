"""The learner of reinforcement learning: begun from a policy, or gone on with, over what stays as it was then.

    RUN_DIR/reference     the policy that reinforcement learning began with, if anything needs it

That is the reference of a KL term and the base under adapters, the same weights for both. It is complete before the
run's first checkpoint, and never changes.
"""

from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import TypeAlias

from jax.sharding import Mesh

from agentrl_jax.algo.losses import LossConfig, LossFn, make_loss
from agentrl_jax.config import TrainConfig
from agentrl_jax.errors import ConfigError
from agentrl_jax.learner import Learner
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.load import load_pretrained
from agentrl_jax.models.params import Params
from agentrl_jax.models.save import save_pretrained
from agentrl_jax.sft import warm_up_learner_config

_FOLDER = "reference"


MakeLearner: TypeAlias = Callable[..., Learner]
"""Learner, or `lead.Leader.make_learner` where several processes share the mesh."""


def warm_up_learner(
    config: TrainConfig,
    model: ModelConfig,
    mesh: Mesh,
    params: Params,
    *,
    num_copy_steps: int,
    make_learner: MakeLearner = Learner,
) -> Learner:
    """Return a learner of the supervised warm-up. num_copy_steps: at most so many steps of copying, 0 if none."""
    settings = warm_up_learner_config(config.warm_up, config.learner, num_copy_steps=num_copy_steps)
    # A network that starts from nothing has nothing that adapters could leave as it is.
    lora = config.lora if config.model is not None else None
    return make_learner(model, settings, make_loss(LossConfig(name="sft")), mesh, params, lora=lora)


def begin_learning(
    config: TrainConfig,
    model: ModelConfig,
    loss: LossFn,
    mesh: Mesh,
    params: Params,
    run_dir: Path,
    *,
    make_learner: MakeLearner = Learner,
) -> Learner:
    """Return a learner at step 0 whose policy is `params`, which are kept in `run_dir` if they will be needed."""
    if _needs_origin(config):
        save_pretrained(params, model, run_dir / _FOLDER)
    return _learner(config, model, loss, mesh, params, make_learner)


def resume_learning(
    config: TrainConfig,
    model: ModelConfig,
    loss: LossFn,
    mesh: Mesh,
    params: Params,
    run_dir: Path,
    *,
    make_learner: MakeLearner = Learner,
) -> Learner:
    """Return a learner into which a checkpoint of the run in `run_dir` can be restored.

    params: of the model's shapes; without adapters their values do not matter.
    Raises ConfigError if the run has kept no reference and the settings now want one.
    """
    if not _needs_origin(config):
        return _learner(config, model, loss, mesh, params, make_learner)
    folder = run_dir / _FOLDER
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"--resume {run_dir}: the run began without --loss.kl-coefficient, so it has not kept the policy that it "
            "began with; leave it at 0, or start a new run with --model"
        )
    _, origin = load_pretrained(folder, mesh=mesh)
    return _learner(config, model, loss, mesh, origin, make_learner)


def compile_ahead(learner: Learner, config: TrainConfig, say: Callable[[str], None]) -> None:
    """Compile the learner's programs before anyone waits for a step, and say how long that took."""
    begun = monotonic()
    memory = learner.compile_ahead(config.packing)
    lengths = ", ".join(map(str, config.packing.row_tokens))
    say(
        f"compiled the learner's step for rows of {lengths} tokens in {monotonic() - begun:.0f} s; it needs up to "
        f"{memory.peak / 1e9:.2g} GB on each device"
    )
    say(f"attention: {learner.attention.backend} ({learner.attention.reason})")


def _needs_origin(config: TrainConfig) -> bool:
    return config.loss.needs_reference or config.lora.is_on


def _learner(
    config: TrainConfig, model: ModelConfig, loss: LossFn, mesh: Mesh, params: Params, make_learner: MakeLearner
) -> Learner:
    reference = params if config.loss.needs_reference else None
    return make_learner(model, config.learner, loss, mesh, params, reference=reference, lora=config.lora)
