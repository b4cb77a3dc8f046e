"""What every engine on a network owes when its server is started again: mix it into a subclass of `EngineContract`."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agentrl_jax.engines.protocol import Engine
from agentrl_jax.errors import EngineError
from tests.engines.contract import PARAMS, PROMPT


class RestartContract:
    """Give it a `restart` fixture too, which puts a new server of version 0 in the place of the old one, twice."""

    def weights(self, version: int) -> Any:
        raise NotImplementedError

    async def test_a_server_that_was_started_again_is_noticed_and_serves_what_it_is_given_anew(
        self, engine: Engine, restart: Callable[[], Awaitable[None]]
    ) -> None:
        await engine.publish(self.weights(5), 5)
        before = await engine.generate(PROMPT, PARAMS, session="s")
        for session in ("s", "t"):
            await restart()
            with pytest.raises(EngineError, match="serves version 0, but was given 5: it has been restarted"):
                await engine.generate(PROMPT, PARAMS, session=session)
            assert engine.version == 0
            await engine.publish(self.weights(5), 5)
            after = await engine.generate(PROMPT, PARAMS, session=session)
            assert (set(after.versions), after.cached_tokens) == ({5}, 0)
            assert after.ids.tolist() == before.ids.tolist()

    async def test_a_server_of_the_first_version_may_be_started_again_unnoticed(
        self, engine: Engine, restart: Callable[[], Awaitable[None]]
    ) -> None:
        before = await engine.generate(PROMPT, PARAMS, session="s")
        await restart()
        after = await engine.generate(PROMPT, PARAMS, session="s")
        assert after.ids.tolist() == before.ids.tolist()
        assert after.cached_tokens == 0
