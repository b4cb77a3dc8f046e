"""Which episodes a report shows: seeded, fair to every env and end, those that were asked for in any case."""

from collections import Counter
from pathlib import Path

from agentrl_jax.report.episode_table import EpisodeTable, _Line
from agentrl_jax.report.selection import choose_detailed, choose_listed, evenly_spaced


def table_of(counts: dict[tuple[str, str], int]) -> EpisodeTable:
    table, group = EpisodeTable(Path("none")), 0
    for (env, end), count in counts.items():
        for _ in range(count):
            table.add(0, _Line(step=group % 10, group=group, env=env, end=end))
            group += 1
    return table


def strata(table: EpisodeTable, rows: list[int]) -> Counter[tuple[str, str]]:
    env, end = table.columns["env"], table.columns["end"]
    return Counter((table.names("env")[env[row]], table.names("end")[end[row]]) for row in rows)


def test_rare_ends_are_all_shown_and_common_ones_share_the_rest() -> None:
    counts = {("kg", "completed"): 500, ("kg", "max_turns"): 3, ("os", "completed"): 500, ("os", "env_error"): 1}
    table = table_of(counts)
    rows = choose_detailed(table, seed=0, steps=(), at_most=24)
    assert strata(table, rows) == {
        ("kg", "completed"): 10,
        ("kg", "max_turns"): 3,
        ("os", "completed"): 10,
        ("os", "env_error"): 1,
    }
    assert rows == sorted(set(rows))


def test_the_draw_is_the_seeds() -> None:
    table = table_of({("kg", "completed"): 300})
    first, again, other = (choose_detailed(table, seed=seed, steps=(), at_most=20) for seed in (1, 1, 2))
    assert first == again != other


def test_episodes_whose_batch_is_at_hand_come_first() -> None:
    table = table_of({("kg", "completed"): 100})
    rows = choose_detailed(table, seed=0, steps={3}, at_most=12)
    assert Counter(table.columns["step"][row] == 3 for row in rows) == {True: 10, False: 2}


def test_what_was_asked_for_is_there_first_and_once() -> None:
    table = table_of({("kg", "completed"): 30})
    rows = choose_detailed(table, seed=0, steps=(), at_most=10, first=[29, 4])
    assert rows[:2] == [29, 4]
    assert len(rows) == len(set(rows)) == 10
    assert choose_detailed(table, seed=0, steps=(), at_most=1, first=[29, 4]) == [29, 4]


def test_a_list_that_is_too_long_is_drawn_evenly_with_the_detailed_ones() -> None:
    table = table_of({("kg", "completed"): 100})
    assert choose_listed(table, [], seed=0, at_most=100) == list(range(100))
    rows = choose_listed(table, [7, 93], seed=0, at_most=20)
    assert len(rows) == 20
    assert {7, 93} <= set(rows)
    assert rows == sorted(rows)


def test_evenly_spaced_keeps_both_ends() -> None:
    assert evenly_spaced(list(range(100)), 4) == [0, 33, 66, 99]
    assert evenly_spaced([], 4) == []
