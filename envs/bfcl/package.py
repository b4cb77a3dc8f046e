"""Finds the `bfcl-eval` package, which holds BFCL's entries, function documents and simulators (Apache-2.0).

It is read where it lies: in a folder that holds `bfcl_eval` (an unpacked wheel, or a virtual environment's), or where
the interpreter finds it. Only its data files and the simulators' modules are used, none of its evaluation code.
"""

import importlib
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agentrl_jax.errors import ConfigError

PACKAGE = "bfcl_eval"
FOLDER = "bfcl"
INSTALL = "install it with tools/install_bfcl.sh and give --data .venv-bfcl"
_SIMULATORS = f"{PACKAGE}.eval_checker.multi_turn_eval.func_source_code"
# Class: the module that it lies in, and the file that documents its functions.
_CLASSES = {
    "GorillaFileSystem": ("gorilla_file_system", "gorilla_file_system.json"),
    "MathAPI": ("math_api", "math_api.json"),
    "MessageAPI": ("message_api", "message_api.json"),
    "TicketAPI": ("ticket_api", "ticket_api.json"),
    "TradingBot": ("trading_bot", "trading_bot.json"),
    "TravelAPI": ("travel_booking", "travel_booking.json"),
    "TwitterAPI": ("posting_api", "posting_api.json"),
    "VehicleControlAPI": ("vehicle_control", "vehicle_control.json"),
}
CLASSES = tuple(_CLASSES)
Rows = tuple[Mapping[str, Any], ...]


class Package:
    """root: the folder that holds `bfcl_eval`. Raises ConfigError for what is missing or broken in it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._data = root / PACKAGE / "data"
        self.simulators = {name: self._simulator(name) for name in CLASSES}

    def entries(self, category: str) -> Rows:
        return self._rows(self._entries_file(self._data, category))

    def answers(self, category: str) -> Rows:
        return self._rows(self._entries_file(self._data / "possible_answer", category))

    def documents(self, class_name: str) -> Rows:
        """How the functions of a class are described to a model."""
        return self._rows(self._data / "multi_turn_func_doc" / _CLASSES[class_name][1])

    @staticmethod
    def _entries_file(folder: Path, category: str) -> Path:
        # The number is that of the package's own versions; the multi-turn entries are those of BFCL v3.
        found = sorted(folder.glob(f"BFCL_v*_multi_turn_{category}.json"))
        if not found:
            raise ConfigError(f"environment bfcl expects BFCL's entries of category {category} in {folder}")
        return found[-1]

    @staticmethod
    def _rows(path: Path) -> Rows:
        try:
            return tuple(json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: expected a JSON object a line, but {error}") from error

    def _simulator(self, class_name: str) -> type:
        module_name = f"{_SIMULATORS}.{_CLASSES[class_name][0]}"
        path = self._root.joinpath(*module_name.split(".")).with_suffix(".py")
        # An import that fails would leave its mark on later ones.
        if not path.is_file():
            raise ConfigError(f"environment bfcl: {self._root} lacks the simulator {path}; {INSTALL}")
        with _importable(self._root):
            try:
                module = importlib.import_module(module_name)
            except ImportError as error:
                raise ConfigError(f"environment bfcl: {self._root} lacks something: {error}; {INSTALL}") from error
        if Path(str(module.__file__)) != path:
            raise ConfigError(f"environment bfcl: {PACKAGE} was already loaded from {module.__file__}")
        simulator: type = vars(module)[class_name]
        return simulator


@contextmanager
def _importable(root: Path) -> Iterator[None]:
    """Let modules be imported from `root`, behind everything that is installed."""
    sys.path.append(str(root))
    try:
        yield
    finally:
        sys.path.remove(str(root))


def find_package(data: Path | None) -> Package:
    """The package in a data folder, or where the interpreter finds it, loaded once per process.

    Raises ConfigError if it is not there, or lacks something.
    """
    return _load(_find_root(data))


def _find_root(data: Path | None) -> Path:
    if data is None:
        spec = find_spec(PACKAGE)
        if spec is None or spec.origin is None:
            raise ConfigError(f"environment bfcl needs the package bfcl-eval: {INSTALL}")
        return Path(spec.origin).resolve().parents[1]
    folders = [data / FOLDER, data, *sorted(data.glob("lib/python*/site-packages"))]
    root = next((folder for folder in folders if (folder / PACKAGE).is_dir()), None)
    if root is None:
        raise ConfigError(f"environment bfcl expects the package bfcl-eval in {data}: {INSTALL}")
    return root.resolve()


@lru_cache(maxsize=2)
def _load(root: Path) -> Package:
    return Package(root)
