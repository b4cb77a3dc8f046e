"""One simulated training run: the real loop, ledger, permits, places, pool and episodes over service times.

Real: everything in agentrl_jax/controller and agentrl_jax/engines/pool.py. Modelled (service_model.py): how long
engines, learner, publishes and environments take. A turn is an event, a token is not. Time is virtual, and a case's
seed decides everything, the order of tasks too: the same case gives the same outcome.

`split`: engines run on some GPUs, the learner on the others. `colocated`: both on all of them, which only
max_staleness 0 allows, where nothing is sampled while a step is taken.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import trio

from agentrl_jax.controller.collector import calm_collector
from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.controller.episode import EpisodeConfig, EpisodeSetup
from agentrl_jax.controller.group import AdmittedGroup, run_group_when_placed
from agentrl_jax.controller.loop import train_loop
from agentrl_jax.controller.ports import RunOneGroup, StepOutcome, StepRecord
from agentrl_jax.controller.sessions import WithoutQueue
from agentrl_jax.controller.slots import EpisodeSlots
from agentrl_jax.controller.tasks import TaskSampler
from agentrl_jax.engines.pool import EnginePool, PoolConfig
from agentrl_jax.env import Action, Message, StepResult, Tool
from agentrl_jax.rendering.protocol import Stream
from agentrl_jax.rendering.streams import AppendedStream
from agentrl_jax.seeding import derive_seed
from agentrl_jax.testing.envs import ScriptedFamily
from agentrl_jax.testing.latency import StepLatency
from agentrl_jax.testing.virtual import run_virtual
from agentrl_jax.types import EpisodeEnd, Group, Ids, Task, as_ids
from benchmarks.seeded_schedule import seeded_schedule
from benchmarks.service_cases import Case, Outcome, Work, prefilled_tokens, total, work_of
from benchmarks.service_engine import ServiceEngine
from benchmarks.service_model import ServiceModel, Tail

_ENV = "webshop"
_CONTEXT = as_ids(np.ones(8192, np.int32))
_NUM_TASKS = 1 << 15
_NO_DEADLINE_S = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """ended_s, and the busy seconds so far; num_live, num_open: groups and episodes under way at its end; the rest is
    of this step alone."""

    ended_s: float
    learner_busy_s: float
    engine_busy_s: float
    work: Work
    prefilled_tokens: int
    num_live: int
    num_open: int
    straggler_wait_s: float
    age_max: int
    lag_max: int
    group_s: float
    slowest_group_s: float


def _oldest_version(group: Group) -> int:
    return min(span.version for t in group.trajectories for turn in t.turns for span in turn.completion.version_spans)


class _Renderer:
    """Implements `rendering.Renderer`: a message's content is its number of ids."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return (1,)

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Ids:
        return _CONTEXT[: sum(int(message.content) for message in messages)]

    def reply(self, messages: Sequence[Message], *, after: int | None = None) -> Ids:
        return self.prompt(messages, ())

    def stream(self, tools: Sequence[Tool]) -> Stream:
        return AppendedStream(self, tools)

    def parse(self, ids: Ids) -> Action:
        return _SAID


_SAID = Action(content="")


class _Session(WithoutQueue):
    """Implements `controller.sessions.Session`: as many turns as its task and instance take, each after its time."""

    def __init__(self, task: Task, instance: int, sessions: "_Sessions") -> None:
        self._task, self._instance, self._sessions = task, instance, sessions
        self._model, self._latency = sessions.model, sessions.latency
        self._seed = derive_seed("episode", task.key, instance)
        self._num_turns = self._model.episode.num_turns(self._seed)
        self._num_done = 0

    async def start(self) -> tuple[Message, ...]:
        self._sessions.num_open += 1
        self._sessions.most_open = max(self._sessions.most_open, self._sessions.num_open)
        await self._take_time()
        return (Message(role="user", content=str(self._model.episode.prompt_tokens)),)

    async def interact(self, action: Action) -> StepResult:
        self._num_done += 1
        await self._take_time()
        is_last = self._num_done >= self._num_turns
        return StepResult(
            messages=(Message(role="user", content=str(self._model.episode.reply_tokens)),),
            reward=float(is_last and self._instance % 2),
            end=EpisodeEnd.COMPLETED if is_last else None,
        )

    async def close(self) -> None:
        self._sessions.num_open -= 1
        await trio.lowlevel.checkpoint()

    async def _take_time(self) -> None:
        await trio.sleep(self._latency.seconds(self._task, self._instance, self._num_done))


