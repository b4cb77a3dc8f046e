"""The learner's step: against a plain reference, on every mesh, and when there is nothing good to learn."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.algo.losses import LossConfig, make_loss
from agentrl_jax.batch import LossOutput, Weighted
from agentrl_jax.errors import ConfigError, NoProgressError, RecordError
from agentrl_jax.learner import Learner, LearnerConfig
from agentrl_jax.learner.config import learning_rate_at
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.decoder import head_matrix, hidden_states
from agentrl_jax.models.params import build_tree, init_params
from agentrl_jax.packing import PackedBatch, PackingConfig, pack_demonstrations
from agentrl_jax.sharding import make_mesh, parse_mesh

MODEL = ModelConfig(vocab_size=32, width=16, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=4, mlp_width=32)
PARAMS = init_params(MODEL, 0)
# A large eps makes the update a smooth function of the gradient, so that comparing params compares gradients.
CONFIG = LearnerConfig(learning_rate=0.1, eps=1.0, max_grad_norm=1e3, temperature=0.8, logprob_chunk=6)
SFT = make_loss(LossConfig(name="sft"))


def make_demonstrations(num=16, seed=0):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(4, 16, num)
    return [(rng.integers(0, 32, n).astype(np.int32), np.r_[False, rng.random(n - 1) < 0.7]) for n in lengths]


def pack(demonstrations=None, *, rows=16, row_tokens=16) -> PackedBatch:
    packing = PackingConfig(row_tokens=(row_tokens,), rows_per_micro_batch=rows)
    return pack_demonstrations(demonstrations or make_demonstrations(), packing)


def make_learner(mesh="1", *, loss=SFT, config=CONFIG, params=PARAMS):
    return Learner(MODEL, config, loss, make_mesh(parse_mesh(mesh)), params)


def flat(tree):
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)])


def same_bits(first, second):
    return jax.tree.all(jax.tree.map(lambda a, b: np.asarray(a).tobytes() == np.asarray(b).tobytes(), first, second))


def plain_loss(params, demonstrations, temperature):
    """The mean negative log-probability of demonstrations of one length, unpacked, over all logits at once."""
    ids, mask = (np.stack(column) for column in zip(*demonstrations, strict=True))
    positions = np.tile(np.arange(ids.shape[1]), (len(ids), 1))
    hidden = hidden_states(MODEL, params, ids, positions, np.ones_like(ids))
    table = jax.nn.log_softmax(hidden @ head_matrix(params) / temperature)[:, :-1]
    picked = jnp.take_along_axis(table, ids[:, 1:, None], axis=-1)[..., 0]
    return -jnp.sum(jnp.where(mask[:, 1:], picked, 0)) / mask.sum()


def test_step_is_that_of_the_plain_gradient():
    demonstrations = [(ids[:8], mask[:8]) for ids, mask in make_demonstrations(40, seed=1) if len(ids) >= 8]
    learner = make_learner()
    metrics = learner.step(pack(demonstrations, rows=8))
    loss, grads = jax.jit(jax.value_and_grad(lambda p: plain_loss(p, demonstrations, 0.8)))(PARAMS)
    assert metrics.loss == pytest.approx(float(loss), abs=1e-5)
    assert metrics.grad_norm == pytest.approx(np.linalg.norm(flat(grads)), rel=1e-5)
    assert (metrics.outcome, metrics.step, metrics.num_skipped) == ("applied", 1, 0)
    assert metrics.learning_rate == pytest.approx(0.1)
    assert all(np.asarray(leaf).any() for leaf in jax.tree.leaves(grads))  # every leaf takes part
    # The first step of Adam: both bias corrections cancel, and the update is g / (|g| + eps).
    expected = jax.tree.map(lambda p, g: p - 0.1 * g / (abs(g) + 1.0), PARAMS, grads)
    np.testing.assert_allclose(flat(learner.host_params()), flat(expected), atol=2e-6)


@pytest.fixture(scope="module")
def after_two_steps():
    """On one device, with two micro-batches of eight rows."""
    learner = make_learner()
    metrics = [learner.step(pack(rows=8)) for _ in range(2)]
    return metrics, flat(learner.host_params())


@pytest.mark.parametrize("mesh", ["16", "data=2,fsdp=4,tensor=2"])
def test_mesh_changes_nothing(mesh, after_two_steps, capfd):
    expected, params = after_two_steps
    learner = make_learner(mesh)
    before = jax.tree.map(lambda leaf: leaf.sharding, learner.state)
    metrics = [learner.step(pack(rows=16)) for _ in range(2)]
    for ours, theirs in zip(metrics, expected, strict=True):
        assert ours.loss == pytest.approx(theirs.loss, abs=1e-5)
        assert ours.grad_norm == pytest.approx(theirs.grad_norm, rel=1e-5)
        assert ours.metrics == pytest.approx(theirs.metrics, rel=1e-5)
    np.testing.assert_allclose(flat(learner.host_params()), params, atol=2e-6)
    assert jax.tree.map(lambda leaf: leaf.sharding, learner.state) == before
    kernel = learner.params["layers"]["mlp"]["up"]["kernel"]
    assert len(kernel.sharding.device_set) == 16
    assert not kernel.sharding.is_fully_replicated
    assert "rematerialization" not in capfd.readouterr().err


def test_micro_batches_and_row_length_change_nothing(after_two_steps):
    expected, params = after_two_steps
    learner = make_learner()
    packed = pack(rows=1, row_tokens=32)
    assert len(packed.micro_batches) > 4
    metrics = [learner.step(packed) for _ in range(2)]
    for ours, theirs in zip(metrics, expected, strict=True):
        assert ours.as_dict() == pytest.approx(theirs.as_dict(), rel=1e-5)
    np.testing.assert_allclose(flat(learner.host_params()), params, atol=2e-6)


def test_order_of_segments_changes_nothing(after_two_steps):
    expected, params = after_two_steps
    learner = make_learner()
    metrics = [learner.step(pack(make_demonstrations()[::-1], rows=8)) for _ in range(2)]
    assert metrics[1].as_dict() == pytest.approx(expected[1].as_dict(), rel=1e-5)
    np.testing.assert_allclose(flat(learner.host_params()), params, atol=2e-6)


def test_equal_shapes_compile_once():
    learner = make_learner()
    learner.step(pack(rows=8))
    before, compiled = learner.num_compiles, []

    def count(name, *_, **__):
        if name.endswith("backend_compile_duration"):
            compiled.append(name)

    array = np.ones(3)
    jax.monitoring.register_event_duration_secs_listener(count)
    for seed in range(10):
        assert learner.step(pack(make_demonstrations(seed=seed), rows=8)).is_applied
    jax.jit(lambda x: x + 41.5)(array)
    jax.monitoring.unregister_event_duration_listener(count)
    assert learner.num_compiles == before
    assert len(compiled) == 1  # the function above, and nothing else


def test_the_batch_is_learnt():
    learner = make_learner()
    losses = [learner.step(pack(rows=8)).loss for _ in range(60)]
    assert losses[-1] < 0.5 * losses[0]


def breakable(logprobs, batch):
    """Advantages weigh the log-probabilities; a version_lag of 1 makes the gradient NaN and leaves the loss finite."""
    mask = batch.loss_mask
    is_broken = batch.version_lag > 0
    root = jnp.sqrt(jnp.where(mask, logprobs, 0) * 0 + 1 - is_broken)
    total = jnp.sum(jnp.where(mask, -logprobs * batch.advantages, 0)) + jnp.sum(jnp.where(mask, root, 0))
    return LossOutput(loss=Weighted(total, jnp.sum(mask)), metrics={"lag": Weighted(jnp.sum(is_broken), jnp.sum(mask))})


def with_field(packed, **changes):
    """Change the trained tokens of the first micro-batch."""

    def change(batch):
        fields = {name: np.where(batch.loss_mask, value, getattr(batch, name)) for name, value in changes.items()}
        return batch._replace(**{name: value.astype(getattr(batch, name).dtype) for name, value in fields.items()})

    return PackedBatch(
        micro_batches=(change(packed.micro_batches[0]), *packed.micro_batches[1:]),
        loss_weight=packed.loss_weight,
        num_loss_tokens=packed.num_loss_tokens,
        num_tokens=packed.num_tokens,
        efficiency=packed.efficiency,
        task_names=packed.task_names,
    )


BREAKABLE = replace(CONFIG, max_skipped_steps=3)


@pytest.mark.parametrize(
    "changes", [{"advantages": np.inf}, {"advantages": np.nan}, {"version_lag": 1}], ids=["inf", "nan", "gradient"]
)
def test_a_step_that_is_not_finite_changes_nothing(changes):
    learner = make_learner(loss=breakable, config=BREAKABLE)
    good = pack(rows=8)
    assert learner.step(good).is_applied
    before = jax.tree.map(lambda leaf: np.array(leaf), learner.state)
    metrics = learner.step(with_field(good, **changes))
    assert (metrics.outcome, metrics.step, metrics.num_skipped) == ("non_finite", 1, 1)
    assert np.isfinite(metrics.loss) == (changes == {"version_lag": 1})
    assert np.isfinite(list(metrics.as_dict().values())).all()
    assert same_bits(learner.state, before)
    metrics = learner.step(good)
    assert (metrics.outcome, metrics.step, metrics.num_skipped) == ("applied", 2, 0)


def test_a_loss_that_is_not_finite_changes_nothing_though_its_gradient_is():
    def broken(logprobs, batch):
        output = SFT(logprobs, batch)
        offset = jnp.where(jnp.any(batch.version_lag > 0), jnp.inf, 0.0)  # a constant: no gradient
        return output._replace(loss=output.loss._replace(total=output.loss.total + offset))

    learner = make_learner(loss=broken)
    before = jax.tree.map(np.array, learner.state)
    metrics = learner.step(with_field(pack(rows=8), version_lag=1))
    assert metrics.outcome == "non_finite"
    assert 0 < metrics.grad_norm < np.inf
    assert same_bits(learner.state, before)


def test_updates_are_adamw_by_hand():
    config = LearnerConfig(
        learning_rate=0.02, warmup_steps=1, beta1=0.6, beta2=0.7, eps=1e-3, max_grad_norm=1e3, temperature=0.8,
        logprob_chunk=6, weight_decay=0.25,
    )  # fmt: skip
    batches = [
        [(ids[:8], mask[:8]) for ids, mask in make_demonstrations(40, seed=seed) if len(ids) >= 8] for seed in (1, 2)
    ]
    decays = build_tree(MODEL, lambda spec: spec.has_decay)
    learner, params = make_learner(config=config), jax.tree.map(np.float64, PARAMS)
    mean = square = jax.tree.map(np.zeros_like, params)
    for count, (demonstrations, rate) in enumerate(zip(batches, (0.01, 0.02), strict=True), start=1):
        metrics = learner.step(pack(demonstrations, rows=8))
        assert metrics.learning_rate == pytest.approx(rate)
        grads = jax.jit(jax.grad(lambda p, taken=demonstrations: plain_loss(p, taken, 0.8)))(
            jax.tree.map(np.float32, params)
        )
        mean = jax.tree.map(lambda m, g: 0.6 * m + 0.4 * np.float64(g), mean, grads)
        square = jax.tree.map(lambda v, g: 0.7 * v + 0.3 * np.float64(g) ** 2, square, grads)

        def move(p, m, v, is_pulled, count=count, rate=rate):
            update = (m / (1 - 0.6**count)) / (np.sqrt(v / (1 - 0.7**count)) + 1e-3)
            return p - rate * (update + 0.25 * is_pulled * p)

        params = jax.tree.map(move, params, mean, square, decays)
    np.testing.assert_allclose(flat(learner.host_params()), flat(params), atol=2e-5)


def test_steps_that_never_become_finite_end_the_run():
    learner = make_learner(loss=breakable, config=BREAKABLE)
    bad = with_field(pack(rows=8), advantages=np.nan)
    for _ in range(2):
        learner.step(bad)
    with pytest.raises(NoProgressError, match="3 learner steps in a row"):
        learner.step(bad)


def test_metrics_are_means_over_all_micro_batches():
    learner = make_learner(loss=breakable, config=BREAKABLE)
    packed = pack(rows=8)
    assert len(packed.micro_batches) > 1
    first = packed.micro_batches[0].loss_mask.sum()
    metrics = learner.step(with_field(packed, version_lag=1)).metrics
    assert metrics["lag"] == pytest.approx(first / packed.num_loss_tokens)
    assert 0 < metrics["entropy"] < np.log(32)


def test_a_batch_without_weight_is_skipped():
    learner = make_learner()
    before = jax.tree.map(lambda leaf: np.array(leaf), learner.state)
    empty = pack([(ids, mask & False) for ids, mask in make_demonstrations()], rows=8)
    for _ in range(CONFIG.max_skipped_steps + 1):  # nothing to learn is not a failure of the learner
        metrics = learner.step(empty)
        assert (metrics.outcome, metrics.step, metrics.num_skipped) == ("zero_weight", 0, 0)
    counts = {"num_skipped": 0.0, "num_late_compiles": 0.0, "is_applied": 0.0}
    assert metrics.as_dict() == pytest.approx({"learning_rate": 0.1} | counts)
    assert same_bits(learner.state, before)


def test_logprobs_are_those_of_the_plain_model():
    packed = pack(rows=8)
    learner = make_learner()
    for batch in packed.micro_batches:
        logprobs = learner.logprobs(batch)
        assert logprobs.dtype == np.float32
        assert not logprobs[(batch.segment_ids == 0) | (batch.positions == 0)].any()
    total = -sum(learner.logprobs(batch)[batch.loss_mask].sum() for batch in packed.micro_batches)
    assert total / packed.loss_weight == pytest.approx(learner.step(packed).loss, abs=1e-5)


@pytest.mark.parametrize("place", [lambda x: x, jax.device_put], ids=["host", "device"])
def test_the_callers_params_stay_the_callers(place):
    given = jax.tree.map(lambda leaf: place(leaf.copy()), PARAMS)
    learner = make_learner(params=given)
    kept = learner.host_params()
    learner.step(pack(rows=8))
    assert same_bits(given, PARAMS)
    assert same_bits(kept, PARAMS)
    assert not same_bits(learner.params, PARAMS)


def test_half_precision_params_become_whole():
    learner = make_learner(params=jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), PARAMS))
    assert {leaf.dtype for leaf in jax.tree.leaves(learner.params)} == {jnp.dtype(jnp.float32)}


def test_gradients_are_clipped_and_matrices_decay():
    learner = make_learner(config=replace(CONFIG, max_grad_norm=0.01, weight_decay=0.5))
    assert learner.step(pack(rows=8)).grad_norm > 0.1
    decays = build_tree(MODEL, lambda spec: spec.has_decay)
    assert not decays["final_norm"]["scale"]
    assert not decays["layers"]["attention"]["q"]["bias"]
    assert decays["embed"]["embedding"]
    assert decays["layers"]["mlp"]["up"]["kernel"]
    decayed = jax.tree.map(lambda leaf, is_pulled: leaf * (1 - 0.1 * 0.5 * is_pulled), PARAMS, decays)
    # With eps 1 and gradients of at most 0.01, the rest is nearly the rate times the clipped gradient.
    moved = np.linalg.norm(flat(learner.host_params()) - flat(decayed))
    assert moved == pytest.approx(0.1 * 0.01, rel=0.01)


def test_state_can_be_restored():
    first, second = make_learner(), make_learner(params=jax.tree.map(lambda leaf: leaf * 0, PARAMS))
    first.step(pack(rows=8))
    saved = jax.tree.map(lambda leaf: np.array(leaf), first.state)
    abstract = first.abstract_state()
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype, leaf.sharding), abstract) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype, leaf.sharding), first.state
    )
    second.restore(saved)
    results = [learner.step(pack(make_demonstrations(seed=5), rows=8)) for learner in (first, second)]
    assert results[0] == results[1]
    assert results[0].step == 2
    assert same_bits(first.state, second.state)


def aligned(leaf):
    """A host copy at an address that a CPU device can use as it is."""
    raw = np.empty(leaf.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    copy = raw[start : start + leaf.nbytes].view(leaf.dtype).reshape(leaf.shape)
    copy[...] = leaf
    return copy


@pytest.mark.parametrize("place", [aligned, lambda leaf: leaf], ids=["host", "device"])
def test_a_restored_state_and_the_callers_are_two(place):
    source, learner = make_learner(), make_learner()
    given = jax.tree.map(place, source.state)
    learner.restore(given)
    if place is aligned:
        for leaf in jax.tree.leaves(given):
            leaf[...] = 7
        assert same_bits(learner.state, source.state)
    learner.step(pack(rows=8))  # takes the buffers of its state
    assert same_bits(source.params, PARAMS)
    assert not same_bits(learner.params, PARAMS)


def test_learning_rate_by_hand():
    config = LearnerConfig(learning_rate=0.2, warmup_steps=3, decay_steps=7)
    rates = [float(learning_rate_at(config, step)) for step in range(9)]
    half = 0.1 * (1 + np.cos(np.pi / 4)), 0.1, 0.1 * (1 - np.cos(np.pi / 4))
    np.testing.assert_allclose(rates, [0.05, 0.1, 0.15, 0.2, *half, 0.0, 0.0], atol=1e-7)
    constant = LearnerConfig(learning_rate=0.2, warmup_steps=1)
    np.testing.assert_allclose([learning_rate_at(constant, step) for step in (0, 1, 10_000)], [0.1, 0.2, 0.2])


def test_rows_must_fit_the_mesh():
    with pytest.raises(ConfigError, match=r"multiple of data\*fsdp = 16.*got 8"):
        make_learner("16").step(pack(rows=8))


def test_ids_outside_of_the_vocabulary_are_refused():
    demonstrations = [(np.array([1, 32, 3], np.int32), np.array([False, True, True]))]
    with pytest.raises(RecordError, match=r"must be in \[0, 32\), got 0 to 32"):
        make_learner().step(pack(demonstrations, rows=8))


def test_params_of_another_model_are_refused():
    with pytest.raises(ConfigError, match=r"embed\.embedding: expected \(32, 16\), got \(31, 16\)"):
        make_learner(params={**PARAMS, "embed": {"embedding": np.zeros((31, 16), np.float32)}})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_rate", 0.0),
        ("learning_rate", float("nan")),
        ("max_grad_norm", -1.0),
        ("beta2", 1.0),
        ("weight_decay", -0.1),
        ("logprob_chunk", 0),
        ("max_skipped_steps", 0),
        ("warmup_steps", -1),
        ("decay_steps", -1),
    ],
)
def test_settings_that_make_no_sense_are_refused(name, value):
    with pytest.raises(ConfigError, match=name):
        LearnerConfig(**{name: value})
    with pytest.raises(ConfigError, match="decay_steps must be 0 or > warmup_steps, got 5 and 5"):
        LearnerConfig(warmup_steps=5, decay_steps=5)
