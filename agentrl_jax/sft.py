"""Supervised warm-up: first copying, then demonstrations, on the same learner that does reinforcement learning.

A model that starts from nothing learns the format of a tool call in minutes, but sits on a plateau where it does
not copy arguments from its context; a short spell of pure copying (random ids, repeated) gets it past that
(induction heads: Olsson et al. 2022). Demonstration batches are mixed over tasks and never sorted by length.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import monotonic

import numpy as np

from agentrl_jax.errors import ConfigError
from agentrl_jax.learner import Learner, LearnerConfig
from agentrl_jax.packing import PackedBatch, PackingConfig, pack_demonstrations
from agentrl_jax.types import Bools, Ids, as_ids

Demonstration = tuple[Ids, Bools]
ReportStep = Callable[[str, int, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUpConfig:
    """Supervised warm-up before reinforcement learning.

    The defaults suit a model of half a million parameters that starts from nothing.
    """

    demonstrations: int = 3000
    """Scripted-expert episodes, over all environments in equal shares"""
    noise: float = 0.2
    """Share of random, well-formed actions in them"""
    copy_steps: int = 200
    """At most this many steps of copying random ids; 0 skips copying"""
    copy_below: float = 0.05
    """Copying ends once its loss (nats per token) is below this"""
    steps: int = 450
    """Steps over the demonstrations"""
    max_minutes: float = 6.0
    """Both phases together end after this time at the latest"""
    batch_size: int = 32
    """Demonstrations, or copied sequences, in one step"""
    learning_rate: float = 3e-3
    """Peak; falls to 0 over copying and demonstrations (cosine)"""
    seed: int = 0
    """Draws the demonstrations and their order"""

    def __post_init__(self) -> None:
        for name, least in {"demonstrations": 1, "batch_size": 1, "copy_steps": 0, "steps": 0, "seed": 0}.items():
            if getattr(self, name) < least:
                raise ConfigError(f"warm-up {name} must be >= {least}, got {getattr(self, name)}")
        if not 0.0 <= self.noise < 1.0:
            raise ConfigError(f"warm-up noise must be in [0, 1), got {self.noise}")
        if not self.max_minutes > 0.0:
            raise ConfigError(f"warm-up max_minutes must be > 0, got {self.max_minutes}")
        if not self.learning_rate > 0.0:
            raise ConfigError(f"warm-up learning_rate must be > 0, got {self.learning_rate}")


def copy_batches(
    content_ids: Ids, *, batch_size: int, packing: PackingConfig, seed: int, length: int = 48
) -> Iterator[PackedBatch]:
    """Endless batches of `length` random ids of `content_ids`, repeated once; the loss counts the repetition only.

    Where a row has no room for the repetition, they are as many as it has room for.
    """
    rng = np.random.default_rng(seed)
    length = min(length, packing.row_tokens[-1] // 2)
    mask = np.repeat([False, True], length)
    while True:
        halves = rng.choice(content_ids, size=(batch_size, length))
        yield pack_demonstrations([(as_ids(np.tile(half, 2)), mask) for half in halves], packing)


def demonstration_batches(
    demonstrations: Sequence[Demonstration], *, batch_size: int, packing: PackingConfig, seed: int
) -> Iterator[PackedBatch]:
    """Endless batches in a new random order each epoch, whatever task or length a demonstration has.

    Raises ConfigError if there is no demonstration.
    """
    if not demonstrations:
        raise ConfigError("a warm-up needs demonstrations that fit a row, got none; set a larger --max-context-tokens")
    for chosen in shuffled(len(demonstrations), batch_size=batch_size, seed=seed):
        yield pack_demonstrations([demonstrations[index] for index in chosen], packing)


def shuffled(count: int, *, batch_size: int, seed: int, num_taken: int = 0) -> Iterator[list[int]]:
    """Endless batches of the indices below `count`, each once an epoch, in a new random order each epoch.

    num_taken: batches that an earlier process has taken: the next one is what it would have got.
    """
    rng = np.random.default_rng(seed)
    order: list[int] = []
    for number in itertools.count():
        while len(order) < batch_size:
            order.extend(rng.permutation(count).tolist())
        chosen, order = order[:batch_size], order[batch_size:]
        if number >= num_taken:
            yield chosen


def train_on(
    learner: Learner,
    batches: Iterator[PackedBatch],
    *,
    phase: str,
    max_steps: int,
    report: ReportStep,
    should_stop: Callable[[], bool],
    stop_below: float = 0.0,
) -> float:
    """Take steps until `max_steps`, a loss below `stop_below`, or `should_stop()`; return the last loss."""
    loss = float("nan")
    for step in range(1, max_steps + 1):
        if should_stop():
            break
        loss = learner.step(next(batches)).loss
        report(phase, step, loss)
        if loss < stop_below:
            break
    return loss


def warm_up_learner_config(config: WarmUpConfig, base: LearnerConfig, *, num_copy_steps: int) -> LearnerConfig:
    """The learner's settings for the warm-up: its own learning rate, and the model's own distribution.

    Demonstrations are imitated at temperature 1: the sampling temperature sharpens what was learnt. The rate falls to
    0 (cosine) over both phases: at a constant rate of 3e-3 success swings by tens of points from step to step, and
    where the warm-up ends would be luck.

    num_copy_steps: the most that copying may take, 0 if it is skipped. Copying that ends early leaves the end of the
    curve untaken: a few per cent of the peak.
    """
    decay_steps = num_copy_steps + config.steps
    return replace(base, learning_rate=config.learning_rate, temperature=1.0, warmup_steps=0, decay_steps=decay_steps)


def warm_up(
    learner: Learner,
    demonstrations: Sequence[Demonstration],
    *,
    config: WarmUpConfig,
    packing: PackingConfig,
    content_ids: Ids,
    report: ReportStep,
    should_stop: Callable[[], bool],
) -> None:
    """Train `learner` (made with the loss "sft") on copying, then on the demonstrations.

    content_ids: int32 [n], what copying draws from (no special tokens); empty skips it.
    """
    size, seed = config.batch_size, config.seed
    deadline = monotonic() + 60 * config.max_minutes

    def is_over() -> bool:
        return should_stop() or monotonic() > deadline

    if len(content_ids):
        copying = copy_batches(content_ids, batch_size=size, packing=packing, seed=seed)
        train_on(
            learner,
            copying,
            phase="copy",
            max_steps=config.copy_steps,
            stop_below=config.copy_below,
            report=report,
            should_stop=is_over,
        )
    mixed = demonstration_batches(demonstrations, batch_size=size, packing=packing, seed=seed)
    train_on(learner, mixed, phase="sft", max_steps=config.steps, report=report, should_stop=is_over)
