"""The packed form is a pytree of equal-shaped arrays, and losses may be differentiated through it."""

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.algo.aggregate import add_outputs, no_output
from agentrl_jax.batch import LossOutput, TokenBatch, Totals, Weighted, map_tokens

NAMES = [name for name in TokenBatch._fields if name not in ("totals", "reference_logprobs")]


def numbered() -> TokenBatch:
    fields = {name: np.full((1, 2), i, np.int32) for i, name in enumerate(NAMES)}
    return TokenBatch(**fields, totals=Totals(1.0, 2.0, 3.0, 4.0))


def test_a_token_batch_passes_through_jit_with_its_fields_and_types() -> None:
    batch = numbered()
    moved = jax.jit(lambda tokens: tokens._replace(ids=tokens.ids + 1))(batch)
    assert type(moved) is TokenBatch
    assert moved.ids.tolist() == [[1, 1]]
    assert [int(getattr(moved, name)[0, 0]) for name in NAMES[1:]] == list(range(1, len(NAMES)))
    assert type(moved.totals) is Totals
    assert moved.reference_logprobs is None


def test_mapping_tokens_leaves_counts_and_absent_fields_alone() -> None:
    doubled = map_tokens(lambda left, right: left + right, numbered(), numbered())
    assert [int(getattr(doubled, name)[0, 0]) for name in NAMES] == [2 * i for i in range(len(NAMES))]
    assert doubled.totals == numbered().totals
    assert doubled.reference_logprobs is None
    assert map_tokens(np.negative, numbered()._replace(reference_logprobs=np.ones(1))).reference_logprobs == -1


def metric(total: float) -> Weighted:
    return Weighted(jnp.array(total), jnp.array(1.0))


def test_loss_outputs_add_up_leaf_by_leaf() -> None:
    first = LossOutput(
        Weighted(jnp.array(1.0), jnp.array(2.0)),
        {"x": metric(1.0)},
        {"m": jnp.array(-3.0)},
    )
    second = LossOutput(
        Weighted(jnp.array(3.0), jnp.array(4.0)),
        {"x": metric(2.0)},
        {"m": jnp.array(-5.0)},
    )
    total = add_outputs(add_outputs(no_output(first), first), second)
    assert type(total) is LossOutput
    assert (float(total.loss.total), float(total.loss.weight)) == (4.0, 6.0)
    assert total.metrics == {"x": Weighted(3.0, 2.0)}
    assert total.maxima == {"m": -3.0}
