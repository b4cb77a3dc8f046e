"""What the controller of remote workers has done: counts by task, for people and for Prometheus."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

BUCKETS_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Upper bounds of the histogram of a worker's answering times, in seconds."""


@dataclass(eq=False)
class TaskCounts:
    """Since the start.

    num_started: sessions, those taken over from an earlier controller too. num_turns: answered. ends: of sessions, by
    status or reason. failures: of calls, by reason. turn_s: sum of the times of turns. turn_buckets: how many of them
    took at most BUCKETS_S each, the last one longer.
    """

    num_started: int = 0
    num_turns: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    turn_s: float = 0.0
    turn_buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))

    def count_turn(self, seconds: float) -> None:
        """A turn was answered."""
        self.num_turns += 1
        self.turn_s += seconds
        self.turn_buckets[sum(seconds > bound for bound in BUCKETS_S)] += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatistics:
    """A snapshot of one task. workers: by status; num_draining of them get no new sessions. capacity, num_taken: places
    of its workers. num_waiting: starts in line."""

    workers: Mapping[str, int]
    num_draining: int
    capacity: int
    num_taken: int
    num_sessions: int
    num_waiting: int
    num_indices: int
    counts: TaskCounts


Label = tuple[str, str]


def _line(name: str, value: float, *labels: Label) -> str:
    quoted = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
    return f"agentrl_controller_{name}{{{quoted}}} {value:.12g}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


_GAUGES = {
    "places": "Sessions that the task's workers run at a time",
    "places_taken": "Places that are taken",
    "sessions": "Sessions that are not over",
    "waiting": "Starts that wait for a place",
    "workers": "Workers by status",
}
_COUNTERS = {
    "sessions_started_total": "Sessions started",
    "turns_total": "Turns answered",
    "sessions_ended_total": "Sessions that are over, by the task's status or the reason",
    "failures_total": "Calls that failed, by reason",
}


def prometheus_text(tasks: Mapping[str, TaskStatistics], *, loop_lag_p99_s: float) -> str:
    """Prometheus' text format 0.0.4."""
    lines: dict[str, list[str]] = {name: [] for name in (*_GAUGES, *_COUNTERS, "turn_seconds")}
    for name, task in tasks.items():
        label, counts = ("task", name), task.counts
        lines["places"].append(_line("places", task.capacity, label))
        lines["places_taken"].append(_line("places_taken", task.num_taken, label))
        lines["sessions"].append(_line("sessions", task.num_sessions, label))
        lines["waiting"].append(_line("waiting", task.num_waiting, label))
        for status, number in task.workers.items():
            lines["workers"].append(_line("workers", number, label, ("status", status)))
        lines["sessions_started_total"].append(_line("sessions_started_total", counts.num_started, label))
        lines["turns_total"].append(_line("turns_total", counts.num_turns, label))
        for how, number in sorted(counts.ends.items()):
            lines["sessions_ended_total"].append(_line("sessions_ended_total", number, label, ("how", how)))
        for reason, number in sorted(counts.failures.items()):
            lines["failures_total"].append(_line("failures_total", number, label, ("reason", reason)))
        lines["turn_seconds"] += _histogram(label, counts)
    text = []
    for kind, described in (("gauge", _GAUGES), ("counter", _COUNTERS)):
        for name, meaning in described.items():
            text += [f"# HELP agentrl_controller_{name} {meaning}", f"# TYPE agentrl_controller_{name} {kind}"]
            text += lines[name]
    text.append("# HELP agentrl_controller_turn_seconds Time that workers take for a turn")
    text += ["# TYPE agentrl_controller_turn_seconds histogram", *lines["turn_seconds"]]
    text.append("# HELP agentrl_controller_loop_lag_seconds 99th percentile of the event loop's lag")
    text += [
        "# TYPE agentrl_controller_loop_lag_seconds gauge",
        f"agentrl_controller_loop_lag_seconds {loop_lag_p99_s:.6g}",
    ]
    return "\n".join(text) + "\n"


def _histogram(label: Label, counts: TaskCounts) -> list[str]:
    lines, total = [], 0
    for bound, number in zip((*map(str, BUCKETS_S), "+Inf"), counts.turn_buckets, strict=True):
        total += number
        lines.append(_line("turn_seconds_bucket", total, label, ("le", bound)))
    lines.append(_line("turn_seconds_sum", counts.turn_s, label))
    lines.append(_line("turn_seconds_count", total, label))
    return lines
