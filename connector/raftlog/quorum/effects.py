"""Effects that ``QuorumCore.step`` returns: I/O and notifications for the caller to carry out.

Invariants:

1. The caller carries out the effects one after another, and all of them before it passes the next
   event. Only events that report the result of an effect may be passed in between. A ``Send`` or
   ``Reply`` follows the effects whose durability it implies.
2. ``PersistElection``, the epoch of ``AppendLeaderChange``, ``TruncateToEndOfEpoch`` and
   ``InstallSnapshot`` are durable when they return. Appended records are durable after a sync:
   ``StartSync`` starts one, and other events are handled while it runs.
3. If the storage fails, the replica stops; no effect is retried. A full disk is not a failure: an
   effect that it prevents has changed nothing. ``AppendVoters``, ``AppendAsFollower``,
   ``StoreSnapshotBytes`` and ``InstallSnapshot`` are then refused. ``PersistElection`` and
   ``AppendLeaderChange`` are retried before any other effect or event, as if the disk were slow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from raftlog.fast_dataclass import fast_init
from raftlog.types import OffsetAndEpoch, ReplicaKey, SnapshotId

from .messages import FetchResponse, FetchSnapshotResponse, Request, Response
from .roles import RoleType
from .voters import Endpoint, VoterSet


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionState:
    """Durable election state of a replica (Kafka: ``ElectionState``, the quorum-state file)."""

    epoch: int
    leader_id: int | None = None
    voted_key: ReplicaKey | None = None


@dataclass(frozen=True, slots=True)
class PersistElection:
    """Store the election state durably."""

    state: ElectionState


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Send a request to another node.

    Followed by at most one of ``ResponseReceived`` and ``SendFailed``.
    """

    correlation_id: int
    node_id: int
    endpoints: tuple[Endpoint, ...]
    request: Request


@dataclass(frozen=True, slots=True)
class Reply:
    """Send the response to a request."""

    request_id: int
    response: Response


@fast_init
@dataclass(frozen=True, slots=True)
class ReplyWithRecords:
    """Send a fetch response with the records from ``start_offset``.

    The records take up to ``max_bytes``, but at least one batch if there is one at that offset.
    """

    request_id: int
    response: FetchResponse
    start_offset: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class ReplyWithSnapshot:
    """Send the response with up to ``max_bytes`` bytes of the snapshot file."""

    request_id: int
    response: FetchSnapshotResponse
    max_bytes: int


@dataclass(frozen=True, slots=True)
class AdvanceLogStart:
    """Delete the committed records below ``offset``, which the leader has deleted.

    Followed by ``LogStartAdvanced``, even if the records are kept because the disk is full or
    because a state machine's snapshots determine the log's start.
    """

    offset: int


@dataclass(frozen=True, slots=True)
class RejoinElections:
    """Store durably that this replica votes again: its log has all records it acknowledged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendLeaderChange:
    """Start leading ``epoch``: append a LeaderChange record.

    ``kraft_version`` and ``voter_set``, if given, follow it in the same batch. Followed by
    ``Appended``.
    """

    epoch: int
    voters: tuple[ReplicaKey, ...]
    granting_voters: tuple[ReplicaKey, ...]
    kraft_version: int | None = None
    voter_set: VoterSet | None = None


@dataclass(frozen=True, slots=True)
class AppendVoters:
    """Append a Voters record in its own control batch, after a KRaftVersion record if one is given.

    Followed by ``Appended``, or by ``AppendRefused`` if the disk is full.
    """

    epoch: int
    voter_set: VoterSet
    kraft_version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendAsFollower:
    """Append the records of a fetch response. Followed by ``Appended`` if they include voters, and
    by ``AppendRefused`` if not all of them are appended."""

    records: bytes
    leader_epoch: int
    compacted_offset: int = 0
    """Lower bound of the offset up to which the leader's log was compacted."""
    tombstone_start_offset: int = 0
    """Offset from which on the leader's log has all tombstones."""


@dataclass(frozen=True, slots=True)
class StartSync:
    """Sync the log, so that all appended records are durable. Followed by ``SyncCompleted``.

    A running sync does not cover records that were appended after it started, so another sync
    follows it.
    """


@dataclass(frozen=True, slots=True)
class TruncateToEndOfEpoch:
    """Truncate the log to where it diverges from the leader's. Followed by ``Truncated``."""

    diverging: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class TruncateFully:
    """Delete all records, because the leader's log no longer has some tombstones of their keys: it
    has all of them only from the given offset on. The replica ends. It fetches the log when it is
    opened again.
    """

    tombstone_start_offset: int


@dataclass(frozen=True, slots=True)
class StoreSnapshotBytes:
    """Store bytes of the snapshot being fetched; position 0 starts a new file.

    Followed by ``SnapshotRefused`` if the disk is full.
    """

    snapshot_id: SnapshotId
    position: int
    data: bytes


@dataclass(frozen=True, slots=True)
class InstallSnapshot:
    """Check the fully fetched snapshot, and restart the log at its end offset.

    Followed by ``SnapshotInstalled`` or ``SnapshotRefused``.
    """

    snapshot_id: SnapshotId


@dataclass(frozen=True, slots=True)
class AdvanceHighWatermark:
    """New high watermark; all records below ``offset`` are committed."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderChanged:
    """New epoch, or new leader of the current one; ``leader_id`` is None if the leader is unknown.

    ``epoch_start_offset`` is set if this replica is the leader. Listeners are notified when all
    records below it are committed.
    """

    epoch: int
    leader_id: int | None
    epoch_start_offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleChanged:
    """New role of this replica, for log lines and metrics; ``old`` is None at its start."""

    old: RoleType | None
    new: RoleType
    epoch: int
    leader_id: int | None


@dataclass(frozen=True, slots=True)
class ReadIndexConfirmed:
    """A majority confirmed this leader after the ``ReadIndex`` event with this ``read_id``."""

    read_id: int


@dataclass(frozen=True, slots=True)
class LogMessage:
    """Line for the process's log."""

    text: str


Effect: TypeAlias = (
    PersistElection
    | Send
    | Reply
    | ReplyWithRecords
    | ReplyWithSnapshot
    | AdvanceLogStart
    | RejoinElections
    | AppendLeaderChange
    | AppendVoters
    | AppendAsFollower
    | StartSync
    | TruncateToEndOfEpoch
    | TruncateFully
    | StoreSnapshotBytes
    | InstallSnapshot
    | AdvanceHighWatermark
    | LeaderChanged
    | RoleChanged
    | ReadIndexConfirmed
    | LogMessage
)
