"""What the prompts of a group have in common is computed once, and a copy serves as well as the original."""

import itertools
from dataclasses import replace

import jax
import numpy as np
import trio
from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.engines.local.cache import LayerCache, copy_prefixes
from agentrl_jax.engines.local.scheduler import Scheduler
from agentrl_jax.engines.local.slots import WORTH_SHARING, count_common
from agentrl_jax.types import as_ids
from tests.engines.test_local_scheduler import CONFIG, ListDevice, expected_ids, finish, turn
from tests.engines.tiny_engine import CONFIG as TINY
from tests.engines.tiny_engine import check_logprobs, open_tiny, params, random_weights

PROMPT = [3, 1, 4, 1, 5, 2, 6, 5, 3, 5]


def test_common_ids_are_counted_up_to_the_first_that_differs() -> None:
    a, b = as_ids([1, 2, 3, 4]), as_ids([1, 2, 9, 4, 5])
    assert [count_common(a, b, length) for length in range(5)] == [0, 1, 2, 2, 2]
    assert count_common(a, a, 4) == 4


def test_members_that_come_together_compute_their_prompt_once() -> None:
    scheduler, device = Scheduler(CONFIG, 0), ListDevice()
    for member in range(3):
        scheduler.submit(turn(member, PROMPT, f"m{member}", max_new_tokens=2, stop=99))
    done = finish(scheduler, device)
    statistics = scheduler.statistics()
    assert device.fed == statistics.prefilled_tokens == 10  # a copy leaves one id, which the decode block feeds
    assert statistics.shared_tokens == 2 * 9
    assert statistics.cached_tokens == 18
    assert statistics.prefill_saved_frac == 1 - 10 / 30
    assert sorted(t.cached_tokens for t in done) == [0, 9, 9]
    assert [t.ids for t in done] == [expected_ids(t, np.zeros(2, np.int32)) for t in done]


def test_members_that_come_later_copy_from_a_session_that_has_moved_on() -> None:
    scheduler, device = Scheduler(CONFIG, 0), ListDevice()
    scheduler.submit(turn(0, [*PROMPT, 7, 7], "a", max_new_tokens=5, stop=99))
    finish(scheduler, device)
    scheduler.submit(turn(1, [*PROMPT, 8, 8, 8], "b", max_new_tokens=1, stop=99))
    (done,) = finish(scheduler, device)
    assert done.cached_tokens == len(PROMPT)
    assert device.fed == 12 + 3


def test_a_prefix_too_short_to_be_worth_a_copy_is_computed() -> None:
    scheduler, device = Scheduler(CONFIG, 0), ListDevice()
    prompt = PROMPT[: WORTH_SHARING - 1]
    for member in range(2):
        scheduler.submit(turn(member, [*prompt, member + 1], f"m{member}", max_new_tokens=1))
    finish(scheduler, device)
    assert scheduler.statistics().shared_tokens == 0
    assert device.fed == 2 * WORTH_SHARING


def test_a_publish_makes_members_share_what_is_computed_anew() -> None:
    scheduler, device = Scheduler(CONFIG, 0), ListDevice()
    for member in range(3):
        scheduler.submit(turn(member, PROMPT, f"m{member}", max_new_tokens=8, stop=99))
    while scheduler.statistics().sampled_tokens < 9:
        device.advance(scheduler)
    fed, device.version = device.fed, 1
    scheduler.set_version(1)
    done = finish(scheduler, device)
    assert device.fed - fed < 10 + 3 * 5
    for t in done:
        assert t.ids == expected_ids(t, t.completion(engine="e", pool="current").versions)


def test_what_older_weights_computed_is_not_copied() -> None:
    scheduler, device = Scheduler(CONFIG, 0), ListDevice()
    scheduler.submit(turn(0, PROMPT, "a", max_new_tokens=1))
    finish(scheduler, device)
    device.version = 1
    scheduler.set_version(1)
    scheduler.submit(turn(1, PROMPT, "b", max_new_tokens=1))
    (done,) = finish(scheduler, device)
    assert (scheduler.statistics().shared_tokens, done.cached_tokens, device.fed) == (0, 0, 20)


def test_only_what_a_follower_lacks_counts_as_shared() -> None:
    scheduler, device = Scheduler(CONFIG, 0), ListDevice()
    for request_id, (session, prompt) in enumerate((("b", PROMPT[:3]), ("a", [*PROMPT, 7]))):
        scheduler.submit(turn(request_id, prompt, session, max_new_tokens=1, stop=99))
        finish(scheduler, device)
    scheduler.submit(turn(2, [*PROMPT, 7, 8], "b", max_new_tokens=1, stop=99))
    (done,) = finish(scheduler, device)
    statistics = scheduler.statistics()
    assert done.cached_tokens == statistics.cached_tokens == 11
    assert statistics.shared_tokens == 11 - 3


def test_what_a_turn_found_in_the_cache_stays_found_though_less_is_shared_after_a_publish() -> None:
    scheduler, device = Scheduler(CONFIG, 0), ListDevice()
    scheduler.submit(turn(0, [*PROMPT, 7, 7, 7, 7], "long", max_new_tokens=1, stop=99))
    finish(scheduler, device)
    mate, long = (turn(1, PROMPT, "mate", 9, stop=99), turn(2, [*PROMPT, 7, 7, 7, 7, 1], "long", 5, stop=99))
    for one in (mate, long):
        scheduler.submit(one)
    while not (mate.ids and long.ids):
        device.advance(scheduler)
    assert (mate.cached_tokens, long.cached_tokens) == (9, 14)
    shared, device.version = scheduler.statistics().shared_tokens, 1
    scheduler.set_version(1)
    finish(scheduler, device)
    assert scheduler.statistics().shared_tokens - shared == 10
    assert (mate.cached_tokens, long.cached_tokens) == (9, 14)
    assert scheduler.statistics().cached_tokens == 9 + 14


