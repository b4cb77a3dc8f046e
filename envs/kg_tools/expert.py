"""The scripted expert, which shows whole episodes for supervised warm-up: it knows the gold program."""

from random import Random

from agentrl_jax.env import Action, Env, Message, ToolCall
from agentrl_jax.errors import ConfigError, EnvError
from envs.kg_tools.calls import BadCall, tool_call
from envs.kg_tools.desk import Desk
from envs.kg_tools.problems import Problem
from envs.kg_tools.programs import Count, Entity, Extreme, Intersection, Join, Program


class Expert:
    """Makes the gold program's variables one after the other, on a desk of its own."""

    def __init__(self, problem: Problem) -> None:
        self._gold = problem.gold
        self._names = {id_: name for name, id_ in problem.world.entities.items()}
        self.desk = Desk(problem.world, problem.backend())

    def missing_calls(self) -> list[ToolCall]:
        """The calls that are left, in order; those after the first may name variables that do not exist yet."""
        calls: list[ToolCall] = []
        made = [variable.program for variable in self.desk.variables]
        listed = {*self.desk.listed_relations}, {*self.desk.listed_attributes}
        self._make(self._gold, calls, made, listed)
        return calls

    @property
    def answer(self) -> str:
        number = [variable.program for variable in self.desk.variables].index(self._gold)
        return f"Final Answer: #{number}"

    def random_call(self, rng: Random) -> ToolCall:
        """A call that can be carried out but need not make sense."""
        known = [*self._names, *range(len(self.desk.variables))]
        chosen = [text for item in known if (text := self._operand(item)) is not None]
        listed = [(program, r) for program, found in self.desk.listed_relations.items() for r in found]
        if listed and rng.random() < 0.5:
            program, relation = rng.choice(listed)
            return tool_call("get_neighbors", self._name(program, self._made()), relation)
        return tool_call("get_relations", rng.choice(chosen))

    def carry_out(self, call: ToolCall) -> None:
        """Raises EnvError if the gold program cannot be made."""
        try:
            self.desk.carry_out(call)
        except BadCall as error:
            raise EnvError(f"the expert's call {call.name} cannot be carried out: {error}") from error

    def _operand(self, item: str | int) -> str | None:
        if isinstance(item, str):
            return self._names[item]
        return None if isinstance(self.desk.variables[item].program, Count) else f"#{item}"

    def _made(self) -> list[Program]:
        return [variable.program for variable in self.desk.variables]

    def _name(self, program: Program, made: list[Program]) -> str:
        if isinstance(program, Entity):
            return self._names.get(program.id, program.id)
        return f"#{made.index(program)}"

    def _make(
        self,
        program: Program,
        calls: list[ToolCall],
        made: list[Program],
        listed: tuple[set[Program], set[Program]],
    ) -> None:
        if isinstance(program, Entity) or program in made:
            return
        sources = (program.first, program.second) if isinstance(program, Intersection) else (program.source,)
        for source in sources:
            self._make(source, calls, made, listed)
        names = [self._name(source, made) for source in sources]
        match program:
            case Join():
                if program.source not in listed[0]:
                    calls.append(tool_call("get_relations", *names))
                    listed[0].add(program.source)
                calls.append(tool_call("get_neighbors", *names, program.relation))
            case Intersection():
                calls.append(tool_call("intersection", *names))
            case Extreme():
                if program.source not in listed[1]:
                    calls.append(tool_call("get_attributes", *names))
                    listed[1].add(program.source)
                calls.append(tool_call(program.extremum, *names, program.attribute))
            case Count():
                calls.append(tool_call("count", *names))
        made.append(program)


def demonstrate(env: Env, problem: Problem, rng: Random, *, noise: float, max_turns: int) -> tuple[Message, ...]:
    """Play `env`, an env of `problem`, from reset to its answer; returns the messages in the form an episode has.

    A turn is random with probability `noise`, unless the expert needs all the turns that are left; it makes more than
    one call in a turn only where there would be too few turns. The caller closes `env`. Raises ConfigError for `noise`
    out of [0, 1], and EnvError if the gold program cannot be made.
    """
    if not 0.0 <= noise <= 1.0:
        raise ConfigError(f"noise must be between 0 and 1, got {noise}")
    messages = list(env.reset())
    expert = Expert(problem)
    for turns_left in range(max_turns, 0, -1):
        missing = expert.missing_calls()
        if missing and len(missing) + 1 < turns_left and rng.random() < noise:
            calls = [expert.random_call(rng)]
        else:
            calls = missing[: max(1, len(missing) + 2 - turns_left)]
        for call in calls:
            expert.carry_out(call)
        action = Action(calls=tuple(calls)) if calls else Action(content=expert.answer)
        result = env.step(action)
        messages += (
            Message(role="assistant", content=action.content, tool_calls=action.calls),
            *result.messages,
        )
        if result.end is not None:
            break
    return tuple(messages)
