"""The figures of metrics.jsonl for those who watch runs elsewhere: TensorBoard and Weights & Biases (`--track`).

Sinks observe what the run log writes, so they receive the same figures by construction. Their packages are imported
only if they are asked for. W&B runs offline, and knows neither code nor machine nor environment: `wandb sync` uploads
a run when its owner wants it.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol

from agentrl_jax.errors import ConfigError
from agentrl_jax.runlog import Observer, without_nan

SinkName = Literal["tensorboard", "wandb"]
logger = logging.getLogger(__name__)


class Sink(Protocol):
    """Takes the figures of one record at a time."""

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """values: by flat names that begin with the kind. step: the record's own, or the last step if it has none."""
        ...

    def undo_after(self, step: int) -> None:
        """A resumed run takes the steps after this one again."""
        ...

    def close(self) -> None: ...


def check_sinks(names: Sequence[SinkName]) -> None:
    """Raise ConfigError if a sink is named twice, or its package is not installed."""
    if len(set(names)) < len(names):
        raise ConfigError(f"--track names a sink twice: {' '.join(names)}")
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"--track {' '.join(missing)} needs a package that is not installed: pip install agentrl_jax[track]"
        )


@contextmanager
def open_sinks(names: Sequence[SinkName], run_dir: Path, config: Mapping[str, Any]) -> Iterator[tuple[Observer, ...]]:
    """Observers for `RunLog`, which write below `run_dir` and are closed with the block.

    config: the run's settings as JSON, which W&B shows beside its curves.
    """
    with ExitStack() as opened:
        observers = []
        for name in names:
            sink = _TensorBoard(run_dir) if name == "tensorboard" else _WandB(run_dir, config)
            observers.append(opened.enter_context(closing(_Observer(name, sink))))
        yield tuple(observers)


def figures(kind: str, record: Mapping[str, Any]) -> dict[str, float]:
    """Every number of a record under a flat name; truth counts as 1 or 0, what was not measured is left out.

    Evaluations and warm-ups have names of their own for each env, mode and phase.

    >>> figures("step", {"step": 3, "ends": {"completed": 7}, "is_applied": True, "text": "no", "loss": None})
    {'step/step': 3.0, 'step/ends/completed': 7.0, 'step/is_applied': 1.0}
    >>> figures("evaluation", {"step": 0, "env": "kg", "mode": "greedy", "success_rate": 0.5, "versions": [0, 0]})
    {'evaluation/step': 0.0, 'evaluation/kg/greedy/success_rate': 0.5}
    """
    parts = [str(record[name]) for name in ("phase", "env", "mode") if record.get(name)]
    prefix = "/".join([kind, *parts])
    found = {} if record.get("step") is None else {f"{kind}/step": float(record["step"])}
    for name, value in record.items():
        if name != "step":
            found |= _numbers(f"{prefix}/{name}", value)
    return found


def _numbers(name: str, value: Any) -> dict[str, float]:
    if isinstance(value, Mapping):
        return {flat: number for key, item in value.items() for flat, number in _numbers(f"{name}/{key}", item).items()}
    return {name: float(value)} if isinstance(value, (bool, int, float)) else {}


class _Observer:
    """An `Observer` that gives a sink its figures, until it fails: nobody's run ends with who looks on."""

    def __init__(self, name: SinkName, sink: Sink) -> None:
        self._name, self._sink, self._step = name, sink, 0
        self._has_failed = False

    def __call__(self, kind: str, record: Mapping[str, Any]) -> None:
        if kind == "resume":
            self._step = record["step"]
            self._give(lambda: self._sink.undo_after(self._step))
            return
        step = int(record.get("step", self._step))
        if kind == "step":
            self._step = step
        values = figures(kind, without_nan(record))
        if values:
            self._give(lambda: self._sink.write(kind, step, values))

    def close(self) -> None:
        self._give(self._sink.close)

    def _give(self, call: Callable[[], None]) -> None:
        if self._has_failed:
            return
        try:
            call()
        except Exception as error:  # noqa: BLE001 - these packages raise whatever their services do
            self._has_failed = True
            logger.warning(
                "%s gets no more figures of this run, which goes on: %s: %s. All of them are in metrics.jsonl",
                *(self._name, type(error).__name__, error),
            )


class _TensorBoard:
    """Event files in RUN_DIR/tensorboard."""

    def __init__(self, run_dir: Path) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event_pb2, self._summary_pb2 = event_pb2, summary_pb2
        self._writer = EventFileWriter(str(run_dir / "tensorboard"))

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        scalars = [self._summary_pb2.Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._add(step, summary=self._summary_pb2.Summary(value=scalars))

    def undo_after(self, step: int) -> None:
        start = self._event_pb2.SessionLog.START  # readers forget what they have of later steps
        self._add(step + 1, session_log=self._event_pb2.SessionLog(status=start))

    def close(self) -> None:
        self._writer.close()

    def _add(self, step: int, **content: Any) -> None:
        self._writer.add_event(self._event_pb2.Event(wall_time=time.time(), step=step, **content))
        self._writer.flush()


class _WandB:
    """An offline run in RUN_DIR/wandb. Each kind of record has its own axis: `step/step`, `warm_up/step`, …"""

    def __init__(self, run_dir: Path, config: Mapping[str, Any]) -> None:
        import wandb

        settings = wandb.Settings(
            console="off", silent=True, disable_git=True, save_code=False, x_disable_meta=True, x_disable_stats=True
        )
        self._run = wandb.init(
            project="agentrl_jax",
            name=run_dir.resolve().name,
            dir=str(run_dir),
            mode="offline",
            config=dict(config),
            settings=settings,
        )
        self._teardown = wandb.teardown
        self._kinds: set[str] = set()

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        if kind not in self._kinds:
            self._kinds.add(kind)
            self._run.define_metric(f"{kind}/*", step_metric=f"{kind}/step")
        self._run.log({f"{kind}/step": float(step), **values})

    def undo_after(self, step: int) -> None:
        self._run.log({"resume/step": float(step)})  # an offline run cannot take back what it has

    def close(self) -> None:
        self._run.finish()
        self._teardown()  # what it wrote is whole only once its service has ended
