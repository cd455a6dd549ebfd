"""Entries of a segment's offset and time index, batch by batch, by Kafka's rule.

The same batches at the same positions give the same bytes, for the writer of a segment, for
recovery, and for a second process that reads what the first one appended.

An entry is due for the first batch after more than ``index.interval.bytes`` since the last entry,
so no entry points to position 0. A time entry is added with it, and once more when the segment is
closed or sealed if the max timestamp has risen since:

    interval 4096   position     0    2000   4000   6000   8000  10000  12000
                    bytes since  0    2000   4000   6000   2000   4000   6000
                    entry                             *                    *

Kafka: ``LogSegment.append`` and ``recover``, ``OffsetIndex``, ``TimeIndex.maybeAppend``. No numpy:
an append must not import it. ``log.offset_index`` and ``log.time_index`` parse whole files.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, TypeAlias

OFFSET_ENTRY: Final = struct.Struct(">ii")  # last offset - base offset, position of the batch
TIME_ENTRY: Final = struct.Struct(">qi")  # greatest timestamp (ms), its last offset - base offset
assert (OFFSET_ENTRY.size, TIME_ENTRY.size) == (8, 12)

INDEX_INTERVAL_BYTES_DEFAULT: Final = 4096
"""Kafka's ``index.interval.bytes``."""
NO_TIMESTAMP_MS: Final = -1
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

    ``max_timestamp_ms`` and ``max_timestamp_offset``: the greatest timestamp of the segment so far,
    and the last offset of the first batch that has it (Kafka: ``maxTimestampAndOffsetSoFar``).
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

    def __init__(
        self, base_offset: int, *, interval_bytes: int = INDEX_INTERVAL_BYTES_DEFAULT
    ) -> None:
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
        interval_bytes: int = INDEX_INTERVAL_BYTES_DEFAULT,
        offset_index_bytes: int,
        time_index_bytes: int,
        last_time_entry: bytes,
    ) -> SegmentIndexer:
        """Continue after the entries of two valid index files.

        ``last_time_entry`` is b"" if missing. Next, call ``add_indexed_batch`` with the batch of
        the last offset entry (the batch at position 0 if there is no entry), then ``add_batch``
        with the batches after it: none of them has an entry.
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

    def add_indexed_batch(
        self, *, byte_count: int, last_offset: int, max_timestamp_ms: int
    ) -> None:
        """Add a batch whose entries are in the files already."""
        if max_timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = max_timestamp_ms
            self.max_timestamp_offset = last_offset
        self._bytes_since_entry += byte_count

    def add_batch(
        self, *, position: int, byte_count: int, last_offset: int, max_timestamp_ms: int
    ) -> None:
        """Add a batch that was, or is about to be, written at ``position`` of the segment."""
        if max_timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = max_timestamp_ms
            self.max_timestamp_offset = last_offset
        if self._bytes_since_entry > self._interval_bytes:
            self._new_offsets += OFFSET_ENTRY.pack(last_offset - self._base_offset, position)
            self.add_time_entry()
            self._bytes_since_entry = 0
        self._bytes_since_entry += byte_count

    def add_time_entry(self) -> None:
        """Add the time entry that is due at close or seal, if the max timestamp has risen."""
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
        """Return the state for ``restore``. All new entries must have been taken."""
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
        """Undo the batches that were added since ``mark``, because they could not be written."""
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
        """Return the new entries to write. They count as written from now on."""
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
