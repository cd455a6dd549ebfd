"""Rows of a range of a log, and of a snapshot.

Rules of this file:

1. A range or a snapshot that is read again yields the same rows.
2. Rows before an error are yielded first.
3. The caller decides what to do about lost records (``on_loss``): raise an error, or continue with
   the log's next record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from raftlog.client import Isolation, LogKind
from raftlog.errors import (
    DataLossError,
    LogNotFoundError,
    QuorumUnavailableError,
    RaftlogError,
    SegmentDeletedError,
)
from raftlog.limits import ARROW_ROWS_DEFAULT

from .data_loss import DataLoss, OnLoss
from .row_builder import RowBuilder, SnapshotPosition
from .transactions import ProducerTransactions, TransactionLookup, Transactions

if TYPE_CHECKING:
    import pyarrow as pa

    from raftlog.client import LogReader, Split
    from raftlog.clock import Clock
    from raftlog.types import SnapshotId
    from raftlog_state.records import DecodedRecord, Redactor

    from .internal_columns import InternalFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSettings:
    """Columns and records of the rows. ``redactor``: for a metadata log, else None.

    ``internal``: the format of another internal log's records, else None. ``cluster_id`` is the
    value of the column ``clusterId``. ``decoded`` receives the records that are decoded, by their
    redacted bytes.
    """

    columns: tuple[str, ...]
    redactor: Redactor | None
    internal: InternalFormat | None = None
    cluster_id: str | None = None
    isolation: Isolation = Isolation.READ_COMMITTED
    with_control: bool = False
    with_aborted: bool = False
    hide_reserved_headers: bool = False
    row_count_max: int = ARROW_ROWS_DEFAULT
    decoded: dict[bytes, DecodedRecord] | None = None


# --- Retries of reads that fail because the node deletes files meanwhile --------------------------
# Few retries with a short backoff, because the caller waits.

ATTEMPTS_MAX: Final = 5
RETRY_BACKOFF_MS: Final = 20

T = TypeVar("T")


def retry(action: Callable[[], T], clock: Clock, *, is_new_read: bool = False) -> T:
    """Call ``action`` until it succeeds; it must list the files again each time.

    ``is_new_read``: also retry after ``DataLossError``, because a read that is being planned can
    start at the new log start offset. ``QuorumUnavailableError`` is not retried, because the client
    has already retried until its timeout.

    Raises the last error after ``ATTEMPTS_MAX`` attempts.
    """
    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            return action()
        except RaftlogError as error:
            is_retriable = error.retriable or (is_new_read and isinstance(error, DataLossError))
            is_retriable &= not isinstance(error, QuorumUnavailableError)
            if not is_retriable or attempt == ATTEMPTS_MAX:
                raise
            clock.pause(RETRY_BACKOFF_MS / 1_000)
    raise AssertionError("the loop returns or raises")


# --- Rows -----------------------------------------------------------------------------------------


def row_builder(
    log: LogReader,
    settings: RowSettings,
    transactions: TransactionLookup,
    snapshot: SnapshotPosition | None = None,
) -> RowBuilder:
    """Return the builder for rows of ``log`` or of one of its snapshots."""
    return RowBuilder(
        columns=settings.columns,
        path=log.path,
        topic=log.topic,
        partition=log.partition,
        cluster_id=settings.cluster_id,
        transactions=transactions,
        redactor=settings.redactor,
        internal=settings.internal,
        snapshot=snapshot,
        with_control=settings.with_control,
        with_aborted=settings.with_aborted,
        hide_reserved_headers=settings.hide_reserved_headers and log.is_raftlog,
        row_count_max=settings.row_count_max,
        decoded=settings.decoded,
    )


def split_rows(
    log: LogReader, split: Split, settings: RowSettings, on_loss: OnLoss
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a planned range of the log.

    Raises:
        CorruptBatchError, LogGapError: the log is damaged; rows before that were yielded.
    """
    builder = row_builder(log, settings, _transactions(log, split, settings.isolation))
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
                on_loss(DataLoss.LOG_TRUNCATED, error.reason)
                return
            on_loss(DataLoss.OFFSETS_DELETED, error.reason)
            offset = max(offset + 1, log.log_start_offset)


def _transactions(log: LogReader, split: Split, isolation: Isolation) -> TransactionLookup:
    if log.kind is LogKind.METADATA:
        return Transactions(split.spans, is_metadata=True)
    if isolation is Isolation.READ_UNCOMMITTED:
        return Transactions.none()
    return ProducerTransactions(log)


def snapshot_rows(
    log: LogReader, snapshot_id: SnapshotId, settings: RowSettings, on_loss: OnLoss
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a snapshot. Raises ``CorruptBatchError`` if it is damaged."""
    snapshot = log.read_snapshot(snapshot_id)
    try:
        timestamp_ms = snapshot.last_contained_log_timestamp_ms
        position = SnapshotPosition(id=snapshot_id, timestamp_ms=timestamp_ms)
        builder = row_builder(log, settings, Transactions.none(), position)
        for scan in snapshot.scan(columns=builder.scan_columns()):
            yield from builder.build(scan)
    except (LogNotFoundError, SegmentDeletedError):
        reason = f"snapshot {snapshot_id} was deleted after the read was planned"
        on_loss(DataLoss.SNAPSHOT_DELETED, reason)
