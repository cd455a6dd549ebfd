"""What a check finds: where, what, and whether it is damage or only worth knowing."""

from __future__ import annotations

import json
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


class Severity(StrEnum):
    """Damage makes a check fail. A note is normal, on a running node for instance."""

    DAMAGE = "damage"
    NOTE = "note"


class Kind(StrEnum):
    """Stable names for what was found, for programs that read it."""

    BATCH = "batch"
    """Bytes that are no sound record batch."""
    TORN_TAIL = "torn_tail"
    """The newest segment ends in a batch that is not whole."""
    GAP = "gap"
    """Offsets skip or go back."""
    SEGMENT_NAME = "segment_name"
    """A segment is not named after its first offset."""
    EPOCH = "epoch"
    """Leader epochs fall, or ``leader-epoch-checkpoint`` says something else."""
    INDEX = "index"
    """An index names what is not there."""
    FILE = "file"
    """A small file beside the log does not parse."""
    SNAPSHOT = "checkpoint"
    """A checkpoint is not whole."""
    REPLAY = "replay"
    """Records contradict each other or a checkpoint."""
    DIVERGENCE = "divergence"
    """Two copies of the log have different batches at the same offset."""
    UNKNOWN = "unknown"
    """Records of a type or version that this program does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing found. ``position`` is a byte in the file ``path``, ``offset`` a record's."""

    severity: Severity
    kind: Kind
    path: str
    reason: str
    position: int | None = None
    offset: int | None = None

    def text(self) -> str:
        """One line for people."""
        place = self.path
        if self.position is not None:
            place += f" at byte {self.position}"
        if self.offset is not None:
            place += f", offset {self.offset}"
        return f"{self.severity}: {place}: {self.reason}"

    def json(self) -> str:
        """One line for programs."""
        fields = {
            "severity": self.severity,
            "kind": self.kind,
            "path": self.path,
            "position": self.position,
            "offset": self.offset,
            "reason": self.reason,
        }
        return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)


def damage(
    kind: Kind,
    path: str,
    reason: str,
    *,
    position: int | None = None,
    offset: int | None = None,
) -> Finding:
    """A finding that makes the check fail."""
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
    """A finding that is worth knowing and no damage."""
    return Finding(
        severity=Severity.NOTE,
        kind=kind,
        path=path,
        reason=reason,
        position=position,
        offset=offset,
    )


def of_error(error: RaftlogError, path: str) -> Finding:
    """The same facts as an error's; ``path`` where the error names none."""
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
