"""Contract of the scan: projection, ranges, limits, and every path of the columnar algorithm."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pyarrow as pa
import pytest
from tests.support.batch_encoding import NewRecordBatch, encode_batch
from tests.support.batch_strategies import resealed
from tests.support.both_implementations import in_each
from tests.support.record_rows import read_rows, rows_of, scan_rows

from raftlog.limits import KIB
from raftlog.records import scan as scan_module
from raftlog.records.batch import Compression, Header, NewRecord, Record
from raftlog.records.record_columns import HEADERS_TYPE
from raftlog.records.scan import Column, RecordColumns, Stop, scan

TIME_MS = 1_700_000_000_000


def log_of(
    counts: list[int],
    value_bytes: int = 20,
    codec: Compression = Compression.NONE,
    like_kraft: bool = True,
) -> bytes:
    chance = np.random.default_rng(sum(counts) + value_bytes)
    batches = []
    offset = 0
    for count in counts:
        sizes = chance.integers(0, 2 * value_bytes + 1, count).tolist()
        records = tuple(
            NewRecord(None, chance.bytes(size))
            if like_kraft
            else NewRecord(b"k" * (size % 3), chance.bytes(size), TIME_MS + size)
            for size in sizes
        )
        new = NewRecordBatch(records=records, base_timestamp_ms=TIME_MS + offset, compression=codec)
        batches.append(encode_batch(new, base_offset=offset, leader_epoch=3))
        offset += count
    return b"".join(batches)


@pytest.mark.slow
@pytest.mark.parametrize("like_kraft", [True, False])
@pytest.mark.parametrize(
    ("counts", "value_bytes"),
    [
        ([1], 20),
        ([1] * 500, 20),
        ([1] * 500, 3000),
        ([100] * 60, 20),
        ([100] * 60, 100),
        ([5000], 30),
        ([2000, 1, 1, 300, 7, 95, 96, 97], 30),
        ([1, 2, 3, 4, 5] * 20 + [200] * 3, 40),
        ([40] * 40, 6000),  # lengths of three bytes among lengths of two
        ([300], 6000),
    ],
    ids=lambda case: f"{case[:3]}x{len(case)}" if isinstance(case, list) else str(case),
)
def test_records_are_read_alike_beside_any_others(
    counts: list[int], value_bytes: int, like_kraft: bool
) -> None:
    log = log_of(counts, value_bytes, like_kraft=like_kraft)
    assert scan_rows(log) == read_rows(log)


def test_a_value_that_resembles_a_record_is_read_as_a_value() -> None:
    # At the guessed position of record 32: attributes, timestamp, offset delta, no key.
    bait = b"\0\0\x40\x01" * 30
    records = tuple(NewRecord(None, bait + bytes([n % 7]) * (n % 50)) for n in range(400))
    new = NewRecordBatch(records=records, base_timestamp_ms=TIME_MS)
    log = encode_batch(new, base_offset=0, leader_epoch=1)
    assert scan_rows(log) == read_rows(log)


def test_a_value_that_resembles_batches_is_read_as_a_value() -> None:
    inner = log_of([1] * 3)
    records = tuple(NewRecord(None, inner) for _ in range(2))
    small = log_of([1] * 200)
    new = NewRecordBatch(records=records, base_timestamp_ms=TIME_MS)
    baits = b"".join(encode_batch(new, base_offset=n, leader_epoch=1) for n in range(200, 240, 2))
    for log in (small + baits + small, small + baits * 20 + small[: len(small) // 2]):
        assert scan_rows(log) == read_rows(log)


def test_small_batches_are_read_up_to_the_damaged_one() -> None:
    log = bytearray(log_of([1] * 400))
    undamaged = scan(bytes(log)).batches
    log[int(undamaged.position[300]) + 11] ^= 0x20  # its length
    expected = read_rows(bytes(log))
    assert expected.end_position == int(undamaged.position[300])
    assert scan_rows(bytes(log)) == expected


@pytest.mark.parametrize(
    "column", [Column.OFFSET, Column.TIMESTAMP, Column.LEADER_EPOCH, Column.KEY, Column.VALUE]
)
def test_columns_that_are_not_selected_are_not_built(column: Column) -> None:
    log = log_of([3, 1, 2])
    whole = scan(log, columns=Column.ALL).records
    some = scan(log, columns=column).records
    names = {
        Column.OFFSET: "offset",
        Column.TIMESTAMP: "timestamp_ms",
        Column.LEADER_EPOCH: "leader_epoch",
        Column.KEY: "key",
        Column.VALUE: "value",
    }
    for field in fields(RecordColumns):
        mine, all_of_them = getattr(some, field.name), getattr(whole, field.name)
        if field.name in (names[column], "batch_ordinal", "is_control"):
            assert mine.tolist() == all_of_them.tolist()
        else:
            assert mine is None


def type_of(column: pa.Array | None) -> pa.DataType:
    assert column is not None
    return column.type


def test_columns_have_the_declared_types() -> None:
    for log in (b"", log_of([2])):
        records = scan(log, columns=Column.ALL).records
        assert type_of(records.offset) == type_of(records.timestamp_ms) == pa.int64()
        assert type_of(records.leader_epoch) == pa.int32()
        assert type_of(records.key) == type_of(records.value) == pa.binary()
        assert type_of(records.headers) == HEADERS_TYPE
        assert records.batch_ordinal.dtype == np.int32
        assert records.is_control.dtype == np.bool_


def test_headers_that_are_not_utf_8_are_replaced_and_not_refused() -> None:
    new = NewRecordBatch(
        records=(NewRecord(None, None, headers=(Header("ab", None), Header("cd", b"x"))),),
        base_timestamp_ms=TIME_MS,
    )
    log = resealed(encode_batch(new, base_offset=0, leader_epoch=1).replace(b"cd", b"\xff\xfe"))
    assert scan_rows(log) == read_rows(log)
    assert read_rows(log).rows[0][5] == (("ab", None), ("\ufffd\ufffd", b"x"))


def test_records_with_headers_are_read_columnwise() -> None:
    records = tuple(
        NewRecord(None, b"v", headers=tuple(Header(f"h{k}", b"%d" % k) for k in range(n % 5)))
        for n in range(300)
    )
    new = NewRecordBatch(records=records, base_timestamp_ms=TIME_MS)
    log = encode_batch(new, base_offset=0, leader_epoch=1)
    assert scan_rows(log) == read_rows(log)
    ranged = scan(log, columns=Column.ALL, start_offset=3, end_offset=290)
    assert rows_of(ranged) == read_rows(log).rows[3:290]


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.LZ4])
def test_a_scan_of_some_values_has_the_rows_of_control_records_too(codec: Compression) -> None:
    values = (b"ab", None, b"a", b"", b"abc", b"ba", b"cd")
    batches = [
        NewRecordBatch(
            records=tuple(NewRecord(b"k", value) for value in values),
            base_timestamp_ms=TIME_MS,
            compression=codec,
        ),
        NewRecordBatch(
            records=(NewRecord(b"\0\0\0\2", b""),), base_timestamp_ms=TIME_MS, is_control=True
        ),
    ]
    log = b"".join(
        encode_batch(new, base_offset=7 * n, leader_epoch=3) for n, new in enumerate(batches)
    )

    def offsets(*prefixes: bytes, start_offset: int | None = None) -> list[int]:
        found = scan(log, value_prefixes=prefixes, start_offset=start_offset)
        assert len(found.batches) == 2, "headers of all batches are returned"
        assert found.records.offset is not None
        return list(found.records.offset.to_pylist())

    def selected() -> list[list[int]]:
        prefixes = ((b"ab",), (b"ab", b"cd"), (b"",), (b"x",), ())
        return [*(offsets(*some) for some in prefixes), offsets(b"ab", start_offset=1)]

    for found in in_each(selected):
        assert found[:2] == [[0, 4, 7], [0, 4, 6, 7]]
        assert found[2:4] == [[0, 2, 3, 4, 5, 6, 7], [7]]
        assert found[4:] == [[*range(8)], [4, 7]]


def test_batches_before_a_range_are_skipped_unchecked() -> None:
    log = bytearray(log_of([10] * 5))
    undamaged = read_rows(bytes(log)).rows
    log[70] ^= 1  # in the first batch
    scanned = scan(bytes(log), columns=Column.ALL, start_offset=12, end_offset=31)
    assert rows_of(scanned) == undamaged[12:31]
    assert scanned.batches.base_offset.tolist() == [10, 20, 30]
    assert scanned.stop is Stop.END_OFFSET
    assert scanned.end_position == int(scan(bytes(log), start_offset=40).batches.position[0])


@pytest.mark.parametrize(("start", "end"), [(50, None), (None, 0), (60, 70), (20, 20)])
def test_an_empty_range_has_no_rows(start: int | None, end: int | None) -> None:
    scanned = scan(log_of([10] * 5), start_offset=start, end_offset=end)
    assert len(scanned.records) == len(scanned.batches) == 0
    assert scanned.error is None


def test_a_scan_at_its_decompression_limit_returns_the_offset_to_continue_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scan_module, "SCAN_DECOMPRESSED_BYTES_MAX", 64 * KIB)
    log = log_of([200] * 20, 100, Compression.ZSTD)
    rows = []
    position = 0
    scans = 0
    while True:
        scanned = scan(log[position:], columns=Column.ALL, file_position=position)
        rows += rows_of(scanned)
        position += scanned.end_position
        scans += 1
        if scanned.stop is not Stop.FULL:
            break
        assert len(scanned.batches) < 20
    assert scanned.stop is Stop.END
    assert scans > 3
    assert rows == read_rows(log).rows


def test_a_scan_stops_before_arrows_address_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scan_module, "SCAN_BYTES_MAX", 10 * KIB)
    log = log_of([10] * 100)
    scanned = scan(log)
    assert scanned.stop is Stop.FULL
    assert 9 * KIB < scanned.end_position <= 10 * KIB
    rest = scan(log[scanned.end_position :], file_position=scanned.end_position)
    assert rest.batches.position[0] == scanned.end_position
    one_large = log_of([400], 40)
    assert len(one_large) > 10 * KIB
    assert scan(one_large).stop is Stop.END


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, pa.py_buffer])
def test_any_buffer_is_scanned(kind: type) -> None:
    log = log_of([3] * 50)
    assert len(scan(kind(log)).records) == 150


def test_plain_and_compressed_batches_are_scanned_together() -> None:
    log = b"".join(log_of([3, 200, 1], codec=codec) for codec in Compression) + log_of([0, 2, 0])
    assert scan_rows(log) == read_rows(log)


def test_equal_bytes_give_equal_columns_and_the_buffer_is_unchanged() -> None:
    log = bytearray(log_of([1] * 300))
    before = bytes(log)
    first, second = scan(log, columns=Column.ALL), scan(log, columns=Column.ALL)
    assert rows_of(first) == rows_of(second)
    assert log == before


def test_the_repr_of_a_record_has_the_sizes_of_its_values() -> None:
    headers = (Header("source", b"s3cret"),)
    record = Record(offset=5, timestamp_ms=7, key=b"k3y", value=b"s3cret", headers=headers)
    assert repr(record) == (
        "Record(offset=5, timestamp_ms=7, key=<3 bytes>, value=<6 bytes>, "
        "headers=(Header(key='source', value=<6 bytes>),))"
    )
    assert repr(NewRecord(None, b"")) == "NewRecord(key=None, value=<0 bytes>)"


def test_reprs_have_no_values() -> None:
    new = NewRecordBatch(records=(NewRecord(b"k3y", b"s3cret"),), base_timestamp_ms=TIME_MS)
    shown = repr(scan(encode_batch(new, base_offset=0, leader_epoch=1), columns=Column.ALL))
    assert "base_offset" in shown
    for hidden in (b"k3y", b"s3cret"):
        assert hidden.hex().upper() not in shown
        assert hidden.decode() not in shown


def test_long_values_equal_those_of_the_records() -> None:
    values = [None, b"", bytes(range(256)) * 900, b"x" * 300_000, None, b"y"]
    records = tuple(NewRecord(value, value, None, (Header("h", value),)) for value in values)
    new = NewRecordBatch(records=records, base_timestamp_ms=0)
    data = encode_batch(new, base_offset=0, leader_epoch=0)
    found = scan(data, columns=Column.ALL).records
    assert found.key is not None
    assert found.value is not None
    assert found.headers is not None
    assert found.key.to_pylist() == found.value.to_pylist() == values
    assert [row[0]["value"] for row in found.headers.to_pylist()] == values
