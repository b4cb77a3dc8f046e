"""The quickstart's recipe: its tasks, and what takes the place of one that a machine cannot play."""

from dataclasses import replace

import pytest

from agentrl_jax.config import TrainConfig
from agentrl_jax.errors import ConfigError
from agentrl_jax.policy import create_policy
from agentrl_jax.preparation import play_demonstrations
from agentrl_jax.rendering.transcript import TemplateRenderer
from launch.available import settle_tasks
from launch.config import make_families
from launch.recipes import QUICKSTART


@pytest.fixture
def no_sandboxes(monkeypatch):
    """A machine on which no program can be shut in."""

    def refuse(wanted):
        raise ConfigError("sandboxes need bubblewrap")

    monkeypatch.setattr("envs.os_interaction.tasks.shared_driver", refuse)


def settled(tasks):
    lines = []
    config = settle_tasks(TrainConfig(tasks=tasks), lines.append)
    return config.tasks, lines


def test_the_quickstart_trains_on_the_five_families_of_agentbench():
    assert QUICKSTART.env_names == ("alfworld", "dbbench", "knowledgegraph", "os_interaction", "webshop")


def test_the_quickstart_goes_on_without_sandboxes_and_says_so(no_sandboxes):
    lines = []
    config = settle_tasks(QUICKSTART, lines.append)
    assert config == replace(QUICKSTART, tasks="alfworld,dbbench,knowledgegraph,kg,webshop")
    assert lines == ["kg takes the place of os_interaction, which cannot be played here: sandboxes need bubblewrap"]
    assert settle_tasks(config, lines.append) is config


def test_the_first_choice_that_can_be_played_is_taken(no_sandboxes):
    assert settled("alfworld|kg, webshop") == ("alfworld,webshop", [])
    assert settled("kg,webshop") == ("kg,webshop", [])
    tasks, lines = settled("os_interaction|alfworld|kg")
    assert (tasks, len(lines)) == ("alfworld", 1)


def test_the_last_choice_is_left_to_be_refused_for_what_it_is(no_sandboxes):
    assert settled("kg,os_interaction")[0] == "kg,os_interaction"


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ("alfword|kg", "unknown environment 'alfword'.*known ones are alfworld"),
        ("alfworld|kq", "unknown environment 'kq'"),
        ("kg|", "on both sides of |"),
        ("|kg", "on both sides of |"),
        ("kg,alfworld|kg", "names an environment twice"),
    ],
)
def test_wrong_choices_are_refused(tasks, message):
    with pytest.raises(ConfigError, match=message.replace("|", r"\|")):
        settled(tasks)


def test_episodes_are_short_for_the_tokenizer_that_is_trained_on_them(tmp_path):
    config = settle_tasks(QUICKSTART, print)
    families = make_families(config)
    shown = play_demonstrations(families, 300, noise=config.warm_up.noise, seed=0)
    words = sorted({word for family in families for word in family.vocabulary()})
    policy = create_policy(shown, tmp_path, network=config.network, keep_whole=words, seed=0)
    renderer = TemplateRenderer(policy.tokenizer)
    lengths, calls = [], []
    for messages, tools in shown:
        for ids, mask in renderer.demonstration_segments(messages, tools):
            lengths.append(len(ids))
            calls.append(mask.sum() / sum(message.role == "assistant" for message in messages))
    # Measured: 117, 280 and 5.
    assert sum(lengths) / len(lengths) < 150
    assert max(lengths) < 400
    assert sum(calls) / len(calls) < 8
