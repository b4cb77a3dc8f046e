"""Several turns of one request at a time, answered as a whole or as a stream of what they have so far. No jax."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import msgspec
import trio

from agentrl_jax.engines.http_server import HttpProblem, Send
from agentrl_jax.engines.served_turns import Turn
from agentrl_jax.errors import EngineError

Serve: TypeAlias = Callable[[Turn], Awaitable[None]]
"""Runs a turn to its end. Raises EngineError or HttpProblem."""

Content: TypeAlias = Callable[[int], dict[str, Any] | None]
"""What is to be shown of the turn at an index; None: nothing yet."""


async def serve_turns(turns: Sequence[Turn], serve: Serve) -> None:
    """Run all of them; raises what the first one that fails does."""
    async with trio.open_nursery() as nursery:
        for turn in turns:
            nursery.start_soon(_serve, turn, serve)
    for turn in turns:
        if turn.failure is not None:
            raise turn.failure


async def stream_turns(turns: Sequence[Turn], serve: Serve, content: Content, send: Send) -> None:
    """Run all of them; send a turn's content whenever there is more of it, and once at its end, or why it failed."""
    announce, arrived = trio.open_memory_channel[None](1)
    changed: dict[int, None] = {}
    ended: set[int] = set()

    def on_news(index: int) -> None:
        if index not in ended:
            changed[index] = None
            if not announce.statistics().current_buffer_used:
                announce.send_nowait(None)

    async def serve_all() -> None:
        with announce:
            async with trio.open_nursery() as nursery:
                for index, turn in enumerate(turns):
                    turn.on_news = partial(on_news, index)
                    nursery.start_soon(_serve, turn, serve)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_all)
        async for _ in arrived:
            while changed:
                index = next(iter(changed))
                del changed[index]
                failure = turns[index].failure
                if failure is not None or turns[index].finish_reason is not None:
                    ended.add(index)
                event = content(index) if failure is None else {"error": {"message": str(failure), "code": 503}}
                if event is not None:
                    await send(msgspec.json.encode(event))
    await send(b"[DONE]")


async def _serve(turn: Turn, serve: Serve) -> None:
    try:
        await serve(turn)
    except (EngineError, HttpProblem) as error:
        turn.failure = error
    turn.on_news()
