"""The packed array form of a batch, and what losses return. `NamedTuple`s, so that they are JAX pytrees."""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import Bool, Float, Int


class Totals(NamedTuple):
    """Counts over all micro-batches of a learner step, known on the host before the first of them.

    A loss that adds terms of different weights needs them: each term's share is the same however the step is cut.
    """

    loss_tokens: Float[Any, ""]  # tokens in loss_mask
    signal_tokens: Float[Any, ""]  # tokens in loss_mask & has_signal
    sequences: Float[Any, ""]  # trajectories with a token in loss_mask
    signal_sequences: Float[Any, ""]  # trajectories with a token in loss_mask & has_signal


class TokenBatch(NamedTuple):
    """Rows of packed segments. Position t of a row describes the token `ids[t]` itself, never its successor.

    A row holds whole segments one after the other and then padding. The log-probability of token t is predicted
    from the tokens before it in the same segment; a segment's first token is never trained.
    Padding has segment id 0, position 0, id 0 and every mask False; segments are numbered from 1 in each row.
    """

    ids: Int[Any, "B T"]
    positions: Int[Any, "B T"]
    segment_ids: Int[Any, "B T"]
    loss_mask: Bool[Any, "B T"]  # sampled by an engine, and its episode is trainable
    has_signal: Bool[Any, "B T"]  # its group tells good from bad: takes part in the policy loss
    behavior_logprobs: Float[Any, "B T"]  # of the sampling engine at the sampling temperature; 0 off the mask
    advantages: Float[Any, "B T"]  # 0 off the mask
    version_lag: Int[Any, "B T"]  # learner version - the token's version; 0 off the mask
    task_ids: Int[Any, "B T"]  # index into the batch's list of env names; 0 for padding
    sequence_tokens: Int[Any, "B T"]  # tokens in loss_mask of the token's trajectory, all segments; 0 off the mask
    totals: Totals  # of the whole learner step
    reference_logprobs: Float[Any, "B T"] | None = None  # of the frozen reference policy, if there is one


class Scores(NamedTuple):
    """Log-probabilities of the tokens of one micro-batch, under the params that a learner step began with."""

    logprobs: Float[Any, "B T"]  # of every token but a segment's first, 0 there and where there is padding
    reference_logprobs: Float[Any, "B T"] | None = None  # likewise of the frozen reference policy, if there is one


def map_tokens(function: Callable[..., Any], *batches: TokenBatch) -> TokenBatch:
    """Apply `function` to each field [B, T], as many arguments as there are batches; `totals` are the first one's.

    A field that the first batch does not have (None) stays None.
    """
    first = batches[0]
    arrays = {
        name: function(*(getattr(batch, name) for batch in batches))
        for name in TokenBatch._fields
        if name != "totals" and getattr(first, name) is not None
    }
    return first._replace(**arrays)


class Weighted(NamedTuple):
    """A sum and its weight: the mean is total / weight, taken once after everything has been added up."""

    total: Float[Any, ""]
    weight: Float[Any, ""]


class LossOutput(NamedTuple):
    """What a loss says about one micro-batch.

    loss: what is differentiated; the learner divides the sum of totals by the sum of weights, once.
    metrics: sums and weights, which add up over micro-batches. maxima: combined by the maximum; −inf if nothing was
    measured. histograms: counts [K] in the bins of algo/histograms.py, which add up.
    """

    loss: Weighted
    metrics: dict[str, Weighted]
    maxima: dict[str, Float[Any, ""]] = {}  # noqa: RUF012 - nothing writes to it
    histograms: dict[str, Float[Any, "K"]] = {}  # noqa: RUF012
