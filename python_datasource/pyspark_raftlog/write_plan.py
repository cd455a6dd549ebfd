"""Plan of a write, and its execution by a task.

The driver reads from the log the kind of its values, its batch limit and, for rows without
``recordVersion``, the record versions of its metadata.version; executors do not access the log. A
missing log is not created: a mistyped path would be a new, empty log. A plan has plain values,
since Spark pickles it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from raftlog import ValueKind
from raftlog.client.location import open_reader
from raftlog.limits import BATCH_HEADER_BYTES, RAW_BATCH_BYTES_MAX

from .commit_message import RowsMessage, pack_rows
from .connection import log_settings, open_log_settings
from .write_options import WriteOptions
from .write_rows import RowConverter, message_schema
from .write_schema import InputColumns, RecordForm, input_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from raftlog import ConnectedLog
    from raftlog.client import LogReader
    from raftlog_state.record_versions import RecordVersions

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
        versions = _versions_of(open_reader(options) if log is None else log.reader())
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
    from raftlog_state.image_reader import ImageReader
    from raftlog_state.record_versions import RecordVersions
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
