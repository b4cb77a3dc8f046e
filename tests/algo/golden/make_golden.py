"""Small batches and what the published formulas make of them.

`python -m tests.algo.golden.make_golden` writes batch.json.

The formulas are transcribed here token by token in Python's own floats, and share no code with what they are to check:

  A = (R − mean of the group) / (its unbiased deviation + 1e-6), the same for every sampled token of a trajectory
  A ← (A − mean) / (unbiased deviation + 1e-6), both over all sampled tokens of the task
  cost = max(−A ρ, −A clip(ρ, 0.8, 1.2)), and min(that, −3 A) where A < 0, with ρ = exp(log π − log π_behavior)
  loss = mean cost + 1e-4 · mean (exp(r) − r − 1), with r = log π_reference − log π within ±10
"""

import json
import math
import statistics
from pathlib import Path
from random import Random
from typing import Any

FILE = Path(__file__).with_name("batch.json")
EPS, LOW, HIGH, DUAL, KL = 1e-6, 0.2, 0.2, 3.0, 1e-4

Member = dict[str, Any]


def member(rng: Random, reward: float | None, end: str, turns: list[tuple[int, int]]) -> Member:
    """turns: (context ids, sampled ids) each. Log-probabilities are of the sampled ids, turn after turn."""
    num = sum(sampled for _, sampled in turns)
    behavior = [-rng.uniform(0.05, 3.0) for _ in range(num)]
    return {
        "reward": reward,
        "end": end,
        "turns": turns,
        "behavior_logprobs": [float32(value) for value in behavior],
        "logprobs": [min(-1e-3, value + rng.gauss(0.0, 0.35)) for value in behavior],
        "reference_logprobs": [float32(min(-1e-3, value + rng.gauss(0.0, 0.2))) for value in behavior],
    }


def float32(value: float) -> float:
    """A value that float32 holds exactly: the records carry no more."""
    return math.ldexp(round(math.ldexp(value, 20)), -20)


def random_batch() -> list[dict[str, Any]]:
    """Two tasks; in each a group with different rewards, one with a limit that was broken, one that all solved."""
    rng = Random(20)
    groups = []
    for env in ("search", "shop"):
        for rewards in ([1.0, 0.0, 0.0, 0.25], [1.0, -0.2, 1.0, 0.5], [1.0, 1.0, 1.0, 1.0]):
            members = []
            for reward in rewards:
                end = "max_turns" if reward < 0 else "completed"
                turns = [(rng.randint(1, 4), rng.randint(1, 9)) for _ in range(rng.randint(1, 3))]
                members.append(member(rng, reward, end, turns))
            groups.append({"env": env, "members": members})
    return groups


def zero_variance_beside_signal() -> list[dict[str, Any]]:
    """A lone success in 10 tokens, a failure in 90; beside them a group without a signal, of 50 tokens in all."""
    rng = Random(21)
    signal = [member(rng, 1.0, "completed", [(2, 10)]), member(rng, -1.0, "completed", [(2, 90)])]
    constant = [member(rng, 0.5, "completed", [(1, 20)]), member(rng, 0.5, "completed", [(1, 30)])]
    return [{"env": "search", "members": signal}, {"env": "search", "members": constant}]


def infrastructure_beside_policy() -> list[dict[str, Any]]:
    """An environment that failed is left out; a limit that was broken costs 0.2."""
    rng = Random(22)
    ends = [(1.0, "completed"), (None, "env_error"), (0.0, "completed"), (-0.2, "max_turns")]
    return [{"env": "search", "members": [member(rng, reward, end, [(2, 5)]) for reward, end in ends]}]


def published(groups: list[dict[str, Any]]) -> dict[str, Any]:
    """Advantages by trajectory (None if it is left out), the loss, and its gradient by sampled token."""
    advantages: list[list[float | None]] = []
    by_task: dict[str, list[float]] = {}
    for group in groups:
        voting = [m["reward"] for m in group["members"] if m["reward"] is not None]
        mean, deviation = statistics.fmean(voting), statistics.stdev(voting)
        own = [None if m["reward"] is None else (m["reward"] - mean) / (deviation + EPS) for m in group["members"]]
        advantages.append(own)
        for m, advantage in zip(group["members"], own, strict=True):
            if advantage is not None:
                by_task.setdefault(group["env"], []).extend([advantage] * len(m["logprobs"]))
    scale = {task: (math.fsum(a) / len(a), statistics.stdev(a) + EPS) for task, a in by_task.items()}
    normalised = [
        [None if a is None else (a - scale[group["env"]][0]) / scale[group["env"]][1] for a in own]
        for group, own in zip(groups, advantages, strict=True)
    ]
    num_tokens = sum(map(len, by_task.values()))
    costs, gradient = [], []
    for group, own in zip(groups, normalised, strict=True):
        for m, advantage in zip(group["members"], own, strict=True):
            if advantage is not None:
                terms = zip(m["logprobs"], m["behavior_logprobs"], m["reference_logprobs"], strict=True)
                pairs = [token_cost(*token, advantage) for token in terms]
                costs += [cost for cost, _ in pairs]
                gradient.append([slope / num_tokens for _, slope in pairs])
            else:
                gradient.append([0.0] * len(m["logprobs"]))
    return {
        "in_group": advantages,
        "advantages": normalised,
        "loss": math.fsum(costs) / num_tokens,
        "gradient": gradient,
    }


def token_cost(logprob: float, behavior: float, reference: float, advantage: float) -> tuple[float, float]:
    """(cost, its derivative by `logprob`)."""
    ratio = math.exp(logprob - behavior)
    clipped = min(max(ratio, 1 - LOW), 1 + HIGH)
    cost, slope = -advantage * ratio, -advantage * ratio
    if -advantage * clipped > cost:
        cost, slope = -advantage * clipped, 0.0
    if advantage < 0 and -DUAL * advantage < cost:
        cost, slope = -DUAL * advantage, 0.0
    r = min(max(reference - logprob, -10.0), 10.0)
    return cost + KL * (math.exp(r) - r - 1), slope + KL * (1 - math.exp(r))


def golden() -> dict[str, Any]:
    """Every case by name: its groups, and what the published formulas make of them."""
    cases = {
        "random": random_batch(),
        "zero-variance": zero_variance_beside_signal(),
        "infrastructure": infrastructure_beside_policy(),
    }
    return {name: {"groups": groups, "published": published(groups)} for name, groups in cases.items()}


if __name__ == "__main__":
    lines = [f"{json.dumps(name)}: {json.dumps(case)}" for name, case in golden().items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
