"""Commit message of a task: its rows as Arrow IPC bytes, with their length and CRC-32C.

The driver checks the bytes before it decodes them. Spark pickles the message, so it has plain
values only. A task whose rows exceed one record batch sends their size without the rows: the driver
fails the write, whereas an error in the task would be retried by Spark in vain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import pyarrow as pa
from crc32c import crc32c
from pyspark.sql.datasource import WriterCommitMessage

from raftlog.errors import CommitMessageError

from .write_rows import min_byte_count


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
    except (pa.ArrowInvalid, OSError):
        _refuse(f"{where} is not an Arrow stream")
    if not rows.schema.equals(schema) or rows.num_rows != message.row_count:
        _refuse(f"{where} has other columns, or another number of rows, than were sent")
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
