"""Warnings: each at its threshold, worded with what to do, and not again before its reason has doubled."""

from dataclasses import replace

from agentrl_jax.controller.watch import RunWarning, Watch
from agentrl_jax.types import EpisodeEnd, Group
from tests.controller.ended_groups import make_group, make_task

LOST = EpisodeEnd.ENV_ERROR


def names(warnings: tuple[RunWarning, ...]) -> list[tuple[str, str]]:
    return [(warning.name, warning.env) for warning in warnings]


def cancelled(wall_s: float = 30.0) -> Group:
    return make_group(EpisodeEnd.CANCELLED, EpisodeEnd.CANCELLED, task=make_task(env="slow"), wall_s=wall_s)


def test_over_a_fifth_lost_to_the_infrastructure() -> None:
    watch = Watch()
    assert watch.observe([make_group(1.0, 0.0, 1.0, LOST)] * 20, [], []) != ()  # 25 % of 80
    fine = Watch()
    assert fine.observe([make_group(1.0, 0.0, 1.0, 1.0, LOST)] * 20, [], []) == ()  # 20 %
    few = Watch()
    assert few.observe([make_group(1.0, LOST)] * 24, [], []) == ()  # 48 episodes are not enough
    (warning,) = few.observe([], [make_group(LOST, EpisodeEnd.ENV_TIMEOUT)], [])
    assert names((warning,)) == [("infrastructure", "a")]
    assert "26 of the newest 50 episodes of 'a'" in warning.text
    assert "(env_error 25, env_timeout 1)" in warning.text
    assert "broke" in warning.text


def test_what_is_penalised_as_published_is_not_said_to_train_nothing() -> None:
    lost = make_group(LOST, LOST)
    penalised = replace(lost, trajectories=tuple(replace(each, reward=-0.2) for each in lost.trajectories))
    (warning,) = Watch().observe([penalised] * 25, [], [])
    assert "(env_error 50) and cost the penalty. The newest error: broke" in warning.text
    warnings = Watch().observe([], [penalised] * 32, [])
    assert names(warnings) == [("infrastructure", "a"), ("no_signal", "a")]
    assert names(Watch().observe([], [lost] * 32, [])) == [("infrastructure", "a")]


def test_a_warning_comes_again_once_its_reason_has_doubled() -> None:
    watch, groups = Watch(), [make_group(1.0, 0.0, LOST, LOST)] * 12 + [make_group(LOST, LOST)]
    told = [len(watch.observe(groups, [], [])) for _ in range(8)]
    assert told == [1, 1, 0, 1, 0, 0, 0, 1]  # at 50, 100, 200 and 400 episodes


def test_an_env_that_recovers_is_not_warned_about_for_ever() -> None:
    watch = Watch()
    watch.observe([make_group(1.0, LOST)] * 25, [], [])
    for _ in range(20):
        watch.observe([make_group(1.0, 0.0)] * 25, [], [])
    assert watch.observe([make_group(1.0, 0.0)] * 200, [], []) == ()


def test_losses_that_grow_with_length() -> None:
    short, long = make_group(1.0, 0.0, num_turns=1), make_group(1.0, 0.0, 1.0, LOST, num_turns=8)
    (warning,) = Watch().observe([short] * 20 + [long] * 20, [], [])
    assert names((warning,)) == [("censoring", "a")]
    assert "25 % (at least 15 %) of those that take more than 1 turns are lost by turn 8" in warning.text
    lost_early = make_group(1.0, 0.0, 1.0, LOST, num_turns=1)
    assert Watch().observe([lost_early] * 20 + [make_group(1.0, 0.0, num_turns=8)] * 20, [], []) == ()


def test_over_one_percent_of_cancelled_stragglers() -> None:
    slow = [make_group(1.0, 0.0, task=make_task(env="slow"))]
    watch = Watch()
    assert watch.observe(slow * 99, [], [cancelled()]) == ()  # 1 of 100
    (warning,) = watch.observe([], [], [cancelled(50.0)])
    assert names((warning,)) == [("cancelled", "slow")]
    assert "2 of 101 groups of 'slow' were cancelled, after 40 s and 6 tokens on average" in warning.text
    assert watch.observe([], [], [cancelled()]) == ()
    assert names(watch.observe([], [], [cancelled()])) == [("cancelled", "slow")]  # twice as many


def test_cancelled_episodes_are_no_fault_of_the_infrastructure() -> None:
    warnings = Watch().observe([], [], [cancelled()] * 100)
    assert names(warnings) == [("cancelled", "slow")]


def test_an_env_that_teaches_nothing_under_dynamic_sampling() -> None:
    watch, flat = Watch(), make_group(0.0, 0.0)
    assert watch.observe([], [flat] * 31, []) == ()
    assert names(watch.observe([], [flat], [])) == [("no_signal", "a")]
    assert watch.observe([make_group(1.0, 0.0)], [flat] * 20, []) == ()  # it does teach something
    assert names(watch.observe([], [flat] * 32, [])) == [("no_signal", "a")]


def test_what_is_kept_is_bounded() -> None:
    watch = Watch()
    for _ in range(100):
        watch.observe([make_group(1.0, 0.0)] * 20, [make_group(LOST, LOST)] * 20, [cancelled()] * 20)
    assert {len(seen.episodes) for seen in watch._envs.values()} <= {512, 0}
    assert len(watch._last) <= 4 * len(watch._envs)
