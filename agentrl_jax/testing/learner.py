"""A learner without parameters: it takes virtual time and says which steps were finite."""

from collections.abc import Callable, Container
from dataclasses import dataclass, field

import trio

from agentrl_jax.controller.ports import StepOutcome
from agentrl_jax.types import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerCall:
    """One call of `FakeLearner.step`; `begun_s` and `ended_s` are times of the (virtual) clock."""

    version: int
    groups: tuple[Group, ...]
    begun_s: float
    ended_s: float


@dataclass(kw_only=True)
class FakeLearner:
    """Implements `controller.ports.LearnerPort`.

    latency_s: seconds of the n-th step, counted from 0. non_finite: the steps that come out as not finite.
    without_signal: finite steps that had nothing to learn from.
    error: raised by the step `error_at`.
    """

    latency_s: Callable[[int], float] = lambda step: 0.0
    non_finite: Container[int] = ()
    without_signal: Container[int] = ()
    error: Exception | None = None
    error_at: int = 0
    calls: list[LearnerCall] = field(default_factory=list)

    async def step(self, groups: tuple[Group, ...], version: int) -> StepOutcome:
        """Take the time of this step and record the call."""
        step, begun_s = len(self.calls), trio.current_time()
        await trio.sleep(self.latency_s(step))
        self.calls.append(LearnerCall(version=version, groups=groups, begun_s=begun_s, ended_s=trio.current_time()))
        if self.error is not None and step == self.error_at:
            raise self.error
        is_finite = step not in self.non_finite
        is_applied = is_finite and step not in self.without_signal
        return StepOutcome(is_finite=is_finite, is_applied=is_applied, metrics={"fake/step": float(step)})
