"""What recovery found and did, as facts: for the log that goes on from there, and for a person.

Rules of this file:

1. Facts only: nothing here reads or writes.
2. Everything that was cut, rebuilt or found wrong is in the report, with its place. What the report
   does not name is as it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from raftlog.errors import LogReadOnlyError
from raftlog.log.epoch_cache import EpochCache

from .producer_state_manager import ProducerStateManager


class ScanEnd(StrEnum):
    """Why what is sound ends where it ends."""

    END = "end of file"
    LIMIT = "asked to stop here"
    """The next batch begins at or behind the end that was asked for."""
    TORN = "torn batch"
    """The bytes are the beginning of a batch, and the file ends inside it."""
    ZEROS = "zeros"
    """Nothing but zeros follows: the file was made longer and never written."""
    DAMAGE = "damage"
    OFFSET_REGRESSION = "dip"
    """The next batch lies below the end of the one before it: the same offsets twice."""
    OVERLAP = "overlap"
    """The next batch begins below the end of the one before it and reaches behind it."""
    GAP = "gap"
    EPOCH_REGRESSION = "epoch fall"
    """The next batch is of an older epoch than the one before it."""
    EPOCH_MISMATCH = "wrong epoch"
    """The next batch is of another epoch than its offset has by the epochs' checkpoint, or of a new
    one that no leader began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentMetadata:
    """One segment as it lies on disk after recovery.

    ``end_offset`` is exclusive. The times are in milliseconds, of the batches' own greatest times:
    ``first_timestamp_ms`` that of the first batch, by which a segment rolls (Kafka:
    ``rollingBasedTimestamp``); ``max_timestamp_offset`` the last offset of the first batch that has
    the greatest. All three are None where nothing was read: a sealed segment below the recovery
    point, or an empty one.
    """

    base_offset: int
    end_offset: int
    byte_count: int
    first_timestamp_ms: int | None = None
    max_timestamp_ms: int | None = None
    max_timestamp_offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncatedTail:
    """Bytes that were taken off the end of a segment, or a whole segment.

    ``first_offset`` is the first offset that the log no longer holds. ``saved_as`` is the file that
    has the bytes now; None if they were all zeros, or if nothing was written at all.
    """

    path: str
    position: int
    byte_count: int
    first_offset: int
    reason: str
    saved_as: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomaly:
    """A place where a log does not continue as it must, or a file beside it that is damaged.

    ``expected_offset`` is the offset that had to come next; ``found_*`` tell of the sound batch
    that lies there instead, if one does; ``resumes_*`` of the next sound one behind damage.
    ``kind`` is None for a file that is no segment.
    """

    kind: ScanEnd | None
    path: str
    position: int | None
    reason: str
    byte_count: int = 0
    expected_offset: int | None = None
    found_base_offset: int | None = None
    found_last_offset: int | None = None
    found_epoch: int | None = None
    resumes_position: int | None = None
    resumes_offset: int | None = None

    @property
    def description(self) -> str:
        """What a person reads."""
        at = "" if self.position is None else f" at byte {self.position}"
        words = f"{self.path}{at}: {self.reason}"
        if self.resumes_position is not None:
            words += (
                f"; a sound batch of offset {self.resumes_offset} follows at byte "
                f"{self.resumes_position}"
            )
        return words


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """What a person should know of an opening.

    ``read_only`` is what every append must be refused with, if nothing was touched: because damage
    is where nothing may be dropped, or because the directory is not ours.
    ``deleted_backups`` are
    saved copies of earlier cuts that were deleted to make room for new ones.
    """

    was_clean: bool
    truncated: tuple[TruncatedTail, ...] = ()
    rebuilt: tuple[str, ...] = ()
    deleted_backups: tuple[str, ...] = ()
    anomalies: tuple[Anomaly, ...] = ()
    read_only: LogReadOnlyError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredLog:
    """A log that can go on: what is on disk is exactly this, and synced.

    If ``report.read_only`` is set it cannot: then nothing was written, and what is here ends
    before the damage. ``recovery_point`` is the offset below which everything was known to be
    synced before this opening looked.
    """

    segments: tuple[SegmentMetadata, ...]
    log_start_offset: int
    end_offset: int
    epochs: EpochCache
    producer_state: ProducerStateManager
    recovery_point: int
    was_clean: bool
    report: RecoveryReport
