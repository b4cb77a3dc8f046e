"""Every option of a loss does something, or is refused with its name."""

import json
import re
from dataclasses import fields, replace

import pytest

from agentrl_jax.algo.loss_config import LossConfig
from agentrl_jax.algo.losses import make_loss
from agentrl_jax.config import TrainConfig
from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.engines.pool import PoolConfig
from agentrl_jax.errors import ConfigError
from tests.algo.loss_layouts import one_micro_batch
from tests.algo.loss_reference import random_segments


def test_without_options_each_loss_has_its_published_ones() -> None:
    grpo, gspo, cispo = (LossConfig(name=name).settings for name in ("grpo", "gspo", "cispo"))
    assert (grpo.clip_low, grpo.clip_high, grpo.dual_clip, grpo.aggregation) == (0.2, 0.2, 3.0, "token_mean")
    assert (gspo.clip_low, gspo.clip_high, gspo.dual_clip) == (3e-4, 4e-4, None)
    assert gspo.aggregation == "sequence_mean_token_mean"
    assert (1 - cispo.clip_low, 1 + cispo.clip_high) == (0.0, 5.0)
    assert LossConfig(name="policy_gradient").settings.correction == "tis"
    assert LossConfig(correction="tis").settings.correction_cap == 2.0
    icepop, masked = (LossConfig(correction=name).settings for name in ("icepop", "sequence_mask"))
    assert (icepop.correction_low, icepop.correction_high) == (0.5, 5.0)
    assert (masked.correction_low, masked.correction_high) == (0.8, 1.25)
    assert LossConfig().settings.kl_coefficient == 0.0


def test_options_that_say_the_default_make_the_same_loss() -> None:
    explicit = LossConfig(clip_low=0.2, dual_clip=3.0, aggregation="token_mean", correction="behavior_clip")
    assert make_loss(explicit) == make_loss(LossConfig())
    assert hash(make_loss(explicit)) == hash(make_loss(LossConfig()))
    assert make_loss(LossConfig(dual_clip="off")) != make_loss(LossConfig())


CHANGES = [
    ({}, {"clip_low": 0.4}),
    ({}, {"clip_high": 0.6}),
    ({}, {"dual_clip": 1.6}),
    ({}, {"dual_clip": "off"}),
    ({}, {"name": "gspo"}),
    ({}, {"name": "cispo"}),
    ({}, {"name": "policy_gradient"}),
    *[({}, {"correction": name}) for name in ("tis", "icepop", "decoupled", "none", "sequence_mask")],
    *[({}, {"aggregation": name}) for name in ("sequence_mean_token_sum", "sequence_mean_token_mean")],
    ({}, {"aggregation": "constant_length", "constant_length": 5}),
    ({"aggregation": "constant_length", "constant_length": 5}, {"constant_length": 7}),
    ({}, {"kl_coefficient": 0.1}),
    ({"kl_coefficient": 0.1}, {"kl_coefficient": 0.2}),
    ({"kl_coefficient": 0.1}, {"kl_estimator": "k2"}),
    *[({"name": "gspo"}, change) for change in ({"clip_low": 0.3}, {"clip_high": 0.3}, {"dual_clip": 1.1})],
    *[({"name": "cispo"}, change) for change in ({"clip_low": 0.3}, {"clip_high": 0.3})],
    ({"correction": "tis"}, {"correction_cap": 1.2}),
    *[({"correction": "icepop"}, change) for change in ({"correction_low": 0.9}, {"correction_high": 1.1})],
    *[({"correction": "sequence_mask"}, change) for change in ({"correction_low": 0.99}, {"correction_high": 2.9})],
]


BATCH = one_micro_batch(random_segments(3, num_sequences=8))


def mean_loss(config: LossConfig) -> float:
    loss = make_loss(config)(*BATCH).loss
    return float(loss.total / loss.weight)


@pytest.mark.parametrize(("start", "change"), CHANGES)
def test_every_option_reaches_the_loss(start: dict, change: dict) -> None:
    assert mean_loss(LossConfig(**start)) != mean_loss(LossConfig(**{**start, **change}))


