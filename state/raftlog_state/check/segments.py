"""Check of one segment: the CRC of every batch and the framing of every record.

After damage the check continues at the next valid batch, so that each damaged region is one
finding. The active segment may end in an incomplete batch, if its node is writing or has crashed:
that is damage only if a valid batch follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from raftlog.client.inspection import (
    ColumnDecoder,
    ReadableFile,
    find_valid_batch,
    read_batch_at,
    read_chunks,
)
from raftlog.errors import CorruptBatchError, DecompressionLimitError
from raftlog.limits import BATCH_HEADER_BYTES, LOG_OVERHEAD_BYTES, READ_CHUNK_BYTES
from raftlog.records import RecordBatch
from raftlog.records.batch_columns import BatchColumns, Column, Stop
from raftlog.records.header import BATCH_HEADER

from .findings import Finding, Kind, damage, note, of_error
from .history import HistoryCheck
from .indexes import IndexCheck


@dataclass(slots=True)
class SegmentCheck:
    """Check of one segment. Counts and ``position`` increase while ``run`` is consumed.

    ``next_base_offset`` is None for the active segment. ``on_progress`` is called with the share of
    the segment that has been read, in [0, 1].
    """

    file: ReadableFile
    base_offset: int
    next_base_offset: int | None
    is_contiguous: bool
    history: HistoryCheck
    indexes: Sequence[IndexCheck]
    decompressed_bytes_max: int
    on_progress: Callable[[float], None]
    batch_count: int = 0
    record_count: int = 0
    position: int = 0

    def run(self) -> Iterator[Finding]:
        """Check the segment and its indexes."""
        byte_count = max(self.file.byte_count(), 1)
        while True:
            stop, error = Stop.END, None
            reading = ColumnDecoder(Column.NONE, READ_CHUNK_BYTES, self.decompressed_bytes_max)
            for position, scan in read_chunks(
                self.file, self.position, reading, start_offset=None, end_offset=None
            ):
                yield from self._add(scan.batches)
                self.position, stop, error = position, scan.stop, scan.error
                self.on_progress(min(position / byte_count, 1.0))
            if stop is Stop.END:
                break
            resumed, findings = self._find_valid_batch_after(error)
            yield from findings
            if not resumed:
                break
        for index in self.indexes:
            yield from index.finish(is_newest=self.next_base_offset is None)

    def _add(self, batches: BatchColumns) -> Iterator[Finding]:
        if not len(batches):
            return
        if not self.batch_count:
            yield from self._check_name(batches)
        self.batch_count += len(batches)
        self.record_count += int(batches.record_count.sum())
        yield from self.history.add(batches, self.file.path)
        for index in self.indexes:
            yield from index.add(batches)

    def _check_name(self, batches: BatchColumns) -> Iterator[Finding]:
        first = int(batches.base_offset[0])
        if first == self.base_offset or (first > self.base_offset and not self.is_contiguous):
            return
        if int(batches.position[0]) > 0 and first > self.base_offset:
            return  # the bytes before it are damaged, and reported
        yield damage(
            Kind.SEGMENT_NAME,
            self.file.path,
            f"the base offset in the file name is {self.base_offset}",
            position=int(batches.position[0]),
            offset=first,
        )

    def _find_valid_batch_after(
        self, error: CorruptBatchError | None
    ) -> tuple[bool, list[Finding]]:
        """Search for a valid batch after the damage; return whether there is one, and findings."""
        path, position = self.file.path, self.position
        left = self.file.byte_count() - position
        expected = self.history.next_offset
        expected = self.base_offset if expected is None else expected
        if error is None and read_batch_at(self.file, position) is not None:
            return True, []  # the node has completed the batch meanwhile
        if isinstance(error, DecompressionLimitError):
            unread = read_batch_at(self.file, position)
            if unread is not None:  # its CRC is valid, and so is its length
                self.position = position + unread.byte_count
                self._skip(self.position, unread.next_offset)
                return True, [of_error(error, path)]
        found = find_valid_batch(self.file, position, expected)
        batch = None if found is None else read_batch_at(self.file, found)
        if batch is not None:
            finding = (
                of_error(error, path)
                if error
                else self._damage_before_valid_batch(position, expected)
            )
            self._resume(batch)
            return True, [finding]
        if error is not None:
            if self._is_last(position, left, expected):
                return False, [of_error(error, path)]
            reason = f"{error.reason}; no valid batch in the remaining {left} bytes"
            found_at = error.position
            return False, [damage(Kind.BATCH, path, reason, position=found_at, offset=error.offset)]
        return False, [self._torn_tail(position, left, expected)]

    def _damage_before_valid_batch(self, position: int, expected: int) -> Finding:
        reason = "incomplete batch, followed by valid batches"
        return damage(Kind.BATCH, self.file.path, reason, position=position, offset=expected)

    def _torn_tail(self, position: int, left: int, expected: int) -> Finding:
        path = self.file.path
        if self.next_base_offset is None:
            reason = (
                f"torn tail: the last {left} bytes are an incomplete batch; this is normal in the "
                "active segment of a node that is running or has crashed"
            )
            return note(Kind.TORN_TAIL, path, reason, position=position, offset=expected)
        reason = f"the last {left} bytes are an incomplete batch, and newer segments follow"
        return damage(Kind.BATCH, path, reason, position=position, offset=expected)

    def _is_last(self, position: int, left: int, expected: int) -> bool:
        """Return whether the damaged batch, by its header, is the last one of the segment."""
        head = self.file.read_at(position, BATCH_HEADER_BYTES)
        if len(head) < BATCH_HEADER_BYTES:
            return False
        base_offset, length, *_ = header = BATCH_HEADER.unpack(head)
        last_delta = header[6]
        if base_offset != expected or length + LOG_OVERHEAD_BYTES != left or last_delta < 0:
            return False
        next_offset = base_offset + last_delta + 1
        if self.next_base_offset is not None:
            next_offset = min(next_offset, self.next_base_offset)
        self._skip(position + left, next_offset)
        return True

    def _resume(self, batch: RecordBatch) -> None:
        self.position = batch.position
        self._skip(batch.position, batch.base_offset)

    def _skip(self, position: int, offset: int) -> None:
        self.history.skip(offset)
        for index in self.indexes:
            index.skip(position, offset)
