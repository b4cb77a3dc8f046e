"""Programs that are tested for what they compute are compiled in half the time."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True)
def _quick_compilation() -> Iterator[None]:
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
