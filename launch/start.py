"""What the defaults of a training run's flags depend on: a few of the flags themselves, which are read first."""

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tyro

from agentrl_jax.algo.corrections import CorrectionName
from agentrl_jax.algo.loss_config import LossConfig
from agentrl_jax.config import TrainConfig
from agentrl_jax.engines.pool import PoolConfig


@dataclass(frozen=True)
class _StartLoss:
    name: str | None = None
    correction: CorrectionName | None = None


@dataclass(frozen=True)
class _StartPool:
    lagging_prob: float | None = None


@dataclass(frozen=True)
class Start:
    """A recipe or a run to go on with, and what leaves some of its settings without a meaning."""

    recipe: str = TrainConfig().recipe
    resume: Path | None = None
    tasks: str | None = None
    loss: _StartLoss = field(default_factory=_StartLoss)
    pool: _StartPool = field(default_factory=_StartPool)

    def applied_to(self, config: TrainConfig) -> TrainConfig:
        """The defaults that are left of `config`: without options of another loss, of a lagging policy that there is
        not, and of tasks that are not trained on.

        They may only make sense together with the other flags, and are not checked before those are known.
        """
        pool = PoolConfig(lagging_prob=0.0) if self.pool.lagging_prob == 0.0 else config.pool
        eval_set = config.eval_set
        if self.tasks is not None:
            names = {name.strip() for name in re.split("[,|]", self.tasks)}
            eval_set = {name: data_set for name, data_set in eval_set.items() if name in names}
        loss = chosen_loss(config.loss, self.loss.name, self.loss.correction)
        return _unchecked(config, loss=loss, pool=pool, eval_set=eval_set)


def read_start(arguments: Sequence[str] | None) -> Start:
    """Read the flags of `Start` alone."""
    start, _ = tyro.cli(Start, args=arguments, return_unknown_args=True, add_help=False)
    return start


def chosen_loss(loss: LossConfig, name: str | None, correction: CorrectionName | None) -> LossConfig:
    """`loss` with another name or correction, where one is given, without the options of the ones it had."""
    name = name or loss.name
    is_the_same = name == loss.name and correction in (None, loss.settings.correction)
    return loss if is_the_same else loss.with_choice(name, correction)


def _unchecked(config: TrainConfig, **changes: Any) -> TrainConfig:
    changed = copy.copy(config)
    for name, value in changes.items():
        object.__setattr__(changed, name, value)
    return changed
