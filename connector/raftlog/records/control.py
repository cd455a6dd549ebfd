"""Control records: their messages, encoding, and JSON as ``kafka-dump-log`` prints it."""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias, TypeVar

from raftlog.errors import CorruptBatchError
from raftlog.types import ZERO_UUID

from .fields import (
    FieldReader,
    TaggedField,
    array_bytes,
    string_bytes,
    tagged_bytes,
    uuid_bytes,
)

T = TypeVar("T")

# --- Messages of control records, one class per type ----------------------------------------------
# Fields have Kafka's names in snake case and Kafka's order. ``tagged_fields`` (unknown tags) and
# ``trailing`` (bytes after the message) are kept and written back.


class ControlType(enum.IntEnum):
    """Types of control records in Kafka 4.3 (Kafka: ``ControlRecordType``), and one of raftlog.

    Kafka's consumers and tools skip types that they do not know.
    """

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6
    OFFSET_COMMIT = 0x7266


@dataclass(frozen=True, slots=True)
class LeaderChangeVoter:
    """Voter in a ``LeaderChange``. The directory id is written only in version 1."""

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
    """The kraft.version feature. 0: static voters from the configuration. 1: voters in the log
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


_OWNER_TAG: Final = 0
"""Tag of the owner in an ``OffsetCommit``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommit:
    """Offset that a consumer group has committed in this log. A negative one deletes the group.

    The fields are those of Kafka's ``OffsetCommitKey`` and ``OffsetCommitValue`` (KIP-211,
    KIP-320), except that topic and partition are the log's and are left out, and ``owner`` is an
    additional tagged field.
    """

    group: str
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int
    version: int = 0
    tagged_fields: tuple[TaggedField, ...] = ()
    trailing: bytes = b""
    control_type: ClassVar[ControlType] = ControlType.OFFSET_COMMIT

    @property
    def is_deletion(self) -> bool:
        return self.offset < 0

    @property
    def owner(self) -> str:
        """Principal that has created the group; "" if unknown."""
        found = [one.data for one in self.tagged_fields if one.tag == _OWNER_TAG]
        return found[0].decode("utf-8", errors="replace") if found else ""

    def owned_by(self, owner: str) -> OffsetCommit:
        """Return the commit with another owner; "" for none."""
        others = tuple(one for one in self.tagged_fields if one.tag != _OWNER_TAG)
        field = (TaggedField(_OWNER_TAG, owner.encode()),) if owner else ()
        return replace(self, tagged_fields=(*field, *others))


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
    | OffsetCommit
    | UnknownControl
)


# --- Fields of the messages, in Kafka's order -----------------------------------------------------
# Bytes and JSON derive from these.


class _Type(NamedTuple):
    read: Callable[[FieldReader], Any]
    write: Callable[[Any], bytes]


_INT16: Final = _Type(FieldReader.int16, struct.Struct(">h").pack)
_UINT16: Final = _Type(FieldReader.uint16, struct.Struct(">H").pack)
_INT32: Final = _Type(FieldReader.int32, struct.Struct(">i").pack)
_INT64: Final = _Type(FieldReader.int64, struct.Struct(">q").pack)
_UUID: Final = _Type(FieldReader.uuid, uuid_bytes)
_STRING: Final = _Type(FieldReader.string, string_bytes)
_TAGGED: Final = _Type(FieldReader.tagged_fields, tagged_bytes)


class _Field(NamedTuple):
    """Attribute, its name in JSON ("" if it is not printed), and its type.

    If the type is a class, it is the type of an array's elements. ``first`` is the first version
    with the field.
    """

    attribute: str
    json: str
    type: _Type | type[Any]
    first: int = 0


_TAGGED_FIELDS: Final = _Field("tagged_fields", "", _TAGGED)
_FIELDS: Final[dict[type[Any], tuple[_Field, ...]]] = {
    LeaderChangeVoter: (
        _Field("voter_id", "voterId", _INT32),
        _Field("voter_directory_id", "voterDirectoryId", _UUID, first=1),
        _TAGGED_FIELDS,
    ),
    LeaderChange: (
        _Field("leader_id", "leaderId", _INT32),
        _Field("voters", "voters", LeaderChangeVoter),
        _Field("granting_voters", "grantingVoters", LeaderChangeVoter),
        _TAGGED_FIELDS,
    ),
    SnapshotHeader: (
        _Field("last_contained_log_timestamp_ms", "lastContainedLogTimestamp", _INT64),
        _TAGGED_FIELDS,
    ),
    SnapshotFooter: (_TAGGED_FIELDS,),
    KRaftVersion: (_Field("kraft_version", "kRaftVersion", _INT16), _TAGGED_FIELDS),
    VoterEndpoint: (
        _Field("name", "name", _STRING),
        _Field("host", "host", _STRING),
        _Field("port", "port", _UINT16),
        _TAGGED_FIELDS,
    ),
    Voter: (
        _Field("voter_id", "voterId", _INT32),
        _Field("voter_directory_id", "voterDirectoryId", _UUID),
        _Field("endpoints", "endpoints", VoterEndpoint),
        _Field("min_supported_version", "kRaftVersionFeature.minSupportedVersion", _INT16),
        _Field("max_supported_version", "kRaftVersionFeature.maxSupportedVersion", _INT16),
        _Field("feature_tagged_fields", "", _TAGGED),
        _TAGGED_FIELDS,
    ),
    KRaftVoters: (_Field("voters", "voters", Voter), _TAGGED_FIELDS),
    OffsetCommit: (
        _Field("group", "group", _STRING),
        _Field("offset", "offset", _INT64),
        _Field("leader_epoch", "leaderEpoch", _INT32),
        _Field("metadata", "", _STRING),  # a consumer's own data
        _Field("commit_timestamp_ms", "commitTimestamp", _INT64),
        _TAGGED_FIELDS,
    ),
}


