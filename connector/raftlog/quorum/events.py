"""Events that ``QuorumCore.step`` handles.

Each event is passed once, in the order in which the events occurred. ``TimePassed`` is due at
``QuorumCore.next_deadline_ms``; an early or repeated one has no effect. ``effects`` documents which
events follow each effect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from raftlog.types import SnapshotId

from .messages import Request, Response
from .voters import VoterSet


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Timer event: ``now_ms`` of the step is the current time."""


@dataclass(frozen=True, slots=True)
class RequestReceived:
    """Request to this replica. Its ``Reply``, now or later, has the same ``request_id``."""

    request_id: int
    request: Request


@dataclass(frozen=True, slots=True)
class RequestDropped:
    """The connection of a request is closed: no response can be sent."""

    request_id: int


@dataclass(frozen=True, slots=True)
class ResponseReceived:
    """Response to the ``Send`` with this ``correlation_id``."""

    correlation_id: int
    response: Response


@dataclass(frozen=True, slots=True)
class SendFailed:
    """A ``Send`` gets no response: the connection failed, or supports no version of the request.

    ``is_refused``: the host refused the connection, because no process listens there.
    """

    correlation_id: int
    is_version_unsupported: bool = False
    is_refused: bool = False


@dataclass(frozen=True, slots=True)
class VotersAppended:
    """Voters record or KRaftVersion record at ``offset`` of the log."""

    offset: int
    voters: VoterSet | None = None
    kraft_version: int | None = None


@dataclass(frozen=True, slots=True)
class Appended:
    """Records were appended up to the log's end offset; they are not durable yet. A follower's
    append is reported only if it includes voters: nothing depends on other records before they are
    synced."""

    voters: tuple[VotersAppended, ...] = ()


@dataclass(frozen=True, slots=True)
class AppendRefused:
    """The log refused fetched or own records, and appended not all of them, or none.

    ``is_disk_full`` is True if the cause is a full disk, which may be temporary.
    """

    reason: str
    is_disk_full: bool = False


@dataclass(frozen=True, slots=True)
class SyncCompleted:
    """A sync completed: ``LogView.synced_end_offset`` is up to date."""


@dataclass(frozen=True, slots=True)
class Truncated:
    """The log was truncated durably."""


@dataclass(frozen=True, slots=True)
class SnapshotInstalled:
    """The log was restarted durably at the end offset of a snapshot."""

    snapshot_id: SnapshotId
    voters: VoterSet | None = None
    kraft_version: int | None = None


@dataclass(frozen=True, slots=True)
class SnapshotRefused:
    """A fetched snapshot is invalid or could not be stored; it must be fetched again."""

    snapshot_id: SnapshotId
    reason: str
    is_disk_full: bool = False


@dataclass(frozen=True, slots=True)
class ReadIndex:
    """Confirm that this replica is still the leader (Raft's ReadIndex).

    Followed by ``ReadIndexConfirmed`` with the same ``read_id`` if it is, and by nothing otherwise.
    """

    read_id: int


@dataclass(frozen=True, slots=True)
class LogStartAdvanced:
    """Records at the log's start were deleted durably, or could not be deleted.

    A leader reports the new log start in the responses to delayed fetches.
    """


@dataclass(frozen=True, slots=True)
class Resign:
    """Resign as leader of ``epoch``; no effect if that epoch has ended."""

    epoch: int


@dataclass(frozen=True, slots=True)
class UpgradeKRaftVersion:
    """Append the records of a kraft.version that ``QuorumCore.upgrade_refusal`` accepts.

    Followed by ``Appended`` if the quorum has a lower version.
    """

    version: int


@dataclass(frozen=True, slots=True)
class ShutDown:
    """Resign if this replica is the leader, and take no further part in elections."""


Event: TypeAlias = (
    TimePassed
    | RequestReceived
    | RequestDropped
    | ResponseReceived
    | SendFailed
    | Appended
    | AppendRefused
    | SyncCompleted
    | Truncated
    | SnapshotInstalled
    | SnapshotRefused
    | ReadIndex
    | LogStartAdvanced
    | Resign
    | UpgradeKRaftVersion
    | ShutDown
)
