"""Scan a segment for recovery: its valid batches, where they end, and why.

A batch is valid if its CRC matches, its header is plausible, it begins at the end offset of the
batch before it, and its epoch is the right one for its offset. The CRC does not cover offset and
epoch, so only the order of the batches reveals damage to these. For example:

    position   0            100          200          300          400
    bytes      | 0 to 4     | 5 to 9     | damaged    | 15 to 19   | zeros ...

    SegmentScan       yields 0 to 4 and 5 to 9; stops with DAMAGE at 200, next offset 10
    survey_segment    DAMAGE at 200, resumes at position 300, offset 15; ZEROS at 400

Invariants:

1. Nothing is written. Indexes are not used.
2. Memory is bounded by a chunk, or by one batch if that is larger. No record is decoded.

Kafka checks less (``LogSegment.recover``): it notices an offset regression only where an index
entry is due, so that KAFKA-3919 showed only when a broker failed to start.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from raftlog.errors import CorruptBatchError, LogNotFoundError
from raftlog.limits import LOG_OVERHEAD_BYTES, MIB
from raftlog.log.format.directory import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, offset_name
from raftlog.log.format.epoch_cache import EpochCache
from raftlog.log.reading.chunks import (
    ChunkBytes,
    ChunkDecoder,
    epoch_mismatches,
    find_valid_batch,
    parse_offset_index,
    parse_time_index,
    read_chunks,
)
from raftlog.log.segment import (
    NO_TIMESTAMP_MS,
    OFFSET_ENTRY,
    TIME_ENTRY,
    AbortedTransaction,
    encode_aborted,
    read_batch_at,
)
from raftlog.records.batch import RecordBatch, read_batch
from raftlog.records.batch_columns import (
    BatchColumns,
    Bools,
    Int64s,
    Stop,
    scan_headers,
)
from raftlog.records.header import is_zero
from raftlog.storage.protocol import ReadableFile, Storage, WritableStorage

from .recover import ScanEnd, ScanStop

# --- Build a segment's indexes from columns of its batches ----------------------------------------
# ``IndexRebuild`` returns the bytes that ``SegmentIndexer`` would have written, with one step per
# entry instead of one per batch.
#
# An index that a writer left may differ from these bytes and still be valid: it has one more time
# entry for each time that the segment was closed, and it may lack the last entries. So an index is
# accepted if each of its entries is correct. It is then left alone, because a second process may be
# writing it.

_ENTRIES_MISSING_MAX: Final = 2


class IndexRebuild:
    """The indexes of one segment, and a check of its existing offset and time index.

    The batches are added in order from position 0. ``existing_offsets`` and ``existing_times`` are
    the contents of the existing files.

    ``max_timestamp_ms`` and ``max_timestamp_offset`` are as in ``SegmentIndexer``. The other
    attributes are the rebuilt contents. If ``txn_index`` is empty, the file must not exist.
    """

    def __init__(
        self,
        base_offset: int,
        *,
        interval_bytes: int,
        existing_offsets: bytes = b"",
        existing_times: bytes = b"",
    ) -> None:
        self.base_offset = base_offset
        self.max_timestamp_ms = NO_TIMESTAMP_MS
        self.max_timestamp_offset = base_offset
        self.offset_index = bytearray()
        self.time_index = bytearray()
        self.txn_index = bytearray()
        self._interval_bytes = interval_bytes
        self._entry_position = 0
        self._last_time_ms = NO_TIMESTAMP_MS
        self._offsets = parse_offset_index(existing_offsets, base_offset)
        self._times = parse_time_index(existing_times, base_offset)
        self._is_whole = _ends_at(
            existing_offsets, len(self._offsets) * OFFSET_ENTRY.size
        ) and _ends_at(existing_times, len(self._times) * TIME_ENTRY.size)
        self._true_offsets = self._true_times = 0

    def add_batches(self, batches: BatchColumns) -> None:
        """Add valid batches that follow those added before."""
        if not len(batches):
            return
        largest = np.maximum.accumulate(
            np.concatenate(([self.max_timestamp_ms], batches.max_timestamp_ms))
        )
        rose = largest[1:] > largest[:-1]
        self._count_true_entries(batches, rose)
        where = np.maximum.accumulate(np.where(rose, np.arange(len(batches)), -1))
        # Bisecting a memoryview takes a tenth of the time of np.searchsorted.
        position, last_offset = batches.position.data, batches.last_offset.data
        due = 0
        while True:
            due = bisect_right(position, self._entry_position + self._interval_bytes, due)
            if due == len(position):
                break
            self._entry_position = position[due]
            delta = last_offset[due] - self.base_offset
            self.offset_index += OFFSET_ENTRY.pack(delta, self._entry_position)
            self._rise(batches, int(largest[due + 1]), int(where[due]))
            self._add_time_entry()
        self._rise(batches, int(largest[-1]), int(where[-1]))

    def add_aborted(self, aborted: AbortedTransaction) -> None:
        """Add an aborted transaction whose marker is in this segment."""
        self.txn_index += encode_aborted(aborted)

    def close(self) -> None:
        """Add the time entry that is due at the end of the segment."""
        self._add_time_entry()

    def _rise(self, batches: BatchColumns, timestamp_ms: int, ordinal: int) -> None:
        if ordinal >= 0 and timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = timestamp_ms
            self.max_timestamp_offset = int(batches.last_offset[ordinal])

    def _add_time_entry(self) -> None:
        if self.max_timestamp_ms > self._last_time_ms:
            delta = self.max_timestamp_offset - self.base_offset
            self.time_index += TIME_ENTRY.pack(self.max_timestamp_ms, delta)
            self._last_time_ms = self.max_timestamp_ms

    def _count_true_entries(self, batches: BatchColumns, rose: Bools) -> None:
        """Count the existing entries that these batches confirm.

        ``rose``: the batches at which the greatest timestamp rises.
        """
        at, exists = _lookup(batches.last_offset, self._offsets.last_offsets)
        exists &= batches.position[at] == self._offsets.positions
        self._true_offsets += int(np.sum(exists))
        at, exists = _lookup(batches.last_offset, self._times.last_offsets)
        exists &= (batches.max_timestamp_ms[at] == self._times.timestamps_ms) & rose[at]
        self._true_times += int(np.sum(exists))

    @property
    def is_existing_valid(self) -> bool:
        """Whether every entry of both files is correct and at most the last two are missing.

        Zeros after the entries are preallocated space. Call ``close`` first.
        """
        missing = _ENTRIES_MISSING_MAX
        return (
            self._is_whole
            and self._true_offsets == len(self._offsets)
            and self._true_times == len(self._times)
            and len(self.offset_index) // OFFSET_ENTRY.size <= len(self._offsets) + missing
            and len(self.time_index) // TIME_ENTRY.size <= len(self._times) + missing
        )


def _lookup(sorted_values: Int64s, values: Int64s) -> tuple[Int64s, Bools]:
    """Return the index of each value in ascending values, and whether it is present."""
    at = np.minimum(np.searchsorted(sorted_values, values), len(sorted_values) - 1)
    exists: Bools = sorted_values[at] == values
    return at, exists


def _ends_at(data: bytes, byte_count: int) -> bool:
    return not data[byte_count:].strip(b"\0")


# --- Scan of a segment ----------------------------------------------------------------------------

SCAN_CHUNK_BYTES: Final = 1 * MIB
EPOCH_UNKNOWN: Final = -1
ANOMALIES_MAX: Final = 100
"""Maximum number of anomalies that are reported for a segment."""
_OFFSET_REGRESSION_MAX: Final = 2**30
"""How far the base offset of a batch found after damage may be below the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanPosition:
    """Position of a batch in a segment, the offset it must have, and the epoch before it."""

    position: int
    next_offset: int
    epoch: int = EPOCH_UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanRules:
    """What the batches are validated against, apart from their CRCs.

    ``epochs``: content of a trusted ``leader-epoch-checkpoint``, or None. It is durable before the
    first batch of an epoch is written, and therefore decides for the offsets that it covers. For
    other offsets, a new epoch must begin with a control batch, because every leader writes one.
    ``end_offset``: the scan ends before the first batch at or after it.
    """

    epochs: EpochCache | None = None
    end_offset: int | None = None


