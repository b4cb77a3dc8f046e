"""What a run says of its warm-up."""

from types import SimpleNamespace
from typing import Any

import pytest

from agentrl_jax import run_warm_up
from agentrl_jax.sft import WarmUpConfig


@pytest.mark.parametrize(("num_taken", "is_stopped", "is_cut"), [(7, False, False), (3, False, True), (3, True, False)])
def test_a_warm_up_that_time_has_cut_is_said(
    monkeypatch: pytest.MonkeyPatch, num_taken: int, is_stopped: bool, is_cut: bool
) -> None:
    def taken(*_: Any, report: Any, **__: Any) -> None:
        report("sft", num_taken, 1.0)

    monkeypatch.setattr(run_warm_up, "warm_up", taken)
    prepared: Any = SimpleNamespace(
        config=SimpleNamespace(warm_up=WarmUpConfig(steps=7, max_minutes=0.5), packing=None),
        demonstrations=[],
        copy_ids=[],
    )
    said: list[str] = []
    no_one: Any = None
    run_warm_up.run_warm_up(no_one, prepared, no_one, said.append, lambda: is_stopped)
    assert f"0 copy and {num_taken} demonstration steps" in said[0]
    cut = "after 3 of 7 steps: what was to be imitated may not be learnt (--warm-up.max-minutes=0.5)"
    assert [cut in line for line in said[1:]] == [True] * is_cut
