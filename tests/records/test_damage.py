"""Damage is found or has no effect: truncations and flipped bits anywhere, wrong numbers."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import pytest
from tests.support.batch_encoding import NewRecordBatch, encode_batch
from tests.support.batch_strategies import resealed
from tests.support.record_rows import Rows, read_rows, scan_rows
from tests.support.sweep_size import WHOLE, slow_except

import raftlog.records.batch as batch_module
import raftlog.records.record_columns as lockstep_module
import raftlog.records.scan as scan_module
from raftlog.errors import (
    CorruptBatchError,
    DecompressionLimitError,
    HeaderLimitError,
    UnsupportedMagicError,
)
from raftlog.limits import HEADERS_PER_RECORD_MAX, MIB, READ_BATCH_BYTES_MAX
from raftlog.records.batch import Compression, Header, NewRecord, TornTail, read_batch
from raftlog.records.batch_columns import scan_headers
from raftlog.records.fields import varint
from raftlog.records.scan import Stop, scan

TIME_MS = 1_700_000_000_000
BASE_OFFSET_BYTES = range(8)
LENGTH_BYTES = range(8, 12)
EPOCH_BYTES = range(12, 16)
MAGIC_BYTE = 16


def batch_bytes(base_offset: int, codec: Compression = Compression.NONE, count: int = 3) -> bytes:
    records = tuple(
        NewRecord(b"key", b"value %d" % n, TIME_MS + n, (Header("h", b"x"),)) for n in range(count)
    )
    new = NewRecordBatch(records=records, base_timestamp_ms=TIME_MS, compression=codec)
    return encode_batch(new, base_offset=base_offset, leader_epoch=5)


FIRST, SECOND, THIRD = batch_bytes(10), batch_bytes(13), batch_bytes(16)
LOG = FIRST + SECOND + THIRD


def both(data: bytes, **limits: int) -> Rows:
    """Return the result of both readers, which must agree."""
    read = read_rows(data, **limits)
    assert scan_rows(data, **limits) == read
    return read


CODECS = slow_except([Compression.NONE, Compression.ZSTD], list(Compression))


@pytest.mark.parametrize("codec", CODECS)
def test_a_log_truncated_at_any_byte_gives_its_whole_batches(codec: Compression) -> None:
    batches = [batch_bytes(10 + 3 * n, codec) for n in range(3)]
    log = b"".join(batches)
    ends = [sum(map(len, batches[: n + 1])) for n in range(3)]
    for byte_count in range(len(log)):
        result = both(log[:byte_count])
        whole = sum(end <= byte_count for end in ends)
        assert len(result.rows) == 3 * whole
        assert result.end_position == ([0, *ends])[whole]
        assert result.stop is (Stop.END if result.end_position == byte_count else Stop.TORN)


@WHOLE
@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
def test_a_flipped_bit_is_found_or_has_no_effect(codec: Compression, whole: bool) -> None:
    """Every bit outside the CRC, and one bit per byte of the rest."""
    batches = [batch_bytes(10 + 3 * n, codec) for n in range(3)]
    log = b"".join(batches)
    undamaged = both(log)
    start, end = len(batches[0]), len(batches[0]) + len(batches[1])
    for bit in range(8 * start, 8 * end):
        if not whole and bit // 8 - start > MAGIC_BYTE and bit % 8 != bit // 8 % 8:
            continue
        damaged = bytearray(log)
        damaged[bit // 8] ^= 1 << bit % 8
        result = both(bytes(damaged))
        field = bit // 8 - start
        assert result.rows[:3] == undamaged.rows[:3]  # every valid batch is read
        if result.stop is not Stop.END:
            assert (result.end_position, result.rows) == (start, undamaged.rows[:3])
            assert result.stop is Stop.DAMAGED or field in LENGTH_BYTES
        elif field in BASE_OFFSET_BYTES:
            # No CRC covers it. The offsets are no longer consecutive, which the reader of logs
            # checks.
            moved = [row[0] for row in result.rows[3:6]]
            assert moved[0] != 13
            assert [offset - moved[0] for offset in moved] == [0, 1, 2]
            assert [row[1:] for row in result.rows] == [row[1:] for row in undamaged.rows]
        else:
            # Nor does one cover the epoch, which leaders assign. The records are unchanged.
            assert field in EPOCH_BYTES
            assert [row[:2] + row[3:] for row in result.rows] == [
                row[:2] + row[3:] for row in undamaged.rows
            ]


@WHOLE
def test_a_flipped_bit_in_one_of_many_small_batches_is_found(whole: bool) -> None:
    batches = [batch_bytes(n, count=1) for n in range(300)]
    log = b"".join(batches)
    position = 0
    for ordinal, one in enumerate(batches):
        if not whole and ordinal % 5:
            position += len(one)
            continue
        damaged = bytearray(log)
        damaged[position + 21 + ordinal % (len(one) - 21)] ^= 1 << ordinal % 8
        result = scan(bytes(damaged))
        assert (result.stop, result.end_position) == (Stop.DAMAGED, position)
        assert len(result.batches) == len(result.records) == ordinal
        position += len(one)


def test_an_error_reports_all_its_fields() -> None:
    damaged = bytearray(LOG)
    damaged[len(FIRST) + 70] ^= 1
    result = scan(bytes(damaged), path="00000000000000000010.log", file_position=1000)
    error = result.error
    assert isinstance(error, CorruptBatchError)
    assert (error.path, error.position) == ("00000000000000000010.log", 1000 + len(FIRST))
    assert error.offset == 13
    assert "CRC mismatch" in error.reason
    assert result.end_position == len(FIRST)
    with pytest.raises(CorruptBatchError) as raised:
        read_batch(damaged, len(FIRST), path="00000000000000000010.log", file_position=1000)
    assert str(raised.value) == str(error)


@pytest.mark.parametrize("byte_count", [1, 11, 12, 16, 17, 60, 61, 5000])
def test_zeros_after_the_last_batch_are_a_torn_tail(byte_count: int) -> None:
    result = both(LOG + bytes(byte_count))
    assert (result.stop, result.end_position, len(result.rows)) == (Stop.TORN, len(LOG), 9)
    assert read_batch(bytes(byte_count)) == TornTail(0, byte_count)


def test_zeros_before_other_bytes_are_damage() -> None:
    result = both(LOG + bytes(5000) + b"\x01")
    assert (result.stop, result.end_position) == (Stop.DAMAGED, len(LOG))
    assert "invalid batch length 0" in str(result.error)


@pytest.mark.parametrize("length", [-1, -(2**31), 0, 13, 48, 2**31 - 1, READ_BATCH_BYTES_MAX])
def test_an_impossible_length_is_damage(length: int) -> None:
    damaged = FIRST + SECOND[:8] + struct.pack(">i", length) + SECOND[12:] + THIRD
    result = both(damaged)
    assert (result.stop, result.end_position, len(result.rows)) == (Stop.DAMAGED, len(FIRST), 3)
    assert f"invalid batch length {length}" in str(result.error)
    walked = scan_headers(damaged)
    assert (walked.stop, walked.end_position, len(walked.batches)) == (
        Stop.DAMAGED,
        len(FIRST),
        1,
    )


def test_a_length_of_four_gib_in_the_last_bytes_is_damage() -> None:
    result = both(FIRST + SECOND[:8] + b"\xff\xff\xff\xff")
    assert (result.stop, result.end_position) == (Stop.DAMAGED, len(FIRST))


@pytest.mark.parametrize("magic", [3, 127, 128, 255])
def test_an_unknown_magic_is_damage(magic: int) -> None:
    result = both(FIRST + SECOND[:16] + bytes([magic]) + SECOND[17:] + THIRD)
    assert (result.stop, result.end_position) == (Stop.DAMAGED, len(FIRST))
    assert f"unknown magic {magic}" in str(result.error)
    with pytest.raises(UnsupportedMagicError):
        read_batch(FIRST[:16] + b"\x01" + FIRST[17:])


@pytest.mark.parametrize(
    "text", [b"hello, this is no log at all\n" * 9, b"{}", b"", b"PK\x03\x04" + bytes(range(200))]
)
def test_bytes_that_are_no_log_are_reported_as_such(text: bytes) -> None:
    result = both(text)
    assert result.rows == []
    assert result.end_position == 0
    assert result.stop is {2: Stop.TORN, 0: Stop.END}.get(len(text), Stop.DAMAGED)


def with_wrong_number(layout: str, position: int, number: int, batch: bytes = SECOND) -> bytes:
    """Return SECOND with a number of its header replaced, under a valid CRC."""
    width = struct.calcsize(layout)
    return resealed(batch[:position] + struct.pack(layout, number) + batch[position + width :])


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        (with_wrong_number(">i", 57, 4), "record count 4"),
        (with_wrong_number(">i", 57, 2), "bytes are left after its 2 records"),
        (with_wrong_number(">i", 57, 0), "bytes are left after its 0 records"),
        (with_wrong_number(">i", 57, -1), "invalid record count -1"),
        (with_wrong_number(">i", 57, 2**31 - 1), "invalid record count 2147483647"),
        (
            with_wrong_number(">i", 57, 1000, with_wrong_number(">i", 23, 5000)),
            "record count 1000 does not fit into",
        ),
        (with_wrong_number(">i", 23, 1), "invalid record count 3 with last offset delta 1"),
        (with_wrong_number(">i", 23, -1), "last offset delta -1"),
        (with_wrong_number(">q", 0, -5), "invalid base offset -5"),
        (with_wrong_number(">q", 0, 2**63 - 1), "invalid base offset 9223372036854775807"),
        (with_wrong_number(">h", 21, 5), "unknown compression codec 5"),
        (with_wrong_number(">h", 21, 7), "unknown compression codec 7"),
        (with_wrong_number(">h", 21, 1), "corrupt gzip data"),
        (with_wrong_number(">h", 21, 2), "corrupt snappy data"),
        (with_wrong_number(">h", 21, 3), "corrupt lz4 data"),
        (with_wrong_number(">h", 21, 4), "corrupt zstd data"),
    ],
)
def test_a_wrong_header_under_a_valid_crc_is_damage(batch: bytes, reason: str) -> None:
    result = both(FIRST + batch + THIRD)
    assert (result.stop, result.end_position, len(result.rows)) == (Stop.DAMAGED, len(FIRST), 3)
    assert reason in str(result.error)


NEVER_ENDS = b"\xff" * 12


def with_records(count: int, stream: bytes, last_offset_delta: int | None = None) -> bytes:
    """Return a batch with handmade records."""
    empty = encode_batch(
        NewRecordBatch(records=(), base_timestamp_ms=TIME_MS), base_offset=13, leader_epoch=5
    )
    last = count - 1 if last_offset_delta is None else last_offset_delta
    header = empty[:23] + struct.pack(">i", last) + empty[27:57] + struct.pack(">i", count)
    return resealed(header + stream)


def record(body: bytes) -> bytes:
    return varint(len(body)) + body


GOOD = record(b"\0\0\0" + b"\x01" + varint(1) + b"v" + b"\0")


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (NEVER_ENDS, "malformed varint"),
        (record(b"\0" + NEVER_ENDS), "malformed varint"),
        (record(b"\0\0" + NEVER_ENDS), "malformed varint"),
        (record(b"\0\0\0" + NEVER_ENDS), "malformed varint"),
        (record(b"\0\0\0\x01" + NEVER_ENDS), "malformed varint"),
        (record(b"\0\0\0\x01\x01" + NEVER_ENDS), "malformed varint"),
        (varint(-1) + GOOD, "invalid record length -1"),
        (varint(0) + GOOD, "invalid record length 0"),
        (varint(2**31 - 1) + GOOD, "invalid record length 2147483647"),
        (record(b"\0\0\0" + varint(-2) + b"\x01\0\0\0"), "invalid key length -2"),
        (record(b"\0\0\0" + varint(2**31 - 1) + b"\x01\0\0\0"), "invalid key length 2147483647"),
        (record(b"\0\0\0\x01" + varint(-2) + b"\0\0\0"), "invalid value length -2"),
        (record(b"\0\0\0\x01" + varint(50) + b"\0\0\0"), "invalid value length 50"),
        (record(b"\0\0\0\x01\x01" + varint(-1) + b"\0"), "invalid header count -1"),
        (record(b"\0\0\0\x01\x01" + varint(2**31 - 1) + b"\0"), "invalid header count 2147483647"),
        (record(b"\0\0\0\x01\x01" + varint(1) + varint(-1) + b"\x01"), "null header key"),
        (
            record(b"\0\0\0\x01\x01" + varint(1) + varint(9) + b"\x01"),
            "invalid header key length 9",
        ),
        (
            record(b"\0\0\0\x01\x01" + varint(1) + b"\0" + varint(-3)),
            "invalid header value length -3",
        ),
        (record(b"\0\0\0\x01\x01\0junk"), "its fields have 6 bytes"),
        (record(b"\0\0\x01\x01\x01\0"), "offset delta -1, expected one from 0 to 0"),
        (record(b"\0\0\x02\x01\x01\0"), "offset delta 1, expected one from 0 to 0"),
    ],
)
def test_a_wrong_record_under_a_valid_crc_is_damage(stream: bytes, reason: str) -> None:
    result = both(FIRST + with_records(1, stream + bytes(7)) + THIRD)
    assert (result.stop, result.end_position, len(result.rows)) == (Stop.DAMAGED, len(FIRST), 3)
    result = both(FIRST + with_records(1, stream) + THIRD)
    assert (result.stop, result.end_position, len(result.rows)) == (Stop.DAMAGED, len(FIRST), 3)
    assert reason in str(result.error)


def test_decreasing_offsets_inside_a_batch_are_damage() -> None:
    one = record(b"\0\0\x02\x01\x01\0")
    result = both(FIRST + with_records(2, one + one, 5))
    assert "record 2 of 2 has offset delta 1, expected one from 2" in str(result.error)


def test_very_many_existing_headers_are_read() -> None:
    count = 10_000
    body = b"\0\0\0\x01\x01" + varint(count) + b"\0\x01" * count
    result = both(with_records(1, record(body)))
    assert len(result.rows[0][5]) == count


def headers_of(count: int) -> bytes:
    """Return the body of a record with ``count`` empty headers."""
    return b"\0\0\0\x01\x01" + varint(count) + b"\0\x01" * count


def test_an_excessive_header_count_is_refused_before_one_is_decoded() -> None:
    log = FIRST + with_records(1, record(headers_of(1_000_000))) + THIRD
    for read in (read_rows, scan_rows):
        tracemalloc.start()
        try:
            result = read(log)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert (result.stop, result.end_position, len(result.rows)) == (Stop.DAMAGED, len(FIRST), 3)
        assert "it has 1000000 headers, at most 10000 are allowed" in str(result.error)
        assert peak_bytes < 4 * len(log)
    error = scan(log).error
    assert isinstance(error, HeaderLimitError)
    assert (error.offset, error.position) == (13, len(FIRST))
    assert error.header_count_max == HEADERS_PER_RECORD_MAX
    assert "damaged" not in str(error)


@pytest.fixture
def few_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit a batch, and a scan, to 100 headers."""
    for module in (batch_module, lockstep_module, scan_module):
        monkeypatch.setattr(module, "HEADERS_PER_BATCH_MAX", 100)


