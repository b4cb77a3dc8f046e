"""`train()`: the one place where controller, learner and engine meet.

Demonstrations → (tokenizer, network) → supervised warm-up → evaluation → asynchronous reinforcement learning →
evaluation. Each phase ends before the next begins; within reinforcement learning, rollouts, learner and publishing
overlap as `controller/loop.py` arranges. Device work runs in threads that are awaited, never abandoned.
"""

import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import trio
from jax.sharding import Mesh

from agentrl_jax.algo.losses import LossConfig, LossFn, make_loss
from agentrl_jax.config import TrainConfig
from agentrl_jax.controller.cancellation import unwrapped_errors
from agentrl_jax.controller.episode import EngineChooser, EpisodeSetup
from agentrl_jax.controller.evaluation import run_tasks
from agentrl_jax.controller.group import AdmittedGroup, run_group
from agentrl_jax.controller.loop import train_loop
from agentrl_jax.controller.ports import LoopResult, StepOutcome, StepRecord
from agentrl_jax.controller.sessions import thread_sessions
from agentrl_jax.controller.tasks import TaskSampler
from agentrl_jax.engines.local.engine import open_local_engine
from agentrl_jax.engines.pool import EnginePool
from agentrl_jax.env import EnvFamily
from agentrl_jax.evaluation import Evaluation, compare, summarise
from agentrl_jax.learner import Learner, LearnerConfig
from agentrl_jax.models.params import Params
from agentrl_jax.packing import build_batch, save_batch
from agentrl_jax.policy import Policy
from agentrl_jax.preparation import Prepared, prepare
from agentrl_jax.rendering.transcript import TemplateRenderer
from agentrl_jax.report.progress import evaluation_lines, gain_lines, step_line, step_record, task_lines
from agentrl_jax.runlog import RunLog
from agentrl_jax.seeding import derive_seed
from agentrl_jax.sft import warm_up, warm_up_learner_config
from agentrl_jax.types import Group, Pool, Task

