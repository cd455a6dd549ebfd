"""Encoding and decoding of control records.

The key is an int16 version (0) and an int16 type; further bytes are ignored (Kafka:
``ControlRecordType``). The value is an int16 version and the message.

An unknown type, and a newer version of a known type that does not parse, decode to
``UnknownControl``. A known version that does not parse is a ``CorruptBatchError`` without path,
position and offset.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from raftlog.errors import CorruptBatchError
from raftlog.types import ZERO_UUID

from .control_json import control_json
from .control_messages import (
    ControlRecord,
    ControlType,
    EndTransactionMarker,
    KRaftVersion,
    KRaftVoters,
    LeaderChange,
    LeaderChangeVoter,
    SnapshotFooter,
    SnapshotHeader,
    UnknownControl,
    Voter,
    VoterEndpoint,
)
from .fields import (
    FieldReader,
    array_bytes,
    string_bytes,
    tagged_bytes,
    uuid_bytes,
)

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
