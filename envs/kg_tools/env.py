"""One episode of one question: tools in any number, then the answer in plain text."""

import re
from enum import Enum

from agentrl_jax.env import Action, Message, StepResult, ToolCall
from agentrl_jax.errors import EnvError
from agentrl_jax.types import EpisodeEnd
from envs.kg_tools.calls import BadCall
from envs.kg_tools.desk import Desk
from envs.kg_tools.graph import QueryError
from envs.kg_tools.problems import Problem

SYSTEM = (
    "Find the answer in the knowledge graph with the tools. An entity is given by its name, a variable by its number, "
    "such as #0. When a variable holds the answer, write Final Answer: #id without calling a tool."
)
NO_CALL = "Call a tool, or write Final Answer: #id."
_ANSWER = re.compile(r"(?:Find|Final) Answer: #(\d+)")


class _State(Enum):
    NEW = "is new"
    LIVE = "is live"
    OVER = "is over"
    CLOSED = "is closed"


class KnowledgeGraphToolsEnv:
    """Implements `agentrl_jax.env.Env`. Reward 1 if the answered variable holds exactly the gold answers, else 0; the
    metric `f1` is the harmonic mean of precision and recall.

    Every call of a turn is carried out in order. An answer that names no variable, or one whose query is not answered,
    ends the episode as `validation_failed`.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._backend = problem.backend()
        self._desk = Desk(problem.world, self._backend)
        self._state = _State.NEW

    def reset(self) -> tuple[Message, ...]:
        self._require(_State.NEW)
        self._state = _State.LIVE
        question = Message(role="user", content=self._problem.text)
        return (Message(role="system", content=SYSTEM), *self._problem.example, question)

    def step(self, action: Action) -> StepResult:
        """Carry out one assistant turn. Raises EnvError unless the episode is live, or if the graph cannot be asked."""
        self._require(_State.LIVE)
        texts = (*(self._carry_out(call) for call in action.calls), *action.errors)
        if texts:
            return StepResult(messages=tuple(Message(role="tool", content=text) for text in texts))
        said, _, _ = action.content.partition("Observation:")
        found = _ANSWER.search(said)
        if found is None:
            return StepResult(messages=(Message(role="user", content=NO_CALL),))
        return self._answer(found[1])

    def close(self) -> None:
        self._state = _State.CLOSED

    def _require(self, state: _State) -> None:
        if self._state is not state:
            raise EnvError(f"a knowledgegraph env that {self._state.value} was used as one that {state.value}")

    def _carry_out(self, call: ToolCall) -> str:
        try:
            return self._desk.carry_out(call)
        except BadCall as bad:
            return f"Error processing tool call: {bad}"

    def _answer(self, number: str) -> StepResult:
        self._state = _State.OVER
        variable = self._desk.variable(int(number)) if len(number) < 9 else None
        if variable is None:
            return StepResult(messages=(), end=EpisodeEnd.VALIDATION_FAILED)
        try:
            answers = self._backend.answers(variable.program)
        except QueryError:
            return StepResult(messages=(), end=EpisodeEnd.VALIDATION_FAILED)
        gold = self._problem.answers
        metrics = {"f1": f1_score(answers, gold)}
        return StepResult(messages=(), reward=float(answers == gold), end=EpisodeEnd.COMPLETED, metrics=metrics)


def f1_score(answers: frozenset[str], gold: frozenset[str]) -> float:
    """2 |both| / (|answers| + |gold|); 0 if both are empty."""
    total = len(answers) + len(gold)
    return 2 * len(answers & gold) / total if total else 0.0