@dataclass(frozen=True, slots=True)
class ValidChunk:
    """Contiguous valid batches, and the buffer that contains them."""

    batches: BatchColumns
    end_position: int
    stop: Stop
    error: CorruptBatchError | None
    path: str
    buffer: bytes = field(repr=False)
    buffer_position: int

    @property
    def next_position(self) -> int:
        """The file position after the last batch. The chunk must not be empty."""
        return int(self.batches.position[-1]) + int(self.batches.byte_count[-1])

    def batch(self, ordinal: int) -> RecordBatch:
        """Return one of the batches."""
        position = int(self.batches.position[ordinal]) - self.buffer_position
        batch = read_batch(
            self.buffer, position, path=self.path, file_position=self.buffer_position
        )
        assert isinstance(batch, RecordBatch), "the batch was validated"
        return batch

    def first(self, count: int) -> ValidChunk:
        """Return the first ``count`` batches."""
        return replace(self, batches=self.batches[:count])


@dataclass(frozen=True, slots=True)
class _ValidDecoder(ChunkDecoder[ValidChunk]):
    """Decoder of headers into columns that stops at the first CRC mismatch."""

    chunk_bytes: int

    def decode(self, source: ChunkBytes) -> ValidChunk:
        found = scan_headers(
            source.data, path=source.path, file_position=source.position, crcs=True
        )
        return ValidChunk(
            batches=found.batches,
            end_position=found.end_position,
            stop=found.stop,
            error=found.error,
            path=source.path,
            buffer=source.data,
            buffer_position=source.position,
        )

    def first(self, chunk: ValidChunk, count: int) -> ValidChunk:
        return chunk.first(count)


