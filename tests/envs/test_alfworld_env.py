"""The function-call interface of alfworld: one action a turn, fixed answers to bad calls, reward 1 for winning."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.env import Action, FamilyOptions, ToolCall
from agentrl_jax.errors import EnvError
from agentrl_jax.types import EpisodeEnd
from envs.alfworld import family
from envs.alfworld.calls import action_call
from envs.alfworld.env import AlfworldEnv
from envs.alfworld.game import PlaceGoal
from envs.alfworld.goals import write_goal
from envs.alfworld.problem import parse_problem

HOUSE = (
    "(define (problem p) (:init (atLocation agent1 loc_bar_0) "
    "(receptacleType Bed_bar_1 BedType) (receptacleAtLocation Bed_bar_1 loc_bar_1) "
    "(receptacleType Safe_bar_1 SafeType) (receptacleAtLocation Safe_bar_1 loc_bar_2) (openable Safe_bar_1) "
    "(objectType Mug_bar_1 MugType) (pickupable Mug_bar_1) (inReceptacle Mug_bar_1 Bed_bar_1) "
    "(objectAtLocation Mug_bar_1 loc_bar_1) (canContain SafeType MugType)) "
    + write_goal(PlaceGoal(thing_type="MugType", receptacle_type="SafeType"))
    + ")"
)
SOLUTION = ("go to bed 1", "take mug 1 from bed 1", "go to safe 1", "open safe 1", "move mug 1 to safe 1")


def live_env():
    env = AlfworldEnv(parse_problem(HOUSE, task="Your task is to: put a mug in safe.", help_text="Help."))
    env.reset()
    return env


def act(env, *actions, errors=()):
    return env.step(Action(calls=tuple(action_call(action) for action in actions), errors=errors))


def test_the_first_messages_are_the_scene_the_task_and_the_available_actions():
    env = AlfworldEnv(parse_problem(HOUSE, task="Your task is to: put a mug in safe.", help_text="Help."))
    system, user = env.reset()
    assert (system.role, user.role) == ("system", "user")
    assert user.content == (
        "You are in the middle of a room. Looking quickly around you, you see a bed 1, and a safe 1.\n\n"
        "Your task is to: put a mug in safe.\n\n"
        "Available actions:\ngo to bed 1\ngo to safe 1\nhelp\ninventory\nlook"
    )


def test_a_whole_episode():
    env = live_env()
    results = [act(env, action) for action in SOLUTION]
    assert [result.messages[0].content for result in results] == [
        # The sentence that says where one has arrived is cut.
        "On the bed 1, you see a mug 1.\n\n"
        "Available actions:\nexamine bed 1\ngo to safe 1\nhelp\ninventory\nlook\ntake mug 1 from bed 1",
        "You pick up the mug 1 from the bed 1.\n\n"
        "Available actions:\nexamine bed 1\nexamine mug 1\ngo to safe 1\nhelp\ninventory\nlook",
        "The safe 1 is closed.\n\n"
        "Available actions:\nexamine mug 1\nexamine safe 1\ngo to bed 1\nhelp\ninventory\nlook\nopen safe 1",
        "You open the safe 1. The safe 1 is open. In it, you see nothing.\n\n"
        "Available actions:\nclose safe 1\nexamine mug 1\nexamine safe 1\ngo to bed 1\nhelp\ninventory\nlook\n"
        "move mug 1 to safe 1",
        "You move the mug 1 to the safe 1.\n\n"
        "Available actions:\nclose safe 1\nexamine safe 1\ngo to bed 1\nhelp\ninventory\nlook\n"
        "take mug 1 from safe 1",
    ]
    assert [(r.reward, r.end) for r in results] == [(0.0, None)] * 4 + [(1.0, EpisodeEnd.COMPLETED)]


def test_only_the_first_call_is_carried_out():
    env = live_env()
    result = act(env, *SOLUTION[:2], errors=("not JSON",))
    assert [message.role for message in result.messages] == ["tool"] * 3
    assert result.messages[0].content.startswith("On the bed 1")
    assert [m.content for m in result.messages[1:]] == ["not executed: one action a turn", "not JSON"]
    assert "take mug 1 from bed 1" in act(env, "look").messages[0].content


@pytest.mark.parametrize(
    "text", ["GO TO BED 1", " go to bed 1 \ntake mug 1 from bed 1", "go to the bed 1", "walk to bed 1"]
)
def test_an_action_is_matched_to_an_available_one(text):
    assert act(live_env(), text).messages[0].content.startswith("On the bed 1")


def test_an_action_that_matches_nothing_changes_nothing():
    env = live_env()
    before = act(env, "look").messages[0].content
    assert act(env, "dance").messages[0].content.startswith("Nothing happens.\n\nAvailable actions:\n")
    assert act(env, "look").messages[0].content == before


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (ToolCall(name="go", arguments={"action": "look"}), "error: unknown tool, use take_action"),
        (ToolCall(name="take_action", arguments={}), "error: take_action needs the string action"),
        (ToolCall(name="take_action", arguments={"action": 1}), "error: take_action needs the string action"),
        (
            ToolCall(name="take_action", arguments={"action": None, "b": "look"}),
            "error: take_action needs the string action",
        ),
    ],
)
def test_a_bad_call_is_answered_by_a_fixed_text(call, text):
    env = live_env()
    result = env.step(Action(calls=(call, action_call("look"))))
    assert [m.content for m in result.messages] == [text, "not executed: one action a turn"]
    assert (result.reward, result.end) == (0.0, None)


def test_an_argument_of_another_name_is_taken():
    env = live_env()
    result = env.step(Action(calls=(ToolCall(name="take_action", arguments={"command": "go to bed 1", "why": 1}),)))
    assert result.messages[0].content.startswith("On the bed 1")


def test_a_turn_without_a_call_is_answered_by_a_user_message():
    result = live_env().step(Action(content="go to bed 1"))
    assert [(m.role, m.content) for m in result.messages] == [("user", "Call take_action.")]
    assert result.end is None


def test_a_game_that_is_won_after_bad_turns_earns_the_reward():
    env = live_env()
    env.step(Action(content="hm"))
    env.step(Action(errors=("not JSON",)))
    act(env, "dance")
    env.step(Action(calls=(ToolCall(name="go", arguments={}),)))
    results = [act(env, action) for action in SOLUTION]
    assert (results[-1].reward, results[-1].end) == (1.0, EpisodeEnd.COMPLETED)


def test_the_same_action_three_times_in_a_row_ends_the_episode():
    env = live_env()
    assert [act(env, text).end for text in ("look", "Look", "look")] == [None, None, EpisodeEnd.INVALID_ACTION]
    with pytest.raises(EnvError, match="is over"):
        act(env, "go to bed 1")


def test_anything_in_between_starts_the_count_again():
    env = live_env()
    for _ in range(4):
        assert act(env, "look").end is None
        assert act(env, "look").end is None
        assert act(env, "inventory").end is None
    for _ in range(4):
        assert act(env, "help").end is None
        assert env.step(Action()).end is None


def test_an_env_is_used_once_and_in_order():
    game = parse_problem(HOUSE, task="t", help_text="h")
    env = AlfworldEnv(game)
    with pytest.raises(EnvError, match="is new"):
        act(env, "look")
    env.reset()
    with pytest.raises(EnvError, match="is live"):
        env.reset()
    env.close()
    with pytest.raises(EnvError, match="is closed"):
        act(env, "look")


ANY_CALL = st.builds(
    ToolCall,
    name=st.sampled_from(["take_action", "close", ""]),
    arguments=st.dictionaries(
        st.sampled_from(["action", "x"]), st.sampled_from([*SOLUTION, "look", "", None, 3, ["look"]]), max_size=2
    ),
)


@given(
    turns=st.lists(
        st.tuples(st.lists(ANY_CALL, max_size=3), st.lists(st.just("not JSON"), max_size=2)), min_size=1, max_size=12
    )
)
def test_any_turn_gets_one_message_per_call_until_the_end(turns):
    env = live_env()
    for calls, errors in turns:
        result = env.step(Action(calls=tuple(calls), errors=tuple(errors)))
        roles = [message.role for message in result.messages]
        assert roles == ["tool"] * (len(calls) + len(errors)) or (not calls and not errors and roles == ["user"])
        assert (result.reward == 1.0) == (result.end is EpisodeEnd.COMPLETED)
        if result.end is not None:
            with pytest.raises(EnvError):
                env.step(Action())
            break


def test_the_declared_tool_is_the_one_that_is_executed():
    (tool,) = family(FamilyOptions()).tools
    assert tool.to_json()["function"]["parameters"] == {
        "type": "object",
        "properties": {"action": {"type": "string"}},
        "required": ["action"],
        "additionalProperties": False,
    }
    assert act(live_env(), "look").messages[0].content.startswith("You are in the middle of a room.")
