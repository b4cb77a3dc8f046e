"""Plays sessions on engines: a task each, whose turns wait for one another and not for the other sessions."""

from collections.abc import Awaitable, Callable, Sequence

import trio

from agentrl_jax.engines.protocol import Engine
from agentrl_jax.types import SamplingParams, as_ids
from benchmarks.engine_load import Load

Choose = Callable[[int, int], Engine]


async def play_sessions(
    load: Load,
    engines: Sequence[Engine],
    *,
    seed: int,
    vocab_size: int,
    choose: Choose | None = None,
    after_turn: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Play all sessions at once; `choose` names the engine of a session's turn, the first of `engines` by default.

    Raises RuntimeError for a turn of another length than was asked for.
    """
    prompts, replies = load.prompts(seed, vocab_size), load.replies(seed, vocab_size)

    async def play(number: int) -> None:
        ids, name = as_ids(prompts[number // load.group]), f"{seed}-{number}"
        for turn in range(load.turns):
            sampling = SamplingParams(
                temperature=1.0,
                max_new_tokens=load.new_tokens,
                seed=load.turns * number + turn,
                stop_ids=(vocab_size,),  # never sampled
            )
            engine = engines[0] if choose is None else choose(number, turn)
            completion = await engine.generate(ids, sampling, session=name)
            if len(completion.ids) != load.new_tokens:
                raise RuntimeError(f"expected {load.new_tokens} sampled ids, got {len(completion.ids)}")
            ids = as_ids([*ids, *completion.ids, *replies[number, turn]])
            if after_turn is not None:
                await after_turn()
        for engine in engines:
            await engine.end_session(name)

    async with trio.open_nursery() as nursery:
        for number in range(load.sessions):
            nursery.start_soon(play, number)
