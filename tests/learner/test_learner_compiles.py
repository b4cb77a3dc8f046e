"""Programs are compiled before the first step, and one that is not is counted."""

import jax
import numpy as np
import pytest

from agentrl_jax.errors import ConfigError
from agentrl_jax.learner.compiles import CompileCounter
from agentrl_jax.learner.lora import LoraConfig
from agentrl_jax.packing import PackingConfig
from tests.learner.small import OTHER, distance_to_reference, make_batch, make_learner, on_host, same_bits

PACKING = PackingConfig(row_tokens=(16, 24), rows_per_micro_batch=4)


def test_a_compilation_is_counted_once_and_in_its_own_block() -> None:
    counter, other = CompileCounter(), CompileCounter()
    array = np.ones(3)
    jax.jit(lambda x: x + 17.5)(array)
    program = jax.jit(lambda x: x * 17.5)
    with counter.counting():
        program(array)
        program(array)
    with other.counting():
        program(array)
    assert (counter.total, other.total) == (1, 0)


@pytest.mark.parametrize(
    "extras",
    [
        {"reference": OTHER, "loss": distance_to_reference},
        pytest.param({"lora": LoraConfig(rank=2)}, marks=pytest.mark.slow),
        pytest.param(
            {"mesh": "data=2,fsdp=2", "reference": OTHER, "loss": distance_to_reference}, marks=pytest.mark.slow
        ),
    ],
    ids=["reference", "lora", "mesh"],
)
def test_after_compile_ahead_no_step_of_any_bucket_compiles(extras: dict[str, object]) -> None:
    learner = make_learner(**extras)  # type: ignore[arg-type]
    before = on_host(learner.state)
    memory = learner.compile_ahead(PACKING)
    assert 0 < memory.temporary < memory.peak
    assert learner.num_compiles > 0
    assert same_bits(before, learner.state)
    compiled = learner.num_compiles
    for row_tokens in PACKING.row_tokens:
        for seed in range(2):
            metrics = learner.step(make_batch(seed, row_tokens=(row_tokens,)))
            assert metrics.is_applied
            assert metrics.as_dict()["num_late_compiles"] == 0
            assert learner.params
    assert learner.num_compiles == compiled
    num_late = [learner.step(make_batch(row_tokens=(28,))).num_late_compiles for _ in range(2)]
    assert num_late == [2 if "reference" in extras else 1, 0]


def test_without_a_promise_no_compilation_is_late() -> None:
    assert make_learner().step(make_batch()).num_late_compiles == 0


def test_rows_that_do_not_fit_the_mesh_are_refused_before_anything_is_compiled() -> None:
    with pytest.raises(ConfigError, match=r"multiple of data\*fsdp = 8"):
        make_learner("8").compile_ahead(PACKING)
