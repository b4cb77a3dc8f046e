"""What the shop shows, what can be clicked, and what an episode answers to every kind of turn."""

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_jax.env import Action, EnvRegistry, FamilyOptions, ToolCall
from agentrl_jax.errors import ConfigError, EnvError
from agentrl_jax.types import EpisodeEnd
from envs import register_all, webshop
from envs.webshop.calls import TOOLS, click_call, search_call
from envs.webshop.catalogue import Catalogue, Product
from envs.webshop.env import WebShopEnv
from envs.webshop.goals import Goal


def product(number, **changes):
    fields = {
        "asin": f"B0{number}",
        "title": f"Oak Lamp {number} ",
        "query": "lamp",
        "description": "",
        "bullets": (" ", "\n", "LED"),
        "price": 10.0 + number,
        "price_tag": f"${10.0 + number}",
        "options": {},
        "attributes": ("oak",),
        "nouns": ("lamp",),
    }
    return Product(**{**fields, **changes})


PRODUCTS = [product(number) for number in range(12)]
PRODUCTS[3] = product(
    3, options={"Size": ("s", "m"), "fit": ("m", "reviews")}, description="Bright\nand tall", title="Pine Lamp"
)
GOAL = Goal(
    instruction="Find me oak lamps, and price lower than 20.00 dollars",
    product=PRODUCTS[3],
    attributes=("oak",),
    options={"Size": "s"},
    max_price=20.0,
)
HEAD = "Instruction: [SEP] Find me oak lamps, and price lower than 20.00 dollars [SEP] Back to Search"


def live_env(**options):
    env = WebShopEnv(Catalogue(PRODUCTS), GOAL, **options)
    env.reset()
    return env


def play(env, *calls):
    for call in calls:
        result = env.step(Action(calls=(call,)))
    return result


def told(result):
    """The parts of the one answer: action, observation, actions."""
    (message,) = result.messages
    assert message.role == "tool"
    action, observation, actions = message.content.split("\n\n")
    return (
        action.removeprefix("Action: "),
        observation.removeprefix("Observation:\n"),
        actions.removeprefix("Available Actions:\n"),
    )


def test_an_episode_begins_with_the_home_page():
    system, user = WebShopEnv(Catalogue(PRODUCTS), GOAL).reset()
    assert system.role == "system"
    assert (user.role, user.content) == (
        "user",
        "The initial observation:\n"
        "WebShop [SEP] Instruction: [SEP] Find me oak lamps, and price lower than 20.00 dollars [SEP] Search\n\n"
        "Available Actions:\n{'has_search_bar': True, 'clickables': ['search']}",
    )


def test_results_come_ten_a_page_and_there_is_always_a_next_one():
    env = live_env()
    action, observation, actions = told(play(env, search_call("Lamp")))
    # Equal scores keep the catalogue's order; Pine Lamp's text is longer, for its options.
    rows = [f" [SEP] {p.asin} [SEP] {p.title.strip()} [SEP] {p.price_tag}" for p in PRODUCTS]
    assert action == "search[Lamp]"
    assert observation == f"{HEAD} [SEP] Page 1 (Total results: 12) [SEP] Next >" + "".join(
        rows[i] for i in (0, 1, 2, 4, 5, 6, 7, 8, 9, 10)
    )
    assert actions.startswith("{'has_search_bar': False, 'clickables': ['back to search', 'next >', 'b0")
    _, second, actions = told(play(env, click_call("Next >")))
    assert second.startswith(f"{HEAD} [SEP] Page 2 (Total results: 12) [SEP] < Prev [SEP] Next > [SEP] B0")
    assert second.count("Lamp") == 2
    assert actions.startswith("{'has_search_bar': False, 'clickables': ['back to search', '< prev', 'next >', 'b0")
    _, third, actions = told(play(env, click_call("next >")))
    assert third == f"{HEAD} [SEP] Page 3 (Total results: 12) [SEP] < Prev [SEP] Next >"
    assert actions == "{'has_search_bar': False, 'clickables': ['back to search', '< prev', 'next >']}"
    assert told(play(env, click_call("< prev")))[1] == second


