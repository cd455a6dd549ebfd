"""Metadata of batches that the log reads: names of commits, markers, control records."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.batch_encoding import NewRecordBatch, encode_batch
from tests.support.batch_strategies import new_batches, resealed
from tests.support.log_builder import (
    ABORT,
    END,
    NO_OP,
    begin,
    control_batch,
    data_batch,
    leader_change,
)

from raftlog.errors import CorruptBatchError, DecompressionLimitError
from raftlog.limits import (
    BATCH_HEADER_BYTES,
    COMMIT_ID_BYTES_MAX,
    DECOMPRESSED_BYTES_MAX,
    MIB,
    READ_BATCH_BYTES_MAX,
)
from raftlog.log.reading.transactions import (
    COMMIT_HEADER,
    VERSION_MAX,
    BatchMetadata,
    CommitName,
    Marker,
    MetadataMarker,
    ProducerMarker,
    ValueKind,
    batch_metadata,
    commit_header,
    commit_transaction_name,
    marker_of,
    marker_value,
    parse_commit_header,
    parse_commit_transaction_name,
    transaction_name,
)
from raftlog.records.batch import Header, NewRecord, RecordBatch, read_batch
from raftlog.records.builder import finish_batch
from raftlog.records.compression import Compression, compress
from raftlog.records.control import ControlType, EndTransactionMarker, LeaderChange
from raftlog.records.fields import unsigned_varint, varint

NAME = CommitName("app", "0b6c", 41)
USER_VALUES = pytest.mark.parametrize("values", [ValueKind.BYTES, ValueKind.MSGPACK])
CODECS = pytest.mark.parametrize("compression", list(Compression))
IDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
NAMES = st.builds(CommitName, IDS, IDS, st.integers(0, VERSION_MAX))


def read(data: bytes) -> RecordBatch:
    batch = read_batch(data, path="/log/x.log")
    assert isinstance(batch, RecordBatch)
    return batch


def metadata(data: bytes, values: ValueKind = ValueKind.BYTES) -> BatchMetadata:
    return batch_metadata(read(data), values)


def batch(
    *headers: tuple[Header, ...],
    compression: Compression = Compression.NONE,
    value: bytes | None = b"v",
) -> bytes:
    """Return a batch with one record for each tuple of headers."""
    records = tuple(NewRecord(b"k", value, headers=each) for each in headers)
    new = NewRecordBatch(records=records, base_timestamp_ms=5, compression=compression)
    return encode_batch(new, base_offset=10, leader_epoch=3)


# --- batch header ---


@pytest.mark.slow
@given(new_batches())
def test_metadata_of_the_batch_header_are_those_of_the_batch(new: NewRecordBatch) -> None:
    stored = read(encode_batch(replace(new, is_control=False), base_offset=10, leader_epoch=3))
    for values in ValueKind:
        found = batch_metadata(stored, values)
        for field in ("base_offset", "last_offset", "leader_epoch", "max_timestamp_ms"):
            assert getattr(found, field) == getattr(stored, field)
        for field in ("producer_id", "producer_epoch", "base_sequence", "record_count"):
            assert getattr(found, field) == getattr(stored, field)
        assert found.is_transactional == stored.is_transactional
        assert (found.commit, found.markers, found.control) == (None, (), ())


# --- names of commits in record headers ---


@CODECS
@USER_VALUES
def test_a_commit_is_named_in_the_first_record(values: ValueKind, compression: Compression) -> None:
    data = batch((Header("x", b"y"), commit_header(NAME)), (), compression=compression)
    assert metadata(data, values).commit == NAME


def test_a_header_of_a_later_record_names_no_commit() -> None:
    assert metadata(batch((), (commit_header(NAME),))).commit is None


def test_a_repeated_commit_header_names_no_commit() -> None:
    header = commit_header(NAME)
    assert metadata(batch((header, header))).commit is None


def test_a_kraft_log_has_no_commit_names_in_headers() -> None:
    assert metadata(batch((commit_header(NAME),)), ValueKind.KRAFT).commit is None


def test_the_commit_name_is_plain_messagepack() -> None:
    header = commit_header(NAME)
    assert header.key == "raftlog.commit"
    assert msgpack.unpackb(header.value) == ["app", "0b6c", 41]


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"\xc1",
        b"\x93\xa1a\xa1b",  # cut off
        msgpack.packb(["a", "b", 1]) + b"\0",
        msgpack.packb(["a", "b"]),
        msgpack.packb(["a", "b", 1, 2]),
        msgpack.packb(["a", "b", "1"]),
        msgpack.packb(["a", "b", 1.0]),
        msgpack.packb(["a", "b", True]),
        msgpack.packb(["a", "b", -1]),
        msgpack.packb(["a", "b", 2**64 - 1]),
        msgpack.packb(["", "b", 1]),
        msgpack.packb([b"a", "b", 1]),
        msgpack.packb(["a" * (COMMIT_ID_BYTES_MAX + 1), "b", 1]),
        msgpack.packb({"a": 1}),
        msgpack.packb("abc"),
        b"\x93\xa1\xff\xa1b\x01",  # not UTF-8
        b"\xdd\xff\xff\xff\xff",
        b"\x93" * 300,
        b"\x93" * 5000,
        b"\xc7\x00\x01",
    ],
)
def test_a_malformed_commit_header_is_ordinary_data(value: bytes | None) -> None:
    assert parse_commit_header(value) is None
    assert metadata(batch((Header(COMMIT_HEADER, value),))).commit is None


@given(st.binary(max_size=700))
def test_arbitrary_header_bytes_are_no_error(value: bytes) -> None:
    parse_commit_header(value)


@given(NAMES)
def test_commit_names_round_trip(name: CommitName) -> None:
    assert parse_commit_header(commit_header(name).value) == name
    assert parse_commit_transaction_name(commit_transaction_name(name)) == name


# --- names of commits in transactions ---


def kraft_batch(*values: bytes | None, compression: Compression = Compression.NONE) -> bytes:
    return data_batch(values, base_offset=10, compression=compression)


@CODECS
def test_a_commit_of_a_kraft_log_is_a_transaction_in_one_batch(compression: Compression) -> None:
    text = commit_transaction_name(NAME)
    assert json.loads(text) == ["app", "0b6c", 41]
    data = kraft_batch(begin(text), NO_OP, END, compression=compression)
    found = metadata(data, ValueKind.KRAFT)
    assert found.commit == NAME
    assert found.markers == (
        MetadataMarker(10, Marker.BEGIN, text),
        MetadataMarker(12, Marker.END),
    )
    assert metadata(data).markers == ()  # in a log of bytes they are bytes
    assert metadata(data).commit is None


@pytest.mark.parametrize(
    "values",
    [
        (begin('["app","0b6c",41]'), NO_OP),
        (begin('["app","0b6c",41]'), NO_OP, ABORT),
        (begin('["app","0b6c",41]'), END, NO_OP),
        (NO_OP, begin('["app","0b6c",41]'), END),
        (begin('["app","0b6c",41]'), END, begin("x"), END),
        (begin("Bootstrap records"), NO_OP, END),
        (begin('["app","0b6c"]'), END),
        (begin('["app","0b6c",41.0]'), END),
        (begin('["app","0b6c",true]'), END),
        (begin('["app","\\ud800",41]'), END),
        (begin('["app","0b6c",' + "9" * 40 + "]"), END),
        (begin("[" * 100), END),
        (begin(), END),
    ],
)
def test_other_transactions_name_no_commit(values: tuple[bytes, ...]) -> None:
    assert metadata(kraft_batch(*values), ValueKind.KRAFT).commit is None


@given(st.text())
def test_an_arbitrary_transaction_name_is_no_error(text: str) -> None:
    parse_commit_transaction_name(text)
    parse_commit_transaction_name("[" + text)


@pytest.mark.parametrize("text", ["[" * 30_000, "[1" + "0" * 20_000 + "]"])
def test_a_long_transaction_name_is_no_error(text: str) -> None:
    assert parse_commit_transaction_name(text) is None


# --- transaction markers ---


@CODECS
def test_markers_are_found_at_any_offset_of_a_batch(compression: Compression) -> None:
    data = kraft_batch(NO_OP, ABORT, begin(), NO_OP, END, begin("b"), compression=compression)
    assert metadata(data, ValueKind.KRAFT).markers == (
        MetadataMarker(11, Marker.ABORT),
        MetadataMarker(12, Marker.BEGIN),
        MetadataMarker(14, Marker.END),
        MetadataMarker(15, Marker.BEGIN, "b"),
    )


def test_values_that_resemble_markers_are_none() -> None:
    data = kraft_batch(b"", None, b"\x01", b"\x00\x17\x00", b"\x01\x16\x00", b"x\x01\x17\x00\x00")
    assert metadata(data, ValueKind.KRAFT).markers == ()


def test_a_malformed_commit_name_is_ignored_and_its_marker_is_not() -> None:
    data = kraft_batch(b"\x01\x17\x00\x01\x00\x09\x02", b"\x01\x17", END)
    assert metadata(data, ValueKind.KRAFT).markers == (
        MetadataMarker(10, Marker.BEGIN),
        MetadataMarker(11, Marker.BEGIN),
        MetadataMarker(12, Marker.END),
    )


def test_markers_are_written_as_kafka_writes_them(data: Path) -> None:
    rows = [
        line.split("\t") for line in (data / "kraft-golden-vectors.tsv").read_text().splitlines()
    ]
    golden = {row[4]: bytes.fromhex(row[3]) for row in rows if "TransactionRecord(" in row[-1]}
    written = {
        "BeginTransactionRecord(name=null)": marker_value(Marker.BEGIN),
        "BeginTransactionRecord(name='s')": marker_value(Marker.BEGIN, "s"),
        "BeginTransactionRecord(name='Bootstrap records')": marker_value(
            Marker.BEGIN, "Bootstrap records"
        ),
        "EndTransactionRecord()": marker_value(Marker.END),
        "AbortTransactionRecord(reason=null)": marker_value(Marker.ABORT),
        "AbortTransactionRecord(reason='s')": marker_value(Marker.ABORT, "s"),
    }
    assert written == golden


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=300))
def test_a_transaction_name_round_trips(name: str) -> None:
    value = marker_value(Marker.BEGIN, name)
    assert (marker_of(value), transaction_name(value)) == (Marker.BEGIN, name)


# --- control records ---


def test_control_records_are_decoded() -> None:
    found = metadata(control_batch([leader_change(1, [1])], base_offset=4))
    assert found.is_control
    (record,) = found.control
    assert isinstance(record, LeaderChange)
    assert found.markers == ()


@pytest.mark.parametrize("kind", [ControlType.COMMIT, ControlType.ABORT])
def test_the_end_of_a_producers_transaction_is_a_marker(kind: ControlType) -> None:
    marker = EndTransactionMarker(control_type=kind, coordinator_epoch=6)
    found = metadata(control_batch([marker], base_offset=4, producer_id=9))
    assert found.markers == (ProducerMarker(4, kind is ControlType.COMMIT, 6),)
    assert found.control == (marker,)


def test_a_malformed_control_record_is_damage_with_its_offset() -> None:
    new = NewRecordBatch(
        records=(NewRecord(b"\0\0\0\x02", b"\0"),), base_timestamp_ms=0, is_control=True
    )
    with pytest.raises(CorruptBatchError) as damage:
        metadata(encode_batch(new, base_offset=4, leader_epoch=1))
    assert (damage.value.path, damage.value.offset) == ("/log/x.log", 4)


# --- malformed records with a valid CRC ---


@pytest.mark.parametrize("values", list(ValueKind))
@pytest.mark.parametrize("compression", [Compression.NONE, Compression.LZ4])
def test_records_that_cannot_be_decoded_have_no_name_and_no_marker(
    values: ValueKind, compression: Compression
) -> None:
    whole = batch((commit_header(NAME),), compression=compression, value=END)
    for position in range(BATCH_HEADER_BYTES, len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0x91
        found = metadata(resealed(bytes(damaged)), values)
        assert found.record_count == 1
        cut = metadata(resealed(whole[:position]), values)
        assert cut.commit is None


# --- batches far larger than the part that is read ---


def named_batch(codec: Compression, value_bytes: int) -> RecordBatch:
    """Return a batch whose first record has ``value_bytes`` zeros before a commit's name."""
    body = b"\0\0\0" + varint(-1) + varint(value_bytes)
    header = commit_header(NAME)
    key, value = header.key.encode(), header.value or b""
    after = b"".join((varint(1), varint(len(key)), key, varint(len(value)), value))
    before = varint(len(body) + value_bytes + len(after)) + body
    return compressed_batch([before, *[bytes(MIB)] * (value_bytes // MIB), after], codec)


def compressed_batch(pieces: list[bytes], codec: Compression) -> RecordBatch:
    """Return a one-record batch of the bytes ``pieces``; zstd compresses each by itself."""
    if codec is Compression.ZSTD:
        frames = {piece: compress(piece, codec) for piece in set(pieces)}
        payload = b"".join(frames[piece] for piece in pieces)
    else:
        payload = compress(b"".join(pieces), codec)
    return read(
        finish_batch(
            payload,
            base_offset=10,
            leader_epoch=3,
            byte_count_max=READ_BATCH_BYTES_MAX,
            compression=codec,
            flags=0,
            last_offset_delta=0,
            base_timestamp_ms=5,
            max_timestamp_ms=5,
            producer=(-1, -1, -1),
            record_count=1,
        )
    )


@pytest.mark.parametrize("compression", [one for one in Compression if one])
def test_a_name_is_read_without_decompressing_the_whole_batch(compression: Compression) -> None:
    stored = named_batch(compression, 32 * MIB)
    tracemalloc.start()
    try:
        found = batch_metadata(stored, ValueKind.BYTES)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.commit == NAME
    assert peak_bytes < 16 * MIB


def test_a_name_is_read_from_a_batch_larger_than_the_readers_limit() -> None:
    stored = named_batch(Compression.ZSTD, DECOMPRESSED_BYTES_MAX + MIB)
    with pytest.raises(DecompressionLimitError):
        next(stored.records())
    assert batch_metadata(stored, ValueKind.BYTES).commit == NAME


def test_nothing_after_the_first_records_headers_is_decompressed() -> None:
    whole = read(batch((commit_header(NAME),), compression=Compression.ZSTD))
    after = compress(bytes(MIB), Compression.ZSTD) + b"no frame of zstd"
    junk = replace(whole, payload=whole.payload + after, record_count=2)
    assert batch_metadata(junk, ValueKind.BYTES).commit == NAME


def test_a_marker_is_read_from_a_batch_larger_than_the_readers_limit() -> None:
    size = DECOMPRESSED_BYTES_MAX
    body = b"\0\0\0" + varint(-1) + varint(size)
    large = varint(len(body) + size + 1) + body
    marker = marker_value(Marker.ABORT)
    body = b"\0\0" + varint(1) + varint(-1) + varint(len(marker)) + marker + b"\0"
    pieces = [large, *[bytes(MIB)] * (size // MIB), b"\0" + varint(len(body)) + body]
    one = compressed_batch(pieces, Compression.ZSTD)
    stored = replace(one, record_count=2, last_offset=one.base_offset + 1)
    assert batch_metadata(stored, ValueKind.KRAFT).markers == (
        MetadataMarker(stored.last_offset, Marker.ABORT),
    )


def test_exceeding_a_limit_is_not_reported_as_a_missing_name() -> None:
    claim = unsigned_varint(DECOMPRESSED_BYTES_MAX + 1)
    block = claim + bytes(DECOMPRESSED_BYTES_MAX // 22 + MIB)
    stored = replace(
        read(batch((commit_header(NAME),))), compression=Compression.SNAPPY, payload=block
    )
    for values in ValueKind:
        with pytest.raises(DecompressionLimitError):
            batch_metadata(stored, values)


@pytest.mark.parametrize("compression", list(Compression))
def test_headers_after_the_name_are_not_decoded(compression: Compression) -> None:
    headers = (commit_header(NAME), *[Header("", b"")] * 100_000)
    data = batch(headers, compression=compression)
    stored = read(data)
    tracemalloc.start()
    try:
        assert batch_metadata(stored, ValueKind.BYTES).commit == NAME
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < MIB
