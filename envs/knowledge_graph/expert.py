"""The scripted expert, which shows whole episodes for supervised warm-up."""

from random import Random

from agentrl_jax.env import Action, Env, Message, ToolCall
from agentrl_jax.errors import ConfigError
from envs.knowledge_graph.calls import answer_call, query_call
from envs.knowledge_graph.env import MAX_OBJECTS
from envs.knowledge_graph.questions import Problem

# Of the random actions: how many answer (and so end the episode, mostly wrongly), ask about an entity already
# seen, and follow a relation out of the question.
ANSWER_FRAC = 0.1
SEEN_FRAC = 0.75
ASKED_FRAC = 0.5


def demonstrate(env: Env, problem: Problem, rng: Random, *, noise: float, max_turns: int) -> tuple[Message, ...]:
    """Play `env` from reset to its end; returns the messages in the form an episode has.

    A turn is random with probability `noise`, unless the expert needs all the turns that are left: every
    demonstration ends with an answer within `max_turns`. The caller closes `env`.
    """
    if not 0.0 <= noise <= 1.0:
        raise ConfigError(f"noise must be between 0 and 1, got {noise}")
    messages = list(env.reset())
    expert = _Expert(problem)
    for turns_left in range(max_turns, 0, -1):
        is_random = turns_left > expert.num_turns_needed and rng.random() < noise
        call = expert.random_call(rng) if is_random else expert.next_call()
        result = env.step(Action(calls=(call,)))
        messages += (Message(role="assistant", tool_calls=(call,)), *result.messages)
        if result.end is not None:
            break
        expert.observe(call)
    return tuple(messages)


class _Expert:
    """Where the expert stands: the entity it has reached, after how many hops, and every entity it was shown."""

    def __init__(self, problem: Problem) -> None:
        self._graph = problem.graph
        self._relations = problem.question.relations
        self._entity = problem.question.start
        self._num_hops = 0
        self._seen = [self._entity]

    @property
    def num_turns_needed(self) -> int:
        return len(self._relations) - self._num_hops + 1

    def next_call(self) -> ToolCall:
        if self._num_hops == len(self._relations):
            return answer_call(self._entity)
        return query_call(self._entity, self._relations[self._num_hops])

    def random_call(self, rng: Random) -> ToolCall:
        """A well-formed call that need not make sense."""
        entity = rng.choice(self._seen if rng.random() < SEEN_FRAC else self._graph.entities)
        if rng.random() < ANSWER_FRAC:
            return answer_call(entity)
        return query_call(entity, rng.choice(self._relations if rng.random() < ASKED_FRAC else self._graph.relations))

    def observe(self, call: ToolCall) -> None:
        """Take in the env's answer to a query, whoever chose it: a lucky random hop is not asked again."""
        is_next = call == self.next_call()
        objects = (self._graph.objects(call.arguments["entity"], call.arguments["relation"]) or ())[:MAX_OBJECTS]
        self._seen += [name for name in objects if name not in self._seen]
        if is_next:
            # Any object will do: every one of them leads on (questions are drawn without dead ends).
            self._entity = objects[0]
            self._num_hops += 1
