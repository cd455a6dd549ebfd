"""Control records: their messages, encoding, and JSON as ``kafka-dump-log`` prints it."""

from __future__ import annotations

import base64
import enum
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias, TypeVar

from raftlog.errors import CorruptBatchError, MalformedVarintError
from raftlog.limits import STRING_BYTES_MAX
from raftlog.types import ZERO_UUID

from .varint import read_unsigned_varint, unsigned_varint

# --- Fields of Kafka's flexible messages, as far as control records use them ----------------------
# Fixed-width numbers are big-endian. Lengths and counts are unsigned varints of the value plus 1; 0
# means null, which no field of a control record may be (Kafka: ``MessageDataGenerator``). Every
# structure ends with its tagged fields. Control records define none, so unknown ones are kept and
# written back.
#
# The reader raises ``CorruptBatchError`` without path, position and offset.


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TaggedField:
    """Tagged field that this version of the format does not define."""

    tag: int
    data: bytes


class FieldReader:
    """Sequential reader of the fields of a message."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def int16(self) -> int:
        return self._number(">h", 2)

    def uint16(self) -> int:
        return self._number(">H", 2)

    def int32(self) -> int:
        return self._number(">i", 4)

    def int64(self) -> int:
        return self._number(">q", 8)

    def uuid(self) -> str:
        """Read a UUID as Kafka's text: URL-safe base64 without padding, 22 characters."""
        return base64.urlsafe_b64encode(self._take(16)).rstrip(b"=").decode()

    def string(self) -> str:
        byte_count = self._unsigned() - 1
        if not 0 <= byte_count <= STRING_BYTES_MAX:
            raise CorruptBatchError(reason=f"invalid string length {byte_count}")
        return self._take(byte_count).decode("utf-8", "replace")

    def array(self, element: Callable[[FieldReader], T]) -> tuple[T, ...]:
        count = self._unsigned() - 1
        if not 0 <= count <= len(self._data) - self._position:
            raise CorruptBatchError(reason=f"invalid array length {count}")
        return tuple(element(self) for _ in range(count))

    def tagged_fields(self) -> tuple[TaggedField, ...]:
        count = self._unsigned()
        if count > len(self._data) - self._position:
            raise CorruptBatchError(reason=f"invalid number of tagged fields {count}")
        return tuple(
            TaggedField(self._unsigned(), self._take(self._unsigned())) for _ in range(count)
        )

    def rest(self) -> bytes:
        return self._take(len(self._data) - self._position)

    def _number(self, layout: str, byte_count: int) -> int:
        number: int = struct.unpack(layout, self._take(byte_count))[0]
        return number

    def _unsigned(self) -> int:
        try:
            value, self._position = read_unsigned_varint(self._data, self._position)
        except MalformedVarintError as error:
            raise CorruptBatchError(reason=f"malformed varint: {error.reason}") from None
        return value

    def _take(self, byte_count: int) -> bytes:
        end = self._position + byte_count
        if end > len(self._data):
            raise CorruptBatchError(
                reason=f"field of {byte_count} bytes, but only "
                f"{len(self._data) - self._position} bytes are left"
            )
        taken = self._data[self._position : end]
        self._position = end
        return taken


def uuid_bytes(text: str) -> bytes:
    """Return the 16 bytes of a UUID in Kafka's text form (22 characters)."""
    data = base64.urlsafe_b64decode(text + "==")
    assert len(data) == 16, "a UUID has 16 bytes"
    return data


def string_bytes(text: str) -> bytes:
    data = text.encode()
    return unsigned_varint(len(data) + 1) + data


def array_bytes(elements: tuple[bytes, ...]) -> bytes:
    return unsigned_varint(len(elements) + 1) + b"".join(elements)


def tagged_bytes(tagged: tuple[TaggedField, ...]) -> bytes:
    out = [unsigned_varint(len(tagged))]
    for field in tagged:
        out += (unsigned_varint(field.tag), unsigned_varint(len(field.data)), field.data)
    return b"".join(out)


# --- Messages of control records, one class per type ----------------------------------------------
# Fields have Kafka's names in snake case and Kafka's order. ``tagged_fields`` (unknown tags) and
# ``trailing`` (bytes after the message) are kept and written back. A ``match`` on ``ControlRecord``
# must handle all of its classes.


