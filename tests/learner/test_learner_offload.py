"""Moments in the host's memory: where they lie, and that nothing else changes."""

from dataclasses import replace
from pathlib import Path

import jax
import pytest

from agentrl_jax.checkpoint import CheckpointStore
from tests.learner.small import CONFIG, make_batch, make_learner, on_host, same_bits

OFFLOADED = replace(CONFIG, offload_optimizer=True)


def kinds(tree: object) -> set[tuple[int, str]]:
    """(number of axes, memory) of every leaf."""
    return {(min(leaf.ndim, 1), leaf.sharding.memory_kind) for leaf in jax.tree.leaves(tree)}


@pytest.mark.parametrize("mesh", ["1", pytest.param("data=2,fsdp=2", marks=pytest.mark.slow)])
def test_offloaded_moments_change_no_bit_of_a_step(mesh: str) -> None:
    here, there = make_learner(mesh), make_learner(mesh, config=OFFLOADED)
    assert kinds(there.state.opt_state) == {(0, "device"), (1, "pinned_host")}
    assert kinds(there.state.params) == {(1, "device")}
    for seed in range(3):
        assert here.step(make_batch(seed)) == there.step(make_batch(seed))
    assert kinds(there.state.opt_state) == {(0, "device"), (1, "pinned_host")}
    assert same_bits(here.state, there.state)


def test_offloaded_moments_survive_a_checkpoint(tmp_path: Path) -> None:
    first, second = make_learner(config=OFFLOADED), make_learner(config=OFFLOADED)
    first.step(make_batch())
    with CheckpointStore(tmp_path) as store:
        store.save(1, first.state, {})
        store.wait()
        second.restore(store.restore(1, second.abstract_state()).state)
    assert same_bits(on_host(first.state), second.state)
    assert kinds(second.state.opt_state) == {(0, "device"), (1, "pinned_host")}
    assert first.step(make_batch(1)) == second.step(make_batch(1))
