"""What an episode with the seven tools answers to every kind of turn, and when it ends."""

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_jax.env import Action, EnvRegistry, FamilyOptions, ToolCall
from agentrl_jax.errors import ConfigError, EnvError
from agentrl_jax.types import EpisodeEnd
from envs import register_all
from envs.kg_tools.calls import PARAMETERS, TOOLS, tool_call
from envs.kg_tools.desk import World
from envs.kg_tools.env import KnowledgeGraphToolsEnv, f1_score
from envs.kg_tools.graph import DictTriples, Evaluator
from envs.kg_tools.one_shot import EXAMPLE
from envs.kg_tools.ontology import Ontology
from envs.kg_tools.problems import Problem
from envs.kg_tools.programs import Entity, Join

EDGES = {
    "m.0x": {"employs": ("m.0a", "m.0b"), "founded_by": ("m.0a",), "hidden": ("m.0z",)},
    "m.0a": {"knows": ("m.0b", "m.0c"), "age": ("30",)},
    "m.0b": {"knows": ("m.0c",), "age": ("40",)},
}
ONTOLOGY = Ontology(
    relations=frozenset(("employs", "founded_by", "knows")),
    attributes=frozenset(("age",)),
    domains={},
    ranges={"employs": "person", "knows": "person", "founded_by": "founder"},
    by_domain={},
    reverses={},
)


def problem(**changes):
    world = {
        "ontology": ONTOLOGY,
        "entities": {"Acme, Inc.": "m.0x"},
        "relations": ONTOLOGY.relations,
        "attributes": ONTOLOGY.attributes,
    }
    return Problem(
        question="who works there?",
        world=World(**{**world, **changes}),
        gold=Join("employs", Entity("m.0x")),
        answers=frozenset(("m.0a", "m.0b")),
        backend=partial(Evaluator, DictTriples(EDGES)),
    )


def live_env(**changes):
    env = KnowledgeGraphToolsEnv(problem(**changes))
    env.reset()
    return env


def told(env, *calls):
    result = env.step(Action(calls=tuple(tool_call(name, *values) for name, *values in calls)))
    assert all(message.role == "tool" for message in result.messages)
    return [message.content for message in result.messages]


LIST_X = ("get_relations", "Acme, Inc.")
STAFF = ("get_neighbors", "Acme, Inc.", "employs")
FOUNDERS = ("get_neighbors", "Acme, Inc.", "founded_by")


def say(env, text):
    return env.step(Action(content=text))


def test_an_episode_begins_with_the_question_and_its_entities():
    system, user = KnowledgeGraphToolsEnv(problem()).reset()
    assert (system.role, user.role) == ("system", "user")
    assert user.content == "who works there?\nEntities: [Acme, Inc.]"


def test_calls_of_a_turn_are_carried_out_in_order_and_variables_are_counted():
    assert told(
        live_env(),
        LIST_X,
        STAFF,
        ("get_relations", "#0"),
        ("get_neighbors", "#0", "knows"),
        ("intersection", "#0", "#1"),
    ) == [
        "Observation: [employs, founded_by]",
        "Observation: variable #0, which are instances of person",
        "Observation: [knows]",
        "Observation: variable #1, which are instances of person",
        "Observation: variable #2, which are instances of person",
    ]


def test_attributes_extremes_and_counts():
    env = live_env()
    texts = told(
        env, LIST_X, STAFF, ("get_attributes", "#0"), ("argmax", "#0", "age"), ("argmin", "#0", "age"), ("count", "#1")
    )
    assert texts[2:] == [
        "Observation: [age]",
        "Observation: variable #1, which are instances of person",
        "Observation: variable #2, which are instances of person",
        "Observation: variable #3, which is a number",
    ]


@pytest.mark.parametrize(
    ("text", "reward", "f1"),
    [
        ("Final Answer: #0", 1.0, 1.0),
        ("I think so.\nFind Answer: #0", 1.0, 1.0),
        ("Final Answer: #1", 0.0, 2 / 3),
        ("Final Answer: #2", 0.0, 0.0),
        ("Final Answer: #0 or Final Answer: #1", 1.0, 1.0),
    ],
)
def test_an_answer_is_right_if_the_sets_are_equal(text, reward, f1):
    env = live_env()
    told(env, LIST_X, STAFF, FOUNDERS, ("count", "#0"))
    result = say(env, text)
    assert (result.messages, result.reward, result.end) == ((), reward, EpisodeEnd.COMPLETED)
    assert result.metrics == {"f1": pytest.approx(f1)}
    with pytest.raises(EnvError, match="is over"):
        say(env, text)


