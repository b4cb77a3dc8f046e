"""Serve an environment to a controller of AgentRL's protocol: `python -m launch.worker TASK`. See `--help`."""

import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import trio
import tyro

from agentrl_jax.controller.hosted_sessions import HostConfig, open_session_host
from agentrl_jax.controller.process_sessions import check_platform
from agentrl_jax.controller.session_kinds import open_sessions
from agentrl_jax.engines.http_server import check_bind
from agentrl_jax.engines.token_files import chosen_token
from agentrl_jax.env import EnvFamily, EnvRegistry, FamilyOptions, SessionKind, check_sandbox, traits_of
from agentrl_jax.errors import ConfigError
from agentrl_jax.types import Split
from envs import register_all
from envs.worker.serve import Place, serve
from envs.worker.service import EnvService, Service
from envs.worker.task_config import TaskEntry, read_entry
from envs.worker.task_service import TaskService, open_task_service
from launch.command import parse, printer, refuse

PROGRAM = "launch.worker"

_ENV_ONLY = ("name", "split", "level", "seed", "data", "max_turns", "concurrency", "upstream_compat", "sandbox")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Serve one task of AgentRL's protocol: an environment of this package or of an installed one, or a task class.

    The first Ctrl-C or SIGTERM lets the sessions end that live, the second ends them.
    """

    task: Annotated[str, tyro.conf.Positional]
    """An environment (alfworld), a task class (package.module:Class), or with --config the name of an entry"""
    config: Annotated[Path | None, tyro.conf.arg(aliases=["-c"])] = None
    """Configuration file of AgentRL's workers, whose entry TASK names a task class and its parameters"""
    controller: Annotated[str, tyro.conf.arg(aliases=["-C"])] = "http://127.0.0.1:5020/api"
    """The controller's API, http://host:port/api, or grpc://host:port to dial out instead of listening"""
    controller_token: str | None = None
    """What the controller wants as `Authorization: Bearer TOKEN`"""
    controller_token_file: Path | None = None
    """The same, from a file that only its owner may read"""
    host: str = "127.0.0.1"
    """Address to listen on. One that other machines can reach needs --token"""
    port: int = 5021
    """TCP port; 0: the system's choice, which is printed"""
    address: Annotated[str | None, tyro.conf.arg(aliases=["-s"])] = None
    """The worker's API as the controller reaches it (default: http://HOST:PORT/api)"""
    token: str | None = None
    """What callers must send, as a bearer token or as the first part of the path; the address that the controller is
    told contains it"""
    token_file: Path | None = None
    """The same, from a file that only its owner may read"""
    name: str | None = None
    """What the controller calls the task (default: ENVIRONMENT-SPLIT)"""
    split: str = "train"
    """Tasks to serve: train, eval, or a named data set of the environment (alfworld: valid_seen, std, …)"""
    level: int = 1
    """Difficulty of the tasks"""
    seed: int = 0
    """Everything random about the tasks is derived from it"""
    data: Path | None = None
    """Folder of real task data; without it the environment generates its own tasks"""
    max_turns: int | None = None
    """Turns of a session at the most (default: the environment's own limit)"""
    concurrency: int = 16
    """Sessions at a time"""
    session_kind: SessionKind | None = None
    """Where a session runs: on a thread, or in a process of its own that can be killed if it hangs (default: what the
    environment declares; task classes on threads, as in AgentRL's own worker)"""
    upstream_compat: bool = False
    """Reproduce the faults of the published environments too"""
    sandbox: str | None = None
    """What runs the programs that the policy writes: bubblewrap, bubblewrap:FOLDER (a root file system), docker, or
    docker:URL (default: this machine's Docker engine if it has the images, else bubblewrap)"""
    call_deadline_s: float = 600.0
    """A start or turn that takes longer ends its session"""
    idle_expiry_s: float = 1320.0
    """A session that nobody uses for so long is closed; longer than any controller keeps one"""
    drain_s: float = 30.0
    """How long sessions may go on once the worker is to end"""

    def __post_init__(self) -> None:
        check_bind(self.host, chosen_token(self.token, self.token_file))
        if not 0 <= self.port < 65536:
            raise ConfigError(f"--port must be in [0, 65536), got {self.port}")
        for name in ("concurrency", "max_turns"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"--{name.replace('_', '-')} must be >= 1, got {value}")
        if self.data is not None and not self.data.is_dir():
            raise ConfigError(f"--data {self.data}: expected a folder of task data, but there is none")
        if self.is_task_class:
            default = WorkerConfig.__dataclass_fields__
            idle = [name for name in _ENV_ONLY if getattr(self, name) != default[name].default]
            if idle:
                flags = ", ".join(f"--{name.replace('_', '-')}" for name in idle)
                raise ConfigError(f"{flags}: of no effect with a task class, which brings its own; leave them out")

    @property
    def is_task_class(self) -> bool:
        """Whether a class of AgentRL's task API is served, and no environment."""
        return self.config is not None or ":" in self.task

    @property
    def place(self) -> Place:
        return Place(
            controller=self.controller,
            controller_token=chosen_token(self.controller_token, self.controller_token_file, flag="--controller-token"),
            host=self.host,
            port=self.port,
            address=self.address,
            token=chosen_token(self.token, self.token_file),
            drain_s=self.drain_s,
        )

    @property
    def options(self) -> FamilyOptions:
        """Of an environment; a split that is a named data set stands for the held-out tasks."""
        return FamilyOptions(
            seed=self.seed,
            data=self.data,
            level=self.level,
            upstream_compat=self.upstream_compat,
            eval_set=self.split if self.split not in ("train", "eval") else None,
            sandbox=self.sandbox,
        )

    @property
    def hosting(self) -> HostConfig:
        return HostConfig(call_deadline_s=self.call_deadline_s, idle_expiry_s=self.idle_expiry_s)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal comes and return the exit code: 0 ended by Ctrl-C or SIGTERM, 2 wrong settings."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        config = parse(WorkerConfig, arguments, program=PROGRAM)
        place = config.place
        if config.session_kind == "process":
            check_platform()
        trio.run(_serve, config, place, printer())
    except* ConfigError as errors:
        refuse(_first(errors), program=PROGRAM)
    return 0


