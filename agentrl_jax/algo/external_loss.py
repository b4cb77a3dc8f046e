"""Losses that live in a file of the user's: imported by `module:function` and probed before anything else starts."""

import inspect
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from agentrl_jax.algo.histograms import NUM_BINS, QUANTILES
from agentrl_jax.batch import LossOutput, TokenBatch, Totals, Weighted
from agentrl_jax.errors import ConfigError

LossFn = Callable[[Float[Array, "B T"], TokenBatch], LossOutput]
"""(log-probabilities of the batch's tokens, the batch) → what they cost."""


def import_loss(name: str) -> LossFn:
    """The function that `module:function` names; modules in the current directory are found too.

    Raises:
      ConfigError: there is no such module or function, or it does not take (logprobs, batch).

    >>> import_loss("agentrl_jax.algo.losses:supervised").__name__
    'supervised'
    """
    module_name, _, path = name.partition(":")
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)
    try:
        found: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigError(f"loss {name}: {module_name} needs a module that is missing: {error.name}") from error
        raise ConfigError(
            f"loss {name}: there is no module {error.name} in the current directory {here} or on the Python path"
        ) from error
    for part in path.split("."):
        if not hasattr(found, part):
            functions = [key for key, value in vars(found).items() if inspect.isfunction(value)]
            raise ConfigError(
                f"loss {name}: there is no {part}; functions are {', '.join(sorted(functions)) or 'none'}"
            )
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError(f"loss {name}: expected a function (logprobs, batch) -> LossOutput, got {found!r}")
    try:
        inspect.signature(found).bind("logprobs", "batch")
    except TypeError as error:
        raise ConfigError(f"loss {name}: it must take (logprobs, batch), got {inspect.signature(found)}") from error
    loss: LossFn = found
    return loss


def probe_batch(*, has_reference: bool) -> TokenBatch:
    """Two rows of eight tokens as a learner step has them: three segments, two of them with a signal, and padding.

    >>> batch = probe_batch(has_reference=False)
    >>> batch.ids.shape, int(batch.loss_mask.sum()), int(batch.has_signal.sum())
    ((2, 8), 8, 6)
    """
    segment_ids = np.array([[1, 1, 1, 2, 2, 2, 0, 0], [1, 1, 1, 1, 1, 0, 0, 0]], np.int32)
    loss_mask = np.array([[0, 1, 1, 0, 1, 1, 0, 0], [0, 1, 1, 1, 1, 0, 0, 0]], np.bool_)
    has_signal = loss_mask & ~(segment_ids == 2)
    logprobs = np.where(loss_mask, np.float32(-1.0), np.float32(0.0))
    return TokenBatch(
        ids=np.ones((2, 8), np.int32),
        positions=np.tile(np.arange(8, dtype=np.int32), (2, 1)),
        segment_ids=segment_ids,
        loss_mask=loss_mask,
        has_signal=has_signal,
        behavior_logprobs=logprobs,
        advantages=np.where(has_signal, np.float32(0.5), np.float32(0.0)),
        version_lag=np.zeros((2, 8), np.int32),
        task_ids=np.zeros((2, 8), np.int32),
        sequence_tokens=np.where(loss_mask, np.array([[2], [4]], np.int32), 0).astype(np.int32),
        totals=Totals(*map(np.float32, (8.0, 6.0, 3.0, 2.0))),
        reference_logprobs=logprobs if has_reference else None,
    )


def check_output(loss: LossFn, name: str, *, has_reference: bool, taken: frozenset[str]) -> None:
    """Trace `loss` on a small batch, without computing anything, and look at what it returns.

    taken: names of metrics, maxima and histograms that the function must leave alone.

    Raises:
      ConfigError: it is no `LossOutput` of scalar sums and weights, or a name is taken, be it by another of its own.

    >>> check_output(import_loss("agentrl_jax.algo.losses:supervised"), "supervised", has_reference=False,
    ...     taken=frozenset())
    """
    batch = probe_batch(has_reference=has_reference)
    output = jax.eval_shape(loss, jax.ShapeDtypeStruct(batch.ids.shape, np.float32), batch)  # type: ignore[no-untyped-call]
    _expect(name, isinstance(output, LossOutput), "a LossOutput (agentrl_jax.batch)", output)
    _expect_weighted(name, "loss", output.loss)
    own: set[str] = set()
    for kind in ("metrics", "maxima", "histograms"):
        values = getattr(output, kind)
        _expect(name, isinstance(values, dict), f"a dict as {kind}", values)
        for key, value in values.items():
            for logged in (key, *(f"{key}_{suffix}" for suffix in QUANTILES if kind == "histograms")):
                if logged in taken:
                    raise ConfigError(f"loss {name}: {kind} has {key}, which is added around it: choose another name")
                if logged in own:
                    raise ConfigError(
                        f"loss {name}: {kind} has {key}, and {logged} is logged twice: rename one of them"
                    )
                own.add(logged)
            if kind == "metrics":
                _expect_weighted(name, f"metric {key}", value)
            else:
                shape = () if kind == "maxima" else (NUM_BINS,)
                _expect(name, _is_float(value, shape), f"floats of shape {list(shape)} as {kind} {key}", value)


def _expect_weighted(name: str, what: str, value: Any) -> None:
    is_fine = isinstance(value, Weighted) and all(_is_float(part, ()) for part in value)
    _expect(name, is_fine, f"Weighted(total, weight) of two float scalars as {what}, such as masked_sum returns", value)


def _is_float(value: Any, shape: tuple[int, ...]) -> bool:
    return isinstance(value, jax.ShapeDtypeStruct) and value.shape == shape and np.issubdtype(value.dtype, np.floating)


def _expect(name: str, condition: bool, expected: str, got: Any) -> None:
    if not condition:
        raise ConfigError(f"loss {name}: expected {expected}, got {type(got).__name__} {got}")
