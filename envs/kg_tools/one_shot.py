"""A worked example, which evaluation as published shows before the question: made up here, and played by the tools."""

from agentrl_jax.env import Message, ToolCall
from envs.kg_tools.calls import tool_call
from envs.kg_tools.desk import Desk, World
from envs.kg_tools.graph import DictTriples, Evaluator
from envs.kg_tools.ontology import Ontology

_QUESTION = "who conducted the orchestras that are based in Utrecht and play baroque music?"
_ENTITIES = {"Utrecht": "m.0exu", "Baroque music": "m.0exb"}
_RANGES = {
    "location.location.orchestras_here": "music.orchestra",
    "music.genre.orchestras": "music.orchestra",
    "music.orchestra.conductors": "music.conductor",
}
_EDGES: dict[str, dict[str, tuple[str, ...]]] = {
    "m.0exu": {"location.location.orchestras_here": ("m.0ex1", "m.0ex2"), "location.location.time_zones": ("m.0ext",)},
    "m.0exb": {"music.genre.orchestras": ("m.0ex2", "m.0ex3"), "music.genre.artists": ("m.0ex5",)},
    "m.0ex2": {"music.orchestra.conductors": ("m.0ex4",), "music.orchestra.instruments": ("m.0ex6",)},
}
_CALLS = (
    tool_call("get_relations", "Utrecht"),
    tool_call("get_neighbors", "Utrecht", "location.location.orchestras_here"),
    tool_call("get_relations", "Baroque music"),
    tool_call("get_neighbors", "Baroque music", "music.genre.orchestras"),
    tool_call("intersection", "#0", "#1"),
    tool_call("get_relations", "#2"),
    tool_call("get_neighbors", "#2", "music.orchestra.conductors"),
)


def _play(calls: tuple[ToolCall, ...]) -> tuple[Message, ...]:
    ontology = Ontology(
        relations=frozenset(),
        attributes=frozenset(),
        domains={},
        ranges=_RANGES,
        by_domain={},
        reverses={},
    )
    shown = frozenset(relation for relations in _EDGES.values() for relation in relations)
    world = World(ontology=ontology, entities=_ENTITIES, relations=shown, attributes=frozenset())
    desk = Desk(world, Evaluator(DictTriples(_EDGES)))
    messages = [Message(role="user", content=f"{_QUESTION}\nEntities: [{', '.join(_ENTITIES)}]")]
    for call in calls:
        messages.append(Message(role="assistant", tool_calls=(call,)))
        messages.append(Message(role="tool", content=desk.carry_out(call)))
    messages.append(Message(role="assistant", content=f"Final Answer: #{len(desk.variables) - 1}"))
    return tuple(messages)


EXAMPLE = _play(_CALLS)
