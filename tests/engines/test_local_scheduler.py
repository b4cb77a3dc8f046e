"""The scheduler against a device made of lists: it holds ids instead of keys, and its draws hash all it holds."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_jax.engines.local.config import LocalEngineConfig
from agentrl_jax.engines.local.scheduler import Scheduler
from agentrl_jax.engines.local.steps import ClearStep, CopyStep, DecodeStep, PrefillStep
from agentrl_jax.engines.local.turns import ServedTurn
from agentrl_jax.types import Floats, Ids, SamplingParams, Truncation, as_ids

CONFIG = LocalEngineConfig(num_slots=3, cache_tokens=20, prefill_shapes=((1, 3), (2, 5)), decode_block=3)
STOP = 0
SHARED = [3, 1, 4, 1, 5, 2, 6, 5, 3, 5, 8, 2, 7]  # what prompts have in common


def next_id(version: int, prefix: Iterable[int], seed: int, index: int) -> int:
    text = f"{version} {list(prefix)} {seed} {index}".encode()
    return blake2b(text, digest_size=2).digest()[0] % 9


def expected_ids(turn: ServedTurn, versions: Ids) -> list[int]:
    ids: list[int] = []
    for version in versions.tolist():
        ids.append(next_id(version, [*turn.prompt.tolist(), *ids], turn.sampling.seed, len(ids)))
    return ids


@dataclass
class ListDevice:
    """cells[s][t] is (version, id): what a real cache would hold the key of."""

    version: int = 0
    cells: list[list[tuple[int, int] | None]] = field(default_factory=lambda: [[None] * 20 for _ in range(3)])
    fed: int = 0

    def draw(self, slot: int, length: int, seed: int, index: int) -> int:
        held = self.cells[slot][:length]
        assert all(cell is not None and cell[0] == self.version for cell in held), "attends to a stale or empty cell"
        return next_id(self.version, [cell[1] for cell in held if cell], seed, index)

    def prefill(self, step: PrefillStep) -> tuple[Ids, Floats]:
        draws = np.zeros(len(step.slots), np.int32)
        for row in range(step.num_rows):
            slot, start, count = int(step.slots[row]), int(step.starts[row]), int(step.counts[row])
            self.cells[slot][start : start + count] = [(self.version, int(i)) for i in step.ids[row, :count]]
            seed = int(step.draws.seeds[row, 1])
            draws[row] = self.draw(slot, start + count, seed, int(step.draws.indices[row]))
            self.fed += count
        assert (step.slots[step.num_rows :] == 3).all()
        return draws, np.full(len(draws), -1.0, np.float32)

    def decode(self, step: DecodeStep) -> tuple[Ids, Floats]:
        draws = np.zeros((3, 3), np.int32)
        for slot in range(3):
            token, start = int(step.tokens[slot]), int(step.starts[slot])
            assert (start == 20) == (slot not in step.slots)
            for n in range(3):
                if start + n < 20:  # a write past the end is dropped
                    self.cells[slot][start + n] = (self.version, token)
                    seed, index = int(step.draws.seeds[slot, 1]), int(step.draws.indices[slot]) + n
                    token = self.draw(slot, start + n + 1, seed, index)
                draws[n, slot] = token
        return draws, np.full((3, 3), -1.0, np.float32)

    def copy(self, step: CopyStep) -> None:
        before = [list(cells) for cells in self.cells]
        for slot, (source, count) in enumerate(zip(step.sources, step.counts, strict=True)):
            self.cells[slot][:count] = before[source][:count]

    def advance(self, scheduler: Scheduler) -> list[ServedTurn]:
        match scheduler.next_step():
            case PrefillStep() as step:
                return scheduler.record_prefill(step, *self.prefill(step))
            case DecodeStep() as step:
                return scheduler.record_decode(step, *self.decode(step))
            case CopyStep() as step:
                self.copy(step)
        return []


def turn(request_id: int, prompt: Iterable[int], session: str, max_new_tokens: int = 6, stop: int = STOP) -> ServedTurn:
    sampling = SamplingParams(temperature=1.0, max_new_tokens=max_new_tokens, seed=request_id, stop_ids=(stop,))
    return ServedTurn(request_id, as_ids(list(prompt)), sampling, session)


def finish(scheduler: Scheduler, device: ListDevice) -> list[ServedTurn]:
    finished = []
    for _ in range(10_000):
        if scheduler.is_idle:
            return finished
        finished += device.advance(scheduler)
    raise AssertionError("nothing gets on")


@settings(max_examples=150)
@given(st.data())
def test_whatever_happens_every_turn_is_what_its_versions_say(data: st.DataObject) -> None:
    """Turns that grow or fork, aborts, ended sessions and publishes, in any order, with any number of sessions."""
    scheduler, device = Scheduler(CONFIG, 0), ListDevice()
    open_turns: dict[int, ServedTurn] = {}
    histories: dict[str, list[int]] = {}
    finished: list[ServedTurn] = []
    num_aborted = 0
    actions = ["submit"] * 4 + ["step"] * 6 + ["abort", "end", "publish"]
    for request_id in range(data.draw(st.integers(5, 60))):
        match data.draw(st.sampled_from(actions)):
            case "submit":
                session = f"s{data.draw(st.integers(0, 5))}"
                running = [[*t.prompt.tolist(), *t.ids] for t in scheduler.running_turns()]
                kept = data.draw(st.sampled_from([SHARED, histories.get(session, []), *running]))
                kept = kept[: data.draw(st.integers(0, 25))]
                prompt = [*kept, *data.draw(st.lists(st.integers(0, 8), min_size=1, max_size=8))][:19]
                open_turns[request_id] = turn(request_id, prompt, session, data.draw(st.integers(1, 9)))
                scheduler.submit(open_turns[request_id])
            case "step":
                finished += device.advance(scheduler)
            case "abort" if open_turns:
                victim = data.draw(st.sampled_from(sorted(open_turns)))
                num_aborted += open_turns[victim].finish_reason is None
                scheduler.abort(victim)
                del open_turns[victim]
            case "end":
                scheduler.end_session(f"s{data.draw(st.integers(0, 5))}")
            case "publish":
                device.version += 1
                scheduler.set_version(device.version)
        histories |= {t.session: [*t.prompt.tolist(), *t.ids] for t in finished}
    finished += finish(scheduler, device)
    assert {t.request_id for t in finished} >= open_turns.keys()
    assert len({t.request_id for t in finished}) == len(finished)
    for done in finished:
        completion = done.completion(engine="e", pool="current")
        assert completion.ids.tolist() == expected_ids(done, completion.versions)
        limit = min(done.sampling.max_new_tokens, 20 - len(done.prompt))
        assert STOP not in completion.ids[:-1]
        assert completion.finish_reason == ("stop" if completion.ids[-1] == STOP else "length")
        assert completion.ids[-1] == STOP or len(completion.ids) == limit
    statistics = scheduler.statistics()
    assert statistics.num_aborted == num_aborted
    assert statistics.running == statistics.waiting == 0


def test_a_prefix_is_fed_once_however_many_turns_build_on_it() -> None:
    scheduler, device = Scheduler(CONFIG, 0), ListDevice()
    prompt = [1, 2, 3, 4]
    for request_id in range(3):
        scheduler.submit(turn(request_id, prompt, "s", max_new_tokens=2))
        (done,) = finish(scheduler, device)
        prompt = [*done.prompt.tolist(), *done.ids, 5]
    assert device.fed == 4 + 2 * 2  # a later prompt's new ids: the last sampled one, never fed, and one of the env


def test_a_prompt_may_build_on_what_another_turn_has_just_drawn() -> None:
    """Group-mates whose environments answer alike: one is a turn ahead of the other, and both said the same."""
    scheduler, device = Scheduler(CONFIG, 0), ListDevice()
    behind = turn(0, SHARED[:9], "behind", max_new_tokens=9, stop=-1)
    scheduler.submit(behind)
    while not behind.ids:
        device.advance(scheduler)
    ahead = turn(1, [*SHARED[:9], *behind.ids, 6, 6], "ahead", max_new_tokens=2, stop=-1)
    scheduler.submit(ahead)
    assert {done.request_id for done in finish(scheduler, device)} == {0, 1}


def test_slots_go_to_the_first_that_came() -> None:
    scheduler, device = Scheduler(CONFIG, 0), ListDevice()
    for request_id in range(9):
        scheduler.submit(turn(request_id, [1, 2], f"s{request_id}", max_new_tokens=1))
    assert sorted(t.request_id for t in finish(scheduler, device)[:3]) == [0, 1, 2]


def test_the_least_recently_used_session_loses_its_slot() -> None:
    scheduler, device = Scheduler(CONFIG, 0), ListDevice()

    def serve(request_id: int, session: str) -> int:
        scheduler.submit(turn(request_id, [ord(session), 2, 3, 4], session, max_new_tokens=1))
        (done,) = finish(scheduler, device)
        return done.cached_tokens

    assert [serve(i, session) for i, session in enumerate("abc")] == [0, 0, 0]
    assert serve(3, "a") == 3
    scheduler.end_session("c")
    scheduler.submit(turn(4, [7, 7, 7, 7], "d", max_new_tokens=1))  # takes the slot that c gave up
    finish(scheduler, device)
    assert serve(5, "b") == serve(6, "a") == 3
    scheduler.submit(turn(7, [8, 8, 8, 8], "e", max_new_tokens=1))  # takes d's: it is the oldest
    finish(scheduler, device)
    assert serve(8, "b") == serve(9, "a") == 3
    assert serve(10, "d") == 0


def test_a_session_that_returns_gets_its_own_slot_though_a_stranger_came_first() -> None:
    scheduler, device = Scheduler(CONFIG, 0), ListDevice()
    for request_id, session in enumerate("abc"):
        scheduler.submit(turn(request_id, [1, 2, 3, 4], session, max_new_tokens=1))
    finish(scheduler, device)
    for request_id, session in enumerate("xabc", start=10):
        scheduler.submit(turn(request_id, [1, 2, 3, 4], session, max_new_tokens=1))
    done = {t.session: t for t in finish(scheduler, device)}
    assert [done[session].cached_tokens for session in "abc"] == [3, 3, 3]
    assert "x" in done


def advance_blindly(scheduler: Scheduler) -> list[ServedTurn]:
    """One device call of which every draw is 5."""
    match scheduler.next_step():
        case PrefillStep() as step:
            rows = len(step.slots)
            return scheduler.record_prefill(step, np.full(rows, 5, np.int32), np.full(rows, -1.0, np.float32))
        case DecodeStep() as step:
            shape = (scheduler.config.decode_block, len(step.tokens))
            return scheduler.record_decode(step, np.full(shape, 5, np.int32), np.full(shape, -1.0, np.float32))
    return []


@pytest.mark.parametrize(("num_calls", "cached_tokens"), [(1, 3), (10, 3), (30, 0)])
def test_an_idle_session_keeps_its_slot_for_a_while_though_others_wait(num_calls: int, cached_tokens: int) -> None:
    config = LocalEngineConfig(num_slots=2, cache_tokens=400, prefill_shapes=((2, 5),), decode_block=3)
    scheduler = Scheduler(config, 0)
    scheduler.submit(turn(0, [1], "busy", max_new_tokens=300, stop=99))
    scheduler.submit(turn(1, [1, 2, 3, 4], "quick", max_new_tokens=1, stop=99))
    assert [t.session for t in advance_blindly(scheduler)] == ["quick"]
    scheduler.submit(turn(2, [9], "stranger", max_new_tokens=30, stop=99))
    finished: list[ServedTurn] = []
    for _ in range(num_calls):
        finished += advance_blindly(scheduler)
    scheduler.submit(turn(3, [1, 2, 3, 4], "quick", max_new_tokens=1, stop=99))
    while not scheduler.is_idle:
        finished += advance_blindly(scheduler)
    assert {t.request_id: t.cached_tokens for t in finished}[3] == cached_tokens
    assert len(finished) == 3


def test_a_stranger_takes_a_slot_without_a_session_before_one_whose_session_is_long_idle() -> None:
    config = LocalEngineConfig(num_slots=3, cache_tokens=400, prefill_shapes=((2, 5),), decode_block=3)
    scheduler = Scheduler(config, 0)
    scheduler.submit(turn(0, [1], "busy", max_new_tokens=300, stop=99))
    for request_id, session in enumerate(("idle", "over"), start=1):
        scheduler.submit(turn(request_id, [request_id] * 4, session, max_new_tokens=1, stop=99))
    for _ in range(30):
        advance_blindly(scheduler)
    scheduler.end_session("over")
    scheduler.submit(turn(3, [9], "stranger", max_new_tokens=60, stop=99))
    advance_blindly(scheduler)
    back = turn(4, [1] * 4, "idle", max_new_tokens=1, stop=99)
    scheduler.submit(back)
    while back.finish_reason is None:
        advance_blindly(scheduler)
    assert back.cached_tokens == 3


def test_nobody_waits_for_an_idle_session_when_nothing_runs() -> None:
    scheduler, device = Scheduler(CONFIG, 0), ListDevice()
    for request_id, session in enumerate("abc"):
        scheduler.submit(turn(request_id, [1, 2], session, max_new_tokens=1))
    finish(scheduler, device)
    scheduler.submit(turn(3, [1, 2], "d", max_new_tokens=1))
    assert isinstance(scheduler.next_step(), (PrefillStep, DecodeStep))


def test_two_turns_of_one_session_run_side_by_side() -> None:
    scheduler, device = Scheduler(CONFIG, 0), ListDevice()
    for request_id in range(3):
        scheduler.submit(turn(request_id, [1, 2, 3], "same", stop=99))
    device.advance(scheduler)
    assert scheduler.statistics().running == 3
    assert len(finish(scheduler, device)) == 3
    for request_id, session in enumerate("xyz", start=3):  # each takes a slot, of which one alone is the session's
        scheduler.submit(turn(request_id, [request_id, 2], session, max_new_tokens=1))
    assert len(finish(scheduler, device)) == 3


def test_aborting_a_running_turn_frees_its_slot_for_the_next_step() -> None:
    scheduler, device = Scheduler(CONFIG, 0), ListDevice()
    for request_id in range(4):
        scheduler.submit(turn(request_id, [1, 2, 3], f"s{request_id}", stop=99))
    device.advance(scheduler)
    scheduler.abort(1)
    scheduler.abort(99)
    device.advance(scheduler)
    statistics = scheduler.statistics()
    assert (statistics.running, statistics.waiting, statistics.num_aborted) == (3, 0, 1)


def test_the_prefill_shape_fits_what_is_pending() -> None:
    config = LocalEngineConfig(num_slots=8, cache_tokens=300, prefill_shapes=((1, 16), (8, 16), (2, 128)))
    scheduler = Scheduler(config, 0)
    scheduler.submit(turn(0, range(10), "short"))
    step = scheduler.next_step()
    assert isinstance(step, PrefillStep)
    assert step.ids.shape == (1, 16)
    scheduler.submit(turn(1, [1] * 250, "long"))
    step = scheduler.next_step()
    assert isinstance(step, PrefillStep)
    assert step.ids.shape == (2, 128)
    assert step.counts.tolist() == [128, 10]  # the longest first
    for request_id in range(2, 8):
        scheduler.submit(turn(request_id, [request_id] * 16, f"s{request_id}"))
    scheduler.abort(1)
    step = scheduler.next_step()
    assert isinstance(step, PrefillStep)
    assert step.ids.shape == (8, 16)


def test_a_slot_with_values_that_are_not_finite_is_cleared_before_its_next_turn() -> None:
    scheduler, device = Scheduler(CONFIG, 0), ListDevice()
    scheduler.submit(turn(0, [1, 2, 3], "s", max_new_tokens=1))
    step = scheduler.next_step()
    assert isinstance(step, PrefillStep)
    (done,) = scheduler.record_prefill(step, np.array([4], np.int32), np.array([np.nan], np.float32))
    completion = done.completion(engine="e", pool="current")
    assert (completion.loss_mask.tolist(), completion.logprobs.tolist()) == ([False], [0.0])
    scheduler.submit(turn(1, [1, 2, 3], "s", max_new_tokens=1))
    clear = scheduler.next_step()
    assert isinstance(clear, ClearStep)
    assert clear.keep.tolist().count(False) == 1
    (done,) = finish(scheduler, device)
    assert done.cached_tokens == 0
    assert scheduler.statistics().num_nonfinite_logprobs == 1
    scheduler.submit(turn(2, [1, 2, 3], "s", max_new_tokens=1))
    assert isinstance(scheduler.next_step(), DecodeStep)  # cleared once, and what was computed since is as good as any


def test_values_that_are_not_finite_within_a_block_are_counted_once_and_shared_with_nobody() -> None:
    scheduler, device = Scheduler(CONFIG, 0), ListDevice()
    scheduler.submit(turn(0, SHARED[:10], "s", max_new_tokens=7, stop=99))
    while scheduler.statistics().sampled_tokens < 1:
        device.advance(scheduler)
    logprobs = np.full((3, 3), -1.0, np.float32)
    for row in (2, 0):
        logprobs[:2] = -1.0
        logprobs[row] = np.nan
        step = scheduler.next_step()
        assert isinstance(step, DecodeStep)
        done = scheduler.record_decode(step, np.full((3, 3), 5, np.int32), logprobs)
    assert [np.isnan(t.logprobs).tolist() for t in done] == [[False, False, False, True, True, False, True]]
    assert scheduler.statistics().num_nonfinite_logprobs == 3
    scheduler.submit(turn(1, SHARED[:10], "t", max_new_tokens=1, stop=99))
    finish(scheduler, device)
    assert scheduler.statistics().shared_tokens == 0


def test_a_slot_cuts_nothing_off_once_its_turn_is_over() -> None:
    scheduler, device = Scheduler(CONFIG, 0), ListDevice()
    cut = SamplingParams(temperature=1.0, max_new_tokens=1, seed=0, stop_ids=(99,), truncation=Truncation(top_k=2))
    scheduler.submit(ServedTurn(0, as_ids([1, 2]), cut, "cut"))
    finish(scheduler, device)
    scheduler.submit(turn(1, [3, 4], "whole", stop=99))
    device.advance(scheduler)
    step = scheduler.next_step()
    assert isinstance(step, DecodeStep)
    assert step.draws.truncations is not None
    assert not step.draws.truncations.top_ks.any()


def test_a_long_prompt_stalls_running_turns_for_one_chunk_at_a_time() -> None:
    config = LocalEngineConfig(num_slots=3, cache_tokens=400, prefill_shapes=((2, 5),), decode_block=3)
    scheduler = Scheduler(config, 0)
    scheduler.submit(turn(0, [1], "running", max_new_tokens=300, stop=99))
    advance_blindly(scheduler)
    long = turn(1, range(60), "long", max_new_tokens=1, stop=99)
    scheduler.submit(long)
    scheduler.submit(turn(2, range(100, 160), "also long", max_new_tokens=1, stop=99))
    kinds = []
    while long.finish_reason is None:
        step = scheduler.next_step()
        kinds.append(type(step))
        if isinstance(step, PrefillStep):
            scheduler.record_prefill(step, np.full(2, 5, np.int32), np.full(2, -1.0, np.float32))
        elif isinstance(step, DecodeStep):
            assert len(step.slots) == 1
            scheduler.record_decode(step, np.full((3, 3), 5, np.int32), np.full((3, 3), -1.0, np.float32))
    assert kinds == [PrefillStep, DecodeStep] * 11 + [PrefillStep]


def test_short_prompts_go_before_the_next_block_to_keep_it_full() -> None:
    config = LocalEngineConfig(num_slots=5, cache_tokens=400, prefill_shapes=((2, 5),), decode_block=3)
    scheduler = Scheduler(config, 0)
    for request_id in range(5):
        scheduler.submit(turn(request_id, [request_id] * 5, f"s{request_id}", max_new_tokens=9, stop=99))
    for _ in range(3):
        advance_blindly(scheduler)
    step = scheduler.next_step()
    assert isinstance(step, DecodeStep)
    assert len(step.slots) == 5
