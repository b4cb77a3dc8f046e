"""Request bodies, read as leniently as AgentRL's own worker does; what it refuses is refused in its form."""

import json
from typing import Any


class BadBody(Exception):
    """A body that does not fit. detail: a list of what is wrong, as FastAPI says it."""

    def __init__(self, detail: list[dict[str, Any]]) -> None:
        super().__init__(detail)
        self.detail = detail

    @classmethod
    def of(cls, name: str, kind: str, text: str) -> "BadBody":
        """What is wrong with one field."""
        return cls([{"type": kind, "loc": ["body", name], "msg": text}])


def body_of(body: bytes) -> dict[str, Any]:
    """A JSON object; nothing counts as an empty one. Raises BadBody."""
    if not body.strip():
        return {}
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadBody([{"type": "json_invalid", "loc": ["body"], "msg": f"JSON decode error: {error}"}]) from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        text = "Input should be a valid dictionary or object to extract fields from"
        raise BadBody([{"type": "model_attributes_type", "loc": ["body"], "msg": text}])
    return value


def integer_of(body: dict[str, Any], name: str) -> int:
    """An integer, or digits in a string. Raises BadBody."""
    value = _given(body, name)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            pass
    raise BadBody.of(name, "int_parsing", "Input should be a valid integer")


def index_of(body: dict[str, Any], name: str) -> int | str:
    """An integer or a string. Raises BadBody."""
    value = _given(body, name)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise BadBody.of(name, "int_type", "Input should be a valid integer or string")
    return value


def _given(body: dict[str, Any], name: str) -> Any:
    if name not in body:
        raise BadBody.of(name, "missing", "Field required")
    return body[name]
