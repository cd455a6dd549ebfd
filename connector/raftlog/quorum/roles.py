"""Roles of a replica, and the transitions between them.

A role holds the data that lasts as long as the role. The log, the voters and the high watermark
outlast it and are in ``ReplicaState``, which allows only the transitions in ``TRANSITIONS``. The
diagram in ARCHITECTURE.md is generated from that table.

Voter and observer are not roles: an observer is unattached or a follower, except a removed voter
whose removal is not committed yet (``ReplicaState.is_leaving``).

Kafka: ``QuorumState``, with KIP-996's ``ProspectiveState``. There is no voted state: the vote is
kept in ``ReplicaState`` for as long as the epoch lasts.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from raftlog.types import NodeId, ReplicaKey, SnapshotId

from .messages import FetchRequest
from .progress import Progress
from .voters import Endpoint, Voter, VoterSet


@dataclass(slots=True)
class Votes:
    """Votes that a candidate received, as node ids."""

    granted: set[int] = field(default_factory=set)
    rejected: set[int] = field(default_factory=set)
    outdated: set[int] = field(default_factory=set)
    """Voters whose next rejection is ignored, since its reason may no longer hold."""

    def record(self, node_id: int, *, is_granted: bool) -> None:
        """Record a vote. A granted vote cannot be withdrawn."""
        if is_granted:
            self.granted.add(node_id)
            self.rejected.discard(node_id)
        elif node_id in self.outdated:
            self.outdated.discard(node_id)
        elif node_id not in self.granted:
            self.rejected.add(node_id)

    def forget_rejection(self, node_id: int) -> None:
        """Remove the rejection of a voter, or ignore the one that may be in flight."""
        if node_id in self.rejected:
            self.rejected.discard(node_id)
        else:
            self.outdated.add(node_id)


@dataclass(slots=True, kw_only=True)
class Unattached:
    """Role without a leader to fetch from."""

    epoch: int
    election_deadline_ms: int
    leader_id: NodeId | None = None


@dataclass(slots=True, kw_only=True)
class Prospective:
    """Role of a replica that requests pre-votes before it raises the epoch (KIP-996)."""

    epoch: int
    election_deadline_ms: int
    leader_id: NodeId | None
    leader_endpoints: tuple[Endpoint, ...]
    votes: Votes


@dataclass(slots=True, kw_only=True)
class Candidate:
    """Role of a replica that requests votes in its epoch, and has voted for itself."""

    epoch: int
    election_deadline_ms: int
    votes: Votes
    leader_id: None = None


@dataclass(slots=True, kw_only=True)
class SnapshotFetch:
    """Snapshot that is being fetched; the next bytes start at ``position``."""

    snapshot_id: SnapshotId
    position: int = 0
    is_installing: bool = False


@dataclass(slots=True, kw_only=True)
class Follower:
    """Role of a replica that fetches from the leader of its epoch.

    While ``is_appending`` is set, the last fetched records are not durable yet and no fetch is
    sent.
    """

    epoch: int
    leader_id: NodeId
    leader_endpoints: tuple[Endpoint, ...]
    fetch_timeout_ms: int
    """Includes the jitter, drawn once per epoch."""
    fetch_deadline_ms: int
    has_fetched_from_leader: bool = False
    update_after_ms: int = 0
    """No UpdateRaftVoter request is sent before this time."""
    has_updated_leader: bool = False
    """Whether the leader has this voter's directory id; no record contains a static voter's."""
    is_appending: bool = False
    leader_high_watermark: int | None = None
    leader_log_start_offset: int | None = None
    is_deleting: bool = False
    """Whether the log start is being advanced; no fetch is sent, as it would report the old one."""
    snapshot: SnapshotFetch | None = None
    has_other_remote_store: bool = False
    """Whether the leader copies segments to a different object store from this replica's."""


@dataclass(slots=True)
class DelayedFetch:
    """Fetch request that waits for records or a new high watermark."""

    request: FetchRequest
    deadline_ms: int


@dataclass(slots=True, kw_only=True)
class PendingVoterChange:
    """Requested voter change. ``offset`` is its record's; None until the record is appended."""

    request_id: int
    deadline_ms: int
    voters: VoterSet
    new_voter: Voter | None
    ack_when_committed: bool
    is_probed: bool = False
    offset: int | None = None


