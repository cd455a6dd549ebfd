"""Which entries a segment's offset and time index get: Kafka's rule, batch by batch.

Rules of this file:

1. The same batches at the same positions give the same bytes, whoever feeds them in: the writer of
   a segment, a recovery that rebuilds its indexes, a second process that reads what the first one
   appended.
2. Kafka: ``LogSegment.append`` and ``recover``, ``OffsetIndex``, ``TimeIndex.maybeAppend``. An
   entry is due for the first batch behind more than ``index.interval.bytes`` since the last entry:
   so none ever stands for position 0. A time entry comes with it, and once more when the segment
   is closed or sealed, if the greatest time has risen since.
3. No numpy here: an append must not pay for its import. The parsers of whole files are in
   ``log.offset_index`` and ``log.time_index``.
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
    """Entries to write behind those that an index file already has."""

    offset_position: int
    offset_entries: bytes
    time_position: int
    time_entries: bytes


class SegmentIndexer:
    """The entries that are due for one segment, as batch after batch is noted.

    ``max_timestamp_ms`` and ``max_timestamp_offset`` are the greatest time of the segment so far
    and the last offset of the first batch that had it (Kafka: ``maxTimestampAndOffsetSoFar``).
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
        """Go on behind the entries of two index files that are known to be sound.

        ``last_time_entry`` is empty if there is none. The batch of the last offset entry (the one
        at position 0 if there is none) must be noted with ``note_again`` next, and with ``note``
        those behind it: none of them has an entry.
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

    def note_again(self, *, byte_count: int, last_offset: int, max_timestamp_ms: int) -> None:
        """One batch was written before, and the entries that it gave are there."""
        if max_timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = max_timestamp_ms
            self.max_timestamp_offset = last_offset
        self._bytes_since_entry += byte_count

    def note(
        self, *, position: int, byte_count: int, last_offset: int, max_timestamp_ms: int
    ) -> None:
        """One batch was, or is about to be, written at ``position`` of the segment."""
        if max_timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = max_timestamp_ms
            self.max_timestamp_offset = last_offset
        if self._bytes_since_entry > self._interval_bytes:
            self._new_offsets += OFFSET_ENTRY.pack(last_offset - self._base_offset, position)
            self.note_time()
            self._bytes_since_entry = 0
        self._bytes_since_entry += byte_count

    def note_time(self) -> None:
        """The time entry of this moment, if time rose: due when a segment is closed or sealed."""
        if self.max_timestamp_ms > self._last_time_ms:
            delta = self.max_timestamp_offset - self._base_offset
            self._new_times += TIME_ENTRY.pack(self.max_timestamp_ms, delta)
            self._last_time_ms = self.max_timestamp_ms

    def is_full(self, index_bytes_max: int) -> bool:
        """Whether one of the indexes has no room for another entry (``segment.index.bytes``)."""
        offset_bytes = self.offset_index_bytes + len(self._new_offsets)
        time_bytes = self.time_index_bytes + len(self._new_times)
        return (
            offset_bytes + OFFSET_ENTRY.size > index_bytes_max
            or time_bytes + 2 * TIME_ENTRY.size > index_bytes_max  # one is kept for the closing
        )

    @property
    def has_new(self) -> bool:
        """Whether there is anything to write."""
        return bool(self._new_offsets or self._new_times)

    def mark(self) -> IndexerMark:
        """Where it stands, for ``restore``. Nothing may be waiting to be written."""
        assert not self.has_new, "take what is new first"
        return (
            self._bytes_since_entry,
            self._last_time_ms,
            self.max_timestamp_ms,
            self.max_timestamp_offset,
            self.offset_index_bytes,
            self.time_index_bytes,
        )

    def restore(self, mark: IndexerMark) -> None:
        """Forget what was noted since: it could not be written."""
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
        """What is to be written now, and where in the two files. Counts as written from here on."""
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