def test_a_search_that_finds_nothing_still_has_a_page():
    _, observation, _ = told(play(live_env(), search_call("zebra")))
    assert observation == f"{HEAD} [SEP] Page 1 (Total results: 0) [SEP] Next >"


def test_an_item_page_lists_options_before_title_and_price():
    env = live_env()
    play(env, search_call("pine"))
    action, observation, actions = told(play(env, click_call("b03")))
    assert action == "click[b03]"
    assert observation == (
        f"{HEAD} [SEP] < Prev [SEP] Size [SEP] s [SEP] m [SEP] fit [SEP] m [SEP] reviews [SEP] Pine Lamp [SEP] "
        "Price: $13.0 [SEP] Rating: N.A. [SEP] Description [SEP] Features [SEP] Reviews [SEP] Buy Now"
    )
    assert actions == (
        "{'has_search_bar': False, 'clickables': ['back to search', '< prev', 'description', 'features', 'reviews', "
        "'buy now', 's', 'm']}"
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Description", " [SEP] Bright\nand tall"),
        # Blank pieces are empty, unless they break the line.
        ("Features", " [SEP]  [SEP] LED"),
        ("Reviews", " [SEP] No reviews found"),
    ],
)
def test_sub_pages_lead_back_to_the_item_and_keep_its_options(name, text):
    env = live_env()
    item = told(play(env, search_call("pine"), click_call("b03"), click_call("s")))[1]
    _, observation, actions = told(play(env, click_call(name)))
    assert observation == f"{HEAD} [SEP] < Prev{text}"
    assert actions == "{'has_search_bar': False, 'clickables': ['back to search', '< prev']}"
    assert told(play(env, click_call("< prev")))[1] == item
    assert play(env, click_call("buy now")).reward == 1.0


def test_a_product_without_a_description_has_an_empty_page():
    env = live_env()
    assert (
        told(play(env, search_call("lamp"), click_call("b01"), click_call("description")))[1] == f"{HEAD} [SEP] < Prev"
    )


def test_leaving_an_item_forgets_its_options():
    env = live_env()
    play(env, search_call("pine"), click_call("b03"), click_call("s"), click_call("< prev"), click_call("b03"))
    assert play(env, click_call("Buy Now")).reward == pytest.approx(2 / 3)


def test_of_options_that_share_a_value_the_last_one_takes_it():
    env = live_env()
    play(env, search_call("pine"), click_call("b03"), click_call("s"), click_call("m"))
    assert play(env, click_call("Buy Now")).reward == 1.0  # "m" went to fit, and left Size as it was


def test_back_to_search_leads_home_from_anywhere():
    for way in ([], ["b03"], ["b03", "reviews"]):
        env = live_env()
        play(env, search_call("pine"), *map(click_call, way))
        _, observation, _ = told(play(env, click_call("Back to Search")))
        assert observation.startswith("WebShop [SEP] Instruction:")


def test_search_works_on_every_page():
    env = live_env()
    first = told(play(env, search_call("pine")))[1]
    assert told(play(env, click_call("b03"), search_call("pine")))[1] == first


@pytest.mark.parametrize("call", [click_call("b99"), click_call("search"), click_call(""), search_call("")])
def test_what_cannot_be_done_changes_nothing(call):
    env = live_env()
    result = play(env, call)
    assert told(result)[1].startswith("WebShop [SEP]")
    assert (result.reward, result.end) == (0.0, None)


def test_buying_ends_the_episode():
    env = live_env()
    result = play(env, search_call("pine"), click_call("b03"), click_call("s"), click_call("buy now"))
    assert ([m.content for m in result.messages], result.reward, result.end) == (["done"], 1.0, EpisodeEnd.COMPLETED)
    with pytest.raises(EnvError, match="is over"):
        env.step(Action())


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (ToolCall(name="buy", arguments={}), "error: unknown tool, use search_action or click_action"),
        (ToolCall(name="search_action", arguments={}), "error: search_action needs the string keywords"),
        (ToolCall(name="click_action", arguments={"value": 3}), "error: click_action needs the string value"),
        (ToolCall(name="click_action", arguments={"x": None}), "error: click_action needs the string value"),
    ],
)
def test_a_bad_call_is_answered_and_costs_the_turn(call, text):
    result = live_env().step(Action(calls=(call,)))
    assert [(message.role, message.content) for message in result.messages] == [("tool", text)]
    assert (result.reward, result.end) == (0.0, None)


