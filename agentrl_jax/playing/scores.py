"""What the episodes of an evaluation say about each mixture on each env. Pure functions of records."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, nan
from typing import Any

from agentrl_jax.algo.passk import clustered_interval, curve_ks, difference_of_means, mean_pass_at_k
from agentrl_jax.playing.records import EpisodeRecord
from agentrl_jax.types import EpisodeEnd, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One mixture on one env.

    num_tasks: with at least one valid episode; num_broken: episodes that infrastructure ended, which say nothing of the
    policies, and count nowhere else. avg_at_k: successes / valid episodes, and its 95 % interval, which knows that
    samples of a task resemble each other. pass_at_k: by k, unbiased, over the tasks that have k valid episodes.
    best_of_n: mean over tasks of the best reward (penalties included); any_solved: share of tasks with a success.
    reward_mean: of valid episodes. ends: of all episodes. policies: turns by policy. versions: lowest and highest.
    """

    mixture: str
    env: str
    num_tasks: int
    num_episodes: int
    num_valid: int
    num_successes: int
    num_broken: int
    avg_at_k: float
    interval: tuple[float, float]
    pass_at_k: Mapping[int, float]
    best_of_n: float
    any_solved: float
    reward_mean: float
    metrics: Mapping[str, float]
    turns_mean: float
    sampled_tokens_mean: float
    ends: Mapping[EpisodeEnd, int]
    policies: Mapping[str, int]
    versions: tuple[int, int]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; not-a-number stays what it is."""
        low, high = self.interval
        return {
            "mixture": self.mixture,
            "env": self.env,
            "num_tasks": self.num_tasks,
            "num_episodes": self.num_episodes,
            "num_valid": self.num_valid,
            "num_successes": self.num_successes,
            "num_broken": self.num_broken,
            "avg_at_k": self.avg_at_k,
            "avg_at_k_low": low,
            "avg_at_k_high": high,
            "pass_at_k": {str(k): value for k, value in self.pass_at_k.items()},
            "best_of_n": self.best_of_n,
            "any_solved": self.any_solved,
            "reward_mean": self.reward_mean,
            "metrics": dict(self.metrics),
            "turns_mean": self.turns_mean,
            "sampled_tokens_mean": self.sampled_tokens_mean,
            "ends": {end.value: count for end, count in sorted(self.ends.items(), key=lambda item: item[0].value)},
            "policy_turns": dict(self.policies),
            "versions": list(self.versions),
        }


def score(episodes: Sequence[EpisodeRecord]) -> list[Score]:
    """A score of each mixture on each env, in the order in which they first occur.

    Raises ValueError for two records of one key.
    """
    if len({episode.key for episode in episodes}) < len(episodes):
        raise ValueError("expected one record of each episode")
    parts: dict[tuple[str, str], list[EpisodeRecord]] = {}
    for episode in episodes:
        parts.setdefault((episode.mixture, episode.task.env), []).append(episode)
    return [_score(mixture, env, found) for (mixture, env), found in parts.items()]


def gains(episodes: Iterable[EpisodeRecord], base: str) -> list[dict[str, Any]]:
    """What every other mixture gains over mixture `base`, env by env, over the tasks that both have played.

    Differences of each task's mean success, and their 95 % interval (`algo.passk.difference_of_means`).
    """
    by_task: dict[tuple[str, str], dict[Task, list[bool]]] = defaultdict(dict)
    for episode in episodes:
        if episode.end.is_valid:
            solved = by_task[episode.mixture, episode.task.env].setdefault(episode.task, [])
            solved.append(episode.is_success)
    found = []
    for (mixture, env), tasks in by_task.items():
        if mixture == base or (base, env) not in by_task:
            continue
        others = by_task[base, env]
        shared = [task for task in tasks if task in others]
        mine, theirs = ([_mean(played[task]) for task in shared] for played in (tasks, others))
        gain, (low, high) = difference_of_means(mine, theirs)
        values = {"num_tasks": len(shared), "gain": gain, "gain_low": low, "gain_high": high}
        found.append({"mixture": mixture, "over": base, "env": env, **values})
    return found


def _score(mixture: str, env: str, episodes: Sequence[EpisodeRecord]) -> Score:
    valid: dict[Task, list[EpisodeRecord]] = {}
    for episode in episodes:
        if episode.end.is_valid:
            valid.setdefault(episode.task, []).append(episode)
    counts = [(len(played), sum(e.is_success for e in played)) for played in valid.values()]
    num_valid, num_successes = sum(n for n, _ in counts), sum(c for _, c in counts)
    rewards = [[e.reward for e in played if e.reward is not None] for played in valid.values()]
    turns = [turn for episode in episodes for turn in episode.turns]
    versions = [version for turn in turns for version in turn.versions]
    return Score(
        mixture=mixture,
        env=env,
        num_tasks=len(valid),
        num_episodes=len(episodes),
        num_valid=num_valid,
        num_successes=num_successes,
        num_broken=len(episodes) - num_valid,
        avg_at_k=num_successes / num_valid if num_valid else nan,
        interval=clustered_interval(counts),
        pass_at_k={k: mean_pass_at_k(counts, k) for k in curve_ks(max((n for n, _ in counts), default=0))},
        best_of_n=_mean([max(found) for found in rewards]),
        any_solved=_mean([successes > 0 for _, successes in counts]),
        reward_mean=_mean([reward for found in rewards for reward in found]),
        metrics=_metrics([e for played in valid.values() for e in played]),
        turns_mean=len(turns) / len(episodes),
        sampled_tokens_mean=sum(turn.num_sampled_tokens for turn in turns) / len(episodes),
        ends=Counter(episode.end for episode in episodes),
        policies=Counter(turn.policy for turn in turns),
        versions=(min(versions, default=-1), max(versions, default=-1)),
    )


def _metrics(episodes: Sequence[EpisodeRecord]) -> dict[str, float]:
    """The mean of each of the env's own metrics, over the episodes that have it."""
    names = dict.fromkeys(name for episode in episodes for name in episode.metrics)
    return {name: _mean([e.metrics[name] for e in episodes if name in e.metrics]) for name in names}


def _mean(values: Sequence[float]) -> float:
    return fsum(values) / len(values) if values else nan
