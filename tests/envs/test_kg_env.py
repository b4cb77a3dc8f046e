"""What an episode answers to every kind of turn, and when it ends."""

import time
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_jax.env import Action, FamilyOptions, ToolCall
from agentrl_jax.errors import EnvError
from agentrl_jax.types import EpisodeEnd
from envs.knowledge_graph import family
from envs.knowledge_graph.calls import TOOLS, answer_call, query_call
from envs.knowledge_graph.env import MAX_INVALID_TURNS, MAX_OBJECTS, KnowledgeGraphEnv
from envs.knowledge_graph.questions import Problem, Question

EDGES = {("Anna", "boss"): ("Bob",), ("Bob", "friend"): ("Carl", "Dora"), ("Anna", "friend"): ()}


@dataclass
class DictGraph:
    entities: tuple[str, ...] = ("Anna", "Bob", "Carl", "Dora")
    relations: tuple[str, ...] = ("boss", "friend")

    def resolve(self, text):
        if text == "twin":
            return ("Carl", "Dora")
        return (text,) if text in self.entities else ()

    def objects(self, entity, relation):
        return EDGES.get((entity, relation), ()) if relation in self.relations else None


def live_env(graph=None):
    question = Question(word="Who", start="Anna", relations=("boss", "friend"), answers=frozenset({"Carl", "Dora"}))
    env = KnowledgeGraphEnv(Problem(graph=graph or DictGraph(), question=question))
    env.reset()
    return env


def contents(result):
    return [(message.role, message.content) for message in result.messages]


def test_the_question_names_the_relations_last_to_first():
    question = Question(word="Who", start="Anna", relations=("boss", "friend", "rival"), answers=frozenset())
    assert question.text == "Who is the rival of the friend of the boss of Anna?"


def test_reset_gives_a_system_message_and_the_question():
    env = KnowledgeGraphEnv(
        Problem(
            graph=DictGraph(),
            question=Question(word="Who", start="Anna", relations=("boss",), answers=frozenset({"Bob"})),
        )
    )
    system, user = env.reset()
    assert (system.role, user.role, user.content) == ("system", "user", "Who is the boss of Anna?")


def test_queries_of_one_turn_are_all_answered_in_order():
    calls = (query_call("Bob", "friend"), query_call("Anna", "boss"), query_call("Anna", "friend"))
    result = live_env().step(Action(calls=calls))
    assert contents(result) == [("tool", "Carl, Dora"), ("tool", "Bob"), ("tool", "none")]
    assert (result.reward, result.end) == (0.0, None)


@pytest.mark.parametrize(
    ("value", "reward"),
    [
        ("Carl", 1.0),
        ("Dora", 1.0),
        ("Bob", 0.0),
        ("carl", 0.0),
        ("Carl ", 0.0),
        ("twin", 0.0),
        ("", 0.0),
        ("\ud800", 0.0),
    ],
)
def test_an_answer_ends_the_episode_and_any_gold_entity_is_right(value, reward):
    result = live_env().step(Action(calls=(answer_call(value),)))
    assert (result.reward, result.end, contents(result)) == (reward, EpisodeEnd.COMPLETED, [("tool", "done")])


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (query_call("Zed", "boss"), "error: unknown entity"),
        (query_call("Anna", "aunt"), "error: unknown relation"),
        (query_call("twin", "boss"), "error: ambiguous entity, one of Carl, Dora"),
        (ToolCall(name="look", arguments={}), "error: unknown tool, use query or answer"),
        (ToolCall(name="query", arguments={"entity": "Anna"}), "error: query needs the strings entity, relation"),
        (
            ToolCall(name="query", arguments={"entity": "Anna", "relation": "boss", "also": "x"}),
            "error: query needs the strings entity, relation",
        ),
        (
            ToolCall(name="query", arguments={"entity": "Anna", "relation": ["boss"]}),
            "error: query needs the strings entity, relation",
        ),
        (ToolCall(name="answer", arguments={}), "error: answer needs the strings value"),
        (ToolCall(name="answer", arguments={"value": 7}), "error: answer needs the strings value"),
        (ToolCall(name="answer", arguments={"value": None}), "error: answer needs the strings value"),
    ],
)
def test_a_bad_call_is_answered_and_the_episode_goes_on(call, text):
    env = live_env()
    result = env.step(Action(calls=(call,)))
    assert contents(result) == [("tool", text)]
    assert (result.reward, result.end) == (0.0, None)
    assert env.step(Action(calls=(answer_call("Carl"),))).reward == 1.0


@pytest.mark.parametrize(
    "arguments",
    [
        {"entity": "Anna", "relation": "boss"},
        {"relation": "boss", "entity": "Anna"},
        {"subject": "Anna", "predicate": "boss"},
        {"relation": "Anna", "edge": "boss"},
    ],
)
def test_right_names_go_by_name_and_other_names_by_order(arguments):
    result = live_env().step(Action(calls=(ToolCall(name="query", arguments=arguments),)))
    assert contents(result) == [("tool", "Bob")]


