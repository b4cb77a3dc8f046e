"""The supervised warm-up of a training run: carried out, logged and said as it goes on."""

import time
from collections.abc import Callable

from agentrl_jax.learner import Learner
from agentrl_jax.preparation import Prepared
from agentrl_jax.runlog import RunLog
from agentrl_jax.sft import warm_up

_REPORT_EVERY = 20


def run_warm_up(
    learner: Learner,
    prepared: Prepared,
    run_log: RunLog,
    say: Callable[[str], None],
    should_stop: Callable[[], bool],
) -> None:
    """Train `learner` on the demonstrations of `prepared`, for as many steps as its config says or time allows."""
    begun = time.monotonic()
    last = {"copy": 0, "sft": 0}

    def report(phase: str, step: int, loss: float) -> None:
        last[phase] = step
        if step % _REPORT_EVERY == 0 or step == 1:
            run_log.log_metrics("warm_up", {"phase": phase, "step": step, "loss": loss})
            say(f"warm-up  {phase:<4} step {step:>4}  loss {loss:.3f}  {time.monotonic() - begun:.0f} s")

    config = prepared.config.warm_up
    warm_up(
        learner,
        prepared.demonstrations,
        config=config,
        packing=prepared.config.packing,
        content_ids=prepared.copy_ids,
        report=report,
        should_stop=should_stop,
    )
    seconds = time.monotonic() - begun
    say(f"warm-up  {last['copy']} copy and {last['sft']} demonstration steps in {seconds:.0f} s")
    if last["sft"] < config.steps and not should_stop():
        say(
            f"warm-up  its time was up after {last['sft']} of {config.steps} steps: what was to be imitated may "
            f"not be learnt (--warm-up.max-minutes={config.max_minutes:g})"
        )