@pytest.mark.parametrize("text", ["Final Answer: #1", "Final Answer: #99999999999999999999"])
def test_an_answer_that_is_no_variable_fails_validation(text):
    env = live_env()
    told(env, LIST_X, STAFF)
    result = say(env, text)
    assert (result.reward, result.end, result.messages) == (0.0, EpisodeEnd.VALIDATION_FAILED, ())


@pytest.mark.parametrize(
    "text", ["", "Final Answer: Acme", "Final Answer: #-1", "The answer is #0", "Observation: x Final Answer: #0"]
)
def test_a_turn_without_call_or_answer_is_answered_by_the_user(text):
    env = live_env()
    told(env, LIST_X, STAFF)
    (message,) = say(env, text).messages
    assert (message.role, message.content) == ("user", "Call a tool, or write Final Answer: #id.")


def test_an_answer_beside_a_call_is_not_looked_at():
    env = live_env()
    result = env.step(Action(content="Final Answer: #0", calls=(tool_call(*LIST_X),)))
    assert result.end is None
    assert env.step(Action(content="Final Answer: #0", errors=("not JSON",))).messages[0].content == "not JSON"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (tool_call("get_relations", "Nobody"), "get_relations: variable must be an entity or a variable"),
        (tool_call("get_relations", "#1"), "get_relations: there is no such variable"),
        (tool_call("get_relations", "#-1"), "get_relations: there is no such variable"),
        (tool_call("get_relations", "#" + "9" * 30), "get_relations: there is no such variable"),
        (
            tool_call("get_neighbors", "#0", "employs"),
            "get_neighbors: relation must be one that get_relations listed for the variable",
        ),
        (
            tool_call("get_neighbors", "Acme, Inc.", "hidden"),
            "get_neighbors: relation must be one that get_relations listed for the variable",
        ),
        (tool_call("intersection", "#0", "Acme, Inc."), "intersection: variable must be a variable, not an entity"),
        (tool_call("get_attributes", "Acme, Inc."), "get_attributes: variable must be a variable, not an entity"),
        (tool_call("argmax", "#0", "age"), "argmax: attribute must be one that get_attributes listed for the variable"),
        (
            tool_call("argmin", "#0", "knows"),
            "argmin: attribute must be one that get_attributes listed for the variable",
        ),
        (ToolCall(name="union", arguments={}), "unknown tool, use one of " + ", ".join(PARAMETERS)),
        (ToolCall(name="count", arguments={}), "count needs the strings variable"),
        (ToolCall(name="count", arguments={"variable": 0}), "count needs the strings variable"),
        (
            ToolCall(name="intersection", arguments={"variable1": "#0"}),
            "intersection needs the strings variable1, variable2",
        ),
    ],
)
def test_a_bad_call_is_answered_and_changes_nothing(call, text):
    env = live_env()
    told(env, LIST_X, STAFF)
    (message,) = env.step(Action(calls=(call,))).messages
    assert message.content == f"Error processing tool call: {text}"
    assert say(env, "Final Answer: #0").reward == 1.0


@pytest.mark.parametrize("name", ["get_relations", "get_neighbors", "intersection", "count"])
def test_a_number_leads_nowhere(name):
    env = live_env()
    told(env, LIST_X, STAFF, ("count", "#0"))
    rest = {"get_neighbors": ("knows",), "intersection": ("#0",)}.get(name, ())
    assert told(env, (name, "#1", *rest)) == [f"Error processing tool call: {name}: variable must not be a number"]


def test_ids_are_accepted_and_unknown_ones_lead_nowhere():
    env = live_env()
    assert told(
        env, ("get_relations", "m.0x"), ("get_neighbors", "m.0x", "employs"), ("get_relations", "m.0nobody")
    ) == [
        "Observation: [employs, founded_by]",
        "Observation: variable #0, which are instances of person",
        "Observation: []",
    ]
    assert told(env, ("get_relations", " variable #0 ")) == ["Observation: [knows]"]
    assert told(live_env(ids=frozenset(("topic",))), ("get_relations", "topic")) == ["Observation: []"]


def test_right_names_go_by_name_and_other_names_by_order():
    env = live_env()
    told(env, LIST_X)
    swapped = {"relation": "employs", "variable": "Acme, Inc."}
    other = {"entity": "Acme, Inc.", "edge": "founded_by"}
    texts = [
        env.step(Action(calls=(ToolCall(name="get_neighbors", arguments=a),))).messages[0].content
        for a in (swapped, other)
    ]
    assert texts == [
        "Observation: variable #0, which are instances of person",
        "Observation: variable #1, which are instances of founder",
    ]


