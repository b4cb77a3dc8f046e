"""The evaluations of a training run: carried out, logged and said as they come, and compared in the end."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import trio

from agentrl_jax.config import TrainConfig
from agentrl_jax.engines.protocol import Engine
from agentrl_jax.evaluation import Evaluation, compare
from agentrl_jax.report.progress import evaluation_lines, gain_lines
from agentrl_jax.rollouts import Rollouts
from agentrl_jax.runlog import RunLog

Say = Callable[[str], None]
Evaluations = dict[str, dict[str, Evaluation]]
"""By mode ("sampled", "greedy") and env."""

MODES = ("sampled", "greedy")


class RunEvaluations:
    """Evaluates on `rollouts`. until: returns on a request to stop, which ends an evaluation early.

    is_enough: set once an evaluation beside training has the success at which it is to stop.
    """

    def __init__(
        self,
        rollouts: Rollouts,
        config: TrainConfig,
        run_log: RunLog,
        say: Say,
        until: Callable[[], Awaitable[object]],
    ) -> None:
        self._rollouts, self._config, self._run_log, self._say, self._until = rollouts, config, run_log, say, until
        self._is_beside = False
        self.is_enough = trio.Event()

    async def evaluate(self, when: str, *, step: int, engine: Engine | None = None) -> Evaluations:
        """Evaluate in every mode that there is time for. when: "before", "during" or "after" training.

        engine: one that no publish reaches; None: the current ones.
        """
        results = Evaluations()
        if not self._config.evaluation.num_tasks:
            return results
        for mode in MODES:
            found = await self._rollouts.evaluate(mode, until=self._until, engine=engine)
            if not found:
                break
            results[mode] = found
            for evaluation in found.values():
                values = {"when": when, "step": step, "history_thinking": self._config.rendering.history_thinking}
                self._run_log.log_metrics("evaluation", {**values, **evaluation.to_json()})
            for line in evaluation_lines(f"{when:<7}", found.values()):
                self._say(line)
        return results

    async def begin_beside(
        self, nursery: trio.Nursery, step: int, opening: AbstractAsyncContextManager[Engine | None]
    ) -> None:
        """Evaluate in `nursery`, while training goes on; return once `opening` has given the engine for it.

        One at a time: while one still runs, this only says so.
        """
        if self._is_beside:
            self._say(f"no evaluation at step {step}: the one before is still running")
            return
        self._is_beside = True
        await nursery.start(self._evaluate_beside, step, opening)

    async def _evaluate_beside(
        self,
        step: int,
        opening: AbstractAsyncContextManager[Engine | None],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        async with opening as engine:
            task_status.started()
            results = await self.evaluate("during", step=step, engine=engine)
        self._is_beside = False
        self._compare_to_goal(step, results)

    def _compare_to_goal(self, step: int, results: Evaluations) -> None:
        goal = self._config.stop_at
        if goal is None or "sampled" not in results:
            return
        successes = [evaluation.success for evaluation in results["sampled"].values()]
        mean = sum(successes) / len(successes)
        if mean >= goal:
            self._say(f"mean success {mean:.1%} after step {step}: --stop-at {goal:g} is reached")
            self.is_enough.set()

    def conclude(self, before: Evaluations, after: Evaluations) -> None:
        """Say and log what was gained, in the modes that were evaluated before and after."""
        for mode in [mode for mode in before if mode in after]:
            for line in gain_lines(before[mode], after[mode]):
                self._say(line)
            self._run_log.log_metrics("gain", {"mode": mode, "envs": compare(before[mode], after[mode])})
