"""What a replica may ask for: everything that ``QuorumCore.step`` returns.

Rules of this file:

1. Effects are carried out in the order of the list, each before the next, and all of them before
   the next event but the answers that they cause. A ``Send`` or ``Reply`` stands behind what it
   vouches for.
2. ``PersistElection``, ``AppendLeaderChange`` as far as its epoch goes, ``TruncateToEndOfEpoch``
   and ``InstallSnapshot`` are durable when they are done. What is appended is durable after a sync:
   ``StartSync`` begins one, and while it runs other events are told.
3. If the storage fails the replica stops, and no effect is tried twice. A full disk is no failure:
   what it leaves undone changed nothing. ``AppendVoters``, ``AppendAsFollower`` and what stores a
   snapshot are refused then; ``PersistElection`` and ``AppendLeaderChange`` are tried again before
   anything else is done or told, as if the disk were slow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from raftlog.types import OffsetAndEpoch, ReplicaKey, SnapshotId

from .messages import FetchResponse, FetchSnapshotResponse, Request, Response
from .roles import RoleType
from .voters import Endpoint, VoterSet


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionState:
    """What a replica must remember of elections (Kafka: quorum-state)."""

    epoch: int
    leader_id: int | None = None
    voted_key: ReplicaKey | None = None


@dataclass(frozen=True, slots=True)
class PersistElection:
    """Write down, durably."""

    state: ElectionState


@dataclass(frozen=True, slots=True)
class Send:
    """Ask another node. Answered by ``ResponseReceived`` or ``SendFailed``, or never."""

    correlation_id: int
    node_id: int
    endpoints: tuple[Endpoint, ...]
    request: Request


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer a request."""

    request_id: int
    response: Response


@dataclass(frozen=True, slots=True)
class ReplyWithRecords:
    """Answer a fetch with what the log holds from ``start_offset``: at least one batch if there is
    one, else up to ``max_bytes``."""

    request_id: int
    response: FetchResponse
    start_offset: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class ReplyWithSnapshot:
    """Answer with bytes of a checkpoint's file."""

    request_id: int
    response: FetchSnapshotResponse
    max_bytes: int


@dataclass(frozen=True, slots=True)
class RejoinElections:
    """Write down, durably, that this replica votes again: it holds all that it ever vouched for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendLeaderChange:
    """Lead ``epoch``: append its leader change, and behind it in the same batch what else is given.

    Answered by ``Appended``.
    """

    epoch: int
    voters: tuple[ReplicaKey, ...]
    granting_voters: tuple[ReplicaKey, ...]
    kraft_version: int | None = None
    voter_set: VoterSet | None = None


@dataclass(frozen=True, slots=True)
class AppendVoters:
    """Append a set of voters in a control batch of its own. Answered by ``Appended``, or by
    ``AppendRefused`` if there is no room."""

    epoch: int
    voter_set: VoterSet


@dataclass(frozen=True, slots=True)
class AppendAsFollower:
    """Append what a leader sent. Answered by ``Appended`` or ``AppendRefused``."""

    records: bytes
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class StartSync:
    """Make durable what was appended. Answered by ``SyncCompleted``. One that runs already, and
    began earlier, is not enough: another one follows it."""


@dataclass(frozen=True, slots=True)
class TruncateToEndOfEpoch:
    """Cut the log where it parts from a leader's. Answered by ``Truncated``."""

    diverging: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class StoreSnapshotBytes:
    """Keep bytes of a snapshot's file that is being fetched; position 0 begins it anew. Answered by
    ``SnapshotRefused`` if there is no room."""

    snapshot_id: SnapshotId
    position: int
    data: bytes


@dataclass(frozen=True, slots=True)
class InstallSnapshot:
    """All bytes are there: check and keep the snapshot, and begin the log behind it.

    Answered by ``SnapshotInstalled`` or ``SnapshotRefused``.
    """

    snapshot_id: SnapshotId


@dataclass(frozen=True, slots=True)
class AdvanceHighWatermark:
    """Everything below ``offset`` is committed."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderChanged:
    """Tell those who use the log: this epoch, and who leads it if that is known.

    If it is this replica, ``epoch_start_offset`` is where its epoch begins: users hear of it when
    everything below is committed.
    """

    epoch: int
    leader_id: int | None
    epoch_start_offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleChanged:
    """This replica is something else now; ``old`` None: it begins. For people and for figures."""

    old: RoleType | None
    new: RoleType
    epoch: int
    leader_id: int | None


@dataclass(frozen=True, slots=True)
class ReadIndexConfirmed:
    """When this read id was asked for, nobody led a later epoch."""

    read_id: int


@dataclass(frozen=True, slots=True)
class LogMessage:
    """A line for the log of the process: what happened, for people."""

    text: str


Effect: TypeAlias = (
    PersistElection
    | Send
    | Reply
    | ReplyWithRecords
    | ReplyWithSnapshot
    | RejoinElections
    | AppendLeaderChange
    | AppendVoters
    | AppendAsFollower
    | StartSync
    | TruncateToEndOfEpoch
    | StoreSnapshotBytes
    | InstallSnapshot
    | AdvanceHighWatermark
    | LeaderChanged
    | RoleChanged
    | ReadIndexConfirmed
    | LogMessage
)