class SegmentScan:
    """Scan of one segment from a position on. Iterate once over its chunks of valid batches.

    ``position`` is the end of the last valid batch so far. After the last chunk, ``stop`` is the
    reason why there are no more. Raises only the storage's errors.
    """

    def __init__(self, file: ReadableFile, position: ScanPosition, rules: ScanRules) -> None:
        self.position = position
        self._file = file
        self._rules = rules
        self._stop: ScanStop | None = None

    @property
    def stop(self) -> ScanStop:
        assert self._stop is not None, "iterate to the end first"
        return self._stop

    def finish(self) -> ScanStop:
        """Scan to the end; return why it stops there."""
        for _ in self:
            pass
        return self.stop

    def __iter__(self) -> Iterator[ValidChunk]:
        decoder = _ValidDecoder(SCAN_CHUNK_BYTES)
        for _, chunk in read_chunks(
            self._file, self.position.position, decoder, start_offset=None, end_offset=None
        ):
            batches = chunk.batches
            count, kind, reason = _in_order(batches, self.position, self._rules)
            if count:
                self.position = _position_after(batches, count - 1)
                yield chunk if count == len(batches) else chunk.first(count)
            if kind is not None:
                self._stop = replace(
                    self._stopped(kind, reason),
                    found_base_offset=int(batches.base_offset[count]),
                    found_last_offset=int(batches.last_offset[count]),
                    found_epoch=int(batches.leader_epoch[count]),
                )
                return
            if chunk.stop is Stop.DAMAGED:
                assert chunk.error is not None, "DAMAGED has an error"
                self._stop = self._stopped(ScanEnd.DAMAGE, chunk.error.reason)
                return
        self._stop = self._file_ended()

    def _stopped(self, kind: ScanEnd, reason: str) -> ScanStop:
        at = self.position
        return ScanStop(
            kind=kind,
            path=self._file.path,
            position=at.position,
            reason=reason,
            byte_count=max(0, self._file.byte_count() - at.position),
            next_offset=at.next_offset,
            epoch=at.epoch,
        )

    def _file_ended(self) -> ScanStop:
        """Return the stop at the end of the file: after a batch, inside one, or in zeros."""
        position = self.position.position
        left = self._file.byte_count() - position
        if left <= 0:
            return self._stopped(ScanEnd.END, "the file ends after a whole batch")
        zeros = _zero_bytes(self._file, position)
        if zeros == left:
            return self._stopped(ScanEnd.ZEROS, f"only zeros follow ({left} bytes)")
        if zeros >= len(self._file.read_at(position, LOG_OVERHEAD_BYTES)):  # a length of zero
            reason = f"{zeros} zero bytes follow, then other bytes"
            return self._stopped(ScanEnd.DAMAGE, reason)
        return self._stopped(ScanEnd.TORN, f"the file ends {left} bytes into a batch")


