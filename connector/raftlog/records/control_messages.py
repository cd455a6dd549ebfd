"""What a control record can say: one frozen class a type.

Rules of this file:

1. Fields are Kafka's, in Python's spelling and in the order of the message. ``tagged_fields`` are
   those that no known version names, ``trailing`` the bytes behind the message: both are kept, and
   written again.
2. ``ControlRecord`` is closed: whoever looks at one matches them all.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from raftlog.types import ZERO_UUID

from .fields import TaggedField


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
