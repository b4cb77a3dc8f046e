"""A server of a small policy folder, in this process and over a real socket."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio

from agentrl_jax.engines.local.config import LocalEngineConfig
from agentrl_jax.engines.local.engine import open_local_engine
from agentrl_jax.engines.served_generation import ServedModel
from agentrl_jax.engines.server import EngineServer
from agentrl_jax.policy import open_policy
from launch.engine import weights_hasher, weights_loader

CONFIG = LocalEngineConfig(num_slots=2, cache_tokens=64, prefill_shapes=((2, 16),))


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[str]:
    """The address of a server of the policy in `folder`."""
    policy = open_policy(folder)
    model = ServedModel(
        path=str(folder),
        vocab_size=policy.model.vocab_size,
        max_prompt_tokens=CONFIG.cache_tokens - 1,
        load_weights=weights_loader(policy.model),
        hash_weights=weights_hasher(policy.model),
    )
    opening = open_local_engine(model=policy.model, config=CONFIG, weights=policy.load_params(None), version=0)
    async with opening as engine, trio.open_nursery() as nursery:
        server = EngineServer(engine, model)
        port = await nursery.start(partial(server.serve, host="127.0.0.1", port=0))
        yield f"http://127.0.0.1:{port}"
        nursery.cancel_scope.cancel()
