"""Subscriptions and assignments of consumers in classic groups: bytes in the records of a group.

The bytes are an int16 version, then the fields of that version. kafka-dump-log prints the fields if
it can parse them, and ignores bytes after them, which a later version may have.

Source: Kafka ``ConsumerProtocol``, ``DumpLogSegments.OffsetsMessageParser``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Final, NamedTuple, TypeAlias

from raftlog_state.errors import MetadataParseError

from .json_text import TextWriter, data_text_writer
from .reader import ValueReader, record_reader
from .scalars import bytes_json
from .schema_groups import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from .writer import ValueWriter, record_writer

PROTOCOL_TYPE: Final = "consumer"
"""``GroupMetadataValue.protocol_type`` of a group of consumers."""

Parsed: TypeAlias = ConsumerProtocolSubscription | ConsumerProtocolAssignment

PROTOCOL_FIELDS: Final[dict[str, type[Parsed]]] = {
    "subscription": ConsumerProtocolSubscription,
    "assignment": ConsumerProtocolAssignment,
}
"""Types of the attributes of ``MemberMetadata``."""


def parse_protocol(name: str, data: bytes) -> tuple[int, Parsed] | None:
    """Return the version and the fields; None if the bytes are not of a known version.

    ``name`` is one of ``PROTOCOL_FIELDS``.
    """
    version = int.from_bytes(data[:2], "big")
    if len(data) < 2 or version > PROTOCOL_FIELDS[name].schema.latest_version:
        return None
    try:
        parsed, _ = _codec(name, version).read(data, 2)
    except MetadataParseError:
        return None
    return version, parsed


def protocol_bytes(name: str, version: int, parsed: Parsed) -> bytes:
    """Return the bytes of a result of ``parse_protocol``."""
    return _codec(name, version).write(parsed)


def protocol_json(name: str) -> Callable[[bytes], str]:
    """Return a function from bytes to JSON: the fields, or base64 if they cannot be parsed."""

    def text(data: bytes) -> str:
        found = parse_protocol(name, data)
        if found is None:
            return bytes_json(data)
        version, parsed = found
        return _codec(name, version).text(parsed)

    return text


class _Codec(NamedTuple):
    read: ValueReader
    write: ValueWriter
    text: TextWriter


@cache
def _codec(name: str, version: int) -> _Codec:
    kind = PROTOCOL_FIELDS[name]
    head = version.to_bytes(2, "big")
    return _Codec(
        record_reader(kind, version),
        record_writer(kind, version, head),
        data_text_writer(kind, version),
    )
