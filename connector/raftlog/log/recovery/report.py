"""Results of recovery: the log's state, and a report of what was truncated, rebuilt or damaged.

The report names every change and every damage; a file that it does not name is unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from raftlog.errors import LogReadOnlyError
from raftlog.log.format.epoch_cache import EpochCache
from raftlog.log.segment import SegmentMetadata
from raftlog.log.writing.producer_state import ProducerStateManager


class ScanEnd(StrEnum):
    """Why the valid batches of a segment end."""

    END = "end of file"
    LIMIT = "end offset reached"
    """The next batch begins at or after the requested end offset."""
    TORN = "torn batch"
    """The file ends inside a batch."""
    ZEROS = "zeros"
    """Only zeros follow: the file was extended or preallocated, and not written."""
    DAMAGE = "damage"
    OFFSET_REGRESSION = "offset regression"
    """The next batch ends below the end of the one before it: the same offsets twice."""
    OVERLAP = "overlap"
    """The next batch begins below the end of the one before it and ends above it."""
    GAP = "gap"
    EPOCH_REGRESSION = "epoch regression"
    """The next batch has an older epoch than the one before it."""
    EPOCH_MISMATCH = "epoch mismatch"
    """The next batch's epoch is not that of its offset in ``leader-epoch-checkpoint``, or is a new
    one that does not begin with a leader's control batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncatedTail:
    """Bytes that were truncated from a segment, or a whole segment that was deleted.

    ``first_offset`` is the first offset that the log no longer has. ``saved_as`` is the path of the
    backup; None if the bytes were all zeros or nothing was written.
    """

    path: str
    position: int
    byte_count: int
    first_offset: int
    reason: str
    saved_as: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanStop:
    """Place where the valid batches of a log stop, and why; also damage of another file.

    ``kind`` is None for a file that is not a segment. ``next_offset`` is the offset that a batch
    must have there, ``epoch`` that of the batch before it. ``byte_count`` is the rest of the file.
    ``found_*`` describe the batch that is there, if it is whole and its CRC matches; otherwise
    ``reason`` is the damage. ``resumes_*`` is the next valid batch after damage, if it was searched
    for.
    """

    kind: ScanEnd | None
    path: str
    position: int | None
    reason: str
    byte_count: int = 0
    next_offset: int | None = None
    epoch: int | None = None
    found_base_offset: int | None = None
    found_last_offset: int | None = None
    found_epoch: int | None = None
    resumes_position: int | None = None
    resumes_offset: int | None = None

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong: the file ends after a whole batch, or the limit was reached."""
        return self.kind in (ScanEnd.END, ScanEnd.LIMIT)

    @property
    def description(self) -> str:
        """The place and the reason as text for an operator."""
        at = "" if self.position is None else f" at byte {self.position}"
        text = f"{self.path}{at}: {self.reason}"
        if self.resumes_position is not None:
            text += (
                f"; the next valid batch has offset {self.resumes_offset}, at byte "
                f"{self.resumes_position}"
            )
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """What recovery did, for an operator.

    ``read_only`` is the error of every append, if the log may not be written: because of damage
    below the durable offset, or because it is not a raftlog log. Then nothing was changed.
    ``deleted_backups``: older backups that were deleted to make room for new ones.
    """

    was_clean: bool
    truncated: tuple[TruncatedTail, ...] = ()
    rebuilt: tuple[str, ...] = ()
    deleted_backups: tuple[str, ...] = ()
    anomalies: tuple[ScanStop, ...] = ()
    read_only: LogReadOnlyError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredLog:
    """A recovered log: exactly what is on disk, and synced.

    If ``report.read_only`` is set, nothing was written, and the log ends before the damage.
    ``recovery_point`` is the offset below which everything was known to be synced before this
    recovery.
    """

    segments: tuple[SegmentMetadata, ...]
    log_start_offset: int
    end_offset: int
    epochs: EpochCache
    producer_state: ProducerStateManager
    recovery_point: int
    was_clean: bool
    report: RecoveryReport
