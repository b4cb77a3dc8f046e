"""The packed form is a pytree of equal-shaped arrays, and losses may be differentiated through it."""

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.batch import LossOutput, TokenBatch, Weighted


def test_a_token_batch_passes_through_jit_with_its_fields_and_types() -> None:
    names = list(TokenBatch._fields)
    batch = TokenBatch(*(np.full((1, 2), i, np.int32) for i in range(len(names))))
    moved = jax.jit(lambda tokens: tokens._replace(ids=tokens.ids + 1))(batch)
    assert type(moved) is TokenBatch
    assert moved.ids.tolist() == [[1, 1]]
    assert [int(array[0, 0]) for array in moved[1:]] == list(range(1, len(names)))


def test_loss_outputs_add_up_leaf_by_leaf() -> None:
    first = LossOutput(loss=Weighted(jnp.array(1.0), jnp.array(2.0)), metrics={"x": Weighted(1.0, 1.0)})
    second = LossOutput(loss=Weighted(jnp.array(3.0), jnp.array(4.0)), metrics={"x": Weighted(2.0, 1.0)})
    total = jax.tree.map(lambda a, b: a + b, first, second)
    assert type(total) is LossOutput
    assert (float(total.loss.total), float(total.loss.weight)) == (4.0, 6.0)
    assert total.metrics == {"x": Weighted(3.0, 2.0)}
