"""Replay a loss on the recorded batches of a run: `python -m launch.replay RUN_DIR --loss.…`. See `--help`.

Exit code 0: done; 1: the loss, or its gradient, is not finite somewhere; 2: wrong settings, or not a run.
"""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from math import isfinite, nan
from pathlib import Path
from typing import Annotated, Any

import tyro

from agentrl_jax.algo.losses import LossConfig
from agentrl_jax.config import TrainConfig
from agentrl_jax.errors import ConfigError, RecordError
from agentrl_jax.recovery import RecordedStep, Recovery, recorded_steps
from agentrl_jax.replay import ReplayedStep, replay
from agentrl_jax.runlog import to_json
from agentrl_jax.saved_config import read_config
from agentrl_jax.sharding import parse_mesh
from launch.config import parse, printer, refuse
from launch.devices import open_mesh
from launch.start import chosen_loss

PROGRAM = "launch.replay"


@dataclass(frozen=True, kw_only=True)
class _Settings:
    run_dir: Annotated[Path, tyro.conf.Positional]
    """Of `python -m launch.train`"""
    steps: str = "all"
    """Which steps: numbers and ranges, such as 3,10-20"""
    gradients: bool = True
    """Gradient norms too, which need the run's model and its checkpoints; the other figures need neither"""
    mesh: str | None = None
    """Devices for gradient norms (default: the run's own)"""
    json: bool = False
    """Print one JSON object per step, with all metrics, instead of the table"""


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(_Settings):
    """Compute a loss again on what a run has recorded, without engines, and print it beside what the run logged.

    The loss is the run's own, changed by the flags --loss.*; a function of your own is taken as its file is now.
    Gradient norms are shown for those steps whose params can be recovered from the run's checkpoints.
    """

    loss: LossConfig = field(default_factory=LossConfig)


_LossTexts: Any = make_dataclass("_LossTexts", [(f.name, str | None, None) for f in fields(LossConfig)], frozen=True)


@dataclass(frozen=True, kw_only=True)
class _Start(_Settings):
    """What the defaults of --loss.* depend on: nothing of them is judged before the run's own loss is known."""

    loss: _LossTexts = field(default_factory=_LossTexts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table and return the exit code."""
    try:
        config, run = _parse(arguments)
        return _replay(config, run, printer())
    except ConfigError as error:
        refuse(error, program=PROGRAM)
    except RecordError as error:  # a recorded batch that is none
        refuse(ConfigError(str(error)), program=PROGRAM)


def _parse(arguments: Sequence[str] | None) -> tuple[ReplayConfig, TrainConfig]:
    """The settings, and those of the run."""
    given = sys.argv[1:] if arguments is None else arguments
    start_type: Any = ReplayConfig if {"-h", "--help"} & set(given) else _Start
    start = parse(start_type, given, program=PROGRAM)
    run = read_config(TrainConfig, start.run_dir)
    loss = chosen_loss(run.loss, start.loss.name, start.loss.correction)
    default = ReplayConfig(run_dir=start.run_dir, loss=loss)
    return tyro.cli(ReplayConfig, args=given, prog=f"python -m {PROGRAM}", default=default), run


def _replay(config: ReplayConfig, run: TrainConfig, say: Callable[[str], None]) -> int:
    if config.mesh is not None and not config.gradients:
        raise ConfigError("--mesh has no effect with --no-gradients: leave it out")
    recorded = recorded_steps(config.run_dir)
    steps = parse_steps(config.steps, recorded)
    recovery = None
    if config.gradients:
        mesh = open_mesh(parse_mesh(config.mesh or run.mesh), lambda line: None, run.runtime.elsewhere())
        recovery = Recovery(config.run_dir, run, config.loss, mesh, recorded)
    replayed: list[ReplayedStep] = []
    for step in replay(steps, recorded, config.loss, recovery):
        if config.json:
            say(to_json({"step": step.step, "recorded": step.recorded, "replayed": step.replayed, "note": step.note}))
        else:
            if not replayed:
                say(_heading())
            say(_line(step))
        replayed.append(step)
    if not config.json:
        for line in _summary(replayed, recovery):
            say(line)
    return 0 if all(step.is_finite for step in replayed) else 1


def parse_steps(text: str, recorded: Mapping[int, RecordedStep]) -> tuple[int, ...]:
    """The steps that `text` names, ascending: `all` of `recorded`, or numbers and ranges such as `3,10-20`.

    Raises ConfigError if it is neither, or names none that was recorded.
    """
    if text == "all":
        return tuple(sorted(recorded))
    chosen: set[int] = set()
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", part)
        if found is None:
            raise ConfigError(f"--steps must be all, or numbers and ranges such as 3,10-20, got {text!r}")
        first, last = int(found[1]), int(found[2] or found[1])
        chosen |= {step for step in recorded if first <= step <= last}
    if not chosen:
        raise ConfigError(f"--steps {text}: the run has recorded steps {min(recorded)} to {max(recorded)}")
    return tuple(sorted(chosen))


_COLUMNS: Mapping[str, tuple[int, Callable[[Mapping[str, float]], str]]] = {
    "loss": (12, lambda figures: _number(figures.get("loss"), "+.6f")),
    "clipped": (8, lambda figures: _clipped(figures)),
    "behavior kl": (10, lambda figures: _number(figures.get("behavior_kl"), ".5f")),
    "gradient norm": (10, lambda figures: _number(figures.get("grad_norm"), ".4f")),
}
"""Heading: (width of one figure, the figure as text). Each is printed as the run logged it and as it is now."""


def _heading() -> str:
    names = "".join(f"  {name:>{2 * width + 3}}" for name, (width, _) in _COLUMNS.items())
    below = "".join(f"  {'logged':>{width}} → {'now':>{width}}" for width, _ in _COLUMNS.values())
    return f"step{names}\n    {below}"


def _line(step: ReplayedStep) -> str:
    cells = [f"  {text(step.recorded):>{width}} → {text(step.replayed):>{width}}" for width, text in _COLUMNS.values()]
    return f"{step.step:>4}" + "".join(cells) + (f"  {step.note}" if step.note else "")


def _summary(replayed: Sequence[ReplayedStep], recovery: Recovery | None) -> list[str]:
    pairs = [(step.recorded.get("loss", nan), step.replayed.get("loss", nan)) for step in replayed]
    differences = [abs(now - then) for then, now in pairs if isfinite(then) and isfinite(now)]
    lines = [f"{len(differences)} losses, which differ by {max(differences):.2g} at most"] if differences else []
    far = sum(bool(s.replayed) and recovery is not None and not recovery.can_reach(s.step) for s in replayed)
    if far:
        lines.append(
            f"no gradient norm for {far} steps: no checkpoint before them is left, or a batch behind it is missing "
            "(launch.train keeps --keep-checkpoints of them)"
        )
    return lines


def _clipped(figures: Mapping[str, float]) -> str:
    shares = [figures[name] for name in ("clip_low_frac", "clip_high_frac") if name in figures]
    return f"{100 * sum(shares):.2f} %" if shares else "-"


def _number(value: float | None, how: str) -> str:
    return "-" if value is None else format(value, how)


if __name__ == "__main__":
    raise SystemExit(main())
