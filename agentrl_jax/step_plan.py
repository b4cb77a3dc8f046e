"""What the processes that share a learner do next: decided by the first one, sent to all before any collective.

A plan is a handful of numbers of fixed size. After it each process says whether it was asked to stop (SIGTERM on its
host), so that the first one knows before it carries the plan out, and stops in the next one.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl_jax.errors import RecordError


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """What every learner process does next, in the order of the fields; sent by process 0 before any collective.

    compile: compile the learner's programs.
    train: take a step. num_micro_batches, row_tokens: the shape of its batch, of which each process gets its rows; 0
      unless `train`.
    record: gather the log-probabilities of that step.
    lag: the params are what the lagging policy is from now on.
    publish, publish_lagging: gather the params, or the lagging policy's, for engines. export: write the policy folder.
    save: begin the checkpoint of step `step`, which is 0 unless `save`.
    stop: leave the loop once the rest of this plan is done.
    """

    compile: bool = False
    train: bool = False
    num_micro_batches: int = 0
    row_tokens: int = 0
    record: bool = False
    lag: bool = False
    publish: bool = False
    publish_lagging: bool = False
    export: bool = False
    save: bool = False
    step: int = 0
    stop: bool = False

    def __post_init__(self) -> None:
        is_shaped = self.num_micro_batches >= 1 and self.row_tokens >= 1
        if is_shaped != self.train or (not self.train and (self.num_micro_batches or self.row_tokens)):
            raise RecordError(
                "a plan has micro-batches and row tokens >= 1 if it trains and 0 if not, got "
                f"train={self.train}, {self.num_micro_batches} and {self.row_tokens}"
            )
        if self.step < 0 or (self.step and not self.save):
            raise RecordError(f"a plan has a step >= 0 if it saves and 0 if not, got save={self.save} and {self.step}")

    def to_numbers(self) -> npt.NDArray[np.int32]:
        """One number a field, in their order; `from_numbers` is the inverse."""
        return np.array([int(getattr(self, field.name)) for field in fields(self)], np.int32)

    @classmethod
    def from_numbers(cls, numbers: npt.NDArray[np.integer[Any]]) -> "StepPlan":
        """The plan that `to_numbers` gave. Raises RecordError if it is none."""
        if len(numbers) != len(fields(cls)):
            raise RecordError(f"a plan is {len(fields(cls))} numbers, got {len(numbers)}")
        return cls(**{f.name: f.type(value) for f, value in zip(fields(cls), numbers.tolist(), strict=True)})  # type: ignore[operator]
