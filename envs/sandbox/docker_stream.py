"""The stream of a process that a Docker engine executes, and the frames in which its output comes."""

import select
import socket
import struct
import time
from typing import Any, cast

from docker.api import APIClient

from envs.sandbox.docker_engine import engine_errors

_HEADER = struct.Struct(">xxxxL")
_MAX_SEND_S = 10.0


class DockerStream:
    """Implements `envs.sandbox.streams.Stream` over the connection of an execution, which is taken over from HTTP.

    Frames of standard output and of standard error are not told apart.
    """

    def __init__(self, api: APIClient, execution: str) -> None:
        self._api = api
        self._execution = execution
        # What the response has read beyond its head would be lost: the process must not speak before it is spoken to.
        self._holder = cast(Any, api.exec_start(execution, socket=True))
        self._socket = cast(socket.socket, getattr(self._holder, "_sock", self._holder))
        self._socket.settimeout(_MAX_SEND_S)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._buffer = bytearray()

    def write(self, data: bytes) -> None:
        self._socket.sendall(data)

    def read(self, deadline: float) -> bytes | None:
        while True:
            payload = self._next_payload()
            if payload:
                return payload
            if not self._poll.poll(max(0.0, deadline - time.monotonic()) * 1e3):
                return None
            try:
                data = self._socket.recv(1 << 18)
            except OSError:
                data = b""
            if not data:
                return b""
            self._buffer += data

    def exit_code(self) -> int | None:
        with engine_errors(is_inside=True):
            code = self._api.exec_inspect(self._execution)["ExitCode"]
        return None if code is None else int(code)

    def close(self) -> None:
        # The SDK keeps the response at what it returns; it holds the connection.
        self._holder._response.close()
        self._socket.close()

    def _next_payload(self) -> bytes:
        """What whole frames hold."""
        payload = bytearray()
        while len(self._buffer) >= _HEADER.size:
            (size,) = _HEADER.unpack_from(self._buffer)
            end = _HEADER.size + size
            if len(self._buffer) < end:
                break
            payload += self._buffer[_HEADER.size : end]
            del self._buffer[:end]
        return bytes(payload)
