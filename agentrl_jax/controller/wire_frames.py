"""The bytes of one HTTP/2 connection, in and out: h2 over a trio stream, one task that reads and one that writes.

Invariants:
- What the other side makes us answer (pings, settings, resets) is bounded: whoever does not read it is cut off.
- A connection whose other side is gone without a word ends: silence is answered by a ping, or by the end where no call
  is open.
"""

from abc import ABC, abstractmethod

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
import trio

_CHUNK_BYTES = 65_536
_WINDOW_BYTES = 4 << 20
_GONE = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)
_SILENCE_S = 300.0
"""Servers of gRPC take more frequent pings for an attack."""
_PING_S = 20.0
_PING = b"are you?"
_MAX_REPLY_BYTES = 1 << 20


class FrameIO(ABC):
    """`write` and `read` run in tasks of their own; whoever calls methods of `h2` calls `flush` afterwards."""

    def __init__(self, stream: trio.abc.Stream, *, is_client: bool) -> None:
        self._stream, self._is_client = stream, is_client
        # Headers stay bytes: h2 would decode them, and raise at those that are not UTF-8.
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=is_client, header_encoding=None))
        self.h2.local_settings = h2.settings.Settings(client=is_client, initial_values=_settings(is_client))
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(4 * _WINDOW_BYTES)
        self._to_write, self._written = trio.Event(), trio.Event()
        self._outgoing, self._num_reply_bytes = bytearray(), 0
        self._is_broken = False

    @property
    @abstractmethod
    def is_used(self) -> bool:
        """Whether a call is open."""

    @abstractmethod
    def handle(self, event: h2.events.Event) -> None:
        """Told of everything that the other side says but its farewell."""

    async def write(self) -> None:
        """Write what h2 has to say, until the connection breaks."""
        while True:
            self._to_write = trio.Event()
            data = self._take_outgoing()
            try:
                if data:
                    await self._stream.send_all(data)
                    continue
            except _GONE:
                self._is_broken = True
            self._written.set()
            if self._is_broken:
                return
            await self._to_write.wait()

    async def read(self, received: bytes = b"") -> str:
        """Take in what comes, until there is no more; return why. received: what has been read already."""
        while True:
            if received:
                try:
                    events = self._take_in(received)
                except h2.exceptions.ProtocolError as error:
                    self.flush()
                    return f"the other side does not speak HTTP/2: {error or type(error).__name__}"
                for event in events:
                    if isinstance(event, h2.events.ConnectionTerminated):
                        return f"the other side ended the connection (code {event.error_code})"
                    self.handle(event)
                self.flush()
            try:
                data = await self._receive()
            except _GONE as error:
                return f"the connection broke: {error or type(error).__name__}"
            if data is None:
                return f"nothing came for {_SILENCE_S} s"
            if not data:
                return "the other side closed the connection"
            received = data

    def flush(self) -> None:
        """Let the writer write."""
        self._to_write.set()

    async def wait_written(self) -> None:
        """Return once nothing is left to write, or nobody to read it."""
        self._written = trio.Event()
        self.flush()
        if not self._is_broken:
            await self._written.wait()

    async def _receive(self) -> bytes | None:
        """What comes next; None if nothing does."""
        with trio.move_on_after(_SILENCE_S):
            return bytes(await self._stream.receive_some(_CHUNK_BYTES))
        if self._is_client or self.is_used:
            self.h2.ping(_PING)
            self.flush()
            with trio.move_on_after(_PING_S):
                return bytes(await self._stream.receive_some(_CHUNK_BYTES))
        return None

    def _take_outgoing(self) -> bytes:
        data = bytes(self._outgoing) + self.h2.data_to_send()
        self._outgoing.clear()
        self._num_reply_bytes = 0
        return data

    def _take_in(self, received: bytes) -> list[h2.events.Event]:
        """What the bytes say. Raises ProtocolError, also if the other side has more answered than it reads."""
        self._outgoing += self.h2.data_to_send()
        events = self.h2.receive_data(received)
        replies = self.h2.data_to_send()
        self._outgoing += replies
        self._num_reply_bytes += len(replies)
        if self._num_reply_bytes > _MAX_REPLY_BYTES:
            raise h2.exceptions.DenialOfServiceError(f"{self._num_reply_bytes} bytes of answers are not read")
        return events


def _settings(is_client: bool) -> dict[h2.settings.SettingCodes, int]:
    codes = h2.settings.SettingCodes
    settings = {
        codes.INITIAL_WINDOW_SIZE: _WINDOW_BYTES,
        codes.MAX_CONCURRENT_STREAMS: 64,
        codes.MAX_HEADER_LIST_SIZE: 32_768,
    }
    return {**settings, codes.ENABLE_PUSH: 0} if is_client else settings
