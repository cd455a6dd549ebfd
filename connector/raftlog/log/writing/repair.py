"""Give up the end of a damaged log so that it can be written again: ``raftlog repair --cut-at``.

Rules of this file:

1. Only on somebody's word: what is cut here was acknowledged once. All of it is saved aside, and
   what was lost is said in offsets.
2. What says that the log is longer (``published``, the clean marker, the recovery point, snapshots)
   goes first, then segments, the newest first. So a repair that was cut short leaves a log that is
   damaged still, and is repaired again.
3. The cut is before the first batch that does not end below the offset. It must lie where the log
   is sound: behind damage there is nothing to cut at.
"""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.errors import LogReadOnlyError, OptionError
from raftlog.log.epoch_cache import EpochCache
from raftlog.log.names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    PRODUCER_SNAPSHOT_SUFFIX,
    RAFTLOG_PROPERTIES_NAME,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    checkpoint_name,
    offset_name,
)
from raftlog.log.published import PUBLISHED_NAME, SYNCED_NAME
from raftlog.storage.protocol import WritableStorage

from .clean_marker import CLEAN_MARKER_NAME
from .cutting import cut, forget_old_copies, next_ordinal, saved_name
from .log_directory import LogDirectory
from .marks import Marks, read_marks
from .properties import LogConfig
from .recovered import CutTail, RecoveredLog
from .recovery import recover
from .segment_scan import Place, ScanRules, SegmentEnd, scan_segment

_INDEX_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """What a repair did. ``recovered`` is the log as it opens now: it may still be read-only, if
    there is more damage below.

    ``first_lost_offset`` up to, not including, ``end_offset_before`` is what was given up, as far
    as the length of the log is known. ``set_aside`` are snapshots after the cut,
    ``forgotten`` saved copies of earlier cuts that were deleted to make room.
    """

    first_lost_offset: int
    end_offset_before: int
    cut: tuple[CutTail, ...]
    set_aside: tuple[str, ...]
    forgotten: tuple[str, ...]
    recovered: RecoveredLog


def cut_log_at(
    storage: WritableStorage, directory: str, *, offset: int, config: LogConfig
) -> Repaired:
    """Cut a log of ours before the batch that holds ``offset``, or at its end, and open it.

    To be called under the log's lock, with no other process writing. Raises ``OptionError`` for an
    offset that the log does not hold soundly, ``LogReadOnlyError`` for a directory that is not
    ours, and what ``recover`` raises.
    """
    first_copy = next_ordinal(storage.list_names(directory))
    marks = read_marks(storage, directory)
    if not marks.is_ours:
        raise LogReadOnlyError(
            path=directory,
            reason=f"it has no {RAFTLOG_PROPERTIES_NAME}, so it is Kafka's and not ours to write",
            remedy="let its node recover it",
        )
    base, place = _place_of_cut(storage, directory, marks, offset)
    repair = _Repair(LogDirectory(storage, directory), marks)
    repair.forget_later_marks(place.next_offset)
    repair.cut_segments(base, place)
    repair.forget_later_state(place.next_offset)
    recovered = recover(storage, directory, config=config)
    forgotten = forget_old_copies(storage, directory, before=first_copy)
    return Repaired(
        first_lost_offset=place.next_offset,
        end_offset_before=max(repair.end_offset_before, place.next_offset),
        cut=(*repair.cut, *recovered.report.cut),
        set_aside=tuple(repair.set_aside),
        forgotten=(*recovered.report.forgotten, *forgotten),
        recovered=recovered,
    )


