"""A synchronous `Env` behind the seam between foreign code and ours: whatever it raises or returns, an answer of the
right type or an EnvError comes out. Used by the thread adapter and inside session processes; no trio.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from agentrl_jax.env import Action, Env, Message, StepResult
from agentrl_jax.errors import EnvError
from agentrl_jax.types import Task

EnvFactory = Callable[[Task], Env]


class GuardedEnv:
    """Makes, resets, steps and closes the env of one task. Not thread-safe: its calls come one at a time."""

    def __init__(self, make_env: EnvFactory, task: Task) -> None:
        self._make_env = make_env
        self._task = task
        self._env: Env | None = None

    @property
    def is_open(self) -> bool:
        """True from `make` to `close`."""
        return self._env is not None

    def make(self) -> None:
        """Raises EnvError for whatever the factory raises."""
        with self._blamed("make"):
            self._env = self._make_env(self._task)

    def reset(self) -> tuple[Message, ...]:
        """Raises EnvError for whatever the env raises, and for anything but at least one message."""
        with self._blamed("reset"):
            messages = self._messages("reset", self._opened("reset").reset())
        if not messages:
            raise EnvError(f"{self._task.key}: reset must return at least one message, got none")
        return messages

    def step(self, action: Action) -> StepResult:
        """Raises EnvError for whatever the env raises, and for anything but a StepResult."""
        with self._blamed("step"):
            result: object = self._opened("interact").step(action)
            if not isinstance(result, StepResult):
                raise EnvError(f"{self._task.key}: step must return a StepResult, got {result!r}")
            return replace(result, messages=self._messages("step", result.messages))

    def close(self) -> None:
        """Close the env if there is one; a second call does nothing. Raises EnvError for whatever the env raises."""
        env, self._env = self._env, None
        if env is not None:
            with self._blamed("close"):
                env.close()

    def _opened(self, what: str) -> Env:
        if self._env is None:
            raise EnvError(f"{self._task.key}: {what} came before start")
        return self._env

    def _messages(self, what: str, given: Iterable[object]) -> tuple[Message, ...]:
        """Read here, beside the env: `given` may be a generator, whose code and errors are the env's too."""
        messages = []
        for message in given:
            if not isinstance(message, Message):
                raise EnvError(f"{self._task.key}: {what} must answer with Messages, got {message!r}")
            messages.append(message)
        return tuple(messages)

    @contextmanager
    def _blamed(self, what: str) -> Iterator[None]:
        try:
            yield
        except EnvError:
            raise
        # Worker threads and session processes receive neither KeyboardInterrupt nor trio.Cancelled, so SystemExit,
        # asyncio.CancelledError and the like are the env's own failures too.
        except BaseException as error:
            raise EnvError(f"{self._task.key}: {what} raised {type(error).__name__}: {error}") from error
