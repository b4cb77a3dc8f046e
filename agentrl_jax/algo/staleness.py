"""How old the tokens of a batch are: by how many versions the policy that sampled them lags behind the learner.

Lagging engines serve an older policy by design, so a histogram over both pools would show two things at once.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from math import nan
from typing import get_args

from agentrl_jax.types import Group, Pool

_BUCKETS = ((0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (5, 8), (9, 16), (17, 32), (33, None))
"""First and last lag of each bar of the histogram."""

Lags = Mapping[Pool, Counter[int]]


def token_lags(groups: Iterable[Group], learner_version: int) -> Lags:
    """By engine pool: how many loss tokens of trainable episodes lag by so many versions; lag = learner − token.

    From the version spans, so that it costs as much as there are turns, not tokens.

    >>> import numpy as np
    >>> from agentrl_jax.types import (Completion, EpisodeEnd, Segment, Task, Trajectory, Turn, VersionSpan, as_ids)
    >>> task = Task(env="kg", split="train", index=0, seed=0)
    >>> spans = (VersionSpan(version=4, start=0, end=2), VersionSpan(version=5, start=2, end=3))
    >>> sampled = Completion(ids=as_ids([7, 8, 9]), logprobs=np.full(3, -0.5, np.float32), version_spans=spans,
    ...     finish_reason="stop", engine="lagging-0", pool="lagging")
    >>> played = Segment(turns=(Turn(context_ids=as_ids([1]), completion=sampled),))
    >>> member = Trajectory(task=task, group_id=0, member=0, end=EpisodeEnd.COMPLETED, reward=1.0, env_reward=1.0,
    ...     segments=(played,))
    >>> lags = token_lags([Group(group_id=0, task=task, start_version=5, trajectories=(member,))], 6)
    >>> dict(lags["lagging"]), dict(lags["current"])
    ({2: 2, 1: 1}, {})
    """
    lags: Lags = {pool: Counter() for pool in get_args(Pool)}
    for group in groups:
        for trajectory in group.trajectories:
            for turn in trajectory.turns if trajectory.is_valid else ():
                completion = turn.completion
                for span in completion.version_spans:
                    num_tokens = int(completion.loss_mask[span.start : span.end].sum())
                    lags[completion.pool][learner_version - span.version] += num_tokens
    return lags


def max_cache_age(groups: Iterable[Group]) -> int:
    """How many versions the keys and values behind a token can be older than the token, at most.

    An engine that goes on with its cache across a publish (`in_place`) samples later tokens of the turn on keys that
    the weights of its first token computed; no other turn is served from those. So it is the versions that passed
    within one turn. Engines that compute the cache anew are below this bound, at 0.

    >>> import numpy as np
    >>> from agentrl_jax.types import (Completion, EpisodeEnd, Segment, Task, Trajectory, Turn, VersionSpan, as_ids)
    >>> task = Task(env="kg", split="train", index=0, seed=0)
    >>> spans = (VersionSpan(version=4, start=0, end=2), VersionSpan(version=6, start=2, end=3))
    >>> sampled = Completion(ids=as_ids([7, 8, 9]), logprobs=np.full(3, -0.5, np.float32), version_spans=spans,
    ...     finish_reason="stop", engine="local-0", pool="current")
    >>> played = Segment(turns=(Turn(context_ids=as_ids([1]), completion=sampled),))
    >>> member = Trajectory(task=task, group_id=0, member=0, end=EpisodeEnd.COMPLETED, reward=1.0, env_reward=1.0,
    ...     segments=(played,))
    >>> max_cache_age([Group(group_id=0, task=task, start_version=4, trajectories=(member,))])
    2
    """
    return max(
        (
            turn.completion.version_spans[-1].version - turn.completion.version_spans[0].version
            for group in groups
            for trajectory in group.trajectories
            for turn in trajectory.turns
        ),
        default=0,
    )


def add_lags(parts: Iterable[Lags]) -> Lags:
    """All of them together.

    >>> add_lags([{"current": Counter({0: 1})}, {"current": Counter({0: 2, 1: 3})}])["current"]
    Counter({0: 3, 1: 3})
    """
    added: Lags = {pool: Counter() for pool in get_args(Pool)}
    for part in parts:
        for pool, counts in part.items():
            added[pool].update(counts)
    return added


def staleness_floats(lags: Lags) -> dict[str, float]:
    """Flat names for the log. By pool: `…_tokens`, `…_mean`, `…_max`, and the histogram, `…_lag_5_8_tokens`.

    mean and max are NaN where the pool sampled nothing.

    >>> found = staleness_floats({"current": Counter({0: 30, 2: 10}), "lagging": Counter({7: 5})})
    >>> found["staleness_current_mean"], found["staleness_lagging_lag_5_8_tokens"]
    (0.5, 5.0)
    """
    found: dict[str, float] = {}
    for pool, counts in lags.items():
        num_tokens = counts.total()
        total = sum(lag * count for lag, count in counts.items())
        prefix = f"staleness_{pool}"
        found[f"{prefix}_tokens"] = float(num_tokens)
        found[f"{prefix}_mean"] = total / num_tokens if num_tokens else nan
        found[f"{prefix}_max"] = float(max((lag for lag, count in counts.items() if count), default=nan))
        for first, last in _BUCKETS:
            inside = sum(count for lag, count in counts.items() if first <= lag and (last is None or lag <= last))
            found[f"{prefix}_lag_{_label(first, last)}_tokens"] = float(inside)
    return found


def _label(first: int, last: int | None) -> str:
    if last is None:
        return f"{first}_up"
    return str(first) if first == last else f"{first}_{last}"