def records_with_headers(counts: list[int]) -> bytes:
    """Return records with these numbers of headers, as in a batch."""
    bodies = (b"\0\0" + varint(n) + headers_of(count)[3:] for n, count in enumerate(counts))
    return b"".join(map(record, bodies))


@pytest.mark.parametrize("counts", [[101], [60, 41], [0] * 60 + [50, 0, 51], [1] * 101])
@pytest.mark.usefixtures("few_headers")
def test_a_batch_s_headers_are_bounded_together(counts: list[int]) -> None:
    large = with_records(len(counts), records_with_headers(counts))
    result = both(large + THIRD)
    assert (result.stop, result.end_position, result.rows) == (Stop.DAMAGED, 0, [])
    assert "the batch has more than 100 headers" in str(result.error)
    counts[-1] -= 1
    just = with_records(len(counts), records_with_headers(counts))
    assert len(both(just).rows) == len(counts)


@pytest.mark.usefixtures("few_headers")
def test_a_scan_ends_before_it_has_too_many_headers() -> None:
    full = with_records(1, records_with_headers([60]))
    bad = with_records(1, records_with_headers([60])[:-1] + b"\x02")
    log = FIRST + full + full + THIRD + bad
    ends, position = [], 0
    while position < len(log):
        scanned = scan(log[position:])
        position += scanned.end_position
        ends.append((position, scanned.stop))
        if scanned.stop is Stop.DAMAGED:
            break
    one = len(FIRST) + len(full)
    assert ends == [
        (one, Stop.FULL),
        (one + len(full) + len(THIRD), Stop.FULL),
        (one + len(full) + len(THIRD), Stop.DAMAGED),
    ]


