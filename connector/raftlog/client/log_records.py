"""Result of a read: the records of an offset range, as objects or as Arrow columns.

Control records occupy offsets and are not returned. With READ_COMMITTED the range ends at the last
stable offset, and records of aborted transactions are left out. Headers whose names begin with
``raftlog.`` are internal and are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raftlog.append import HEADER_PREFIX
from raftlog.errors import DataLossError
from raftlog.log.reading.log_reader import LogReader
from raftlog.log.reading.reads import Isolation, LogKind
from raftlog.log.reading.snapshot import SnapshotReader
from raftlog.log.reading.transactions import Outcome, TransactionSpan
from raftlog.records.batch import RecordBatch
from raftlog.records.batch_columns import Column, Scan
from raftlog.records.record import Header, Record
from raftlog.records.record_columns import HEADERS_TYPE

T = TypeVar("T")
ARROW_SCHEMA: Final = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", "UTC"), nullable=False),
        pa.field("leader_epoch", pa.int32(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE),
    ]
)
"""Schema of ``LogRecords.to_arrow``."""


class LogRecords:
    """Records with offsets in [``start_offset``, ``end_offset``), read when iterated.

    The end is fixed, and unless ``is_from_start``, so is the start: every iteration then yields the
    same records. Each iteration opens the log again, keeps no file open between records and can run
    in any thread. Errors are those of ``LogReader``, raised after the valid records;
    ``DataLossError`` if records were deleted in the meantime.

    ``is_from_start``: ``start_offset`` was the log's start. An iteration begins at the log's
    present start instead if that is later, and raises ``DataLossError`` only after its first
    records.
    """

    def __init__(
        self,
        open_log: Callable[[], LogReader],
        start_offset: int,
        end_offset: int,
        isolation: Isolation,
        *,
        is_from_start: bool = False,
    ) -> None:
        self._open_log = open_log
        self._isolation = isolation
        self._is_from_start = is_from_start
        self.start_offset = start_offset
        self.end_offset = max(start_offset, end_offset)

    def __repr__(self) -> str:
        return f"LogRecords(start_offset={self.start_offset}, end_offset={self.end_offset})"

    def __iter__(self) -> Iterator[Record]:
        for batch, hidden in self._begin(self._columns):
            if _has_replaced_header_key(batch):
                yield from self._with_raw_header_keys(batch, hidden)
            else:
                yield from _records(batch)

    def chunks(self) -> Iterator[list[Record]]:
        """Yield the records of one record batch at a time; none is empty.

        Iteration yields the same records, but reads them by columns. It takes a sixth of the time
        for batches of many records, but more time for batches of a single record.
        """

        def read(log: LogReader, start_offset: int) -> Iterator[list[Record]]:
            hidden = self._hidden_spans(log, start_offset)
            return self._decoded(log, hidden, start_offset, self.end_offset)

        yield from self._begin(read)

    def _begin(self, read: Callable[[LogReader, int], Iterator[T]]) -> Iterator[T]:
        """Yield what ``read`` returns of the range in a log, from an offset on."""
        log = self._open_log()
        if not self._is_from_start:
            yield from read(log, self.start_offset)
            return
        while True:
            start_offset = min(max(self.start_offset, log.log_start_offset), self.end_offset)
            try:
                found = iter(read(log, start_offset))
                first = list(islice(found, 1))
            except DataLossError:
                log.refresh()
                if log.log_start_offset <= start_offset:
                    raise
                continue
            while first:
                yield first.pop()  # not kept during the iteration
            yield from found
            return

    def _decoded(
        self, log: LogReader, hidden: list[TransactionSpan], start_offset: int, end_offset: int
    ) -> Iterator[list[Record]]:
        for batch in log.batches(start_offset, end_offset):
            if batch.is_control or _hides_batch(hidden, batch, log.kind):
                continue
            chunk = [
                _without_internal_headers(record)
                for record in batch.records()
                if start_offset <= record.offset < end_offset
                and not _hides_record(hidden, record.offset, log.kind)
            ]
            if chunk:
                yield chunk

    def to_arrow(self) -> pa.Table:
        """Return all records as one table with ``ARROW_SCHEMA``. They must fit into memory."""
        return pa.Table.from_batches(self.to_batches(), schema=ARROW_SCHEMA)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield Arrow batches of bounded size, in offset order."""
        for batch, _ in self._begin(self._columns):
            yield batch

    def _columns(
        self, log: LogReader, start_offset: int
    ) -> Iterator[tuple[pa.RecordBatch, list[TransactionSpan]]]:
        """Yield batches, and the transactions whose records they leave out."""
        hidden = self._hidden_spans(log, start_offset)
        for scan in log.scan(start_offset, self.end_offset, columns=Column.ALL):
            batch = _arrow_batch(scan, self._shown(scan, hidden, log.kind))
            if batch.num_rows:
                yield batch, hidden

    def _with_raw_header_keys(
        self, batch: pa.RecordBatch, hidden: list[TransactionSpan]
    ) -> Iterator[Record]:
        """Decode the records of an Arrow batch again, whose header keys are not all UTF-8."""
        offset = batch.column("offset")
        first, last = offset[0].as_py(), offset[-1].as_py()
        for chunk in self._decoded(self._open_log(), hidden, first, last + 1):
            yield from chunk

    def _hidden_spans(self, log: LogReader, start_offset: int) -> list[TransactionSpan]:
        if self._isolation is not Isolation.READ_COMMITTED:
            return []
        plan = log.plan(start_offset, self.end_offset, isolation=self._isolation)
        return [
            span
            for part in plan.splits
            for span in part.spans
            if span.outcome is not Outcome.COMMITTED
        ]

    def _shown(
        self, scan: Scan, hidden: list[TransactionSpan], kind: LogKind
    ) -> npt.NDArray[np.bool_]:
        assert scan.records.offset is not None, "requested in to_batches"
        offset = scan.records.offset.to_numpy()
        shown = ~scan.records.is_control
        shown &= (offset >= self.start_offset) & (offset < self.end_offset)
        if kind is LogKind.METADATA:
            for span in hidden:
                shown &= (offset < span.first_offset) | (offset > _marker_offset(span))
            return shown
        batches = scan.batches
        for span in hidden:
            inside = batches.is_transactional & (batches.producer_id == span.producer_id)
            inside &= batches.base_offset >= span.first_offset
            inside &= batches.base_offset < _marker_offset(span)
            shown &= ~inside[scan.records.batch_ordinal]
        return shown


