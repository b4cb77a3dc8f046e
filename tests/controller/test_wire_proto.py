"""The messages of the gRPC transport, byte for byte as the stock package writes and reads them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.controller.wire_proto import (
    cancel_notice_envelope,
    heartbeat_envelope,
    heartbeat_indices,
    parse_envelope,
    request_envelope,
    response_envelope,
)
from agentrl_jax.errors import RecordError


def without_timestamp(data: bytes) -> bytes:
    envelope = parse_envelope(data)
    assert envelope.timestamp.seconds > 1_700_000_000
    envelope.ClearField("timestamp")
    sent: bytes = envelope.SerializeToString()
    return sent


def test_bytes() -> None:
    # Field numbers 1, 2, 101 (tag 0xaa06), 111 (0xfa06), 121 (0xca07), 211 (0x9a0d), by hand.
    heartbeat = heartbeat_envelope("e", "w", "t", concurrency=3, indices=[0, -1, "s"])
    assert without_timestamp(heartbeat) == (
        b"\x0a\x01e\x10\x00\xaa\x06\x1e"
        b"\x0a\x01w\x12\x01t\x18\x03\x22\x02\x08\x00\x22\x0b\x08" + b"\xff" * 9 + b"\x01\x22\x03\x12\x01s"
    )
    assert without_timestamp(cancel_notice_envelope("e", 300)) == b"\x0a\x01e\x10\x01\xfa\x06\x03\x08\xac\x02"
    assert without_timestamp(response_envelope("e", 200, body=b"{}")) == (
        b"\x0a\x01e\x10\x02\xca\x07\x09\x08\xc8\x01\x12\x00\x1a\x02{}"
    )
    assert without_timestamp(request_envelope("e", "interact", b"{}")) == (
        b"\x0a\x01e\x10\x01\x9a\x0d\x14\x0a\x04POST\x12\x08interact\x1a\x02{}"
    )


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.text(), max_size=5))
def test_indices_come_back(indices: list[int | str]) -> None:
    envelope = parse_envelope(heartbeat_envelope("e", "w", "t", concurrency=1, indices=indices))
    assert heartbeat_indices(envelope.receive_heartbeat_request) == indices


def test_what_is_none_is_refused() -> None:
    with pytest.raises(RecordError, match="expected a WorkerStreamEnvelope"):
        parse_envelope(b"\xff\xff")
    empty = parse_envelope(b"\x0a\x01e\xaa\x06\x02\x22\x00")
    with pytest.raises(RecordError, match="neither"):
        heartbeat_indices(empty.receive_heartbeat_request)
