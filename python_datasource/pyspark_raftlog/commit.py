"""The append of a write: its plan, the messages of its tasks, and one batch on the driver."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NoReturn

import pyarrow as pa
from crc32c import crc32c
from pyspark.sql.datasource import WriterCommitMessage

from pyspark_raftlog.errors import CommitMessageError, CommitTooLargeError
from raftlog import ValueKind
from raftlog.client.location import open_log as open_log_of
from raftlog.client.location import open_reader
from raftlog.errors import AppendUnknownError, ForeignCommitError, RecordBatchTooLargeError
from raftlog.limits import BATCH_HEADER_BYTES, RAW_BATCH_BYTES_MAX

from .options import WriteOptions, log_settings, open_log_settings
from .sink_rows import (
    InputColumns,
    RecordForm,
    RowConverter,
    has_null_headers,
    input_columns,
    message_schema,
    min_byte_count,
    records_of,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from raftlog import AppendResult, CommitName, ConnectedLog
    from raftlog.client import LogReader
    from raftlog.client.location import AnyLog
    from raftlog.records.encoding import RecordToAppend
    from raftlog_state.image.record_versions import RecordVersions


# --- Commit message of a task: its rows as Arrow IPC bytes, with their length and CRC-32C ---------
# The driver checks the bytes before it decodes them. Spark pickles the message, so it has plain
# values only. A task whose rows exceed one record batch sends their size without the rows: the
# driver fails the write, whereas an error in the task would be retried by Spark without success.


@dataclass(frozen=True, kw_only=True)
class RowsMessage(WriterCommitMessage):
    """Rows of one partition. ``byte_count`` is their minimum size as records.

    ``data`` is None if that exceeds the limit. ``data_byte_count`` and ``crc`` describe ``data``.
    ``query_id`` is the id of a stream's query.
    """

    partition: int
    row_count: int
    byte_count: int
    data: bytes | None = field(repr=False)
    data_byte_count: int = 0
    crc: int = 0
    query_id: str | None = None


def pack_rows(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    *,
    partition: int,
    byte_count_max: int,
    query_id: str | None = None,
) -> RowsMessage:
    """Pack converted rows into a message; on an executor."""
    row_count = byte_count = 0
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        for batch in batches:
            row_count += batch.num_rows
            byte_count += min_byte_count(batch)
            if byte_count <= byte_count_max:
                stream.write_batch(batch)
    if byte_count > byte_count_max:
        return RowsMessage(
            partition=partition,
            row_count=row_count,
            byte_count=byte_count,
            data=None,
            query_id=query_id,
        )
    data = sink.getvalue().to_pybytes()
    return RowsMessage(
        partition=partition,
        row_count=row_count,
        byte_count=byte_count,
        data=data,
        data_byte_count=len(data),
        crc=crc32c(data),
        query_id=query_id,
    )


def unpack_rows(message: RowsMessage, schema: pa.Schema) -> pa.Table:
    """Return the rows of a message; on the driver. Raises ``CommitMessageError``."""
    where = f"partition {message.partition}"
    data = message.data
    if data is None:
        raise CommitMessageError(reason=f"{where} was not sent")
    if len(data) != message.data_byte_count:
        _refuse(f"{where} has {len(data)} bytes, not the {message.data_byte_count} that were sent")
    if crc32c(data) != message.crc:
        _refuse(f"{where} has a wrong CRC")
    try:
        with pa.ipc.open_stream(data) as stream:
            rows = stream.read_all()
        rows.validate(full=True)
    except (pa.ArrowException, OSError, MemoryError):
        _refuse(f"{where} is not an Arrow stream")
    if not rows.schema.equals(schema) or rows.num_rows != message.row_count:
        _refuse(f"{where} has other columns, or another number of rows, than were sent")
    if has_null_headers(rows):
        _refuse(f"{where} has a header without a key")
    return rows


def in_order(messages: Sequence[object]) -> list[RowsMessage]:
    """Return the messages of a write in the order of partitions. Raises ``CommitMessageError``."""
    found: list[RowsMessage] = []
    for message in messages:
        if not isinstance(message, RowsMessage):
            _refuse("a task sent no rows message")
        found.append(message)
    found.sort(key=lambda message: message.partition)
    partitions = [message.partition for message in found]
    if len(set(partitions)) != len(partitions):
        _refuse("two tasks sent the same partition")
    return found


def query_of(messages: Sequence[RowsMessage]) -> str:
    """Return the query id of a micro-batch's messages. Raises ``CommitMessageError``."""
    queries = {message.query_id for message in messages}
    query_id = queries.pop() if len(queries) == 1 else None
    if not query_id:
        _refuse("not all tasks name the same query")
    return query_id


