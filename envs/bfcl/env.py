"""One episode of one entry: the user's turns in order, calls until the policy has nothing more to call."""

import json
from collections import Counter
from enum import Enum

from agentrl_jax.env import Action, Message, StepResult, Tool, ToolCall
from agentrl_jax.errors import EnvError
from agentrl_jax.types import EpisodeEnd
from envs.bfcl.entries import Entry, UserTurn
from envs.bfcl.package import Package
from envs.bfcl.programs import Programs
from envs.bfcl.schema import BadArguments, check_arguments

SYSTEM = (
    "Do what the user asks with the functions you are given. Call them until it is done, then answer without a call, "
    "and the user goes on. Say so if no function does it or something needed is not known."
)
MORE_FUNCTIONS = "There are more functions now:"
TRY_AGAIN = "Try again with them."
UNKNOWN_TOOL = "error: unknown function"
# The policy may take so many turns to do what the user asked for in one.
MAX_STEPS = 20


class _State(Enum):
    NEW = "is new"
    LIVE = "is live"
    OVER = "is over"
    CLOSED = "is closed"


class BfclEnv:
    """Implements `agentrl_jax.env.Env`. Reward 1 if every turn of the user passes, else 0.

    A user's turn ends with the policy's first answer without a call. It passes if, after it, the programs are in the
    state in which the gold calls leave them, and everything that the gold calls answer was answered to the policy at
    some time (each answer once; its order is free). The first turn that does not pass ends the episode; so does a turn
    that is not over after MAX_STEPS answers. A turn without gold calls always passes.
    """

    def __init__(self, package: Package, entry: Entry) -> None:
        self._entry = entry
        self._programs = Programs(package, entry)
        self._gold = Programs(package, entry)
        self._state = _State.NEW
        self._num_passed = 0
        self._num_steps = 0
        self._num_calls = 0
        self._answers: Counter[str] = Counter()

    def reset(self) -> tuple[Message, ...]:
        self._require(_State.NEW)
        self._state = _State.LIVE
        return (Message(role="system", content=SYSTEM), self._ask(self._entry.turns[0]))

    def step(self, action: Action) -> StepResult:
        """Carry out one assistant turn. Raises EnvError unless the episode is live."""
        self._require(_State.LIVE)
        if not action.calls and not action.errors:
            return self._end_turn()
        texts = [self._carry_out(call) for call in action.calls]
        messages = tuple(Message(role="tool", content=text) for text in (*texts, *action.errors))
        self._num_steps += 1
        if self._num_steps <= MAX_STEPS:
            return StepResult(messages=messages)
        return self._over(messages, 0.0, EpisodeEnd.MAX_TURNS)

    def close(self) -> None:
        self._state = _State.CLOSED

    def _require(self, state: _State) -> None:
        if self._state is not state:
            raise EnvError(f"a bfcl env that {self._state.value} was used as one that {state.value}")

    @staticmethod
    def _ask(turn: UserTurn) -> Message:
        return Message(role="user", content="\n".join((*_announced(turn.added), turn.text or TRY_AGAIN)))

    def _carry_out(self, call: ToolCall) -> str:
        self._num_calls += 1
        tool = self._entry.functions.get(call.name)
        if tool is None:
            return UNKNOWN_TOOL
        try:
            check_arguments(tool, call.arguments)
        except BadArguments as bad:
            return f"error: {bad}"
        answer = self._programs.call(call.name, (), call.arguments)
        self._answers[answer] += 1
        return answer

    def _end_turn(self) -> StepResult:
        turn = self._entry.turns[self._num_passed]
        wanted = Counter(self._gold.call(call.name, call.positional, call.named) for call in turn.gold)
        if turn.gold and (not self._num_calls or self._programs.differs_from(self._gold) or wanted - self._answers):
            return self._over((), 0.0, EpisodeEnd.COMPLETED)
        self._num_passed += 1
        self._num_steps = self._num_calls = 0
        if self._num_passed == len(self._entry.turns):
            return self._over((), 1.0, EpisodeEnd.COMPLETED)
        return StepResult(messages=(self._ask(self._entry.turns[self._num_passed]),))

    def _over(self, messages: tuple[Message, ...], reward: float, end: EpisodeEnd) -> StepResult:
        self._state = _State.OVER
        passed = self._num_passed / len(self._entry.turns)
        return StepResult(messages=messages, reward=reward, end=end, metrics={"user_turns_passed_frac": passed})


def _announced(tools: tuple[Tool, ...]) -> tuple[str, ...]:
    return (MORE_FUNCTIONS, *(json.dumps(tool.to_json()) for tool in tools)) if tools else ()
