"""The sessions that engines race on: what they are asked, what their environments reply, and for how many ids.

Also read by peers in environments of their own: imports nothing of this package.
"""

import json
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """`sessions` at a time in groups that share their prompt; every turn samples `new_tokens`, stop ids or not, and
    gets `env_tokens` more from its environment, except the last."""

    sessions: int = 64
    group: int = 8
    turns: int = 4
    prompt_tokens: int
    new_tokens: int
    env_tokens: int

    @property
    def longest(self) -> int:
        """Ids of a session at its end."""
        return self.prompt_tokens + self.turns * self.new_tokens + (self.turns - 1) * self.env_tokens

    @property
    def sampled_tokens(self) -> int:
        return self.sessions * self.turns * self.new_tokens

    @property
    def asked_tokens(self) -> int:
        """Ids of all prompts, those included that an engine may have kept since the turn before."""
        first, grown = self.prompt_tokens, self.new_tokens + self.env_tokens
        return self.sessions * sum(first + turn * grown for turn in range(self.turns))

    def prompts(self, seed: int, vocab_size: int) -> Ids:
        """[groups, prompt_tokens]"""
        rows = self.sessions // self.group
        return np.random.default_rng([seed, 0]).integers(0, vocab_size, (rows, self.prompt_tokens))

    def replies(self, seed: int, vocab_size: int) -> Ids:
        """[sessions, turns, env_tokens]"""
        shape = (self.sessions, self.turns, self.env_tokens)
        return np.random.default_rng([seed, 1]).integers(0, vocab_size, shape)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Load":
        return cls(**json.loads(text))
