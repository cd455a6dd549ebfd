"""Files of one log from its last directory listing, positions in them, and a cursor to read them.

Between two listings the node may roll, rename and delete segments. Opening a listed file that no
longer exists raises ``SegmentDeletedError``, and the caller lists again. An index is only a hint: a
position from it is used only if a valid batch that ends with the entry's offset begins there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Final, Self, TypeVar

import numpy as np

from raftlog.errors import (
    CorruptBatchError,
    CorruptFileError,
    DataLossError,
    LogGapError,
    LogNotFoundError,
    SegmentDeletedError,
)
from raftlog.limits import BATCH_HEADER_BYTES, DECOMPRESSED_BYTES_MAX
from raftlog.log.format.directory import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    PARTITION_METADATA_NAME,
    PRODUCER_SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    Listing,
    ProducerState,
    checkpoint_name,
    offset_name,
    parse_partition_metadata,
    parse_producer_snapshot,
    read_listing,
    read_small,
    read_small_file,
)
from raftlog.log.segment import find_header, read_batch_at
from raftlog.records.batch_columns import (
    BatchColumns,
    Stop,
)
from raftlog.storage.protocol import ReadableFile, Storage
from raftlog.types import SnapshotId

from .chunks import (
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    ChunkDecoder,
    OffsetIndex,
    P,
    TimeIndex,
    find_valid_batch,
    parse_offset_index,
    parse_time_index,
    read_chunks,
    read_entries,
)
from .remote_tier import OpenStore, RemoteTier

# --- Segments, indexes and snapshots of one directory, opened once --------------------------------

V = TypeVar("V")

_INDEXES_KEPT: Final = 256
_HINTS_KEPT: Final = 256
_ATTEMPTS_MAX: Final = 5
"""Attempts to find a deleted segment again before ``SegmentDeletedError`` is raised."""
_LISTINGS_MAX: Final = 10
"""Listings while the cleaner swaps segments, which takes microseconds."""


class LogFiles:
    """Directory of a log, or one file opened as a log. Not thread-safe."""

    def __init__(
        self,
        storage: Storage,
        directory: str,
        listing: Listing,
        open_store: OpenStore | None = None,
    ) -> None:
        self.decompressed_bytes_max = DECOMPRESSED_BYTES_MAX
        """Limit of the decompressed records of one batch, in bytes."""
        self.storage = storage
        self.directory = directory
        self._open_store = open_store
        self._tier: RemoteTier | None = None
        self.listing = self._with_remote_segments(listing)
        self._single_path: str | None = None
        self._indexes: OrderedDict[int, OffsetIndex] = OrderedDict()
        self._hints: OrderedDict[int, tuple[int, int]] = OrderedDict()

    @classmethod
    def of_directory(
        cls, storage: Storage, directory: str, open_store: OpenStore | None = None
    ) -> Self:
        """List a partition's directory.

        With ``open_store``, a tiered log includes the segments that only its object store has.
        """
        return cls(storage, directory, read_listing(storage.list_names(directory)), open_store)

    @classmethod
    def of_segment(cls, storage: Storage, path: str, base_offset: int) -> Self:
        """Open one segment; its indexes are read from the same directory."""
        files = cls(storage, storage.split(path)[0], Listing(segments=(base_offset,)))
        files._single_path = path
        return files

    @classmethod
    def of_checkpoint(cls, storage: Storage, path: str, snapshot_id: SnapshotId) -> Self:
        """Open one checkpoint as a log without records after the snapshot."""
        files = cls(storage, storage.split(path)[0], Listing(snapshots=(snapshot_id,)))
        files._single_path = path
        return files

    @property
    def path(self) -> str:
        """Path in error messages."""
        return self._single_path or self.directory

    def refresh(self) -> None:
        """List the directory again; no-op for a single file."""
        if self._single_path is not None:
            return
        for _ in range(_LISTINGS_MAX):
            self.listing = read_listing(self.storage.list_names(self.directory))
            if not self.listing.swapped:
                break
        self.listing = self._with_remote_segments(self.listing)

    def retry_on_deletion(self, read: Callable[[], V]) -> V:
        """Call ``read``, and repeat it with a new listing while segments that it needs are deleted.

        Raises ``SegmentDeletedError`` after ``_ATTEMPTS_MAX`` attempts.
        """
        for _ in range(_ATTEMPTS_MAX):
            try:
                return read()
            except SegmentDeletedError:
                self.refresh()
        raise SegmentDeletedError(path=self.path)

    def _with_remote_segments(self, local: Listing) -> Listing:
        """Return a listing that includes the segments that only the object store has.

        If the local start is 0, no segment is below it, so the list of remote segments is not read.
        """
        if self._tier is None:
            if self._open_store is None or local.start_offset == 0:
                return local
            self._tier = RemoteTier(self.storage, self.directory, self._open_store)
        return self._tier.merge(local)

    def log_start_offset(self, checkpointed: int) -> int:
        """Return the log start, given the checkpointed start of the local files."""
        if self._tier is None:
            return max(self.listing.start_offset, checkpointed)
        local_start = max(self._tier.local_start_offset, checkpointed)
        start = self._tier.start_at(local_start)
        return local_start if start is None else start

    def is_remote(self, base_offset: int) -> bool:
        """Return whether a segment is read from an object store."""
        return self._tier is not None and self._tier.is_remote(base_offset)

    # --- files ------------------------------------------------------------------------------------

    def segment_at(self, offset: int) -> int | None:
        """Return the base offset of the segment for ``offset``; None below the first segment."""
        ordinal = bisect_right(self.listing.segments, offset)
        return self.listing.segments[ordinal - 1] if ordinal else None

    def segment_after(self, base_offset: int) -> int | None:
        """Return the next segment's base offset; None for the active segment."""
        ordinal = bisect_right(self.listing.segments, base_offset)
        return self.listing.segments[ordinal] if ordinal < len(self.listing.segments) else None

    def segment_path(self, base_offset: int, suffix: str = LOG_SUFFIX) -> str:
        """Return the path of a segment's file with this suffix."""
        if self._tier is not None and self._tier.is_remote(base_offset):
            return self._tier.path(base_offset, suffix)
        return self._local_path(base_offset, suffix)

    def _local_path(self, base_offset: int, suffix: str) -> str:
        if self._single_path is None:
            if suffix == LOG_SUFFIX and base_offset in self.listing.swapped:
                suffix += SWAP_SUFFIX
            return self.storage.join(self.directory, offset_name(base_offset, suffix))
        path = self._single_path.removesuffix(DELETED_SUFFIX)
        tail = self._single_path[len(path) :]
        return self._single_path if suffix == LOG_SUFFIX else _stem(path) + suffix + tail

    def byte_count(self, base_offset: int) -> int:
        """Return the size of a segment; for a remote one from their list, without a request."""
        if self._tier is not None and self._tier.is_remote(base_offset):
            return self._tier.byte_count(base_offset)
        with self.open(self.segment_path(base_offset)) as file:
            return file.byte_count()

    def checkpoint_path(self, snapshot_id: SnapshotId) -> str:
        """Return the path of a snapshot file."""
        return self._single_path or self.storage.join(self.directory, checkpoint_name(snapshot_id))

    def open(self, path: str) -> ReadableFile:
        """Open a listed file. Raises ``SegmentDeletedError`` if it no longer exists."""
        try:
            return self._open_any(path)
        except LogNotFoundError:
            raise SegmentDeletedError(path=path) from None

    def _open_any(self, path: str) -> ReadableFile:
        found = None if self._tier is None else self._tier.open(path)
        return self.storage.open_file(path) if found is None else found

    def read_small(self, name: str) -> bytes | None:
        """Return the content of a small file of the directory; None if it does not exist."""
        return self.parse_small(name, lambda data, _: data)

    def parse_small(self, name: str, parse: Callable[[bytes, str], V]) -> V | None:
        """Return the parsed content of a small file; None if it does not exist.

        Raises ``CorruptFileError``.
        """
        path = self.storage.join(self.directory, name)
        data = read_small_file(self.storage, path)
        return None if data is None else parse(data, path)

    def topic_id(self) -> str | None:
        """Return the topic id in ``partition.metadata``; None if it is missing or damaged."""
        try:
            metadata = self.parse_small(PARTITION_METADATA_NAME, parse_partition_metadata)
        except CorruptFileError:
            return None
        return None if metadata is None else metadata.topic_id

    @property
    def producer_offsets(self) -> tuple[int, ...]:
        """Offsets at which the state of the producers is stored, ascending."""
        local = self.listing.producer_snapshots
        if self._tier is None:
            return local
        return tuple(sorted({*local, *self._tier.end_offsets}))

    def read_producers(self, offset: int) -> tuple[ProducerState, ...] | None:
        """Return the producers at one of ``producer_offsets``; None if it was deleted.

        Raises ``CorruptFileError``.
        """
        # Not ``segment_path``: a remote segment with this base offset has the producers at its end.
        if self._tier is None or offset in self.listing.producer_snapshots:
            path = self._local_path(offset, PRODUCER_SNAPSHOT_SUFFIX)
        else:
            path = self._tier.producers_path(offset)
        try:
            with self._open_any(path) as file:
                return parse_producer_snapshot(read_small(file), path)
        except (LogNotFoundError, SegmentDeletedError):
            return None

    # --- positions in them ------------------------------------------------------------------------

    def offset_index(self, base_offset: int) -> OffsetIndex:
        """Return a segment's offset index, empty if it has none; cached for sealed segments."""
        index = self._indexes.get(base_offset)
        if index is None:
            data = self._index_bytes(base_offset, INDEX_SUFFIX, OFFSET_ENTRY_BYTES)
            index = parse_offset_index(data, base_offset)
            if self.segment_after(base_offset) is not None:
                _keep(self._indexes, base_offset, index, _INDEXES_KEPT)
        return index

    def time_index(self, base_offset: int) -> TimeIndex:
        """Return a segment's time index, empty if it has none."""
        data = self._index_bytes(base_offset, TIME_INDEX_SUFFIX, TIME_ENTRY_BYTES)
        return parse_time_index(data, base_offset)

    def remember_position(self, offset: int, *, base_offset: int, position: int) -> None:
        """Cache the position of ``offset``, because the next read often continues there."""
        _keep(self._hints, offset, (base_offset, position), _HINTS_KEPT)

    def was_read_to(self, offset: int, base_offset: int) -> bool:
        """Return whether the position of ``offset`` in this segment is cached."""
        segment, position = self._hints.get(offset, (None, 0))
        return segment == base_offset and position > 0

    def find(self, file: ReadableFile, base_offset: int, offset: int) -> int:
        """Return a position at which a batch with a base offset <= ``offset`` begins.

        The batch that contains ``offset`` is at that position or after it. Without a valid hint or
        index entry, the result is 0.
        """
        hint = self._nearest_hint(base_offset, offset)
        if hint is not None and hint[0] == offset and _begins_with(file, hint[1], offset=offset):
            return hint[1]
        position = 0
        index = self.offset_index(base_offset)
        ordinal = index.entry_before(offset)
        if ordinal is not None and self.is_entry_valid(file, index, ordinal):
            position = int(index.positions[ordinal])
        if hint is not None and hint[1] > position and _begins_with(file, hint[1], offset=hint[0]):
            return hint[1]
        return position

    def _nearest_hint(self, base_offset: int, offset: int) -> tuple[int, int] | None:
        """Return a segment's greatest cached offset <= ``offset``, and its position."""
        known = [
            (hinted, position)
            for hinted, (segment, position) in self._hints.items()
            if segment == base_offset and hinted <= offset
        ]
        return max(known, default=None)

    def is_entry_valid(self, file: ReadableFile, index: OffsetIndex, ordinal: int) -> bool:
        """Return whether the batch of an index entry begins at the entry's position."""
        batch = read_batch_at(file, int(index.positions[ordinal]))
        return batch is not None and batch.last_offset == int(index.last_offsets[ordinal])

    def _index_bytes(self, base_offset: int, suffix: str, entry_bytes: int) -> bytes:
        try:
            with self._open_any(self.segment_path(base_offset, suffix)) as file:
                return read_entries(file, entry_bytes)
        except (LogNotFoundError, SegmentDeletedError):
            return b""