def snapshot_records(snapshot: SnapshotReader) -> Iterator[Record]:
    """Yield the records of a snapshot between its header and its footer."""
    for batch in snapshot.batches():
        if not batch.is_control:
            yield from batch.records()


# --- transactions that are not committed ----------------------------------------------------------


def _marker_offset(span: TransactionSpan) -> int:
    return np.iinfo(np.int64).max if span.marker_offset is None else span.marker_offset


def _hides_batch(hidden: list[TransactionSpan], batch: RecordBatch, kind: LogKind) -> bool:
    """Return whether a batch of a partition is in a transaction that is not committed."""
    if kind is LogKind.METADATA or not batch.is_transactional:
        return False
    return any(
        span.producer_id == batch.producer_id
        and span.first_offset <= batch.base_offset < _marker_offset(span)
        for span in hidden
    )


def _hides_record(hidden: list[TransactionSpan], offset: int, kind: LogKind) -> bool:
    """Return whether a record, or marker, is in a metadata transaction that is not committed."""
    return kind is LogKind.METADATA and any(
        span.first_offset <= offset <= _marker_offset(span) for span in hidden
    )


# --- records of columns ---------------------------------------------------------------------------


def _records(batch: pa.RecordBatch) -> Iterator[Record]:
    columns = [
        batch.column("offset").to_pylist(),
        batch.column("timestamp").view(pa.int64()).to_pylist(),
        batch.column("key").to_pylist(),
        batch.column("value").to_pylist(),
    ]
    headers = batch.column("headers")
    if len(headers.flatten()):
        columns.append(_header_tuples(headers))
    return map(Record, *columns)


def _header_tuples(headers: Any) -> list[tuple[Header, ...]]:
    entries = headers.flatten()
    found = list(map(Header, entries.field("key").to_pylist(), entries.field("value").to_pylist()))
    ends = np.cumsum(headers.value_lengths().to_numpy()).tolist()
    return [tuple(found[start:end]) for start, end in pairwise([0, *ends])]


def _has_replaced_header_key(batch: pa.RecordBatch) -> bool:
    """Return whether a header key may have been invalid UTF-8, which columns do not have."""
    names = batch.column("headers").flatten().field("key")
    return any("\ufffd" in name for name in names.to_pylist())


# --- internal headers -----------------------------------------------------------------------------


def _without_internal_headers(record: Record) -> Record:
    if not any(header.key.startswith(HEADER_PREFIX) for header in record.headers):
        return record
    return Record(
        record.offset,
        record.timestamp_ms,
        record.key,
        record.value,
        _user_headers(record.headers),
    )


def _user_headers(headers: tuple[Header, ...]) -> tuple[Header, ...]:
    return tuple(header for header in headers if not header.key.startswith(HEADER_PREFIX))


def _arrow_batch(scan: Scan, shown: npt.NDArray[np.bool_]) -> pa.RecordBatch:
    records = scan.records
    columns = [
        records.offset,
        None if records.timestamp_ms is None else records.timestamp_ms.view(ARROW_SCHEMA[1].type),
        records.leader_epoch,
        records.key,
        records.value,
        records.headers,
    ]
    assert all(column is not None for column in columns), "all columns were requested"
    batch = pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)
    if not shown.all():
        batch = batch.filter(pa.array(shown))
    headers = batch.column("headers")
    if _has_internal_headers(headers):
        batch = batch.set_column(5, ARROW_SCHEMA[5], _without_internal_columns(headers))
    return batch


def _has_internal_headers(headers: Any) -> bool:
    names = headers.flatten().field("key")
    return len(names) > 0 and any(name.startswith(HEADER_PREFIX) for name in names.to_pylist())


def _without_internal_columns(headers: Any) -> pa.Array:
    kept = [
        [header for header in row if not header["key"].startswith(HEADER_PREFIX)]
        for row in headers.to_pylist()
    ]
    return pa.array(kept, HEADERS_TYPE)
