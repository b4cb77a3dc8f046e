"""A training run that kills itself, with SIGKILL, in the middle of what it does: `python -m tests.launch.killed_run`.

Arguments: a moment, which of them (1: the first of this process), seconds after its beginning, and those of
`launch.train`.
"""

import os
import signal
import sys
from collections.abc import Callable
from threading import Timer
from typing import Any

from agentrl_jax import pipeline
from agentrl_jax.checkpoint import CheckpointStore
from agentrl_jax.controller.ledger import Ledger
from agentrl_jax.rollouts import Rollouts
from agentrl_jax.run_local_engines import LocalEngines
from launch.train import main

MOMENTS: dict[str, tuple[Any, str]] = {
    "collecting": (Ledger, "collect"),
    "training": (pipeline, "build_batch"),
    "publishing": (LocalEngines, "publish"),
    "saving": (CheckpointStore, "save"),
    "evaluating": (Rollouts, "evaluate"),
}


def kill_in(moment: str, number: int, seconds: float) -> None:
    """Arrange for the `number`-th `moment` of this process to be its last."""
    owner, name = MOMENTS[moment]
    do: Callable[..., Any] = getattr(owner, name)
    num_begun = 0

    def killed(*args: Any, **kwargs: Any) -> Any:
        nonlocal num_begun
        num_begun += 1
        if num_begun == number:
            print(f"killed while {moment}", flush=True)
            Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return do(*args, **kwargs)

    setattr(owner, name, killed)


if __name__ == "__main__":
    kill_in(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
    sys.exit(main(sys.argv[4:]))
