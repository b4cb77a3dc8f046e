"""How much faster is the asynchronous pipeline than the synchronous baseline, and is the staleness bound kept?

    python -m benchmarks.async_vs_sync [--json] [--quick] [--mode virtual|real|both] [--model FOLDER]

The baseline is the same program with max_staleness 0. Environments have long-tailed latencies of 50 to 500 ms a step
(agentrl_jax/testing/latency.py). In all cases a step consumes one batch of the same size, and the machine is the same:
it has places for so many groups at a time, however many are admitted.

virtual: the real controller, loop and episodes on fakes, in virtual time, so that only scheduling is measured.
  `balanced`: learning and publishing take as long as the rollouts of a batch. `rollout-bound`: a fifth of that. Both
  have places for one batch; `roomy` is rollout-bound with places for all that may be admitted.
real: the joined pipeline on the knowledge-graph environment with real sleeps, and places for two batches. Learner and
  engine share the processor, so that only what waits for environments can be won.

How fast can it get? Let R be the time from a batch's admission to its last episode's end, L and P those of learning
and publishing, r the mean time of a group, B the groups of a batch, C the places, k max_staleness. A synchronous step
takes R + L + P. An asynchronous one takes on average, whatever the order of events, at least

    F(k) = max(L + P,                    the learner works on one batch at a time
               r × B / C,                each of B groups occupies a place for r
               (r + L + P) / (k + 1))    (k + 1) × B permits, each held for r, a step and its publish (Little's law)

so that speedup <= (R + L + P) / F(k). R exceeds r by the long tail: a synchronous batch waits for its slowest group.
r, L and P are measured in the asynchronous run and in its synchronous partner, and the smaller F counts: for real,
the former's are inflated by contention. In virtual time all is counted from the start, and the bound is exact.

A good answer: the bound on group age is never broken (the benchmark fails if it is); in virtual time speedup >= 0.85
of its bound with places for one batch (`roomy`: 0.6, since there the rule of stragglers binds, which F leaves out);
for real more than 1, with the machine to itself. Real runs leave out their first max_staleness + 1 steps:
the first one compiles, and what rollouts store up meanwhile would flatter the asynchronous cases.
"""

import json
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from agentrl_jax.config import TrainConfig
from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.controller.episode import EpisodeConfig
from agentrl_jax.controller.ports import StepRecord
from agentrl_jax.controller.sessions import SessionFactory
from agentrl_jax.engines.local.config import LocalEngineConfig
from agentrl_jax.engines.pool import PoolConfig
from agentrl_jax.env import FamilyOptions
from agentrl_jax.errors import ConfigError
from agentrl_jax.evaluation import EvaluationConfig
from agentrl_jax.learner import LearnerConfig
from agentrl_jax.pipeline import train
from agentrl_jax.runlog import RunLog
from agentrl_jax.sft import WarmUpConfig
from agentrl_jax.sharding import make_mesh, parse_mesh
from agentrl_jax.testing.engine import FakeEngine, constant_latency
from agentrl_jax.testing.envs import EnvScript
from agentrl_jax.testing.latency import DelayedFamily, StepLatency, delayed_sessions
from agentrl_jax.testing.learner import FakeLearner
from agentrl_jax.testing.simulation import Simulation
from agentrl_jax.testing.virtual import run_virtual
from agentrl_jax.types import Task
from benchmarks.figures import Figure, json_lines, summarise, table
from envs.knowledge_graph import family as knowledge_graph
from launch.config import parse

