"""Evaluate policies on tasks: `python -m launch.evaluate --model PATH --tasks kg`. See `--help`.

Exit code 0: done; 1: it could not get anywhere; 2: wrong settings; 130: stopped by Ctrl-C or SIGTERM.
"""

import json
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import trio
from jax.sharding import Mesh

from agentrl_jax.controller.cancellation import unwrapped_errors
from agentrl_jax.controller.session_kinds import open_sessions
from agentrl_jax.env import EnvFamily, tools_for
from agentrl_jax.errors import ConfigError, NoProgressError
from agentrl_jax.playing.agentrl_files import write_agentrl_files
from agentrl_jax.playing.curves import draw_pass_curves
from agentrl_jax.playing.episode import PlaySetup
from agentrl_jax.playing.mixtures import make_mixtures
from agentrl_jax.playing.records import EpisodeRecord
from agentrl_jax.playing.run import Job, evaluate, jobs
from agentrl_jax.playing.scores import gains, score
from agentrl_jax.playing.store import EvaluationStore
from agentrl_jax.playing.text import score_table
from agentrl_jax.runlog import to_json
from agentrl_jax.seeding import derive_seed
from agentrl_jax.sharding import parse_mesh
from launch.config import env_sources, make_families, printer, refuse
from launch.devices import open_mesh
from launch.evaluate_config import EvaluateConfig, parse_evaluation
from launch.evaluate_policies import open_policies
from launch.evaluate_sources import Source, find_sources
from launch.runs import INTERRUPTED

PROGRAM = "launch.evaluate"

Say = Callable[[str], None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Evaluate, print the scores and return the exit code."""
    try:
        config = parse_evaluation(arguments, program=PROGRAM)
        say = partial(print, file=sys.stderr, flush=True) if config.json else printer()
        sources = find_sources(config.model, config.engine, config.expert, config.name)
        families = make_families(config)
        wanted = _jobs(config, sources, families)
        if config.out is None:
            config = replace(config, out=Path("evaluations") / datetime.now().strftime("%Y%m%d-%H%M%S"))
        mesh = open_mesh(parse_mesh(f"tensor={config.engine_devices}"), say, config.runtime)
        return _evaluate(config, sources, families, wanted, mesh, say)
    except ConfigError as error:
        refuse(error, program=PROGRAM)


def _jobs(config: EvaluateConfig, sources: Sequence[Source], families: Sequence[EnvFamily]) -> list[Job]:
    mixtures = make_mixtures([source.name for source in sources], config.mix, config.weights)
    tasks = []
    for family in families:
        there = family.num_tasks(config.split)
        if config.num_tasks is not None and config.num_tasks > there:
            raise ConfigError(f"--num-tasks {config.num_tasks}: {family.name} has only {there} {config.split} tasks")
        num_tasks = there if config.num_tasks is None else config.num_tasks
        tasks += [family.task(config.split, index) for index in range(num_tasks)]
    return jobs(mixtures, tasks, config.samples)


def _evaluate(
    config: EvaluateConfig,
    sources: Sequence[Source],
    families: Sequence[EnvFamily],
    wanted: Sequence[Job],
    mesh: Mesh,
    say: Say,
) -> int:
    assert config.out is not None
    settings = config.settings({source.name: source.to_json() for source in sources})
    problem = ""
    with EvaluationStore(config.out, settings) as store:
        say(f"evaluation: {config.out}")
        try:
            is_stopped = trio.run(_play, config, sources, families, wanted, store, mesh, say)
        except NoProgressError as error:
            problem, is_stopped = str(error), False
        episodes = [store.episodes[job.key] for job in wanted if job.key in store.episodes]
        _conclude(config, settings, episodes, store, say)
    if problem:
        say(f"{PROGRAM}: {problem}")
    if is_stopped or problem:
        say(f"{len(episodes)} of {len(wanted)} episodes were played; the same command with --out {config.out} goes on")
    return INTERRUPTED if is_stopped else int(bool(problem))


async def _play(
    config: EvaluateConfig,
    sources: Sequence[Source],
    families: Sequence[EnvFamily],
    wanted: Sequence[Job],
    store: EvaluationStore,
    mesh: Mesh,
    say: Say,
) -> bool:
    """Play what is left; True if a signal has cut it short."""
    if all(store.is_finished(job.key) for job in wanted):
        say(f"all {len(wanted)} episodes are there already")
        return False
    kinds, envs = config.session_kinds(families), env_sources(config, families)
    is_stopped = False
    with unwrapped_errors():
        async with trio.open_nursery() as nursery:

            async def stop_on_signal(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
                nonlocal is_stopped
                with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                    task_status.started()
                    async for _ in signals:
                        is_stopped = True
                        nursery.cancel_scope.cancel()
                        return

            await nursery.start(stop_on_signal)
            async with (
                open_policies(sources, families, config, mesh, say) as policies,
                open_sessions(families, kinds, envs, max_threads=config.max_concurrent) as sessions,
            ):
                setups = {
                    family.name: PlaySetup(
                        sessions=sessions[family.name],
                        tools_of=partial(tools_for, family),
                        policies=policies,
                        config=config.episode_of(family),
                        seed=derive_seed(config.seed, "evaluate"),
                    )
                    for family in families
                }
                limits = {"max_concurrent": config.max_concurrent, "max_failures": config.max_failures}
                await evaluate(wanted, setups, store, say, **limits)
            nursery.cancel_scope.cancel()
    return is_stopped


def _conclude(
    config: EvaluateConfig,
    settings: Mapping[str, Any],
    episodes: Sequence[EpisodeRecord],
    store: EvaluationStore,
    say: Say,
) -> None:
    """Say and write what the episodes that are there have come to."""
    if not episodes:
        return
    scores = score(episodes)
    results = {
        "settings": settings,
        "num_samples": config.samples,
        "scores": [found.to_json() for found in scores],
        "gains": gains(episodes, scores[0].mixture),
    }
    path = store.write_results(results)
    picture = store.folder / "pass_at_k.png"
    if draw_pass_curves(scores, picture):
        say(f"curves: {picture}")
    if config.agentrl_files:
        write_agentrl_files(episodes, store.folder / "agentrl")
    if config.json:
        print(json.dumps(json.loads(to_json(results)), indent=2))
    else:
        for line in score_table(scores):
            say(line)
    say(f"results: {path}")


if __name__ == "__main__":
    raise SystemExit(main())