@dataclass(slots=True, kw_only=True)
class Leader:
    """Role of the replica that appends to the log in its epoch.

    1. ``epoch_start_offset`` is the offset of its LeaderChange record. This leader commits nothing
       before that record is committed (Raft, figure 8).
    2. ``delayed_fetches`` holds, by request id, at most one fetch per replica.
    """

    epoch: int
    leader_id: NodeId
    epoch_start_offset: int
    check_quorum_deadline_ms: int
    begin_epoch_deadline_ms: int
    progress: Progress
    has_committed_in_epoch: bool = False
    is_resign_requested: bool = False
    voter_change: PendingVoterChange | None = None
    reported_voters: dict[int, Voter] = field(default_factory=dict)
    """Static voters that have reported their directory ids and versions in this epoch, by node id
    (Kafka: ``KRaftVersionUpgrade.Voters``)."""
    fetched_voters: set[ReplicaKey] = field(default_factory=set)
    """Voters that fetched since the check quorum timer was last reset."""
    delayed_fetches: dict[int, DelayedFetch] = field(default_factory=dict)
    acknowledged_voters: set[ReplicaKey] = field(default_factory=set)
    """Voters that know this leader and need no BeginQuorumEpoch request."""
    all_acknowledged: frozenset[ReplicaKey] | None = None
    """The other voters of a voter set, if all of them have acknowledged; compared by identity."""
    pending_reads: list[int] = field(default_factory=list)
    """Unconfirmed read ids, ascending."""
    sent_reads: dict[ReplicaKey, int] = field(default_factory=dict)
    """By voter: the newest read id when the last BeginQuorumEpoch request was sent to it."""
    acknowledged_reads: dict[ReplicaKey, int] = field(default_factory=dict)
    """By voter: the newest read id that it acknowledged."""


@dataclass(slots=True, kw_only=True)
class Resigned:
    """Role of a former leader that sends EndQuorumEpoch until its election timeout expires."""

    epoch: int
    election_deadline_ms: int
    preferred_successors: tuple[ReplicaKey, ...]
    leader_id: NodeId
    acknowledged_voters: set[int] = field(default_factory=set)
    refusing_voters: set[int] = field(default_factory=set)
    """Voters whose hosts refused the last connection, so they are not running."""


Role: TypeAlias = Unattached | Prospective | Candidate | Follower | Leader | Resigned
RoleType: TypeAlias = type[Role]


class Trigger(enum.Enum):
    """Cause of a role transition, with its text in the diagram."""

    LATER_EPOCH = "discovers a later epoch"
    LATER_LEADER = "discovers the leader of a later epoch"
    LEADER_KNOWN = "discovers the leader of its epoch"
    ELECTION_TIMEOUT = "election timeout"
    FETCH_TIMEOUT = "fetch timeout"
    PRE_VOTE_WON = "receives pre-votes from a majority"
    PRE_VOTE_FAILED = "pre-vote rejected or timed out"
    ELECTION_WON = "receives votes from a majority"
    ELECTION_FAILED = "election timed out"
    RESIGNED = "check quorum timeout, resign request, shutdown, or removed voter"
    RESIGNATION_ENDED = "election timeout; epoch + 1"


TRANSITIONS: Final[dict[tuple[RoleType, RoleType], tuple[Trigger, ...]]] = {
    **{
        (role, Unattached): (Trigger.LATER_EPOCH,)
        for role in (Unattached, Candidate, Follower, Leader)
    },
    (Prospective, Unattached): (Trigger.LATER_EPOCH, Trigger.PRE_VOTE_FAILED),
    (Resigned, Unattached): (Trigger.LATER_EPOCH, Trigger.RESIGNATION_ENDED),
    **{
        (role, Follower): (Trigger.LATER_LEADER, Trigger.LEADER_KNOWN)
        for role in (Unattached, Candidate)
    },
    (Prospective, Follower): (Trigger.LATER_LEADER, Trigger.LEADER_KNOWN, Trigger.PRE_VOTE_FAILED),
    **{(role, Follower): (Trigger.LATER_LEADER,) for role in (Follower, Leader, Resigned)},
    (Unattached, Prospective): (Trigger.ELECTION_TIMEOUT,),
    (Follower, Prospective): (Trigger.FETCH_TIMEOUT,),
    (Prospective, Candidate): (Trigger.PRE_VOTE_WON,),
    (Candidate, Leader): (Trigger.ELECTION_WON,),
    (Candidate, Prospective): (Trigger.ELECTION_FAILED,),
    (Leader, Resigned): (Trigger.RESIGNED,),
}
"""All possible transitions: (from, to), and their causes."""
