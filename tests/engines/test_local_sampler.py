"""The sampler draws from softmax(logits / temperature), by the seed and the index alone."""

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_jax.engines.local.sampler import _invert_sums, draw_uniforms, keeps, sample
from agentrl_jax.engines.local.steps import Samplings, Truncations, seed_words
from agentrl_jax.errors import RecordError
from agentrl_jax.models.layers import ban
from agentrl_jax.seeding import derive_seed
from agentrl_jax.types import SamplingParams, Truncation

LOGITS = np.array([1.0, -0.5, 0.3, 2.0, 0.0], np.float32)
SAMPLE, KEEPS = jax.jit(sample), jax.jit(keeps)


def draw(
    logits: npt.NDArray[np.float32], seeds: list[int], indices: list[int], temperature: float
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    rows = np.broadcast_to(logits, (len(seeds), logits.shape[-1]))
    words = np.stack([seed_words(seed) for seed in seeds])
    uniforms = jax.jit(draw_uniforms)(words, np.array(indices, np.int32))
    ids, logprobs = jax.jit(sample)(rows, uniforms, np.full(len(seeds), temperature, np.float32))
    return np.asarray(ids), np.asarray(logprobs)


def log_softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    wide = logits.astype(np.float64)
    return wide - np.logaddexp.reduce(wide)


def test_seed_words_are_the_two_halves() -> None:
    assert seed_words(0x1234567_89ABCDEF).tolist() == [0x1234567, 0x89ABCDEF]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("axis", ["seeds", "indices"])
def test_draws_follow_the_softmax(temperature: float, axis: str) -> None:
    count = 20_000
    many, one = [derive_seed("chi", i) for i in range(count)], [derive_seed("chi")] * count
    seeds, indices = (many, [0] * count) if axis == "seeds" else (one, list(range(count)))
    ids, logprobs = draw(LOGITS, seeds, indices, temperature)
    expected = log_softmax(LOGITS / np.float32(temperature))
    np.testing.assert_allclose(logprobs, expected[ids], atol=1e-6)
    observed = np.bincount(ids, minlength=5)
    chi2 = ((observed - count * np.exp(expected)) ** 2 / (count * np.exp(expected))).sum()
    assert chi2 < 20.0  # 4 degrees of freedom: p = 5e-4, and the seeds are fixed


def test_greedy_takes_the_largest_logit_with_its_logprob_at_temperature_1() -> None:
    ids, logprobs = draw(LOGITS, [1, 2, 3], [0, 1, 2], 0.0)
    assert ids.tolist() == [3, 3, 3]
    np.testing.assert_allclose(logprobs, log_softmax(LOGITS)[3], atol=1e-6)


@given(st.lists(st.integers(0, 2**63 - 1), min_size=2, max_size=2, unique=True), st.integers(0, 3), st.integers(0, 40))
def test_a_draw_ignores_its_row_and_the_other_rows(seeds: list[int], row: int, index: int) -> None:
    logits = np.linspace(0.0, 0.1, 64, dtype=np.float32)  # nearly flat: another draw would show
    alone, _ = draw(logits, [seeds[0]] * 4, [index] * 4, 1.0)
    mixed_seeds, mixed_indices = [seeds[1]] * 4, [index + 1, 7, 8, 9]
    mixed_seeds[row], mixed_indices[row] = seeds[0], index
    mixed, _ = draw(logits, mixed_seeds, mixed_indices, 1.0)
    assert alone[0] == alone[1] == mixed[row]


def test_both_halves_of_a_seed_count() -> None:
    logits = np.zeros(1 << 16, np.float32)
    ids, _ = draw(logits, [5, 5 + (1 << 32), 6, 5 + (1 << 62)], [0] * 4, 1.0)
    assert len(set(ids.tolist())) == 4


@pytest.mark.parametrize("size", [128, 129, 700, 1024])  # one block, a ragged second one, several
def test_draws_from_many_ids_follow_the_softmax(size: int) -> None:
    logits = np.random.default_rng(size).normal(scale=2.0, size=size).astype(np.float32)
    count = 40_000
    ids, logprobs = draw(logits, [derive_seed("many", i) for i in range(count)], [0] * count, 1.0)
    expected = log_softmax(logits)
    np.testing.assert_allclose(logprobs, expected[ids], atol=1e-5)
    often = count * np.exp(expected) >= 5  # the others are one class together
    observed = np.bincount(ids, minlength=size)
    classes = np.append(observed[often], observed[~often].sum())
    means = count * np.append(np.exp(expected[often]), np.exp(expected[~often]).sum())
    deviation = (((classes - means) ** 2 / means).sum() - often.sum()) / np.sqrt(2 * often.sum())
    assert deviation < 3.3  # of chi squared from its mean, in its standard deviations; the seeds are fixed


def test_uniform_numbers_choose_by_hand() -> None:
    """Weights 1, 2, 1 in the third block of five, nothing in the others: quarters of the second number."""
    logits = np.full((8, 600), -np.inf, np.float32)
    logits[:, [260, 300, 380]] = np.log(np.array([1.0, 2.0, 1.0], np.float32))
    last = np.nextafter(np.float32(1), np.float32(0))
    seconds = [0.0, 0.24, 0.26, 0.74, 0.76, last, 0.0, last]
    firsts = [0.0, 0.0, 0.5, 0.5, last, last, last, 0.0]
    uniforms = np.array([firsts, seconds], np.float32).T
    ids, logprobs = jax.jit(sample)(logits, uniforms, np.ones(8, np.float32))
    assert ids.tolist() == [260, 260, 300, 300, 380, 380, 260, 380]
    np.testing.assert_allclose(np.exp(logprobs), np.where(np.asarray(ids) == 300, 0.5, 0.25), rtol=1e-6)


@given(st.integers(0, 2**31), st.integers(2, 700), st.sampled_from([0.0, 0.5, 1 - 2**-24]), st.data())
@settings(max_examples=20)
def test_an_id_of_probability_0_is_never_drawn(seed: int, size: int, uniform: float, data: st.DataObject) -> None:
    generator = np.random.default_rng(seed)
    is_possible = generator.random(size) < data.draw(st.sampled_from([0.01, 0.5]))
    is_possible[generator.integers(size)] = True
    logits = np.where(is_possible, generator.normal(scale=30, size=size), -np.inf).astype(np.float32)
    padded = np.pad(logits, (0, 700 - size), constant_values=-np.inf)
    ids, logprobs = SAMPLE(padded[None], np.full((1, 2), uniform, np.float32), np.ones(1, np.float32))
    assert padded[ids[0]] > -np.inf
    assert np.isfinite(logprobs).all()


def test_sums_are_inverted_by_hand() -> None:
    weights = np.array([[0, 1, 2, 0, 1, 0]] * 5, np.float32)
    last = np.nextafter(np.float32(1), np.float32(0))  # times a sum, it may be that sum
    uniforms = np.array([[0.0, 0.25, 0.74, 0.75, last]], np.float32).T
    assert np.asarray(_invert_sums(weights, uniforms)).tolist() == [1, 2, 2, 4, 4]
    rounded = np.array([[np.nextafter(np.float32(2), np.float32(0)), 0]], np.float32)
    assert np.asarray(_invert_sums(rounded, np.array([[last]]))).tolist() == [0]


def test_sums_that_are_rounded_up_at_a_weight_of_0_do_not_choose_it() -> None:
    """Parallel sums of more than 128 weights may grow, or fall, by their rounding alone."""
    generator = np.random.default_rng(0)
    weights = np.where(generator.random((2000, 384)) < 0.5, generator.random((2000, 384)), 0).astype(np.float32)
    sums = np.asarray(jax.jit(lambda rows: jnp.cumsum(rows, axis=-1))(weights))
    rows, ranks = np.nonzero((np.diff(sums) > 0) & (weights[:, 1:] == 0))
    before, total = sums[rows, ranks], sums[rows, -1]
    uniforms = before / total
    is_between = (before <= uniforms * total) & (uniforms * total < sums[rows, ranks + 1])
    assert is_between.sum() > 10
    chosen = np.asarray(jax.jit(_invert_sums)(weights[rows], uniforms[:, None]))
    assert (weights[rows, chosen] > 0).all()


def test_the_first_of_several_likeliest_is_taken_greedily() -> None:
    logits = np.array([[0.0, 3.0, 1.0, 3.0]], np.float32)
    ids, logprobs = sample(logits, np.full((1, 2), 0.99, np.float32), np.zeros(1, np.float32))
    assert ids.tolist() == [1]
    np.testing.assert_allclose(logprobs, log_softmax(logits[0])[1], atol=1e-6)


def test_banned_ids_have_probability_0_and_the_rest_is_renormalised() -> None:
    banned = np.asarray(ban(LOGITS[None], (3, 0)))[0]
    ids, logprobs = draw(banned, list(range(500)), [0] * 500, 1.0)
    assert set(ids.tolist()) == {1, 2, 4}
    kept = log_softmax(LOGITS[[1, 2, 4]])
    np.testing.assert_allclose(logprobs, kept[np.searchsorted([1, 2, 4], ids)], atol=1e-6)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_finite_give_an_id_with_a_logprob_that_is_not_finite(
    bad: float, temperature: float
) -> None:
    logits = np.stack([LOGITS, np.where(LOGITS == 2.0, np.float32(bad), LOGITS)])
    ids, logprobs = draw(logits, [0, 0], [0, 0], temperature)
    assert 0 <= ids[1] < len(LOGITS)
    assert np.isfinite(logprobs).tolist() == [True, False]


@pytest.mark.parametrize(
    ("truncation", "kept"),
    [
        (Truncation(), [0, 1, 2, 3]),
        (Truncation(top_k=2), [1, 3]),
        (Truncation(top_k=9), [0, 1, 2, 3]),
        (Truncation(top_p=0.39), [3]),
        (Truncation(top_p=0.45), [1, 3]),
        (Truncation(min_p=0.6), [1, 3]),
        (Truncation(min_p=0.4), [1, 2, 3]),
        (Truncation(top_p=0.75), [1, 2, 3]),
        (Truncation(top_k=3, top_p=0.75), [1, 3]),  # 0.4 and 0.3 are 0.78 of the three
        (Truncation(top_k=2, top_p=0.5, min_p=0.9), [3]),
    ],
)
def test_a_truncation_keeps_what_it_says_beside_other_rows(truncation: Truncation, kept: list[int]) -> None:
    probs = np.array([0.1, 0.3, 0.2, 0.4], np.float32)
    samplings = Samplings(3)
    stop = {"temperature": 1.0, "max_new_tokens": 1, "stop_ids": (9,)}
    samplings.assign(1, SamplingParams(seed=1, truncation=truncation, **stop))
    samplings.assign(2, SamplingParams(seed=2, truncation=Truncation(top_k=1), **stop))
    truncations = samplings.draws(np.arange(3, dtype=np.int32), np.zeros(3, np.int32)).truncations
    assert truncations is not None
    rows = np.asarray(jax.jit(keeps)(np.broadcast_to(np.log(probs), (3, 4)), truncations))
    assert [np.flatnonzero(row).tolist() for row in rows] == [[0, 1, 2, 3], kept, [3]]


def kept_by_sorting(scores: npt.NDArray[np.float32], cut: Truncation) -> npt.NDArray[np.bool_]:
    """The definition, in double precision: rank by rank."""
    falling = np.argsort(-scores, kind="stable")
    ranked = np.exp(scores[falling].astype(np.float64) - scores.max())
    is_in = np.arange(len(scores)) < (cut.top_k or len(scores))
    probs = np.where(is_in, ranked, 0.0) / ranked[is_in].sum()
    is_in &= (np.cumsum(probs) - probs < cut.top_p) & (probs >= cut.min_p * probs[0])
    kept = np.zeros(len(scores), np.bool_)
    kept[falling[: max(is_in.sum(), 1)]] = True
    return kept


@given(
    st.integers(0, 2**31),
    st.integers(0, 70),
    st.sampled_from([0.05, 0.5, 0.9, 0.999, 1.0]),
    st.sampled_from([0.0, 0.01, 0.3, 1.0]),
)
@settings(max_examples=40)
def test_truncations_keep_what_sorting_keeps(seed: int, top_k: int, top_p: float, min_p: float) -> None:
    scores = np.random.default_rng(seed).normal(scale=3.0, size=64).astype(np.float32)
    cuts = Truncations(np.array([top_k], np.int32), np.array([top_p], np.float32), np.array([min_p], np.float32))
    kept = np.asarray(KEEPS(scores[None], cuts))[0]
    expected = kept_by_sorting(scores, Truncation(top_k=top_k, top_p=top_p, min_p=min_p))
    np.testing.assert_array_equal(kept, expected)


def test_a_share_of_1_keeps_what_does_not_show_in_the_sum() -> None:
    cuts = Truncations(np.zeros(1, np.int32), np.ones(1, np.float32), np.full(1, 1e-30, np.float32))
    assert np.asarray(keeps(np.array([[0.0, -30.0, -40.0, -80.0]], np.float32), cuts)).tolist() == [
        [True, True, True, False]
    ]


def test_ids_as_likely_as_the_last_that_is_kept_are_kept() -> None:
    cuts = Truncations(np.array([2], np.int32), np.ones(1, np.float32), np.zeros(1, np.float32))
    rows = np.array([[1.0, -np.inf, 2.0, 1.0, -3.0]], np.float32)
    assert np.asarray(keeps(rows, cuts)).tolist() == [[True, False, True, True, False]]


def test_truncated_draws_follow_the_kept_ids_with_the_whole_distributions_logprobs() -> None:
    count = 20_000
    seeds = np.stack([seed_words(derive_seed("cut", i)) for i in range(count)])
    cuts = Truncations(np.full(count, 3, np.int32), np.ones(count, np.float32), np.zeros(count, np.float32))
    rows, uniforms = np.broadcast_to(LOGITS, (count, 5)), draw_uniforms(seeds, np.zeros(count, np.int32))
    ids, logprobs = jax.jit(sample)(rows, uniforms, np.ones(count, np.float32), cuts)
    assert set(np.asarray(ids).tolist()) == {0, 2, 3}
    np.testing.assert_allclose(logprobs, log_softmax(LOGITS)[np.asarray(ids)], atol=1e-6)
    expected = np.exp(log_softmax(LOGITS[[0, 2, 3]])) * count
    chi2 = ((np.bincount(ids, minlength=5)[[0, 2, 3]] - expected) ** 2 / expected).sum()
    assert chi2 < 15.2  # 2 degrees of freedom: p = 5e-4, and the seeds are fixed


def test_a_row_that_is_not_finite_stays_so_when_it_is_truncated() -> None:
    bad = np.stack([np.where(LOGITS == 2.0, np.float32(np.nan), LOGITS), LOGITS])
    cuts = Truncations(np.array([2, 0], np.int32), np.ones(2, np.float32), np.zeros(2, np.float32))
    _, logprobs = sample(bad, np.zeros((2, 2), np.float32), np.ones(2, np.float32), cuts)
    assert np.isfinite(logprobs).tolist() == [False, True]


def test_a_slot_that_is_given_up_truncates_nothing() -> None:
    samplings = Samplings(1)
    cut = Truncation(top_k=4, top_p=0.5, min_p=0.5)
    samplings.assign(0, SamplingParams(temperature=1.0, max_new_tokens=1, seed=1, stop_ids=(9,), truncation=cut))
    samplings.release(0)
    truncations = samplings.draws(np.zeros(1, np.int32), np.zeros(1, np.int32)).truncations
    assert truncations is not None
    assert [part.tolist() for part in truncations] == [[0], [1.0], [0.0]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"top_k": -1}, "top_k"), ({"top_p": 0.0}, "top_p"), ({"top_p": 1.1}, "top_p"), ({"min_p": -0.1}, "min_p")],
)
def test_truncations_that_mean_nothing_are_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(RecordError, match=message):
        Truncation(**changes)  # type: ignore[arg-type]
