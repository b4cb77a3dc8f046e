"""Seeds are stable hashes of typed, delimited parts."""

from subprocess import run
from sys import executable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_jax.seeding import derive_seed

PARTS = st.lists(st.one_of(st.integers(), st.text(max_size=5)), max_size=4)


def test_seeds_are_the_same_in_every_process() -> None:
    code = "from agentrl_jax.seeding import derive_seed; print(derive_seed(7, 'rollout', 3))"
    outputs = {
        run([executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True).stdout
        for seed in ("1", "2")
    }
    assert outputs == {f"{derive_seed(7, 'rollout', 3)}\n".encode()}


def test_a_known_seed_never_changes() -> None:
    assert derive_seed(7, "rollout", 3) == 3863756973668944822


@given(PARTS, PARTS)
@settings(max_examples=100, deadline=None)
def test_seeds_differ_where_parts_do(first: list[int | str], second: list[int | str]) -> None:
    typed = [[(type(part), part) for part in parts] for parts in (first, second)]
    assert (derive_seed(*first) == derive_seed(*second)) == (typed[0] == typed[1])


def test_seeds_fit_a_signed_64_bit_integer_and_spread_evenly() -> None:
    seeds = np.array([derive_seed("spread", i) for i in range(2000)])
    assert seeds.dtype == np.int64
    assert seeds.min() >= 0
    counts = np.bincount(seeds >> 60, minlength=8)  # eight equal parts of [0, 2**63)
    assert len(counts) == 8
    assert abs(counts - 250).max() < 75  # five standard deviations
