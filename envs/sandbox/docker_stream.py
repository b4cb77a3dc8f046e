"""The stream of a process that a Docker engine executes, and the frames in which its output comes."""

import select
import socket
import struct
import time
from typing import Any

from docker.api import APIClient

from envs.sandbox.protocol import SandboxLost

_HEADER = struct.Struct(">BxxxL")
_ERRORS = 2
_MAX_SEND_S = 10.0


class DockerStream:
    """Implements `envs.sandbox.streams.Stream` over the connection of an execution, which is taken over from HTTP.

    keeps_errors: whether standard error belongs to the output.
    """

    def __init__(self, api: APIClient, execution: str, *, keeps_errors: bool = True) -> None:
        self._api = api
        self._execution = execution
        self._keeps_errors = keeps_errors
        # What the response has read beyond its head would be lost: the process must not speak before it is spoken to.
        self._holder: Any = api.exec_start(execution, socket=True)  # of several types, by the engine's URL
        held: Any = getattr(self._holder, "_sock", None)
        self._socket: socket.socket = self._holder if held is None else held
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

    def exit_code(self) -> int:
        code = self._api.exec_inspect(self._execution)["ExitCode"]
        if code is None:
            raise SandboxLost("the Docker engine closed the stream of a program that runs")
        return int(code)

    def close(self) -> None:
        self._socket.close()
        self._holder.close()
        response = getattr(self._holder, "_response", None)
        if response is not None:
            response.close()

    def _next_payload(self) -> bytes:
        """What whole frames hold."""
        payload = bytearray()
        while len(self._buffer) >= _HEADER.size:
            kind, size = _HEADER.unpack_from(self._buffer)
            end = _HEADER.size + size
            if len(self._buffer) < end:
                break
            if self._keeps_errors or kind != _ERRORS:
                payload += self._buffer[_HEADER.size : end]
            del self._buffer[:end]
        return bytes(payload)