NAME = "async_vs_sync"
STALENESS = (0, 1, 2, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Speed of asynchronous over synchronous training, and the age of what it trains on."""

    json: bool = False
    """One JSON line per figure instead of a table"""
    quick: bool = False
    """Fewer and shorter repeats"""
    mode: Literal["virtual", "real", "both"] = "both"
    """In virtual time on fakes, for real, or both"""
    model: Path | None = None
    """Policy folder for the real mode (default: one made by a short warm-up)"""

    def __post_init__(self) -> None:
        if self.model is not None and self.mode == "virtual":
            raise ConfigError("--model has no effect with --mode virtual; leave it out")
        if self.model is not None and not self.model.is_dir():
            raise ConfigError(f"--model {self.model}: expected a policy folder, but there is none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """num_places: groups that may run at a time. num_steps: of one run, those left out not counted."""

    group_size: int
    groups_per_batch: int
    num_places: int
    num_steps: int
    repeats: int

    def rollout(self, max_staleness: int) -> RolloutConfig:
        return RolloutConfig(
            group_size=self.group_size,
            min_groups_per_batch=self.groups_per_batch,
            max_groups_per_batch=self.groups_per_batch,
            max_staleness=max_staleness,
        )


VIRTUAL = Size(group_size=4, groups_per_batch=8, num_places=8, num_steps=40, repeats=5)
VIRTUAL_QUICK = Size(group_size=2, groups_per_batch=4, num_places=4, num_steps=16, repeats=5)
REAL = Size(group_size=4, groups_per_batch=8, num_places=16, num_steps=16, repeats=2)
REAL_QUICK = replace(REAL, num_steps=6, repeats=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The measured steps of one run, in seconds of its clock. busy_s: learning and publishing, a step; group_s: mean
    time of a group; lag_max: largest token staleness. Ages and lags cover the whole run. num_tokens: of the episodes,
    prompts included; None if tokens are made up."""

    step_s: float
    busy_s: float
    group_s: float
    num_episodes: int
    num_tokens: int | None
    num_steps: int
    age_max: int
    lag_max: int

    @property
    def total_s(self) -> float:
        return self.num_steps * self.step_s

    def floor_s(self, max_staleness: int, size: Size) -> float:
        """F(k) of the module's text."""
        places_s = self.group_s * size.groups_per_batch / size.num_places
        return max(self.busy_s, places_s, (self.group_s + self.busy_s) / (max_staleness + 1))


Repeat = Mapping[int, Measurement]
"""Runs of one repeat, by max_staleness."""


def figures(case: str, repeats: Sequence[Repeat], size: Size) -> Iterator[Figure]:
    """The figures of one case. Raises RuntimeError if a group or a token was older than its bound."""
    for k in repeats[0]:
        pairs = [(repeat[k], repeat[0]) for repeat in repeats]
        for metric, (unit, values) in _figures(k, pairs, size).items():
            yield summarise(values, benchmark=NAME, case=f"{case} max_staleness={k}", metric=metric, unit=unit)


def _figures(
    max_staleness: int, pairs: Sequence[tuple[Measurement, Measurement]], size: Size
) -> dict[str, tuple[str, list[float]]]:
    """Unit and values of each metric; a pair is a run and its synchronous partner."""
    runs = [run for run, _ in pairs]
    oldest = max(max(run.age_max, run.lag_max) for run in runs)
    if oldest > max_staleness:
        raise RuntimeError(f"max_staleness {max_staleness} was broken: a group or a token was {oldest} versions old")
    speedups = [sync.step_s / run.step_s for run, sync in pairs]
    values = {"episodes_per_s": ("1/s", [run.num_episodes / run.total_s for run in runs])}
    tokens = [run.num_tokens / run.total_s for run in runs if run.num_tokens is not None]
    if tokens:
        values["tokens_per_s"] = ("1/s", tokens)
    values["speedup"] = ("", speedups)
    if max_staleness:
        floors = [min(of.floor_s(max_staleness, size) for of in pair) for pair in pairs]
        bounds = [sync.step_s / floor for (_, sync), floor in zip(pairs, floors, strict=True)]
        values["speedup_bound"] = ("", bounds)
        values["bound_frac"] = ("", [speedup / bound for speedup, bound in zip(speedups, bounds, strict=True)])
    values["learner_wait_frac"] = ("", [1 - run.busy_s / run.step_s for run in runs])
    values["group_age_max"] = ("versions", [run.age_max for run in runs])
    values["token_staleness_max"] = ("versions", [run.lag_max for run in runs])
    return values


# Virtual time.


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """learn_s and publish_s of a batch whose rollouts take about 1.8 s; room: places, in batches."""

    learn_s: float
    publish_s: float
    room: int = 1


PACES = {
    "balanced": Pace(learn_s=1.6, publish_s=0.2),
    "rollout-bound": Pace(learn_s=0.25, publish_s=0.1),
    "roomy": Pace(learn_s=0.25, publish_s=0.1, room=max(STALENESS) + 1),
}
TOKEN_S = 0.03


@dataclass(kw_only=True)
class _OneMachine(Simulation):
    """A simulation with slow environments."""

    latency: StepLatency

    def sessions(self) -> SessionFactory:
        return delayed_sessions(super().sessions(), self.latency)


def _two_to_six_turns(task: Task) -> EnvScript:
    return EnvScript(rewards=(*[0.0] * (1 + task.seed % 5), 1.0))


def simulate(pace: Pace, max_staleness: int, *, size: Size, seed: int) -> Measurement:
    """One run in virtual time."""
    simulation = _OneMachine(
        script=_two_to_six_turns,
        config=size.rollout(max_staleness),
        episodes=EpisodeConfig(max_turns=6, max_new_tokens=4, max_context_tokens=4096),
        engine=FakeEngine(
            script=lambda prompt, sampling: (), token_latency=constant_latency(TOKEN_S), publish_s=pace.publish_s
        ),
        learner=FakeLearner(latency_s=lambda step: pace.learn_s),
        latency=StepLatency(seed=seed),
        num_places=size.num_places,
        tasks_per_env=1000,
        seed=seed,
    )
    run_virtual(lambda: simulation.run(size.num_steps))
    records = simulation.records
    busy_s = [record.timings.learn_s + record.timings.publish_s for record in records]
    groups = [group for record in records for group in record.groups]
    return Measurement(
        step_s=fmean(busy + record.timings.collect_s for busy, record in zip(busy_s, records, strict=True)),
        busy_s=fmean(busy_s),
        group_s=fmean(max(t.wall_s for t in group.trajectories) for group in groups),
        num_episodes=sum(len(group.trajectories) for group in groups),
        num_tokens=None,
        num_steps=len(records),
        age_max=max(age for record in records for age in record.ages),
        lag_max=max(map(_lag, records)),
    )


def _lag(record: StepRecord) -> int:
    oldest = min(
        int(turn.completion.versions.min())
        for group in record.groups
        for trajectory in group.trajectories
        for turn in trajectory.turns
    )
    return record.version - oldest


def virtual_figures(size: Size, paces: Iterable[str] = PACES) -> Iterator[Figure]:
    """Every pace; a repeat is a seed, and another order in which trio runs its tasks."""
    for name in paces:
        pace = PACES[name]
        roomy = replace(size, num_places=pace.room * size.num_places)
        repeats = [{k: simulate(pace, k, size=roomy, seed=seed) for k in STALENESS} for seed in range(size.repeats)]
        yield from figures(f"virtual {name}", repeats, roomy)


# Real time.


def real_config(size: Size) -> TrainConfig:
    """What all real runs share. The rate is next to nothing: every case plays with the same policy to the end."""
    return TrainConfig(
        tasks="kg",
        rollout=size.rollout(0),
        engine=LocalEngineConfig(num_slots=size.group_size * size.num_places),
        learner=LearnerConfig(learning_rate=1e-9),
        pool=PoolConfig(lagging_prob=0.0),
        evaluation=EvaluationConfig(num_tasks=0),
        record_batches=False,
    )


SHORT_WARM_UP = WarmUpConfig(demonstrations=1500, copy_steps=80, steps=120)
"""Enough for well-formed calls, which keep the environments busy, and for groups with a signal; not to be good."""


def warm_policy(config: TrainConfig, warm_up: WarmUpConfig, folder: Path) -> Path:
    """Make a policy in `folder` and return where its weights and tokenizer are."""
    run_once(replace(config, warm_up=warm_up, max_steps=0), folder)
    return folder / "model"


def run_once(config: TrainConfig, folder: Path) -> None:
    """One run of the joined pipeline with slow environments, recorded in `folder`. Ctrl-C ends the benchmark."""
    slow = DelayedFamily(family=knowledge_graph(FamilyOptions()))
    with RunLog(folder) as run:
        result = train(config, [slow], make_mesh(parse_mesh("1")), run, lambda line: None)
    if result.is_stopped:
        raise KeyboardInterrupt


def measure(config: TrainConfig, max_staleness: int, *, size: Size, folder: Path) -> Measurement:
    """One real run from `config.model`."""
    num_steps = max_staleness + 1 + size.num_steps
    run_once(replace(config, rollout=size.rollout(max_staleness), max_steps=num_steps), folder)
    steps = [record for record in _records(folder / "metrics.jsonl") if record["kind"] == "step"]
    measured = steps[max_staleness + 1 :]
    group_s: dict[int, float] = {}
    for episode in _records(folder / "episodes.jsonl"):
        if episode["step"] > max_staleness + 1:
            group_s[episode["group"]] = max(group_s.get(episode["group"], 0.0), episode["wall_s"])
    episodes = [step["micro"] for step in measured]
    return Measurement(
        step_s=fmean(step["step_s"] for step in measured),
        busy_s=fmean(step["learn_s"] + step["publish_s"] for step in measured),
        group_s=fmean(group_s.values()),
        num_episodes=round(sum(micro["num_episodes"] for micro in episodes)),
        num_tokens=round(sum(micro["num_episodes"] * micro["episode_tokens"] for micro in episodes)),
        num_steps=len(measured),
        age_max=max(step["age_max"] for step in steps),
        lag_max=max(int(step["metrics"]["token_staleness_max"]) for step in steps),
    )


def _records(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="ascii") as lines:
        yield from map(json.loads, lines)


def real_figures(size: Size, model: Path | None) -> Iterator[Figure]:
    """The cases by turns, in the opposite order every other repeat."""
    config = real_config(size)
    with tempfile.TemporaryDirectory(prefix="async_vs_sync-") as name:
        root = Path(name)
        policy = warm_policy(config, SHORT_WARM_UP, root / "warm") if model is None else model
        config = replace(config, model=policy)
        repeats = []
        for number in range(size.repeats):
            runs: dict[int, Measurement] = {}
            for k in STALENESS[:: -1 if number % 2 else 1]:
                print(f"{NAME}: repeat {number + 1} of {size.repeats}, max_staleness {k}", file=sys.stderr, flush=True)
                runs[k] = measure(config, k, size=size, folder=root / f"{number}-{k}")
            repeats.append({k: runs[k] for k in STALENESS})
    yield from figures("real kg", repeats, size)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures; 0 if the staleness bounds held, else the exception says which did not."""
    options = parse(Options, arguments, program=f"benchmarks.{NAME}")
    found: list[Figure] = []
    if options.mode != "real":
        found += virtual_figures(VIRTUAL_QUICK if options.quick else VIRTUAL)
    if options.mode != "virtual":
        found += real_figures(REAL_QUICK if options.quick else REAL, options.model)
    print("\n".join(json_lines(found)) if options.json else table(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
