"""Check of one segment: batches, offsets and epochs, aborted transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raftlog.client import EpochCache, Isolation, Outcome
from raftlog.client.inspection import (
    TXN_INDEX_SUFFIX,
    ColumnDecoder,
    DirectoryLog,
    ReadableFile,
    find_valid_batch,
    parse_txn_index,
    read_batch_at,
    read_chunks,
    read_small_file,
)
from raftlog.errors import (
    CorruptBatchError,
    CorruptFileError,
    DataLossError,
    DecompressionLimitError,
    SegmentDeletedError,
)
from raftlog.limits import BATCH_HEADER_BYTES, LOG_OVERHEAD_BYTES, READ_CHUNK_BYTES
from raftlog.records import RecordBatch
from raftlog.records.batch_columns import BatchColumns, Column, Stop
from raftlog.records.header import BATCH_HEADER

from .files import IndexCheck
from .findings import Finding, Kind, damage, note, of_error

# --- Check that the transaction index contains all aborted transactions of the log ----------------
# Kafka filters aborted records by ``.txnindex`` alone: a transaction that is missing there is
# visible to ``read_committed`` consumers. ``indexes.TxnIndexCheck`` finds entries that the log does
# not have.


def unindexed_aborts(log: DirectoryLog) -> Iterator[Finding]:
    """Yield the aborted transactions that the index lacks; none if the log is damaged."""
    try:
        plan = log.plan(
            log.log_start_offset, log.log_end_offset, isolation=Isolation.READ_COMMITTED
        )
    except (CorruptBatchError, DataLossError, SegmentDeletedError):
        return
    known: dict[int, set[tuple[int, int]] | None] = {}
    spans = dict.fromkeys(span for one in plan.splits for span in one.spans)
    for span in spans:
        if span.outcome is not Outcome.ABORTED or span.marker_offset is None:
            continue
        segment = log.files.segment_at(span.marker_offset)
        assert segment is not None, "contains the marker"
        path = log.files.segment_path(segment, TXN_INDEX_SUFFIX)
        if segment not in known:
            known[segment] = _named(log, path)
        named = known[segment]
        if named is not None and (span.producer_id, span.marker_offset) in named:
            continue
        make = note if named is None else damage
        yield make(
            Kind.INDEX,
            path,
            f"no entry for the aborted transaction of producer {span.producer_id}, offsets "
            f"{span.first_offset} to {span.marker_offset}",
            offset=span.marker_offset,
        )


def _named(log: DirectoryLog, path: str) -> set[tuple[int, int]] | None:
    """Return an index's producer ids and marker offsets; None if it is missing or corrupt."""
    try:
        data = read_small_file(log.files.storage, path)
        entries = None if data is None else parse_txn_index(data, path)
    except CorruptFileError:
        return None
    if entries is None:
        return None
    return {(entry.producer_id, entry.last_offset) for entry in entries}


# --- Check of offsets and leader epochs from batch to batch, and against the epoch cache ----------
# Offsets of a metadata log are contiguous; those of an ordinary partition ascend, with gaps where
# compaction removed records. ``leader-epoch-checkpoint`` applies from the start offset of its first
# entry on (Kafka: ``LeaderEpochFileCache.truncateFromStart``).