def test_a_batch_that_expands_above_the_limit_is_refused() -> None:
    records = (NewRecord(None, bytes(3 * MIB)),)
    for codec in (Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD):
        new = NewRecordBatch(records=records, base_timestamp_ms=TIME_MS, compression=codec)
        log = FIRST + encode_batch(new, base_offset=13, leader_epoch=5)
        result = both(log, decompressed_bytes_max=MIB)
        assert (result.end_position, len(result.rows)) == (len(FIRST), 3)
        scanned = scan(log, decompressed_bytes_max=MIB)
        assert isinstance(scanned.error, DecompressionLimitError)
        assert (scanned.error.offset, scanned.error.position) == (13, len(FIRST))
        assert scanned.error.byte_count_max == MIB


@pytest.mark.slow
def test_every_whole_batch_of_a_real_segment_truncated_in_its_tail_is_read(data: Path) -> None:
    segment = data / "kraft-logs/trimmed-3.9.2/node-1/__cluster_metadata-0"
    whole_log = (segment / "00000000000000001037.log").read_bytes()
    positions = scan_headers(whole_log).batches.position
    log = whole_log[int(positions[positions < len(whole_log) - 1000][-1]) :]
    rows = read_rows(log).rows
    ends = [*scan_headers(log).batches.position.tolist(), len(log)]
    for byte_count in range(len(log) - 700, len(log)):
        result = scan_rows(log[:byte_count])
        assert result.error is None
        assert result.rows == rows[: len(result.rows)]
        assert result.end_position == max(end for end in ends if end <= byte_count)
