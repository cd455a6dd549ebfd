"""The batch reader, and the reading of one partition, shared by batch and stream."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, TypeVar

from pyspark.sql.datasource import DataSourceReader, InputPartition

from raftlog.client import Isolation, LogKind, LogReader
from raftlog.client.clock import Clock
from raftlog.client.location import open_reader
from raftlog.errors import DataLossError, LogNotFoundError, RaftlogError, SegmentDeletedError
from raftlog_state.records import Redactor

from .arrow import RowBuilder, SnapshotPosition, rebatch
from .errors import DataLoss, data_loss
from .planning import LogRange, SnapshotRows, plan_batch
from .transactions import ProducerTransactions, TransactionLookup, Transactions

if TYPE_CHECKING:
    import pyarrow as pa

    from raftlog.client import Split
    from raftlog.types import SnapshotId

    from .options import RaftlogOptions


# --- Retries of reads that fail because the node deletes files meanwhile --------------------------
# Few and with a short backoff, since the query waits.

ATTEMPTS_MAX: Final = 5
RETRY_BACKOFF_MS: Final = 20

T = TypeVar("T")


def retry(action: Callable[[], T], clock: Clock, *, is_new_read: bool = False) -> T:
    """Call ``action`` until it succeeds; it must list the files again each time.

    ``is_new_read``: also retry after ``DataLossError``, since a read that is being planned can
    start at the new log start offset.

    Raises the last error after ``ATTEMPTS_MAX`` attempts.
    """
    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            return action()
        except RaftlogError as error:
            is_retriable = error.retriable or (is_new_read and isinstance(error, DataLossError))
            if not is_retriable or attempt == ATTEMPTS_MAX:
                raise
            clock.pause(RETRY_BACKOFF_MS / 1_000)
    raise AssertionError("the loop returns or raises")


# --- Reader of a batch query ----------------------------------------------------------------------

_LOGGER: Final = logging.getLogger("pyspark_raftlog")


def open_source(options: RaftlogOptions) -> LogReader:
    """Open the log that the options name."""
    limit = options.decompressed_bytes_max
    return open_reader(options, options.kind, decompressed_bytes_max=limit)


class RaftlogReader(DataSourceReader):
    """Reader of one DataFrame, whose range is fixed when it is planned.

    Spark pickles it and sends it to executors: it has options and column names only.
    """

    def __init__(
        self, options: RaftlogOptions, columns: tuple[str, ...], clock: Clock | None = None
    ) -> None:
        self._options = options
        self._columns = columns
        self._clock = clock or Clock()

    def partitions(self) -> list[InputPartition]:
        """Plan the partitions; on the driver, once."""

        def plan() -> list[InputPartition]:
            log = open_source(self._options)
            return plan_batch(log, self._options, now_ms=self._clock.wall_ms())

        return retry(plan, self._clock, is_new_read=True)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition; on an executor."""
        return read_partition(partition, self._options, self._columns)


def read_partition(
    partition: InputPartition, options: RaftlogOptions, columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of ``partition`` as Arrow batches of about ``recordBatchRows`` rows.

    Raises:
        DataLossError: planned records were deleted, and ``failOnDataLoss`` is true.
        CorruptBatchError, LogGapError: the log is damaged; rows before that were yielded.
    """
    log = open_source(options)
    match partition:
        case SnapshotRows():
            batches = _snapshot_rows(log, partition.snapshot_id, options, columns)
        case LogRange():
            batches = _log_rows(log, partition.split, options, columns)
        case _:
            raise AssertionError("a partition of another source")
    yield from rebatch(batches, options.record_batch_rows)


def row_builder(
    log: LogReader,
    options: RaftlogOptions,
    columns: tuple[str, ...],
    transactions: TransactionLookup,
    snapshot: SnapshotPosition | None = None,
) -> RowBuilder:
    """Return the builder for rows of ``log`` or of one of its snapshots."""
    redactor = None
    if log.kind is LogKind.METADATA:
        redactor = Redactor(key=options.redact_key, reveal=not options.redact)
    return RowBuilder(
        columns=columns,
        path=log.path,
        topic=log.topic,
        partition=log.partition,
        transactions=transactions,
        redactor=redactor,
        snapshot=snapshot,
        with_control=options.include_control_records,
        with_aborted=options.includes_aborted,
        hide_reserved_headers=options.include_headers and log.is_raftlog,
        row_count_max=options.record_batch_rows,
    )


def _log_rows(
    log: LogReader, split: Split, options: RaftlogOptions, columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    builder = row_builder(log, options, columns, _transactions(log, split, options))
    needed = builder.scan_columns()
    offset, end_offset = split.start_offset, split.end_offset
    while offset < end_offset:
        try:
            for scan in log.scan(offset, end_offset, columns=needed):
                yield from builder.build(scan)
                offset = int(scan.batches.next_offset[-1])
            return
        except DataLossError as error:
            log.refresh()
            is_truncated = error.condition == DataLoss.LOG_TRUNCATED
            if is_truncated or offset >= log.log_end_offset:
                _lose(options, DataLoss.LOG_TRUNCATED, log.path, error.reason)
                return
            _lose(options, DataLoss.OFFSETS_DELETED, log.path, error.reason)
            offset = max(offset + 1, log.log_start_offset)


def _transactions(log: LogReader, split: Split, options: RaftlogOptions) -> TransactionLookup:
    if log.kind is LogKind.METADATA:
        return Transactions(split.spans, is_metadata=True)
    if options.isolation is Isolation.READ_UNCOMMITTED:
        return Transactions.none()
    return ProducerTransactions(log)


def _snapshot_rows(
    log: LogReader, snapshot_id: SnapshotId, options: RaftlogOptions, columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    snapshot = log.read_snapshot(snapshot_id)
    try:
        timestamp_ms = snapshot.last_contained_log_timestamp_ms
        position = SnapshotPosition(id=snapshot_id, timestamp_ms=timestamp_ms)
        builder = row_builder(log, options, columns, Transactions.none(), position)
        for scan in snapshot.scan(columns=builder.scan_columns()):
            yield from builder.build(scan)
    except (LogNotFoundError, SegmentDeletedError):
        reason = f"snapshot {snapshot_id} was deleted after the read was planned"
        _lose(options, DataLoss.SNAPSHOT_DELETED, log.path, reason)


def _lose(options: RaftlogOptions, condition: DataLoss, path: str, reason: str) -> None:
    loss = data_loss(condition, path=path, reason=reason)
    if options.fail_on_data_loss:
        raise loss from None
    _LOGGER.warning("%s; continuing without these records", loss)
