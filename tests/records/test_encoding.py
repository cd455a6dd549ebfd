"""Many records are encoded to the bytes of each; encoded ones are appended as they are."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.batch_strategies import HEADERS, MAYBE_BYTES, TIMES_MS

from raftlog.errors import RecordBatchTooLargeError
from raftlog.records import BatchAccumulator, Compression, Header, NewRecord, RecordToAppend
from raftlog.records.batch import RecordBatch, read_batch
from raftlog.records.encoding import (
    PackedRecords,
    RecordsToEncode,
    encode_records,
    record_byte_counts,
)
from raftlog.records.record import StoredRecord, record_bytes, wrapped_int64

BASE_MS = 1_700_000_000_000
RECORDS = st.lists(
    st.builds(
        NewRecord,
        st.none() | st.binary(max_size=5),
        st.none() | st.binary(max_size=40),
        st.integers(0, 2 * BASE_MS),
        st.lists(st.builds(Header, st.text(max_size=4), st.none() | st.binary(max_size=4)))
        .map(tuple)
        .filter(lambda headers: len(headers) < 4),
    ),
    min_size=1,
    max_size=30,
)
ANY_RECORDS = st.lists(
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
@given(ANY_RECORDS | PLAIN, DELTAS, TIMES_MS)
def test_many_records_encode_to_the_bytes_of_each(
    records: list[RecordToAppend], first_delta: int, base_ms: int
) -> None:
    expected = one_by_one(records, first_delta, base_ms)
    assert encode_records(records, first_delta, base_ms) == b"".join(expected)
    assert record_byte_counts(records, first_delta, base_ms) == list(map(len, expected))
    assert RecordsToEncode(records).min_byte_count() <= sum(map(len, expected))


def test_new_records_of_values_only_encode_to_the_same_bytes() -> None:
    values = [b"v" * 100] * 9000
    bare = encode_records(values, 0, BASE_MS)
    assert bare == encode_records([NewRecord(None, value) for value in values], 0, BASE_MS)
    assert bare == b"".join(one_by_one(list(values), 0, BASE_MS))


# --- records that are encoded already -------------------------------------------------------------


def packed(records: list[NewRecord], base_ms: int = BASE_MS) -> PackedRecords:
    latest_ms = max(record.timestamp_ms or 0 for record in records)
    return PackedRecords(
        encode_records(records, 0, base_ms),
        len(records),
        base_timestamp_ms=base_ms,
        max_timestamp_ms=latest_ms,
    )


@given(RECORDS)
def test_encoded_records_are_a_sequence_of_records(records: list[NewRecord]) -> None:
    found = packed(records)
    assert list(found) == records
    assert (len(found), found[0], found[-1]) == (len(records), records[0], records[-1])
    assert list(found[1:]) == records[1:]


@given(RECORDS, st.integers(0, 200), st.integers(0, 2 * BASE_MS))
def test_encoded_records_encode_at_any_offset_as_their_records_do(
    records: list[NewRecord], first_delta: int, base_ms: int
) -> None:
    found, plain = RecordsToEncode(packed(records)), RecordsToEncode(records)
    assert found.encode(0, BASE_MS) == plain.encode(0, BASE_MS)
    assert found.encode(first_delta, base_ms) == plain.encode(first_delta, base_ms)
    assert found.max_timestamp_ms(base_ms) == plain.max_timestamp_ms(base_ms)
    assert found.min_byte_count() <= plain.min_byte_count()
    counts = record_byte_counts(packed(records), first_delta, base_ms)
    assert counts == record_byte_counts(records, first_delta, base_ms)


@given(RECORDS)
def test_another_first_record_changes_no_later_one(records: list[NewRecord]) -> None:
    first = records[0]
    named = NewRecord(first.key, first.value, first.timestamp_ms, (Header("n", b"v"),))
    assert list(packed(records).with_first(named)) == [named, *records[1:]]


def accumulator(**more: int) -> BatchAccumulator:
    return BatchAccumulator(
        epoch=1,
        next_offset=10,
        compression=Compression.NONE,
        **more,
    )


@pytest.mark.parametrize("base_ms", [0, BASE_MS])
def test_encoded_records_have_a_batch_of_their_own_with_their_timestamps(base_ms: int) -> None:
    records = [NewRecord(b"k", b"%d" % at, BASE_MS + at) for at in range(100)]
    filled = accumulator()
    filled.append(1, [b"before"], now_ms=BASE_MS)
    assert filled.append_atomic(1, packed(records, base_ms), now_ms=BASE_MS) == 110
    filled.append(1, [b"behind"], now_ms=BASE_MS)
    batches = [read_batch(one.data) for one in filled.drain()]
    assert [isinstance(one, RecordBatch) and one.record_count for one in batches] == [1, 100, 1]
    assert isinstance(batches[1], RecordBatch)
    assert batches[1].base_timestamp_ms == base_ms
    assert batches[1].max_timestamp_ms == BASE_MS + 99
    found = list(batches[1].records())
    assert [record.timestamp_ms for record in found] == [BASE_MS + at for at in range(100)]


def test_too_many_encoded_records_are_refused() -> None:
    records = [NewRecord(None, bytes(100), BASE_MS)] * 20
    with pytest.raises(RecordBatchTooLargeError) as refused:
        accumulator(byte_count_max=1000).append_atomic(1, packed(records), now_ms=BASE_MS)
    assert refused.value.byte_count > 2000
