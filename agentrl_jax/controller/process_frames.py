"""What a session process and its controller say to each other: length-prefixed JSON over a stream socket.

Nothing is ever unpickled. Python's own JSON carries what a policy may have written into a call and stricter codecs
refuse: lone surrogates, integers of any size, NaN.
"""

import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import msgspec

from agentrl_jax.env import Action, Message, StepResult
from agentrl_jax.errors import EnvError
from agentrl_jax.types import Task

T = TypeVar("T")

HEADER = struct.Struct("!I")
MAX_FRAME_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateSetup:
    """The first frame to a template process: what makes its envs (see `env.EnvSource`)."""

    target: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateReady:
    """The template's answer. error: why there will be no envs ("" if there will)."""

    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Born:
    """The first frame on a session's lifeline. error: why no process could be started ("" if one was)."""

    pid: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Died:
    """The last frame on a session's lifeline. code: exit code, or minus the signal. output: the end of what the
    process wrote to stdout and stderr."""

    code: int
    output: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call of the env. task: of a start. action: of a step."""

    call: Literal["start", "step", "close"]
    task: Task | None = None
    action: Action | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """messages: of a start. result: of a step. error: the env failed (is_timeout: by its own deadline)."""

    messages: tuple[Message, ...] = ()
    result: StepResult | None = None
    error: str | None = None
    is_timeout: bool = False


def pack(value: object) -> bytes:
    """One frame. Raises EnvError for what JSON cannot say, and for more than MAX_FRAME_BYTES."""
    try:
        payload = json.dumps(msgspec.to_builtins(value), separators=(",", ":")).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise EnvError(f"a message to or from an env must be plain JSON: {error}") from error
    if len(payload) > MAX_FRAME_BYTES:
        raise EnvError(f"a message to or from an env must be at most {MAX_FRAME_BYTES} bytes, got {len(payload)}")
    return HEADER.pack(len(payload)) + payload


def frame_length(header: bytes) -> int:
    """Bytes of the payload after `header`. Raises EnvError if it cannot be the header of a frame."""
    (length,) = HEADER.unpack(header)
    if length > MAX_FRAME_BYTES:
        raise EnvError(f"expected a frame of at most {MAX_FRAME_BYTES} bytes, got a header of {length}")
    return int(length)


def unpack(payload: bytes, kind: type[T]) -> T:
    """The value of a frame's payload. Raises EnvError if it is not a `kind`."""
    try:
        return msgspec.convert(json.loads(payload), kind)
    except (ValueError, RecursionError) as error:
        raise EnvError(f"expected a {kind.__name__}, got {payload[:200]!r}: {error}") from error


def receive(stream: socket.socket, kind: type[T]) -> T | None:
    """The next frame of a blocking socket; None at its end."""
    header = _receive_exactly(stream, HEADER.size)
    payload = None if header is None else _receive_exactly(stream, frame_length(header))
    return None if payload is None else unpack(payload, kind)


def _receive_exactly(stream: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = stream.recv(min(size - len(parts), 1 << 16))
        if not part:
            return None
        parts += part
    return bytes(parts)
