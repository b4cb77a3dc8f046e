"""From a journal and a checkpoint to a run that goes on: which groups return, and how old they are.

The restored weights get a new version, above every one that was ever published. A group that they do not contain is

    adopted    its episodes are complete, and the weights that sampled them lie few enough updates from the restored
               ones: it comes back as complete. Its admission and its tokens get versions that count these updates, so
               that age and token staleness mean what they always mean. Weights of steps that a crash undid count too:
               the way leads back from them to the restored ones.
    reissued   all others: the task is drawn again before any new one, in the order of admission.

Adopted groups take permits and obey the ledger's due dates like any other, the closest to the restored weights first.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.controller.journal import Journal, position_from_json
from agentrl_jax.controller.journal_history import GroupEntry, Position
from agentrl_jax.controller.tasks import TaskSampler
from agentrl_jax.errors import ConfigError
from agentrl_jax.types import Completion, Group, Segment, Task, Trajectory, Turn, VersionSpan

FRESH = Position(0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePlan:
    """How a process starts.

    step: steps taken. version: what the restored weights are served as. adopted: complete groups, with versions that
    count from `version`; reissued: ids and tasks to be drawn first. reasons: of groups that were reissued.
    """

    step: int
    version: int
    restored_version: int | None
    next_group_id: int
    adopted: tuple[Group, ...]
    reissued: Mapping[int, Task]
    reasons: Mapping[str, int]


def plan_start(journal: Journal, config: RolloutConfig, *, step: int = 0, version: int | None = None) -> ResumePlan:
    """Decide what becomes of the groups that the params of checkpoint `step`, served as `version`, do not contain.

    With version None there is no checkpoint: a new run, or one that crashed before its first. Raises ConfigError if
    the journal knows nothing of that step.
    """
    history = journal.history
    _check(journal, step, version)
    served = history.highest_version + 1
    entries = history.uncontained(step)
    reasons: Counter[str] = Counter()
    candidates: list[tuple[int, GroupEntry, Group]] = []
    for entry in entries:
        group = None if entry.state == "live" else journal.load(entry.group_id)
        age = None if group is None else _age(group, lambda v: history.distance(v, version))
        if group is None:
            reasons["in flight" if entry.state == "live" else "bytes lost"] += 1
        elif age is None or age > config.staleness_bound(entry.task.env):
            reasons["too far from the restored weights"] += 1
        else:
            candidates.append((age, entry, _rebased(group, served, age, lambda v: history.distance(v, version))))
    adopted = _as_many_as_fit(candidates, config)
    reasons["no permit"] += len(candidates) - len(adopted)
    ids = {group.group_id for group in adopted}
    return ResumePlan(
        step=step,
        version=served,
        restored_version=version,
        next_group_id=history.next_group_id,
        adopted=adopted,
        reissued={entry.group_id: entry.task for entry in entries if entry.group_id not in ids},
        reasons=+reasons,
    )


def _check(journal: Journal, step: int, version: int | None) -> None:
    history = journal.history
    known = f"{journal.folder} ends at step {history.step} and version {history.highest_version}"
    if version is None and history.checkpoint_steps:
        raise ConfigError(f"{known}, but its checkpoints (the last of step {history.checkpoint_steps[-1]}) are gone")
    is_known = history.oldest_step <= step <= history.step and (version is None or version <= history.highest_version)
    if not is_known:
        raise ConfigError(
            f"{known}, and is complete since step {history.oldest_step}, but the checkpoint is of step {step} and "
            f"version {version}; checkpoints and ledger must be of one run"
        )


def restore_sampler(sampler: TaskSampler, journal: Journal, saved: Mapping[str, Any] | None, plan: ResumePlan) -> None:
    """Bring `sampler` to where the crash left it, with the reissued tasks first.

    saved: of the checkpoint: {"sampler": TaskSampler.state(), "position": Journal.position()}, both of one moment;
    None for a new sampler. What was drawn later is replayed: those groups are adopted, reissued, or have ended.
    Raises ConfigError if the run cannot have drawn these tasks from it. Call it before `begin`.
    """
    position = FRESH
    if saved is not None:
        sampler.restore(saved["sampler"])
        position = position_from_json(saved["position"])
    for draw in journal.history.draws_after(position):
        if draw.drawn is None:
            sampler.requeue(draw.requeued)
        elif not sampler.replay(draw.drawn, draw.task_position):
            raise ConfigError(
                f"cannot resume: the run drew {draw.drawn.key} for group {draw.position.group_id}, but now it would be "
                f"{sampler.peek().key}; tasks and their order must be those of the run"
            )
    sampler.requeue(plan.reissued.values())


def begin(journal: Journal, config: RolloutConfig, plan: ResumePlan) -> None:
    """Write the plan down, durably: from now on it is what happened. Call it before anything is served."""
    journal.begin(
        step=plan.step,
        version=plan.version,
        restored_version=plan.restored_version,
        bounds={"": config.max_staleness, **config.task_max_staleness},
        adopted={group.group_id: plan.version - group.start_version for group in plan.adopted},
        reissued=list(plan.reissued),
    )


Distance = Callable[[int], int | None]


def _age(group: Group, distance: Distance) -> int | None:
    """Updates between the restored weights and the group's admission, or its farthest token of a current engine.

    A lagging engine's tokens are older by design and do not count. None if there is no way between them.
    """
    completions = [turn.completion for trajectory in group.trajectories for turn in trajectory.turns]
    versions = {span.version for c in completions if c.pool == "current" for span in c.version_spans}
    ages = [distance(version) for version in versions | {group.start_version}]
    known = [age for age in ages if age is not None]
    lagging = {span.version for c in completions if c.pool == "lagging" for span in c.version_spans}
    is_connected = len(known) == len(ages) and all(distance(version) is not None for version in lagging)
    return max(known) if is_connected else None


def _rebased(group: Group, served: int, age: int, distance: Distance) -> Group:
    """`group` with versions that count updates from `served`."""

    def completion(was: Completion) -> Completion:
        spans = [replace(span, version=served - (distance(span.version) or 0)) for span in was.version_spans]
        return replace(was, version_spans=tuple[VersionSpan, ...](spans))

    def turn(was: Turn) -> Turn:
        return replace(was, completion=completion(was.completion))

    def trajectory(was: Trajectory) -> Trajectory:
        segments = tuple(Segment(turns=tuple(map(turn, segment.turns))) for segment in was.segments)
        return replace(was, segments=segments)

    trajectories = tuple(map(trajectory, group.trajectories))
    return replace(group, start_version=served - age, trajectories=trajectories)


def _as_many_as_fit(candidates: Iterable[tuple[int, GroupEntry, Group]], config: RolloutConfig) -> tuple[Group, ...]:
    """Those that can all be consumed in time, in admission order; the youngest and first admitted are preferred."""
    chosen: list[Group] = []
    slack: list[int] = []  # versions from now until each is due
    for age, entry, group in sorted(candidates, key=lambda candidate: (candidate[0], candidate[1].group_id)):
        dues = sorted([*slack, config.staleness_bound(entry.task.env) - age])
        fits = all(count <= (due + 1) * config.batch_capacity for count, due in enumerate(dues, start=1))
        if fits and len(dues) <= config.num_permits:
            slack = dues
            chosen.append(group)
    return tuple(sorted(chosen, key=lambda group: group.group_id))
