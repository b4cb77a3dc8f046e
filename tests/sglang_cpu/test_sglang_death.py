"""A SGLang server with a token that serves the learner's log-probabilities, dies within a turn, and comes back."""

from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import trio

from agentrl_jax.engines.probe import probe_logprobs
from agentrl_jax.engines.sglang import SGLangEngine, open_sglang_engine
from agentrl_jax.engines.weight_folder import tensor_shapes
from agentrl_jax.errors import EngineError
from agentrl_jax.models.decoder import hidden_states
from agentrl_jax.models.layers import head_matrix
from agentrl_jax.models.load import load_pretrained
from agentrl_jax.models.logprobs import token_logprobs
from agentrl_jax.types import Floats, Ids, SamplingParams, as_ids
from tests.sglang_cpu.models import CHAT_MODEL, write_chat_policy
from tests.sglang_cpu.reset import slow_down
from tests.sglang_cpu.servers import free_port, running_server

pytestmark = pytest.mark.sglang

TOKEN = "a secret"
PROMPT = as_ids(range(40, 90))
PARAMS = SamplingParams(temperature=0.7, max_new_tokens=40, seed=0, stop_ids=(CHAT_MODEL.vocab_size,))


class Learner:
    """The learner's log-probabilities of a checkpoint, as its loss takes them."""

    def __init__(self, folder: Path) -> None:
        self._weights = load_pretrained(folder)[1]

    async def score(self, ids: Ids, temperature: float) -> Floats:
        await trio.lowlevel.checkpoint()
        return np.asarray(self._logprobs(np.asarray(ids)[None], temperature))[0, 1:]

    def _logprobs(self, ids: Any, temperature: float) -> Any:
        positions, segment_ids = np.arange(ids.shape[1])[None], np.ones_like(ids)
        hidden = hidden_states(CHAT_MODEL, self._weights, ids, positions, segment_ids)
        scored = partial(token_logprobs, temperature=temperature, chunk_tokens=64, banned_ids=())
        return jax.jit(scored)(hidden, head_matrix(self._weights), ids, positions, segment_ids)[0]


async def test_a_server_that_dies_and_comes_back(installed: None, chat_folder: Path, tmp_path: Path) -> None:
    newer, port = write_chat_policy(tmp_path, 1), free_port()
    tensors, flags = tensor_shapes(chat_folder), ["--api-key", TOKEN]
    with running_server(chat_folder, port=port, core=1, flags=flags) as server:
        for token in (None, "another"):
            with pytest.RaisesGroup(pytest.RaisesExc(EngineError, match="answered 401"), flatten_subgroups=True):
                async with open_sglang_engine(server.url, tensors=tensors, name="sg", token=token):
                    pass
        async with open_sglang_engine(server.url, tensors=tensors, name="sg", token=TOKEN) as engine:
            probe = {"prompt": PROMPT, "stop_ids": (CHAT_MODEL.vocab_size,), "temperature": 0.7, "tolerance": 1e-4}
            assert await probe_logprobs(engine, Learner(chat_folder).score, **probe) < 1e-4
            await engine.publish(newer, 1)
            learner = Learner(newer)
            completion = await engine.generate(PROMPT, PARAMS, session="s")
            ids = as_ids([*PROMPT, *completion.ids])
            ours = (await learner.score(ids, PARAMS.temperature))[len(PROMPT) - 1 :]
            np.testing.assert_allclose(completion.logprobs, ours, atol=1e-4)

            await slow_down(server, 0.1, token=TOKEN)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fail_within_a_turn, engine)
                await trio.sleep(0.5)
                server.kill()
            with pytest.raises(EngineError, match="cannot reach"):
                await engine.generate(PROMPT, PARAMS, session="s")
            with pytest.raises(EngineError, match="cannot reach"):
                await engine.publish(newer, 2)

            with running_server(chat_folder, port=port, core=1, flags=flags):
                with pytest.raises(EngineError, match="serves version 0, but was given 1: it has been restarted"):
                    await engine.generate(PROMPT, PARAMS, session="s")
                await engine.publish(newer, 1)
                assert await probe_logprobs(engine, learner.score, **probe) < 1e-4


async def fail_within_a_turn(engine: SGLangEngine) -> None:
    # One that nothing had come of on a kept connection is sent again, to nobody.
    with pytest.raises(EngineError, match=r"broke off /generate|cannot reach"):
        await engine.generate(PROMPT, PARAMS, session="s")
