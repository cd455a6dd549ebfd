"""What a replica is at a time, and how it becomes something else.

Rules of this file:

1. A role is data: what is remembered only as long as it lasts. What outlasts it (log, voters, high
   watermark) is elsewhere.
2. ``TRANSITIONS`` is the whole truth: ``ReplicaState`` refuses every other change, and the diagram
   in ARCHITECTURE.md is drawn from it.
3. Being a voter or an observer is not a role: an observer is unattached or follows, but one whose
   removal is not committed yet (``ReplicaState.is_leaving``).

Kafka: ``QuorumState``, with KIP-996's ``ProspectiveState``. There is no role for having voted: the
vote is kept beside the role, as long as the epoch lasts.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from raftlog.types import ReplicaKey, SnapshotId

from .messages import FetchRequest
from .progress import Progress
from .voters import Endpoint, Voter, VoterSet


@dataclass(slots=True)
class Votes:
    """Who said what to a candidate. Both sets are of node ids."""

    granted: set[int] = field(default_factory=set)
    rejected: set[int] = field(default_factory=set)

    def record(self, node_id: int, *, is_granted: bool) -> None:
        """Note an answer. One that was granted is never taken back."""
        if is_granted:
            self.granted.add(node_id)
            self.rejected.discard(node_id)
        elif node_id not in self.granted:
            self.rejected.add(node_id)


@dataclass(slots=True, kw_only=True)
class Unattached:
    """It knows of no leader that it could follow."""

    epoch: int
    election_deadline_ms: int
    leader_id: int | None = None


@dataclass(slots=True, kw_only=True)
class Prospective:
    """It asks whether it would be voted for, before it raises the epoch (KIP-996)."""

    epoch: int
    election_deadline_ms: int
    leader_id: int | None
    leader_endpoints: tuple[Endpoint, ...]
    votes: Votes


@dataclass(slots=True, kw_only=True)
class Candidate:
    """It stands for election in its epoch, having voted for itself."""

    epoch: int
    election_deadline_ms: int
    votes: Votes
    leader_id: None = None


@dataclass(slots=True, kw_only=True)
class SnapshotFetch:
    """A snapshot that is on its way; the next bytes are those at ``position``."""

    snapshot_id: SnapshotId
    position: int = 0
    is_installing: bool = False


@dataclass(slots=True, kw_only=True)
class Follower:
    """It fetches from the leader of its epoch.

    ``is_appending``: what was fetched last is not durable yet, so nothing is asked for.
    """

    epoch: int
    leader_id: int
    leader_endpoints: tuple[Endpoint, ...]
    fetch_timeout_ms: int
    """With the jitter of this replica in this epoch."""
    fetch_deadline_ms: int
    has_fetched_from_leader: bool = False
    update_after_ms: int = 0
    """When the leader may be told (again) where this replica listens and what it speaks."""
    is_appending: bool = False
    leader_high_watermark: int | None = None
    snapshot: SnapshotFetch | None = None


@dataclass(slots=True)
class DelayedFetch:
    """A fetch that waits for records or for a new high watermark."""

    request: FetchRequest
    deadline_ms: int


@dataclass(slots=True, kw_only=True)
class PendingVoterChange:
    """A change of voters that was asked for. ``offset``: where its record is, once appended."""

    request_id: int
    deadline_ms: int
    voters: VoterSet
    new_voter: Voter | None
    ack_when_committed: bool
    is_probed: bool = False
    offset: int | None = None


@dataclass(slots=True, kw_only=True)
class Leader:
    """It gives the log its order in its epoch.

    1. ``epoch_start_offset`` is that of its leader change: nothing is committed by this leader
       before that record is (Raft's figure 8).
    2. ``delayed_fetches`` holds one fetch of each replica at most, by request id.
    """

    epoch: int
    leader_id: int
    epoch_start_offset: int
    check_quorum_deadline_ms: int
    begin_epoch_deadline_ms: int
    progress: Progress
    has_committed_in_epoch: bool = False
    is_resign_requested: bool = False
    voter_change: PendingVoterChange | None = None
    fetched_voters: set[ReplicaKey] = field(default_factory=set)
    """The voters that fetched since the deadline of the check was set."""
    delayed_fetches: dict[int, DelayedFetch] = field(default_factory=dict)
    acknowledged_voters: set[ReplicaKey] = field(default_factory=set)
    """The voters that know of this epoch."""
    pending_reads: list[int] = field(default_factory=list)
    """What asks whether this is still the leader, the oldest first."""
    sent_reads: dict[ReplicaKey, int] = field(default_factory=dict)
    """Of each voter that was told of this epoch and did not answer yet: the newest read id then."""
    acknowledged_reads: dict[ReplicaKey, int] = field(default_factory=dict)
    """Of each voter: the newest read id that it has answered."""


@dataclass(slots=True, kw_only=True)
class Resigned:
    """It led its epoch, and does no more: it tells the voters, then moves on."""

    epoch: int
    election_deadline_ms: int
    preferred_successors: tuple[ReplicaKey, ...]
    leader_id: int
    acknowledged_voters: set[int] = field(default_factory=set)


Role: TypeAlias = Unattached | Prospective | Candidate | Follower | Leader | Resigned
RoleType: TypeAlias = type[Role]


class Trigger(enum.Enum):
    """Why a replica changes its role, in the words of the diagram."""

    LATER_EPOCH = "a later epoch is seen"
    LATER_LEADER = "the leader of a later epoch is known"
    LEADER_KNOWN = "the leader of its epoch is known"
    ELECTION_TIMEOUT = "no leader for an election timeout"
    FETCH_TIMEOUT = "no answer from the leader for a fetch timeout"
    PRE_VOTE_WON = "a majority would vote for it"
    PRE_VOTE_FAILED = "lost or timed out"
    ELECTION_WON = "a majority voted for it"
    ELECTION_FAILED = "timed out"
    RESIGNED = "no majority fetches, it is asked to, or it votes no more"
    RESIGNATION_ENDED = "told the voters; epoch + 1"


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
"""From, to, and why. Whoever is not named here cannot happen."""
