"""What every run directory's command does around its work: open it, say what began, and say how it ended."""

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TypeVar

from jax.sharding import Mesh

from agentrl_jax.config import TrainConfig
from agentrl_jax.errors import AgentRLError, ConfigError
from agentrl_jax.redaction import redacted
from agentrl_jax.report.curves import draw_curves
from agentrl_jax.report.sinks import open_sinks
from agentrl_jax.report.write import write_report
from agentrl_jax.runlog import Observer, RunLog
from agentrl_jax.sft_config import SftConfig
from agentrl_jax.wording import counted, quoted
from launch.devices import provenance

ResultT = TypeVar("ResultT")

INTERRUPTED = 130
"""The exit code of a run that a second Ctrl-C has stopped."""

_LEARNT = frozenset({"warm_up", "step"})
"""Kinds of records that only a run has from which something is lost with its directory."""


def carry_out(
    config: TrainConfig | SftConfig,
    changes: Mapping[str, str],
    mesh: Mesh,
    say: Callable[[str], None],
    work: Callable[[RunLog], ResultT],
    *,
    observers: Sequence[Observer] = (),
) -> ResultT | None:
    """Return what `work` makes of the run directory, new or resumed; None if a second Ctrl-C has stopped it.

    observers: are told of every record of metrics.jsonl, as the sinks are that `config.track` names.
    changes: what is different since the run was last started. A new run directory in which `work` raised ConfigError
    before anything was learnt is removed again. Any other end, an exception too, leaves a report of what was recorded.
    """
    assert config.run_dir is not None
    is_new = config.resume is None
    with _drawn(config.run_dir, say) as kinds, RunLog(config.run_dir, resume=not is_new) as run:
        try:
            with open_sinks(config.track, run.folder, redacted(config.to_json())) as sinks:
                run.add_observers((*observers, *sinks))
                if is_new:
                    run.write_config(config.to_json())
                run.log_metrics("start", {**provenance(mesh), "changes": dict(changes)})
                run.add_observers([lambda kind, record: kinds.add(kind)])
                say(f"run directory: {config.run_dir}")
                for name, change in changes.items():
                    say(f"changed: {name} {change}")
                return work(run)
        except KeyboardInterrupt:
            say(f"stopped at once; go on with --resume {quoted(config.run_dir)}")
            return None
        except ConfigError:
            if kinds & _LEARNT:
                say(f"what was learnt is kept; once that is mended, go on with --resume {quoted(config.run_dir)}")
            elif is_new:
                run.discard()  # the corrected command may use the folder
                kinds.clear()
            raise


@contextmanager
def _drawn(run_dir: Path, say: Callable[[str], None]) -> Iterator[set[str]]:
    """Draw what the run has recorded once the block has ended, whatever ends it; after an exception, if there is any.

    Yields the kinds of records that there are, to be added to.
    """
    kinds: set[str] = set()
    try:
        yield kinds
    except BaseException:
        if kinds:
            _draw(run_dir, say)
        raise
    _draw(run_dir, say)


def _draw(run_dir: Path, say: Callable[[str], None]) -> None:
    """Draw curves and report. What cannot be drawn is said, and changes nothing about how the run ended."""
    try:
        curves = draw_curves(run_dir)
        if curves is not None:
            say(f"curves: {curves}")
        say(f"report: {write_report(run_dir)}")
    except (AgentRLError, OSError) as error:
        say(f"WARNING: no report: {error}. Once that is mended: python -m agentrl_jax.report {quoted(run_dir)}")


def say_end(run_dir: Path, model_folder: Path, *, num_steps: int, is_stopped: bool, say: Callable[[str], None]) -> None:
    """Say where a run's policy is, and how a stopped one goes on."""
    if is_stopped:
        say(f"stopped after {counted(num_steps, 'step')}; go on with --resume {quoted(run_dir)}")
    say(f"weights and tokenizer: {model_folder}")


@contextmanager
def asked_to_stop(say: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """Whether SIGINT or SIGTERM has asked to stop; the second of them raises KeyboardInterrupt."""
    requests: list[int] = []
    said: list[bool] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if requests:
            raise KeyboardInterrupt
        requests.append(number)

    def should_stop() -> bool:
        if requests and not said:  # not in the handler, which may have interrupted another line
            said.append(True)
            say("stopping: saving (once more stops at once)")
        return bool(requests)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield should_stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
