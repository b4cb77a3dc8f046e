"""Who sits where is the same with few engines and with hundreds, and as cheap to find."""

from collections.abc import Collection
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.engines import seats
from agentrl_jax.engines.seats import NoOutages, Occupancy, Seats
from agentrl_jax.testing.engine import FakeEngine


class Watched:
    """Implements `Outages`. num_asked: how often somebody asked whether one serves."""

    def __init__(self, out: Collection[str] = (), *, is_any_out: bool) -> None:
        self.out, self.is_any_out, self.num_asked = set(out), is_any_out, 0

    def is_serving(self, name: str) -> bool:
        self.num_asked += 1
        return name not in self.out

    async def until_any(self, names: Collection[str]) -> None:
        raise NotImplementedError


def make_seats(count: int, outages: NoOutages | Watched) -> Seats:
    return Seats([FakeEngine(name=str(index)) for index in range(count)], 0, outages)


@given(st.integers(1, 6), st.lists(st.tuples(st.integers(0, 5), st.booleans())))
def test_the_emptiest_engine_is_known_after_every_change(count: int, changes: list[tuple[int, bool]]) -> None:
    occupancy, expected = Occupancy(count), [0] * count
    for index, is_more in changes:
        index %= count
        if is_more or expected[index] == 0:
            occupancy.change(index, 1)
            expected[index] += 1
        else:
            occupancy.change(index, -1)
            expected[index] -= 1
        assert occupancy.counts == expected
        assert (occupancy.least, occupancy.emptiest) == (min(expected), expected.index(min(expected)))


@given(st.integers(1, 9), st.randoms(use_true_random=False))
def test_seats_are_the_same_whether_or_not_each_engine_is_asked(count: int, random: Random) -> None:
    quick, thorough = make_seats(count, NoOutages()), make_seats(count, Watched(is_any_out=True))
    for _ in range(200):
        session = random.randrange(12), random.randrange(8)
        index = quick.sit(session)
        assert thorough.sit(session) == index
        if random.random() < 0.4:
            quick.leave(session, index)
            thorough.leave(session, index)
    assert quick.num_sessions == thorough.num_sessions
    assert quick.num_moves == thorough.num_moves


def test_nobody_sits_at_an_engine_that_is_out() -> None:
    outages = Watched({"0", "2"}, is_any_out=True)
    places = make_seats(4, outages)
    assert {places.sit((group, 0)) for group in range(40)} == {1, 3}
    outages.out, outages.is_any_out = set(), False
    assert {places.sit((group, 1)) for group in range(30)} == {0, 2}  # as the others have twenty each


def test_a_turn_costs_as_much_with_three_hundred_engines() -> None:
    outages = Watched(is_any_out=False)
    places = make_seats(300, outages)
    before = seats._order.cache_info().misses
    for turn in range(5):
        for group in range(3000):
            places.take(group, turn % 2, places)
    assert outages.num_asked == places.num_turns  # of its own engine alone
    assert seats._order.cache_info().misses - before == 10  # orders of three hundred engines
