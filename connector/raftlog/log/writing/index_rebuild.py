"""Build a segment's indexes from columns of its batches.

``IndexRebuild`` returns the bytes that ``indexer.SegmentIndexer`` would have written, in one step
for each entry instead of one for each batch.

An index that a writer left may differ from them and be valid: it has one more time entry for each
time that the segment was closed, and may lack the last entries. ``IndexCheck`` therefore accepts an
index if each of its entries is true, and it is left alone, because a second process may be writing
it.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

import numpy as np

from raftlog.log.offset_index import parse_offset_index
from raftlog.log.time_index import parse_time_index
from raftlog.log.txn_index import AbortedTransaction, encode_aborted
from raftlog.records.batch_columns import BatchColumns, Bools, Int64s

from .indexer import NO_TIMESTAMP_MS, OFFSET_ENTRY, TIME_ENTRY

_ENTRIES_MISSING_MAX: Final = 2


class IndexRebuild:
    """The indexes of one segment, whose batches are added in order from position 0.

    ``first_timestamp_ms`` is the max timestamp of the first batch; ``max_timestamp_ms`` and
    ``max_timestamp_offset`` are as in ``SegmentIndexer``.
    """

    def __init__(self, base_offset: int, *, interval_bytes: int) -> None:
        self.base_offset = base_offset
        self.first_timestamp_ms: int | None = None
        self.max_timestamp_ms = NO_TIMESTAMP_MS
        self.max_timestamp_offset = base_offset
        self._interval_bytes = interval_bytes
        self._entry_position = 0
        self._offset_entries = bytearray()
        self._time_entries = bytearray()
        self._last_time_ms = NO_TIMESTAMP_MS
        self._aborted = bytearray()

    def add_batches(self, batches: BatchColumns) -> None:
        """Add valid batches that follow those added before."""
        if not len(batches):
            return
        if self.first_timestamp_ms is None:
            self.first_timestamp_ms = int(batches.max_timestamp_ms[0])
        largest = np.maximum.accumulate(
            np.concatenate(([self.max_timestamp_ms], batches.max_timestamp_ms))
        )
        rose = np.where(largest[1:] > largest[:-1], np.arange(len(batches)), -1)
        where = np.maximum.accumulate(rose)
        # Bisecting a memoryview costs a tenth of np.searchsorted.
        position, last_offset = batches.position.data, batches.last_offset.data
        due = 0
        while True:
            due = bisect_right(position, self._entry_position + self._interval_bytes, due)
            if due == len(position):
                break
            self._entry_position = position[due]
            delta = last_offset[due] - self.base_offset
            self._offset_entries += OFFSET_ENTRY.pack(delta, self._entry_position)
            self._rise(batches, int(largest[due + 1]), int(where[due]))
            self._add_time_entry()
        self._rise(batches, int(largest[-1]), int(where[-1]))

    def add_aborted(self, aborted: AbortedTransaction) -> None:
        """Add an aborted transaction whose marker is in this segment."""
        self._aborted += encode_aborted(aborted)

    def close(self) -> None:
        """Add the time entry that is due at the end of the segment."""
        self._add_time_entry()

    @property
    def offset_entry_count(self) -> int:
        return len(self._offset_entries) // OFFSET_ENTRY.size

    @property
    def time_entry_count(self) -> int:
        return len(self._time_entries) // TIME_ENTRY.size

    @property
    def offset_index(self) -> bytes:
        """The content of ``.index``."""
        return bytes(self._offset_entries)

    @property
    def time_index(self) -> bytes:
        """The content of ``.timeindex``."""
        return bytes(self._time_entries)

    @property
    def txn_index(self) -> bytes:
        """The content of ``.txnindex``; if empty, the file does not exist."""
        return bytes(self._aborted)

    def _rise(self, batches: BatchColumns, timestamp_ms: int, ordinal: int) -> None:
        if ordinal >= 0 and timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = timestamp_ms
            self.max_timestamp_offset = int(batches.last_offset[ordinal])

    def _add_time_entry(self) -> None:
        if self.max_timestamp_ms > self._last_time_ms:
            delta = self.max_timestamp_offset - self.base_offset
            self._time_entries += TIME_ENTRY.pack(self.max_timestamp_ms, delta)
            self._last_time_ms = self.max_timestamp_ms


class IndexCheck:
    """Verification of a segment's two index files against its batches."""

    def __init__(self, base_offset: int, offset_index: bytes, time_index: bytes) -> None:
        self._offsets = parse_offset_index(offset_index, base_offset)
        self._times = parse_time_index(time_index, base_offset)
        self._is_whole = _ends_at(
            offset_index, len(self._offsets) * OFFSET_ENTRY.size
        ) and _ends_at(time_index, len(self._times) * TIME_ENTRY.size)
        self._expected_offsets = 0
        self._expected_times = 0
        self._max_timestamp_ms = NO_TIMESTAMP_MS

    def add_batches(self, batches: BatchColumns) -> None:
        """Add valid batches that follow those added before."""
        if not len(batches):
            return
        largest = np.maximum.accumulate(
            np.concatenate(([self._max_timestamp_ms], batches.max_timestamp_ms))
        )
        rose = largest[1:] > largest[:-1]
        self._max_timestamp_ms = int(largest[-1])
        offsets, positions = self._offsets.last_offsets, self._offsets.positions
        at, exists = _lookup(batches.last_offset, offsets)
        self._expected_offsets += int(np.sum(exists & (batches.position[at] == positions)))
        at, exists = _lookup(batches.last_offset, self._times.last_offsets)
        is_time = (batches.max_timestamp_ms[at] == self._times.timestamps_ms) & rose[at]
        self._expected_times += int(np.sum(exists & is_time))

    def is_valid_for(self, rebuilt: IndexRebuild) -> bool:
        """Return whether every entry of both files is true and at most the last two are missing.

        Zeros after the entries are preallocated space.
        """
        return (
            self._is_whole
            and self._expected_offsets == len(self._offsets)
            and self._expected_times == len(self._times)
            and len(self._offsets) >= rebuilt.offset_entry_count - _ENTRIES_MISSING_MAX
            and len(self._times) >= rebuilt.time_entry_count - _ENTRIES_MISSING_MAX
        )


def _lookup(sorted_values: Int64s, wanted: Int64s) -> tuple[Int64s, Bools]:
    """Return the index of each wanted value in ascending values, and whether it is present."""
    at = np.minimum(np.searchsorted(sorted_values, wanted), len(sorted_values) - 1)
    exists: Bools = sorted_values[at] == wanted
    return at, exists


def _ends_at(data: bytes, byte_count: int) -> bool:
    return not data[byte_count:].strip(b"\0")
