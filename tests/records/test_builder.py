"""Batch builder: what fits, the finished batch, and the encoding of records.

The behaviour that Kafka's ``BatchBuilderTest`` and ``BatchMemoryPoolTest`` check.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.batch_strategies import HEADERS, MAYBE_BYTES, TIMES_MS

import raftlog.records.builder as builder_module
from raftlog.errors import InvalidAppendError, RecordBatchTooLargeError
from raftlog.limits import BATCH_HEADER_BYTES
from raftlog.records import (
    BatchBuilder,
    Compression,
    Header,
    NewRecord,
    NewRecordBatch,
    ProducerStamp,
    RecordBatch,
    RecordToAppend,
    encode_batch,
    read_batch,
)
from raftlog.records.encoding import RecordsToEncode, encode_records, record_byte_counts
from raftlog.records.record import StoredRecord, record_bytes, wrapped_int64

TIME_MS = 1_700_000_000_000
SEVEN_BYTES_AND_A_VALUE = 7


def builder_of(byte_count_max: int, compression: Compression = Compression.NONE) -> BatchBuilder:
    return BatchBuilder(
        base_timestamp_ms=TIME_MS, byte_count_max=byte_count_max, compression=compression
    )


def read(data: bytes) -> RecordBatch:
    batch = read_batch(data)
    assert isinstance(batch, RecordBatch)
    assert batch.byte_count == len(data)
    return batch


# --- finished batches (BatchBuilderTest.testBuildBatch) -------------------------------------------


@pytest.mark.parametrize("compression", Compression)
def test_a_finished_batch_has_the_appended_records(compression: Compression) -> None:
    values = [b"a" * length for length in range(1, 500)]
    builder = builder_of(1 << 20, compression)
    for value in values:
        builder.append([value])
    batch = read(builder.build(57, 15).data)
    assert (batch.base_offset, batch.last_offset, batch.leader_epoch) == (57, 57 + 498, 15)
    assert (batch.compression, batch.is_control, batch.is_transactional) == (
        compression,
        False,
        False,
    )
    assert batch.max_timestamp_ms == batch.base_timestamp_ms == TIME_MS
    records = list(batch.records())
    assert [record.value for record in records] == values
    assert [record.offset for record in records] == list(range(57, 57 + 499))
    assert {record.timestamp_ms for record in records} == {TIME_MS}
    assert {(record.key, record.headers) for record in records} == {(None, ())}


def test_a_producers_batch_has_its_id() -> None:
    builder = BatchBuilder(
        base_timestamp_ms=TIME_MS, producer=ProducerStamp(9, 2, 2**31 - 1, is_transactional=True)
    )
    builder.append([b"a", b"b"])
    batch = read(builder.build(0, 1).data)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (9, 2, 2**31 - 1)
    assert batch.is_transactional


@pytest.mark.parametrize(
    ("times_ms", "latest_ms"),
    [([None, 5], TIME_MS), ([5, 7], 7), ([5, None], TIME_MS), ([TIME_MS + 1, 5], TIME_MS + 1)],
)
def test_the_latest_timestamp_includes_records_with_the_batchs_own(
    times_ms: list[int | None], latest_ms: int
) -> None:
    builder = builder_of(1000)
    for time_ms in times_ms:
        builder.append([NewRecord(None, b"v", time_ms)])
    assert builder.max_timestamp_ms == latest_ms
    batch = read(builder.build(0, 1).data)
    assert batch.max_timestamp_ms == latest_ms
    assert [record.timestamp_ms for record in batch.records()] == [
        TIME_MS if time_ms is None else time_ms for time_ms in times_ms
    ]
    records = tuple(NewRecord(None, b"v", time_ms) for time_ms in times_ms)
    same = NewRecordBatch(records=records, base_timestamp_ms=TIME_MS)
    assert builder.build(0, 1).data == encode_batch(same, base_offset=0, leader_epoch=1)


def test_finishing_a_batch_without_records_is_an_error() -> None:
    with pytest.raises(AssertionError):
        builder_of(1000).build(0, 1)


# --- what fits (BatchBuilderTest.testHasRoomForUncompressed) --------------------------------------


@pytest.mark.parametrize("byte_count_max", [128, 157, 256, 433, 512, 777, 1024])
def test_a_batch_is_filled_exactly_up_to_its_limit(byte_count_max: int) -> None:
    value = b"i am a record"
    builder = builder_of(byte_count_max)
    while builder.encode([value]) is not None:
        builder.append([value])
    record_bytes_each = SEVEN_BYTES_AND_A_VALUE + len(value)
    data = builder.build(0, 1).data
    assert len(data) == builder.byte_count <= byte_count_max < len(data) + record_bytes_each
    with pytest.raises(RecordBatchTooLargeError) as refused:
        builder.append([value])
    assert refused.value.byte_count == BATCH_HEADER_BYTES + record_bytes_each
    assert len(list(read(data).records())) == builder.record_count


def test_a_list_that_does_not_fit_has_no_side_effect() -> None:
    builder = builder_of(100)
    builder.append([b"a"])
    before = builder.build(3, 1).data
    with pytest.raises(RecordBatchTooLargeError) as refused:
        builder.append([b"b" * 20, b"c" * 20])
    needed = BATCH_HEADER_BYTES + 2 * (SEVEN_BYTES_AND_A_VALUE + 20)
    assert (refused.value.byte_count, refused.value.byte_count_max) == (needed, 100)
    assert "exceeds the maximum allowed batch size of 100" in str(refused.value)
    assert builder.build(3, 1).data == before


def test_a_full_batch_accepts_no_further_byte() -> None:
    exact = BATCH_HEADER_BYTES + SEVEN_BYTES_AND_A_VALUE + 10
    builder_of(exact).append([b"v" * 10])
    with pytest.raises(RecordBatchTooLargeError):
        builder_of(exact - 1).append([b"v" * 10])


@pytest.mark.parametrize("compression", list(Compression)[1:])
def test_the_first_records_of_a_compressed_batch_may_fit_by_compression(
    compression: Compression,
) -> None:
    builder = builder_of(2000, compression)
    builder.append([b"z" * 10_000])
    data = builder.build(0, 1).data
    assert len(data) <= 2000
    assert [record.value for record in read(data).records()] == [b"z" * 10_000]
    assert builder.encode([b"z"]) is None
    noise = random.Random(3).randbytes(10_000)
    assert builder_of(2000, compression).encode([noise]) is None


@pytest.mark.parametrize("compression", list(Compression)[1:])
def test_a_compressed_batch_is_also_bounded_before_compression(compression: Compression) -> None:
    def builder() -> BatchBuilder:
        return BatchBuilder(
            base_timestamp_ms=TIME_MS,
            byte_count_max=2000,
            raw_byte_count_max=20_000,
            compression=compression,
        )

    exact = 20_000 - BATCH_HEADER_BYTES - 7 - 2 - 2  # two lengths of three bytes each
    fitting = builder()
    fitting.append([bytes(exact)])
    assert fitting.byte_count == 20_000
    assert len(fitting.build(0, 1).data) <= 2000
    for records in ([bytes(exact + 1)], [bytes(15_000), bytes(15_000)], [b""] * 3000):
        with pytest.raises(RecordBatchTooLargeError) as refused:
            builder().append(records)
        assert refused.value.byte_count > refused.value.byte_count_max == 20_000
    with pytest.raises(RecordBatchTooLargeError):
        fitting.append([b"z"])


def test_the_headers_of_a_batch_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder_module, "HEADERS_PER_BATCH_MAX", 10)
    six = NewRecord(None, b"v", headers=(Header("h", None),) * 6)
    four = NewRecord(None, b"v", headers=(Header("h", None),) * 4)
    builder = builder_of(2000)
    assert builder.fitting_record_count([b"a", six, four, b"b", four], 0) == 4
    builder.append([b"a", six, four])
    assert builder.encode([four]) is None
    builder.append([b"b"])
    assert read(builder.build(0, 1).data).record_count == 4
    with pytest.raises(InvalidAppendError, match="12 headers exceed the 10 of a batch"):
        builder_of(2000).append([six, six])


@pytest.mark.parametrize("compression", list(Compression)[1:])
def test_records_that_compression_enlarges_are_stored_uncompressed(
    compression: Compression,
) -> None:
    value = random.Random(4).randbytes(100)
    exact = BATCH_HEADER_BYTES + 9 + 100
    builder = builder_of(exact, compression)
    builder.append([value])
    batch = read(builder.build(0, 1).data)
    assert (batch.compression, batch.byte_count) == (Compression.NONE, exact)


def test_the_count_of_fitting_records_agrees_with_appending_them() -> None:
    values = [b"v" * (length % 90) for length in range(4000)]
    builder = builder_of(100_000)
    builder.append(values[:10])
    count = builder.fitting_record_count(values, 10)
    builder.append(values[10 : 10 + count])
    assert builder.encode([values[10 + count]]) is None
    assert builder_of(100_000).fitting_record_count(values[:20], 0) == 20


# --- encoding of records --------------------------------------------------------------------------

RECORDS = st.lists(
    st.binary(max_size=200)
    | st.builds(NewRecord, MAYBE_BYTES, MAYBE_BYTES, st.none() | TIMES_MS, HEADERS),
    min_size=1,
    max_size=30,
)
PLAIN = st.builds(
    lambda sizes, count: [b"v" * sizes[at % len(sizes)] for at in range(count)],
    st.lists(st.sampled_from([0, 1, 58, 59, 60, 8183, 8184, 8191, 8192]), min_size=1, max_size=3),
    st.integers(1, 80),
)
DELTAS = st.sampled_from([0, 1, 50, 63, 64, 8150, 8191, 8192, 16_350, 2**20 - 5, 2**27 - 40])


def one_by_one(records: list[RecordToAppend], first_delta: int, base_ms: int) -> list[bytes]:
    """Encode each record from its fields."""
    encoded = []
    for delta, record in enumerate(records, first_delta):
        new = NewRecord(None, record) if isinstance(record, bytes) else record
        time_delta = 0 if new.timestamp_ms is None else wrapped_int64(new.timestamp_ms - base_ms)
        stored = StoredRecord(time_delta, delta, new.key, new.value, new.headers)
        encoded.append(record_bytes(stored))
    return encoded


@pytest.mark.slow
@settings(max_examples=150)
@given(RECORDS | PLAIN, DELTAS, TIMES_MS)
def test_many_records_encode_to_the_bytes_of_each(
    records: list[RecordToAppend], first_delta: int, base_ms: int
) -> None:
    expected = one_by_one(records, first_delta, base_ms)
    assert encode_records(records, first_delta, base_ms) == b"".join(expected)
    assert record_byte_counts(records, first_delta, base_ms) == list(map(len, expected))
    assert RecordsToEncode(records).min_byte_count() <= sum(map(len, expected))


def test_new_records_of_values_only_encode_to_the_same_bytes() -> None:
    values = [b"v" * 100] * 9000
    bare = encode_records(values, 0, TIME_MS)
    assert bare == encode_records([NewRecord(None, value) for value in values], 0, TIME_MS)
    assert bare == b"".join(one_by_one(list(values), 0, TIME_MS))


def test_headers_and_missing_values_are_encoded() -> None:
    record = NewRecord(b"k", None, None, (Header("h", None), Header("", b"x")))
    builder = builder_of(1000)
    builder.append([record, b"v"])
    first, second = read(builder.build(0, 1).data).records()
    assert (first.key, first.value, first.headers) == (b"k", None, record.headers)
    assert (second.key, second.value) == (None, b"v")
