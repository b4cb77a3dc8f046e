"""The contract's checks can fail: each finds the fault that it is for, put into an environment that has none."""

import re
from pathlib import Path

import pytest

from agentrl_jax.env import FamilyOptions
from agentrl_jax.testing import env_contract
from agentrl_jax.testing.env_contract import CHECKS

DOC = Path(__file__).resolve().parents[2] / "docs" / "writing-an-env.md"
SOUND = re.findall(r"^```python\n(.*?)^```", DOC.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)[0]

FAULTS = [
    ("declarations", 'name, max_turns = "guess", 7', 'name, max_turns = "guess", 0'),
    ("declarations", 'return ("higher", "lower", "right")', 'return ("higher", "")'),
    ("declarations", '{"type": "object", "properties"', '{"properties"'),
    ("declarations", "48 if split", "-1 if split"),
    ("tasks", "if not 0 <= index < self.num_tasks(split):", "if index >= self.num_tasks(split):"),
    ("tasks", "if task.env != self.name:", "if False:"),
    ("tasks", "seed=secret)", "seed=secret + Random().randrange(1000))"),
    ("opening", '"Guess my number from 0 to 63."', 'f"Guess {Random().random()}"'),
    ("opening", 'role="user", content="Guess my', 'role="system", content="Guess my'),
    ("opening", 'content="Guess my number', r'content="\ud800'),
    ("splits", "secret = index + index // 3 + 1", "secret = index"),
    ("expert", "reward=0.0 if end is None else 1.0", "reward=0.0 if end is None else 0.9"),
    ("expert", "(low + high) // 2", "low"),
    ("expert", "return tuple(messages)", "return tuple(messages[:-1])"),
    ("noisy_expert", "rng.random() < noise", "False"),
    ("noisy_expert", "rng.randint(low, high)", "Random().randint(low, high)"),
    ("random_policy", "number != self._secret", "number < 0"),
    ("random_policy", "reward=0.0 if end is None else 1.0", "reward=-1.0 if end is None else 1.0"),
    ("order_of_calls", "if not self._is_live:\n            raise", "if self._is_new:\n            raise"),
    ("order_of_calls", "if not self._is_new:", "if False:"),
    ("order_of_calls", "self._is_new = self._is_live = False\n\n    def _answer", "pass\n\n    def _answer"),
    ("bad_calls", "call.arguments.get(", "call.arguments.__getitem__("),
    ("bad_calls", "messages = messages or (", "messages = messages and ("),
    ("bad_calls", "for call in action.calls]", "for call in action.calls[:1]]"),
    ("bad_calls", "(*texts, *action.errors)", "texts"),
    ("calls_are_answered_in_order", "(*texts, *action.errors)", "(*action.errors, *texts)"),
    ("calls_are_answered_in_order", "(*texts, *action.errors)", '(*texts, *("bad" for _ in action.errors))'),
    ("isolation", "self._secret, self._is_new", "GuessEnv._secret, self._is_new"),
]


def make_from(source):
    namespace = {}
    exec(compile(source, "guess", "exec"), namespace)  # noqa: S102
    return lambda: namespace["family"](FamilyOptions())


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_sound_family_passes(check):
    check(make_from(SOUND))


@pytest.mark.parametrize(("name", "old", "new"), FAULTS)
def test_a_fault_is_found(name, old, new):
    assert old in SOUND
    with pytest.raises((AssertionError, KeyError, UnicodeEncodeError)):
        getattr(env_contract, f"check_{name}")(make_from(SOUND.replace(old, new, 1)))


def test_every_check_is_among_the_checks():
    named = [value for name, value in vars(env_contract).items() if name.startswith("check_")]
    assert list(CHECKS) == named


def test_what_takes_too_long_is_found(monkeypatch):
    monkeypatch.setattr(env_contract, "DEADLINE_S", 0.01)
    slow = SOUND.replace("self._is_new, self._is_live = False, True", "sum(range(10**6)); self._is_live = True")
    with pytest.raises(AssertionError, match="reset took"):
        env_contract.check_opening(make_from(slow))