def _place_of_cut(
    storage: WritableStorage, directory: str, marks: Marks, offset: int
) -> tuple[int, Place]:
    """The segment to cut and where in it."""
    bases = [base for base in marks.listing.segments if base <= offset]
    first = max(marks.log_start_offset, min(marks.listing.segments, default=0))
    if not bases or offset < first:
        raise OptionError(option="cut-at", reason=f"the log begins at offset {first}")
    base = bases[-1]
    with storage.open_file(storage.join(directory, offset_name(base, LOG_SUFFIX))) as file:
        start = Place(position=0, next_offset=base)
        scan = scan_segment(file, start, ScanRules(epochs=marks.epochs))
        place = start
        while True:
            try:
                piece = next(scan)
            except StopIteration as stop:
                end: SegmentEnd = stop.value
                break
            batches = piece.batches
            below = int((batches.last_offset < offset).sum())
            if below < len(batches):
                at = int(batches.position[below])
                return base, Place(position=at, next_offset=int(batches.base_offset[below]))
            place = Place(position=piece.behind, next_offset=int(batches.last_offset[-1]) + 1)
    if place.next_offset < offset:
        raise OptionError(
            option="cut-at",
            reason=f"the log is sound only up to offset {place.next_offset}: {end.sentence}; "
            "cut there, or lower",
        )
    return base, place


class _Repair:
    """The steps, each of them durable before the next."""

    def __init__(self, directory: LogDirectory, marks: Marks) -> None:
        self.cut: list[CutTail] = []
        self.set_aside: list[str] = []
        self._directory = directory
        self._marks = marks
        published = 0 if marks.published is None else marks.published.end_offset
        clean = 0 if marks.clean is None else marks.clean.end_offset
        self.end_offset_before = max(
            marks.recovery_point,
            published,
            clean,
            max(marks.listing.segments, default=0),
            max((one.end_offset for one in marks.listing.snapshots), default=0),
        )

    def forget_later_marks(self, end_offset: int) -> None:
        """Take back what says that the log is longer."""
        directory = self._directory
        directory.unlink([CLEAN_MARKER_NAME, PUBLISHED_NAME, SYNCED_NAME])
        names = set(directory.storage.list_names(directory.path))
        for snapshot_id in self._marks.listing.snapshots:
            if snapshot_id.end_offset > end_offset:
                name = checkpoint_name(snapshot_id)
                path = directory.file(saved_name(name, 0, names))
                directory.storage.rename(directory.file(name), path)
                self.set_aside.append(path)
        directory.sync()
        if self._marks.recovery_point > end_offset:
            directory.write_recovery_point(end_offset)

    def cut_segments(self, base: int, place: Place) -> None:
        """Set whole segments aside, the newest first, and cut the one that the cut lies in."""
        for later in reversed(self._later(base)):
            self._set_segment_aside(later)
        directory = self._directory
        path = directory.file(offset_name(base, LOG_SUFFIX))
        with directory.storage.open_file(path) as file:
            byte_count = file.byte_count() - place.position
        if byte_count > 0:
            saved_as = cut(directory.storage, path, place.position)
            self._note(path, place.position, byte_count, place.next_offset, saved_as)

    def forget_later_state(self, end_offset: int) -> None:
        """Forget epochs and producers behind the cut."""
        directory = self._directory
        gone = [at for at in self._marks.listing.producer_snapshots if at > end_offset]
        directory.unlink(offset_name(at, PRODUCER_SNAPSHOT_SUFFIX) for at in gone)
        directory.sync()
        epochs = (self._marks.epochs or EpochCache()).without_from(end_offset)
        if epochs.entries and epochs != self._marks.epochs:
            directory.write_epochs(epochs)

    def _later(self, base: int) -> tuple[int, ...]:
        return tuple(other for other in self._marks.listing.segments if other > base)

    def _set_segment_aside(self, base: int) -> None:
        directory = self._directory
        name = offset_name(base, LOG_SUFFIX)
        with directory.storage.open_file(directory.file(name)) as file:
            byte_count = file.byte_count()
        names = set(directory.storage.list_names(directory.path))
        saved_as = directory.file(saved_name(name, 0, names))
        directory.storage.rename(directory.file(name), saved_as)
        directory.unlink(offset_name(base, suffix) for suffix in _INDEX_SUFFIXES)
        directory.sync()
        self._note(directory.file(name), 0, byte_count, base, saved_as)

    def _note(
        self, path: str, position: int, byte_count: int, offset: int, saved_as: str | None
    ) -> None:
        self.cut.append(
            CutTail(
                path=path,
                position=position,
                byte_count=byte_count,
                first_offset=offset,
                reason="the log was to be cut here",
                saved_as=saved_as,
            )
        )