class _Sessions:
    """Implements `controller.sessions.SessionFactory`.

    num_open: episodes that have begun and not ended, now; most_open: at any time.
    """

    def __init__(self, model: ServiceModel, tail: Tail) -> None:
        self.model = model
        self.latency = StepLatency(
            median_s=tail.latency_median_s,
            sigma=tail.sigma,
            least_s=min(model.episode.least_latency_s, tail.latency_median_s),
            most_s=model.episode.most_latency_s,
        )
        self.num_open = self.most_open = 0
        self._instances: Counter[int] = Counter()

    def __call__(self, task: Task) -> _Session:
        instance = self._instances[task.index]
        self._instances[task.index] += 1
        return _Session(task, instance, self)


class World:
    """The parts of one run, and what they have done."""

    def __init__(self, case: Case, model: ServiceModel, tail: Tail) -> None:
        self.case, self.model, self.tail = case, model, tail
        self.sessions = _Sessions(model, tail)
        self.engines = [
            ServiceEngine(f"engine-{number}", model, tail.sigma, keeps_caches=case.keeps_caches)
            for number in range(case.num_engines)
        ]
        self.pool = EnginePool(self.engines, [], PoolConfig(lagging_prob=0.0), case.seed)
        self.num_groups = case.num_groups or model.num_groups(case.num_gpus)
        self.learner_busy_s = 0.0
        self.steps: list[_Step] = []

    async def step(self, groups: tuple[Group, ...], version: int) -> StepOutcome:
        """Implements `controller.ports.LearnerPort`."""
        turns = [turn for group in groups for trajectory in group.trajectories for turn in trajectory.turns]
        num_tokens = sum(len(turn.context_ids) + len(turn.completion.ids) for turn in turns)
        seconds = self.model.step_s(num_tokens, self.case.num_learner_gpus)
        await trio.sleep(seconds)
        self.learner_busy_s += seconds
        return StepOutcome(is_finite=True, is_applied=True, metrics={})

    async def publish(self, version: int) -> None:
        begun = trio.current_time()
        await self.pool.publish(None, version)
        self.learner_busy_s += trio.current_time() - begun

    async def on_step(self, record: StepRecord) -> None:
        """Implements `controller.ports.OnStep`. Groups are counted and forgotten: they are large."""
        await trio.lowlevel.checkpoint()
        groups_s = [max(trajectory.wall_s for trajectory in group.trajectories) for group in record.groups]
        self.steps.append(
            _Step(
                ended_s=trio.current_time(),
                learner_busy_s=self.learner_busy_s,
                engine_busy_s=fmean(engine.busy_until_now() for engine in self.engines),
                work=work_of(record.groups),
                prefilled_tokens=prefilled_tokens(record.groups),
                num_live=record.ledger.num_live,
                num_open=self.sessions.num_open,
                straggler_wait_s=sum(record.timings.straggler_wait_s.values()),
                age_max=max(record.ages),
                lag_max=record.version - min(map(_oldest_version, record.groups)),
                group_s=fmean(groups_s),
                slowest_group_s=max(groups_s),
            )
        )

    async def run(self) -> None:
        """Take all steps."""
        config = RolloutConfig(
            group_size=self.model.batch.group_size,
            min_groups_per_batch=self.num_groups,
            max_groups_per_batch=self.num_groups,
            max_staleness=self.case.max_staleness,
        )
        sampler = TaskSampler([ScriptedFamily(name=_ENV, size=_NUM_TASKS)], {_ENV: 1.0}, self.case.seed)
        slots = EpisodeSlots(self._num_places(), sampler.concurrency_shares)
        run_one_group = self._group_runner(slots)
        async with trio.open_nursery() as nursery:
            for engine in self.engines:
                nursery.start_soon(engine.run)
            await train_loop(
                sampler=sampler,
                config=config,
                run_one_group=run_one_group,
                learner=self,
                publish=self.publish,
                max_steps=self.case.num_warm_up_steps + self.case.num_steps,
                on_step=self.on_step,
            )
            nursery.cancel_scope.cancel()

    def _num_places(self) -> int:
        return max(1, int(self.case.num_engines * self.model.sessions_per_engine * self.case.crowding))

    def _group_runner(self, slots: EpisodeSlots) -> RunOneGroup:
        episode = self.model.episode
        setup = EpisodeSetup(
            sessions=self.sessions,
            tools=(),
            renderer=_Renderer(),
            choose_engine=self.pool,
            config=EpisodeConfig(
                max_turns=episode.max_turns,
                max_new_tokens=episode.max_new_tokens,
                max_context_tokens=episode.max_context_tokens,
                wall_budget_s=_NO_DEADLINE_S,
                env_deadline_s=_NO_DEADLINE_S,
                reset_deadline_s=_NO_DEADLINE_S,
                engine_deadline_s=_NO_DEADLINE_S,
            ),
            run_seed=self.case.seed,
        )

        async def run_one_group(admitted: AdmittedGroup) -> Group:
            size = self.model.batch.group_size
            return await run_group_when_placed(admitted, group_size=size, setup=setup, slots=slots)

        return run_one_group

    def outcome(self) -> Outcome:
        """What the measured steps came to; after `run`."""
        num_left_out = self.case.num_warm_up_steps
        measured, last = self.steps[num_left_out:], self.steps[-1]
        before = self.steps[num_left_out - 1] if num_left_out else None
        seconds = last.ended_s - (before.ended_s if before else 0.0)
        learner_s = last.learner_busy_s - (before.learner_busy_s if before else 0.0)
        engine_s = last.engine_busy_s - (before.engine_busy_s if before else 0.0)
        return Outcome(
            case=self.case,
            work=total(step.work for step in measured),
            seconds=seconds,
            total_s=last.ended_s,
            learner_busy_frac=learner_s / seconds,
            engine_busy_frac=engine_s / seconds,
            prefill_over_new=sum(step.prefilled_tokens for step in measured)
            / sum(step.work.new_tokens for step in measured),
            num_turns=sum(engine.num_turns for engine in self.engines),
            num_live=fmean(step.num_live for step in measured),
            num_open=fmean(step.num_open for step in measured),
            most_open=self.sessions.most_open,
            straggler_wait_frac=sum(step.straggler_wait_s for step in measured) / seconds,
            age_max=max(step.age_max for step in self.steps),
            lag_max=max(step.lag_max for step in self.steps),
            group_s=fmean(step.group_s for step in measured),
            slowest_group_s=max(step.slowest_group_s for step in measured),
        )


def simulate(case: Case, model: ServiceModel, tail: Tail) -> Outcome:
    """One run in virtual time. Raises RuntimeError if a group or a token was older than its bound."""
    worlds: list[World] = []

    async def run() -> None:
        worlds.append(World(case, model, tail))
        await worlds[0].run()

    with seeded_schedule(case.seed), calm_collector():  # as training has it
        run_virtual(run)
    outcome = worlds[0].outcome()
    oldest = max(outcome.age_max, outcome.lag_max)
    if oldest > case.max_staleness:
        raise RuntimeError(f"max_staleness {case.max_staleness} was broken: something was {oldest} versions old")
    return outcome