REFUSED = [
    ({"name": "ppo"}, "loss name must be grpo, gspo, cispo, policy_gradient or module:function, got 'ppo'"),
    ({"name": "a b:c"}, "loss name must be"),
    ({"correction": "ppo"}, "loss correction must be one of behavior_clip, tis"),
    ({"aggregation": "mean"}, "loss aggregation must be one of token_mean"),
    ({"kl_estimator": "abs", "kl_coefficient": 0.1}, "loss kl_estimator must be one of k1, k2, k3"),
    *[({"clip_low": value}, "loss clip_low must be in (0, 1)") for value in (0.0, 1.0, float("nan"))],
    ({"name": "cispo", "clip_low": 1.1}, "loss clip_low must be in (0, 1"),
    *[({"clip_high": value}, "loss clip_high must be > 0") for value in (0.0, float("inf"))],
    *[({"dual_clip": value}, "loss dual_clip must be > 1") for value in (1.0, float("inf"))],
    *[({"name": "policy_gradient", field: 0.3}, f"loss {field} has no effect") for field in ("clip_low", "clip_high")],
    *[({"name": name, "dual_clip": "off"}, "loss dual_clip has no effect") for name in ("cispo", "policy_gradient")],
    *[({"correction": name, "clip_high": 0.3}, "never clipped") for name in ("tis", "icepop", "decoupled", "none")],
    *[({"name": "gspo", "correction": name}, "it is grpo") for name in ("tis", "icepop", "decoupled", "none")],
    *[({"name": "cispo", "correction": name}, "choose policy_gradient") for name in ("tis", "none")],
    *[({"name": "policy_gradient", "correction": n}, "choose tis") for n in ("behavior_clip", "sequence_mask")],
    ({"correction_cap": 2.0}, "loss correction_cap has no effect with correction behavior_clip"),
    ({"correction": "icepop", "correction_cap": 2.0}, "loss correction_cap has no effect with correction icepop"),
    ({"correction": "tis", "correction_low": 0.5}, "loss correction_low has no effect with correction tis"),
    *[({"correction": "tis", "correction_cap": value}, "loss correction_cap must be >= 1") for value in (0.5, -1.0)],
    ({"correction": "icepop", "correction_low": 1.1}, "must hold 1"),
    ({"correction": "sequence_mask", "correction_high": float("inf")}, "must hold 1"),
    ({"aggregation": "constant_length"}, "loss constant_length goes with"),
    ({"constant_length": 5}, "loss constant_length goes with"),
    ({"aggregation": "constant_length", "constant_length": 0}, "loss constant_length must be >= 1"),
    *[({"kl_coefficient": value}, "loss kl_coefficient must be finite") for value in (-1.0, float("nan"))],
    ({"kl_estimator": "k3"}, "loss kl_estimator has no effect without a kl_coefficient"),
    ({"kl_estimator": "k1", "kl_coefficient": 0.1}, "loss kl_estimator k1 cannot be trained on"),
    *[
        ({"name": "sft", field: value}, f"loss {field} has no effect")
        for field, value in {
            "clip_low": 0.1,
            "dual_clip": "off",
            "correction": "tis",
            "aggregation": "token_mean",
            "kl_coefficient": 0.1,
        }.items()
    ],
    *[
        ({"name": "my_loss:loss", field: value}, f"loss {field} has no effect")
        for field, value in {"clip_high": 0.1, "correction": "none", "aggregation": "token_mean"}.items()
    ],
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_what_is_wrong_or_has_no_effect_is_refused_by_name(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        LossConfig(**options)


def test_another_loss_starts_from_its_own_options_and_keeps_the_kl() -> None:
    config = LossConfig(clip_high=0.28, kl_coefficient=1e-4, kl_estimator="k2")
    assert config.with_choice("gspo", None) == LossConfig(name="gspo", kl_coefficient=1e-4, kl_estimator="k2")
    assert config.with_choice("grpo", "tis").settings.clip_high == 0.2


@pytest.mark.parametrize(
    "loss",
    [
        LossConfig(),
        LossConfig(name="gspo", dual_clip=3.0),
        LossConfig(dual_clip="off", kl_coefficient=1e-4, kl_estimator="k2"),
        LossConfig(correction="icepop", correction_low=0.1, aggregation="constant_length", constant_length=64),
        LossConfig(name="my_loss:loss"),
    ],
)
def test_a_saved_config_is_read_back(loss: LossConfig) -> None:
    config = TrainConfig(loss=loss)
    assert TrainConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


def test_every_option_is_explained_and_exercised() -> None:
    changed = {name for _, change in CHANGES for name in change}
    assert {field.name for field in fields(LossConfig)} == changed


def test_asynchronous_training_without_a_correction_is_refused() -> None:
    loss = LossConfig(correction="none")
    synchronous = RolloutConfig(group_size=2, min_groups_per_batch=1, max_staleness=0)
    no_lagging = PoolConfig(lagging_prob=0.0)
    assert TrainConfig(loss=loss, rollout=synchronous, pool=no_lagging).loss == loss
    for rollout, pool, cause in (
        (replace(synchronous, max_staleness=1), no_lagging, "--rollout.max-staleness"),
        (synchronous, PoolConfig(lagging_prob=0.1), "--pool.lagging-prob"),
        (replace(synchronous, task_max_staleness={"kg": 3}), no_lagging, "kg"),
    ):
        with pytest.raises(ConfigError, match=f"asynchronous training with no correction .{cause}"):
            TrainConfig(loss=loss, rollout=rollout, pool=pool)


def test_the_loss_of_the_warm_up_and_senseless_alarms_are_refused() -> None:
    with pytest.raises(ConfigError, match="warm-up"):
        TrainConfig(loss=LossConfig(name="sft"))
    with pytest.raises(ConfigError, match="mismatch-alarm must be > 0"):
        TrainConfig(mismatch_alarm=0.0)
