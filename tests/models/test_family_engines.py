"""The embedded engine's forward pass is the decoder's, chunk by chunk and token by token.

For every family but qwen2, which tests/engines holds against double precision.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from agentrl_jax.engines.local.cache import init_caches
from agentrl_jax.engines.local.forward import decode_block, prefill_chunk
from agentrl_jax.engines.local.steps import Draws
from agentrl_jax.engines.local.weights import split_layers
from agentrl_jax.models.decoder import head_matrix, hidden_states
from agentrl_jax.models.load import load_pretrained

GOLDEN = Path(__file__).with_name("golden")
NAMES = ("qwen3", "llama3", "glm", "glm4-biased")
SLOT = np.zeros(1, np.int32)


def greedy(index: int) -> Draws:
    return Draws(np.zeros((1, 2), np.uint32), np.full(1, index, np.int32), np.zeros(1, np.float32))


@pytest.mark.parametrize("name", NAMES)
def test_prompts_and_blocks_give_the_decoders_logprobs(name: str) -> None:
    model, params = load_pretrained(GOLDEN / name)
    model = replace(model, num_layers=1)  # the engine unrolls its layers: time to compile
    params = params | {"layers": jax.tree.map(lambda leaf: leaf[:1], params["layers"])}
    prompt = np.random.default_rng(3).integers(0, model.vocab_size, 10).astype(np.int32)
    prefill = jax.jit(partial(prefill_chunk, model=model, banned_ids=()))
    decode = jax.jit(partial(decode_block, model=model, banned_ids=(), num_steps=2))

    caches: Any = init_caches(model, 1, 16, np.float32)
    served = []
    for start in (0, 5):
        chunk, counts = prompt[None, start : start + 5], np.full(1, 5, np.int32)
        caches, token, logprob = prefill(
            split_layers(params), caches, chunk, SLOT, np.full(1, start, np.int32), counts, greedy(start)
        )
        served.append((start + 4, int(token[0]), float(logprob[0])))
    caches, tokens, logprobs = decode(split_layers(params), caches, token, np.full(1, 10, np.int32), greedy(10))
    served += [(10 + step, int(tokens[step, 0]), float(logprobs[step, 0])) for step in range(2)]

    ids = np.array([[*prompt, served[1][1], *(token for _, token, _ in served[2:3])]], np.int32)
    positions = np.arange(ids.shape[1])[None]
    logits = jax.jit(hidden_states, static_argnums=0)(model, params, ids, positions, np.ones_like(ids))
    table = np.asarray(jax.nn.log_softmax(logits @ head_matrix(params)))[0]
    for position, token, logprob in served:
        assert token == table[position].argmax()
        np.testing.assert_allclose(logprob, table[position].max(), atol=1e-5)
