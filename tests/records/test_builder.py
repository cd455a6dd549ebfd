"""Batch builder: what fits, and the finished batch. Accumulator: appends become batches.

The behaviour that Kafka's ``BatchBuilderTest``, ``BatchMemoryPoolTest`` and
``BatchAccumulatorTest`` check: the last without ``testDrainDoesNotBlockWithConcurrentAppend``,
since here the caller holds the lock, and without lingering and pooled memory, which are the writer
thread's (``test_writer_thread``). With the cases of splitting (KAFKA-12258), which later releases
dropped.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest
from tests.support.batch_encoding import NewRecordBatch, encode_batch

import raftlog.records.builder as builder_module
from raftlog.errors import (
    AppendError,
    FutureEpochError,
    InvalidAppendError,
    InvalidTimestampError,
    NotLeaderError,
    RecordBatchTooLargeError,
    UnexpectedEndOffsetError,
)
from raftlog.limits import BATCH_HEADER_BYTES, TIMESTAMP_AFTER_MS_MAX
from raftlog.records import (
    BatchAccumulator,
    BatchBuilder,
    Compression,
    Header,
    NewRecord,
    ProducerStamp,
    Record,
    RecordBatch,
    read_batch,
)
from raftlog.records.builder import EncodedBatch
from raftlog.records.encoding import PackedRecords, encode_records

TIME_MS = 1_700_000_000_000
EPOCH = 17
BASE_OFFSET = 157
BATCH_BYTES = 512
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
def test_a_compressed_batch_is_also_bounded_before_compression(
    monkeypatch: pytest.MonkeyPatch, compression: Compression
) -> None:
    monkeypatch.setattr(builder_module, "RAW_BATCH_BYTES_MAX", 20_000)

    def builder() -> BatchBuilder:
        return builder_of(2000, compression)

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


def test_headers_and_missing_values_are_encoded() -> None:
    record = NewRecord(b"k", None, None, (Header("h", None), Header("", b"x")))
    builder = builder_of(1000)
    builder.append([record, b"v"])
    first, second = read(builder.build(0, 1).data).records()
    assert (first.key, first.value, first.headers) == (b"k", None, record.headers)
    assert (second.key, second.value) == (None, b"v")


# --- appends become batches (BatchAccumulatorTest) ------------------------------------------------


def accumulator(
    *, byte_count_max: int = BATCH_BYTES, compression: Compression = Compression.NONE
) -> BatchAccumulator:
    return BatchAccumulator(
        epoch=EPOCH,
        next_offset=BASE_OFFSET,
        byte_count_max=byte_count_max,
        compression=compression,
    )


def decoded(batch: EncodedBatch) -> RecordBatch:
    read = read_batch(batch.data)
    assert isinstance(read, RecordBatch)
    assert (read.leader_epoch, read.is_control) == (EPOCH, False)
    assert (batch.base_offset, batch.last_offset, batch.record_count) == (
        read.base_offset,
        read.last_offset,
        read.record_count,
    )
    assert batch.max_timestamp_ms == read.max_timestamp_ms
    return read


def records_of(batches: list[EncodedBatch]) -> list[Record]:
    return [record for batch in batches for record in decoded(batch).records()]


def values_of(batches: list[EncodedBatch]) -> list[list[bytes | None]]:
    return [[record.value for record in decoded(batch).records()] for batch in batches]


# --- filling and draining -------------------------------------------------------------------------


def test_single_batch_accumulation() -> None:
    collected = accumulator()
    values = [b"a", b"bb", b"ccc"]
    last_offsets = [collected.append(EPOCH, [value], now_ms=TIME_MS + 3) for value in values]
    assert last_offsets == [157, 158, 159]
    assert collected.next_offset == 160
    (batch,) = collected.drain()
    assert records_of([batch]) == [
        Record(157 + ordinal, TIME_MS + 3, None, value) for ordinal, value in enumerate(values)
    ]


def test_multiple_batch_accumulation() -> None:
    collected = accumulator()
    values = [b"%03d" % ordinal * 30 for ordinal in range(40)]
    for value in values:
        collected.append(EPOCH, [value], now_ms=TIME_MS)
    batches = collected.drain()
    assert len(batches) > 5
    assert all(len(batch.data) <= BATCH_BYTES for batch in batches)
    records = records_of(batches)
    assert [record.value for record in records] == values
    assert [record.offset for record in records] == list(range(157, 197))


def test_batches_after_a_drain_continue_at_its_end() -> None:
    collected = accumulator()
    assert collected.drain() == []
    collected.append(EPOCH, [b"a"], now_ms=TIME_MS)
    assert values_of(collected.drain()) == [[b"a"]]
    collected.append(EPOCH, [b"b"], now_ms=TIME_MS)
    (batch,) = collected.drain()
    assert decoded(batch).base_offset == 158
    assert values_of([batch]) == [[b"b"]]
    assert collected.drain() == []


@pytest.mark.parametrize("compression", Compression)
def test_every_codec_keeps_the_records(compression: Compression) -> None:
    collected = accumulator(compression=compression)
    values = [b"%04d" % ordinal * 20 for ordinal in range(50)]
    collected.append(EPOCH, values, now_ms=TIME_MS)
    batches = collected.drain()
    assert [record.value for record in records_of(batches)] == values


# --- epochs and required offsets ------------------------------------------------------------------


def test_an_older_epoch_is_refused() -> None:
    with pytest.raises(NotLeaderError) as refused:
        accumulator().append(EPOCH - 1, [b"a"], now_ms=TIME_MS)
    assert (
        "Append failed because the given epoch 16 is stale. Current leader epoch = 17"
        in refused.value.message()
    )
    assert refused.value.kafka_code == 6


def test_a_future_epoch_is_the_callers_error() -> None:
    with pytest.raises(FutureEpochError) as refused:
        accumulator().append_atomic(EPOCH + 1, [b"a"], now_ms=TIME_MS)
    assert "from epoch 18 which is larger than the current epoch 17" in refused.value.message()


@pytest.mark.parametrize("kind", ["append", "append_atomic"])
def test_an_append_without_records_is_the_callers_error(kind: str) -> None:
    with pytest.raises(InvalidAppendError):
        getattr(accumulator(), kind)(EPOCH, [], now_ms=TIME_MS)


def test_append_with_the_required_end_offset() -> None:
    """The required end offset is that of the last record."""
    collected = accumulator()
    assert (
        collected.append_atomic(EPOCH, [b"a"] * 3, now_ms=TIME_MS, required_end_offset=159) == 159
    )
    assert collected.next_offset == 160


def test_append_with_the_required_base_offset() -> None:
    """Kafka: testAppendWithRequiredBaseOffset."""
    collected = accumulator()
    assert (
        collected.append_atomic(EPOCH, [b"a"] * 3, now_ms=TIME_MS, required_base_offset=157) == 159
    )
    with pytest.raises(UnexpectedEndOffsetError) as refused:
        collected.append_atomic(EPOCH, [b"a"], now_ms=TIME_MS, required_base_offset=157)
    assert "Wanted base offset 157, but the next offset was 160" in refused.value.message()


@pytest.mark.parametrize("required_end_offset", [0, 156, 158, 160, 2**62])
def test_a_failed_required_offset_changes_nothing(required_end_offset: int) -> None:
    collected = accumulator()
    with pytest.raises(UnexpectedEndOffsetError) as refused:
        collected.append_atomic(
            EPOCH, [b"a"] * 3, now_ms=TIME_MS, required_end_offset=required_end_offset
        )
    error = refused.value
    assert f"Wanted end offset {required_end_offset}, but next available was 159" in error.message()
    assert (error.next_available_offset, error.log_end_offset, error.kafka_code) == (159, 157, 95)
    assert isinstance(error, AppendError)
    assert collected.next_offset == 157
    assert collected.drain() == []


def test_both_required_offsets_are_checked() -> None:
    collected = accumulator()
    with pytest.raises(UnexpectedEndOffsetError) as refused:
        collected.append_atomic(
            EPOCH, [b"a"], now_ms=TIME_MS, required_end_offset=157, required_base_offset=156
        )
    assert refused.value.required_end_offset is None
    assert (
        collected.append_atomic(
            EPOCH, [b"a"], now_ms=TIME_MS, required_end_offset=157, required_base_offset=157
        )
        == 157
    )


def test_an_append_without_records_only_checks_the_required_offset() -> None:
    collected = accumulator()
    append = partial(collected.append_atomic, EPOCH, [], now_ms=TIME_MS)
    assert append(required_end_offset=156, required_base_offset=157) == 156
    assert append(required_end_offset=156) == 156
    assert append(required_base_offset=157) == 156
    with pytest.raises(UnexpectedEndOffsetError) as refused:
        append(required_end_offset=157)
    assert "Wanted end offset 157, but next available was 156" in refused.value.message()
    assert collected.drain() == []


def test_of_rivals_with_one_required_offset_the_first_wins() -> None:
    collected = accumulator()
    collected.append_atomic(EPOCH, [b"first"], now_ms=TIME_MS, required_base_offset=157)
    for _ in range(3):
        with pytest.raises(UnexpectedEndOffsetError):
            collected.append_atomic(EPOCH, [b"rival"], now_ms=TIME_MS, required_base_offset=157)
    assert values_of(collected.drain()) == [[b"first"]]


def test_checks_are_in_kafkas_order() -> None:
    """Epoch, required offset, memory: each hides the later ones."""
    collected = accumulator()
    large = [b"x" * BATCH_BYTES]
    with pytest.raises(NotLeaderError):
        collected.append_atomic(EPOCH - 1, large, now_ms=TIME_MS, required_end_offset=3)
    with pytest.raises(UnexpectedEndOffsetError):
        collected.append_atomic(EPOCH, large, now_ms=TIME_MS, required_end_offset=3)
    with pytest.raises(RecordBatchTooLargeError):
        collected.append_atomic(EPOCH, large, now_ms=TIME_MS)


# --- one batch, or several (KAFKA-12258) ----------------------------------------------------------


def test_an_atomic_list_is_never_split() -> None:
    collected = accumulator()
    collected.append(EPOCH, [b"a" * 300], now_ms=TIME_MS)
    assert collected.append_atomic(EPOCH, [b"b" * 100] * 3, now_ms=TIME_MS) == 160
    assert values_of(collected.drain()) == [[b"a" * 300], [b"b" * 100] * 3]


def test_an_atomic_list_shares_a_batch_if_it_fits() -> None:
    collected = accumulator()
    collected.append(EPOCH, [b"a"], now_ms=TIME_MS)
    collected.append_atomic(EPOCH, [b"b", b"c"], now_ms=TIME_MS)
    collected.append(EPOCH, [b"d"], now_ms=TIME_MS)
    assert values_of(collected.drain()) == [[b"a", b"b", b"c", b"d"]]


def test_an_atomic_list_above_the_limit_appends_nothing() -> None:
    collected = accumulator()
    collected.append(EPOCH, [b"a"], now_ms=TIME_MS)
    with pytest.raises(RecordBatchTooLargeError) as refused:
        collected.append_atomic(EPOCH, [b"b" * 100] * 5, now_ms=TIME_MS)
    needed = BATCH_HEADER_BYTES + 5 * (100 + 9)
    assert refused.value.byte_count == needed
    assert (
        f"The total record(s) size of {needed} exceeds the maximum allowed batch size of 512"
        in refused.value.message()
    )
    assert collected.next_offset == 158
    assert values_of(collected.drain()) == [[b"a"]]


def test_records_are_split() -> None:
    """Each batch is filled before the next one begins."""
    each = 100 + 9
    collected = accumulator(byte_count_max=BATCH_HEADER_BYTES + 3 * each)
    values = [b"%100d" % ordinal for ordinal in range(7)]
    assert collected.append(EPOCH, values, now_ms=TIME_MS) == 163
    assert values_of(collected.drain()) == [values[:3], values[3:6], values[6:]]


def test_a_split_begins_in_the_open_batch() -> None:
    each = 100 + 9
    collected = accumulator(byte_count_max=BATCH_HEADER_BYTES + 3 * each)
    values = [b"%100d" % ordinal for ordinal in range(7)]
    collected.append(EPOCH, values[:1], now_ms=TIME_MS)
    collected.append(EPOCH, values[1:], now_ms=TIME_MS)
    assert values_of(collected.drain()) == [values[:3], values[3:6], values[6:]]


def test_one_record_above_the_limit_refuses_the_whole_list() -> None:
    collected = accumulator()
    with pytest.raises(RecordBatchTooLargeError) as refused:
        collected.append(EPOCH, [b"a", b"b" * 500, b"c"], now_ms=TIME_MS)
    assert refused.value.byte_count == BATCH_HEADER_BYTES + 500 + 9
    assert collected.next_offset == 157
    assert collected.drain() == []


# --- appends with a batch of their own ------------------------------------------------------------


@pytest.mark.parametrize(
    "why",
    [
        {"standalone": True},
        {"required_end_offset": 159},
        {"required_base_offset": 158},
        {"producer": ProducerStamp(7, 0, 0)},
    ],
    ids=lambda why: next(iter(why)),
)
def test_conditional_named_and_producers_appends_have_their_own_batch(
    why: dict[str, Any],
) -> None:
    collected = accumulator()
    collected.append(EPOCH, [b"a"], now_ms=TIME_MS)
    collected.append_atomic(EPOCH, [b"b", b"c"], now_ms=TIME_MS, **why)
    collected.append(EPOCH, [b"d"], now_ms=TIME_MS)
    assert values_of(collected.drain()) == [[b"a"], [b"b", b"c"], [b"d"]]


def test_a_refused_standalone_list_leaves_the_open_batch_open() -> None:
    collected = accumulator()
    collected.append(EPOCH, [b"a"], now_ms=TIME_MS)
    with pytest.raises(RecordBatchTooLargeError):
        collected.append_atomic(EPOCH, [b"b" * 600], now_ms=TIME_MS, standalone=True)
    collected.append(EPOCH, [b"c"], now_ms=TIME_MS)
    assert values_of(collected.drain()) == [[b"a", b"c"]]


def test_a_compressed_atomic_list_counts_with_its_compressed_size() -> None:
    collected = accumulator(compression=Compression.ZSTD)
    collected.append_atomic(EPOCH, [b"z" * 5000], now_ms=TIME_MS, standalone=True)
    (batch,) = collected.drain()
    assert len(batch.data) < BATCH_BYTES


def test_records_without_a_timestamp_get_that_of_their_batch() -> None:
    collected = accumulator()
    collected.append(EPOCH, [b"a", NewRecord(b"k", b"b", 5)], now_ms=TIME_MS)
    collected.append(EPOCH, [b"c"], now_ms=TIME_MS + 9)
    records = records_of(collected.drain())
    assert [record.timestamp_ms for record in records] == [TIME_MS, 5, TIME_MS]


@pytest.mark.parametrize("form", ["append", "atomic", "alone", "packed", "split"])
def test_a_timestamp_far_ahead_of_the_clock_is_refused_without_side_effect(form: str) -> None:
    collected = accumulator()
    collected.append(EPOCH, [b"a"], now_ms=TIME_MS)

    def append(time_ms: int) -> int:
        records = [NewRecord(None, b"x", time_ms)]
        match form:
            case "append":
                return collected.append(EPOCH, [b"b", *records], now_ms=TIME_MS)
            case "atomic":
                return collected.append_atomic(EPOCH, records, now_ms=TIME_MS)
            case "alone":
                stamp = ProducerStamp(7, 0, 0)
                return collected.append_atomic(EPOCH, records, now_ms=TIME_MS, producer=stamp)
            case "packed":
                packed = PackedRecords(
                    encode_records(records, 0, 5),
                    1,
                    base_timestamp_ms=5,
                    max_timestamp_ms=time_ms,
                )
                return collected.append_atomic(EPOCH, packed, now_ms=TIME_MS)
        return collected.append(EPOCH, [*records, *[bytes(BATCH_BYTES // 2)] * 3], now_ms=TIME_MS)

    with pytest.raises(InvalidTimestampError) as refused:
        append(TIME_MS + TIMESTAMP_AFTER_MS_MAX + 1)
    assert refused.value.timestamp_ms == TIME_MS + TIMESTAMP_AFTER_MS_MAX + 1
    assert collected.next_offset == 158
    assert values_of(collected.drain()) == [[b"a"]]
    append(TIME_MS + TIMESTAMP_AFTER_MS_MAX)
    assert max(decoded(batch).max_timestamp_ms for batch in collected.drain()) == (
        TIME_MS + TIMESTAMP_AFTER_MS_MAX
    )
