"""The published catalogue: every goal loads, and the scripted oracle buys what is asked for."""

import json
import lzma
import threading
from random import Random

import pytest

from agentrl_jax.env import Action, FamilyOptions
from agentrl_jax.errors import ConfigError
from envs.webshop import family
from envs.webshop.packs import load_pack, product_of

pytestmark = pytest.mark.data

ROW = {
    "asin": "B000000001",
    "name": "Oak Lamp",
    "query": "lamps",
    "product_category": "Home",
    "description": "",
    "bullet_points": ["LED"],
    "pricing": [19.99, 27.99],
    "price_tag": "$19.99 to $27.99",
    "options": {"size": ["s"]},
    "attributes": [],
    "name_nouns": ["lamp"],
    "instruction": "Find me lamps",
    "instruction_attributes": ["led"],
}


def write(folder, text):
    path = folder / "webshop" / "products_1000.jsonl.xz"
    path.parent.mkdir(parents=True)
    path.write_bytes(lzma.compress(text.encode()))
    return folder


@pytest.fixture(scope="module")
def shop(data_folder):
    return family(FamilyOptions(data=data_folder))


def test_every_goal_loads(data_folder):
    pack = load_pack(data_folder)
    assert len(pack.catalogue.products) == 1000
    assert len(pack.goals) == 6910
    assert pack is load_pack(data_folder)


def test_the_std_split_is_agentbenchs(shop):
    assert (shop.num_tasks("train"), shop.num_tasks("eval"), shop.max_turns) == (5910, 200, 20)


def test_unseen_holds_out_products(data_folder):
    unseen = family(FamilyOptions(data=data_folder, eval_set="unseen"))
    goals = {
        split: [unseen.shop(unseen.task(split, i))[1] for i in range(unseen.num_tasks(split))]
        for split in ("train", "eval")
    }
    assert len(goals["train"]) + len(goals["eval"]) == 6910
    assert not {g.product.asin for g in goals["train"]} & {g.product.asin for g in goals["eval"]}
    assert len(goals["eval"]) > 200


def rewards(shop, split, indices, noise=0.0):
    for index in indices:
        task = shop.task(split, index)
        env = shop.make(task)
        env.reset()
        for message in shop.demonstrate(task, Random(index), noise=noise):
            if message.role == "assistant":
                result = env.step(Action(calls=message.tool_calls))
        yield result.reward


def test_the_oracle_earns_nearly_everything_on_a_hundred_goals(shop):
    earned = list(rewards(shop, "eval", range(100)))
    assert sum(earned) / 100 >= 0.99


def test_prices_and_bounds_are_the_same_in_every_process(shop):
    first, second = product_of(ROW), product_of(ROW)
    assert first.price == second.price
    assert 19.99 <= first.price <= 27.99
    assert first.price != product_of({**ROW, "asin": "B000000002"}).price


def test_threads_that_share_the_catalogue_play_as_one_alone(shop):
    alone = list(rewards(shop, "train", range(40), noise=0.4))
    found = {}

    def run(name):
        found[name] = list(rewards(shop, "train", range(40), noise=0.4))

    threads = [threading.Thread(target=run, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(earned == alone for earned in found.values())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not JSON", "expected a product in every line"),
        (json.dumps({**ROW, "pricing": None}), "expected a product in every line"),
        (json.dumps({**ROW, "pricing": []}), "expected a product in every line"),
        (json.dumps({**ROW, "options": ["size"]}), "expected a product in every line"),
        (json.dumps({**ROW, "name": None}), "expected a product in every line"),
        (
            json.dumps({key: value for key, value in ROW.items() if key != "options"}),
            "expected a product in every line",
        ),
    ],
)
def test_broken_data_is_refused_by_name(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        family(FamilyOptions(data=write(tmp_path, text)))


def test_a_small_pack_of_ones_own_is_played(tmp_path):
    rows = [{**ROW, "asin": f"B{i:09d}", "options": {"size": [str(n) for n in range(40)]}} for i in range(30)]
    shop = family(FamilyOptions(data=write(tmp_path, "\n".join(map(json.dumps, rows)))))
    assert (shop.num_tasks("train"), shop.num_tasks("eval")) == (200, 200)


def test_missing_data_and_levels_are_refused(tmp_path, data_folder):
    with pytest.raises(ConfigError, match="which is missing"):
        family(FamilyOptions(data=tmp_path))
    with pytest.raises(ConfigError, match="no levels of published goals, got level 2"):
        family(FamilyOptions(data=data_folder, level=2))
    path = tmp_path / "webshop" / "products_1000.jsonl.xz"
    path.parent.mkdir()
    path.write_bytes(b"plain")
    with pytest.raises(ConfigError, match="compressed with xz"):
        family(FamilyOptions(data=tmp_path))
