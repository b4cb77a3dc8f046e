"""The supervised warm-up: what its batches hold, when its phases end, and which rate its steps have."""

from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agentrl_jax.errors import ConfigError
from agentrl_jax.learner import LearnerConfig
from agentrl_jax.learner.config import learning_rate_at
from agentrl_jax.packing import PackedBatch, PackingConfig
from agentrl_jax.sft import WarmUpConfig, copy_batches, demonstration_batches, train_on, warm_up, warm_up_learner_config
from agentrl_jax.types import as_ids

PACKING = PackingConfig(row_tokens=(128,), rows_per_micro_batch=2)


class ScriptedLearner:
    """Gives the losses it is told, then 1.0 for ever; keeps the batches."""

    def __init__(self, *losses: float) -> None:
        self.losses, self.batches = list(losses), []

    def step(self, batch: PackedBatch) -> Any:
        self.batches.append(batch)
        return SimpleNamespace(loss=self.losses.pop(0) if self.losses else 1.0)


def rows_of(batch: PackedBatch) -> list[list[int]]:
    """The ids of each segment, in rows' order."""
    found = []
    for part in batch.micro_batches:
        for ids, segments in zip(part.ids, part.segment_ids, strict=True):
            found += [ids[segments == segment].tolist() for segment in range(1, segments.max() + 1)]
    return found


@pytest.mark.parametrize(("row_tokens", "length"), [(128, 48), (96, 48), (95, 47), (64, 32)])
def test_copying_repeats_random_ids_once_and_counts_the_repetition(row_tokens: int, length: int) -> None:
    content = as_ids([3, 5, 7, 11])
    packing = PackingConfig(row_tokens=(row_tokens,), rows_per_micro_batch=2)
    batches = copy_batches(content, batch_size=4, packing=packing, seed=0)
    first, second = islice(batches, 2)
    rows = rows_of(first)
    assert [len(row) for row in rows] == [2 * length] * 4
    assert all(row[:length] == row[length:] for row in rows)
    assert {token for row in rows for token in row} == {3, 5, 7, 11}
    assert first.loss_weight == 4 * length
    assert rows_of(second) != rows


def test_every_demonstration_comes_once_an_epoch_in_an_order_of_its_own() -> None:
    demonstrations = [(as_ids([number, 1]), np.array([False, True])) for number in range(10, 17)]
    batches = demonstration_batches(demonstrations, batch_size=7, packing=PACKING, seed=0)
    epochs = [[row[0] for row in rows_of(batch)] for batch in islice(batches, 3)]
    assert all(sorted(epoch) == list(range(10, 17)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_without_demonstrations_there_is_an_error_and_no_endless_search() -> None:
    with pytest.raises(ConfigError, match="set a larger --max-context-tokens"):
        next(demonstration_batches([], batch_size=1, packing=PACKING, seed=0))


def test_a_phase_ends_at_its_loss_its_steps_or_on_request() -> None:
    def run(*losses: float, stop_after: int = 100) -> tuple[float, list[tuple[str, int, float]]]:
        reports: list[tuple[str, int, float]] = []
        last = train_on(
            ScriptedLearner(*losses),  # type: ignore[arg-type]
            iter([None] * 9),  # type: ignore[list-item]
            phase="copy",
            max_steps=4,
            report=lambda *report: reports.append(report),
            should_stop=lambda: len(reports) == stop_after,
            stop_below=0.5,
        )
        return last, reports

    assert run(0.9, 0.4, 0.3) == (0.4, [("copy", 1, 0.9), ("copy", 2, 0.4)])
    assert run(0.9, 0.8, 0.7, 0.6, 0.4)[1][-1] == ("copy", 4, 0.6)
    assert run(0.9, 0.8, 0.7, stop_after=2)[0] == 0.8


@pytest.mark.parametrize(("content", "phases"), [([4, 5], ["copy", "sft", "sft", "sft"]), ([], ["sft"] * 3)])
def test_the_warm_up_copies_only_what_there_is_to_copy(content: list[int], phases: list[str]) -> None:
    seen: list[str] = []
    warm_up(
        ScriptedLearner(0.01),  # type: ignore[arg-type]
        [(as_ids([1, 2]), np.array([False, True]))],
        config=WarmUpConfig(copy_steps=9, steps=3, batch_size=2),
        packing=PACKING,
        content_ids=as_ids(content),
        report=lambda phase, step, loss: seen.append(phase),
        should_stop=lambda: False,
    )
    assert seen == phases


def test_the_rate_falls_from_the_peak_to_nothing_over_both_phases() -> None:
    config = warm_up_learner_config(
        WarmUpConfig(copy_steps=3, steps=7, learning_rate=2e-3),
        LearnerConfig(temperature=0.8, weight_decay=0.1, warmup_steps=50),
        num_copy_steps=3,
    )
    assert (config.temperature, config.weight_decay) == (1.0, 0.1)
    rates = [float(learning_rate_at(config, np.int32(step))) for step in (0, 5, 10)]
    np.testing.assert_allclose(rates, [2e-3, 1e-3, 0.0], atol=1e-9)