def _begins_with(file: ReadableFile, position: int, *, offset: int) -> bool:
    """Return whether the batch at ``position``, where one once began, has this base offset."""
    header = find_header(file, position)
    return header is not None and header.base_offset == offset


def _stem(path: str) -> str:
    return path.removesuffix(LOG_SUFFIX)


def _keep(kept: OrderedDict[int, V], key: int, value: V, count_max: int) -> None:
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > count_max:
        kept.popitem(last=False)


# --- Cursor that reads a log across segments, which may roll or be deleted while they are read ----
# At a batch that cannot be read, the kind of segment and the bytes after the batch decide:
#
#   sealed     | batch | batch | cut off    |                 CorruptBatchError
#   active     | batch | batch | cut off    | end of file     end of the log, a torn tail
#   active     | batch | batch | 0 0 0 0 0  | end of file     end of the log, preallocated zeros
#   active     | batch | batch | unreadable | valid batch |   CorruptBatchError
#
# Invariants:
#
# 1. Batches before damage are returned; the error is raised after them.
# 2. Offsets never decrease, and have no gaps in a metadata log. The CRC does not cover the base
#    offset, but this check detects a flipped bit in it.
# 3. A sealed segment ends with a whole batch. The active one may end in a torn batch or in zeros,
#    unless a valid batch follows (``find_valid_batch``).
# 4. The position in a deleted segment is looked up again by its offset. If the log no longer has
#    the offset, ``DataLossError`` is raised.

