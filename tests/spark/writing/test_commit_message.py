"""Messages of tasks: used completely, in order and from one write, or not at all."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pyarrow as pa
import pytest

from pyspark_raftlog.commit import (
    RowsMessage,
    in_order,
    pack_rows,
    query_of,
    unpack_rows,
)
from pyspark_raftlog.errors import CommitMessageError

SCHEMA = pa.schema([("value", pa.binary())])


def batch(*values: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], schema=SCHEMA)


def packed(*batches: pa.RecordBatch, partition: int = 0, limit: int = 10_000) -> RowsMessage:
    return pack_rows(batches, SCHEMA, partition=partition, byte_count_max=limit, query_id="q")


def test_rows_round_trip() -> None:
    sent = packed(batch(b"a", b"bc"), batch(), batch(b"d"))
    arrived = pickle.loads(pickle.dumps(sent))
    assert unpack_rows(arrived, SCHEMA)["value"].to_pylist() == [b"a", b"bc", b"d"]
    assert (arrived.row_count, arrived.byte_count) == (3, 4 + 3 * 7)
    assert b"bc" not in repr(sent).encode()


def test_no_rows_are_a_valid_message() -> None:
    assert unpack_rows(packed(), SCHEMA).num_rows == 0


def test_too_many_rows_are_counted_and_not_sent() -> None:
    sent = packed(batch(b"x" * 50), batch(b"y" * 50), batch(b"z"), limit=100)
    assert sent.data is None
    assert (sent.row_count, sent.byte_count) == (3, 101 + 3 * 7)
    with pytest.raises(CommitMessageError, match="was not sent"):
        unpack_rows(sent, SCHEMA)


def test_any_flipped_bit_is_found() -> None:
    sent = packed(batch(b"a", b"bc"))
    assert sent.data is not None
    for bit in range(len(sent.data) * 8):
        data = bytearray(sent.data)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CommitMessageError, match="partition 0 has a wrong CRC"):
            unpack_rows(dataclasses.replace(sent, data=bytes(data)), SCHEMA)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data": b""}, "has 0 bytes, not the"),
        ({"data": b"no Arrow", "data_byte_count": 8, "crc": 0x5E3BD6E3}, "CRC"),
        ({"row_count": 2}, "another number of rows"),
    ],
)
def test_rows_above_the_limit_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(CommitMessageError, match=words):
        unpack_rows(dataclasses.replace(packed(batch(b"a")), **change), SCHEMA)


def test_other_columns_are_refused() -> None:
    with pytest.raises(CommitMessageError, match="other columns"):
        unpack_rows(packed(batch(b"a")), pa.schema([("value", pa.string())]))


def test_messages_are_sorted_by_partition() -> None:
    one, two = packed(partition=1), packed(partition=2)
    assert in_order([two, one]) == [one, two]
    for wrong in ([one, None], [one, one], [one, "two"]):
        with pytest.raises(CommitMessageError):
            in_order(wrong)


def test_the_messages_of_a_micro_batch_are_of_one_query() -> None:
    one = packed(partition=1)
    assert query_of([one, packed(partition=2)]) == "q"
    for other in (None, "", "p"):
        with pytest.raises(CommitMessageError, match="same query"):
            query_of([one, dataclasses.replace(packed(partition=2), query_id=other)])
