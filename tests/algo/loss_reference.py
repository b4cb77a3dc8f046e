"""Losses transcribed token by token in float64, without rows: what any layout of the same tokens must give.

A token's cost and its slope are written out by hand, so that no automatic differentiation is involved.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agentrl_jax.algo.loss_config import LossConfig, LossSettings

FIELDS = ("logprobs", "behavior", "reference", "advantages", "lag")


@dataclass(frozen=True, kw_only=True)
class TokenSegment:
    """Arrays [L]: of one segment of the trajectory `sequence`, which has a signal or not."""

    sequence: int
    has_signal: bool
    mask: np.ndarray
    logprobs: np.ndarray
    behavior: np.ndarray
    reference: np.ndarray
    advantages: np.ndarray
    lag: np.ndarray


def random_segments(seed: int, *, num_sequences: int = 4) -> list[TokenSegment]:
    """One or two segments a trajectory, of 2 to 7 tokens; the second trajectory has no signal."""
    rng = np.random.default_rng(seed)
    segments = []
    for sequence in range(num_sequences):
        for _ in range(rng.integers(1, 3)):
            length = rng.integers(2, 8)
            mask = rng.random(length) < 0.7
            mask[0], mask[-1] = False, True
            logprobs = -rng.uniform(0.1, 3.0, length)
            scale = rng.choice([0.05, 0.5, 1.5])  # on-policy segments and others
            behavior = logprobs - rng.normal(0.0, scale, length)
            segments.append(
                TokenSegment(
                    sequence=sequence,
                    has_signal=sequence != 1,
                    mask=mask,
                    logprobs=logprobs,
                    behavior=behavior,
                    reference=logprobs - rng.normal(0.0, 0.5, length),
                    advantages=rng.normal(0.0, 1.0, length) * (sequence != 1),
                    lag=rng.integers(0, 3, length),
                )
            )
    return segments


def reference_loss(segments: Sequence[TokenSegment], config: LossConfig) -> tuple[float, list[np.ndarray]]:
    """The minimised mean, and its slope in every token's log-probability."""
    s = config.settings
    costs = [_costs(segment, s) for segment in segments]
    policy = _shares(segments, s, signal_only=True)
    mean = sum(float(share @ cost) for share, (cost, _) in zip(policy, costs, strict=True))
    slopes = [share * slope for share, (_, slope) in zip(policy, costs, strict=True)]
    if s.kl_coefficient:
        for i, (segment, share) in enumerate(zip(segments, _shares(segments, s, signal_only=False), strict=True)):
            r = segment.reference - segment.logprobs
            value, slope = {"k2": (r * r / 2, -r), "k3": (np.exp(r) - 1 - r, 1 - np.exp(r))}[s.kl_estimator]
            mean += s.kl_coefficient * float(share @ value)
            slopes[i] = slopes[i] + s.kl_coefficient * share * slope
    return mean, slopes


def _shares(segments: Sequence[TokenSegment], s: LossSettings, *, signal_only: bool) -> list[np.ndarray]:
    """What part of the mean each token is."""
    counted = [segment.mask * (segment.has_signal or not signal_only) for segment in segments]
    tokens = {segment.sequence: 0 for segment in segments}
    for segment, here in zip(segments, counted, strict=True):
        tokens[segment.sequence] += int(here.sum())
    num_sequences = sum(count > 0 for count in tokens.values())
    shares = []
    for segment, here in zip(segments, counted, strict=True):
        divisor = {
            "token_mean": sum(tokens.values()),
            "sequence_mean_token_sum": num_sequences,
            "sequence_mean_token_mean": num_sequences * max(tokens[segment.sequence], 1),
            "constant_length": num_sequences * s.constant_length,
        }[s.aggregation]
        shares.append(here / divisor)
    return shares


def _costs(segment: TokenSegment, s: LossSettings) -> tuple[np.ndarray, np.ndarray]:
    log_ratio = segment.logprobs - segment.behavior
    geometric_mean = np.exp(log_ratio[segment.mask].mean())
    costs, slopes = np.zeros(len(log_ratio)), np.zeros(len(log_ratio))
    for t in np.flatnonzero(segment.mask):
        ratio, advantage = np.exp(log_ratio[t]), segment.advantages[t]
        weight = {
            "tis": min(ratio, s.correction_cap),
            "icepop": ratio if s.correction_low <= ratio <= s.correction_high else 0.0,
            "decoupled": ratio,
            "sequence_mask": float(s.correction_low <= geometric_mean <= s.correction_high),
        }.get(s.correction, 1.0)
        if s.correction in ("tis", "icepop", "decoupled", "none"):
            ratio = 1.0
        if s.name == "gspo":
            ratio = geometric_mean
        if s.name in ("grpo", "gspo"):
            cost, slope = _surrogate(ratio, advantage, s)
        elif s.name == "cispo":
            clipped = min(max(ratio, 1 - s.clip_low), 1 + s.clip_high)
            cost, slope = -clipped * advantage * segment.logprobs[t], -clipped * advantage
        else:
            cost, slope = -advantage * segment.logprobs[t], -advantage
        costs[t], slopes[t] = weight * cost, weight * slope
    return costs, slopes


def _surrogate(ratio: float, advantage: float, s: LossSettings) -> tuple[float, float]:
    if advantage >= 0 and ratio > 1 + s.clip_high:
        return -advantage * (1 + s.clip_high), 0.0
    if advantage < 0 and ratio < 1 - s.clip_low:
        return -advantage * (1 - s.clip_low), 0.0
    if advantage < 0 and s.dual_clip is not None and ratio > s.dual_clip:
        return -advantage * s.dual_clip, 0.0
    return -advantage * ratio, -advantage * ratio
