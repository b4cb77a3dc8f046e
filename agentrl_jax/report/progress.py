"""What a run prints: plain lines that read well in a terminal and in a log file. Pure functions of records."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from math import nan
from typing import Any

from agentrl_jax.algo.metrics import TaskMetrics, macro_averages, merge, task_metrics
from agentrl_jax.algo.staleness import add_lags, max_cache_age, staleness_floats, token_lags
from agentrl_jax.controller.ports import StepRecord
from agentrl_jax.evaluation import Evaluation
from agentrl_jax.types import EpisodeEnd


def step_record(record: StepRecord) -> dict[str, Any]:
    """One learner step as JSON: everything the line says and more, per env with counts."""
    by_env = _metrics(record)
    lags = {env: token_lags([g for g in record.groups if g.task.env == env], record.version) for env in by_env}
    return {
        "step": record.step + 1,
        "version": record.version,
        "is_finite": record.is_finite,
        "is_applied": record.is_applied,
        "num_groups": len(record.groups),
        "num_dropped": len(record.dropped),
        "num_no_signal": record.num_no_signal,
        "num_cancelled": len(record.cancelled),
        "cancelled_envs": {env: m.as_floats() for env, m in task_metrics(record.cancelled).items()},
        "age_max": max(record.ages, default=0),
        "age_mean": sum(record.ages) / len(record.ages) if record.ages else 0.0,
        "cache_age_max": max_cache_age(record.groups),
        "collect_s": record.timings.collect_s,
        "learn_s": record.timings.learn_s,
        "publish_s": record.timings.publish_s,
        "straggler_wait_s": dict(record.timings.straggler_wait_s),
        "ends": {end.value: count for end, count in record.ends.items()},
        "metrics": dict(record.metrics),
        "envs": {env: metrics.as_floats() | staleness_floats(lags[env]) for env, metrics in by_env.items()},
        "micro": merge(by_env.values()).as_floats() | staleness_floats(add_lags(lags.values())),
        "macro": macro_averages(by_env),
        "tasks": {env: asdict(tasks) for env, tasks in record.tasks.items()},
        "ledger": asdict(record.ledger),
        "admission": asdict(record.admission),
    }


def throughput(record: StepRecord, step_s: float) -> dict[str, float]:
    """Per second of a step that took `step_s`: episodes that ended, their tokens, and those an engine sampled.

    Of the whole run, engines and learner together: never divided by the devices of either.
    """
    played = merge(task_metrics((*record.groups, *record.dropped, *record.cancelled)).values())
    counts = {
        "episodes_per_s": played.num_episodes,
        "tokens_per_s": played.num_tokens,
        "loss_tokens_per_s": played.num_loss_tokens,
    }
    return {name: count / step_s if step_s > 0 else nan for name, count in counts.items()}


def step_line(record: StepRecord, *, max_steps: int, step_s: float) -> str:
    """One learner step: what was learnt from, how old it was, and where the time went."""
    metrics = merge(_metrics(record).values())
    timings = record.timings
    parts = [
        f"step {record.step + 1:>{len(str(max_steps))}}/{max_steps}",
        f"v{record.version}→{record.version + record.is_applied}",
        f"success {_percent(metrics.success_rate)}",
        f"reward {metrics.reward_mean:+.3f}",
        f"{metrics.num_episodes} episodes",
        f"{metrics.num_tokens / 1000:.1f}k tokens",
        f"age ≤ {max(record.ages, default=0)}",
    ]
    if metrics.num_lagging_turns:
        share = metrics.num_lagging_turns / metrics.num_turns
        lag = record.metrics.get("token_staleness_max", float("nan"))
        parts.append(f"lagging {_percent(share)}, lag ≤ {lag:.0f}")
    if record.is_applied:
        clipped = [record.metrics[name] for name in ("clip_low_frac", "clip_high_frac") if name in record.metrics]
        if clipped:  # a loss without a clip has no share of clipped tokens
            parts.append(f"clip {_percent(sum(clipped))}")
        parts.append(f"kl {record.metrics.get('behavior_kl', float('nan')):.4f}")
    else:
        parts.append("not applied: " + ("no group has a signal" if record.is_finite else "loss or gradient not finite"))
    lost = len(record.dropped) - record.num_no_signal + len(record.cancelled)
    if record.num_no_signal:
        parts.append(f"{record.num_no_signal} groups without signal dropped")
    if lost:
        parts.append(f"{lost} groups lost")
    broken = {end.value: count for end, count in record.ends.items() if end.is_infrastructure}
    if broken:
        parts.append(" ".join(f"{name} {count}" for name, count in sorted(broken.items())))
    parts.append(
        f"{step_s:.1f} s (collect {timings.collect_s:.1f}, learn {timings.learn_s:.1f}, "
        f"publish {timings.publish_s:.2f})"
    )
    return "  ".join(parts)


def _metrics(record: StepRecord) -> dict[str, TaskMetrics]:
    """Of everything that was played, by env: the same for a terminal and for a log."""
    return task_metrics((*record.groups, *record.dropped))


def task_lines(record: StepRecord) -> list[str]:
    """One line per env; only worth printing if there are several."""
    by_env = _metrics(record)
    if len(by_env) < 2:
        return []
    return [
        f"    {env}: success {_percent(m.success_rate)}  reward {m.reward_mean:+.3f}  {m.num_groups} groups, "
        f"{_percent(m.zero_signal_frac)} without signal"
        for env, m in by_env.items()
    ]


def evaluation_lines(title: str, evaluations: Iterable[Evaluation]) -> list[str]:
    """One line per env and mode: success with its 95 % interval, and how the other episodes ended."""
    listed = list(evaluations)
    width = _width(e.env for e in listed)
    return [f"{title}  {e.env:<{width}} {e.mode:<8} success {success(e)}{_other_ends(e)}" for e in listed]


def success(evaluation: Evaluation) -> str:
    """`73.4 % [65.2, 80.3] (94/128)`: the rate, its 95 % interval, the counts behind it."""
    low, high = evaluation.interval
    m = evaluation.metrics
    if not m.num_valid:
        return f"unknown: none of {m.num_episodes} episodes is valid"
    broken = f", {m.num_episodes - m.num_valid} broken" if m.num_valid < m.num_episodes else ""
    return (
        f"{_percent(evaluation.success)} [{100 * low:.1f}, {100 * high:.1f}] ({m.num_successes}/{m.num_valid}{broken})"
    )


def gain_lines(before: Mapping[str, Evaluation], after: Mapping[str, Evaluation]) -> list[str]:
    """One line per env: the difference in points with its 95 % interval."""
    lines = []
    width = _width(before)
    for env in before:
        if env in after and before[env].metrics.num_valid and after[env].metrics.num_valid:
            gain, (low, high) = after[env].gain_over(before[env])
            bounds = f"[{100 * low:+.1f}, {100 * high:+.1f}]"
            lines.append(f"gain     {env:<{width}} {after[env].mode:<8} {100 * gain:+.1f} points {bounds}")
    return lines


def _width(envs: Iterable[str]) -> int:
    """Of the column of names. At least 12, so that lines of the usual names stand under each other in every block."""
    return max((12, *map(len, envs)))


def _other_ends(evaluation: Evaluation) -> str:
    counts = sorted(
        (end.value, count)
        for end, count in evaluation.metrics.ends.items()
        if end is not EpisodeEnd.COMPLETED and count
    )
    return "".join(f"  {name} {count}" for name, count in counts)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
