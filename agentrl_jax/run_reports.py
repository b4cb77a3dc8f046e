"""What a run says and logs of each step: its record, its episodes, what engines and loop were doing, and warnings."""

import time
from collections.abc import Sequence
from dataclasses import asdict

import trio

from agentrl_jax.algo.policy_metrics import mismatch_alarm
from agentrl_jax.config import TrainConfig
from agentrl_jax.controller.monitor import LoopMonitor
from agentrl_jax.controller.ports import StepRecord
from agentrl_jax.controller.statistics import as_record
from agentrl_jax.controller.watch import RunWarning
from agentrl_jax.policy import Policy
from agentrl_jax.report.progress import step_line, step_record, task_lines, throughput
from agentrl_jax.rollouts import Rollouts
from agentrl_jax.run_engines import RunEngines
from agentrl_jax.run_evaluation import Say
from agentrl_jax.runlog import Fate, RunLog
from agentrl_jax.types import Group


class StepReports:
    """Of one run, from the moment at which it is made: times count from there."""

    def __init__(
        self,
        config: TrainConfig,
        policy: Policy,
        run_log: RunLog,
        say: Say,
        rollouts: Rollouts,
        engines: RunEngines,
        monitor: LoopMonitor,
    ) -> None:
        self._config, self._tokenizer, self._run_log, self._say = config, policy.tokenizer, run_log, say
        self._rollouts, self._engines, self._monitor = rollouts, engines, monitor
        self._begun = self._step_begun = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._begun

    async def report(self, record: StepRecord) -> None:
        """Say and log one step that has ended. Episodes are written in a thread."""
        step, now = record.step + 1, time.monotonic()
        step_s, self._step_begun = now - self._step_begun, now
        await trio.to_thread.run_sync(self._log_episodes, step, record)
        statistics = {"loop": as_record(self._monitor.statistics()), "rollouts": as_record(self._rollouts.statistics())}
        statistics |= {"publish": as_record(publishing)} if (publishing := self._engines.statistics()) else {}
        times = {"step_s": step_s, "rl_s": now - self._begun}
        rates = throughput(record, step_s)
        self._run_log.log_metrics("step", {**step_record(record), **statistics, **times, "throughput": rates})
        self._say(step_line(record, max_steps=self._config.max_steps, step_s=step_s))
        for line in task_lines(record):
            self._say(line)
        self.warn(step, record.warnings)
        alarm = mismatch_alarm(record.metrics, self._config.mismatch_alarm)
        if alarm is not None:
            self.warn(step, [RunWarning(name="mismatch", env="", text=alarm)])

    def warn(self, step: int, warnings: Sequence[RunWarning]) -> None:
        """Say and log warnings, as of this step."""
        for warning in warnings:
            self._run_log.log_metrics("warning", {"step": step, **asdict(warning)})
            self._say(f"WARNING: {warning.text}")

    def _log_episodes(self, step: int, record: StepRecord) -> None:
        fates: dict[Fate, Sequence[Group]] = {
            "consumed": record.groups,
            "dropped": record.dropped,
            "cancelled": record.cancelled,
        }
        for fate, groups in fates.items():
            for group in groups:
                for trajectory in group.trajectories:
                    self._run_log.log_episode(step, trajectory, self._tokenizer.decode, fate=fate)
