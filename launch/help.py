"""How `--help` shows a config: docstrings as flowing text, and each default said once."""

from collections.abc import Callable
from dataclasses import is_dataclass, replace
from typing import Annotated, Any

import tyro
from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructFieldSpec, StructTypeInfo

REGISTRY = ConstructorRegistry()
"""To be given to tyro.cli."""

_asking: list[StructTypeInfo] = []


@REGISTRY.struct_rule
def _with_flowing_text(info: StructTypeInfo) -> StructConstructorSpec | None:
    if _asking or not is_dataclass(info.type):
        return None
    _asking.append(info)  # this rule is about what the others make of the type
    try:
        spec = ConstructorRegistry.get_struct_spec(info)
    finally:
        _asking.pop()
    if not isinstance(spec, StructConstructorSpec):
        return None
    return replace(spec, fields=tuple(_flowing(field) for field in spec.fields))


def _flowing(field: StructFieldSpec) -> StructFieldSpec:
    def text() -> str | None:
        written = field.helptext() if callable(field.helptext) else field.helptext
        return None if written is None else " ".join(written.split())

    type_: Any = field.type
    if field.default is None or field.default in ((), {}):
        type_ = Annotated[type_, tyro.conf.arg(help_behavior_hint=_hint_after(text))]
    return replace(field, helptext=text, type=type_)


def _hint_after(text: Callable[[], str | None]) -> Callable[[str], str]:
    """The default of a field that has none, unless its text says what that means."""
    return lambda label: "" if "(default:" in (text() or "") else "(default: none)"
