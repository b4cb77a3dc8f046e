"""The process that removes a driver's containers when the driver's process dies, however it does.

It holds the other end of a pipe of that process, and does nothing before that is closed.
"""

import os
import signal
import sys

COMMAND = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from envs.sandbox.docker_janitor import main; main()"
)
"""For `python -c`, with `sys.path` as JSON, the engine's URL or nothing, and the driver's mark; stdin is the pipe."""


def main() -> None:
    """Wait, then remove every container with the mark, until there is none: one may still be on its way."""
    url, mark = sys.argv[2] or None, sys.argv[3]
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while os.read(0, 4096):
        pass
    from envs.sandbox.docker_engine import connect, remove_marked

    remove_marked(connect(url), mark)
