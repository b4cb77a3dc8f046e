"""Which adapter runs the envs of which family, and how long its threads and processes live."""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import trio

from agentrl_jax.controller.process_sessions import open_process_sessions
from agentrl_jax.controller.sessions import RemotelyPlayed, SessionFactory, thread_sessions
from agentrl_jax.env import EnvFamily, EnvSource, SessionKind
from agentrl_jax.errors import ConfigError


@asynccontextmanager
async def open_sessions(
    families: Iterable[EnvFamily],
    kinds: Mapping[str, SessionKind],
    sources: Mapping[str, EnvSource],
    *,
    max_threads: int,
) -> AsyncIterator[Mapping[str, SessionFactory]]:
    """Session factories by family name. No process outlives the block.

    kinds, sources: by family name; a source is needed for processes only. max_threads: of each family, so that one
    whose envs hang takes no thread from another. Raises ConfigError if a family cannot run in processes.
    """
    async with AsyncExitStack() as stack:
        sessions: dict[str, SessionFactory] = {}
        for family in families:
            if isinstance(family, RemotelyPlayed):
                sessions[family.name] = await stack.enter_async_context(family.open_sessions())
                continue
            if kinds[family.name] == "thread":
                sessions[family.name] = thread_sessions(family.make, trio.CapacityLimiter(max_threads))
                continue
            if family.name not in sources:
                raise ConfigError(f"{family.name} has no source to make its envs from in another process: use threads")
            opened = open_process_sessions(sources[family.name])
            sessions[family.name] = await stack.enter_async_context(opened)
        yield sessions
