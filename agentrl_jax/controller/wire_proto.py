"""The protobuf messages of AgentRL's gRPC transport, as classes: described here, so that nothing is generated.

One bidirectional stream, dialled by the worker, carries `WorkerStreamEnvelope`s both ways. A REQUEST of the controller
names an endpoint of the worker's HTTP API and carries its JSON body; the RESPONSE has the same id and, as its code, the
HTTP status. HEARTBEATs are not answered; a worker's REQUEST says that a cancelled session has ended.

Needs the package `protobuf` (extra `serve`). Field numbers: AgentRL's controller.proto and common.proto.
"""

import time
from collections.abc import Iterable
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from google.protobuf.message import DecodeError

from agentrl_jax.errors import RecordError

STREAM_PATH = "/agentbench.Controller/WorkerStream"
"""The HTTP/2 path of the stream."""

MAX_MESSAGE_BYTES = 100 << 20
"""Of one envelope, either way."""

HEARTBEAT, REQUEST, RESPONSE = range(3)
"""Values of an envelope's `type`."""

_KINDS = descriptor_pb2.FieldDescriptorProto


def _field(
    name: str, number: int, kind: int, type_name: str = "", *, repeated: bool = False, is_choice: bool = False
) -> descriptor_pb2.FieldDescriptorProto:
    return _KINDS(
        name=name,
        number=number,
        type=kind,  # type: ignore[arg-type]
        type_name=type_name or None,
        label=_KINDS.LABEL_REPEATED if repeated else _KINDS.LABEL_OPTIONAL,
        oneof_index=0 if is_choice else None,
    )


def _message(
    name: str,
    *fields: descriptor_pb2.FieldDescriptorProto,
    oneof: str = "",
    nested: Iterable[descriptor_pb2.DescriptorProto] = (),
) -> descriptor_pb2.DescriptorProto:
    choice = [descriptor_pb2.OneofDescriptorProto(name=oneof)] if oneof else []
    return descriptor_pb2.DescriptorProto(name=name, field=fields, oneof_decl=choice, nested_type=nested)


def _common_file() -> descriptor_pb2.FileDescriptorProto:
    # proto2 has the presence of edition 2023, and like this file does not check that strings are UTF-8.
    index = _message(
        "TaskIndex",
        _field("int_value", 1, _KINDS.TYPE_INT64, is_choice=True),
        _field("string_value", 2, _KINDS.TYPE_STRING, is_choice=True),
        oneof="value",
    )
    return descriptor_pb2.FileDescriptorProto(name="agentrl_jax/common.proto", package="agentrl", message_type=[index])


def _controller_file() -> descriptor_pb2.FileDescriptorProto:
    text, blob, number = _KINDS.TYPE_STRING, _KINDS.TYPE_BYTES, _KINDS.TYPE_MESSAGE
    inner = ".agentbench.WorkerStreamEnvelope"
    heartbeat = _message(
        "ReceiveHeartbeatRequest",
        _field("id", 1, text),
        _field("name", 2, text),
        _field("concurrency", 3, _KINDS.TYPE_UINT32),
        _field("indices", 4, number, ".agentrl.TaskIndex", repeated=True),
    )
    notice = _message("SessionCancelNotice", _field("session_id", 1, _KINDS.TYPE_INT64))
    request = _message("WorkerRequest", _field("method", 1, text), _field("endpoint", 2, text), _field("json", 3, blob))
    response = _message(
        "WorkerResponse", _field("code", 1, _KINDS.TYPE_INT32), _field("message", 2, text), _field("json", 3, blob)
    )
    envelope = _message(
        "WorkerStreamEnvelope",
        _field("id", 1, text),
        _field("type", 2, _KINDS.TYPE_ENUM, f"{inner}.MessageType"),
        _field("timestamp", 3, number, ".google.protobuf.Timestamp"),
        _field("receive_heartbeat_request", 101, number, ".agentbench.ReceiveHeartbeatRequest", is_choice=True),
        _field("session_cancel_notice", 111, number, ".agentbench.SessionCancelNotice", is_choice=True),
        _field("worker_response", 121, number, f"{inner}.WorkerResponse", is_choice=True),
        _field("worker_request", 211, number, f"{inner}.WorkerRequest", is_choice=True),
        oneof="body",
        nested=[request, response],
    )
    kinds = [
        descriptor_pb2.EnumValueDescriptorProto(name=name, number=value)
        for value, name in enumerate(("HEARTBEAT", "REQUEST", "RESPONSE"))
    ]
    envelope.enum_type.add(name="MessageType", value=kinds)
    return descriptor_pb2.FileDescriptorProto(
        name="agentrl_jax/controller.proto",
        package="agentbench",
        dependency=["google/protobuf/timestamp.proto", "agentrl_jax/common.proto"],
        message_type=[heartbeat, notice, envelope],
    )


