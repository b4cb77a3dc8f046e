"""What --model and --engine of `launch.evaluate` may name, and what each is told by: nothing is loaded here."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agentrl_jax.checkpoint_reading import RECORD
from agentrl_jax.errors import ConfigError
from agentrl_jax.policy import check_model_folder

SourceKind = Literal["model", "checkpoint", "sglang", "openai", "expert"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a policy comes from.

    folder: of the model, or of the checkpoint. url, detail: of an engine, and what stood behind its #.
    """

    name: str
    kind: SourceKind
    folder: Path | None = None
    url: str = ""
    detail: str = ""

    def to_json(self) -> dict[str, Any]:
        """What tells the policy from others, as plain JSON: of weights in a folder, size and time of their files."""
        if self.folder is None:
            return {"kind": self.kind, "url": self.url, "detail": self.detail}
        files = (
            {}
            if self.kind == "checkpoint"
            else {path.name: [path.stat().st_size, path.stat().st_mtime_ns] for path in _weight_files(self.folder)}
        )
        return {"kind": self.kind, "folder": str(self.folder.absolute()), "files": files}


def is_run(path: Path) -> bool:
    """Whether this is a run directory that has a policy."""
    return (path / "metrics.jsonl").is_file() and (path / "model").is_dir()


def checkpoint_run(path: Path) -> Path | None:
    """The run directory of a checkpoint; None if `path` is no checkpoint."""
    is_checkpoint = (path / RECORD).is_file() and path.absolute().parent.name == "checkpoints"
    return path.absolute().parent.parent if is_checkpoint else None


def find_sources(models: Sequence[Path], engines: Sequence[str], expert: bool, names: Sequence[str]) -> list[Source]:
    """The policies that flags name, in the order models, engines, expert. Raises ConfigError for what is none."""
    found = [_model(path) for path in models] + [_engine(address) for address in engines]
    found += [Source(name="expert", kind="expert")] if expert else []
    if names and len(names) != len(found):
        raise ConfigError(f"--name must name each of the {len(found)} policies, got {len(names)} names")
    given = list(names) or [source.name for source in found]
    strange = [name for name in given if not name or any(sign in name for sign in "+*:/ \t\n")]
    if names and strange:
        raise ConfigError(f"--name {strange[0]!r}: expected a name without spaces and + * : /")
    counts: Counter[str] = Counter()
    named = []
    for name, source in zip(given, found, strict=True):
        counts[name] += 1
        if names and counts[name] > 1:
            raise ConfigError(f"--name {name} stands for two policies")
        unique = name if counts[name] == 1 else f"{name}-{counts[name]}"
        named.append(Source(name=unique, kind=source.kind, folder=source.folder, url=source.url, detail=source.detail))
    return named


def secret(variable: str) -> str | None:
    """The value of an environment variable: what must not stand on a command line."""
    return os.environ.get(variable) or None


def _model(path: Path) -> Source:
    run = checkpoint_run(path)
    if run is not None:
        return Source(name=_safe(f"{run.name}-{path.absolute().name}"), kind="checkpoint", folder=path)
    if is_run(path):
        return Source(name=_safe(path.absolute().name), kind="model", folder=path / "model")
    check_model_folder(path)
    absolute = path.absolute()
    inside_run = absolute.name == "model" and is_run(absolute.parent)
    return Source(name=_safe(absolute.parent.name if inside_run else absolute.name), kind="model", folder=path)


def _engine(address: str) -> Source:
    kind, _, rest = address.partition(":")
    url, _, detail = rest.partition("#")
    if not url.startswith(("http://", "https://")) or kind not in ("sglang", "openai"):
        raise ConfigError(f"--engine: expected sglang:http://host:port or openai:http://host:port/v1, got {address!r}")
    name = _safe(detail.rstrip("/").rpartition("/")[2] or url.partition("//")[2])
    is_sglang = kind == "sglang"
    return Source(name=name, kind="sglang" if is_sglang else "openai", url=url.rstrip("/"), detail=detail)


def _safe(name: str) -> str:
    return "".join("-" if sign in "+*:/ \t\n" else sign for sign in name) or "policy"


def _weight_files(folder: Path) -> list[Path]:
    return sorted([*folder.glob("*.safetensors"), *folder.glob("*.gguf")])
