"""A controller that is to be killed: it plays an episode whose env hangs, with two processes of its own.

Arguments: the FIFO to which the env announces the three process ids.
"""

import faulthandler
import signal
import sys

import trio

from agentrl_jax.controller.process_sessions import open_process_sessions
from agentrl_jax.env import Action, EnvSource
from agentrl_jax.types import Task

TASK = Task(env="rogue", split="train", index=0, seed=0)


async def main(fifo: str) -> None:
    """Hang in the first step."""
    settings = {"deed": "ignore_sigterm", "announce": fifo, "with_children": True}
    source = EnvSource(target="agentrl_jax.testing.rogue_envs:rogue_envs", arguments=settings)
    async with open_process_sessions(source) as sessions:
        session = sessions(TASK)
        try:
            await session.start()
            await session.interact(Action())
        finally:
            with trio.CancelScope(shield=True):
                await session.close()


if __name__ == "__main__":
    # A shell without job control lets what it starts in the background ignore interrupts, and so all below that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.dump_traceback_later(100)  # who waits for its end wants to know where it hangs
    trio.run(main, sys.argv[1])
