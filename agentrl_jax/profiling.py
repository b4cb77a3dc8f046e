"""A profile of a few learner steps, for TensorBoard, Perfetto or XProf."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import jax


class StepProfiler:
    """Traces `num_steps` learner steps of this process into `folder`, from the second one on: the first one compiles.

    Nothing at all with num_steps = 0. One thread at a time.
    """

    def __init__(self, num_steps: int, folder: Path, say: Callable[[str], None]) -> None:
        self._num_left, self._folder, self._say = num_steps, folder, say
        self._num_seen = 0
        self._is_tracing = False

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around one learner step."""
        self._num_seen += 1
        if not self._num_left or self._num_seen == 1:
            yield
            return
        if not self._is_tracing:
            jax.profiler.start_trace(self._folder)
            self._is_tracing = True
        with jax.profiler.StepTraceAnnotation("learner", step_num=self._num_seen):
            yield
        self._num_left -= 1
        if not self._num_left:
            self.close()

    def close(self) -> None:
        """Write what has been traced, if anything has; a run may end before all its steps were."""
        if self._is_tracing:
            self._is_tracing = False
            jax.profiler.stop_trace()  # type: ignore[no-untyped-call]
            self._say(f"profile: {self._folder} (open it with XProf, TensorBoard or ui.perfetto.dev)")
