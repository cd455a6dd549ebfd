"""The batch reader, and the reading of one partition, shared by batch and stream."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition

from raftlog.client import LogKind, LogReader
from raftlog.client.location import open_reader
from raftlog.clock import Clock
from raftlog.errors import LogNotFoundError, WrongClusterError
from raftlog.types import INTERNAL_TOPICS
from raftlog_state.records import Redactor
from raftlog_state.source_rows.data_loss import DataLoss
from raftlog_state.source_rows.reading import RowSettings, retry, snapshot_rows, split_rows
from raftlog_state.source_rows.row_builder import rebatch

from .errors import data_loss
from .options import Redaction, typed_columns_refused
from .planning import LogPart, LogRange, PackedParts, SnapshotRows, plan_batch

if TYPE_CHECKING:
    import pyarrow as pa

    from .options import RaftlogOptions


_LOGGER: Final = logging.getLogger("pyspark_raftlog")


def open_source(options: RaftlogOptions) -> LogReader:
    """Open the log that the options name.

    Raises ``OptionError`` for typed columns of a log that is not a metadata log.
    """
    limit = options.decompressed_bytes_max
    log = open_reader(options, options.kind, decompressed_bytes_max=limit)
    if options.has_typed_columns and log.kind is not LogKind.METADATA:
        log.close()
        raise typed_columns_refused(f"a metadata log instead of {log.path}")
    return log


class RaftlogReader(DataSourceReader):
    """Reader of one DataFrame, whose range is fixed when it is planned.

    Spark pickles it and sends it to executors: it contains only options and column names.
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
            with open_source(self._options) as log:
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
        WrongClusterError: one of several logs was replaced with another cluster's.
    """
    rows: Iterator[pa.RecordBatch]
    match partition:
        case PackedParts():
            rows = chain.from_iterable(_part_rows(part, columns) for part in partition.parts)
        case LogRange() | SnapshotRows():
            rows = _rows_of_task(partition, options, columns)
        case _:
            raise AssertionError("a partition of another source")
    yield from rebatch(rows, options.record_batch_rows)


def _rows_of_task(
    partition: LogRange | SnapshotRows, options: RaftlogOptions, columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    with _open_on_executor(options) as log:
        yield from _rows(log, partition, options, columns)


def _open_on_executor(options: RaftlogOptions) -> LogReader:
    """Open the log, which the driver has already read. Raises the errors of ``open_source``."""
    try:
        return open_source(options)
    except LogNotFoundError as error:
        remedy = (
            "the driver has read it: mount it at this path on every executor, or read from the "
            "nodes with bootstrap.servers"
        )
        raise LogNotFoundError(path=error.path, remedy=remedy) from None


def _part_rows(part: LogPart, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    try:
        log = open_source(part.options)
    except LogNotFoundError as error:
        reason = (
            "the driver has read the log, which this executor does not have: it was deleted, or "
            "is not mounted at this path on every executor"
        )
        loss = data_loss(DataLoss.LOG_MISSING, path=error.path, reason=reason)
        if part.options.fail_on_data_loss:
            raise loss from None
        _LOGGER.warning("%s; continuing without these records", loss)
        return
    with log:
        cluster_id = None
        if part.options.partition is None:
            cluster_id = part.log_id
            check_cluster(log, cluster_id)
        yield from _rows(log, part.rows, part.options, columns, cluster_id)


def check_cluster(log: LogReader, cluster_id: str) -> None:
    """Raise ``WrongClusterError`` if the log has another cluster id.

    ``cluster_id`` may be the id of one of the cluster's internal logs.
    """
    from raftlog_state.records.internal_logs import cluster_of

    if log.cluster_id not in (None, cluster_of(cluster_id)):
        raise WrongClusterError(
            path=log.path,
            expected_cluster_id=cluster_id,
            cluster_id=log.cluster_id,
            remedy="correct the location or the clusterId of this source",
        )


def _rows(
    log: LogReader,
    partition: LogRange | SnapshotRows,
    options: RaftlogOptions,
    columns: tuple[str, ...],
    cluster_id: str | None = None,
) -> Iterator[pa.RecordBatch]:
    settings = row_settings(log, options, columns, cluster_id)

    def on_loss(condition: DataLoss, reason: str) -> None:
        loss = data_loss(condition, path=log.path, reason=reason)
        if options.fail_on_data_loss:
            raise loss from None
        _LOGGER.warning("%s; continuing without these records", loss)

    match partition:
        case SnapshotRows():
            return snapshot_rows(log, partition.snapshot_id, settings, on_loss)
        case LogRange():
            return split_rows(log, partition.split, settings, on_loss)


def redactor_of(options: RaftlogOptions) -> Redactor:
    """Return the redactor that the options select."""
    return Redactor(
        key=options.redact_key,
        reveal=options.redaction is Redaction.OFF,
        full=options.redaction is Redaction.FULL,
    )


def row_settings(
    log: LogReader,
    options: RaftlogOptions,
    columns: tuple[str, ...],
    cluster_id: str | None = None,
) -> RowSettings:
    """Return the columns and records that the options select."""
    redactor = redactor_of(options)
    internal = None
    if log.kind is LogKind.PARTITION and options.kind is None and log.topic in INTERNAL_TOPICS:
        # a fifth of a worker's imports, which other logs do not need
        from raftlog_state.records.internal_logs import INTERNAL_LOGS
        from raftlog_state.source_rows.internal_columns import InternalFormat

        internal = InternalFormat(INTERNAL_LOGS[log.topic], redactor)
    return RowSettings(
        columns=columns,
        redactor=redactor if log.kind is LogKind.METADATA else None,
        internal=internal,
        cluster_id=cluster_id,
        isolation=options.isolation,
        with_control=options.include_control_records,
        with_aborted=options.includes_aborted,
        hide_reserved_headers=options.include_headers,
        row_count_max=options.record_batch_rows,
    )
