"""Losses in a file of the user's: found, looked at before anything starts, and treated as the others are."""

import re
import textwrap
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.algo.advantages import AdvantageConfig
from agentrl_jax.algo.losses import LossConfig, make_loss
from agentrl_jax.errors import ConfigError
from agentrl_jax.learner.metrics import StepMetrics
from agentrl_jax.packing import PackingConfig, build_batch
from tests.algo.loss_layouts import one_micro_batch
from tests.algo.loss_reference import random_segments
from tests.algo.record_builders import make_group

GOOD = """
import jax.numpy as jnp
from agentrl_jax.algo.aggregate import masked_sum, neutralise
from agentrl_jax.algo.surrogates import clipped_surrogate
from agentrl_jax.batch import LossOutput

def loss(logprobs, batch):
    mask = batch.loss_mask & batch.has_signal
    arrays = (neutralise(x, mask) for x in (logprobs, batch.behavior_logprobs, batch.advantages))
    costs = clipped_surrogate(*arrays)
    return LossOutput(masked_sum(costs, mask), {"mine": masked_sum(costs, mask)})
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Write a module of a name of its own into the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/nowhere"] + [path for path in __import__("sys").path if path])
    name = re.sub(r"\W", "_", f"own_{request.node.name}")

    def write_module(text: str) -> str:
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text), encoding="utf-8")
        return name

    return write_module


def test_a_function_of_ones_own_is_the_loss_it_copies(write: Callable[[str], str]) -> None:
    name = write(GOOD)
    logprobs, batch = one_micro_batch(random_segments(0))
    for kl in ({}, {"kl_coefficient": 0.2}):
        own = make_loss(LossConfig(name=f"{name}:loss", **kl))
        ours = make_loss(LossConfig(**kl))
        assert own == make_loss(LossConfig(name=f"{name}:loss", **kl))
        assert hash(own) == hash(make_loss(LossConfig(name=f"{name}:loss", **kl)))
        totals = [jax.grad(lambda x, f=f: f(x, batch).loss.total)(jnp.asarray(logprobs)) for f in (own, ours)]
        np.testing.assert_array_equal(*totals)
        output = own(logprobs, batch)
        assert output.loss == ours(logprobs, batch).loss
        shared = ("ratio_mean", "behavior_kl", "mismatch_kl", "token_staleness")
        assert {"mine", *shared} <= set(output.metrics)
        assert ("reference_kl" in output.metrics) == bool(kl)
        assert set(output.histograms) == {"ratio"}


def test_a_function_in_a_package_and_in_a_class_is_found(write: Callable[[str], str], tmp_path: Path) -> None:
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "inner.py").write_text(GOOD + "\nclass Losses:\n    mine = staticmethod(loss)\n")
    assert make_loss(LossConfig(name="own_package.inner:Losses.mine")).function.__name__ == "loss"


WRONG = [
    ("x = 1", "nothing", "there is no nothing; functions are none"),
    (GOOD, "los", "there is no los; functions are clipped_surrogate, loss, masked_sum, neutralise"),
    ("loss = 3", "loss", "expected a function (logprobs, batch) -> LossOutput, got 3"),
    ("def loss(logprobs): ...", "loss", "it must take (logprobs, batch), got (logprobs)"),
    ("def loss(logprobs, batch, *, clip): ...", "loss", "it must take (logprobs, batch)"),
    ("import absent_module_of_mine", "loss", "needs a module that is missing: absent_module_of_mine"),
    ("def loss(logprobs, batch): return logprobs.sum()", "loss", "expected a LossOutput"),
    (
        GOOD.replace("masked_sum(costs, mask), {", "costs.sum(), {"),
        "loss",
        "expected Weighted(total, weight) of two float scalars as loss",
    ),
    (
        GOOD.replace('{"mine": masked_sum(costs, mask)}', '{"mine": costs.sum()}'),
        "loss",
        "expected Weighted(total, weight) of two float scalars as metric mine",
    ),
    (GOOD.replace('"mine"', '"ratio_mean"'), "loss", "metrics has ratio_mean, which is added around it"),
    (GOOD.replace('"mine"', '"entropy"'), "loss", "metrics has entropy, which is added around it"),
    (GOOD.replace('"mine"', '"grad_norm"'), "loss", "metrics has grad_norm, which is added around it"),
    (
        GOOD.replace("masked_sum(costs, mask)})", 'masked_sum(costs, mask)}, {"mine": jnp.max(costs)})'),
        "loss",
        "maxima has mine, and mine is logged twice",
    ),
    (
        GOOD.replace(
            '"mine": masked_sum(costs, mask)})', '"x_p50": masked_sum(costs, mask)}, {}, {"x": jnp.ones(129)})'
        ),
        "loss",
        "histograms has x, and x_p50 is logged twice",
    ),
    (
        GOOD.replace("masked_sum(costs, mask)})", 'masked_sum(costs, mask)}, {}, {"other": jnp.ones(3)})'),
        "loss",
        "floats of shape [129] as histograms other",
    ),
    (
        GOOD.replace("masked_sum(costs, mask)})", 'masked_sum(costs, mask)}, {"other": jnp.ones(3)})'),
        "loss",
        "floats of shape [] as maxima other",
    ),
]


@pytest.mark.parametrize(("text", "function", "message"), WRONG)
def test_a_wrong_function_is_refused_with_what_is_wrong(
    write: Callable[[str], str], text: str, function: str, message: str
) -> None:
    name = write(text)
    with pytest.raises(ConfigError, match=re.escape(message)) as error:
        make_loss(LossConfig(name=f"{name}:{function}"))
    assert str(error.value).startswith(f"loss {name}:{function}: ")


NAMED = """
for name in NAMES:
    globals()[f"loss_{name}"] = lambda logprobs, batch, name=name: LossOutput(
        loss(logprobs, batch).loss, {name: loss(logprobs, batch).loss}
    )
