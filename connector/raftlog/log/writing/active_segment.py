"""The active segment: a ``.log`` and its indexes, open for writing.

Invariants:

1. A write that finds the disk full leaves the segment unchanged: the bytes that were written are
   truncated. If the truncation fails too, the log fails.
2. Index files are written with the log, but synced only by ``seal``. Bytes in them after the last
   entry that this writer knows are overwritten.
3. Only ``PendingSync`` and ``seal`` sync.

Kafka: ``LogSegment``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self, TypeAlias

from raftlog.errors import CorruptBatchError, DiskFullError, LogNotFoundError
from raftlog.fast_dataclass import fast_init
from raftlog.limits import INT32_MAX, MIB
from raftlog.log.format.directory import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    offset_name,
)
from raftlog.log.reading.transactions import BatchMetadata
from raftlog.log.segment import (
    NO_TIMESTAMP_MS,
    OFFSET_ENTRY,
    TIME_ENTRY,
    AbortedTransaction,
    Segment,
    encode_aborted,
    header_at,
    iter_headers,
)
from raftlog.storage.protocol import WritableFile, WritableStorage
from raftlog.types import Position

from .properties import LogConfig

# --- Entries of a segment's offset and time index, batch by batch, by Kafka's rule ----------------
# The same batches at the same positions produce the same bytes, whether the segment's writer, a
# recovery, or a second process that reads what the first one appended computes them.
#
# An entry is due for the first batch after more than ``index.interval.bytes`` since the last entry,
# so no entry points to position 0. A time entry is added together with each offset entry. Another
# one is added when the segment is closed or sealed, if the max timestamp has risen since:
#
#     interval 4096   position     0    2000   4000   6000   8000  10000  12000
#                     bytes since  0    2000   4000   6000   2000   4000   6000
#                     entry                             *                    *
#
# Kafka: ``LogSegment.append`` and ``recover``, ``OffsetIndex``, ``TimeIndex.maybeAppend``.

IndexerMark: TypeAlias = tuple[int, int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class NewEntries:
    """Entries to append to the two index files, and the positions at which to write them."""

    offset_position: int
    offset_entries: bytes
    time_position: int
    time_entries: bytes


class SegmentIndexer:
    """The index entries of one segment, computed batch by batch.

    ``max_timestamp_ms`` is the segment's greatest timestamp so far, and ``max_timestamp_offset``
    the last offset of the first batch that has it (Kafka: ``maxTimestampAndOffsetSoFar``).
    """

    __slots__ = (
        "_base_offset",
        "_bytes_since_entry",
        "_interval_bytes",
        "_last_time_ms",
        "_new_offsets",
        "_new_times",
        "max_timestamp_ms",
        "max_timestamp_offset",
        "offset_index_bytes",
        "time_index_bytes",
    )

    def __init__(self, base_offset: int, *, interval_bytes: int) -> None:
        self._base_offset = base_offset
        self._interval_bytes = interval_bytes
        self._bytes_since_entry = 0
        self._last_time_ms = NO_TIMESTAMP_MS
        self._new_offsets = bytearray()
        self._new_times = bytearray()
        self.max_timestamp_ms = NO_TIMESTAMP_MS
        self.max_timestamp_offset = base_offset
        self.offset_index_bytes = 0
        self.time_index_bytes = 0

    @classmethod
    def resumed(
        cls,
        base_offset: int,
        *,
        interval_bytes: int,
        offset_index_bytes: int,
        time_index_bytes: int,
        last_time_entry: bytes,
    ) -> SegmentIndexer:
        """Continue after the entries of two valid index files.

        ``last_time_entry`` is b"" if missing. Next, add the batch of the last offset entry with
        ``is_indexed`` (without an entry, the batch at position 0). Then add the batches after it,
        none of which has an entry.
        """
        assert offset_index_bytes % OFFSET_ENTRY.size == time_index_bytes % TIME_ENTRY.size == 0
        indexer = cls(base_offset, interval_bytes=interval_bytes)
        if last_time_entry:
            time_ms, delta = TIME_ENTRY.unpack(last_time_entry)
            indexer._last_time_ms = indexer.max_timestamp_ms = time_ms
            indexer.max_timestamp_offset = base_offset + delta
        indexer.offset_index_bytes = offset_index_bytes
        indexer.time_index_bytes = time_index_bytes
        return indexer

    def add_batch(
        self,
        *,
        position: int,
        byte_count: int,
        last_offset: int,
        max_timestamp_ms: int,
        is_indexed: bool = False,
    ) -> None:
        """Add a batch that was, or is about to be, written at ``position`` of the segment.

        ``is_indexed``: the files already have its entries.
        """
        if max_timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = max_timestamp_ms
            self.max_timestamp_offset = last_offset
        if self._bytes_since_entry > self._interval_bytes and not is_indexed:
            self._new_offsets += OFFSET_ENTRY.pack(last_offset - self._base_offset, position)
            self.add_time_entry()
            self._bytes_since_entry = 0
        self._bytes_since_entry += byte_count

    def add_time_entry(self) -> None:
        """Add the time entry that is due at close or seal if the max timestamp has risen."""
        if self.max_timestamp_ms > self._last_time_ms:
            delta = self.max_timestamp_offset - self._base_offset
            self._new_times += TIME_ENTRY.pack(self.max_timestamp_ms, delta)
            self._last_time_ms = self.max_timestamp_ms

    def is_full(self, index_bytes_max: int) -> bool:
        """Return whether an index has no room for another entry (``segment.index.bytes``)."""
        offset_bytes = self.offset_index_bytes + len(self._new_offsets)
        time_bytes = self.time_index_bytes + len(self._new_times)
        return (
            offset_bytes + OFFSET_ENTRY.size > index_bytes_max
            or time_bytes + 2 * TIME_ENTRY.size > index_bytes_max  # one more is due at close
        )

    @property
    def has_new(self) -> bool:
        """Whether there are entries to write."""
        return bool(self._new_offsets or self._new_times)

    def mark(self) -> IndexerMark:
        """Return the state for ``restore``. Call ``take`` first if there are new entries."""
        assert not self.has_new, "take the new entries first"
        return (
            self._bytes_since_entry,
            self._last_time_ms,
            self.max_timestamp_ms,
            self.max_timestamp_offset,
            self.offset_index_bytes,
            self.time_index_bytes,
        )

    def restore(self, mark: IndexerMark) -> None:
        """Undo the batches that were added since ``mark``, because their write failed."""
        self._new_offsets.clear()
        self._new_times.clear()
        (
            self._bytes_since_entry,
            self._last_time_ms,
            self.max_timestamp_ms,
            self.max_timestamp_offset,
            self.offset_index_bytes,
            self.time_index_bytes,
        ) = mark

    def take(self) -> NewEntries:
        """Return the new entries to write, and count them as written from now on."""
        entries = NewEntries(
            self.offset_index_bytes,
            bytes(self._new_offsets),
            self.time_index_bytes,
            bytes(self._new_times),
        )
        self.offset_index_bytes += len(self._new_offsets)
        self.time_index_bytes += len(self._new_times)
        self._new_offsets.clear()
        self._new_times.clear()
        return entries


# --- The segment that is appended to --------------------------------------------------------------

WRITE_BYTES_MAX: Final = 1 * MIB
"""Bound on the batches of one write, which are copied into one buffer. A larger batch is written
alone."""
_SUFFIXES: Final = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX)


class ActiveSegment:
    """The last segment of a log. Not shared between threads, but ``sync`` may run in another one.

    ``byte_count`` is the position of the next batch. Bytes after it in ``file``, the ``.log``, are
    ignored; another process may have appended them.
    """

    def __init__(
        self,
        storage: WritableStorage,
        directory: str,
        base_offset: int,
        files: tuple[WritableFile, WritableFile, WritableFile],
        config: LogConfig,
    ) -> None:
        self.base_offset = base_offset
        self.byte_count = Position(0)
        self.first_timestamp_ms = NO_TIMESTAMP_MS
        self._storage = storage
        self._directory = directory
        self.file, self._offset_index, self._time_index = files
        self._txn_index: WritableFile | None = None
        self._sync_count = 0
        self._is_released = False
        self._config = config
        self._indexer = SegmentIndexer(base_offset, interval_bytes=config.index_interval_bytes)
        self._staged: list[bytes | memoryview] = []
        self._staged_byte_count = 0
        self._mark = self._indexer.mark()
        """State of the indexer before the staged batches."""

    # --- create and open --------------------------------------------------------------------------

    @classmethod
    def create(
        cls, storage: WritableStorage, directory: str, base_offset: int, config: LogConfig
    ) -> Self:
        """Create the files of an empty segment. Their names are not durable yet.

        Files that exist already, because a crash interrupted a roll, are truncated and reused.
        """
        with contextlib.ExitStack() as opened:  # closes the files if one cannot be opened
            files = []
            for suffix in _SUFFIXES:
                path = storage.join(directory, offset_name(base_offset, suffix))
                files.append(opened.enter_context(open_or_create(storage, path)))
            for file in files:
                if file.byte_count():
                    file.truncate(0)
            opened.pop_all()
        return cls(storage, directory, base_offset, (files[0], files[1], files[2]), config)

    @classmethod
    def open(
        cls,
        storage: WritableStorage,
        directory: str,
        base_offset: int,
        byte_count: int,
        config: LogConfig,
    ) -> Self:
        """Open a segment to append after its first ``byte_count`` bytes, which are valid batches.

        The last index entries and the batch headers after them are read. Indexes that do not match
        the log are rebuilt. Raises ``CorruptBatchError`` for an invalid header.
        """
        paths = [storage.join(directory, offset_name(base_offset, suffix)) for suffix in _SUFFIXES]
        with contextlib.ExitStack() as opened:  # closes the files on an error
            log = opened.enter_context(storage.open_for_writing(paths[0]))
            offset_index = opened.enter_context(open_or_create(storage, paths[1]))
            time_index = opened.enter_context(open_or_create(storage, paths[2]))
            segment = cls(storage, directory, base_offset, (log, offset_index, time_index), config)
            segment.byte_count = Position(byte_count)
            if byte_count:
                segment.first_timestamp_ms = header_at(log, 0, byte_count).max_timestamp_ms
            segment._resume()
            opened.pop_all()
        return segment

    # --- state ------------------------------------------------------------------------------------

    @property
    def path(self) -> str:
        return self.file.path

    @property
    def max_timestamp_ms(self) -> int:
        """Greatest timestamp of its batches; -1 if no batch has one."""
        return self._indexer.max_timestamp_ms

    @property
    def max_timestamp_offset(self) -> int:
        """Last offset of the first batch that has the greatest timestamp."""
        return self._indexer.max_timestamp_offset

    def should_roll(self, byte_count: int, last_offset: int, max_timestamp_ms: int) -> bool:
        """Return whether a batch belongs in the next segment (Kafka: ``LogSegment.shouldRoll``).

        An empty segment is never rolled, because the next one would have the same name.
        """
        end = self.byte_count + self._staged_byte_count
        if not end:
            return False
        config, first_ms = self._config, self.first_timestamp_ms
        return (
            end + byte_count > config.segment_bytes
            or (first_ms >= 0 and max_timestamp_ms - first_ms > config.segment_ms)
            or self._indexer.is_full(config.segment_index_bytes)
            or last_offset - self.base_offset > INT32_MAX
        )

    # --- append -----------------------------------------------------------------------------------

    def is_write_full(self, byte_count: int) -> bool:
        """Return whether the staged batches must be written before one of this size is staged."""
        return bool(self._staged) and self._staged_byte_count + byte_count > WRITE_BYTES_MAX

    def stage(self, data: bytes | memoryview, metadata: BatchMetadata) -> None:
        """Add a batch to those that ``write_staged`` writes. Nothing is written yet."""
        if not self._staged:
            self._mark = self._indexer.mark()
        end, byte_count = self.byte_count + self._staged_byte_count, len(data)
        self._indexer.add_batch(
            position=end,
            byte_count=byte_count,
            last_offset=metadata.last_offset,
            max_timestamp_ms=metadata.max_timestamp_ms,
        )
        if not end:
            self.first_timestamp_ms = metadata.max_timestamp_ms
        self._staged.append(data)
        self._staged_byte_count += byte_count

    def write_staged(self) -> None:
        """Write the staged batches and the index entries that are due. Nothing is durable yet.

        Raises ``DiskFullError``; the segment is then as it was before the first batch was staged.
        """
        staged, byte_count = self._staged, self._staged_byte_count
        assert staged, "batches were staged"
        self._staged, self._staged_byte_count = [], 0
        try:
            self.file.write_at(self.byte_count, staged[0] if len(staged) == 1 else b"".join(staged))
            self._write_entries()
        except DiskFullError:
            self._indexer.restore(self._mark)
            if not self.byte_count:
                self.first_timestamp_ms = NO_TIMESTAMP_MS
            self.file.truncate(self.byte_count)
            self._truncate_indexes()
            raise
        self.byte_count = Position(self.byte_count + byte_count)

    def add_written_batch(self, byte_count: int, metadata: BatchMetadata) -> None:
        """Account for a batch that another process wrote, including its index entries."""
        self._indexer.add_batch(
            position=self.byte_count,
            byte_count=byte_count,
            last_offset=metadata.last_offset,
            max_timestamp_ms=metadata.max_timestamp_ms,
        )
        self._indexer.take()
        if not self.byte_count:
            self.first_timestamp_ms = metadata.max_timestamp_ms
        self.byte_count = Position(self.byte_count + byte_count)

    def append_aborted(self, aborted: Sequence[AbortedTransaction]) -> None:
        """Add transactions whose abort markers are in this segment to its ``.txnindex``.

        If the disk is full they are left out: readers do not depend on this index.
        """
        byte_count = None
        try:
            if self._txn_index is None:
                name = offset_name(self.base_offset, TXN_INDEX_SUFFIX)
                self._txn_index = open_or_create(
                    self._storage, self._storage.join(self._directory, name)
                )
            byte_count = self._txn_index.byte_count()
            self._txn_index.write_at(byte_count, b"".join(map(encode_aborted, aborted)))
        except DiskFullError:
            if self._txn_index is not None and byte_count is not None:
                self._txn_index.truncate(byte_count)

    def _write_entries(self) -> None:
        if self._indexer.has_new:
            new = self._indexer.take()
            if new.offset_entries:
                self._offset_index.write_at(new.offset_position, new.offset_entries)
            if new.time_entries:
                self._time_index.write_at(new.time_position, new.time_entries)

    def _truncate_indexes(self) -> None:
        """Truncate the index files after their last entries."""
        for index, byte_count in (
            (self._offset_index, self._indexer.offset_index_bytes),
            (self._time_index, self._indexer.time_index_bytes),
        ):
            if index.byte_count() > byte_count:
                index.truncate(byte_count)

    # --- sync and close ---------------------------------------------------------------------------

    def seal(self) -> None:
        """Write the last time entry, truncate the indexes after their entries, and sync all files.

        Raises ``DiskFullError``; the indexes are then unchanged, and ``seal`` must be called again.
        """
        mark = self._indexer.mark()
        try:
            self._indexer.add_time_entry()
            self._write_entries()
        except DiskFullError:
            self._indexer.restore(mark)
            self._truncate_indexes()
            raise
        self._truncate_indexes()
        for file in (self.file, self._offset_index, self._time_index):
            file.sync()
        if self._txn_index is not None:
            self._txn_index.sync()

    def begin_sync(self) -> None:
        """Keep the files open until ``end_sync``, because a sync may run in another thread."""
        self._sync_count += 1

    def end_sync(self) -> None:
        """End a sync; close the files if ``close`` was called meanwhile."""
        assert self._sync_count > 0, "each sync ends once"
        self._sync_count -= 1
        if self._is_released:
            self.close()

    def close(self) -> None:
        """Close the files without a sync, as soon as no sync is pending."""
        self._is_released = True
        if self._sync_count:
            return
        for file in (self.file, self._offset_index, self._time_index, self._txn_index):
            if file is not None:
                file.close()

    # --- resume the indexes -----------------------------------------------------------------------

    def _resume(self) -> None:
        """Index the batches after the last index entry, and write the entries that are due.

        Entries are written after their batches, so none is due unless a crash lost some.
        """
        try:
            position = self._resume_indexer()
            if position is not None:
                self._index_from(position)
                return
        except CorruptBatchError:
            pass  # the index points to no batch: rebuild it
        self._indexer = SegmentIndexer(
            self.base_offset, interval_bytes=self._config.index_interval_bytes
        )
        self._index_from(0)
        self._truncate_indexes()

    def _index_from(self, position: int) -> None:
        """Index the batches from ``position`` on. The first one has its entry, or needs none."""
        for header in iter_headers(self.file, position, self.byte_count):
            self._indexer.add_batch(
                position=header.position,
                byte_count=header.byte_count,
                last_offset=header.last_offset,
                max_timestamp_ms=header.max_timestamp_ms,
                is_indexed=header.position == position,
            )
        self._write_entries()

    def _resume_indexer(self) -> int | None:
        """Resume after the last entries if they are valid; return the position of the last one.

        The time entry that was added at close is after the last offset entry. It is dropped,
        because the batches alone do not determine it, and the next close adds it again.
        """
        offset_bytes, time_bytes = self._offset_index.byte_count(), self._time_index.byte_count()
        if offset_bytes % OFFSET_ENTRY.size or time_bytes % TIME_ENTRY.size:
            return None
        last_offset, position = self.base_offset - 1, 0
        if offset_bytes:
            entry = self._offset_index.read_at(offset_bytes - OFFSET_ENTRY.size, OFFSET_ENTRY.size)
            delta, position = OFFSET_ENTRY.unpack(entry)
            last_offset = self.base_offset + delta
            segment = Segment(self._storage, self._directory, self.base_offset, self.byte_count)
            if not segment.is_entry_valid(self.file, delta, position):
                return None
        times = self._time_index.read_at(max(0, time_bytes - 2 * TIME_ENTRY.size), time_bytes)
        entry = times[-TIME_ENTRY.size :]
        if entry and self.base_offset + TIME_ENTRY.unpack(entry)[1] > last_offset:
            time_bytes -= TIME_ENTRY.size
            entry = times[: -TIME_ENTRY.size]
            if entry and self.base_offset + TIME_ENTRY.unpack(entry)[1] > last_offset:
                return None
        self._indexer = SegmentIndexer.resumed(
            self.base_offset,
            interval_bytes=self._config.index_interval_bytes,
            offset_index_bytes=offset_bytes,
            time_index_bytes=time_bytes,
            last_time_entry=entry,
        )
        return position


def open_or_create(storage: WritableStorage, path: str) -> WritableFile:
    """Open a file for writing, created if absent; its name is not durable yet."""
    try:
        return storage.open_for_writing(path)
    except LogNotFoundError:
        return storage.create_file(path)


# --- The synced position of a log and its pending syncs -------------------------------------------
# A sync starts and completes. Bytes that were written before the start are durable at the
# completion, and do not count as synced before it. In between, batches may be appended, segments
# rolled and the log truncated. A truncation or a recovery replaces the ``SyncState``, so that the
# completion of a sync of the old one is ignored; its segment stays open until that sync has ended.
# There are no threads here: the caller runs the sync.


class SyncState:
    """The durable end of one log: ``end_offset``, at byte ``position`` of the active segment."""

    def __init__(self, end_offset: int, position: Position) -> None:
        self.end_offset = end_offset
        self.position = position

    def start(self, segment: ActiveSegment, end_offset: int) -> PendingSync:
        """Start a sync of everything that was appended before ``end_offset``."""
        segment.begin_sync()
        return PendingSync(end_offset, segment.byte_count, segment, self)

    def advance(self, end_offset: int, position: Position) -> None:
        """Advance the durable end. An older end is ignored: its segment may have been rolled."""
        if end_offset > self.end_offset:
            self.end_offset, self.position = end_offset, position

    def check_invariants(self, active: ActiveSegment, end_offset: int) -> None:
        """Assert that the durable end is in the active segment of a log with ``end_offset``."""
        assert active.base_offset <= self.end_offset <= end_offset, (self.end_offset, end_offset)
        assert self.position <= active.byte_count, (self.position, active.byte_count)
        is_at_end, has_all = self.end_offset == end_offset, self.position == active.byte_count
        assert is_at_end is has_all, "offset and position of the durable end are of one batch"

    def roll(self) -> None:
        """Start a new segment at the log's end, which must be synced."""
        self.position = Position(0)


@fast_init
@dataclass(frozen=True, slots=True, eq=False)
class PendingSync:
    """A sync that was started. It covers everything below ``end_offset`` (exclusive).

    Call ``run`` in any thread, then ``complete_sync`` or ``fail_sync`` of the log exactly once.
    """

    end_offset: int
    position: Position
    segment: ActiveSegment
    state: SyncState

    def run(self) -> None:
        """Sync the ``.log`` file. Raises ``DiskFailedError``: then call ``fail_sync``."""
        self.segment.file.sync()
