"""One episode of one task: a command a turn, until the agent answers or finishes."""

from collections.abc import Callable
from enum import Enum

from agentrl_jax.env import Action, Message, StepResult, ToolCall
from agentrl_jax.errors import EnvError
from agentrl_jax.types import EpisodeEnd
from envs.os_interaction.calls import BASH_ACTION, BadCall, argument_of
from envs.os_interaction.chores import Chore
from envs.os_interaction.grading import is_solved, run_script
from envs.os_interaction.outputs import shown
from envs.sandbox.protocol import Limits, Sandbox, SandboxGone

SYSTEM = (
    "You work on a Linux machine. Each turn call one tool: bash_action to run a script, which must not wait for input; "
    "answer_action with the exact answer if the task asks for one; finish_action once everything is done."
)
NO_CALL = "Call bash_action, answer_action or finish_action."
DONE = "done"
NOT_EXECUTED = "not executed: one action a turn"
GONE = "error: the machine has stopped"
_INTRODUCTION = "Now, I will start a new problem in a new OS. My problem is:\n\n"

COMMAND_LIMIT_S = 30.0
"""After which a command is stopped; the agent reads so."""

LIMITS = Limits()
"""AgentBench-FC's: 1 GB of memory and no swap, two processors."""


class _State(Enum):
    NEW = "is new"
    LIVE = "is live"
    OVER = "is over"
    CLOSED = "is closed"


class OsEnv:
    """Implements `agentrl_jax.env.Env`. Reward 1 if the machine, or the answer, is right at the end; else 0.

    The first call of a turn is carried out; a bad one is answered by a text starting with `error:`. Either way the turn
    is spent. open_sandbox: makes the machine. seed: of what the task's scripts draw. upstream_compat: as published, the
    calls beyond the first are not answered, scripts draw anew for every session, and grading trusts the machine.
    """

    def __init__(
        self,
        chore: Chore,
        open_sandbox: Callable[[str, Limits], Sandbox],
        *,
        seed: int = 0,
        command_limit_s: float = COMMAND_LIMIT_S,
        upstream_compat: bool = False,
    ) -> None:
        self._chore = chore
        self._open_sandbox = open_sandbox
        self._seed = seed
        self._command_limit_s = command_limit_s
        self._upstream_compat = upstream_compat
        self._sandbox: Sandbox | None = None
        self._state = _State.NEW

    def reset(self) -> tuple[Message, ...]:
        """Raises EnvError if the machine cannot be made as the task says."""
        self._require(_State.NEW)
        self._sandbox = self._open_sandbox(self._chore.image, LIMITS)
        try:
            self._prepare(self._sandbox)
        except SandboxGone as error:
            raise EnvError(f"the task's scripts broke its machine: {error}") from error
        self._state = _State.LIVE
        text = f"{_INTRODUCTION}{self._chore.description}"
        return (Message(role="system", content=SYSTEM), Message(role="user", content=text))

    def step(self, action: Action) -> StepResult:
        """Carry out one assistant turn. Raises EnvError unless the episode is live."""
        self._require(_State.LIVE)
        if not action.calls:
            errors = tuple(Message(role="tool", content=text) for text in action.errors)
            return StepResult(messages=errors or (Message(role="user", content=NO_CALL),))
        text, reward = self._carry_out(action.calls[0])
        texts = [text]
        if not self._upstream_compat:
            texts += [NOT_EXECUTED] * (len(action.calls) - 1) + list(action.errors)
        elif reward is not None:
            texts = []
        messages = tuple(Message(role="tool", content=text) for text in texts)
        if reward is None:
            return StepResult(messages=messages)
        self._state = _State.OVER
        return StepResult(messages=messages, reward=reward, end=EpisodeEnd.COMPLETED)

    def close(self) -> None:
        self._state = _State.CLOSED
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            sandbox.close()

    def _require(self, state: _State) -> None:
        if self._state is not state:
            raise EnvError(f"an os_interaction env that {self._state.value} was used as one that {state.value}")

    def _prepare(self, sandbox: Sandbox) -> None:
        for script in self._chore.init:
            ran = run_script(sandbox, script, seed=None if self._upstream_compat else self._seed)
            if ran.exit_code is None:
                raise EnvError(f"a script that prepares the task was stopped: {ran.stopped}")
        if self._chore.start is not None:
            sandbox.run(self._chore.start.code, timeout_s=self._command_limit_s)
        if not self._upstream_compat:
            sandbox.seal()

    def _carry_out(self, call: ToolCall) -> tuple[str, float | None]:
        """What the agent reads, and the reward if that was its last turn."""
        try:
            argument = argument_of(call)
        except BadCall as bad:
            return str(bad), None
        assert self._sandbox is not None
        if call.name == BASH_ACTION.name:
            try:
                return shown(self._sandbox.run(argument, timeout_s=self._command_limit_s)), None
            except SandboxGone:
                return GONE, None
        solved = is_solved(self._sandbox, self._chore, argument, upstream_compat=self._upstream_compat)
        return DONE, float(solved)
