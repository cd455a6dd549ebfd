"""Messages of control records, one class per type.

Fields have Kafka's names in snake case and Kafka's order. ``tagged_fields`` (unknown tags) and
``trailing`` (bytes after the message) are kept and written back. A ``match`` on ``ControlRecord``
must handle all of its classes.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from raftlog.types import ZERO_UUID

from .fields import TaggedField


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