def _read(kind: type[Any], reader: FieldReader, version: int) -> dict[str, Any]:
    """Return the attributes of a structure."""
    values: dict[str, Any] = {}
    for name, _, type_, first in _FIELDS[kind]:
        if version < first:
            continue
        if isinstance(type_, _Type):
            values[name] = type_.read(reader)
        else:
            values[name] = reader.array(partial(_read_element, type_, version))
    return values


def _read_element(kind: type[Any], version: int, reader: FieldReader) -> Any:
    return kind(**_read(kind, reader, version))


def _bytes(value: Any, version: int) -> bytes:
    """Return the bytes of a structure."""
    out = []
    for name, _, type_, first in _FIELDS[type(value)]:
        if version < first:
            continue
        attribute = getattr(value, name)
        if isinstance(type_, _Type):
            out.append(type_.write(attribute))
        else:
            out.append(array_bytes(tuple([_bytes(element, version) for element in attribute])))
    return b"".join(out)


def _json(value: Any, version: int) -> dict[str, Any]:
    """Return the JSON object of a structure."""
    out: dict[str, Any] = {}
    for name, json, type_, first in _FIELDS[type(value)]:
        if version < first or not json:
            continue
        attribute = getattr(value, name)
        if not isinstance(type_, _Type):
            attribute = [_json(element, version) for element in attribute]
        structure, _, key = json.rpartition(".")
        (out.setdefault(structure, {}) if structure else out)[key] = attribute
    return out


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
    "OffsetCommit",
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
    if type_id not in _KINDS:
        return UnknownControl(type_id, key, value)
    name = ControlType(type_id).name
    if value is None or len(value) < 2:
        raise CorruptBatchError(reason=f"control record {name} has no value")
    reader = FieldReader(value)
    version = reader.int16()
    try:
        return _decode(ControlType(type_id), version, reader)
    except CorruptBatchError as error:
        if version > _VERSION_MAX.get(type_id, 0):
            return UnknownControl(type_id, key, value)
        raise CorruptBatchError(reason=f"control record {name}: {error.reason}") from None


def _decode(type_: ControlType, version: int, reader: FieldReader) -> ControlRecord:
    if version < 0:
        raise CorruptBatchError(reason=f"invalid version {version}")
    kind = _KINDS[type_]
    if kind is EndTransactionMarker:
        return EndTransactionMarker(
            version=version,
            control_type=type_,
            coordinator_epoch=reader.int32(),
            trailing=reader.rest(),
        )
    if kind is LeaderChange and version > _VERSION_MAX[type_]:
        raise CorruptBatchError(reason=f"unknown version {version}")
    record: ControlRecord = kind(
        version=version, **_read(kind, reader, version), trailing=reader.rest()
    )
    if isinstance(record, KRaftVoters):
        ids = [voter.voter_id for voter in record.voters]
        if not ids or min(ids) < 0 or len(set(ids)) < len(ids):
            raise CorruptBatchError(
                reason="invalid voter set: it is empty, or a voter id is duplicate or negative"
            )
    return record


def encode_control(record: ControlRecord) -> tuple[bytes, bytes | None]:
    """Return key and value of a control record."""
    if isinstance(record, UnknownControl):
        return record.key, record.value
    key = _KEY.pack(0, record.control_type)
    version = struct.pack(">h", record.version)
    if isinstance(record, EndTransactionMarker):
        return key, version + struct.pack(">i", record.coordinator_epoch) + record.trailing
    return key, version + _bytes(record, record.version) + record.trailing


_KINDS: Final[dict[int, type[Any]]] = {
    ControlType.ABORT: EndTransactionMarker,
    ControlType.COMMIT: EndTransactionMarker,
    ControlType.LEADER_CHANGE: LeaderChange,
    ControlType.SNAPSHOT_HEADER: SnapshotHeader,
    ControlType.SNAPSHOT_FOOTER: SnapshotFooter,
    ControlType.KRAFT_VERSION: KRaftVersion,
    ControlType.KRAFT_VOTERS: KRaftVoters,
    ControlType.OFFSET_COMMIT: OffsetCommit,
}
_VERSION_MAX: Final[dict[int, int]] = {ControlType.LEADER_CHANGE: 1}
"""Newest known version of a message; 0 if not listed."""


# --- JSON of control records as ``kafka-dump-log`` prints it (Kafka: ``DumpLogSegments``) ---------
# Fields, their names and their order are those of Kafka's JSON converters.


def control_json(record: ControlRecord) -> dict[str, Any]:
    """Return the JSON object that ``kafka-dump-log`` prints for ``record``.

    An unknown control record has its type id and no payload, as in ``kafka-dump-log``.
    """
    match record:
        case EndTransactionMarker():
            return {
                "endTxnMarker": record.control_type.name,
                "coordinatorEpoch": record.coordinator_epoch,
            }
        case UnknownControl():
            return {"controlType": "UNKNOWN", "typeId": record.type_id}
        case _:
            return {"version": record.version} | _json(record, record.version)
