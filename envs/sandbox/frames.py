"""JSON values with file descriptors over a stream socket, between a driver and its keeper."""

import array
import json
import os
import socket
import struct
from typing import Any

_HEADER = struct.Struct("!I")
_MAX_FDS = 8


def send(end: socket.socket, value: Any, fds: tuple[int, ...] = ()) -> None:
    """Raises OSError once the other side is gone. What is short goes out in one piece: two processes may send over one
    socket."""
    payload = json.dumps(value).encode()
    frame = _HEADER.pack(len(payload)) + payload
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    end.sendall(frame[end.sendmsg([frame], rights) :])


def receive(end: socket.socket) -> tuple[Any, tuple[int, ...]] | None:
    """The next value, and the descriptors that came with it, which are now this process's; None once the other side is
    gone."""
    # socket.recv_fds drops the flag that keeps descriptors from programs executed later.
    room = socket.CMSG_LEN(_MAX_FDS * array.array("i").itemsize)
    header, ancillary, _, _ = end.recvmsg(_HEADER.size, room, socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    while header and len(header) < _HEADER.size:
        header += end.recv(_HEADER.size - len(header))
    if not header:
        return None
    (missing,) = _HEADER.unpack(header)
    payload = bytearray()
    while len(payload) < missing:
        data = end.recv(missing - len(payload))
        if not data:
            close_all(tuple(fds))
            return None
        payload += data
    return json.loads(payload), tuple(fds)


def close_all(fds: tuple[int, ...] | list[int]) -> None:
    for fd in fds:
        os.close(fd)
