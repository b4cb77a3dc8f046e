"""In place of Triton (1 GB): kernels can be defined, as SGLang does at import, and are never launched on a CPU."""

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable
from typing import Any

__version__ = "3.4.0"


class _Base:
    """Of every class of Triton that something derives from or makes."""

    def __init_subclass__(cls, **_: Any) -> None:
        super().__init_subclass__()

    def __init__(self, *_: Any, **__: Any) -> None:
        pass


class Config(_Base):
    def __init__(self, kwargs: dict[str, Any] | None = None, **options: Any) -> None:
        self.kwargs = kwargs or {}
        self.__dict__.update(options)


class _Kernel:
    """What @jit leaves behind."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.fn = function
        self.__name__ = getattr(function, "__name__", "kernel")
        self.__doc__ = getattr(function, "__doc__", None)
        self.__module__ = getattr(function, "__module__", __name__)

    def __getitem__(self, grid: Any) -> "_Kernel":
        return self

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"triton: kernel {self.__name__} was launched on a CPU")


def _as_kernel(function: Any) -> Any:
    return function if isinstance(function, _Kernel) else _Kernel(function)


def jit(*arguments: Any, **options: Any) -> Any:
    """With or without options, as a decorator."""
    if len(arguments) == 1 and not options and callable(arguments[0]):
        return _as_kernel(arguments[0])
    return _as_kernel


def _decorator(*_: Any, **__: Any) -> Callable[[Any], Any]:
    return _as_kernel


autotune = heuristics = _decorator


def cdiv(a: int, b: int) -> int:
    return -(a // -b)


def next_power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length() if n > 0 else 1


class _Namespace(types.ModuleType):
    """A module in which every name exists: capitalised ones are classes, others namespaces that decorate."""

    __path__: list[str] = []  # noqa: RUF012 - what marks a package

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        value = type(name, (_Base,), {"__module__": self.__name__}) if name[0].isupper() else _Namespace(full)
        setattr(self, name, value)
        return value

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return jit(*arguments, **options)

    def __mro_entries__(self, _: tuple[type, ...]) -> tuple[type, ...]:
        return (_Base,)

    def __or__(self, _: Any) -> Any:
        return object

    __ror__ = __or__


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Any submodule exists, at any depth."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        is_ours = fullname.startswith(f"{__name__}.")
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if is_ours else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Namespace(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


sys.meta_path.append(_Finder())
for _name in ("language", "runtime", "compiler", "backends", "testing", "tools", "misc"):
    globals()[_name] = importlib.import_module(f"{__name__}.{_name}")
sys.modules["triton.backends"].backends = {}  # type: ignore[attr-defined]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(sys.modules["triton.misc"], name)
