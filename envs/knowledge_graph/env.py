"""One episode of one question: `query` as often as the turns allow, `answer` once."""

from enum import Enum

from agentrl_jax.env import Action, Message, StepResult, ToolCall
from agentrl_jax.errors import EnvError
from agentrl_jax.types import EpisodeEnd
from envs.knowledge_graph.calls import UNKNOWN_ENTITY, UNKNOWN_RELATION, BadCall, arguments_of
from envs.knowledge_graph.questions import Problem

SYSTEM = "Find out with query, then answer."
NO_CALL = "Call query or answer."
NO_OBJECTS = "none"
ANSWERED = "done"
NOT_EXECUTED = "not executed: already answered"
# The objects of one query beyond these are only counted. No hop of a question has so many.
MAX_OBJECTS = 10
# This many turns in a row without a call that could be carried out end the episode as `invalid_action`.
MAX_INVALID_TURNS = 3


class _State(Enum):
    NEW = "is new"
    LIVE = "is live"
    OVER = "is over"
    CLOSED = "is closed"


class KnowledgeGraphEnv:
    """Implements `agentrl_jax.env.Env`. Reward 1 for an answer out of the question's answers, else 0.

    Every call is carried out in order; a bad one is answered by a text starting with `error:` and costs the turn.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._state = _State.NEW
        self._num_invalid_turns = 0
        self._reward = 0.0

    def reset(self) -> tuple[Message, ...]:
        self._require(_State.NEW)
        self._state = _State.LIVE
        return (Message(role="system", content=SYSTEM), Message(role="user", content=self._problem.question.text))

    def step(self, action: Action) -> StepResult:
        """Carry out one assistant turn. Raises EnvError unless the episode is live."""
        self._require(_State.LIVE)
        texts, num_executed = self._carry_out(action)
        messages = tuple(Message(role="tool", content=text) for text in (*texts, *action.errors))
        if not messages:
            messages = (Message(role="user", content=NO_CALL),)
        if self._is_over():
            return StepResult(messages=messages, reward=self._reward, end=EpisodeEnd.COMPLETED)
        self._num_invalid_turns = 0 if num_executed else self._num_invalid_turns + 1
        if self._num_invalid_turns < MAX_INVALID_TURNS:
            return StepResult(messages=messages)
        self._state = _State.OVER
        return StepResult(messages=messages, end=EpisodeEnd.INVALID_ACTION)

    def close(self) -> None:
        self._state = _State.CLOSED

    def _require(self, state: _State) -> None:
        if self._state is not state:
            raise EnvError(f"a kg env that {self._state.value} was used as one that {state.value}")

    def _is_over(self) -> bool:
        return self._state is _State.OVER

    def _carry_out(self, action: Action) -> tuple[list[str], int]:
        texts = []
        num_executed = 0
        for call in action.calls:
            if self._is_over():
                texts.append(NOT_EXECUTED)
                continue
            try:
                texts.append(self._execute(call))
                num_executed += 1
            except BadCall as bad:
                texts.append(str(bad))
        return texts, num_executed

    def _execute(self, call: ToolCall) -> str:
        values = arguments_of(call)
        if call.name == "query":
            return self._query(*values)
        return self._answer(*values)

    def _query(self, text: str, relation: str) -> str:
        graph = self._problem.graph
        entities = graph.resolve(text)
        if not entities:
            raise BadCall(UNKNOWN_ENTITY)
        if len(entities) > 1:
            raise BadCall(f"error: ambiguous entity, one of {shown(entities)}")
        objects = graph.objects(entities[0], relation)
        if objects is None:
            raise BadCall(UNKNOWN_RELATION)
        return shown(objects)

    def _answer(self, text: str) -> str:
        entities = self._problem.graph.resolve(text)
        self._reward = float(len(entities) == 1 and entities[0] in self._problem.question.answers)
        self._state = _State.OVER
        return ANSWERED


def shown(objects: tuple[str, ...]) -> str:
    """How a tool message lists entities: at most MAX_OBJECTS of them and the number of the others."""
    if not objects:
        return NO_OBJECTS
    text = ", ".join(objects[:MAX_OBJECTS])
    return text if len(objects) <= MAX_OBJECTS else f"{text}, ... ({len(objects) - MAX_OBJECTS} more)"
