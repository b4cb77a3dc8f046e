"""MEM rows about what an engine keeps on its device."""

import gc

import jax
import pytest

from agentrl_jax.types import as_ids
from tests.engines.tiny_engine import open_tiny, params, random_weights


def on_devices() -> tuple[int, int]:
    """Live buffers and their bytes."""
    gc.collect()
    arrays = jax.live_arrays()  # type: ignore[no-untyped-call]
    return len(arrays), sum(array.nbytes for array in arrays)


@pytest.mark.slow
async def test_mem_07_fifty_publishes_leave_no_buffer_behind() -> None:
    async with open_tiny() as engine:

        async def turn_of(version: int) -> set[int]:
            await engine.publish(random_weights(version), version)
            completion = await engine.generate(as_ids([3, 1, 4]), params(seed=version), session="s")
            return set(completion.versions.tolist())

        await turn_of(1)
        await turn_of(2)
        before = on_devices()
        for version in range(3, 53):
            assert await turn_of(version) == {version}
            if version % 10 == 0:
                assert on_devices() == before
        assert on_devices() == before
