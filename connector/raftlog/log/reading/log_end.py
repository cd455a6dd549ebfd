"""Cached state of one copy of a log: its end, leader epochs, transactions and voters.

Nothing is read before it is requested. By rising cost: the directory listing, the end of the log
(one read in the last segment), and a replay (forward from a snapshot; only new batches afterwards).

Invariants:

1. The main replay follows the end of the log. A second one, the backlog, serves reads below the
   main replay's start.
2. If the node truncated records that a replay has read, the replay starts again.
3. An embedded log ends at the offset that its writers published in this boot or, without one, after
   the batches that follow its recovery point. Bytes after that belong to a running or crashed
   writer and are not read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from raftlog.errors import (
    CorruptFileError,
    CorruptSnapshotError,
    DataLossError,
    SegmentDeletedError,
)
from raftlog.log.format.directory import (
    EPOCH_CHECKPOINT_NAME,
    LOG_START_CHECKPOINT_NAME,
    RECOVERY_POINT_CHECKPOINT_NAME,
    Listing,
    parse_single_offset,
    read_published,
)
from raftlog.log.format.epoch_cache import EpochCache, parse_epoch_checkpoint
from raftlog.log.segment import find_header
from raftlog.records.batch_columns import BatchColumns, Bools
from raftlog.storage.protocol import ReadableFile, WritableStorage

from .aborted_transactions import VoterSet, replica_keys
from .chunks import HeaderChunk, HeaderDecoder, LogTail, read_chunks
from .files import LogFiles, OffsetIndex
from .reads import Isolation, LogKind
from .replay import LogReplay, LogTruncated, log_start, metadata_replay, partition_replay
from .snapshot import SnapshotReader
from .transactions import TransactionSpan
from .valid_batch import find_valid_batch

# --- Leader epochs of a log's batches, found with few reads ---------------------------------------
# ``leader-epoch-checkpoint`` may be missing, older than the log, or truncated at a log start offset
# below which segments are still on disk, so the batches are read. Epochs never decrease from batch
# to batch: if two batches have the same epoch, all batches between them have it. Hence a binary
# search over the offset index, with a scan between two entries:
#
#   epoch     3     3     3     4     4     7
#   batches   |=====|=====|==*==|=====|==*==|      * first batch of another epoch
#   entries   ^     ^     ^     ^     ^


def epochs_below(files: LogFiles, end_offset: int, end_epoch: int | None) -> EpochCache:
    """Return the epochs of all batches on disk below ``end_offset``.

    ``end_epoch`` is the epoch of the batch at ``end_offset``, if any. A segment with damage at a
    position that is read adds no entry.
    """
    segments = [base for base in files.listing.segments if base < end_offset]
    found: list[tuple[int, int]] = []
    for ordinal, base_offset in enumerate(segments):
        following = segments[ordinal + 1] if ordinal + 1 < len(segments) else None
        with files.open(files.segment_path(base_offset)) as file:
            first = find_header(file, 0)
            if first is None:
                continue
            found.append((first.leader_epoch, first.base_offset))
            last_epoch = end_epoch
            if following is not None:
                with files.open(files.segment_path(following)) as next_file:
                    head = find_header(next_file, 0)
                last_epoch = None if head is None else head.leader_epoch
            if last_epoch != first.leader_epoch:
                found += _changes(files, file, base_offset, first.leader_epoch, end_offset)
    return EpochCache.of(found)


def epoch_mismatches(batches: BatchColumns, epochs: EpochCache) -> tuple[Bools, Bools]:
    """Return which batches have another epoch than ``epochs``, and for which batches that is known.

    A batch's epoch is outside its CRC; ``epochs`` is a trusted checkpoint.
    """
    starts = np.array([entry.start_offset for entry in epochs.entries], np.int64)
    numbers = np.array([entry.epoch for entry in epochs.entries], np.int64)
    if not len(starts):
        none = np.zeros(len(batches), np.bool_)
        return none, none
    first = np.searchsorted(starts, batches.base_offset, side="right") - 1
    last = np.searchsorted(starts, batches.last_offset, side="right") - 1
    known: Bools = first >= 0
    wrong: Bools = known & ((numbers[first] != batches.leader_epoch) | (first != last))
    return wrong, known


def _changes(
    files: LogFiles, file: ReadableFile, base_offset: int, epoch: int, end_offset: int
) -> list[tuple[int, int]]:
    """Return the epochs that start inside a segment, by binary search in its offset index."""
    index = files.offset_index(base_offset)
    found: list[tuple[int, int]] = []
    position = 0
    while True:
        position = _last_of_epoch(files, file, index, position, epoch)
        change = _next_change(file, position, epoch, end_offset)
        if change is None:
            return found
        epoch, offset, position = change
        found.append((epoch, offset))


def _last_of_epoch(
    files: LogFiles, file: ReadableFile, index: OffsetIndex, position: int, epoch: int
) -> int:
    """Return the position of the last batch with this epoch that a valid index entry has."""
    low, high = int(np.searchsorted(index.positions, position, side="right")), len(index)
    while low < high:
        middle = (low + high) // 2
        at = int(index.positions[middle])
        head = find_header(file, at) if files.is_entry_valid(file, index, middle) else None
        if head is not None and head.leader_epoch == epoch:
            position, low = at, middle + 1
        else:
            high = middle
    return position


def _next_change(
    file: ReadableFile, position: int, epoch: int, end_offset: int
) -> tuple[int, int, int] | None:
    """Return epoch, base offset and position of the next batch with another epoch."""
    for _, chunk in read_chunks(
        file, position, HeaderDecoder(), start_offset=None, end_offset=end_offset
    ):
        other = np.flatnonzero(chunk.batches.leader_epoch != epoch)
        if len(other):
            at = other[0]
            return (
                int(chunk.batches.leader_epoch[at]),
                int(chunk.batches.base_offset[at]),
                int(chunk.batches.position[at]),
            )
    return None


# --- Search for the end of a log, from the last valid entry of its last segment's offset index ----
# Example: a segment with base offset 40 and batches of five records.
#
#     offset      40   45   50    55   60   65
#     segment     | b0 | b1 | b2  | b3 | b4 | torn |     end_offset 65, tail: the torn bytes
#     index                        ^ last valid entry: b3, reading starts there
#
#     segment     | b0 | b1 | bad | b3 | b4 | torn |     end_offset 65: a read to it finds "bad"
#     segment     | b0 | b1 | b2  | b3 | bad | b5 |      end_offset 70, likewise
#     embedded    | b0 | b1 | b2  | b3 | bad | b5 |      end_offset 60 with a recovery point <= 60
#
# Invariants:
#
# 1. The end is after the last valid batch of the last segment, also if there is damage before it: a
#    read to an end before the damage would not report it.
# 2. A last batch with a wrong CRC is not part of the log (``LogTail.error``).
# 3. In an embedded log damage above the recovery point is a torn tail, with or without valid
#    batches after it: the next writer truncates there, so the log ends there for readers too.

_ZEROS_BYTES: Final = 4096
_ENTRIES_TRIED: Final = 8
"""After so many wrong index entries in a row the segment is read from its start."""


@dataclass(frozen=True, slots=True)
class LogEnd:
    """End offset of a log (exclusive), epoch of its last batch, and the bytes after it.

    ``epoch`` is None if no batch was read in the last segment.
    """

    end_offset: int
    epoch: int | None
    tail: LogTail


def find_log_end(files: LogFiles, *, contiguous: bool) -> LogEnd:
    """Return the end of a log that has a segment. Raises ``SegmentDeletedError``."""
    base_offset = files.listing.segments[-1]
    with files.open(files.segment_path(base_offset)) as file:
        end_offset, epoch = base_offset, None
        position = _last_known_position(files, file, base_offset)
        follows = position == 0
        while True:
            error = None
            for batch_end, chunk in _chunks_from(file, position):
                if len(chunk.batches):
                    is_chained = contiguous and follows
                    end_offset = _end_after(chunk.batches, end_offset, is_chained=is_chained)
                    epoch = int(chunk.batches.leader_epoch[-1])
                    follows = True
                position, error = batch_end, chunk.error
            valid = _find_valid_after(file, position, end_offset)
            if valid is None:
                tail = LogTail(file.path, position, max(file.byte_count() - position, 0), error)
                return LogEnd(end_offset, epoch, tail)
            position, follows = valid, False


def find_durable_log_end(files: LogFiles, recovery_point: int) -> LogEnd | None:
    """Return the end of an embedded log whose writers have published none in this boot.

    None if the log ends below its recovery point: it is damaged, not torn. Raises
    ``SegmentDeletedError``.
    """
    base_offset = files.listing.segments[-1]
    with files.open(files.segment_path(base_offset)) as file:
        end_position = files.find(file, base_offset, max(recovery_point, base_offset))
        end_offset = base_offset if end_position == 0 else None
        epoch, error = None, None
        for batch_end, chunk in _chunks_from(file, end_position):
            batches = chunk.batches
            if end_offset is None and len(batches):
                end_offset = int(batches.base_offset[0])
            count = 0 if end_offset is None else _chained_count(batches, end_offset)
            if count:
                end_offset = int(batches.next_offset[count - 1])
                epoch = int(batches.leader_epoch[count - 1])
            if count < len(batches):
                end_position = int(batches.position[count])
                break
            end_position, error = batch_end, chunk.error
        if end_offset is None or end_offset < recovery_point:
            return None
        left = max(file.byte_count() - end_position, 0)
        return LogEnd(end_offset, epoch, LogTail(file.path, end_position, left, error))


def _chained_count(batches: BatchColumns, next_offset: int) -> int:
    """Return how many batches follow ``next_offset`` in order, with no falling epoch."""
    falls = np.flatnonzero(np.diff(batches.leader_epoch) < 0)
    count = batches.in_order_count(next_offset)
    return min(count, int(falls[0]) + 1) if len(falls) else count


def _end_after(batches: BatchColumns, end_offset: int, *, is_chained: bool) -> int:
    """Return the end offset after ``batches``, given the end offset before them.

    With ``is_chained`` the batches must be consecutive. A base offset is outside the CRC: a batch
    with a wrong one counts with its number of offsets, and a read up to the end reports it.
    """
    if is_chained:
        return end_offset + int((batches.last_offset - batches.base_offset + 1).sum())
    return max(end_offset, int(batches.last_offset[-1]) + 1)


def _chunks_from(file: ReadableFile, position: int) -> Iterator[tuple[int, HeaderChunk]]:
    decoder = HeaderDecoder(check_all=True)
    return read_chunks(file, position, decoder, start_offset=None, end_offset=None)


def _last_known_position(files: LogFiles, file: ReadableFile, base_offset: int) -> int:
    index = files.offset_index(base_offset)
    for ordinal in range(len(index) - 1, max(len(index) - _ENTRIES_TRIED, 0) - 1, -1):
        if files.is_entry_valid(file, index, ordinal):
            return int(index.positions[ordinal])
    return 0


def _find_valid_after(file: ReadableFile, position: int, next_offset: int) -> int | None:
    if not any(file.read_at(position, _ZEROS_BYTES)):
        return None
    return find_valid_batch(file, position, next_offset)


# --- Cached state of one copy ---------------------------------------------------------------------

_RESTARTS_MAX: Final = 5
"""Restarts of a replay in one call, after segments were truncated or deleted."""
_SETTLE_STEP: Final = 65_536
"""Offsets per step of the search for the end of a transaction."""
_NO_EPOCHS: Final = EpochCache()


class LogStateCache:
    """Cached state of one copy of a log. Not thread-safe."""

    def __init__(self, files: LogFiles, kind: LogKind) -> None:
        self.files = files
        self._kind = kind
        self._log_end: LogEnd | None = None
        self._replay: LogReplay | None = None
        self._backlog: LogReplay | None = None
        self._is_replayed = False
        self._leader_epochs: tuple[EpochCache, int, EpochCache] | None = None
        self._start: tuple[Listing, int] | None = None

    def refresh(self) -> None:
        """List the directory again; batches that were read are kept."""
        self.files.refresh()
        self._log_end = None
        self._is_replayed = False

    @property
    def epoch_checkpoint(self) -> EpochCache | None:
        """``leader-epoch-checkpoint``, not validated against the batches; None without the file.

        Raises ``CorruptFileError``.
        """
        return self.files.parse_small(EPOCH_CHECKPOINT_NAME, parse_epoch_checkpoint)

    @property
    def epochs(self) -> EpochCache:
        """Leader epochs of the batches on disk, and earlier ones of the checkpoint."""
        replay = self._replay if self._is_replayed else None
        if replay is None or replay.damage is not None:
            known, below, first = _NO_EPOCHS, self.end_offset, None
        else:
            known, below = replay.epochs, replay.start_offset
            first = known.entries[0].epoch if known.entries else None
        if (
            self._leader_epochs is None
            or self._leader_epochs[0] is not known
            or self._leader_epochs[1] != below
        ):
            cache = self._with_checkpointed_epochs(epochs_below(self.files, below, first))
            cache = cache.assign_all((one.epoch, one.start_offset) for one in known.entries)
            self._leader_epochs = known, below, cache
        return self._leader_epochs[2]

    def log_end(self) -> LogEnd:
        """Return the end of the log.

        Raises ``CorruptBatchError`` if the log is one segment without a valid batch.
        """
        if self._log_end is None:
            self._log_end = self._find_log_end()
        return self._log_end

    def replay(self) -> LogReplay | None:
        """Return the replay up to the end of the log; None for a log without segments."""
        if not self._is_replayed:
            self._replay = self._follow()
            self._is_replayed = True
        return self._replay

    @property
    def start_offset(self) -> int:
        """Start offset of the log; in an embedded log, the checkpointed one if that is greater."""
        listing = self.files.listing
        if self._start is None or self._start[0] is not listing:
            start_offset = log_start(self.files)
            if listing.is_embedded:
                start_offset = max(
                    start_offset, self._checkpointed_offset(LOG_START_CHECKPOINT_NAME)
                )
            self._start = listing, start_offset
        return self._start[1]

    @property
    def end_offset(self) -> int:
        """End offset of the log (exclusive)."""
        return max(self.log_end().end_offset, self.start_offset)

    def last_stable_offset(self, end_offset: int) -> int:
        """Return the last stable offset if the log ended at ``end_offset``, a batch boundary."""
        replay = self.replay()
        start_offset = log_start(self.files)
        if replay is None or end_offset <= start_offset:
            return end_offset
        if end_offset < replay.transactions.complete_from:
            replay = self._begin(before_offset=end_offset)
            replay.follow(end_offset)
        # A transaction that never ended may have begun in a deleted segment.
        return max(replay.transactions.last_stable_offset(end_offset), start_offset)

    def valid_end(self, start_offset: int, end_offset: int) -> int:
        """Return the offset of the first known damage in the range, or ``end_offset``.

        Raises the damage if it is at ``start_offset``.
        """
        replay = self.replay()
        if replay is None or replay.damage is None:
            return end_offset
        if not replay.start_offset <= start_offset <= replay.next_offset < end_offset:
            return end_offset
        if replay.next_offset == start_offset:
            raise replay.damage
        return replay.next_offset

    def spans(
        self, start_offset: int, end_offset: int, isolation: Isolation
    ) -> tuple[TransactionSpan, ...]:
        """Return the transactions that touch the range; in a partition, the uncommitted ones.

        With READ_COMMITTED raises damage and contradictory markers in the range.
        """
        is_metadata = self._kind is LogKind.METADATA
        if not is_metadata and isolation is Isolation.READ_UNCOMMITTED:
            return ()
        replay = self.covering(start_offset, end_offset)
        if replay is None:
            return ()
        if isolation is Isolation.READ_COMMITTED:
            if replay.damage is not None and replay.next_offset < end_offset:
                raise replay.damage  # the range's transactions are unknown after it
            problem = replay.transactions.first_problem(start_offset, end_offset)
            if problem is not None:
                raise problem
        return replay.transactions.spans(start_offset, end_offset, with_committed=is_metadata)

    def covering(self, start_offset: int, end_offset: int) -> LogReplay | None:
        """Return a replay with every transaction that touches the range, up to the first damage.

        None for a log without segments.
        """
        replay = self.replay()
        if replay is None or _covers(replay, start_offset):
            return replay
        for _ in range(_RESTARTS_MAX):
            backlog = self._backlog
            if backlog is None or not _covers(backlog, start_offset):
                backlog = self._backlog = self._begin(before_offset=start_offset)
                backlog.transactions.retain_all(with_committed=self._kind is LogKind.METADATA)
            backlog.transactions.drop_ended_before(start_offset)
            try:
                backlog.follow(end_offset)
                settled = end_offset
                while settled < self.end_offset and backlog.transactions.opened_before(end_offset):
                    settled = min(settled + _SETTLE_STEP, self.end_offset)
                    backlog.follow(settled)
            except (LogTruncated, DataLossError, SegmentDeletedError):
                self._backlog = None
                self.files.refresh()
                continue
            return backlog
        raise SegmentDeletedError(path=self.files.path)

    # --- private ----------------------------------------------------------------------------------

    def _find_log_end(self) -> LogEnd:
        published = self._published()
        if published is None:
            found = self._find_end_in_segments()
            # A writer publishes before its first append: an end published meanwhile is the bound.
            published = self._published()
            if published is None:
                return found
        return published

    def _published(self) -> LogEnd | None:
        """Return the end that an embedded log's writers have published since the last boot."""
        storage = self.files.storage
        if not self.files.listing.is_embedded or not isinstance(storage, WritableStorage):
            return None
        published = read_published(storage, self.files.directory, storage.boot_id())
        if published is None:
            return None
        path = self.files.segment_path(published.segment_base_offset)
        tail = LogTail(path, published.file_position, 0)
        return LogEnd(published.end_offset, published.epoch, tail)

    def _find_end_in_segments(self) -> LogEnd:
        for _ in range(_RESTARTS_MAX):
            if not self.files.listing.segments:
                start_offset = log_start(self.files)
                return LogEnd(start_offset, None, LogTail(self.files.path, 0, 0))
            try:
                log_end = self._durable_log_end() or find_log_end(
                    self.files, contiguous=self._kind is LogKind.METADATA
                )
            except SegmentDeletedError:
                self.files.refresh()
                continue
            is_alone = len(self.files.listing.segments) == 1 and not self.files.listing.snapshots
            if log_end.tail.error is not None and log_end.epoch is None and is_alone:
                raise log_end.tail.error
            return log_end
        raise SegmentDeletedError(path=self.files.path)

    def _durable_log_end(self) -> LogEnd | None:
        """Return the end of an embedded log that no writer has opened since the last boot."""
        if not self.files.listing.is_embedded:
            return None
        return find_durable_log_end(
            self.files, self._checkpointed_offset(RECOVERY_POINT_CHECKPOINT_NAME)
        )

    def _checkpointed_offset(self, name: str) -> int:
        """Return the offset in an embedded log's checkpoint file; 0 if missing or damaged."""
        with contextlib.suppress(CorruptFileError):
            return self.files.parse_small(name, parse_single_offset) or 0
        return 0

    def _follow(self) -> LogReplay | None:
        is_embedded = self.files.listing.is_embedded
        for _ in range(_RESTARTS_MAX):
            if not self.files.listing.segments:
                return None
            try:
                if self._replay is None:
                    self.log_end()  # raises if the file is not a log
                    self._replay = self._begin()
                replay = self._replay
                replay.follow(self.log_end().end_offset if is_embedded else None)
            except (LogTruncated, DataLossError, SegmentDeletedError):
                self._replay = self._backlog = self._leader_epochs = None
                self.files.refresh()
                continue
            if replay.damage is None and replay.tail is not None:
                latest = replay.epochs.latest_epoch
                self._log_end = LogEnd(replay.next_offset, latest, replay.tail)
            return replay
        raise SegmentDeletedError(path=self.files.path)

    def _begin(self, before_offset: int | None = None) -> LogReplay:
        if self._kind is LogKind.PARTITION:
            return partition_replay(self.files, before_offset)
        replay = metadata_replay(self.files, before_offset)
        replay.voters = self._snapshot_voters(replay.start_offset)
        return replay

    def _snapshot_voters(self, end_offset: int) -> VoterSet | None:
        for snapshot_id in self.files.listing.snapshots:
            if snapshot_id.end_offset == end_offset:
                try:
                    voters = SnapshotReader(self.files, snapshot_id).voters
                except (CorruptSnapshotError, SegmentDeletedError):
                    return None
                return None if voters is None else VoterSet(end_offset - 1, replica_keys(voters))
        return None

    def _with_checkpointed_epochs(self, cache: EpochCache) -> EpochCache:
        """Add epochs that ended before the first batch on disk, from the checkpoint."""
        try:
            checkpoint = self.epoch_checkpoint
        except CorruptFileError:
            return cache
        if checkpoint is None:
            return cache
        if not cache.entries:
            return checkpoint
        first = cache.entries[0]
        older = []
        for entry in checkpoint.entries:
            if entry.start_offset >= first.start_offset or entry.epoch > first.epoch:
                break
            older.append(entry)
        rest = cache.entries[1:] if older and older[-1].epoch == first.epoch else cache.entries
        return EpochCache((*older, *rest))


def _covers(replay: LogReplay, offset: int) -> bool:
    """Return whether a replay has every transaction that ends at or after ``offset``."""
    is_whole = replay.damage is None or replay.next_offset > offset
    return is_whole and replay.transactions.complete_from <= offset