def test_an_argument_of_another_name_is_taken():
    assert told(play(live_env(), ToolCall(name="search_action", arguments={"q": "pine"})))[0] == "search[pine]"


def test_one_action_a_turn_and_every_call_is_answered():
    result = live_env().step(Action(calls=(search_call("pine"), click_call("b03")), errors=("not JSON",)))
    assert [message.content for message in result.messages][1:] == ["not executed: one action a turn", "not JSON"]
    assert "Pine Lamp" in result.messages[0].content


def test_a_turn_without_a_call_is_answered_by_the_user():
    env = live_env()
    (message,) = env.step(Action(content="hm")).messages
    assert (message.role, message.content) == (
        "user",
        "Observation:\nCall search_action or click_action.\n\n"
        "Available Actions:\n{'has_search_bar': True, 'clickables': ['search']}",
    )
    assert [m.role for m in env.step(Action(errors=("not JSON",))).messages] == ["tool"]


def test_as_published_only_the_first_call_is_answered_and_the_purchase_not_at_all():
    env = live_env(upstream_compat=True)
    result = env.step(Action(calls=(search_call("pine"), click_call("b03"))))
    assert len(result.messages) == 1
    play(env, click_call("b03"))
    result = env.step(Action(calls=(click_call("buy now"), click_call("s"))))
    assert (result.messages, result.end) == ((), EpisodeEnd.COMPLETED)
    assert result.reward == pytest.approx(2 / 3)


def test_every_parameter_of_a_tool_is_required_and_no_other_allowed():
    for tool in TOOLS:
        assert list(tool.parameters["properties"]) == tool.parameters["required"]
        assert tool.parameters["additionalProperties"] is False


def test_the_family_names_what_is_not_installed(monkeypatch):
    monkeypatch.delitem(sys.modules, "envs.webshop.tasks", raising=False)
    monkeypatch.setitem(sys.modules, "envs.webshop.packs", None)
    with pytest.raises(ConfigError, match=r"needs envs.webshop.packs: pip install 'agentrl_jax\[envs\]'"):
        webshop.family(FamilyOptions())


@pytest.mark.data
def test_the_registry_knows_the_family_and_its_data_sets(data_folder):
    registry = EnvRegistry()
    register_all(registry)
    assert registry.make("webshop", FamilyOptions()).name == "webshop"
    with pytest.raises(ConfigError, match="no data set 'std' with these options"):
        registry.make("webshop", FamilyOptions(eval_set="std"))
    with pytest.raises(ConfigError, match="known ones are std, unseen"):
        registry.make("webshop", FamilyOptions(eval_set="dev", data=data_folder))


ANY_CALL = st.builds(
    ToolCall,
    name=st.sampled_from(["search_action", "click_action", "close"]),
    arguments=st.dictionaries(
        st.sampled_from(["keywords", "value"]),
        st.one_of(
            st.sampled_from(["lamp", "b03", "b01", "next >", "< prev", "buy now", "reviews", "m", "back to search"]),
            st.text(max_size=4),
            st.none(),
        ),
        max_size=2,
    ),
)


@settings(max_examples=60, deadline=None)
@given(turns=st.lists(st.lists(ANY_CALL, max_size=3), min_size=1, max_size=12))
def test_any_turn_is_answered_call_by_call_until_the_end(turns):
    env = live_env()
    for calls in turns:
        result = env.step(Action(calls=tuple(calls)))
        roles = [message.role for message in result.messages]
        assert roles == (["tool"] * len(calls) if calls else ["user"])
        assert 0.0 <= result.reward <= 1.0
        if result.end is not None:
            break
