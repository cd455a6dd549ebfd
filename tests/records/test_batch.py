"""Batches encoded and parsed: every field, every codec, and the limits of a batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.batch_encoding import NewRecordBatch, encode_batch, to_new_batch
from tests.support.batch_strategies import new_batches
from tests.support.record_rows import read_rows, scan_rows

from raftlog.errors import RecordBatchTooLargeError
from raftlog.limits import BATCH_BYTES_MAX, BATCH_HEADER_BYTES
from raftlog.records import (
    Compression,
    Header,
    NewRecord,
    Record,
    RecordBatch,
    TimestampType,
    TornTail,
    iter_batches,
    read_batch,
)

TIME_MS = 1_700_000_000_000


def written(batch: NewRecordBatch, base_offset: int = 0, leader_epoch: int = 1) -> RecordBatch:
    data = encode_batch(batch, base_offset=base_offset, leader_epoch=leader_epoch)
    read = read_batch(data)
    assert isinstance(read, RecordBatch)
    return read


@settings(max_examples=50)
@given(new_batches(), st.integers(0, 2**62), st.integers(-1, 2**31 - 1))
def test_every_field_of_a_batch_round_trips(
    new: NewRecordBatch, base_offset: int, leader_epoch: int
) -> None:
    batch = written(new, base_offset, leader_epoch)
    base_ms = new.base_timestamp_ms if new.delete_horizon_ms is None else new.delete_horizon_ms
    assert (batch.base_offset, batch.leader_epoch) == (base_offset, leader_epoch)
    assert (batch.position, batch.record_count) == (0, len(new.records))
    expected = replace(
        new,
        base_timestamp_ms=base_ms,
        records=tuple(
            replace(one, timestamp_ms=base_ms if one.timestamp_ms is None else one.timestamp_ms)
            for one in new.records
        ),
    )
    assert to_new_batch(batch) == expected
    data = encode_batch(new, base_offset=base_offset, leader_epoch=leader_epoch)
    assert encode_batch(expected, base_offset=base_offset, leader_epoch=leader_epoch) == data


@settings(max_examples=30)
@given(st.lists(new_batches(count_max=5), max_size=4))
def test_the_scan_agrees_with_the_reader_of_batches(batches: list[NewRecordBatch]) -> None:
    data = b"".join(
        encode_batch(new, base_offset=10_000 * ordinal, leader_epoch=ordinal)
        for ordinal, new in enumerate(batches)
    )
    expected = read_rows(data)
    assert (expected.error, expected.end_position) == (None, len(data))
    assert len(expected.rows) == sum(len(new.records) for new in batches)
    assert scan_rows(data) == expected


def test_a_batch_equals_that_of_kraft() -> None:
    new = NewRecordBatch(
        records=(NewRecord(None, b"one"), NewRecord(None, b"two")), base_timestamp_ms=TIME_MS
    )
    batch = written(new, base_offset=7)
    assert batch.next_offset == 9
    assert (batch.base_timestamp_ms, batch.max_timestamp_ms) == (TIME_MS, TIME_MS)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (-1, -1, -1)
    assert list(batch.records()) == [
        Record(7, TIME_MS, None, b"one"),
        Record(8, TIME_MS, None, b"two"),
    ]


def test_a_batch_has_the_latest_timestamp_of_its_records() -> None:
    records = tuple(NewRecord(None, b"", TIME_MS + ms) for ms in (0, 900, -50))
    batch = written(NewRecordBatch(records=records, base_timestamp_ms=TIME_MS))
    assert batch.max_timestamp_ms == TIME_MS + 900
    assert [one.timestamp_ms - TIME_MS for one in batch.records()] == [0, 900, -50]


def test_records_with_log_append_time_have_one_timestamp() -> None:
    new = NewRecordBatch(
        records=(NewRecord(b"k", b"v", TIME_MS), NewRecord(b"k", b"v", TIME_MS + 5)),
        base_timestamp_ms=TIME_MS,
        max_timestamp_ms=TIME_MS + 77,
        timestamp_type=TimestampType.LOG_APPEND_TIME,
    )
    assert {one.timestamp_ms for one in written(new).records()} == {TIME_MS + 77}


@pytest.mark.parametrize("codec", list(Compression))
def test_a_batch_of_many_blocks_round_trips_under_every_codec(codec: Compression) -> None:
    records = tuple(
        NewRecord(b"%d" % ordinal, b"value " * (ordinal % 90), headers=(Header("h", b"1"),))
        for ordinal in range(2_000)
    )
    new = NewRecordBatch(records=records, base_timestamp_ms=TIME_MS, compression=codec)
    data = encode_batch(new, base_offset=3, leader_epoch=1)
    rows = read_rows(data)
    assert [row[4] for row in rows.rows] == [one.value for one in records]
    assert scan_rows(data) == rows


def test_a_batch_above_the_limit_is_refused_with_both_sizes() -> None:
    fits = BATCH_BYTES_MAX - BATCH_HEADER_BYTES - 13
    new = NewRecordBatch(records=(NewRecord(None, bytes(fits)),), base_timestamp_ms=TIME_MS)
    assert len(encode_batch(new, base_offset=0, leader_epoch=1)) == BATCH_BYTES_MAX
    new = NewRecordBatch(records=(NewRecord(None, bytes(fits + 1)),), base_timestamp_ms=TIME_MS)
    with pytest.raises(RecordBatchTooLargeError) as caught:
        encode_batch(new, base_offset=0, leader_epoch=1)
    assert caught.value.byte_count == BATCH_BYTES_MAX + 1
    assert caught.value.byte_count_max == BATCH_BYTES_MAX


def test_a_batch_has_at_most_2_to_the_31_offsets() -> None:
    new = NewRecordBatch(
        records=(NewRecord(None, b""),) * 2, offset_deltas=(0, 2**31), base_timestamp_ms=0
    )
    with pytest.raises(RecordBatchTooLargeError):
        encode_batch(new, base_offset=0, leader_epoch=1)


def test_batches_are_parsed_up_to_a_torn_one() -> None:
    new = NewRecordBatch(records=(NewRecord(None, b"v"),), base_timestamp_ms=TIME_MS)
    data = b"".join(encode_batch(new, base_offset=n, leader_epoch=1) for n in range(3))
    torn = data[:-1]
    batches = list(iter_batches(torn, file_position=100))
    assert [batch.base_offset for batch in batches] == [0, 1]
    end = batches[-1].position + batches[-1].byte_count
    assert read_batch(torn, end - 100, file_position=100) == TornTail(end, len(torn) + 100 - end)
    assert read_batch(data, len(data)) == TornTail(len(data), 0)


def test_the_repr_of_a_batch_has_no_payload() -> None:
    new = NewRecordBatch(records=(NewRecord(None, b"s3cret"),), base_timestamp_ms=TIME_MS)
    assert "s3cret" not in repr(written(new))
