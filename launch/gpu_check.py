"""Check that a machine is fit to train: `python -m launch.gpu_check`. See `--help`.

Four minutes at the most. Exit code 0: all that can run here works; 1: something is wrong, and is named; 2: wrong
settings.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import jax
import tyro

from agentrl_jax.errors import ConfigError
from agentrl_jax.runtime import RuntimeConfig
from agentrl_jax.sharding import parse_mesh
from launch.config import parse, printer, refuse
from launch.devices import open_mesh
from launch.gpu_parts import Failed, Line, Machine, check_attention
from launch.gpu_step import check_engine, check_step

PROGRAM = "launch.gpu_check"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCheckConfig:
    """Attention kernels against the reference, learner steps of a model in the shape of a 3B one with their memory and
    MFU, the embedded engine's decode rate, and a publish. What cannot run here is skipped, with the reason."""

    mesh: str = "1"
    """Devices of the learner's step: a number (all on fsdp), or axes such as data=2,fsdp=4,tensor=2"""
    runtime: Annotated[RuntimeConfig, tyro.conf.OmitArgPrefixes] = field(default_factory=RuntimeConfig)

    def __post_init__(self) -> None:
        parse_mesh(self.mesh)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one line per finding and return the exit code."""
    config = parse(GpuCheckConfig, arguments, program=PROGRAM)
    say = printer()
    try:
        machine = Machine(open_mesh(parse_mesh(config.mesh), say, config.runtime))
    except ConfigError as error:
        refuse(error, program=PROGRAM)
    say(f"{machine.kind}, jax {jax.__version__}")
    begun = time.monotonic()
    num_failed = 0
    for line in _lines(machine):
        num_failed += line.verdict == "FAILED"
        say(f"{line.verdict:<7} {line.part:<10} {line.text}")
    outcome = f"{num_failed} checks failed" if num_failed else "nothing failed"
    say(f"{outcome}, {time.monotonic() - begun:.0f} s")
    return 1 if num_failed else 0


def _lines(machine: Machine) -> Iterator[Line]:
    parts: tuple[tuple[str, Callable[[Machine], Iterator[Line]]], ...] = (
        ("attention", check_attention),
        ("step", check_step),
        ("engine", check_engine),
    )
    for name, part in parts:
        try:
            yield from part(machine)
        except (Failed, jax.errors.JaxRuntimeError, NotImplementedError, ValueError) as error:
            yield Line("FAILED", name, f"{type(error).__name__}: {str(error).strip().splitlines()[0]}")


if __name__ == "__main__":
    raise SystemExit(main())
