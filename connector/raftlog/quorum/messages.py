"""Requests and responses between replicas: Kafka's, without topic, partition and cluster id.

``raftlog.wire`` checks topic, partition and cluster id before a request reaches a replica. An
unknown value is None, never -1. End offsets are exclusive.

Kafka: ``VoteRequest`` to ``UpdateRaftVoterResponse`` (KIP-595, KIP-630, KIP-853, KIP-996).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

from raftlog.fast_dataclass import fast_init
from raftlog.types import OffsetAndEpoch, ReplicaKey, SnapshotId

from .voters import Endpoint, Voter


class ErrorCode(enum.IntEnum):
    """Kafka's error codes that a replica returns."""

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
    """Epoch of the responding replica, and that epoch's leader if known; in every response."""

    epoch: int
    leader_id: int | None = None
    leader_endpoints: tuple[Endpoint, ...] = ()


# --- elections ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRequest:
    """Request for a vote in ``epoch``, or for a pre-vote by a replica that is in ``epoch``."""

    epoch: int
    candidate: ReplicaKey
    voter: ReplicaKey | None
    last_offset: int
    """Log end offset (exclusive) of the candidate."""
    last_epoch: int
    is_pre_vote: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteResponse:
    leader_and_epoch: LeaderAndEpoch
    is_granted: bool = False
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginQuorumEpochRequest:
    """Announcement of a new leader to a voter."""

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
    """Announcement that the leader of ``epoch`` resigned; the preferred successor is first."""

    epoch: int
    leader_id: int
    preferred_successors: tuple[ReplicaKey, ...]
    leader_endpoints: tuple[Endpoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumEpochResponse:
    leader_and_epoch: LeaderAndEpoch
    error: ErrorCode = ErrorCode.NONE


# --- replication ----------------------------------------------------------------------------------


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """Request for records from ``fetch_offset``; acknowledges everything below as durable."""

    replica: ReplicaKey
    epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    max_bytes: int
    max_wait_ms: int
    high_watermark: int | None = None
    log_start_offset: int | None = None


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponse:
    """Records, or the diverging epoch to truncate to, or the snapshot to fetch instead.

    The last batch of ``records`` may be incomplete. Below ``compacted_offset`` the leader's log may
    lack records that newer records of the same key superseded, and below ``tombstone_start_offset``
    it may lack tombstones. ``remote_store_id`` is the one in the leader's ``LogView``.
    """

    leader_and_epoch: LeaderAndEpoch
    error: ErrorCode = ErrorCode.NONE
    high_watermark: int | None = None
    log_start_offset: int | None = None
    records: bytes = b""
    diverging: OffsetAndEpoch | None = None
    snapshot_id: SnapshotId | None = None
    compacted_offset: int = 0
    tombstone_start_offset: int = 0
    remote_store_id: int = 0

    def with_records(
        self,
        records: bytes,
        *,
        compacted_offset: int,
        tombstone_start_offset: int,
        remote_store_id: int,
    ) -> FetchResponse:
        """Return the response with these records and these offsets of their log."""
        return FetchResponse(
            leader_and_epoch=self.leader_and_epoch,
            error=self.error,
            high_watermark=self.high_watermark,
            log_start_offset=self.log_start_offset,
            records=records,
            diverging=self.diverging,
            snapshot_id=self.snapshot_id,
            compacted_offset=compacted_offset,
            tombstone_start_offset=tombstone_start_offset,
            remote_store_id=remote_store_id,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotRequest:
    replica: ReplicaKey
    epoch: int
    snapshot_id: SnapshotId
    position: int
    max_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotResponse:
    """Bytes of a snapshot file from ``position``; ``byte_count`` is the size of the file."""

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
    """Response to AddVoter, RemoveVoter and UpdateVoter requests."""

    leader_and_epoch: LeaderAndEpoch
    error: ErrorCode = ErrorCode.NONE
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class VersionsRequest:
    """Request for the supported versions (Kafka: ApiVersions); served in every role."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionsResponse:
    """Range of kraft.version that a node supports, both ends inclusive."""

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
