"""A tiny model, an engine configuration whose shapes do not divide each other, and a plain NumPy forward pass."""

from contextlib import AbstractAsyncContextManager
from typing import Any

import numpy as np

from agentrl_jax.engines.local.config import LocalEngineConfig
from agentrl_jax.engines.local.engine import LocalEngine, open_local_engine
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.params import build_tree
from agentrl_jax.types import Completion, SamplingParams

MODEL = ModelConfig(
    vocab_size=19, width=16, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=4, mlp_width=24, rope_theta=10_000.0
)
CONFIG = LocalEngineConfig(num_slots=4, cache_tokens=45, prefill_shapes=((2, 4), (3, 8)), decode_block=3)


def random_weights(seed: int, model: ModelConfig = MODEL) -> dict[str, Any]:
    """Weights with large biases, scales and logits, so that nothing can be left out unnoticed."""
    generator = np.random.default_rng(seed)

    def draw(spec: Any) -> Any:
        centre = 1.0 if spec.path[-1] == "scale" else 0.0
        return (centre + 0.4 * generator.normal(size=spec.shape)).astype(np.float32)

    return build_tree(model, draw)


def open_tiny(**changes: Any) -> AbstractAsyncContextManager[LocalEngine]:
    arguments: dict[str, Any] = {"model": MODEL, "config": CONFIG, "weights": random_weights(0), "version": 0}
    return open_local_engine(**(arguments | changes))


def params(**changes: Any) -> SamplingParams:
    arguments: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 8, "seed": 0, "stop_ids": (MODEL.vocab_size,)}
    return SamplingParams(**(arguments | changes))


def reference_logprobs(weights: dict[str, Any], ids: Any, temperature: float, model: ModelConfig = MODEL) -> Any:
    """float64 [T, V]: log_softmax(logits / temperature) after each prefix; one plain pass, no cache, no batch."""
    w: Any = _as_float64(weights)
    ids = np.asarray(ids)
    half = model.head_dim // 2
    angles = np.arange(len(ids))[:, None] * model.rope_theta ** (-np.arange(half) / half)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    future = np.triu(np.ones((len(ids), len(ids)), bool), 1)

    def norm(x: Any, scale: Any) -> Any:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + model.norm_eps) * scale

    def rotate(x: Any) -> Any:
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    x = w["embed"]["embedding"][ids]
    for i in range(model.num_layers):
        layer = _at(w["layers"], i)
        attention, mlp = layer["attention"], layer["mlp"]
        h = norm(x, layer["input_norm"]["scale"])
        q, k, v = (np.einsum("td,dhk->thk", h, attention[n]["kernel"]) + attention[n]["bias"] for n in "qkv")
        repeats = model.num_heads // model.num_kv_heads
        k, v = (np.repeat(part, repeats, axis=1) for part in (rotate(k), v))
        scores = np.einsum("thk,shk->hts", rotate(q), k) / np.sqrt(model.head_dim)
        scores = np.where(future, -np.inf, scores)
        mix = np.exp(scores - scores.max(-1, keepdims=True))
        mix /= mix.sum(-1, keepdims=True)
        x = x + np.einsum("hts,shk,hkd->td", mix, v, attention["o"]["kernel"])
        h = norm(x, layer["post_norm"]["scale"])
        gate = h @ mlp["gate"]["kernel"]
        x = x + (gate / (1 + np.exp(-gate)) * (h @ mlp["up"]["kernel"])) @ mlp["down"]["kernel"]
    head = w["embed"]["embedding"].T if model.tie_embeddings else w["lm_head"]["kernel"]
    logits = norm(x, w["final_norm"]["scale"]) @ head / (temperature or 1.0)
    return logits - np.logaddexp.reduce(logits, -1, keepdims=True)


def check_logprobs(
    weights: dict[int, dict[str, Any]],
    prompt: Any,
    completion: Completion,
    temperature: float,
    model: ModelConfig = MODEL,
) -> None:
    """Every token's log-probability is that of its own version's plain forward pass over everything before it."""
    ids = np.concatenate([prompt, completion.ids])
    assert completion.loss_mask.all()
    for span in completion.version_spans:
        table = reference_logprobs(weights[span.version], ids[:-1], temperature, model)[len(prompt) - 1 :]
        rows = np.arange(span.start, span.end)
        chosen = completion.ids[rows]
        np.testing.assert_allclose(completion.logprobs[rows], table[rows, chosen], atol=1e-4)
        if temperature == 0:
            np.testing.assert_array_equal(chosen, table[rows].argmax(-1))


def _as_float64(node: Any) -> Any:
    if isinstance(node, dict):
        return {name: _as_float64(child) for name, child in node.items()}
    return np.asarray(node, np.float64)


def _at(node: Any, index: int) -> Any:
    return {name: _at(child, index) for name, child in node.items()} if isinstance(node, dict) else node[index]
