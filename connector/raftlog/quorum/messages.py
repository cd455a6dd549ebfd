"""What replicas say to each other: Kafka's requests and answers, without topic and cluster.

Rules of this file:

1. Values only. The topic, the partition and the cluster id are the wire's to check, before
   anything of a request is believed.
2. What is not known is None, never -1. Offsets of ends are exclusive.
3. Kafka: ``VoteRequest`` ... ``UpdateRaftVoterResponse`` (KIP-595, KIP-630, KIP-853, KIP-996).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

from raftlog.types import OffsetAndEpoch, ReplicaKey, SnapshotId

from .voters import Endpoint, Voter


class ErrorCode(enum.IntEnum):
    """Kafka's numbers for what a replica answers."""

    NONE = 0
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    UNSUPPORTED_VERSION = 35
    INVALID_REQUEST = 42
    KAFKA_STORAGE_ERROR = 56
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAndEpoch:
    """What every answer says besides: the epoch of whoever answers, and who leads it if known."""

    epoch: int
    leader_id: int | None = None
    leader_endpoints: tuple[Endpoint, ...] = ()


# --- elections ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRequest:
    """Vote for me in this epoch; or would you (``is_pre_vote``), my epoch being this one."""

    epoch: int
    candidate: ReplicaKey
    voter: ReplicaKey | None
    last_offset: int
    """The log end offset of the candidate (exclusive)."""
    last_epoch: int
    is_pre_vote: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteResponse:
    leader_and_epoch: LeaderAndEpoch
    is_granted: bool = False
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginQuorumEpochRequest:
    """I lead this epoch."""

    epoch: int
    leader_id: int
    voter: ReplicaKey | None
    leader_endpoints: tuple[Endpoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginQuorumEpochResponse:
    leader_and_epoch: LeaderAndEpoch
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumEpochRequest:
    """I no longer lead this epoch; ``preferred_successors`` should stand, the best first."""

    epoch: int
    leader_id: int
    preferred_successors: tuple[ReplicaKey, ...]
    leader_endpoints: tuple[Endpoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumEpochResponse:
    leader_and_epoch: LeaderAndEpoch
    error: ErrorCode = ErrorCode.NONE


# --- replication ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """Give me what follows ``fetch_offset``: everything below it is durable here."""

    replica: ReplicaKey
    epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    max_bytes: int
    max_wait_ms: int
    high_watermark: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponse:
    """``records`` are whole batches, or cut off within the last; or where the logs part, or which
    snapshot to take."""

    leader_and_epoch: LeaderAndEpoch
    error: ErrorCode = ErrorCode.NONE
    high_watermark: int | None = None
    log_start_offset: int | None = None
    records: bytes = b""
    diverging: OffsetAndEpoch | None = None
    snapshot_id: SnapshotId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotRequest:
    replica: ReplicaKey
    epoch: int
    snapshot_id: SnapshotId
    position: int
    max_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotResponse:
    """Bytes of a checkpoint's file from ``position``; ``byte_count`` is the whole file's."""

    leader_and_epoch: LeaderAndEpoch
    snapshot_id: SnapshotId
    error: ErrorCode = ErrorCode.NONE
    byte_count: int = 0
    position: int = 0
    data: bytes = b""


# --- voters ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AddVoterRequest:
    voter: Voter
    timeout_ms: int
    ack_when_committed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveVoterRequest:
    voter: ReplicaKey


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateVoterRequest:
    epoch: int
    voter: Voter


@dataclass(frozen=True, slots=True, kw_only=True)
class VoterChangeResponse:
    """The answer to all three."""

    leader_and_epoch: LeaderAndEpoch
    error: ErrorCode = ErrorCode.NONE
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class VersionsRequest:
    """Which versions do you speak (Kafka: ApiVersions)? Whoever runs a node answers, not a role."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionsResponse:
    """The versions of KRaft that a node speaks, both inclusive."""

    kraft_version_min: int
    kraft_version_max: int


Request: TypeAlias = (
    VoteRequest
    | BeginQuorumEpochRequest
    | EndQuorumEpochRequest
    | FetchRequest
    | FetchSnapshotRequest
    | AddVoterRequest
    | RemoveVoterRequest
    | UpdateVoterRequest
    | VersionsRequest
)
Response: TypeAlias = (
    VoteResponse
    | BeginQuorumEpochResponse
    | EndQuorumEpochResponse
    | FetchResponse
    | FetchSnapshotResponse
    | VoterChangeResponse
    | VersionsResponse
)