class ControlType(enum.IntEnum):
    """Types of control records in Kafka 4.3 (Kafka: ``ControlRecordType``)."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


@dataclass(frozen=True, slots=True)
class LeaderChangeVoter:
    """Voter in a ``LeaderChange``. The directory id is written in version 1 only."""

    voter_id: int
    voter_directory_id: str = ZERO_UUID
    tagged_fields: tuple[TaggedField, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderChange:
    """First record of every leader epoch (Kafka: ``LeaderChangeMessage``)."""

    leader_id: int
    voters: tuple[LeaderChangeVoter, ...] = ()
    granting_voters: tuple[LeaderChangeVoter, ...] = ()
    version: int = 0
    tagged_fields: tuple[TaggedField, ...] = ()
    trailing: bytes = b""
    control_type: ClassVar[ControlType] = ControlType.LEADER_CHANGE


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotHeader:
    """First record of a snapshot (Kafka: ``SnapshotHeaderRecord``).

    ``last_contained_log_timestamp_ms`` is the append time of the last record in the snapshot.
    """

    last_contained_log_timestamp_ms: int
    version: int = 0
    tagged_fields: tuple[TaggedField, ...] = ()
    trailing: bytes = b""
    control_type: ClassVar[ControlType] = ControlType.SNAPSHOT_HEADER


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFooter:
    """Last record of a snapshot; without it the file is incomplete."""

    version: int = 0
    tagged_fields: tuple[TaggedField, ...] = ()
    trailing: bytes = b""
    control_type: ClassVar[ControlType] = ControlType.SNAPSHOT_FOOTER


@dataclass(frozen=True, slots=True, kw_only=True)
class KRaftVersion:
    """The kraft.version feature. 0: static voters from configuration. 1: voters in the log
    (KIP-853)."""

    kraft_version: int
    version: int = 0
    tagged_fields: tuple[TaggedField, ...] = ()
    trailing: bytes = b""
    control_type: ClassVar[ControlType] = ControlType.KRAFT_VERSION


@dataclass(frozen=True, slots=True)
class VoterEndpoint:
    """Address of one listener of a voter."""

    name: str
    host: str
    port: int
    tagged_fields: tuple[TaggedField, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Voter:
    """Voter with its endpoints and its supported range of kraft.version."""

    voter_id: int
    voter_directory_id: str
    endpoints: tuple[VoterEndpoint, ...]
    min_supported_version: int
    max_supported_version: int
    feature_tagged_fields: tuple[TaggedField, ...] = ()
    tagged_fields: tuple[TaggedField, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KRaftVoters:
    """The complete voter set. It takes effect when it is appended, not when it is committed."""

    voters: tuple[Voter, ...]
    version: int = 0
    tagged_fields: tuple[TaggedField, ...] = ()
    trailing: bytes = b""
    control_type: ClassVar[ControlType] = ControlType.KRAFT_VOTERS


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransactionMarker:
    """End of a producer's transaction; ``control_type`` is ABORT or COMMIT."""

    control_type: ControlType
    coordinator_epoch: int
    version: int = 0
    trailing: bytes = b""


@dataclass(frozen=True, slots=True)
class UnknownControl:
    """Control record of an unknown type or version, with its bytes unchanged."""

    type_id: int
    key: bytes
    value: bytes | None


ControlRecord: TypeAlias = (
    LeaderChange
    | SnapshotHeader
    | SnapshotFooter
    | KRaftVersion
    | KRaftVoters
    | EndTransactionMarker
    | UnknownControl
)


# --- Encoding and decoding of control records -----------------------------------------------------
# The key is an int16 version (0) and an int16 type; further bytes are ignored (Kafka:
# ``ControlRecordType``). The value is an int16 version and the message.
#
# An unknown type, and a newer version of a known type that does not parse, decode to
# ``UnknownControl``. A known version that does not parse is a ``CorruptBatchError`` without path,
# position and offset.

__all__ = [
    "ControlRecord",
    "ControlType",
    "EndTransactionMarker",
    "KRaftVersion",
    "KRaftVoters",
    "LeaderChange",
    "LeaderChangeVoter",
    "SnapshotFooter",
    "SnapshotHeader",
    "UnknownControl",
    "Voter",
    "VoterEndpoint",
    "control_json",
    "control_name",
    "control_type_id",
    "decode_control",
    "encode_control",
]

_KEY: Final = struct.Struct(">hh")


def control_type_id(key: bytes | None) -> int:
    """Return the type id in a control record's key. Raises ``CorruptBatchError``."""
    if key is None or len(key) < _KEY.size:
        raise CorruptBatchError(reason="control record key is shorter than 4 bytes")
    version, type_id = _KEY.unpack_from(key)
    if version < 0:
        raise CorruptBatchError(reason=f"invalid control record key version {version}")
    return int(type_id)


