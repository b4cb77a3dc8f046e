"""In place of SGLang's GPU kernels: every name can be imported, and says at the call that it has no CPU form."""

import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any

__version__ = "0.0.0+cpu"


class _Kernel:
    """What stands for a kernel, or for a class or namespace of them."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"sgl_kernel: {self.__name__} does not exist on a CPU")

    def __getattr__(self, name: str) -> "_Kernel":
        if name.startswith("__"):
            raise AttributeError(name)
        return _Kernel(f"{self.__name__}.{name}")

    def __mro_entries__(self, _: tuple[type, ...]) -> tuple[type, ...]:
        return ()


def copy_all_layer_kv_cache_cpu(keys: Any, values: Any, targets: Any, sources: Any) -> None:
    """The one kernel that the plain torch path needs: move cache rows, in every layer."""
    for layer in (*keys, *values):
        layer[targets] = layer[sources].clone()


def __getattr__(name: str) -> _Kernel:
    if name.startswith("__"):
        raise AttributeError(name)
    return _Kernel(name)


class _Submodule(types.ModuleType):
    def __getattr__(self, name: str) -> _Kernel:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Kernel(f"{self.__name__}.{name}")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Any submodule exists, at any depth."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        is_ours = fullname.startswith(f"{__name__}.")
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if is_ours else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Submodule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


sys.meta_path.append(_Finder())