_ZEROS_BYTES: Final = 4096
"""This many zeros after a batch are preallocated space; no search for a valid batch follows."""


@dataclass(frozen=True, slots=True)
class LogTail:
    """Bytes after the last valid batch of the active segment.

    ``byte_count`` is 0 at a clean end. ``error`` is set if the bytes are neither zeros nor a batch
    that was cut off, because the last batch is damaged or the file is not a log.
    """

    path: str
    position: int
    byte_count: int
    error: CorruptBatchError | None = None


class LogCursor:
    """Position in a log from which reading continues. Not thread-safe.

    ``next_offset`` is the offset after the last batch that was read. ``tail`` is set when the end
    of the log has been reached.
    """

    def __init__(self, files: LogFiles, offset: int, *, contiguous: bool) -> None:
        self._files = files
        self._contiguous = contiguous
        self._started = False
        self._position: int | None = None
        self._last_position: int | None = None
        """Position of the batch that ends at ``_position``; None if it was not read."""
        self._failed_position: int | None = None
        self._unmatched: tuple[int, int] | None = None
        """Offset that was looked up again, and the base offset that was listed after it."""
        self.next_offset = offset
        self.tail: LogTail | None = None
        self.segment = self._segment_at(offset)

    @property
    def position(self) -> int | None:
        """Position in ``segment`` at which reading continues; None if it is not known yet."""
        return self._position

    def read(self, decoder: ChunkDecoder[P], end_offset: int | None = None) -> Iterator[P]:
        """Read chunks up to ``end_offset``, or up to the end of the log if it is None.

        Each error is raised after the last valid chunk.

        Raises:
            CorruptBatchError: a batch before the end of the range is damaged.
            LogGapError: a batch has another base offset than expected.
            DataLossError: the offset was deleted, or the log ends before ``end_offset``.
            SegmentDeletedError: a segment was deleted, ``_ATTEMPTS_MAX`` times in a row.
            LogAccessError: a file cannot be read.
        """
        attempts = 0
        while end_offset is None or self.next_offset < end_offset:
            following = self._files.segment_after(self.segment)
            try:
                with self._files.open(self._files.segment_path(self.segment)) as file:
                    stop, error = yield from self._read_segment(file, decoder, end_offset)
                    if stop is not Stop.END_OFFSET and _is_past(self.next_offset, end_offset):
                        return
                    if error is not None and (following is not None or end_offset is not None):
                        raise error
                    if stop is Stop.END_OFFSET:
                        assert end_offset is not None, "Stop.END_OFFSET needs an end offset"
                        self._check_end(file, end_offset)
                        return
                    if following is not None:
                        self._leave(file, following)
                        attempts = 0
                        continue
                    self._files.refresh()
                    if self._files.segment_after(self.segment) is not None:
                        continue  # the segment rolled: read what was appended before the roll
                    if self._is_end_of_log(file, error, end_offset):
                        return
            except SegmentDeletedError:
                attempts += 1
                if attempts > _ATTEMPTS_MAX:
                    raise
                self._files.refresh()
                self.segment = self._segment_at(self.next_offset)
                self._position = None

    def _segment_at(self, offset: int) -> int:
        segment = self._files.segment_at(offset)
        if segment is None:
            start = min(self._files.listing.segments, default=None)
            now = "the log has no segment" if start is None else f"the log begins at {start}"
            raise DataLossError(
                path=self._files.path,
                condition="OFFSETS_DELETED",
                reason=f"offset {offset} was deleted: {now}",
                remedy="start at a snapshot or at the first offset on disk",
            )
        return segment

    def _read_segment(
        self, file: ReadableFile, decoder: ChunkDecoder[P], end_offset: int | None
    ) -> Generator[P, None, tuple[Stop, CorruptBatchError | None]]:
        """Read the current segment; return why reading ended, and the damage if there is any."""
        start_offset = None
        if self._position and not self._is_position_current(file):
            self._position = None  # compaction has replaced the segment
        if self._position is None:  # the index entry may be for an earlier batch
            self._position = self._files.find(file, self.segment, self.next_offset)
            start_offset = self.next_offset
        stop, error = Stop.END, None
        for position, chunk in read_chunks(
            file, self._position, decoder, start_offset=start_offset, end_offset=end_offset
        ):
            if _is_past(self.next_offset, end_offset):
                return Stop.END_OFFSET, None  # damage after the range does not matter
            batches = chunk.batches
            count, gap = self._in_order(batches, file.path)
            if count:
                self._started = True
                self.next_offset = int(batches.last_offset[count - 1]) + 1
                self._last_position = int(batches.position[count - 1])
                batch_end = self._last_position + int(batches.byte_count[count - 1])
                self._files.remember_position(
                    self.next_offset, base_offset=self.segment, position=batch_end
                )
                self._position = position if gap is None else batch_end
                yield chunk if gap is None else decoder.first(chunk, count)
            if gap is not None:
                if count and _is_past(self.next_offset, end_offset):
                    return Stop.END_OFFSET, None
                raise gap
            self._position = position
            stop, error = chunk.stop, chunk.error
        return stop, error

    def _is_position_current(self, file: ReadableFile) -> bool:
        """Return whether the batch that was read last still ends at the position. The bytes that
        begin there do not prove it: if the segment was replaced, they may be a later batch, or it
        may end there."""
        header = None if self._last_position is None else find_header(file, self._last_position)
        return (
            header is not None
            and header.end_position == self._position
            and header.last_offset + 1 == self.next_offset
        )

    def _in_order(self, batches: BatchColumns, path: str) -> tuple[int, LogGapError | None]:
        """Return the number of leading batches in order, and the error of the next one."""
        if not len(batches):
            return 0, None
        base_offset = batches.base_offset
        expected = np.empty_like(base_offset)
        expected[1:] = batches.last_offset[:-1] + 1
        expected[0] = self.next_offset
        wrong = base_offset != expected if self._contiguous else base_offset < expected
        if not self._started:  # the first batch may begin before the requested offset
            wrong[0] = self._contiguous and base_offset[0] > expected[0]
        elif not batches.record_count[0] and batches.last_offset[0] >= expected[0]:
            wrong[0] &= base_offset[0] > expected[0]  # in place of batches of a replaced segment
        if not wrong.any():
            return len(batches), None
        at = int(np.argmax(wrong))
        return at, LogGapError(
            path=path,
            position=int(batches.position[at]),
            expected_offset=int(expected[at]),
            offset=int(base_offset[at]),
        )

    def _check_end(self, file: ReadableFile, end_offset: int) -> None:
        """Check the base offset of the batch that ended the range.

        A flipped bit in it would end the range before records that belong to it. The check is
        skipped if the whole range was read, because the next batch may be a crashed writer's torn
        one.
        """
        if self.next_offset >= end_offset:
            return
        position = self._position or 0
        first = find_header(file, position)
        if first is None:
            return
        if self._contiguous:
            raise LogGapError(
                path=file.path,
                position=position,
                expected_offset=self.next_offset,
                offset=first.base_offset,
            )
        second = find_header(file, first.end_position)
        bound = self._following_after(first.last_offset) if second is None else second.base_offset
        if bound is not None and bound <= first.last_offset:
            raise LogGapError(
                path=file.path,
                position=first.end_position,
                expected_offset=first.last_offset + 1,
                offset=bound,
            )

    def _following_after(self, last_offset: int) -> int | None:
        """Return the base offset of the next segment. If it is not greater than the last offset of
        this one, list the directory again, because a cleaner may have replaced both by one."""
        following = self._files.segment_after(self.segment)
        if following is not None and following <= last_offset:
            self._files.refresh()
            following = self._files.segment_after(self.segment)
        return following

    def _leave(self, file: ReadableFile, following: int) -> None:
        """Move from a sealed segment to the next one.

        If the next one does not begin where this one ends, the offset is looked up again, once. A
        compaction may have replaced segments during or after the listing, and the names listed
        meanwhile may not correspond to any state of the directory. A remote segment may also
        overlap the next one, if another node, whose segments begin at other offsets, copied it.
        """
        position = self._position or 0
        head = file.read_at(position, BATCH_HEADER_BYTES)
        if any(head):
            raise CorruptBatchError(
                reason="the segment ends inside this batch, and another segment follows",
                path=file.path,
                position=position,
                offset=self.next_offset,
            )
        if following != self.next_offset and self._unmatched != (self.next_offset, following):
            self._unmatched = (self.next_offset, following)
            if not self._files.is_remote(self.segment):
                self._files.refresh()
            self.segment = self._segment_at(self.next_offset)
            self._position = None
            return
        is_wrong = (
            following != self.next_offset if self._contiguous else (following < self.next_offset)
        )
        if is_wrong:
            raise LogGapError(
                path=self._files.segment_path(following),
                position=0,
                expected_offset=self.next_offset,
                offset=following,
            )
        self.next_offset = following
        self.segment = following
        self._position = 0

    def _is_end_of_log(
        self, file: ReadableFile, error: CorruptBatchError | None, end_offset: int | None
    ) -> bool:
        """Return whether the active segment ends here, and set ``tail``.

        Returns False if the node has appended in the meantime, so that reading continues.
        """
        position = self._position or 0
        byte_count = file.byte_count() - position
        head = file.read_at(position, _ZEROS_BYTES)
        if any(head):
            valid_position = find_valid_batch(file, position, next_offset=self.next_offset)
            # Read this after the search, during which the node may have completed the batch. If a
            # whole batch fails to decode a second time, its content is damaged.
            if read_batch_at(file, position) is not None:
                if error is not None and self._failed_position == position:
                    raise error
                self._failed_position = position
                return False
            if valid_position is not None:
                raise error or CorruptBatchError(
                    reason=f"its length is wrong: a valid batch begins at byte {valid_position}",
                    path=file.path,
                    position=position,
                    offset=self.next_offset,
                )
        if end_offset is not None:
            raise DataLossError(
                path=self._files.path,
                condition="LOG_TRUNCATED",
                reason=f"the log now ends at offset {self.next_offset}, below the end "
                f"{end_offset} of the read",
                remedy="the log was truncated or replaced by another copy: plan the read again",
            )
        self.tail = LogTail(file.path, position, max(byte_count, 0), error)
        return True


def _is_past(next_offset: int, end_offset: int | None) -> bool:
    return end_offset is not None and next_offset >= end_offset
