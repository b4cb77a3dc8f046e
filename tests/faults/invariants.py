"""What must hold after every simulated run, however it ended."""

from collections import Counter

import numpy as np

from agentrl_jax.controller.ports import LoopResult, StepRecord
from agentrl_jax.testing.simulation import Simulation


def check_invariants(run: Simulation, result: LoopResult | None = None) -> None:
    """Check them all. result: of the loop, or None if it raised."""
    check_episodes(run)
    check_nothing_lives(run, result)
    check_prompts(run, result)
    for record in run.records:
        check_staleness(run, record)
        check_finite(record)


def check_episodes(run: Simulation) -> None:
    """The reasons of episodes that ended add up to the episodes that began, save those that the end of the run cut."""
    size = run.config.group_size
    assert all(len(group.trajectories) == size for group in run.groups)
    ended = Counter(group.group_id for group in run.groups)
    assert set(ended.values()) <= {1}
    cut = set(run.started_ids) - set(ended)
    assert len(cut) <= run.config.num_permits
    assert run.log.num_made == size * (len(run.groups) + len(cut))
    for record in run.records:
        assert sum(record.ends.values()) == size * len((*record.groups, *record.dropped, *record.cancelled))


def check_nothing_lives(run: Simulation, result: LoopResult | None) -> None:
    """No session, no seat, no permit and no group outlives the run, and nothing is released twice."""
    assert run.log.num_open == run.log.num_closed_again == 0
    assert all(not engine.sessions for engine in (run.engine, *run.other_engines))
    assert set(run.engine_pool.statistics().num_sessions.values()) == {0}
    if run.places is not None:
        assert not run.places.statistics().running
        assert not run.places.statistics().waiting
    if result is not None:
        ledger, admission = result.ledger, result.admission
        assert (admission.num_held, admission.num_free) == (0, run.config.num_permits)
        assert (ledger.num_live, ledger.num_complete) == (0, 0)
        assert ledger.num_admitted == ledger.num_consumed + ledger.num_dropped + ledger.num_cancelled


def check_prompts(run: Simulation, result: LoopResult | None) -> None:
    """Every admitted group was trained once, is reported as ended otherwise, or was cut off by the end of the run."""
    books = run.books
    consumed, ended = Counter(books.consumed_ids), Counter(group_id for group_id, _ in books.endings)
    assert set((consumed + ended).values()) <= {1}
    assert set(books.consumed_ids) <= set(books.completed_ids)
    open_ids = books.admitted_tasks.keys() - consumed.keys() - ended.keys()
    assert len(open_ids) <= run.config.num_permits
    if result is not None:
        assert [task.key for task in result.open_tasks] == [books.admitted_tasks[n].key for n in sorted(open_ids)]
        assert result.ledger.num_consumed == len(books.consumed_ids)
    reported = Counter(g.group_id for record in run.records for g in (*record.dropped, *record.cancelled))
    assert set(reported.values()) <= {1}
    assert reported.keys() <= ended.keys()
    assert [g.group_id for record in run.records for g in record.groups] == books.consumed_ids[: consumed.total()]


def check_staleness(run: Simulation, record: StepRecord) -> None:
    """No group is older than its bound, and no token older than its group and its engine allow."""
    lag = run.cross_policy.lagging_period - 1
    for group, age in zip(record.groups, record.ages, strict=True):
        assert age == record.version - group.start_version
        assert 0 <= age <= run.config.staleness_bound(group.task.env)
        for completion in (turn.completion for t in group.trajectories for turn in t.turns):
            lags = record.version - completion.versions
            assert 0 <= lags.min() <= lags.max() <= age + (lag if completion.pool == "lagging" else 0)


def check_finite(record: StepRecord) -> None:
    """Nothing that reaches the learner is NaN or infinite, and nothing invalid has a reward."""
    for trajectory in (t for group in record.groups for t in group.trajectories):
        assert trajectory.end.is_infrastructure == (trajectory.reward is None)
        assert np.isfinite(trajectory.reward or 0.0)
        assert all(np.isfinite(turn.completion.logprobs).all() for turn in trajectory.turns)
        assert all(np.isfinite(turn.reward) for turn in trajectory.turns)
