"""Control records: what a log writes about itself, both ways.

Rules of this file:

1. The key is an int16 version (0) and an int16 type; bytes behind those are ignored, as Kafka
   ignores them (Kafka: ``ControlRecordType``). The value is the bare message, its version first.
2. A type that is not known, and a version of a known type that does not parse as the newest known
   one, pass through as ``UnknownControl``. A known version that does not parse is
   ``CorruptBatchError`` without a place.
3. Tagged fields, and bytes behind the known fields, are kept and written again.
4. ``control_json`` prints what kafka-dump-log prints, in its order.
"""

from __future__ import annotations

import enum
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias

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

_KEY: Final = struct.Struct(">hh")


class ControlType(enum.IntEnum):
    """The types that Kafka 4.3 writes (Kafka: ``ControlRecordType``)."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


@dataclass(frozen=True, slots=True)
class LeaderChangeVoter:
    """A voter as a leader names it. The directory is written in version 1 only."""

    voter_id: int
    voter_directory_id: str = ZERO_UUID
    tagged_fields: tuple[TaggedField, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderChange:
    """The first record of every leader epoch."""

    leader_id: int
    voters: tuple[LeaderChangeVoter, ...] = ()
    granting_voters: tuple[LeaderChangeVoter, ...] = ()
    version: int = 0
    tagged_fields: tuple[TaggedField, ...] = ()
    trailing: bytes = b""
    control_type: ClassVar[ControlType] = ControlType.LEADER_CHANGE


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotHeader:
    """The first record of a checkpoint: the log time of the last record it contains."""

    last_contained_log_timestamp_ms: int
    version: int = 0
    tagged_fields: tuple[TaggedField, ...] = ()
    trailing: bytes = b""
    control_type: ClassVar[ControlType] = ControlType.SNAPSHOT_HEADER


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFooter:
    """The last record of a checkpoint: without it the file is not whole."""

    version: int = 0
    tagged_fields: tuple[TaggedField, ...] = ()
    trailing: bytes = b""
    control_type: ClassVar[ControlType] = ControlType.SNAPSHOT_FOOTER


@dataclass(frozen=True, slots=True, kw_only=True)
class KRaftVersion:
    """0: voters from configuration. 1: voters from the log (KIP-853)."""

    kraft_version: int
    version: int = 0
    tagged_fields: tuple[TaggedField, ...] = ()
    trailing: bytes = b""
    control_type: ClassVar[ControlType] = ControlType.KRAFT_VERSION


@dataclass(frozen=True, slots=True)
class VoterEndpoint:
    """Where a voter listens, by listener name."""

    name: str
    host: str
    port: int
    tagged_fields: tuple[TaggedField, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Voter:
    """A member of the quorum, and the versions of KRaft that it speaks."""

    voter_id: int
    voter_directory_id: str
    endpoints: tuple[VoterEndpoint, ...]
    min_supported_version: int
    max_supported_version: int
    feature_tagged_fields: tuple[TaggedField, ...] = ()
    tagged_fields: tuple[TaggedField, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KRaftVoters:
    """The whole set of voters. It holds from where it is appended, committed or not."""

    voters: tuple[Voter, ...]
    version: int = 0
    tagged_fields: tuple[TaggedField, ...] = ()
    trailing: bytes = b""
    control_type: ClassVar[ControlType] = ControlType.KRAFT_VOTERS


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransactionMarker:
    """The end of a producer's transaction: ABORT or COMMIT."""

    control_type: ControlType
    coordinator_epoch: int
    version: int = 0
    trailing: bytes = b""


@dataclass(frozen=True, slots=True)
class UnknownControl:
    """A control record that this version does not know: its bytes, untouched."""

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


def control_type_id(key: bytes | None) -> int:
    """The type's number in a control record's key. Raises ``CorruptBatchError``."""
    if key is None or len(key) < _KEY.size:
        raise CorruptBatchError(reason="a control record's key is shorter than 4 bytes")
    version, type_id = _KEY.unpack_from(key)
    if version < 0:
        raise CorruptBatchError(reason=f"a control record's key has version {version}")
    return int(type_id)


def control_name(key: bytes | None) -> str:
    """``leader_change``, ``commit``, ...; ``unknown_42`` for a type that is not known."""
    type_id = control_type_id(key)
    try:
        return ControlType(type_id).name.lower()
    except ValueError:
        return f"unknown_{type_id}"


def decode_control(key: bytes | None, value: bytes | None) -> ControlRecord:
    """What a record of a control batch says. Raises ``CorruptBatchError`` without a place."""
    type_id = control_type_id(key)
    assert key is not None
    decoder = _DECODERS.get(type_id)
    if decoder is None:
        return UnknownControl(type_id, key, value)
    name = ControlType(type_id).name
    if value is None or len(value) < 2:
        raise CorruptBatchError(reason=f"a control record {name} has no value")
    reader = FieldReader(value)
    version = reader.int16()
    try:
        if version < 0:
            raise CorruptBatchError(reason=f"its version is {version}")
        return decoder(reader, version, type_id)
    except CorruptBatchError as error:
        if version > _VERSION_MAX.get(type_id, 0):
            return UnknownControl(type_id, key, value)
        raise CorruptBatchError(reason=f"a control record {name}: {error.reason}") from None


def encode_control(record: ControlRecord) -> tuple[bytes, bytes | None]:
    """The key and the value of a control record."""
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


def control_json(record: ControlRecord) -> dict[str, Any]:
    """The fields that kafka-dump-log prints, under its names and in its order.

    An unknown control record shows its type and, as dump-log does, no payload.
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


def control_text(record: ControlRecord) -> str:
    """The end of the line that kafka-dump-log prints for it."""
    match record:
        case EndTransactionMarker():
            name, epoch = record.control_type.name, record.coordinator_epoch
            return f"endTxnMarker: {name} coordinatorEpoch: {epoch}"
        case UnknownControl():
            return f"controlType: UNKNOWN({record.type_id})"
        case LeaderChange():
            title = "LeaderChange:"
        case _:
            title = type(record).__name__
    return f"{title} {json.dumps(control_json(record), separators=(',', ':'))}"


def _leader_change(reader: FieldReader, version: int, _type_id: int) -> LeaderChange:
    if version > 1:
        raise CorruptBatchError(reason=f"version {version} is not known")

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
    return KRaftVoters(
        version=version,
        voters=reader.array(_voter),
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
"""The newest known version of a message; 0 where it is not named."""


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
