"""What may happen to a replica: everything that ``QuorumCore.step`` is told.

Rules of this file:

1. An event is told once, in the order in which things happened. ``TimePassed`` comes at
   ``QuorumCore.next_deadline_ms``, or later; too early or twice is harmless.
2. What the replica asked for by an effect is answered by one event, as ``effects`` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from raftlog.types import SnapshotId

from .messages import Request, Response
from .voters import VoterSet


@dataclass(frozen=True, slots=True)
class TimePassed:
    """It is ``now_ms``."""


@dataclass(frozen=True, slots=True)
class RequestReceived:
    """Somebody asks; the answer is a ``Reply`` of the same ``request_id``, now or later."""

    request_id: int
    request: Request


@dataclass(frozen=True, slots=True)
class RequestDropped:
    """Whoever asked is gone: the answer would go nowhere."""

    request_id: int


@dataclass(frozen=True, slots=True)
class ResponseReceived:
    """The answer to a ``Send`` of this ``correlation_id``."""

    correlation_id: int
    response: Response


@dataclass(frozen=True, slots=True)
class SendFailed:
    """There will be no answer to a ``Send``: no connection, or it broke."""

    correlation_id: int
    is_version_unsupported: bool = False


@dataclass(frozen=True, slots=True)
class VotersAppended:
    """A record at ``offset`` of the log says who votes, or which kraft.version holds."""

    offset: int
    voters: VoterSet | None = None
    kraft_version: int | None = None


@dataclass(frozen=True, slots=True)
class Appended:
    """Records are in the log, up to its end offset, and not durable yet."""

    voters: tuple[VotersAppended, ...] = ()


@dataclass(frozen=True, slots=True)
class AppendRefused:
    """The log did not take what a leader sent, or appends itself: nothing of it, or not all, is
    there. ``is_disk_full``: because the disk is full, which may pass."""

    reason: str
    is_disk_full: bool = False


@dataclass(frozen=True, slots=True)
class SyncCompleted:
    """A sync ended: the log says what is durable now."""


@dataclass(frozen=True, slots=True)
class Truncated:
    """The log was cut, durably."""


@dataclass(frozen=True, slots=True)
class SnapshotInstalled:
    """The log begins again behind a snapshot, durably."""

    snapshot_id: SnapshotId
    voters: VoterSet | None = None
    kraft_version: int | None = None


@dataclass(frozen=True, slots=True)
class SnapshotRefused:
    """A snapshot that was fetched is not sound, or could not be stored: begin again."""

    snapshot_id: SnapshotId
    reason: str
    is_disk_full: bool = False


@dataclass(frozen=True, slots=True)
class ReadIndex:
    """Find out whether this replica still leads: answered by ``ReadIndexConfirmed`` with the same
    read_id, or never, if it leads no more."""

    read_id: int


@dataclass(frozen=True, slots=True)
class Resign:
    """Stop leading ``epoch``; nothing, if it is over already."""

    epoch: int


@dataclass(frozen=True, slots=True)
class ShutDown:
    """Hand leadership over and take no part in elections from now on."""


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
    | Resign
    | ShutDown
)
