"""What a task sends to the driver: its rows as Arrow IPC bytes, with their length and CRC-32C.

Rules of this file:

1. The rows are bytes that the driver checks before it reads them. Spark pickles the message around
   them, so that one holds plain values only.
2. A task whose own rows are too many for one record batch sends how many bytes they take, and not
   the rows: the driver refuses the write, and nobody tries the task again in vain.
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
    """The rows of one partition. ``byte_count`` is what they take as records, at least.

    ``data`` is None if they are too many. ``data_byte_count`` and ``crc`` are of ``data``.
    ``query_id`` names a stream's query.
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
    """Put converted rows into a message; on an executor."""
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
    """The rows of a message; on the driver. Raises ``CommitMessageError``."""
    where = f"those of partition {message.partition}"
    data = message.data
    if data is None:
        raise CommitMessageError(reason=f"{where} were not sent")
    if len(data) != message.data_byte_count:
        _refuse(f"{where} are {len(data)} bytes and were sent as {message.data_byte_count}")
    if crc32c(data) != message.crc:
        _refuse(f"the CRC of {where} does not hold")
    try:
        with pa.ipc.open_stream(data) as stream:
            rows = stream.read_all()
    except (pa.ArrowInvalid, OSError):
        _refuse(f"{where} are no Arrow stream")
    if not rows.schema.equals(schema) or rows.num_rows != message.row_count:
        _refuse(f"{where} have other columns, or another number of rows, than were sent")
    return rows


def in_order(messages: Sequence[object]) -> list[RowsMessage]:
    """The messages of one write, by partition. Raises ``CommitMessageError``."""
    found: list[RowsMessage] = []
    for message in messages:
        if not isinstance(message, RowsMessage):
            _refuse("a task sent none")
        found.append(message)
    found.sort(key=lambda message: message.partition)
    partitions = [message.partition for message in found]
    if len(set(partitions)) != len(partitions):
        _refuse("two tasks sent the same partition")
    return found


def query_of(messages: Sequence[RowsMessage]) -> str:
    """The query that all messages of a micro-batch name. Raises ``CommitMessageError``."""
    queries = {message.query_id for message in messages}
    query_id = queries.pop() if len(queries) == 1 else None
    if not query_id:
        _refuse("they do not all name the same query")
    return query_id


def _refuse(reason: str) -> NoReturn:
    raise CommitMessageError(reason=reason)
