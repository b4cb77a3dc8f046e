"""What real task data lies in a folder, and is it whole? `python -m envs.data verify FOLDER [--envs alfworld,kg]`

Every file is read to its end: entries are counted and must have the fields that environments read. Then every
environment is made on the folder. The exit code is 0 if nothing that is there is broken or incomplete; with `--envs`,
only if those environments have all they need; 2 for a folder that is none.
"""

import json
import lzma
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from agentrl_jax.env import EnvRegistry, FamilyOptions, traits_of
from agentrl_jax.errors import AgentRLError
from envs import register_all
from envs.data_packs import PACKS, DataFile, DataPack

State = Literal["complete", "incomplete", "broken", "missing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One file. path: in the data folder. note: what is wrong, or where a missing one is published."""

    path: str
    state: State
    note: str = ""
    is_needed: bool = True


def verify_pack(data: Path, pack: DataPack) -> list[Finding]:
    """All files of a pack; one finding for all of a folder that is not there."""
    if not (data / pack.folder).is_dir():
        where = "; ".join(dict.fromkeys(file.upstream for file in pack.files))
        return [Finding(path=f"{pack.folder}/", state="missing", note=f"published by: {where} ({pack.licence})")]
    return [verify_file(data / pack.folder, file) for file in pack.files]


def verify_file(folder: Path, file: DataFile) -> Finding:
    """One file, read to its end."""
    shown = f"{folder.name}/{file.names[0]}"
    path = next((path for name in file.names for path in _forms(folder / name) if path.is_file()), None)
    if path is None:
        return Finding(path=shown, state="missing", note=f"published by: {file.upstream}", is_needed=file.is_needed)
    shown = f"{folder.name}/{path.relative_to(folder)}"
    try:
        count = _count(path, file)
    except (OSError, EOFError, lzma.LZMAError, ValueError) as error:
        return Finding(path=shown, state="broken", note=str(error), is_needed=file.is_needed)
    if file.count is not None and count != file.count:
        note = f"{count:,} entries; as published: {file.count:,}"
        return Finding(path=shown, state="incomplete", note=note, is_needed=file.is_needed)
    return Finding(path=shown, state="complete", note=f"{count:,} entries", is_needed=file.is_needed)


def _forms(path: Path) -> tuple[Path, Path]:
    return path.with_name(f"{path.name}.xz"), path


def _lines(path: Path) -> Iterator[str]:
    with lzma.open(path, "rb") if path.suffix == ".xz" else path.open("rb") as file:
        for line in file:
            if line.strip():
                yield line.decode("utf-8").rstrip("\n")


def _count(path: Path, file: DataFile) -> int:
    """Its entries. Raises ValueError naming the first that is none."""
    count = 0
    if file.kind in ("lines", "records"):
        for count, line in enumerate(_lines(path), 1):
            if file.kind == "records":
                _check_keys(json.loads(line), file.keys, f"line {count}")
            elif len(line.split()) < file.columns:
                raise ValueError(f"line {count}: expected {file.columns} columns, got {line[:80]!r}")
        return count
    value: Any = json.loads("\n".join(_lines(path)))
    if file.kind == "mapping":
        _check_keys(value, file.keys, "the file")
        return len(value[file.counted] if file.counted else value)
    if not isinstance(value, list):
        raise ValueError(f"expected a list, got {type(value).__name__}")
    for count, entry in enumerate(value, 1):
        if file.keys:
            _check_keys(entry, file.keys, f"entry {count}")
    return count


def _check_keys(entry: Any, keys: Sequence[str], where: str) -> None:
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: expected an object, got {type(entry).__name__}")
    missing = [key for key in keys if key not in entry]
    if missing:
        raise ValueError(f"{where}: {', '.join(missing)} missing")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvReport:
    """Whether an environment can be made on a folder. note: its tasks and data sets, or why not."""

    name: str
    is_ready: bool
    note: str


def verify_env(data: Path, name: str, registry: EnvRegistry) -> EnvReport:
    """Make the environment as `--data` would."""
    try:
        family = registry.make(name, FamilyOptions(data=data))
        counts = f"{family.num_tasks('train'):,} tasks to train on, {family.num_tasks('eval'):,} to evaluate"
    except AgentRLError as error:
        return EnvReport(name=name, is_ready=False, note=str(error))
    traits = traits_of(family)
    needs = [*(["a sandbox"] if traits.needs_sandbox else []), *traits.services]
    notes = [
        counts,
        *([f"data sets {', '.join(traits.data_sets)}"] if traits.data_sets else []),
        *([f"needs {', '.join(needs)}"] if needs else []),
    ]
    return EnvReport(name=name, is_ready=True, note="; ".join(notes))


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyConfig:
    """Say what real task data is in a folder, what is missing, and where that is published."""

    command: Annotated[Literal["verify"], tyro.conf.Positional]
    data: Annotated[Path, tyro.conf.Positional]
    """Folder of real task data"""
    envs: str = ""
    """Environments that must be ready, separated by commas (default: none must)"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the findings; see the module for the exit code."""
    config = tyro.cli(VerifyConfig, args=arguments, prog="python -m envs.data")
    registry = EnvRegistry()
    register_all(registry)
    wanted = [name.strip() for name in config.envs.split(",") if name.strip()]
    unknown = sorted(set(wanted) - set(registry.entries))
    if not config.data.is_dir() or unknown:
        problem = f"no environment {', '.join(unknown)}" if unknown else f"{config.data} is no folder"
        print(f"envs.data: {problem}", file=sys.stderr)
        return 2
    findings = [finding for pack in PACKS for finding in verify_pack(config.data, pack)]
    for finding in findings:
        state = finding.state if finding.is_needed or finding.state != "missing" else "not there"
        print(f"{state:<11}{finding.path:<46}{finding.note}")
    print()
    reports = [verify_env(config.data, name, registry) for name in sorted(registry.entries)]
    for report in reports:
        print(f"{'ready' if report.is_ready else 'not ready':<11}{report.name:<46}{report.note}")
    is_ready = all(report.is_ready for report in reports if report.name in wanted)
    is_whole = all(finding.state not in ("broken", "incomplete") for finding in findings)
    return int(not (is_ready and is_whole))


if __name__ == "__main__":
    raise SystemExit(main())