def _classes() -> dict[str, Any]:
    # A pool of its own: another package of this process may have the same names.
    pool = descriptor_pool.DescriptorPool()
    stamp = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(stamp)
    for file in (stamp, _common_file(), _controller_file()):
        pool.AddSerializedFile(file.SerializeToString())
    names = ("agentrl.TaskIndex", "agentbench.ReceiveHeartbeatRequest", "agentbench.WorkerStreamEnvelope")
    return {name.rsplit(".")[-1]: message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in names}


_CLASSES = _classes()
TaskIndex: Any = _CLASSES["TaskIndex"]
ReceiveHeartbeatRequest: Any = _CLASSES["ReceiveHeartbeatRequest"]
WorkerStreamEnvelope: Any = _CLASSES["WorkerStreamEnvelope"]


def parse_envelope(data: bytes) -> Any:
    """A `WorkerStreamEnvelope`. Raises RecordError if `data` is none."""
    try:
        envelope = WorkerStreamEnvelope.FromString(data)
        checked_text(envelope.id)
        return envelope
    except DecodeError as error:
        raise RecordError(f"expected a WorkerStreamEnvelope, got {len(data)} bytes: {error}") from error


def checked_text(value: str | bytes) -> str:
    """A string of a message. Raises RecordError for one that is not UTF-8, which protobuf gives as bytes."""
    if isinstance(value, bytes):
        raise RecordError(f"expected UTF-8, got {value!r}")
    return value


def _envelope(id_: str, kind: int, **body: Any) -> Any:
    now = time.time_ns()
    stamp = {"seconds": now // 10**9, "nanos": now % 10**9}
    return WorkerStreamEnvelope(id=id_, type=kind, timestamp=stamp, **body)


def request_envelope(request_id: str, endpoint: str, body: bytes) -> bytes:
    """The controller asks `endpoint` of the worker's API with a JSON `body` (empty: none)."""
    request = {"method": "POST" if body else "GET", "endpoint": endpoint, "json": body}
    sent: bytes = _envelope(request_id, REQUEST, worker_request=request).SerializeToString()
    return sent


def response_envelope(request_id: str, code: int, *, message: str = "", body: bytes = b"") -> bytes:
    """The answer to the request of that id: an HTTP status, a sentence for an error, and the JSON body."""
    response = {"code": code, "message": message, "json": body}
    sent: bytes = _envelope(request_id, RESPONSE, worker_response=response).SerializeToString()
    return sent


def heartbeat_envelope(
    envelope_id: str, worker_id: str, name: str, *, concurrency: int, indices: Iterable[int | str]
) -> bytes:
    """A worker says that it lives, and what it serves."""
    listed = [{"int_value": index} if isinstance(index, int) else {"string_value": index} for index in indices]
    heartbeat = {"id": worker_id, "name": name, "concurrency": concurrency, "indices": listed}
    sent: bytes = _envelope(envelope_id, HEARTBEAT, receive_heartbeat_request=heartbeat).SerializeToString()
    return sent


def cancel_notice_envelope(envelope_id: str, session_id: int) -> bytes:
    """A worker says that a session, whose cancellation was asked for with notice, has ended."""
    notice = {"session_id": session_id}
    sent: bytes = _envelope(envelope_id, REQUEST, session_cancel_notice=notice).SerializeToString()
    return sent


def heartbeat_indices(heartbeat: Any) -> list[int | str]:
    """The indices of a `ReceiveHeartbeatRequest`. Raises RecordError for one without a value, or not UTF-8."""
    found: list[int | str] = []
    for index in heartbeat.indices:
        which = index.WhichOneof("value")
        if which is None:
            raise RecordError("an index of a heartbeat has neither an int_value nor a string_value")
        found.append(index.int_value if which == "int_value" else checked_text(index.string_value))
    return found