def test_sampled_ids_that_are_shared_after_a_publish_are_no_cached_ids_of_the_prompt() -> None:
    scheduler, device = Scheduler(CONFIG, 0), ListDevice()
    twins = [replace(turn(0, PROMPT, f"m{i}", max_new_tokens=9, stop=99), request_id=i) for i in range(2)]
    for twin in twins:
        scheduler.submit(twin)
    while not all(twin.ids for twin in twins):
        device.advance(scheduler)
    shared, device.version = scheduler.statistics().shared_tokens, 1
    scheduler.set_version(1)
    finish(scheduler, device)
    assert scheduler.statistics().shared_tokens - shared >= len(PROMPT)
    assert [twin.cached_tokens for twin in twins] == [0, len(PROMPT) - 1]


def test_a_follower_whose_leader_is_aborted_computes_for_itself() -> None:
    scheduler, device = Scheduler(CONFIG, 0), ListDevice()
    for member in range(3):
        scheduler.submit(turn(member, PROMPT, f"m{member}", max_new_tokens=2, stop=99))
    device.advance(scheduler)  # the leader's first chunk
    scheduler.abort(0)
    scheduler.submit(turn(3, [8] * 12, "stranger", max_new_tokens=2, stop=99))  # takes the leader's slot
    done = finish(scheduler, device)
    assert sorted(t.request_id for t in done) == [1, 2, 3]
    assert [t.ids for t in done] == [expected_ids(t, np.zeros(2, np.int32)) for t in done]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 150)), min_size=3, max_size=3))
def test_copies_take_the_columns_that_are_asked_for(copies: list[tuple[int, int]]) -> None:
    targets = {slot for slot, (_, count) in enumerate(copies) if count}
    copies = [(slot, 0) if source in targets else (source, count) for slot, (source, count) in enumerate(copies)]
    keys = np.arange(3 * 2 * 2 * 150, dtype=np.float32).reshape(3, 2, 2, 150)
    caches = (LayerCache(keys, -keys.transpose(0, 1, 3, 2)), LayerCache(keys + 0.5, keys.transpose(0, 1, 3, 2)))
    sources, counts = (np.array(part, np.int32) for part in zip(*copies, strict=True))
    copied = jax.jit(copy_prefixes)(caches, sources, counts)
    for before, after in zip(caches, copied, strict=True):
        expected = LayerCache(before.keys.copy(), before.values.copy())
        for slot, (source, count) in enumerate(copies):
            expected.keys[slot, :, :, :count] = before.keys[source, :, :, :count]
            expected.values[slot, :, :count] = before.values[source, :, :count]
        np.testing.assert_array_equal(after.keys, expected.keys)
        np.testing.assert_array_equal(after.values, expected.values)


async def test_a_group_on_the_engine_shares_and_stays_exact() -> None:
    prompt = as_ids(np.random.default_rng(0).integers(0, 19, 30))
    async with open_tiny() as engine:

        async def ask(member: int) -> None:
            completion = await engine.generate(prompt, params(seed=member), session=f"m{member}")
            check_logprobs({0: random_weights(0)}, prompt, completion, 1.0)

        async with trio.open_nursery() as nursery:
            for member in range(4):
                nursery.start_soon(ask, member)
        assert engine.statistics().shared_tokens == 3 * 29
        assert engine.statistics().prefilled_tokens == 30


SESSIONS, GROUP, TURNS, ENV_TOKENS = 64, 8, 4, 12


async def saved(publish_every: int, lagging_every: int) -> float:
    """Share of prefill tokens saved by 64 sessions of 4 turns, and 64 after them, in groups of 8.

    publish_every: turns of all sessions between publishes, the first of which falls in the middle of episodes.
    lagging_every: the lagging policy samples every so-many-th turn.
    """
    config = replace(TINY, num_slots=SESSIONS, cache_tokens=120, prefill_shapes=((8, 16),))
    prompts = np.random.default_rng(0).integers(0, 19, (2 * SESSIONS // GROUP, 40))
    turns = itertools.count(1)
    async with open_tiny(config=config) as current, open_tiny(config=config, name="lagging") as lagging:

        async def play(number: int) -> None:
            prompt, group = as_ids(prompts[number // GROUP]), number // GROUP
            for index in range(TURNS):
                is_lagging = lagging_every and (7 * number + 3 * index + group) % lagging_every == 0
                engine = lagging if is_lagging else current
                done = await engine.generate(prompt, params(seed=number, max_new_tokens=6), session=f"s{number}")
                prompt = as_ids([*prompt, *done.ids, *[(number + index + i) % 19 for i in range(ENV_TOKENS)]])
                if publish_every and next(turns) % publish_every == publish_every // 2:
                    await current.publish(random_weights(0), current.version + 1)
            for engine in (current, lagging):
                await engine.end_session(f"s{number}")

        for wave in range(2):
            async with trio.open_nursery() as nursery:
                for number in range(SESSIONS):
                    nursery.start_soon(play, wave * SESSIONS + number)
        assert current.version == (2 if publish_every else 0)
        counted = [engine.statistics() for engine in (current, lagging)]
        return 1 - sum(s.prefilled_tokens for s in counted) / sum(s.prompt_tokens for s in counted)


async def test_prefixes_save_three_fifths_of_the_prefill() -> None:
    assert await saved(0, 0) >= 0.6


async def test_prefixes_save_two_fifths_with_a_lagging_policy_and_publishes() -> None:
    """A publish every 4 turns of each session, twice as often as is asked."""
    assert await saved(SESSIONS * TURNS, 4) >= 0.4
