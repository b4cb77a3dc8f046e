"""What JAX is told before it has a device: its process group, its share of GPU memory, where it keeps programs."""

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from agentrl_jax.distributed import ProcessGroup, ProcessGroupConfig, join
from agentrl_jax.errors import ConfigError

_MEMORY_FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeConfig(ProcessGroupConfig):
    """Settings of JAX itself."""

    memory_fraction: float | None = None
    """Share of each GPU's memory that JAX takes at the start (default: JAX's own, three quarters); GPUs only"""
    compilation_cache: str = "auto"
    """Folder in which compiled programs outlive the process, or off; auto: agentrl_jax/ in the user's cache folder on
    accelerators, off on a CPU"""

    def __post_init__(self) -> None:
        # dataclass(slots=True) makes a new class, which leaves super() without arguments behind.
        ProcessGroupConfig.__post_init__(self)
        if self.memory_fraction is not None and not 0.0 < self.memory_fraction <= 1.0:
            raise ConfigError(f"--memory-fraction must be in (0, 1], got {self.memory_fraction}")
        if not self.compilation_cache:
            raise ConfigError("--compilation-cache must be auto, off or a folder, got ''")

    def elsewhere(self) -> "RuntimeConfig":
        """These settings for other processes than the ones that they were given to: of no named group."""
        return replace(self, coordinator_address=None, num_processes=None, process_id=None)


def start(config: RuntimeConfig) -> ProcessGroup | None:
    """Tell JAX, and return the process group, if there is one.

    Call it before JAX has a device. Raises ConfigError if the group cannot be formed.
    """
    if config.memory_fraction is not None:
        # The only way in; JAX reads it when it makes its GPU client.
        os.environ[_MEMORY_FRACTION] = str(config.memory_fraction)
    return join(config)


def settle(config: RuntimeConfig) -> Path | None:
    """Check what depends on the devices that there are, and return the folder of the compilation cache, if any.

    Raises ConfigError for a setting without effect, or a folder that cannot be made.
    """
    import jax

    is_cpu = jax.default_backend() == "cpu"
    if is_cpu and config.memory_fraction is not None:
        raise ConfigError("--memory-fraction has no effect on a CPU, which shares its memory: leave it out")
    if config.compilation_cache == "off" or (config.compilation_cache == "auto" and is_cpu):
        return None
    folder = _user_cache() / "agentrl_jax" if config.compilation_cache == "auto" else Path(config.compilation_cache)
    folder = folder.expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--compilation-cache {folder} cannot be made: {error.strerror or error}") from error
    jax.config.update("jax_compilation_cache_dir", str(folder))  # type: ignore[no-untyped-call]
    return folder


def _user_cache() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