Say = Callable[[str], None]
Evaluations = dict[str, dict[str, Evaluation]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """before, after: evaluations by mode ("sampled", "greedy") and env; empty if switched off or stopped early.

    version: published updates. is_stopped: on request, before everything that was asked for had been done.
    """

    model_folder: Path
    before: Evaluations
    after: Evaluations
    num_steps: int
    version: int
    is_stopped: bool


def train(config: TrainConfig, families: Sequence[EnvFamily], mesh: Mesh, run: RunLog, say: Say) -> TrainResult:
    """Carry out a whole training run and return what came of it.

    The first SIGINT or SIGTERM finishes the running step and saves; the second stops at once, and saves what the
    last finished step left. Raises KeyboardInterrupt after a second one, and whatever ends a run (errors.py).
    """
    return trio.run(partial(_train, config, families, mesh, run, say))


async def _train(config: TrainConfig, families: Sequence[EnvFamily], mesh: Mesh, run: RunLog, say: Say) -> TrainResult:
    stop = trio.Event()
    result: TrainResult | None = None
    with unwrapped_errors():
        async with trio.open_nursery() as nursery:
            await nursery.start(_watch_signals, stop, nursery.cancel_scope, say)
            prepared = await trio.to_thread.run_sync(prepare, config, families, run.model_folder, say)
            run.write_config(prepared.config.to_json())
            result = await _Training(prepared, families, mesh, run, say, stop).run()
            nursery.cancel_scope.cancel()
    if result is None:
        raise KeyboardInterrupt
    return result


async def _watch_signals(
    stop: trio.Event,
    everything: trio.CancelScope,
    say: Say,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            if stop.is_set():
                everything.cancel()
                return
            say("stopping: finishing the running step, then saving (once more stops at once)")
            stop.set()


@dataclass(eq=False)
class _Training:
    """The phases of one run. `learner` is the one whose params are saved, whatever happens."""

    prepared: Prepared
    families: Sequence[EnvFamily]
    mesh: Mesh
    run_log: RunLog
    say: Say
    stop: trio.Event
    learner: Learner = field(init=False)
    step_begun: float = 0.0
    num_learned: int = 0
    rl_begun: float = 0.0

    def __post_init__(self) -> None:
        self.config = self.prepared.config
        self.policy: Policy = self.prepared.policy
        self.renderers = {
            family.name: TemplateRenderer(self.policy.tokenizer, tools=family.tools) for family in self.families
        }

    async def run(self) -> TrainResult:
        await self._prepare_learner()
        try:
            return await self._reinforce()
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._save)

    async def _prepare_learner(self) -> None:
        """Warm up if asked to; leaves the learner of reinforcement learning, at version 0."""
        params = self.policy.params
        if self.config.has_warm_up:
            sft_config = warm_up_learner_config(self.config.warm_up, self.config.learner)
            self.learner = self._make_learner(sft_config, make_loss(LossConfig(name="sft")), params)
            await trio.to_thread.run_sync(self._warm_up)
            params = self.learner.params
            await trio.to_thread.run_sync(self._save)
        self.learner = self._make_learner(self.config.learner, make_loss(self.config.loss), params)

    def _make_learner(self, config: LearnerConfig, loss: LossFn, params: Params) -> Learner:
        return Learner(self.policy.model, config, loss, self.mesh, params)

    def _warm_up(self) -> None:
        begun = time.monotonic()
        last = {"copy": 0, "sft": 0}

        def report(phase: str, step: int, loss: float) -> None:
            last[phase] = step
            if step % 20 == 0 or step == 1:
                self.run_log.log_metrics("warm_up", {"phase": phase, "step": step, "loss": loss})
                self.say(f"warm-up  {phase:<4} step {step:>4}  loss {loss:.3f}  {time.monotonic() - begun:.0f} s")

        warm_up(
            self.learner,
            self.prepared.demonstrations,
            config=self.config.warm_up,
            packing=self.config.packing,
            content_ids=self.prepared.copy_ids,
            report=report,
            should_stop=self.stop.is_set,
        )
        seconds = time.monotonic() - begun
        self.say(f"warm-up  {last['copy']} copy and {last['sft']} demonstration steps in {seconds:.0f} s")

    def _save(self) -> None:
        self.policy.save(self.learner.host_params(), self.run_log.model_folder)

    async def _reinforce(self) -> TrainResult:
        before: Evaluations = {}
        after: Evaluations = {}
        num_steps = version = 0
        async with self._open_pool() as pool:
            if not self.stop.is_set():
                before = await self._evaluate(pool, "before")
            if not self.stop.is_set() and self.config.max_steps:
                self.rl_begun = self.step_begun = time.monotonic()
                result = await self._loop(pool)
                num_steps, version = result.num_steps, result.version
                seconds = time.monotonic() - self.rl_begun
                self.say(f"reinforcement learning: {num_steps} steps, {version} published, {seconds:.0f} s")
            is_stopped = self.stop.is_set() and num_steps < self.config.max_steps
            if num_steps and not self.stop.is_set():
                after = await self._evaluate(pool, "after")
        self._conclude(before, after)
        return TrainResult(
            model_folder=self.run_log.model_folder,
            before=before,
            after=after,
            num_steps=num_steps,
            version=version,
            is_stopped=is_stopped,
        )

    @asynccontextmanager
    async def _open_pool(self) -> AsyncIterator[EnginePool]:
        """The current policy's engine and, with cross-policy sampling, the lagging one's; both serve version 0."""
        names: tuple[Pool, ...] = ("current", "lagging") if self.config.pool.has_lagging else ("current",)
        async with AsyncExitStack() as stack:
            engines = [
                await stack.enter_async_context(
                    open_local_engine(
                        model=self.policy.model,
                        config=self.config.one_engine,
                        weights=self.learner.params,
                        version=0,
                        name=f"{name}-0",
                        pool=name,
                    )
                )
                for name in names
            ]
            yield EnginePool(engines[:1], engines[1:], self.config.pool, derive_seed(self.config.seed, "pool"))

    async def _loop(self, pool: EnginePool) -> LoopResult:
        """Reinforcement learning until max_steps, max_minutes or a request to stop."""
        sampler = TaskSampler(
            self.families, {family.name: 1.0 for family in self.families}, derive_seed(self.config.seed, "tasks")
        )
        # More episodes than slots would only take each other's prefixes out of the engines' caches.
        slots = trio.Semaphore(max(1, self.config.engine.num_slots // self.config.rollout.group_size))
        setups = self._setups(pool, "train", self.config.temperature)

        async def run_one_group(admitted: AdmittedGroup) -> Group:
            async with slots:
                setup = setups[admitted.task.env]
                return await run_group(admitted, group_size=self.config.rollout.group_size, setup=setup)

        async def publish(version: int) -> None:
            await pool.publish(self.learner.params, version)

        loop_stop = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_set_after, loop_stop, self.stop.wait)
            if self.config.max_minutes is not None:
                nursery.start_soon(_set_after, loop_stop, partial(trio.sleep, 60 * self.config.max_minutes))
            result = await train_loop(
                sampler=sampler,
                config=self.config.rollout,
                run_one_group=run_one_group,
                learner=self,
                publish=publish,
                max_steps=self.config.max_steps,
                on_step=self._on_step,
                stop=loop_stop,
            )
            nursery.cancel_scope.cancel()
        return result

    async def step(self, groups: tuple[Group, ...], version: int) -> StepOutcome:
        """`controller.ports.LearnerPort`: one learner step in a thread that is never abandoned."""
        return await trio.to_thread.run_sync(self._learn, groups, version)

    def _learn(self, groups: tuple[Group, ...], version: int) -> StepOutcome:
        packed = build_batch(
            groups, advantages=self.config.advantages, packing=self.config.packing, learner_version=version
        )
        outcome = self.learner.step(packed)
        self.num_learned += 1
        if self.config.record_batches and packed.micro_batches:
            save_batch(self.run_log.batch_path(self.num_learned), packed)
        metrics = {**packed.stats, "packing_efficiency": packed.efficiency, **outcome.as_dict()}
        is_finite = outcome.outcome != "non_finite"
        return StepOutcome(is_finite=is_finite, is_applied=outcome.is_applied, metrics=metrics)

    async def _on_step(self, record: StepRecord) -> None:
        now = time.monotonic()
        step_s, self.step_begun = now - self.step_begun, now
        decode = self.policy.tokenizer.decode
        for group in (*record.groups, *record.dropped, *record.cancelled):
            for trajectory in group.trajectories:
                self.run_log.log_episode(record.step + 1, trajectory, decode)
        self.run_log.log_metrics("step", {**step_record(record), "step_s": step_s, "rl_s": now - self.rl_begun})
        self.say(step_line(record, max_steps=self.config.max_steps, step_s=step_s))
        for line in task_lines(record):
            self.say(line)

    def _setups(self, choose_engine: EngineChooser, purpose: str, temperature: float) -> dict[str, EpisodeSetup]:
        limiter = trio.CapacityLimiter(self.config.engine.num_slots)
        return {
            family.name: EpisodeSetup(
                sessions=thread_sessions(family.make, limiter),
                tools=family.tools,
                renderer=self.renderers[family.name],
                choose_engine=choose_engine,
                config=replace(
                    self.config.episode, temperature=temperature, max_turns=self.config.max_turns or family.max_turns
                ),
                run_seed=derive_seed(self.config.seed, purpose),
            )
            for family in self.families
        }

    async def _evaluate(self, pool: EnginePool, when: str) -> Evaluations:
        """Sampled and greedy success on the held-out tasks, the same ones with the same seeds each time."""
        size = self.config.evaluation.num_tasks
        tasks = [family.task("eval", index) for family in self.families for index in range(size)]
        results: Evaluations = {}
        for mode, temperature in (("sampled", self.config.temperature), ("greedy", 0.0)) if tasks else ():
            setups = self._setups(pool.choose_current, "evaluation", temperature)
            groups = await self._run_unless_stopped(tasks, setups, pool.version)
            if groups is None:
                break
            results[mode] = summarise(mode, groups)
            for evaluation in results[mode].values():
                self.run_log.log_metrics("evaluation", {"when": when, **evaluation.to_json()})
            for line in evaluation_lines(f"{when:<7}", results[mode].values()):
                self.say(line)
        return results

    async def _run_unless_stopped(
        self, tasks: Sequence[Task], setups: dict[str, EpisodeSetup], version: int
    ) -> tuple[Group, ...] | None:
        async def run_one_group(admitted: AdmittedGroup) -> Group:
            return await run_group(admitted, group_size=1, setup=setups[admitted.task.env])

        groups: tuple[Group, ...] | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_after, nursery.cancel_scope, self.stop.wait)
            concurrency = self.config.evaluation.max_concurrent
            groups = await run_tasks(tasks, run_one_group, version=version, max_concurrent=concurrency)
            nursery.cancel_scope.cancel()
        return groups

    def _conclude(self, before: Evaluations, after: Evaluations) -> None:
        for mode in [mode for mode in before if mode in after]:
            for line in gain_lines(before[mode], after[mode]):
                self.say(line)
            self.run_log.log_metrics("gain", {"mode": mode, "envs": compare(before[mode], after[mode])})


async def _set_after(event: trio.Event, wait: Callable[[], Awaitable[object]]) -> None:
    await wait()
    event.set()


async def _cancel_after(scope: trio.CancelScope, wait: Callable[[], Awaitable[object]]) -> None:
    await wait()
    scope.cancel()
