"""Which policy plays a turn: one alone, or several by turns or by episodes (AgentRL, arXiv 2510.04206, §4.4, Fig. 8).

Invariants:
- The choice depends on (seed, task, sample, turn), never on when it is made, or on what else is being evaluated.
- A mixture in which one policy has all the weight plays exactly what that policy plays alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from agentrl_jax.errors import ConfigError
from agentrl_jax.seeding import derive_seed
from agentrl_jax.types import Task

Granularity = Literal["single", "turn", "episode"]
"""single: each policy alone; turn: one is drawn for every turn; episode: for every episode."""

_SEEDS = 2**63  # derive_seed gives numbers below this


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """Policies by name, each with its share of the draws; the shares sum to 1."""

    name: str
    granularity: Granularity
    policies: tuple[str, ...]
    shares: tuple[float, ...]

    def choose(self, seed: int, task: Task, sample: int, turn: int) -> str:
        """The policy of this turn."""
        if len(self.policies) == 1:
            return self.policies[0]
        when = [turn] if self.granularity == "turn" else []
        draw = derive_seed(seed, "mixture", task.key, sample, *when) / _SEEDS
        bounds = accumulate(self.shares)
        chosen = [policy for policy, bound in zip(self.policies, bounds, strict=True) if draw < bound]
        # Rounding may leave the last bound below 1.
        return (
            chosen[0] if chosen else next(p for p, s in zip(self.policies[::-1], self.shares[::-1], strict=True) if s)
        )


def make_mixtures(
    policies: Sequence[str], granularities: Sequence[Granularity], weights: Sequence[float] = ()
) -> tuple[Mixture, ...]:
    """What is to be evaluated: every policy alone where "single" is asked for, and a mixture of all for each other.

    weights: of the policies in mixtures, in any scale (default: all the same). Raises ConfigError.
    """
    if not policies:
        raise ConfigError("name at least one policy to evaluate: --model, --engine or --expert")
    if len(set(policies)) < len(policies):
        raise ConfigError(f"policies need different names, got {', '.join(policies)}")
    is_mixed = any(granularity != "single" for granularity in granularities)
    if not granularities or len(set(granularities)) < len(granularities):
        raise ConfigError(f"--mix names each of single, turn and episode once at most, got {' '.join(granularities)}")
    if is_mixed and len(policies) < 2:
        raise ConfigError(f"--mix {' '.join(granularities)} needs at least two policies, got {policies[0]} alone")
    if weights and not is_mixed:
        raise ConfigError("--weights has no effect without --mix turn or --mix episode: leave it out")
    shares = _shares(policies, weights)
    mixtures: list[Mixture] = []
    for granularity in granularities:
        if granularity == "single":
            mixtures += [Mixture(name=p, granularity="single", policies=(p,), shares=(1.0,)) for p in policies]
            continue
        parts = (
            "+".join(policies)
            if not weights
            else "+".join(f"{policy}*{weight:g}" for policy, weight in zip(policies, weights, strict=True))
        )
        mixture = Mixture(
            name=f"{granularity}:{parts}", granularity=granularity, policies=tuple(policies), shares=shares
        )
        mixtures.append(mixture)
    return tuple(mixtures)


def _shares(policies: Sequence[str], weights: Sequence[float]) -> tuple[float, ...]:
    if not weights:
        return (1 / len(policies),) * len(policies)
    if len(weights) != len(policies):
        raise ConfigError(f"--weights needs a weight for each of {', '.join(policies)}, got {len(weights)}")
    total = sum(weights)
    if not all(0 <= weight < float("inf") for weight in weights) or not total > 0:
        raise ConfigError(f"--weights must be >= 0, finite, and not all 0, got {' '.join(map(str, weights))}")
    return tuple(weight / total for weight in weights)
