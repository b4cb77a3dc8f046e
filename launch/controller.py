"""AgentRL's controller for env workers on other machines: `python -m launch.controller`. See `--help`."""

import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

import trio
import tyro

from agentrl_jax.controller.cancellation import unwrapped_errors
from agentrl_jax.controller.monitor import LoopMonitor
from agentrl_jax.controller.remote_config import ListenConfig, RemoteConfig
from agentrl_jax.controller.remote_controller import open_remote_controller
from agentrl_jax.controller.remote_server import ControllerServer
from agentrl_jax.controller.wire_access import Access
from agentrl_jax.errors import ConfigError
from launch.command import parse, printer, refuse

PROGRAM = "launch.controller"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    """Give sessions of tasks that env workers serve to whoever asks, over AgentRL's protocol (HTTP and gRPC, one port).

    Workers and clients of AgentRL work with it as they are. http://HOST:PORT/ shows what goes on, /metrics is for
    Prometheus. Ctrl-C ends it; sessions stay on their workers, and the next controller goes on with them.
    """

    listen: tyro.conf.OmitArgPrefixes[ListenConfig] = field(default_factory=ListenConfig)
    remote: tyro.conf.OmitArgPrefixes[RemoteConfig] = field(default_factory=RemoteConfig)
    long_timeout: bool = False
    """For turns of up to ten minutes, as in the original: --interact-s 600 --expire-s 660 --remember-s 1200"""

    def __post_init__(self) -> None:
        Access(self.listen)
        if not 0 <= self.listen.port < 65536:
            raise ConfigError(f"--port must be in [0, 65536), got {self.listen.port}")
        default = RemoteConfig()
        changed = [name for name in ("interact_s", "expire_s", "remember_s") if self._differs(default, name)]
        if self.long_timeout and changed:
            raise ConfigError(f"--long-timeout sets {', '.join(changed)}: leave one of them out")

    def _differs(self, default: RemoteConfig, name: str) -> bool:
        return bool(getattr(self.remote, name) != getattr(default, name))

    @property
    def timers(self) -> RemoteConfig:
        return self.remote.with_long_timeouts() if self.long_timeout else self.remote


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal comes and return the exit code: 0 ended by Ctrl-C or SIGTERM, 2 wrong settings."""
    config = parse(ControllerConfig, arguments, program=PROGRAM)
    try:
        trio.run(_serve, config, printer())
    except ConfigError as error:
        refuse(error, program=PROGRAM)
    return 0


def log(line: str) -> None:
    """A line of the log, to standard error."""
    print(f"{datetime.now():%Y-%m-%d %H:%M:%S} {line}", file=sys.stderr, flush=True)


async def _serve(config: ControllerConfig, say: Callable[[str], None]) -> None:
    with unwrapped_errors(), trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(serve_controller, config, say))
            async for _ in signals:
                break
            nursery.cancel_scope.cancel()
    say("stopped")


async def serve_controller(config: ControllerConfig, say: Callable[[str], None]) -> None:
    """Serve until cancelled; says the address once it listens. Raises ConfigError if that cannot be had."""
    async with open_remote_controller(config.timers, report=log) as controller, trio.open_nursery() as nursery:
        monitor = LoopMonitor()
        await nursery.start(monitor.run)
        port = await nursery.start(ControllerServer(controller, config.listen, monitor).serve)
        say(f"controller at http://{config.listen.host}:{port}/api and grpc://{config.listen.host}:{port}")


if __name__ == "__main__":
    raise SystemExit(main())