def _refuse(reason: str) -> NoReturn:
    raise CommitMessageError(reason=reason)


# --- Plan of a write, and its execution by a task -------------------------------------------------
# The driver reads from the log the kind of its values, its batch limit and, for rows without
# ``recordVersion``, the record versions of its metadata.version; executors do not access the log. A
# missing log is not created: a mistyped path would be a new, empty log. A plan has plain values,
# since Spark pickles it.

_QUERY_ID: Final = "sql.streaming.queryId"
"""Local property with the query id in tasks of a stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """Plan of a write. Sizes are of the record batch, before compression.

    ``byte_count_max`` is the limit of this write, ``log_byte_count_max`` that of the log.
    ``versions`` is set for metadata records without ``recordVersion``.
    """

    options: WriteOptions
    values: ValueKind
    columns: InputColumns
    byte_count_max: int
    log_byte_count_max: int
    versions: RecordVersions | None = None


def plan_write(
    options: WriteOptions, schema: StructType, *, log: ConnectedLog | None = None
) -> WritePlan:
    """Plan a write to the log of ``options``, or to a connected ``log``; on the driver.

    Raises ``LogNotFoundError``, ``NotALogError`` (also for a log not created by raftlog),
    ``CorruptFileError``, ``WriteSchemaError``; and for metadata records without versions the errors
    of ``ImageReader.image_at``, which reads the metadata.version.
    """
    settings = log_settings(options) if log is None else open_log_settings(log)
    wanted = options.max_bytes_per_commit
    if wanted is None:
        wanted = RAW_BATCH_BYTES_MAX if settings.is_compressed else settings.byte_count_max
    elif not settings.is_compressed:
        wanted = min(wanted, settings.byte_count_max)
    else:
        wanted = min(wanted, RAW_BATCH_BYTES_MAX)
    columns = input_columns(schema, settings.values)
    versions = None
    if _lack_versions(columns):
        if log is None:
            with open_reader(options) as reader:
                versions = _versions_of(reader)
        else:
            versions = _versions_of(log.reader())  # over the connections of the caller's log
    return WritePlan(
        options=options,
        values=settings.values,
        columns=columns,
        byte_count_max=wanted,
        log_byte_count_max=settings.byte_count_max,
        versions=versions,
    )


def _lack_versions(columns: InputColumns) -> bool:
    return columns.form is not RecordForm.VALUE and "recordVersion" not in columns.names


def _versions_of(log: LogReader) -> RecordVersions:
    from raftlog_state.image.record_versions import RecordVersions
    from raftlog_state.loader.image_reader import ImageReader
    from raftlog_state.records import Redactor

    images = ImageReader(log, Redactor())
    return RecordVersions.of_image(images.image_at(images.end_offset()))


def run_task(plan: WritePlan, rows: Iterable[pa.RecordBatch]) -> RowsMessage:
    """Convert the rows of one partition; on an executor. Raises ``InvalidRowError``."""
    from pyspark import TaskContext

    context = TaskContext.get()
    partition = 0 if context is None else context.partitionId()
    converter = RowConverter(plan.columns, plan.values, partition, plan.versions)
    return pack_rows(
        map(converter.convert, rows),
        message_schema(plan.columns),
        partition=partition,
        byte_count_max=plan.byte_count_max - BATCH_HEADER_BYTES,
        query_id=None if context is None else context.getLocalProperty(_QUERY_ID),
    )


# --- The append of a write, on the driver, after all tasks have sent their rows -------------------
# Invariants:
#
# 1. All rows are one record batch, in the order of partitions and then of rows, so that no reader
#    sees a part of them.
# 2. An append with a commit name is retried if its outcome is unknown: the log deduplicates it by
#    the name. An append without a name is never retried.
# 3. The log is open, and locked, only during the append.

_LOGGER: Final = logging.getLogger("pyspark_raftlog")
ATTEMPTS_MAX: Final = 4
"""Attempts of an append with a commit name while its outcome is unknown."""


def append_rows(
    plan: WritePlan,
    messages: Sequence[RowsMessage],
    commit: CommitName | None = None,
    *,
    open_log: Callable[[str], AbstractContextManager[AnyLog]] | None = None,
) -> AppendResult | None:
    """Append all rows as one batch; return None if there are neither rows nor offsets to check.

    ``open_log`` opens the log for each attempt; by default the log that the options name.

    Raises ``CommitMessageError``, ``CommitTooLargeError``, and what ``EmbeddedLog.append`` raises.
    """
    _check_size(plan, messages)
    schema = message_schema(plan.columns)
    records = [
        record for message in messages for record in records_of(unpack_rows(message, schema))
    ]
    options = plan.options
    requirements = (
        options.required_base_offset,
        options.required_end_offset,
        options.required_epoch,
    )
    if not records and commit is None and all(one is None for one in requirements):
        return None
    opened = open_log or (lambda _: open_log_of(options))
    result = _append_with_retries(plan, records, commit, opened)
    if result.was_duplicate:
        _LOGGER.warning(
            "%s already contains %s, at offsets %d to %d; nothing was written",
            options.path,
            commit,
            result.base_offset,
            result.last_offset,
        )
    return result


def _check_size(plan: WritePlan, messages: Sequence[RowsMessage]) -> None:
    byte_count = BATCH_HEADER_BYTES + sum(message.byte_count for message in messages)
    if byte_count > plan.byte_count_max:
        raise _too_large(plan, byte_count, plan.byte_count_max)


def _too_large(plan: WritePlan, byte_count: int, byte_count_max: int) -> CommitTooLargeError:
    return CommitTooLargeError(
        path=plan.options.path,
        byte_count=byte_count,
        byte_count_max=byte_count_max,
        log_byte_count_max=plan.log_byte_count_max,
    )


def _append_with_retries(
    plan: WritePlan,
    records: list[RecordToAppend],
    commit: CommitName | None,
    open_log: Callable[[str], AbstractContextManager[AnyLog]],
) -> AppendResult:
    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            with open_log(plan.options.path) as log:
                return _append(plan, log, records, commit)
        except AppendUnknownError as unknown:
            if commit is None or not records or attempt == ATTEMPTS_MAX:
                raise
            _LOGGER.warning("%s; retrying %s", unknown, commit)
    raise AssertionError("the loop returns or raises")


def _append(
    plan: WritePlan, log: AnyLog, records: list[RecordToAppend], commit: CommitName | None
) -> AppendResult:
    options = plan.options

    def append(take_over_from: str | None) -> AppendResult:
        return log.append(
            records,
            epoch=options.required_epoch,
            required_base_offset=options.required_base_offset,
            required_end_offset=options.required_end_offset,
            atomic=True,
            commit=commit,
            take_over_from=take_over_from,
        )

    try:
        try:
            return append(None)
        except ForeignCommitError as foreign:
            if options.txn_take_over_from != foreign.last_query_id:
                raise
            _LOGGER.warning(
                "%s: %s takes over from query %s", options.path, commit, foreign.last_query_id
            )
            return append(foreign.last_query_id)
    except RecordBatchTooLargeError as large:
        raise _too_large(plan, large.byte_count, large.byte_count_max) from None
