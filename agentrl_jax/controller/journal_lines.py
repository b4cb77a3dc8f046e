"""Lines of the journal's history: JSON objects, each with a checksum of its own.

    {"kind":"published","version":3,"crc":"1f0a93c2"}\\n

The checksum is crc32 over the bytes before `,"crc"`. Lines are ASCII and end in "\\n", the only byte they are split at.
"""

import json
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from agentrl_jax.errors import RecordError

Record = Mapping[str, Any]

FLUSHED_KINDS = frozenset({"begun", "completed", "published", "checkpoint"})
"""Kinds whose writer waits for the disk: what lies before such a line was whole once."""

_MARK = b',"crc":"'


class Lines(NamedTuple):
    """records: of the whole lines. num_bytes: their length; what follows is a torn tail."""

    records: list[Record]
    num_bytes: int


def encode_line(record: Record) -> bytes:
    """Return the line of `record`, which must be a JSON object that is not empty."""
    body = json.dumps(record, allow_nan=False, separators=(",", ":")).encode("ascii")[:-1]
    return b'%b%b%08x"}\n' % (body, _MARK, zlib.crc32(body))


def decode_line(line: bytes) -> Record | None:
    """Return the record of a line without its end, or None if it is not whole."""
    body, mark, checksum = line.rpartition(_MARK)
    if not mark or checksum != b'%08x"}' % zlib.crc32(body):
        return None
    record: Record = json.loads(body + b"}")
    return record


def decode_lines(data: bytes) -> Lines:
    """Return the lines up to the first that is not whole.

    A crash tears only the end, behind everything that was flushed. Raises RecordError if a flushed line follows a
    broken one: then the disk, not a crash, changed the file, and versions could repeat if it were cut.
    """
    lines = data.split(b"\n")
    records, num_bytes = [], 0
    for number, line in enumerate(lines[:-1], start=1):
        record = decode_line(line)
        if record is None:
            _check_nothing_flushed(lines[number:-1], number)
            break
        records.append(record)
        num_bytes += len(line) + 1
    return Lines(records, num_bytes)


def _check_nothing_flushed(later: list[bytes], number: int) -> None:
    for record in map(decode_line, later):
        if record is not None and record["kind"] in FLUSHED_KINDS:
            raise RecordError(f"line {number} is damaged, although a later line had been flushed to the disk")
