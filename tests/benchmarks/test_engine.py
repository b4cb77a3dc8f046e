"""The engine's benchmark counts what it says, at a size of seconds."""

import jax.numpy as jnp
import pytest
import trio

from benchmarks import engine


def test_compilations_in_a_block_are_counted() -> None:
    with engine.counted_compiles() as compiles:
        assert float(jnp.arange(7.0).sum()) == 21.0
    assert compiles
    num_compiles = len(compiles)
    jnp.arange(9.0).sum()
    assert len(compiles) == num_compiles


@pytest.mark.slow
@pytest.mark.parametrize(("has_lagging", "saved"), [(False, 0.6), (True, 0.4)])
def test_prefixes_save_their_share_and_nothing_compiles_late(has_lagging: bool, saved: float) -> None:
    _, outcome = trio.run(engine.repeat, has_lagging, 2)
    turns = engine.WAVES * engine.SESSIONS * engine.TURNS
    assert outcome.sampled_tokens == turns * engine.NEW_TOKENS
    assert outcome.prompt_tokens == turns * (
        engine.PROMPT_TOKENS + (engine.TURNS - 1) * (engine.NEW_TOKENS + engine.ENV_TOKENS) // 2
    )
    assert 1 - outcome.prefilled_tokens / outcome.prompt_tokens >= saved
    assert outcome.num_compiles == 0