def control_name(key: bytes | None) -> str:
    """Return the type's name: ``leader_change``, ``commit``, ...; ``unknown_42`` if unknown."""
    type_id = control_type_id(key)
    try:
        return ControlType(type_id).name.lower()
    except ValueError:
        return f"unknown_{type_id}"


def decode_control(key: bytes | None, value: bytes | None) -> ControlRecord:
    """Decode a record of a control batch. Raises ``CorruptBatchError``."""
    type_id = control_type_id(key)
    assert key is not None
    decoder = _DECODERS.get(type_id)
    if decoder is None:
        return UnknownControl(type_id, key, value)
    name = ControlType(type_id).name
    if value is None or len(value) < 2:
        raise CorruptBatchError(reason=f"control record {name} has no value")
    reader = FieldReader(value)
    version = reader.int16()
    try:
        if version < 0:
            raise CorruptBatchError(reason=f"invalid version {version}")
        return decoder(reader, version, type_id)
    except CorruptBatchError as error:
        if version > _VERSION_MAX.get(type_id, 0):
            return UnknownControl(type_id, key, value)
        raise CorruptBatchError(reason=f"control record {name}: {error.reason}") from None


def encode_control(record: ControlRecord) -> tuple[bytes, bytes | None]:
    """Return key and value of a control record."""
    if isinstance(record, UnknownControl):
        return record.key, record.value
    key = _KEY.pack(0, record.control_type)
    version = struct.pack(">h", record.version)
    match record:
        case LeaderChange():
            body = (
                struct.pack(">i", record.leader_id)
                + _leader_change_voters(record.voters, record.version)
                + _leader_change_voters(record.granting_voters, record.version)
            )
        case SnapshotHeader():
            body = struct.pack(">q", record.last_contained_log_timestamp_ms)
        case SnapshotFooter():
            body = b""
        case KRaftVersion():
            body = struct.pack(">h", record.kraft_version)
        case KRaftVoters():
            body = array_bytes(tuple(map(_voter_bytes, record.voters)))
        case EndTransactionMarker():
            epoch = struct.pack(">i", record.coordinator_epoch)
            return key, version + epoch + record.trailing
    return key, version + body + tagged_bytes(record.tagged_fields) + record.trailing


def _leader_change(reader: FieldReader, version: int, _type_id: int) -> LeaderChange:
    if version > 1:
        raise CorruptBatchError(reason=f"unknown version {version}")

    def voter(fields: FieldReader) -> LeaderChangeVoter:
        voter_id = fields.int32()
        directory_id = fields.uuid() if version >= 1 else ZERO_UUID
        return LeaderChangeVoter(voter_id, directory_id, fields.tagged_fields())

    return LeaderChange(
        version=version,
        leader_id=reader.int32(),
        voters=reader.array(voter),
        granting_voters=reader.array(voter),
        tagged_fields=reader.tagged_fields(),
        trailing=reader.rest(),
    )


def _snapshot_header(reader: FieldReader, version: int, _type_id: int) -> SnapshotHeader:
    return SnapshotHeader(
        version=version,
        last_contained_log_timestamp_ms=reader.int64(),
        tagged_fields=reader.tagged_fields(),
        trailing=reader.rest(),
    )


def _snapshot_footer(reader: FieldReader, version: int, _type_id: int) -> SnapshotFooter:
    return SnapshotFooter(
        version=version, tagged_fields=reader.tagged_fields(), trailing=reader.rest()
    )


def _kraft_version(reader: FieldReader, version: int, _type_id: int) -> KRaftVersion:
    return KRaftVersion(
        version=version,
        kraft_version=reader.int16(),
        tagged_fields=reader.tagged_fields(),
        trailing=reader.rest(),
    )


def _kraft_voters(reader: FieldReader, version: int, _type_id: int) -> KRaftVoters:
    voters = reader.array(_voter)
    ids = [voter.voter_id for voter in voters]
    if not voters or min(ids) < 0 or len(set(ids)) < len(ids):
        raise CorruptBatchError(
            reason="invalid voter set: it is empty, or a voter id is duplicate or negative"
        )
    return KRaftVoters(
        version=version,
        voters=voters,
        tagged_fields=reader.tagged_fields(),
        trailing=reader.rest(),
    )


def _voter(reader: FieldReader) -> Voter:
    return Voter(
        voter_id=reader.int32(),
        voter_directory_id=reader.uuid(),
        endpoints=reader.array(_voter_endpoint),
        min_supported_version=reader.int16(),
        max_supported_version=reader.int16(),
        feature_tagged_fields=reader.tagged_fields(),
        tagged_fields=reader.tagged_fields(),
    )


