"""Errors of metadata records, of the state and tables built from them, and of changes to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from raftlog.errors import RaftlogError
from raftlog.printable import without_user_info

_SHOWN_MAX: Final = 10


class StateError(RaftlogError, code="RAFTLOG_STATE"):
    """Base class of errors of metadata records, and of the state and tables built from them."""


class MetadataParseError(StateError, code="RAFTLOG_METADATA_PARSE"):
    """Bytes do not parse as the metadata record that their frame declares.

    ``version`` is None if the frame itself does not parse.
    """

    record: str
    version: int | None
    position: int
    reason: str

    def message(self) -> str:
        version = "" if self.version is None else f" version {self.version}"
        return f"cannot parse {self.record}{version} at byte {self.position}: {self.reason}"


class InvalidRecordError(StateError, code="RAFTLOG_INVALID_RECORD"):
    """A record, or its JSON, contains a value that Kafka's schema does not allow.

    ``field`` is the path in Kafka's field names, empty for the record itself. The value is never
    shown.
    """

    record: str
    version: int | None
    field: str
    reason: str

    def message(self) -> str:
        version = "" if self.version is None else f" version {self.version}"
        field = f", field {self.field}" if self.field else ""
        return f"invalid {self.record}{version}{field}: {self.reason}"


class UnsupportedVersionError(StateError, code="RAFTLOG_UNSUPPORTED_VERSION", kafka_code=35):
    """A record cannot be written in the requested version."""

    record: str
    version: int
    reason: str

    def message(self) -> str:
        return f"cannot write {self.record} in version {self.version}: {self.reason}"


class ReplayError(StateError, code="RAFTLOG_REPLAY"):
    """A record contradicts the state before it: earlier records are missing or wrong.

    ``unsupported``: earlier records that this release does not support, so that the state lacks
    them, as text; None if there are none.
    """

    offset: int
    record: str
    reason: str
    unsupported: str | None = None

    @property
    def cause(self) -> str:
        """The reason, and the records that the state lacks, which may be the reason."""
        if self.unsupported is None:
            return self.reason
        return (
            f"{self.reason}; this release does not support {self.unsupported}, which may be the "
            "reason"
        )

    def message(self) -> str:
        if self.unsupported is not None:
            return (
                f"cannot replay {self.record} at offset {self.offset}: {self.cause}: use a newer "
                "release; if that fails too, start at a snapshot; states up to end offset "
                f"{self.offset} can be read, and `raftlog check` examines the whole log"
            )
        return (
            f"cannot replay {self.record} at offset {self.offset}: {self.reason}; start at a "
            f"snapshot or at the first offset of the log; if that fails too, states up to end "
            f"offset {self.offset} can be read, and `raftlog check` examines the whole log"
        )


class OffsetGapError(StateError, code="RAFTLOG_OFFSET_GAP"):
    """The input does not begin at the next offset of the state. Nothing was written."""

    expected_offset: int
    offset: int
    remedy: str

    def message(self) -> str:
        return (
            f"expected offset {self.expected_offset} next, got offset {self.offset}; "
            f"nothing was written; {self.remedy}"
        )


class StateInvariantError(StateError, code="RAFTLOG_STATE_INVARIANT"):
    """An invariant of a ``MetadataLoader`` does not hold: a bug. The loader is closed."""

    reason: str

    def message(self) -> str:
        return (
            f"an invariant of the replayed state does not hold: {self.reason}; this is a bug: "
            "report it, and build the state again from a snapshot or the start of the log"
        )


class SnapshotEpochError(StateError, code="RAFTLOG_SNAPSHOT_EPOCH"):
    """An in-memory snapshot is not in its ``SnapshotRegistry``, or cannot be created."""

    epoch: int
    epochs: tuple[int, ...]
    reason: str

    def message(self) -> str:
        shown = ", ".join(str(epoch) for epoch in self.epochs[-_SHOWN_MAX:])
        known = f"the newest ones are at {shown}" if shown else "there are no snapshots"
        return f"the in-memory snapshot at epoch {self.epoch} {self.reason}; {known}"


class ControllerError(StateError, code="RAFTLOG_CONTROLLER"):
    """Base class of errors that callers of the active controller get. ``reason`` is a sentence."""

    reason: str

    def message(self) -> str:
        return self.reason


class NotControllerError(
    ControllerError, code="RAFTLOG_NOT_CONTROLLER", retriable=True, kafka_code=41
):
    """The controller is not active, or lost its leadership before the write was committed.

    In the second case, the records may still be committed.
    """


class ControllerTimeoutError(
    ControllerError, code="RAFTLOG_CONTROLLER_TIMEOUT", retriable=True, kafka_code=7
):
    """A write reached its deadline, or the controller is shutting down.

    Records that were appended may still be committed.
    """


class PolicyViolationError(ControllerError, code="RAFTLOG_POLICY_VIOLATION", kafka_code=44):
    """A write contains too many records. Nothing was written."""


class UnknownServerError(ControllerError, code="RAFTLOG_UNKNOWN_SERVER", kafka_code=-1):
    """A fault inside the controller; see ``__cause__``."""


class TablesError(StateError, code="RAFTLOG_TABLES"):
    """The Delta tables are not in the state that the call requires. ``place`` is their location."""

    place: str
    reason: str
    remedy: str

    def __post_init__(self) -> None:
        self.place = without_user_info(self.place)

    def message(self) -> str:
        return f"Delta tables at {self.place}: {self.reason}; {self.remedy}"


class ConcurrentWriterError(TablesError, code="RAFTLOG_CONCURRENT_WRITER", retriable=True):
    """Another writer committed to the same tables concurrently. No commit is partial."""


class ClusterOwnedError(TablesError, code="RAFTLOG_CLUSTER_OWNED"):
    """Another writer of the tables owns the cluster. ``owner`` is its group; None: no group."""

    cluster_id: str
    owner: str | None


class ClustersFailedError(StateError, code="RAFTLOG_CLUSTERS_FAILED"):
    """The rows of some clusters of a group were not written. The others were.

    ``failures`` contains the error of each of these clusters.
    """

    place: str
    failures: Mapping[str, RaftlogError]

    def __post_init__(self) -> None:
        self.place = without_user_info(self.place)

    def message(self) -> str:
        lines = [f"\n  {name}: {error}" for name, error in sorted(self.failures.items())]
        more = len(lines) - _SHOWN_MAX
        rest = f"\n  and {more} more" if more > 0 else ""
        return (
            f"Delta tables at {self.place}: {len(lines)} clusters were not written further; the "
            f"others were:{''.join(lines[:_SHOWN_MAX])}{rest}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedChange:
    """A rejected row of a table of changes.

    ``row`` counts from 0. ``change`` is the kind of change, "?" if the row has none. ``what`` is
    the object to be changed, such as a topic or a broker.
    """

    row: int
    change: str
    what: str
    reason: str
    remedy: str
    kafka_code: int

    def __str__(self) -> str:
        return f"row {self.row} ({self.change}), {self.what}: {self.reason}; {self.remedy}"


class InvalidChangesError(RaftlogError, code="RAFTLOG_INVALID_CHANGES", kafka_code=42):
    """Rows of a table of changes contradict the state or each other. Nothing was written."""

    refused: tuple[RefusedChange, ...]
    row_count: int

    def message(self) -> str:
        lines = "".join(f"\n  {change}" for change in self.refused[:_SHOWN_MAX])
        more = len(self.refused) - _SHOWN_MAX
        rest = f"\n  and {more} more" if more > 0 else ""
        return (
            f"{len(self.refused)} of {self.row_count} changes were rejected, nothing was "
            f"written:{lines}{rest}"
        )


class OperatingSystemError(RaftlogError, code="RAFTLOG_OPERATING_SYSTEM"):
    """A system call of a command failed. ``path`` is None if no file is involved."""

    path: str | None
    reason: str

    def message(self) -> str:
        what = "a call failed" if self.path is None else f"{self.path} cannot be accessed"
        return (
            f"{what}: {self.reason}; check the path, the permissions of this user, the space of "
            "the disk and the limits of the process (ulimit -a)"
        )