def _position_after(batches: BatchColumns, ordinal: int) -> ScanPosition:
    return ScanPosition(
        position=int(batches.position[ordinal]) + int(batches.byte_count[ordinal]),
        next_offset=int(batches.last_offset[ordinal]) + 1,
        epoch=int(batches.leader_epoch[ordinal]),
    )


def _in_order(
    batches: BatchColumns, scan_position: ScanPosition, rules: ScanRules
) -> tuple[int, ScanEnd | None, str]:
    """Return how many batches continue the log, and why the next one does not."""
    if not len(batches):
        return 0, None, ""
    expected = np.concatenate(([scan_position.next_offset], batches.next_offset[:-1]))
    previous = np.concatenate(([scan_position.epoch], batches.leader_epoch[:-1]))
    if scan_position.epoch == EPOCH_UNKNOWN:
        previous[0] = batches.leader_epoch[0]
    wrong = (
        (batches.base_offset != expected)
        | (batches.leader_epoch < previous)
        | _epoch_mismatch(batches, previous, rules.epochs)
    )
    if rules.end_offset is not None:
        wrong |= expected >= rules.end_offset
    bad = np.flatnonzero(wrong)
    if not len(bad):
        return len(batches), None, ""
    at = int(bad[0])
    if rules.end_offset is not None and int(expected[at]) >= rules.end_offset:
        return at, ScanEnd.LIMIT, f"the log ends at offset {rules.end_offset}"
    return at, *_describe_violation(batches, at, int(expected[at]), int(previous[at]), rules)


def _epoch_mismatch(batches: BatchColumns, previous: Int64s, epochs: EpochCache | None) -> Bools:
    """Return which batches have another epoch than their offsets require, as far as it is known."""
    unannounced: Bools = (batches.leader_epoch != previous) & ~batches.is_control
    if epochs is None:
        return unannounced
    is_other, is_known = epoch_mismatches(batches, epochs)
    wrong: Bools = np.where(is_known, is_other, unannounced)
    return wrong


def _describe_violation(
    batches: BatchColumns, at: int, expected: int, previous: int, rules: ScanRules
) -> tuple[ScanEnd, str]:
    base, last = int(batches.base_offset[at]), int(batches.last_offset[at])
    epoch = int(batches.leader_epoch[at])
    what = f"a batch of offsets {base} to {last}, epoch {epoch}, follows offset {expected - 1}"
    if previous != EPOCH_UNKNOWN:
        what += f", epoch {previous}"
    if base > expected:
        return ScanEnd.GAP, f"{what}: offsets {expected} to {base - 1} are missing"
    if base < expected <= last:
        return ScanEnd.OVERLAP, f"{what}: it overlaps the batches before it"
    if base < expected:
        return ScanEnd.OFFSET_REGRESSION, f"{what}: offsets go back"
    if epoch < previous:
        return ScanEnd.EPOCH_REGRESSION, f"{what}: epochs go back"
    known = None if rules.epochs is None else rules.epochs.epoch_at(base)
    if known is None or rules.epochs is None:
        return ScanEnd.EPOCH_MISMATCH, f"{what}: no leader began that epoch"
    starts = [entry.start_offset for entry in rules.epochs.entries if entry.start_offset <= last]
    return (
        ScanEnd.EPOCH_MISMATCH,
        f"{what}: leader-epoch-checkpoint has epoch {rules.epochs.epoch_at(last)} from offset "
        f"{starts[-1]} on",
    )


def _zero_bytes(file: ReadableFile, position: int) -> int:
    """Return the number of zero bytes at ``position``."""
    count = 0
    while chunk := file.read_at(position + count, SCAN_CHUNK_BYTES):
        if not is_zero(chunk, 0):
            return count + len(chunk) - len(chunk.lstrip(b"\0"))
        count += len(chunk)
    return count