class HistoryCheck:
    """Check of a log's offsets and epochs, fed with its batches in order.

    ``read_epochs`` returns the epoch cache, None if the file is missing or corrupt. It is called
    again before a mismatch is reported, because a running node may have written to the file and the
    log meanwhile.
    """

    def __init__(
        self, *, contiguous: bool, epochs_path: str, read_epochs: Callable[[], EpochCache | None]
    ) -> None:
        self._contiguous = contiguous
        self._epochs_path = epochs_path
        self._read_epochs = read_epochs
        self._epochs: EpochCache | None = None
        self._load_epoch_cache()
        self._next_offset: int | None = None
        self._last_epoch = -1
        self._reported: set[int] = set()

    @property
    def next_offset(self) -> int | None:
        """Offset after the last batch, None before the first batch."""
        return self._next_offset

    def add(self, batches: BatchColumns, path: str) -> Iterator[Finding]:
        """Check the next batches."""
        if not len(batches):
            return
        yield from self._check_offsets(batches, path)
        yield from self._check_epoch_order(batches, path)
        yield from self._check_epoch_cache(batches, path)
        self._next_offset = int(batches.last_offset[-1]) + 1
        self._last_epoch = max(self._last_epoch, int(batches.leader_epoch.max()))

    def skip(self, next_offset: int) -> None:
        """Skip damage up to this offset, so that it is not also reported as a gap."""
        if self._next_offset is None or next_offset > self._next_offset:
            self._next_offset = next_offset

    def finish(self) -> Iterator[Finding]:
        """Report epochs that begin after the end of the log."""
        if self._epochs is None or self._next_offset is None or not self._epochs.entries:
            return
        last = self._epochs.entries[-1]
        if last.start_offset > self._next_offset:
            yield note(
                Kind.EPOCH,
                self._epochs_path,
                f"epoch {last.epoch} begins after the end of the log ({self._next_offset})",
                offset=last.start_offset,
            )

    def _check_offsets(self, batches: BatchColumns, path: str) -> Iterator[Finding]:
        before = self._next_offset
        first = int(batches.base_offset[0]) if before is None else before
        expected = np.concatenate((np.array([first], np.int64), batches.last_offset[:-1] + 1))
        if self._contiguous:
            wrong = batches.base_offset != expected
        else:
            wrong = batches.base_offset < expected
        for at in np.flatnonzero(wrong).tolist():
            base_offset, wanted = int(batches.base_offset[at]), int(expected[at])
            if base_offset > wanted:
                reason = f"offset gap: offsets {wanted} to {base_offset - 1} are missing"
            else:
                reason = f"offset regression: the previous offset is {wanted - 1}"
            position = int(batches.position[at])
            yield damage(Kind.GAP, path, reason, position=position, offset=base_offset)

    def _check_epoch_order(self, batches: BatchColumns, path: str) -> Iterator[Finding]:
        epochs = batches.leader_epoch.astype(np.int64)
        highest = np.maximum.accumulate(np.concatenate((np.array([self._last_epoch]), epochs)))[:-1]
        regressed = (epochs < highest) & np.concatenate(
            (np.array([epochs[0] < highest[0]]), np.diff(epochs) != 0)
        )
        for at in np.flatnonzero(regressed).tolist():
            yield damage(
                Kind.EPOCH,
                path,
                f"leader epoch {epochs[at]} after leader epoch {highest[at]}: it must not decrease",
                position=int(batches.position[at]),
                offset=int(batches.base_offset[at]),
            )

    def _check_epoch_cache(self, batches: BatchColumns, path: str) -> Iterator[Finding]:
        """Report one finding for each epoch that the file contradicts."""
        cached = self._cached_epochs(batches)
        if (cached != batches.leader_epoch).any():
            self._load_epoch_cache()
            cached = self._cached_epochs(batches)
        for ordinal in np.flatnonzero(cached != batches.leader_epoch).tolist():
            epoch = int(batches.leader_epoch[ordinal])
            if epoch in self._reported or epoch < 0:
                continue
            self._reported.add(epoch)
            offset, position = int(batches.base_offset[ordinal]), int(batches.position[ordinal])
            yield damage(
                Kind.EPOCH,
                self._epochs_path,
                f"epoch {cached[ordinal]} here, but the batch at byte {position} of {path} has "
                f"epoch {epoch}",
                offset=offset,
            )

    def _load_epoch_cache(self) -> None:
        self._epochs = self._read_epochs()
        entries = self._epochs.entries if self._epochs else ()
        self._starts = np.array([entry.start_offset for entry in entries], np.int64)
        self._epoch_ids = np.array([entry.epoch for entry in entries], np.int64)

    def _cached_epochs(self, batches: BatchColumns) -> npt.NDArray[np.int64]:
        """Return each batch's epoch in the file, or the batch's own before the first entry."""
        own = batches.leader_epoch.astype(np.int64)
        if not len(self._starts):
            return own
        at = np.searchsorted(self._starts, batches.base_offset, side="right") - 1
        return np.where(at >= 0, self._epoch_ids[at], own)


# --- Check of one segment: the CRC of every batch and the framing of every record -----------------
# After damage the check continues at the next valid batch, so that each damaged region is one
# finding. The active segment may end in an incomplete batch, if its node is writing or has crashed:
# that is damage only if a valid batch follows.


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
            return  # the bytes before it are damaged and have been reported
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
        found = find_valid_batch(self.file, position, next_offset=expected)
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
