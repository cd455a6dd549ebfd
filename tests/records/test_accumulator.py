"""Appends become batches: the behaviour that Kafka's ``BatchAccumulatorTest`` checks.

Without ``testDrainDoesNotBlockWithConcurrentAppend``, since here the caller holds the lock, and
without lingering and pooled memory, which are the writer thread's (``test_writer_thread``). With
the cases of splitting (KAFKA-12258), which later releases dropped.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

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
    Compression,
    NewRecord,
    ProducerStamp,
    Record,
    RecordBatch,
    read_batch,
)
from raftlog.records.builder import EncodedBatch
from raftlog.records.encoding import PackedRecords, encode_records

EPOCH = 17
BASE_OFFSET = 157
BATCH_BYTES = 512
NOW_MS = 1_700_000_000_000


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
    last_offsets = [collected.append(EPOCH, [value], now_ms=NOW_MS + 3) for value in values]
    assert last_offsets == [157, 158, 159]
    assert collected.next_offset == 160
    (batch,) = collected.drain()
    assert records_of([batch]) == [
        Record(157 + ordinal, NOW_MS + 3, None, value) for ordinal, value in enumerate(values)
    ]


def test_multiple_batch_accumulation() -> None:
    collected = accumulator()
    values = [b"%03d" % ordinal * 30 for ordinal in range(40)]
    for value in values:
        collected.append(EPOCH, [value], now_ms=NOW_MS)
    batches = collected.drain()
    assert len(batches) > 5
    assert all(len(batch.data) <= BATCH_BYTES for batch in batches)
    records = records_of(batches)
    assert [record.value for record in records] == values
    assert [record.offset for record in records] == list(range(157, 197))


def test_batches_after_a_drain_continue_at_its_end() -> None:
    collected = accumulator()
    assert collected.drain() == []
    collected.append(EPOCH, [b"a"], now_ms=NOW_MS)
    assert values_of(collected.drain()) == [[b"a"]]
    collected.append(EPOCH, [b"b"], now_ms=NOW_MS)
    (batch,) = collected.drain()
    assert decoded(batch).base_offset == 158
    assert values_of([batch]) == [[b"b"]]
    assert collected.drain() == []


@pytest.mark.parametrize("compression", Compression)
def test_every_codec_keeps_the_records(compression: Compression) -> None:
    collected = accumulator(compression=compression)
    values = [b"%04d" % ordinal * 20 for ordinal in range(50)]
    collected.append(EPOCH, values, now_ms=NOW_MS)
    batches = collected.drain()
    assert [record.value for record in records_of(batches)] == values


# --- epochs and required offsets ------------------------------------------------------------------


def test_an_older_epoch_is_refused() -> None:
    with pytest.raises(NotLeaderError) as refused:
        accumulator().append(EPOCH - 1, [b"a"], now_ms=NOW_MS)
    assert (
        "Append failed because the given epoch 16 is stale. Current leader epoch = 17"
        in refused.value.message()
    )
    assert refused.value.kafka_code == 6


def test_a_future_epoch_is_the_callers_error() -> None:
    with pytest.raises(FutureEpochError) as refused:
        accumulator().append_atomic(EPOCH + 1, [b"a"], now_ms=NOW_MS)
    assert "from epoch 18 which is larger than the current epoch 17" in refused.value.message()


@pytest.mark.parametrize("kind", ["append", "append_atomic"])
def test_an_append_without_records_is_the_callers_error(kind: str) -> None:
    with pytest.raises(InvalidAppendError):
        getattr(accumulator(), kind)(EPOCH, [], now_ms=NOW_MS)


def test_append_with_the_required_end_offset() -> None:
    """The required end offset is that of the last record."""
    collected = accumulator()
    assert collected.append_atomic(EPOCH, [b"a"] * 3, now_ms=NOW_MS, required_end_offset=159) == 159
    assert collected.next_offset == 160


def test_append_with_the_required_base_offset() -> None:
    """Kafka: testAppendWithRequiredBaseOffset."""
    collected = accumulator()
    assert (
        collected.append_atomic(EPOCH, [b"a"] * 3, now_ms=NOW_MS, required_base_offset=157) == 159
    )
    with pytest.raises(UnexpectedEndOffsetError) as refused:
        collected.append_atomic(EPOCH, [b"a"], now_ms=NOW_MS, required_base_offset=157)
    assert "Wanted base offset 157, but the next offset was 160" in refused.value.message()


@pytest.mark.parametrize("required_end_offset", [0, 156, 158, 160, 2**62])
def test_a_failed_required_offset_changes_nothing(required_end_offset: int) -> None:
    collected = accumulator()
    with pytest.raises(UnexpectedEndOffsetError) as refused:
        collected.append_atomic(
            EPOCH, [b"a"] * 3, now_ms=NOW_MS, required_end_offset=required_end_offset
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
            EPOCH, [b"a"], now_ms=NOW_MS, required_end_offset=157, required_base_offset=156
        )
    assert refused.value.required_end_offset is None
    assert (
        collected.append_atomic(
            EPOCH, [b"a"], now_ms=NOW_MS, required_end_offset=157, required_base_offset=157
        )
        == 157
    )


def test_an_append_without_records_only_checks_the_required_offset() -> None:
    collected = accumulator()
    append = partial(collected.append_atomic, EPOCH, [], now_ms=NOW_MS)
    assert append(required_end_offset=156, required_base_offset=157) == 156
    assert append(required_end_offset=156) == 156
    assert append(required_base_offset=157) == 156
    with pytest.raises(UnexpectedEndOffsetError) as refused:
        append(required_end_offset=157)
    assert "Wanted end offset 157, but next available was 156" in refused.value.message()
    assert collected.drain() == []


def test_of_rivals_with_one_required_offset_the_first_wins() -> None:
    collected = accumulator()
    collected.append_atomic(EPOCH, [b"first"], now_ms=NOW_MS, required_base_offset=157)
    for _ in range(3):
        with pytest.raises(UnexpectedEndOffsetError):
            collected.append_atomic(EPOCH, [b"rival"], now_ms=NOW_MS, required_base_offset=157)
    assert values_of(collected.drain()) == [[b"first"]]


def test_checks_are_in_kafkas_order() -> None:
    """Epoch, required offset, memory: each hides the later ones."""
    collected = accumulator()
    large = [b"x" * BATCH_BYTES]
    with pytest.raises(NotLeaderError):
        collected.append_atomic(EPOCH - 1, large, now_ms=NOW_MS, required_end_offset=3)
    with pytest.raises(UnexpectedEndOffsetError):
        collected.append_atomic(EPOCH, large, now_ms=NOW_MS, required_end_offset=3)
    with pytest.raises(RecordBatchTooLargeError):
        collected.append_atomic(EPOCH, large, now_ms=NOW_MS)


# --- one batch, or several (KAFKA-12258) ----------------------------------------------------------


def test_an_atomic_list_is_never_split() -> None:
    collected = accumulator()
    collected.append(EPOCH, [b"a" * 300], now_ms=NOW_MS)
    assert collected.append_atomic(EPOCH, [b"b" * 100] * 3, now_ms=NOW_MS) == 160
    assert values_of(collected.drain()) == [[b"a" * 300], [b"b" * 100] * 3]


def test_an_atomic_list_shares_a_batch_if_it_fits() -> None:
    collected = accumulator()
    collected.append(EPOCH, [b"a"], now_ms=NOW_MS)
    collected.append_atomic(EPOCH, [b"b", b"c"], now_ms=NOW_MS)
    collected.append(EPOCH, [b"d"], now_ms=NOW_MS)
    assert values_of(collected.drain()) == [[b"a", b"b", b"c", b"d"]]


def test_an_atomic_list_above_the_limit_appends_nothing() -> None:
    collected = accumulator()
    collected.append(EPOCH, [b"a"], now_ms=NOW_MS)
    with pytest.raises(RecordBatchTooLargeError) as refused:
        collected.append_atomic(EPOCH, [b"b" * 100] * 5, now_ms=NOW_MS)
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
    assert collected.append(EPOCH, values, now_ms=NOW_MS) == 163
    assert values_of(collected.drain()) == [values[:3], values[3:6], values[6:]]


def test_a_split_begins_in_the_open_batch() -> None:
    each = 100 + 9
    collected = accumulator(byte_count_max=BATCH_HEADER_BYTES + 3 * each)
    values = [b"%100d" % ordinal for ordinal in range(7)]
    collected.append(EPOCH, values[:1], now_ms=NOW_MS)
    collected.append(EPOCH, values[1:], now_ms=NOW_MS)
    assert values_of(collected.drain()) == [values[:3], values[3:6], values[6:]]


def test_one_record_above_the_limit_refuses_the_whole_list() -> None:
    collected = accumulator()
    with pytest.raises(RecordBatchTooLargeError) as refused:
        collected.append(EPOCH, [b"a", b"b" * 500, b"c"], now_ms=NOW_MS)
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
    collected.append(EPOCH, [b"a"], now_ms=NOW_MS)
    collected.append_atomic(EPOCH, [b"b", b"c"], now_ms=NOW_MS, **why)
    collected.append(EPOCH, [b"d"], now_ms=NOW_MS)
    assert values_of(collected.drain()) == [[b"a"], [b"b", b"c"], [b"d"]]


def test_a_refused_standalone_list_leaves_the_open_batch_open() -> None:
    collected = accumulator()
    collected.append(EPOCH, [b"a"], now_ms=NOW_MS)
    with pytest.raises(RecordBatchTooLargeError):
        collected.append_atomic(EPOCH, [b"b" * 600], now_ms=NOW_MS, standalone=True)
    collected.append(EPOCH, [b"c"], now_ms=NOW_MS)
    assert values_of(collected.drain()) == [[b"a", b"c"]]


def test_a_compressed_atomic_list_counts_with_its_compressed_size() -> None:
    collected = accumulator(compression=Compression.ZSTD)
    collected.append_atomic(EPOCH, [b"z" * 5000], now_ms=NOW_MS, standalone=True)
    (batch,) = collected.drain()
    assert len(batch.data) < BATCH_BYTES


def test_records_without_a_timestamp_get_that_of_their_batch() -> None:
    collected = accumulator()
    collected.append(EPOCH, [b"a", NewRecord(b"k", b"b", 5)], now_ms=NOW_MS)
    collected.append(EPOCH, [b"c"], now_ms=NOW_MS + 9)
    records = records_of(collected.drain())
    assert [record.timestamp_ms for record in records] == [NOW_MS, 5, NOW_MS]


@pytest.mark.parametrize("form", ["append", "atomic", "alone", "packed", "split"])
def test_a_timestamp_far_ahead_of_the_clock_is_refused_without_side_effect(form: str) -> None:
    collected = accumulator()
    collected.append(EPOCH, [b"a"], now_ms=NOW_MS)

    def append(time_ms: int) -> int:
        records = [NewRecord(None, b"x", time_ms)]
        match form:
            case "append":
                return collected.append(EPOCH, [b"b", *records], now_ms=NOW_MS)
            case "atomic":
                return collected.append_atomic(EPOCH, records, now_ms=NOW_MS)
            case "alone":
                stamp = ProducerStamp(7, 0, 0)
                return collected.append_atomic(EPOCH, records, now_ms=NOW_MS, producer=stamp)
            case "packed":
                packed = PackedRecords(
                    encode_records(records, 0, 5),
                    1,
                    base_timestamp_ms=5,
                    max_timestamp_ms=time_ms,
                )
                return collected.append_atomic(EPOCH, packed, now_ms=NOW_MS)
        return collected.append(EPOCH, [*records, *[bytes(BATCH_BYTES // 2)] * 3], now_ms=NOW_MS)

    with pytest.raises(InvalidTimestampError) as refused:
        append(NOW_MS + TIMESTAMP_AFTER_MS_MAX + 1)
    assert refused.value.timestamp_ms == NOW_MS + TIMESTAMP_AFTER_MS_MAX + 1
    assert collected.next_offset == 158
    assert values_of(collected.drain()) == [[b"a"]]
    append(NOW_MS + TIMESTAMP_AFTER_MS_MAX)
    assert max(decoded(batch).max_timestamp_ms for batch in collected.drain()) == (
        NOW_MS + TIMESTAMP_AFTER_MS_MAX
    )
