"""Messages of tasks with mutated Arrow bytes and a valid CRC: refused, or rows that can be read."""

from __future__ import annotations

from typing import Final

import pytest
from crc32c import crc32c
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    StringType,
    StructType,
    TimestampType,
)
from tests.support.corpora import COUNT, SEED, Input, fuzz

from pyspark_raftlog import commit
from pyspark_raftlog.commit import RowsMessage, unpack_rows
from pyspark_raftlog.errors import CommitMessageError
from pyspark_raftlog.sink_rows import input_columns, message_schema, records_of
from raftlog import ValueKind

HEADER: Final = StructType().add("key", StringType()).add("value", BinaryType())
COLUMNS: Final = (
    StructType()
    .add("value", BinaryType())
    .add("key", BinaryType())
    .add("headers", ArrayType(HEADER))
    .add("timestamp", TimestampType())
)
SCHEMA: Final = message_schema(input_columns(COLUMNS, ValueKind.BYTES))
NAME: Final = "commit-messages"


def run(given: Input) -> None:
    """Unpack a message, of which the corpus has the number of rows and the bytes."""
    count, data = given
    message = RowsMessage(
        partition=0,
        row_count=int(count) if count.isdigit() else 0,
        byte_count=0,
        data=data,
        data_byte_count=len(data),
        crc=crc32c(data),
    )
    try:
        rows = unpack_rows(message, SCHEMA)
    except CommitMessageError:
        return
    assert len(records_of(rows)) == message.row_count


def test_mutated_messages_are_refused_or_have_rows() -> None:
    fuzz(NAME, run, {commit}, seed=1, count=300)


@pytest.mark.nightly
def test_many_mutated_messages_are_refused_or_have_rows() -> None:
    fuzz(NAME, run, {commit}, seed=SEED, count=COUNT)
