"""Whether an engine's log-probabilities are the learner's, asked of a few drawn ids. No jax."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import numpy as np

from agentrl_jax.engines.protocol import Engine
from agentrl_jax.errors import EngineError
from agentrl_jax.types import Floats, Ids, SamplingParams, as_ids

Score: TypeAlias = Callable[[Ids, float], Awaitable[Floats]]
"""(ids [n], temperature) → float32 [n - 1]: log softmax(logits / temperature) of ids[1:] after what precedes each, by
the weights that the engine has been given."""

NUM_IDS = 8
_MAX_TURNS = 32
_SESSION = "log-probability probe"


async def probe_logprobs(
    engine: Engine, score: Score, *, prompt: Ids, stop_ids: Sequence[int], temperature: float, tolerance: float
) -> float:
    """Draw eight ids after `prompt`, in as many turns as that takes.

    Returns the largest |engine's - ours| of their log-probabilities.
    temperature: > 0, of training; an engine may well be right at 1 only. tolerance: 1e-4 where both compute in
    float32, some 0.1 in bfloat16. Raises EngineError beyond it, or if a log-probability is not finite, with what
    would explain it.
    """
    if not temperature > 0:
        raise EngineError(f"a probe draws at the training temperature, which must be > 0, got {temperature}")
    worst, num_ids, seed = 0.0, 0, 0
    while num_ids < NUM_IDS and seed < _MAX_TURNS:
        params = SamplingParams(
            temperature=temperature, max_new_tokens=NUM_IDS - num_ids, seed=seed, stop_ids=tuple(stop_ids)
        )
        completion = await engine.generate(prompt, params, session=_SESSION)
        if not completion.loss_mask.all():
            raise EngineError(f"engine {engine.name}: log-probabilities that are not finite, for ids {completion.ids}")
        ids = as_ids([*prompt, *completion.ids])
        ours = (await score(ids, temperature))[len(prompt) - 1 :]
        differences = np.abs(completion.logprobs - ours)
        if not differences.max() <= tolerance:  # NaN too
            raise EngineError(await _explain(engine, score, ids, completion.logprobs, ours, temperature, tolerance))
        worst = max(worst, float(differences.max()))
        num_ids, seed = num_ids + len(completion.ids), seed + 1
    await engine.end_session(_SESSION)
    return worst


async def _explain(
    engine: Engine, score: Score, ids: Ids, theirs: Floats, ours: Floats, temperature: float, tolerance: float
) -> str:
    at_one = (await score(ids, 1.0))[-len(theirs) :]
    if temperature != 1 and np.abs(theirs - at_one).max() <= tolerance:
        reason = "they are those at temperature 1: SGLang must run without SGLANG_RETURN_ORIGINAL_LOGPROB"
    else:
        reason = "it serves other weights, in another precision, or another architecture"
    shown = ", ".join(f"{a:.4f} (ours {b:.4f})" for a, b in zip(theirs.tolist(), ours.tolist(), strict=True))
    return (
        f"engine {engine.name}: expected log-probabilities within {tolerance} of the learner's at temperature "
        f"{temperature}, got {shown}; {reason}"
    )
