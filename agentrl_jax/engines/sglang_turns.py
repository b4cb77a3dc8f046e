"""One turn as a request of SGLang's /generate, its answer as a `Completion`, and what makes a server unfit. No jax."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from agentrl_jax.engines.sglang_schema import Generated, ModelInfo, ServerInfo, WeightVersion
from agentrl_jax.errors import EngineError
from agentrl_jax.types import Completion, FinishReason, Ids, Pool, SamplingParams, VersionSpan

_NEUTRAL: Mapping[str, Any] = {
    "min_new_tokens": 0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "n": 1,
}
"""What a server may have been started with other defaults for."""


def generate_body(
    rid: str, prompt: Ids, sampling: SamplingParams, *, session: str, cache_version: int
) -> dict[str, Any]:
    """The body of /generate for one turn.

    cache_version: of the oldest weights whose cached prefixes may serve the prompt. Every setting that changes what is
    drawn is named, so that a server's own defaults have no say.
    """
    truncation = sampling.truncation
    return {
        "rid": rid,
        "input_ids": prompt.tolist(),
        "sampling_params": {
            "temperature": sampling.temperature,
            "max_new_tokens": sampling.max_new_tokens,
            "stop_token_ids": list(sampling.stop_ids),
            "sampling_seed": sampling.seed,
            "top_k": truncation.top_k or -1,
            "top_p": truncation.top_p,
            "min_p": truncation.min_p,
            **_NEUTRAL,
        },
        "return_logprob": True,
        "session_id": session,
        "cache_salt": f"v{cache_version}",
    }


_NAMED = {"temperature", "max_new_tokens", "stop_token_ids", "sampling_seed", "top_k", "top_p", "min_p", *_NEUTRAL}


def unfit(server: ServerInfo, model: ModelInfo) -> list[str]:
    """Why log-probabilities of this server would not be those that its ids were drawn with; empty if none is known."""
    reasons = [
        f"it sets {name} = {value!r} for every request (--preferred-sampling-params)"
        for name, value in (model.preferred_sampling_params or {}).items()
        if name not in _NAMED
    ]
    if server.watermark_default_enabled or server.watermark_enforce_all:
        reasons.append("it draws with a watermark (--watermark-default-enabled, --watermark-enforce-all)")
    thresholds = (server.speculative_accept_threshold_single, server.speculative_accept_threshold_acc)
    if server.speculative_algorithm is not None and thresholds != (1.0, 1.0):
        reasons.append(
            f"it accepts drafts that the model would not draw (--speculative-accept-threshold-* {thresholds})"
        )
    return reasons


def to_completion(
    generated: Generated, *, engine: str, pool: Pool, session: str, to_version: Callable[[str | int], int]
) -> Completion:
    """The record of one answered turn; ids whose log-probability is not finite are masked.

    Raises EngineError for an answer that is no whole turn, RecordError where its numbers do not fit each other.
    """
    meta, ids = generated.meta_info, generated.output_ids
    kind = meta.finish_reason.type if meta.finish_reason is not None else "no reason"
    if kind not in ("stop", "length"):
        message = meta.finish_reason.message if meta.finish_reason is not None else ""
        raise EngineError(f"engine {engine} ended a turn of session {session!r} by {kind}: {message}")
    reported = meta.output_token_logprobs
    if reported is None or [token for _, token, _ in reported] != ids or not ids:
        raise EngineError(
            f"engine {engine}: expected a log-probability for each of {len(ids)} ids, got "
            f"{'none' if reported is None else len(reported)} (session {session!r})"
        )
    raw = np.array([math.nan if logprob is None else logprob for logprob, _, _ in reported], np.float32)
    is_finite = np.isfinite(raw)
    unspanned = WeightVersion(version=meta.weight_version or UNNAMED, start=0, end=len(ids))
    finish_reason: FinishReason = "stop" if kind == "stop" else "length"
    return Completion(
        ids=np.array(ids, np.int32),
        logprobs=np.where(is_finite, np.minimum(raw, 0.0), 0.0),
        loss_mask=is_finite,
        version_spans=tuple(
            VersionSpan(version=to_version(span.version), start=span.start, end=span.end)
            for span in meta.weight_versions or [unspanned]
        ),
        finish_reason=finish_reason,
        engine=engine,
        pool=pool,
        cached_tokens=meta.cached_tokens,
    )


UNNAMED = "default"
"""What a server calls the weights that it was started with."""