def test_calls_after_the_answer_of_a_turn_get_the_notice_and_change_nothing():
    calls = (query_call("Anna", "boss"), answer_call("Bob"), answer_call("Carl"), query_call("Bob", "friend"))
    result = live_env().step(Action(calls=calls))
    notice = ("tool", "not executed: already answered")
    assert contents(result) == [("tool", "Bob"), ("tool", "done"), notice, notice]
    assert (result.reward, result.end) == (0.0, EpisodeEnd.COMPLETED)


def test_a_malformed_call_gets_its_own_text_as_a_tool_message_after_those_of_the_calls():
    result = live_env().step(Action(calls=(query_call("Anna", "boss"),), errors=("not JSON: x", "not JSON: y")))
    assert contents(result) == [("tool", "Bob"), ("tool", "not JSON: x"), ("tool", "not JSON: y")]


def test_a_turn_without_a_call_is_answered_by_the_user():
    assert contents(live_env().step(Action(content="Carl"))) == [("user", "Call query or answer.")]


@pytest.mark.parametrize(
    "bad",
    [Action(content="hm"), Action(errors=("not JSON",)), Action(calls=(query_call("Zed", "boss"),))],
    ids=["no call", "malformed", "refused"],
)
def test_invalid_turns_in_a_row_end_the_episode_and_a_valid_one_starts_the_count_anew(bad):
    env = live_env()
    good = Action(calls=(query_call("Zed", "boss"), query_call("Anna", "boss")))
    for _ in range(MAX_INVALID_TURNS - 1):
        assert env.step(bad).end is None
    assert env.step(good).end is None
    ends = [env.step(bad) for _ in range(MAX_INVALID_TURNS)]
    assert [result.end for result in ends] == [None] * (MAX_INVALID_TURNS - 1) + [EpisodeEnd.INVALID_ACTION]
    assert all(result.reward == 0.0 and len(result.messages) == 1 for result in ends)
    with pytest.raises(EnvError, match="is over"):
        env.step(good)


def test_a_query_shows_so_many_objects_and_counts_the_rest():
    class Star(DictGraph):
        def objects(self, entity, relation):
            return tuple(f"E{i}" for i in range(MAX_OBJECTS + 3))

    (message,) = live_env(Star()).step(Action(calls=(query_call("Anna", "boss"),))).messages
    assert message.content == "E0, E1, E2, E3, E4, E5, E6, E7, E8, E9, ... (3 more)"


def test_an_env_is_used_once_and_in_order():
    env = KnowledgeGraphEnv(family(FamilyOptions()).problem(family(FamilyOptions()).task("train", 0)))
    with pytest.raises(EnvError, match="is new"):
        env.step(Action())
    env.reset()
    with pytest.raises(EnvError, match="is live"):
        env.reset()
    env.close()
    with pytest.raises(EnvError, match="is closed"):
        env.step(Action())


def test_every_parameter_of_a_tool_is_required_and_no_other_allowed():
    assert [tool.name for tool in TOOLS] == ["query", "answer"]
    for tool in TOOLS:
        assert list(tool.parameters["properties"]) == tool.parameters["required"]
        assert tool.parameters["additionalProperties"] is False


ANY_CALL = st.builds(
    ToolCall,
    name=st.sampled_from(["query", "answer", "close", ""]),
    arguments=st.dictionaries(
        st.sampled_from(["entity", "relation", "value", "x"]),
        st.one_of(
            st.sampled_from(["Anna", "Bob", "Carl", "boss", "friend"]), st.text(max_size=3), st.integers(), st.none()
        ),
        max_size=3,
    ),
)


@settings(max_examples=150, deadline=None)
@given(
    turns=st.lists(
        st.tuples(st.lists(ANY_CALL, max_size=4), st.lists(st.just("not JSON"), max_size=2)), min_size=1, max_size=8
    )
)
def test_any_turn_gets_one_message_per_call_until_the_end(turns):
    env = live_env()
    for calls, errors in turns:
        result = env.step(Action(calls=tuple(calls), errors=tuple(errors)))
        roles = [message.role for message in result.messages]
        assert roles == ["tool"] * (len(calls) + len(errors)) or (not calls and not errors and roles == ["user"])
        assert result.reward == 0.0 or result.end is EpisodeEnd.COMPLETED
        if result.end is not None:
            with pytest.raises(EnvError):
                env.step(Action())
            break


def test_an_episode_costs_well_under_a_millisecond():
    kg = family(FamilyOptions())
    problems = [kg.problem(kg.task("train", i)) for i in range(200)]
    started_s = time.process_time()
    for problem in problems:
        env = KnowledgeGraphEnv(problem)
        env.reset()
        for relation in problem.graph.relations[:4]:
            env.step(Action(calls=(query_call("Bob", relation),)))
    # The budget is 0.3 ms; it takes about 0.03.
    assert (time.process_time() - started_s) / len(problems) < 0.3e-3