# --- anomalies after the end ----------------------------------------------------------------------


def survey_segment(
    file: ReadableFile, position: ScanPosition, rules: ScanRules
) -> Iterator[ScanStop]:
    """Yield every place where the log does not continue, up to ``ANOMALIES_MAX``.

    After an anomaly the survey continues with the batch that is there, as if it belonged to the
    log; after damage, with the next valid batch. Thus it reports each regression, overlap and gap
    of a log such as those of KAFKA-3919, and the valid batches after damage.
    """
    for _ in range(ANOMALIES_MAX):
        scan = SegmentScan(file, position, rules)
        stop = scan.finish()
        if stop.is_clean:
            return
        following = _resume(file, scan.position, stop)
        if following is None:
            yield stop
            return
        if stop.found_base_offset is None:
            stop = replace(
                stop,
                resumes_position=following.position,
                resumes_offset=following.next_offset,
            )
        yield stop
        position = following
        if stop.found_base_offset is not None:  # the rest belongs to another history
            rules = replace(rules, epochs=None)


def _resume(file: ReadableFile, at: ScanPosition, stop: ScanStop) -> ScanPosition | None:
    """Return where the survey continues after an anomaly, or None at the end."""
    position: int | None = at.position
    if stop.found_base_offset is None:
        if stop.kind is ScanEnd.ZEROS:
            return None
        min_offset = max(0, at.next_offset - _OFFSET_REGRESSION_MAX)
        position = find_valid_batch(file, at.position, next_offset=min_offset)
    if position is None:
        return None
    batch = read_batch_at(file, position)
    if batch is None:
        return None
    if stop.found_base_offset is None:
        return ScanPosition(position=position, next_offset=batch.base_offset)
    return ScanPosition(
        position=position + batch.byte_count,
        next_offset=batch.next_offset,
        epoch=batch.leader_epoch,
    )


# --- Rebuild indexes ------------------------------------------------------------------------------


def rebuild_indexes(
    storage: WritableStorage, directory: str, base_offset: int, interval_bytes: int
) -> tuple[str, ...]:
    """Read a whole segment and rewrite its indexes if they are wrong; return the files' paths.

    Only the indexes of a segment that is valid to its end are rewritten. No writer may have the
    segment open.
    """
    names = [offset_name(base_offset, suffix) for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX)]
    paths = [storage.join(directory, name) for name in names]
    contents = [index_bytes(storage, path) for path in paths]
    indexes = IndexRebuild(
        base_offset,
        interval_bytes=interval_bytes,
        existing_offsets=contents[0] or b"",
        existing_times=contents[1] or b"",
    )
    with storage.open_file(storage.join(directory, offset_name(base_offset, LOG_SUFFIX))) as log:
        scan = SegmentScan(log, ScanPosition(position=0, next_offset=base_offset), ScanRules())
        for chunk in scan:
            indexes.add_batches(chunk.batches)
    indexes.close()
    is_valid = None not in contents and indexes.is_existing_valid
    if scan.stop.kind is not ScanEnd.END or is_valid:
        return ()
    new = (indexes.offset_index, indexes.time_index)
    rebuilt = [
        path
        for path, data in zip(paths, new, strict=True)
        if write_index(storage, path, data, sync_equal=False)
    ]
    storage.sync_directory(directory)
    return tuple(rebuilt)


def index_bytes(storage: Storage, path: str) -> bytes | None:
    """Return the content of an index file; None if it does not exist."""
    try:
        with storage.open_file(path) as file:
            return file.read_at(0, file.byte_count())
    except LogNotFoundError:
        return None


def write_index(
    storage: WritableStorage, path: str, data: bytes | bytearray, *, sync_equal: bool
) -> bool:
    """Write an index file in place and sync it; return False if it already has this content.

    ``sync_equal``: sync it in that case too, because an earlier recovery may have died between
    write and sync.
    """
    content = index_bytes(storage, path)
    if content == data and not sync_equal:
        return False
    opened = storage.create_file if content is None else storage.open_for_writing
    with opened(path) as file:
        if content != data:
            file.truncate(len(data))
            if data:
                file.write_at(0, bytes(data))
        file.sync()
    return content != data