def _voter_endpoint(reader: FieldReader) -> VoterEndpoint:
    return VoterEndpoint(reader.string(), reader.string(), reader.uint16(), reader.tagged_fields())


def _end_transaction(reader: FieldReader, version: int, type_id: int) -> EndTransactionMarker:
    return EndTransactionMarker(
        version=version,
        control_type=ControlType(type_id),
        coordinator_epoch=reader.int32(),
        trailing=reader.rest(),
    )


_DECODERS: Final[dict[int, Callable[[FieldReader, int, int], ControlRecord]]] = {
    ControlType.ABORT: _end_transaction,
    ControlType.COMMIT: _end_transaction,
    ControlType.LEADER_CHANGE: _leader_change,
    ControlType.SNAPSHOT_HEADER: _snapshot_header,
    ControlType.SNAPSHOT_FOOTER: _snapshot_footer,
    ControlType.KRAFT_VERSION: _kraft_version,
    ControlType.KRAFT_VOTERS: _kraft_voters,
}
_VERSION_MAX: Final[dict[int, int]] = {ControlType.LEADER_CHANGE: 1}
"""Newest known version of a message; 0 if not listed."""


def _leader_change_voters(voters: tuple[LeaderChangeVoter, ...], version: int) -> bytes:
    return array_bytes(
        tuple(
            struct.pack(">i", voter.voter_id)
            + (uuid_bytes(voter.voter_directory_id) if version >= 1 else b"")
            + tagged_bytes(voter.tagged_fields)
            for voter in voters
        )
    )


def _voter_bytes(voter: Voter) -> bytes:
    endpoints = tuple(
        string_bytes(endpoint.name)
        + string_bytes(endpoint.host)
        + struct.pack(">H", endpoint.port)
        + tagged_bytes(endpoint.tagged_fields)
        for endpoint in voter.endpoints
    )
    return (
        struct.pack(">i", voter.voter_id)
        + uuid_bytes(voter.voter_directory_id)
        + array_bytes(endpoints)
        + struct.pack(">hh", voter.min_supported_version, voter.max_supported_version)
        + tagged_bytes(voter.feature_tagged_fields)
        + tagged_bytes(voter.tagged_fields)
    )


# --- JSON of control records as ``kafka-dump-log`` prints it (Kafka: ``DumpLogSegments``) ---------
# Fields, their names and their order are those of Kafka's JSON converters.


def control_json(record: ControlRecord) -> dict[str, Any]:
    """Return the JSON object that ``kafka-dump-log`` prints for ``record``.

    An unknown control record has its type id and no payload, as in ``kafka-dump-log``.
    """
    match record:
        case LeaderChange():
            return {
                "version": record.version,
                "leaderId": record.leader_id,
                "voters": [_leader_change_json(voter, record.version) for voter in record.voters],
                "grantingVoters": [
                    _leader_change_json(voter, record.version) for voter in record.granting_voters
                ],
            }
        case SnapshotHeader():
            return {
                "version": record.version,
                "lastContainedLogTimestamp": record.last_contained_log_timestamp_ms,
            }
        case SnapshotFooter():
            return {"version": record.version}
        case KRaftVersion():
            return {"version": record.version, "kRaftVersion": record.kraft_version}
        case KRaftVoters():
            voters = [_voter_json(voter) for voter in record.voters]
            return {"version": record.version, "voters": voters}
        case EndTransactionMarker():
            return {
                "endTxnMarker": record.control_type.name,
                "coordinatorEpoch": record.coordinator_epoch,
            }
        case UnknownControl():
            return {"controlType": "UNKNOWN", "typeId": record.type_id}


def _leader_change_json(voter: LeaderChangeVoter, version: int) -> dict[str, Any]:
    out: dict[str, Any] = {"voterId": voter.voter_id}
    if version >= 1:
        out["voterDirectoryId"] = voter.voter_directory_id
    return out


def _voter_json(voter: Voter) -> dict[str, Any]:
    return {
        "voterId": voter.voter_id,
        "voterDirectoryId": voter.voter_directory_id,
        "endpoints": [
            {"name": endpoint.name, "host": endpoint.host, "port": endpoint.port}
            for endpoint in voter.endpoints
        ],
        "kRaftVersionFeature": {
            "minSupportedVersion": voter.min_supported_version,
            "maxSupportedVersion": voter.max_supported_version,
        },
    }