def test_a_program_that_doubles_with_every_call_is_bounded():
    env = live_env()
    told(env, LIST_X, STAFF)
    answers = told(env, *(("intersection", f"#{number}", f"#{number}") for number in range(40)))
    # 2 + 1 parts, then each call doubles them: 5, 11, 23, 47, 95.
    assert answers[4] == "Observation: variable #5, which are instances of person"
    assert answers[5] == "Error processing tool call: intersection: a variable may take at most 100 steps"
    assert set(answers[6:]) == {"Error processing tool call: intersection: there is no such variable"}
    assert say(env, "Final Answer: #5").reward == 1.0


def test_sets_of_other_types_can_be_intersected_unless_as_published():
    calls = (LIST_X, STAFF, FOUNDERS, ("intersection", "#0", "#1"))
    assert told(live_env(), *calls)[-1] == "Observation: variable #2, which are instances of person"
    refused = "Error processing tool call: intersection: two variables must have the same type"
    assert told(live_env(upstream_compat=True), *calls)[-1] == refused


def test_as_published_a_negative_number_names_a_variable_from_the_end():
    env = live_env(upstream_compat=True)
    assert told(env, LIST_X, STAFF, FOUNDERS, ("get_relations", "#-2"))[-1] == "Observation: [knows]"


def test_an_env_is_used_once_and_in_order():
    env = KnowledgeGraphToolsEnv(problem())
    with pytest.raises(EnvError, match="is new"):
        env.step(Action())
    env.reset()
    with pytest.raises(EnvError, match="is live"):
        env.reset()
    env.close()
    with pytest.raises(EnvError, match="is closed"):
        env.step(Action())


def test_sessions_share_no_lists_and_no_variables():
    problem_ = problem()
    first, second = (KnowledgeGraphToolsEnv(problem_) for _ in range(2))
    first.reset()
    second.reset()
    told(first, LIST_X, STAFF)
    assert told(second, STAFF)[0].startswith("Error processing tool call: get_neighbors: relation must be")
    assert told(second, ("get_relations", "#0"))[0].endswith("there is no such variable")


@pytest.mark.parametrize(
    ("answers", "gold", "f1"),
    [("ab", "ab", 1.0), ("a", "ab", 2 / 3), ("abcd", "ab", 2 / 3), ("c", "ab", 0.0), ("", "ab", 0.0), ("", "", 0.0)],
)
def test_f1_is_the_harmonic_mean_of_precision_and_recall(answers, gold, f1):
    assert f1_score(frozenset(answers), frozenset(gold)) == pytest.approx(f1)


def test_the_worked_example_is_played_by_the_tools():
    assert [message.role for message in EXAMPLE[:3]] == ["user", "assistant", "tool"]
    assert EXAMPLE[2].content == "Observation: [location.location.orchestras_here, location.location.time_zones]"
    assert EXAMPLE[-1].content == "Final Answer: #3"
    assert not any("Error" in message.content for message in EXAMPLE)


def test_every_parameter_of_a_tool_is_required_and_no_other_allowed():
    assert [tool.name for tool in TOOLS] == [
        *("get_relations", "get_neighbors", "intersection", "get_attributes", "argmax", "argmin", "count")
    ]
    for tool in TOOLS:
        assert list(tool.parameters["properties"]) == tool.parameters["required"]
        assert tool.parameters["additionalProperties"] is False


def test_the_registry_knows_the_family():
    registry = EnvRegistry()
    register_all(registry)
    assert registry.make("knowledgegraph", FamilyOptions()).max_turns == 15
    with pytest.raises(ConfigError, match="generated levels 1, 2, 3, got 4"):
        registry.make("knowledgegraph", FamilyOptions(level=4))


ANY_VALUE = st.one_of(
    st.sampled_from(["Acme, Inc.", "#0", "#1", "#2", "m.0a", "employs", "knows", "age"]),
    st.text(max_size=3),
    st.integers(),
)
ANY_CALL = st.builds(
    ToolCall,
    name=st.sampled_from([*PARAMETERS, "union"]),
    arguments=st.dictionaries(
        st.sampled_from(["variable", "relation", "variable1", "variable2", "attribute"]), ANY_VALUE, max_size=2
    ),
)


@settings(max_examples=100, deadline=None)
@given(turns=st.lists(st.lists(ANY_CALL, max_size=4), min_size=1, max_size=6))
def test_any_turn_gets_one_message_per_call(turns):
    env = live_env()
    for calls in turns:
        result = env.step(Action(calls=tuple(calls)))
        roles = [message.role for message in result.messages]
        assert roles == (["tool"] * len(calls) if calls else ["user"])
        assert result.end is None