"""


def test_no_figure_of_the_log_can_be_overwritten(write: Callable[[str], str]) -> None:
    """A loss's metrics are logged flat, beside the figures of the learner and of the packing."""
    step = StepMetrics(outcome="applied", step=1, loss=0.0, grad_norm=0.0, learning_rate=0.0, num_skipped=0)
    packing = PackingConfig(row_tokens=(16,), rows_per_micro_batch=1)
    batch = build_batch([make_group([1.0, 0.0])], advantages=AdvantageConfig(), packing=packing, learner_version=0)
    logged = (*step.as_dict(), *batch.stats)
    name = write(GOOD + f"NAMES = {('mine', *logged)}" + NAMED)
    make_loss(LossConfig(name=f"{name}:loss_mine"))
    for figure in logged:
        with pytest.raises(ConfigError, match=f"metrics has {figure}, which is added around it"):
            make_loss(LossConfig(name=f"{name}:loss_{figure}"))


def test_a_module_that_is_not_there_is_refused(write: Callable[[str], str]) -> None:
    for name in ("no_such_module_of_mine", "no_such_package.of_mine"):
        with pytest.raises(ConfigError, match="there is no module no_such_"):
            make_loss(LossConfig(name=f"{name}:loss"))


def test_a_weight_that_the_kl_cannot_be_scaled_to_is_refused(write: Callable[[str], str]) -> None:
    name = write(GOOD.replace("LossOutput(masked_sum(costs, mask)", "LossOutput(masked_sum(costs, batch.loss_mask)"))
    make_loss(LossConfig(name=f"{name}:loss"))
    with pytest.raises(ConfigError, match="its weight must be the number of tokens of loss_mask & has_signal, 6 in"):
        make_loss(LossConfig(name=f"{name}:loss", kl_coefficient=0.1))


def test_an_error_in_the_users_code_keeps_its_traceback(write: Callable[[str], str]) -> None:
    name = write("def loss(logprobs, batch): return 1 / 0")
    with pytest.raises(ZeroDivisionError):
        make_loss(LossConfig(name=f"{name}:loss"))
