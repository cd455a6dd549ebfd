"""Arbitrary bytes: both readers agree, in bounded time, and raise typed errors only."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.batch_encoding import NewRecordBatch, encode_batch
from tests.support.batch_strategies import new_batches, resealed
from tests.support.record_rows import read_rows, scan_rows

from raftlog.errors import RaftlogError
from raftlog.limits import BATCH_HEADER_BYTES, MIB
from raftlog.records.batch import NewRecord, RecordBatch, read_batch
from raftlog.records.batch_columns import scan_headers
from raftlog.records.control import decode_control

LIMIT = {"decompressed_bytes_max": MIB}
EDITS = st.lists(
    st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255), st.integers(0, 3)),
    min_size=1,
    max_size=4,
)
Edits = list[tuple[float, int, int]]


def edited(data: bytes, edits: Edits, start: int) -> bytes:
    """Return ``data`` with bytes from ``start`` on replaced, inserted or deleted."""
    out = bytearray(data)
    for place, byte, kind in edits:
        at = start + int(place * max(0, len(out) - start))
        if kind == 0:
            out[at:at] = bytes([byte])
        elif kind == 1:
            del out[at : at + 1]
        else:
            out[at : at + 1] = bytes([byte])
    return bytes(out)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_batches_or_damage(data: bytes) -> None:
    assert scan_rows(data) == read_rows(data)
    scan_headers(data)


@pytest.mark.slow
@settings(max_examples=50)
@given(st.lists(new_batches(count_max=4), min_size=1, max_size=3), EDITS)
def test_readers_agree_on_damaged_logs_and_return_the_valid_batches(
    batches: list[NewRecordBatch], edits: Edits
) -> None:
    log = b"".join(
        encode_batch(new, base_offset=20_000 * n, leader_epoch=1) for n, new in enumerate(batches)
    )
    damaged = edited(log, edits, 0)
    assert scan_rows(damaged, **LIMIT) == read_rows(damaged, **LIMIT)


@settings(max_examples=50)
@given(new_batches(count_max=4), EDITS, st.booleans())
def test_readers_agree_on_wrong_numbers_under_a_valid_crc(
    new: NewRecordBatch, edits: Edits, in_header: bool
) -> None:
    valid = encode_batch(new, base_offset=7, leader_epoch=1)
    start = 17 if in_header else BATCH_HEADER_BYTES
    damaged = resealed(edited(valid, edits, start).ljust(BATCH_HEADER_BYTES, b"\0"))
    log = valid + damaged + valid
    assert scan_rows(log, **LIMIT) == read_rows(log, **LIMIT)


@pytest.mark.slow
@settings(max_examples=50)
@given(
    st.lists(st.binary(max_size=40), min_size=30, max_size=60),
    st.lists(EDITS, max_size=2),
    st.data(),
)
def test_one_wrong_number_among_many_batches_is_found_at_its_position(
    values: list[bytes], wrong_values: list[Edits], data: st.DataObject
) -> None:
    """Enough batches for the columnar scan of records."""
    batches = [
        encode_batch(
            NewRecordBatch(
                records=tuple(NewRecord(None, value) for _ in range(1 + n % 3)),
                base_timestamp_ms=1_700_000_000_000 + n,
            ),
            base_offset=3 * n,
            leader_epoch=1,
        )
        for n, value in enumerate(values)
    ]
    for edits in wrong_values:
        at = data.draw(st.integers(0, len(batches) - 1))
        batches[at] = resealed(edited(batches[at], edits, BATCH_HEADER_BYTES))
    log = b"".join(batches)
    assert scan_rows(log) == read_rows(log)


@pytest.mark.slow
@settings(max_examples=50)
@given(new_batches(count_max=3), EDITS)
def test_a_control_batch_of_arbitrary_bytes_raises_typed_errors_only(
    new: NewRecordBatch, edits: Edits
) -> None:
    damaged = resealed(edited(encode_batch(new, base_offset=0, leader_epoch=1), edits, 61))
    try:
        batch = read_batch(damaged)
        assert isinstance(batch, RecordBatch)
        for record in batch.records(**LIMIT):
            decode_control(record.key, record.value)
    except RaftlogError as error:
        str(error)