async def _serve(config: WorkerConfig, place: Place, say: Callable[[str], None]) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            stop = trio.Event()
            nursery.start_soon(_run, config, place, say, stop, nursery.cancel_scope)
            async for _ in signals:
                if stop.is_set():
                    break
                stop.set()
            nursery.cancel_scope.cancel()
    say("stopped")


async def _run(
    config: WorkerConfig, place: Place, say: Callable[[str], None], stop: trio.Event, everything: trio.CancelScope
) -> None:
    async with open_service(config) as service:
        await serve(service, place, say, stop)
        if isinstance(service, TaskService) and service.num_left:
            # Threads of task classes that never end would keep the interpreter from ending.
            say(f"stopped, with {service.num_left} sessions whose task did not end")
            sys.stdout.flush()
            os._exit(0)
    everything.cancel()


def make_family(config: WorkerConfig) -> EnvFamily:
    """The family that `config` names. Raises ConfigError."""
    family = _registry().make(config.task, config.options)
    check_sandbox(config.sandbox, [family])
    return family


def _registry() -> EnvRegistry:
    registry = EnvRegistry()
    register_all(registry)
    return registry


@asynccontextmanager
async def open_service(config: WorkerConfig) -> AsyncIterator[Service]:
    """What `config` names, ready to serve. Raises ConfigError."""
    if config.is_task_class:
        entry = TaskEntry(module=config.task) if config.config is None else read_entry(config.config, config.task)
        kind = config.session_kind or "thread"
        async with open_task_service(entry.module, entry.parameters, kind=kind, config=config.hosting) as task:
            yield task
        return
    split: Split = "train" if config.split == "train" else "eval"
    family = make_family(config)
    kinds = {family.name: config.session_kind or traits_of(family).session_kind}
    sources = {family.name: _registry().source(config.task, config.options)}
    async with (
        open_sessions([family], kinds, sources, max_threads=config.concurrency) as sessions,
        open_session_host(sessions, config.hosting) as host,
    ):
        yield EnvService(
            family,
            split,
            host,
            name=config.name or f"{family.name}-{config.split}",
            concurrency=config.concurrency,
            max_turns=config.max_turns or family.max_turns,
        )


def _first(errors: BaseExceptionGroup[ConfigError]) -> ConfigError:
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


if __name__ == "__main__":
    raise SystemExit(main())
