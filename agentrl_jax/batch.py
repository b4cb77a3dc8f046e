"""The packed array form of a batch, and what losses return. `NamedTuple`s, so that they are JAX pytrees."""

from typing import Any, NamedTuple

from jaxtyping import Bool, Float, Int


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


class Weighted(NamedTuple):
    """A sum and its weight: the mean is total / weight, taken once after everything has been added up."""

    total: Float[Any, ""]
    weight: Float[Any, ""]


class LossOutput(NamedTuple):
    """`loss` is what is differentiated; `metrics` are sums and weights that add up over micro-batches."""

    loss: Weighted
    metrics: dict[str, Weighted]
