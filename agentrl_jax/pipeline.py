"""`train()`: the one place where controller, learner and engines meet.

Demonstrations → (tokenizer, network) → supervised warm-up → evaluation → asynchronous reinforcement learning →
evaluation. Each phase ends before the next begins; within reinforcement learning, rollouts, learner and publishing
overlap as `controller/loop.py` arranges. Device work runs in threads that are awaited, never abandoned.

A run that has a checkpoint goes on from it: no demonstrations, no warm-up, and the first evaluation only if it had
not taken a step yet.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio
from jax.sharding import Mesh

from agentrl_jax.algo.losses import make_loss
from agentrl_jax.batch_files import save_batch, thin_batches
from agentrl_jax.config import TrainConfig
from agentrl_jax.controller.cancellation import unwrapped_errors
from agentrl_jax.controller.interrupts import watch_signals
from agentrl_jax.controller.journal_port import ThreadedJournal
from agentrl_jax.controller.journal_resume import ResumePlan
from agentrl_jax.controller.loop import train_loop
from agentrl_jax.controller.monitor import LoopMonitor
from agentrl_jax.controller.ports import StepOutcome, StepRecord
from agentrl_jax.controller.session_kinds import open_sessions
from agentrl_jax.controller.sessions import SessionFactory
from agentrl_jax.controller.tasks import TaskSampler
from agentrl_jax.controller.telemetry import open_telemetry
from agentrl_jax.engines.local.placement import engine_place
from agentrl_jax.env import EnvFamily, EnvSource
from agentrl_jax.errors import ConfigError
from agentrl_jax.lead import Beginning, Leader
from agentrl_jax.learner import Learner
from agentrl_jax.learning import begin_learning, compile_ahead, resume_learning, warm_up_learner
from agentrl_jax.packing import build_batch
from agentrl_jax.preparation import Prepared, prepare, reopen
from agentrl_jax.profiling import StepProfiler
from agentrl_jax.rollouts import Rollouts
from agentrl_jax.run_engines import RunEngines, check_servers
from agentrl_jax.run_evaluation import MODES, Evaluations, RunEvaluations, Say
from agentrl_jax.run_open_engines import open_run_engines
from agentrl_jax.run_policies import RunPolicies
from agentrl_jax.run_reports import StepReports
from agentrl_jax.run_warm_up import run_warm_up
from agentrl_jax.runlog import RunLog
from agentrl_jax.seeding import derive_seed
from agentrl_jax.step_plan import StepPlan
from agentrl_jax.survival import Survival
from agentrl_jax.types import Floats, Group, Ids
from agentrl_jax.wording import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """before, after: evaluations by mode ("sampled", "greedy") and env; empty if switched off, or stopped before.

    num_steps: of the whole run, resumed parts included. version: of the last publish. is_stopped: on request, before
    everything that was asked for had been done.
    """

    model_folder: Path
    before: Evaluations
    after: Evaluations
    num_steps: int
    version: int
    is_stopped: bool


def train(
    config: TrainConfig,
    families: Sequence[EnvFamily],
    mesh: Mesh,
    run: RunLog,
    say: Say,
    *,
    sources: Mapping[str, EnvSource] | None = None,
    leader: Leader | None = None,
) -> TrainResult:
    """Carry out a whole training run, or the rest of one, and return what came of it.

    sources: of the families whose sessions run in processes, by name.
    leader: of the processes that share the mesh, in process 0; the others run `follow.follow_training`.
    The first SIGINT or SIGTERM finishes the running step and saves; the second stops at once, and saves what the
    last step left that was learnt. Raises KeyboardInterrupt after a second one, and whatever ends a run (errors.py).
    """
    return trio.run(_train, config, families, mesh, run, say, sources or {}, leader or Leader())


async def _train(
    config: TrainConfig,
    families: Sequence[EnvFamily],
    mesh: Mesh,
    run: RunLog,
    say: Say,
    sources: Mapping[str, EnvSource],
    lead: Leader,
) -> TrainResult:
    stop = trio.Event()
    lead.on_stop = partial(trio.lowlevel.current_trio_token().run_sync_soon, stop.set)
    result: TrainResult | None = None
    keep, before_save = config.keep_checkpoints, lambda step: lead(StepPlan(save=True, step=step))
    with unwrapped_errors(), Survival(run.folder, keep=keep, before_save=before_save) as survival:
        async with trio.open_nursery() as nursery:
            await nursery.start(watch_signals, stop, nursery.cancel_scope, say)
            await check_servers(config)
            if survival.has_checkpoint:
                _check_unfinished(config, survival, run)
                prepared = await trio.to_thread.run_sync(reopen, config, run.model_folder)
            else:
                prepared = await trio.to_thread.run_sync(prepare, config, families, run.model_folder, say)
            run.write_config(prepared.config.to_json())
            kinds, max_threads = config.session_kinds(families), config.engine.num_slots
            async with open_sessions(families, kinds, sources, max_threads=max_threads) as sessions:
                result = await _Training(prepared, families, sessions, mesh, run, survival, say, stop, lead).run()
            nursery.cancel_scope.cancel()
    if result is None:
        raise KeyboardInterrupt
    return result


def _check_unfinished(config: TrainConfig, survival: Survival, run: RunLog) -> None:
    """Raise ConfigError if a resumed run has nothing left to do."""
    step = survival.step or 0
    is_evaluated = not config.evaluation.num_tasks or len(run.earlier_evaluations("after", step=step)) == len(MODES)
    if step > config.max_steps or (step and step == config.max_steps and is_evaluated):
        raise ConfigError(f"--resume {run.folder}: {step} of --max-steps {config.max_steps} steps are taken: name more")


class _Training:
    """The phases of one run, and the loop's `LearnerPort`. `learner`'s params are saved, whatever happens."""

    def __init__(
        self,
        prepared: Prepared,
        families: Sequence[EnvFamily],
        sessions: Mapping[str, SessionFactory],
        mesh: Mesh,
        run_log: RunLog,
        survival: Survival,
        say: Say,
        stop: trio.Event,
        lead: Leader,
    ) -> None:
        self.prepared, self.config, self.policy = prepared, prepared.config, prepared.policy
        self.families, self.sessions, self.mesh, self.run_log = families, sessions, mesh, run_log
        self.survival, self.say, self.stop, self.lead = survival, say, stop, lead
        self.loss = make_loss(self.config.loss)
        self.learner: Learner
        self.policies: RunPolicies
        self.sampler = TaskSampler(
            families,
            self.config.rollout.weights(self.config.env_names),
            derive_seed(self.config.seed, "tasks"),
            limit=self.config.limit,
            curriculum=self.config.rollout.curriculum,
        )
        self.shares = self.config.pool.make_shares()
        self.engines: RunEngines
        self.monitor = LoopMonitor()
        self.profiler = StepProfiler(self.config.profile, run_log.folder / "profile", say)
        self.num_learned = 0
        self.reports: StepReports
        self.place = engine_place(self.config.engine_devices, mesh)
        self.evaluations: RunEvaluations
        self.beside: trio.Nursery

    async def run(self) -> TrainResult:
        await trio.to_thread.run_sync(self.lead.begin, self._beginning())
        if self.survival.has_checkpoint:
            self.learner = await trio.to_thread.run_sync(self._resume_learner)
            lagging = await trio.to_thread.run_sync(self.survival.restore, self.learner)
            lagging = lagging if self.config.pool.has_lagging else None
            self.shares.restore(self.survival.shares)
        elif await self._warm_up():
            lagging = None
        else:
            return self._stopped_in_warm_up()
        self.policies = RunPolicies(self.config, self.policy, self.learner, self.lead, lagging)
        try:
            return await self._reinforce()
        finally:
            self.profiler.close()
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._save)

    @property
    def num_copy_steps(self) -> int:
        return self.config.warm_up.copy_steps if len(self.prepared.copy_ids) else 0

    def _beginning(self) -> Beginning:
        step = self.survival.step
        return Beginning(
            config=self.config,
            model=self.policy.model,
            dtype=self.policy.dtype,
            run_dir=self.run_log.folder,
            weights=self.config.model if step is None else self.run_log.model_folder,
            num_copy_steps=self.num_copy_steps,
            step=step,
        )

    async def _warm_up(self) -> bool:
        """Leave the learner of reinforcement learning, after a supervised warm-up if one is asked for.

        False if a request to stop cut the warm-up short: what it left is no policy to begin with.
        """
        params = await trio.to_thread.run_sync(self.policy.load_params, self.mesh)
        if self.config.has_warm_up:
            make = partial(warm_up_learner, num_copy_steps=self.num_copy_steps, make_learner=self.lead.make_learner)
            self.learner = await trio.to_thread.run_sync(make, self.config, self.policy.model, self.mesh, params)
            with_log = self.learner, self.prepared, self.run_log, self.say, self.stop.is_set
            await trio.to_thread.run_sync(run_warm_up, *with_log)
            await trio.to_thread.run_sync(self.lead, StepPlan(stop=True))
            params = self.learner.params
        args = self.config, self.policy.model, self.loss, self.mesh, params, self.run_log.folder
        begin = partial(begin_learning, make_learner=self.lead.make_learner)
        self.learner = await trio.to_thread.run_sync(begin, *args)
        await trio.to_thread.run_sync(self._save_model)
        return not (self.config.has_warm_up and self.stop.is_set())

    def _resume_learner(self) -> Learner:
        params = self.policy.load_params(self.mesh)
        args = self.config, self.policy.model, self.loss, self.mesh, params, self.run_log.folder
        return resume_learning(*args, make_learner=self.lead.make_learner)

    def _stopped_in_warm_up(self) -> TrainResult:
        self.say("stopped in the warm-up: --resume begins it anew")
        return TrainResult(
            model_folder=self.run_log.model_folder, before={}, after={}, num_steps=0, version=0, is_stopped=True
        )

    def _save_model(self) -> None:
        self.lead(StepPlan(export=True))
        self.policy.save(self.learner.params, self.run_log.model_folder)

    def _save(self) -> None:
        self._save_model()
        self.survival.save(self.learner, self.policies.lagging, num_learned=self.num_learned)

    async def _reinforce(self) -> TrainResult:
        before, after = self.run_log.earlier_evaluations("before", step=0), Evaluations()
        plan = await self._begin()
        num_steps, version = plan.step, plan.version
        telemetry_on = open_telemetry(self.run_log.folder, is_on=self.config.telemetry)
        async with self._open_engines(plan.version) as self.engines, telemetry_on as telemetry:
            tokenizer, pool = self.policy.tokenizer, self.engines.pool
            pool.shares = self.shares
            rollouts = Rollouts(self.families, self.sessions, tokenizer, self.config, pool, telemetry)
            self.evaluations = RunEvaluations(rollouts, self.config, self.run_log, self.say, self.stop.wait)
            if plan.step == 0 and len(before) < len(MODES):
                before = await self.evaluations.evaluate("before", step=0)
            if not self.stop.is_set() and plan.step < self.config.max_steps:
                num_steps, version = await self._loop(rollouts, plan)
            is_stopped = self.stop.is_set()
            if num_steps and not is_stopped:
                after = await self.evaluations.evaluate("after", step=num_steps)
            self.evaluations.conclude(before, after)
        return TrainResult(
            model_folder=self.run_log.model_folder,
            before=before,
            after=after,
            num_steps=num_steps,
            version=version,
            is_stopped=is_stopped,
        )

    async def _begin(self) -> ResumePlan:
        """Settle what earlier processes left; before the first rollout there is a durable checkpoint of its params."""
        is_new = not self.survival.has_checkpoint
        plan = await trio.to_thread.run_sync(self.survival.begin, self.sampler, self.config.rollout)
        self.num_learned = plan.step
        if self.config.pool.has_lagging and self.policies.lagging is None:
            await trio.to_thread.run_sync(self.policies.lag, plan.version)
        if is_new:
            self._remember(plan.step, plan.version)
            await trio.to_thread.run_sync(self._save)
            await trio.to_thread.run_sync(self.survival.wait)
        else:
            self.say(
                f"resumed at step {plan.step} as version {plan.version}: {len(plan.adopted)} complete groups kept, "
                f"{len(plan.reissued)} to play again"
            )
            self.run_log.log_resume(plan.step, plan.version, adopted=len(plan.adopted), reissued=dict(plan.reasons))
        return plan

    def _remember(self, step: int, version: int) -> None:
        lagging = None if self.policies.lagging is None else self.policies.lagging.version
        shares = self.shares.state()
        self.survival.remember(step, version=version, sampler=self.sampler, lagging_version=lagging, shares=shares)

    def _open_engines(self, version: int) -> AbstractAsyncContextManager[RunEngines]:
        """The current policy's engines, serving the learner's params as `version`, and the lagging policy's."""
        return open_run_engines(
            self.config,
            self.policy,
            self.run_log.folder,
            self.place,
            current=self.policies.learned(version),
            lagging=self.policies.lagged(),
            score=self._score if self.lead.is_alone else None,
            say=self.say,
        )

    async def _score(self, ids: Ids, temperature: float) -> Floats:
        return await trio.to_thread.run_sync(self.policies.score, ids, temperature)

    async def _loop(self, rollouts: Rollouts, plan: ResumePlan) -> tuple[int, int]:
        """Learn until a bound, the goal or a request to stop; return the steps taken and the last version."""
        await trio.to_thread.run_sync(compile_ahead, self.learner, self.config, self.say)
        parts = rollouts, self.engines, self.monitor
        self.reports = StepReports(self.config, self.policy, self.run_log, self.say, *parts)

        async def publish(version: int) -> None:
            served = await self.engines.publish(self.policies.learned(version))
            if self.policies.lagging is not None and served["lagging-0"] == version:
                await trio.to_thread.run_sync(self.policies.lag, version)

        loop_stop = trio.Event()
        async with trio.open_nursery() as nursery:
            await nursery.start(self.monitor.run)
            nursery.start_soon(_set_after, loop_stop, self.stop.wait)
            nursery.start_soon(_set_after, loop_stop, self.evaluations.is_enough.wait)
            if self.config.max_minutes is not None:
                nursery.start_soon(_set_after, loop_stop, partial(trio.sleep, 60 * self.config.max_minutes))
            async with trio.open_nursery() as self.beside:  # evaluations: one that has begun is finished
                result = await train_loop(
                    sampler=self.sampler,
                    config=self.config.rollout,
                    run_one_group=rollouts.training_groups(self.sampler.concurrency_shares),
                    learner=self,
                    publish=publish,
                    max_steps=self.config.max_steps - plan.step,
                    on_step=self._on_step,
                    stop=loop_stop,
                    initial_version=plan.version,
                    first_group_id=plan.next_group_id,
                    first_step=plan.step,
                    adopted=plan.adopted,
                    journal=ThreadedJournal(self.survival.journal),
                )
            nursery.cancel_scope.cancel()
        self.say(
            f"reinforcement learning: {counted(result.num_steps, 'step')}, {result.version - plan.version} published, "
            f"{self.reports.seconds:.0f} s"
        )
        return plan.step + result.num_steps, result.version

    async def step(self, groups: tuple[Group, ...], version: int) -> StepOutcome:
        """`controller.ports.LearnerPort`: one learner step in a thread that is never abandoned."""
        return await trio.to_thread.run_sync(self._learn, groups, version)

    def _learn(self, groups: tuple[Group, ...], version: int) -> StepOutcome:
        packed = build_batch(
            groups, advantages=self.config.advantages, packing=self.config.packing, learner_version=version
        )
        with self.profiler.step():
            outcome = self.learner.step(packed)
        self.num_learned += 1
        if self.config.record_batches and packed.micro_batches:
            save_batch(self.run_log.batch_path(self.num_learned), packed, self.learner.scores)
            thin_batches(self.run_log.folder / "batches", self.num_learned, keep=self.config.keep_batches)
        metrics = {**packed.stats, **outcome.as_dict()}
        is_finite = outcome.outcome != "non_finite"
        return StepOutcome(is_finite=is_finite, is_applied=outcome.is_applied, metrics=metrics)

    async def _on_step(self, record: StepRecord) -> None:
        step = record.step + 1
        self.shares.observe(record.groups)
        self._remember(step, record.version + record.is_applied)  # before anything is awaited
        with trio.CancelScope(shield=True):  # what a checkpoint will contain is on record
            await self.reports.report(record)
        every = self.config.eval_every
        if every is not None and step % every == 0 and step < self.config.max_steps:  # the last one is evaluated after
            policy = self.policies.learned(record.version + record.is_applied)
            await self.evaluations.begin_beside(self.beside, step, self.engines.evaluating(policy))
        if step % self.config.save_every == 0:
            save = partial(self.survival.save, self.learner, self.policies.lagging, num_learned=self.num_learned)
            await trio.to_thread.run_sync(save)


async def _set_after(event: trio.Event, wait: Callable[[], Awaitable[object]]) -> None:
    await wait()
    event.set()
