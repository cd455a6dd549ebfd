"""The active segment: a ``.log`` and its indexes, open for writing.

Rules of this file:

1. A write that fails leaves the segment as it was: what was written of it is cut off again. If not
   even that can be done, whoever owns the segment must give it up.
2. Indexes are hints: written with the log, synced only when the segment is sealed or closed. What
   was in their files behind the last entry that this writer knows of is overwritten.
3. Nothing is synced but by ``sync`` and ``seal``.
4. Kafka: ``LogSegment``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final, Self

from raftlog.errors import CorruptBatchError, DiskFullError, LogNotFoundError
from raftlog.log.names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    offset_name,
)
from raftlog.log.txn_index import AbortedTransaction, encode_aborted
from raftlog.records.header import INT32_MAX
from raftlog.storage.protocol import ReadableFile, WritableFile, WritableStorage

from .batch_headers import header_at, iter_headers
from .batch_metadata import BatchMetadata
from .indexer import NO_TIMESTAMP_MS, OFFSET_ENTRY, TIME_ENTRY, SegmentIndexer
from .properties import LogConfig

_SUFFIXES: Final = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX)


class ActiveSegment:
    """The last segment of a log. Not shared between threads, but ``sync`` may run in another one.

    ``byte_count`` is where the next batch goes; bytes of the file behind it mean nothing.
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
        self.byte_count = 0
        self.first_timestamp_ms = NO_TIMESTAMP_MS
        self._storage = storage
        self._directory = directory
        self._log, self._offset_index, self._time_index = files
        self._txn_index: WritableFile | None = None
        self._sync_count = 0
        self._is_released = False
        self._config = config
        self._indexer = SegmentIndexer(base_offset, interval_bytes=config.index_interval_bytes)

    # --- making and opening -----------------------------------------------------------------------

    @classmethod
    def create(
        cls, storage: WritableStorage, directory: str, base_offset: int, config: LogConfig
    ) -> Self:
        """Make the files of an empty segment. Their names are not durable yet.

        A file that is there already, of a roll that was cut short, is taken and emptied.
        """
        with contextlib.ExitStack() as opened:  # closes them if one of them cannot be opened
            files = []
            for suffix in _SUFFIXES:
                path = storage.join(directory, offset_name(base_offset, suffix))
                files.append(opened.enter_context(_created(storage, path)))
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
        """Open a segment whose first ``byte_count`` bytes are sound batches, to go on behind them.

        Reads the last entries of its indexes and the headers behind them. Indexes that do not fit
        the log are made anew. Raises ``CorruptBatchError`` if those bytes are no batches.
        """
        paths = [storage.join(directory, offset_name(base_offset, suffix)) for suffix in _SUFFIXES]
        with contextlib.ExitStack() as opened:  # closes them if anything fails below
            log = opened.enter_context(storage.open_for_writing(paths[0]))
            offset_index = opened.enter_context(_created(storage, paths[1]))
            time_index = opened.enter_context(_created(storage, paths[2]))
            segment = cls(storage, directory, base_offset, (log, offset_index, time_index), config)
            segment.byte_count = byte_count
            if byte_count:
                segment.first_timestamp_ms = header_at(log, 0, byte_count).max_timestamp_ms
            segment._resume()
            opened.pop_all()
        return segment

    # --- what it holds ----------------------------------------------------------------------------

    @property
    def path(self) -> str:
        return self._log.path

    @property
    def max_timestamp_ms(self) -> int:
        """The greatest time of its batches; -1 if there are none or they have none."""
        return self._indexer.max_timestamp_ms

    @property
    def max_timestamp_offset(self) -> int:
        """The last offset of the first batch that has the greatest time."""
        return self._indexer.max_timestamp_offset

    def file_byte_count(self) -> int:
        """How long the file of the log is: longer if another process wrote to it."""
        return self._log.byte_count()

    def is_in_place(self) -> bool:
        """Whether the log's file is still there under its name: nobody replaced or set it aside."""
        return self._log.is_in_place()

    @property
    def file(self) -> ReadableFile:
        """The file of the log, to be read."""
        return self._log

    def should_roll(self, byte_count: int, last_offset: int, max_timestamp_ms: int) -> bool:
        """Whether a batch belongs in the next segment (Kafka: ``LogSegment.shouldRoll``).

        An empty segment takes any batch: the next one would have its name.
        """
        if not self.byte_count:
            return False
        config = self._config
        return (
            self.byte_count + byte_count > config.segment_bytes
            or self._is_over(max_timestamp_ms)
            or self._indexer.is_full(config.segment_index_bytes)
            or last_offset - self.base_offset > INT32_MAX
        )

    def _is_over(self, max_timestamp_ms: int) -> bool:
        first_ms = self.first_timestamp_ms
        return first_ms >= 0 and max_timestamp_ms - first_ms > self._config.segment_ms

    # --- writing ----------------------------------------------------------------------------------

    def append(self, data: bytes | memoryview, metadata: BatchMetadata) -> None:
        """Write one batch and the index entries that are due. Nothing is durable yet.

        Raises ``DiskFullError``: then the segment is as it was.
        """
        mark = self._indexer.mark()
        try:
            self._log.write_at(self.byte_count, data)
            self._note(len(data), metadata)
            self._write_entries()
        except DiskFullError:
            self._indexer.restore(mark)
            self._log.truncate(self.byte_count)
            self._truncate_indexes()
            raise
        self._count(len(data), metadata)

    def note_written(self, byte_count: int, metadata: BatchMetadata) -> None:
        """Another process appended this batch here, and wrote the index entries that it gave."""
        self._note(byte_count, metadata)
        self._indexer.take()
        self._count(byte_count, metadata)

    def append_aborted(self, aborted: Sequence[AbortedTransaction]) -> None:
        """Name transactions whose abort markers lie in this segment in its ``.txnindex``.

        A disk that is full leaves them out: the log itself is what reads go by.
        """
        if not aborted:
            return
        byte_count = None
        try:
            if self._txn_index is None:
                name = offset_name(self.base_offset, TXN_INDEX_SUFFIX)
                self._txn_index = _created(self._storage, self._storage.join(self._directory, name))
            byte_count = self._txn_index.byte_count()
            self._txn_index.write_at(byte_count, b"".join(map(encode_aborted, aborted)))
        except DiskFullError:
            if self._txn_index is not None and byte_count is not None:
                self._txn_index.truncate(byte_count)

    def _note(self, byte_count: int, metadata: BatchMetadata) -> None:
        self._indexer.note(
            position=self.byte_count,
            byte_count=byte_count,
            last_offset=metadata.last_offset,
            max_timestamp_ms=metadata.max_timestamp_ms,
        )

    def _count(self, byte_count: int, metadata: BatchMetadata) -> None:
        if not self.byte_count:
            self.first_timestamp_ms = metadata.max_timestamp_ms
        self.byte_count += byte_count

    def _write_entries(self) -> None:
        if self._indexer.has_new:
            new = self._indexer.take()
            if new.offset_entries:
                self._offset_index.write_at(new.offset_position, new.offset_entries)
            if new.time_entries:
                self._time_index.write_at(new.time_position, new.time_entries)

    def _truncate_indexes(self) -> None:
        """Let the index files end behind their last entries."""
        for index, byte_count in (
            (self._offset_index, self._indexer.offset_index_bytes),
            (self._time_index, self._indexer.time_index_bytes),
        ):
            if index.byte_count() > byte_count:
                index.truncate(byte_count)

    # --- making durable, and giving back ----------------------------------------------------------

    def sync(self) -> None:
        """Return when every batch is durable. Raises ``DiskFailedError``: then never again."""
        self._log.sync()

    def seal(self) -> None:
        """Return when the segment is durable with its indexes, which end where they should.

        Raises ``DiskFullError``: then the indexes are as they were, and it is to be sealed again.
        """
        mark = self._indexer.mark()
        try:
            self._indexer.note_time()
            self._write_entries()
        except DiskFullError:
            self._indexer.restore(mark)
            self._truncate_indexes()
            raise
        self._truncate_indexes()
        for file in (self._log, self._offset_index, self._time_index):
            file.sync()
        if self._txn_index is not None:
            self._txn_index.sync()

    def begin_sync(self) -> None:
        """A sync is on its way, perhaps in another thread: the file must stay open."""
        self._sync_count += 1

    def end_sync(self) -> None:
        """It has ended."""
        assert self._sync_count > 0, "each sync ends once"
        self._sync_count -= 1
        if self._is_released:
            self.close()

    def close(self) -> None:
        """Give the files back, as they are, as soon as no sync is on its way."""
        self._is_released = True
        if self._sync_count:
            return
        for file in (self._log, self._offset_index, self._time_index, self._txn_index):
            if file is not None:
                file.close()

    # --- going on behind what is there ------------------------------------------------------------

    def _resume(self) -> None:
        """Note what lies behind the last index entry, and write the entries that it gives.

        None is due there, unless a crash took some: entries are written behind their batches.
        """
        try:
            position = self._resume_indexer()
            if position is not None:
                self._note_from(position)
                return
        except CorruptBatchError:
            pass  # no batch begins where the index says: it is wrong
        self._indexer = SegmentIndexer(
            self.base_offset, interval_bytes=self._config.index_interval_bytes
        )
        self._note_from(0)
        self._truncate_indexes()

    def _note_from(self, position: int) -> None:
        """Note the batches from ``position`` on; the first one has its entry, or none is due."""
        for header in iter_headers(self._log, position, self.byte_count):
            if header.position == position:
                self._indexer.note_again(
                    byte_count=header.byte_count,
                    last_offset=header.last_offset,
                    max_timestamp_ms=header.max_timestamp_ms,
                )
            else:
                self._indexer.note(
                    position=header.position,
                    byte_count=header.byte_count,
                    last_offset=header.last_offset,
                    max_timestamp_ms=header.max_timestamp_ms,
                )
        self._write_entries()

    def _resume_indexer(self) -> int | None:
        """Go on behind the last entries, if they are true; where the last of them points.

        The closing entry of a time index is none of those that the batches give, and is written
        anew: it is the one that lies behind the last offset entry.
        """
        offset_bytes, time_bytes = self._offset_index.byte_count(), self._time_index.byte_count()
        if offset_bytes % OFFSET_ENTRY.size or time_bytes % TIME_ENTRY.size:
            return None
        last_offset, position = self.base_offset - 1, 0
        if offset_bytes:
            entry = self._offset_index.read_at(offset_bytes - OFFSET_ENTRY.size, OFFSET_ENTRY.size)
            delta, position = OFFSET_ENTRY.unpack(entry)
            last_offset = self.base_offset + delta
            if not self._is_entry_valid(position, last_offset):
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

    def _is_entry_valid(self, position: int, last_offset: int) -> bool:
        if not 0 < position < self.byte_count:
            return False
        return header_at(self._log, position, self.byte_count).last_offset == last_offset


def _created(storage: WritableStorage, path: str) -> WritableFile:
    try:
        return storage.open_for_writing(path)
    except LogNotFoundError:
        return storage.create_file(path)
