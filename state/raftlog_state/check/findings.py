"""Findings of a check: severity, kind, location and reason."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from raftlog.errors import (
    CorruptBatchError,
    CorruptFileError,
    CorruptSnapshotError,
    DecompressionLimitError,
    LogGapError,
    RaftlogError,
    SnapshotDecompressionLimitError,
)
from raftlog.printable import compact_json


class Severity(StrEnum):
    """Severity of a finding. Damage fails the check. A note is normal, e.g. on a running node."""

    DAMAGE = "damage"
    NOTE = "note"


class Kind(StrEnum):
    """Kind of a finding. The values are stable, because programs parse the output."""

    BATCH = "batch"
    """Invalid record batch."""
    TORN_TAIL = "torn_tail"
    """Incomplete batch at the end of the active segment."""
    GAP = "gap"
    """Offset gap or regression."""
    SEGMENT_NAME = "segment_name"
    """Segment whose name is not its base offset."""
    EPOCH = "epoch"
    """Leader epoch that decreases, or contradicts ``leader-epoch-checkpoint``."""
    INDEX = "index"
    """Index entry that does not match the log."""
    FILE = "file"
    """Metadata file that cannot be parsed."""
    SNAPSHOT = "checkpoint"
    """Incomplete or invalid snapshot."""
    REPLAY = "replay"
    """Records that contradict each other or a snapshot."""
    DIVERGENCE = "divergence"
    """Different batches at the same offset of two replicas."""
    FOREIGN = "foreign"
    """Batches in a quorum node's log that another process wrote."""
    PERMISSIONS = "permissions"
    """Files with secrets that other users may read."""
    UNKNOWN = "unknown"
    """Records of a type or version that this version does not support. It is damage if a later
    record cannot be replayed, perhaps because of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Finding of a check. ``position`` is in bytes in file ``path``; ``offset`` is a log offset."""

    severity: Severity
    kind: Kind
    path: str
    reason: str
    position: int | None = None
    offset: int | None = None

    def text(self) -> str:
        """Return the finding as a line of text."""
        location = self.path
        if self.position is not None:
            location += f" at byte {self.position}"
        if self.offset is not None:
            location += f", offset {self.offset}"
        return f"{self.severity}: {location}: {self.reason}"

    def json(self) -> str:
        """Return the finding as a line of JSON."""
        fields = {
            "severity": self.severity,
            "kind": self.kind,
            "path": self.path,
            "position": self.position,
            "offset": self.offset,
            "reason": self.reason,
        }
        return compact_json(fields)


def damage(
    kind: Kind,
    path: str,
    reason: str,
    *,
    position: int | None = None,
    offset: int | None = None,
) -> Finding:
    """Return a finding that fails the check."""
    return Finding(
        severity=Severity.DAMAGE,
        kind=kind,
        path=path,
        reason=reason,
        position=position,
        offset=offset,
    )


def note(
    kind: Kind,
    path: str,
    reason: str,
    *,
    position: int | None = None,
    offset: int | None = None,
) -> Finding:
    """Return a finding that does not fail the check."""
    return Finding(
        severity=Severity.NOTE,
        kind=kind,
        path=path,
        reason=reason,
        position=position,
        offset=offset,
    )


def of_error(error: RaftlogError, path: str) -> Finding:
    """Return the finding for an error; ``path`` is used if the error has none."""
    match error:
        case CorruptBatchError():
            return damage(
                Kind.BATCH,
                error.path or path,
                _reason(error),
                position=error.position,
                offset=error.offset,
            )
        case CorruptSnapshotError():
            return damage(Kind.SNAPSHOT, error.path, _reason(error), position=error.position)
        case CorruptFileError():
            return damage(Kind.FILE, error.path, error.reason, position=error.position)
        case LogGapError():
            reason = f"offset {error.expected_offset} was expected"
            return damage(
                Kind.GAP, error.path, reason, position=error.position, offset=error.offset
            )
        case _:
            return damage(Kind.FILE, path, error.message())


def _reason(error: CorruptBatchError | CorruptSnapshotError) -> str:
    if isinstance(error, DecompressionLimitError | SnapshotDecompressionLimitError):
        return f"not read: {error.reason}; {error.remedy}"
    return error.reason
