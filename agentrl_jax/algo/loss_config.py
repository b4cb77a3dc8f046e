"""Which loss, how it is corrected for tokens of other policies, and how it is reduced: settings and what they exclude.

A field that is None has the loss's own value; one that is set must mean something to the loss that is chosen.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, get_args

from agentrl_jax.algo.aggregate import Aggregation
from agentrl_jax.algo.corrections import CorrectionName
from agentrl_jax.algo.kl import KlEstimator
from agentrl_jax.errors import ConfigError

_CLIP = ("clip_low", "clip_high", "dual_clip")
_BOUNDS = ("correction_cap", "correction_low", "correction_high")

_OWN: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "grpo": {
            "correction": "behavior_clip",
            "aggregation": "token_mean",
            "clip_low": 0.2,
            "clip_high": 0.2,
            "dual_clip": 3.0,
        },
        "gspo": {
            "correction": "behavior_clip",
            "aggregation": "sequence_mean_token_mean",
            "clip_low": 3e-4,
            "clip_high": 4e-4,
            "dual_clip": "off",
        },
        "cispo": {"correction": "behavior_clip", "aggregation": "token_mean", "clip_low": 1.0, "clip_high": 4.0},
        "policy_gradient": {"correction": "tis", "aggregation": "token_mean"},
        "sft": {},
    }
)
"""What each loss takes, beside the KL to a reference, and its own values."""

_OWN_BOUNDS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "tis": {"correction_cap": 2.0},
        "icepop": {"correction_low": 0.5, "correction_high": 5.0},
        "sequence_mask": {"correction_low": 0.8, "correction_high": 1.25},
    }
)

_PROXIMAL = ("tis", "icepop", "decoupled", "none")
"""Corrections that leave the surrogate a ratio against the proximal policy: 1, on the only step of a batch."""

_EXTERNAL = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings:
    """A `LossConfig` with every value settled. Equal settings are one loss; what a loss does not take is neutral."""

    name: str
    correction: CorrectionName
    aggregation: Aggregation
    constant_length: int
    clip_low: float
    clip_high: float
    dual_clip: float | None
    correction_cap: float
    correction_low: float
    correction_high: float
    kl_coefficient: float
    kl_estimator: KlEstimator

    @property
    def has_clip(self) -> bool:
        """Whether the loss's clip can bind."""
        return "clip_low" in _OWN.get(self.name, {}) and self.correction not in _PROXIMAL


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """What is minimised. Options that the chosen loss does not take are refused; without a value it has its own."""

    name: str = "grpo"
    """grpo, gspo, cispo, policy_gradient, or a function of your own as module:function
    (docs/changing-the-loss.md)"""
    correction: CorrectionName | None = None
    """For tokens that another policy sampled. behavior_clip: clip the ratio to it; tis: weigh by the truncated ratio;
    icepop: by the ratio where it is within bounds; decoupled: by the ratio; sequence_mask: behavior_clip, without
    segments whose mean ratio is out of bounds; none: only if nothing is asynchronous (own values: behavior_clip;
    policy_gradient: tis)"""
    correction_cap: float | None = None
    """Largest weight of tis (own value: 2)"""
    correction_low: float | None = None
    """Least ratio that icepop (own value: 0.5) or sequence_mask (0.8, geometric mean of a segment) keeps"""
    correction_high: float | None = None
    """Largest ratio that icepop (own value: 5) or sequence_mask (1.25) keeps"""
    clip_low: float | None = None
    """The ratio counts down to 1 - clip_low (own values: grpo 0.2, gspo 0.0003, cispo 1, which is no bound)"""
    clip_high: float | None = None
    """The ratio counts up to 1 + clip_high (own values: grpo 0.2, gspo 0.0004, cispo 4)"""
    dual_clip: float | Literal["off"] | None = None
    """Bound of the loss of a bad token, in units of its advantage (own values: grpo 3, gspo off)"""
    aggregation: Aggregation | None = None
    """token_mean: every token weighs the same; sequence_mean_…: every episode, whose tokens are added up or averaged;
    constant_length: added up and divided by --loss.constant-length (own values: token_mean; gspo:
    sequence_mean_token_mean)"""
    constant_length: int | None = None
    """Tokens that constant_length divides by"""
    kl_coefficient: float = 0.0
    """Weight of the divergence from the reference policy, which is the one that training starts from; 0: none is
    kept (published: 0.0001)"""
    kl_estimator: KlEstimator | None = None
    """Of that divergence: k2 or k3 (own value: k3). k1 has no gradient on average and is refused"""

    def __post_init__(self) -> None:
        if self.name not in _OWN and not _EXTERNAL.fullmatch(self.name):
            known = ", ".join(name for name in _OWN if name != "sft")
            raise ConfigError(f"loss name must be {known} or module:function, got {self.name!r}")
        self._check_choices()
        self._check_taken()
        self._check_ranges()
        self._check_kl()

    @property
    def is_external(self) -> bool:
        """Whether `name` is a function of the user's: module:function."""
        return self.name not in _OWN

    @property
    def needs_reference(self) -> bool:
        """Whether batches must carry `reference_logprobs`."""
        return self.kl_coefficient > 0.0

    @property
    def settings(self) -> LossSettings:
        """Every value settled."""
        own = _OWN.get(self.name, {})
        correction = self.correction or own.get("correction", "none")
        neutral = {"clip_low": 1.0, "clip_high": float("inf"), "dual_clip": "off"}
        neutral |= {"correction_cap": float("inf"), "correction_low": 0.0, "correction_high": float("inf")}
        neutral |= {"aggregation": "token_mean", "constant_length": 1, "kl_estimator": "k3"}
        values = {**neutral, **own, **_OWN_BOUNDS.get(correction, {})}
        chosen = {name: getattr(self, name) for name in values if getattr(self, name) is not None}
        values |= chosen | {"correction": correction, "name": self.name, "kl_coefficient": self.kl_coefficient}
        if values["dual_clip"] == "off":
            values["dual_clip"] = None
        return LossSettings(**values)

    def with_choice(self, name: str, correction: CorrectionName | None) -> "LossConfig":
        """The config of another loss or correction: options of the old one are gone, the KL to a reference stays."""
        return replace(
            LossConfig(name=name, correction=correction),
            kl_coefficient=self.kl_coefficient,
            kl_estimator=self.kl_estimator,
        )

    def _check_choices(self) -> None:
        choices = (("correction", CorrectionName), ("aggregation", Aggregation), ("kl_estimator", KlEstimator))
        for field, type_of in choices:
            value = getattr(self, field)
            if value is not None and value not in get_args(type_of):
                raise ConfigError(f"loss {field} must be one of {', '.join(get_args(type_of))}, got {value!r}")
        if self.correction is None:
            return
        if self.name in ("gspo", "cispo") and self.correction in _PROXIMAL:
            reason = {
                "gspo": "against the proximal policy its ratio is 1: with this correction it is grpo",
                "cispo": "its clipped weight is its correction: for another, choose policy_gradient",
            }[self.name]
            raise ConfigError(f"loss correction {self.correction} does not go with {self.name}: {reason}")
        if self.name == "policy_gradient" and self.correction not in _PROXIMAL:
            raise ConfigError(
                f"loss correction {self.correction} does not go with policy_gradient: it has no ratio that could be "
                "clipped or kept; choose tis, icepop or decoupled, or the loss grpo"
            )

    def _check_taken(self) -> None:
        own, settings = _OWN.get(self.name, {}), self.settings
        for field in ("correction", "aggregation", *_CLIP, *_BOUNDS):
            if getattr(self, field) is None:
                continue
            if field in _BOUNDS:
                if field not in _OWN_BOUNDS.get(settings.correction, {}):
                    raise ConfigError(f"loss {field} has no effect with correction {settings.correction}")
            elif field not in own:
                reason = "; its options are in its own code" if self.is_external else ""
                raise ConfigError(f"loss {field} has no effect: the loss {self.name} does not take it{reason}")
            elif field in _CLIP and not settings.has_clip:
                raise ConfigError(
                    f"loss {field} has no effect with correction {settings.correction}: a batch is used for one "
                    "optimiser step, on which the ratio against the proximal policy is 1 and never clipped"
                )
        if (settings.aggregation == "constant_length") != (self.constant_length is not None):
            raise ConfigError(
                "loss constant_length goes with aggregation constant_length, and only with it, got "
                f"{self.constant_length} and {settings.aggregation}"
            )

    def _check_ranges(self) -> None:
        s = self.settings
        if s.has_clip:
            if not 0.0 < s.clip_low <= 1.0 or (s.clip_low == 1.0 and self.name != "cispo"):
                raise ConfigError(f"loss clip_low must be in (0, 1), got {s.clip_low}")
            if not 0.0 < s.clip_high < float("inf"):
                raise ConfigError(f"loss clip_high must be > 0 and finite, got {s.clip_high}")
            if s.dual_clip is not None and not 1.0 < s.dual_clip < float("inf"):
                raise ConfigError(f"loss dual_clip must be > 1 and finite, or off, got {s.dual_clip}")
        if self.correction_cap is not None and not 1.0 <= s.correction_cap < float("inf"):
            raise ConfigError(f"loss correction_cap must be >= 1 and finite, got {s.correction_cap}")
        if s.correction in ("icepop", "sequence_mask") and not (
            0.0 <= s.correction_low < 1.0 < s.correction_high < float("inf")
        ):
            raise ConfigError(
                "loss correction_low and correction_high must hold 1, the ratio of a token of the policy's own, "
                f"between them, got {s.correction_low} and {s.correction_high}"
            )
        if s.constant_length < 1:
            raise ConfigError(f"loss constant_length must be >= 1, got {s.constant_length}")

    def _check_kl(self) -> None:
        if not 0.0 <= self.kl_coefficient < float("inf"):
            raise ConfigError(f"loss kl_coefficient must be finite and >= 0, got {self.kl_coefficient}")
        if self.name == "sft" and self.kl_coefficient:
            raise ConfigError("loss kl_coefficient has no effect: the loss sft does not take it")
        if self.kl_estimator is not None and not self.kl_coefficient:
            raise ConfigError("loss kl_estimator has no effect without a kl_coefficient above 0")
        if self.kl_estimator == "k1":
            raise ConfigError(
                "loss kl_estimator k1 cannot be trained on: its gradient is that of log π, 0 on average whatever the "
                "divergence; k2 has the gradient of the same divergence, k3 the published one"
            )
