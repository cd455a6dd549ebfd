"""Records of a produced batch: bounded before they are decoded, and packed if they are many."""

from __future__ import annotations

import tracemalloc
from typing import Any, Final

import pytest

import raftlog.node.apis.produced_batch as produced_batch_module
import raftlog.node.apis.produced_batch as produced_records_module
from raftlog.append import named_records
from raftlog.errors import InvalidAppendError
from raftlog.limits import KIB, MIB
from raftlog.log.reading.transactions import (
    CommitName,
    ValueKind,
    batch_metadata,
    commit_header,
)
from raftlog.log.writing.properties import LogConfig
from raftlog.node.apis.produced_batch import Produced, read_header
from raftlog.node.apis.produced_batch import produced_records as records_of
from raftlog.records import BatchAccumulator, BatchBuilder
from raftlog.records.batch import Compression, Header, NewRecord, RecordBatch, read_batch
from raftlog.records.compression import compress
from raftlog.records.encoding import PackedRecords, SealedBatch
from raftlog.wire import ApiKey
from tests.support.batch_encoding import to_new_batch

from .batches import batch, produce
from .cluster import TIME_MS, Cluster, run, session, settle


def produced_records(data: bytes, config: LogConfig, **more: Any) -> Produced:
    header = read_header(data, byte_count_max=64 * MIB)
    return records_of(data, header, config, **more)


@pytest.mark.parametrize("values", list(ValueKind))
@pytest.mark.parametrize("record_count", [1, 100])
def test_a_batch_with_very_many_headers_creates_no_objects(
    values: ValueKind, record_count: int
) -> None:
    config = LogConfig(values=values, compression=Compression.ZSTD)
    bomb = NewRecord(None, b"\x93\x01\x01\x01", TIME_MS, (Header("", None),) * 300_000)
    others = (bomb.value or b"",) * (record_count - 1)
    data = batch(bomb, *others, compression=Compression.ZSTD)
    assert len(data) < 8 * KIB
    tracemalloc.start()
    try:
        with pytest.raises(InvalidAppendError, match="300000 headers, at most 10000 are allowed"):
            produced_records(data, config)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 8 * MIB


@pytest.mark.parametrize("compression", list(Compression))
def test_a_large_batch_is_named_and_compressed_in_an_executor(compression: Compression) -> None:
    config = LogConfig(compression=compression)
    name = CommitName("app", "q", 1)
    first = NewRecord(b"k", b"v", TIME_MS, (commit_header(name), Header("h", b"x")))
    sent = NewRecord(b"k", b"v", TIME_MS, first.headers[::-1])
    found = produced_records(batch(sent, b"w", b"x"), config)
    assert found.commit == name
    packed = found.records
    assert isinstance(packed, PackedRecords)
    assert list(packed) == [first, NewRecord(None, b"w", TIME_MS), NewRecord(None, b"x", TIME_MS)]
    assert named_records(packed, name, config.values) is packed
    builder = BatchBuilder(base_timestamp_ms=TIME_MS, compression=compression)
    encoded = builder.encode(packed)
    assert encoded is not None
    if compression is not Compression.NONE:
        assert encoded.compressed == compress(packed.data, compression)
    builder.add(encoded)
    written = read_batch(builder.build(5, 2).data)
    assert isinstance(written, RecordBatch)
    assert [record.value for record in written.records()] == [b"v", b"w", b"x"]


NAME: Final = CommitName("app", "q", 1)
OTHER_ENCODING: Final = Header("raftlog.commit", b"\xdc\x00\x03\xa3app\xa1q\x01")
"""The same name in a longer encoding of MessagePack."""


@pytest.mark.parametrize("values", [ValueKind.BYTES, ValueKind.MSGPACK])
@pytest.mark.parametrize(
    ("headers", "other_value", "is_sealed"),
    [
        ((commit_header(NAME),), b"w", True),
        ((commit_header(NAME), Header("h", b"x")), b"w", True),
        ((Header("h", b"x"), commit_header(NAME)), b"w", False),
        ((commit_header(NAME),), b"raftlog.", False),
        ((commit_header(NAME), Header("raftlog.take-over", b"p")), b"w", False),
        ((OTHER_ENCODING,), b"w", False),
    ],
)
def test_a_batch_that_names_its_commit_as_the_log_does_is_appended_with_its_bytes(
    headers: tuple[Header, ...], other_value: bytes, is_sealed: bool, values: ValueKind
) -> None:
    config = LogConfig(values=values)
    if values is ValueKind.MSGPACK:
        is_sealed, other_value = (
            False,
            b"\x93\x01\x01\xc4" + bytes((len(other_value),)) + other_value,
        )
    data = batch(NewRecord(b"k", b"\x93\x01\x01\x01", TIME_MS, headers), other_value)
    found = produced_records(data, config, decompressed_bytes_max=KIB)
    assert found.commit == NAME
    assert found.take_over_from == ("p" if len(headers) > 1 and headers[1].value == b"p" else None)
    assert isinstance(found.records, SealedBatch) is is_sealed
    named = named_records(found.records, NAME, values)
    assert (named is found.records) is is_sealed
    accumulator = BatchAccumulator(epoch=2, next_offset=5, byte_count_max=MIB)
    accumulator.append_atomic(2, named, now_ms=TIME_MS, standalone=True)
    (written,) = accumulator.drain()
    read = read_batch(written.data)
    assert isinstance(read, RecordBatch)
    assert batch_metadata(read, values).commit == NAME
    assert [one.value for one in read.records()] == [b"\x93\x01\x01\x01", other_value]
    if headers[0] == commit_header(NAME) and len(headers) == 1:
        assert written.data[21:] == data[21:], "the same bytes, decoded or not"


@pytest.mark.parametrize(
    "header",
    [Header("raftlog.commit", b"?"), Header("raftlog.other", b""), Header("raftlog.", None)],
)
def test_a_header_of_raftlog_that_is_no_name_is_refused(header: Header) -> None:
    data = batch(NewRecord(None, b"v", TIME_MS, (header,)))
    with pytest.raises(InvalidAppendError, match="header"):
        produced_records(data, LogConfig(), decompressed_bytes_max=KIB)


def test_many_records_without_timestamps_stay_packed_and_get_the_logs() -> None:
    untimed = [NewRecord(None, b"v", -1) for _ in range(100)]
    packed = produced_records(batch(*untimed, time_ms=-1), LogConfig()).records
    assert isinstance(packed, PackedRecords)
    accumulator = BatchAccumulator(epoch=1, next_offset=7)
    accumulator.append_atomic(1, packed, now_ms=TIME_MS)
    (completed,) = accumulator.drain()
    written = read_batch(completed.data)
    assert isinstance(written, RecordBatch)
    assert written.max_timestamp_ms == TIME_MS
    assert {record.timestamp_ms for record in written.records()} == {TIME_MS}


def test_more_records_than_are_decoded_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produced_records_module, "PRODUCED_OBJECTS_MAX", 99)
    monkeypatch.setattr(produced_batch_module, "PRODUCED_RECORDS_MAX", 150)
    mixed = [NewRecord(None, b"v", -1), *[NewRecord(None, b"v", TIME_MS)] * 99]
    with pytest.raises(InvalidAppendError, match="more than 99 records"):
        produced_records(batch(*mixed), LogConfig())
    assert len(produced_records(batch(*mixed[:99]), LogConfig()).records) == 99
    with pytest.raises(InvalidAppendError, match="151 records, and the maximum is 150"):
        read_header(batch(*[b"v"] * 151), byte_count_max=MIB)


def test_memory_of_a_decompressed_batch_is_held_until_it_is_answered() -> None:
    async def work() -> None:
        leader, client = Cluster().elect(), session()  # its log has another codec
        data = batch(*[bytes(KIB)] * 100, compression=Compression.ZSTD)
        assert len(data) < KIB
        leader.is_sync_held = True
        task = leader.start(ApiKey.PRODUCE, 13, produce(data), client)
        await settle()
        assert not task.done()
        assert client.memory.held_byte_count > 100 * KIB
        leader.release_syncs()
        await settle()
        assert task.done()
        assert client.memory.held_byte_count == 0

    run(work())


@pytest.mark.parametrize("record_count", [1, 100])
def test_header_names_that_are_not_utf_8_are_stored_unchanged(record_count: int) -> None:
    async def work() -> None:
        leader = Cluster().elect()
        records = [
            NewRecord(None, b"v", TIME_MS, (Header("n\ufffdme", b"x", b"n\xffme"),))
        ] * record_count
        data = batch(*records)
        assert data.count(b"n\xffme") == record_count
        task = leader.start(ApiKey.PRODUCE, 13, produce(data), session())
        await settle()
        assert task.done()
        log = leader.replica.log
        written = log.read_bytes(log.end_offset - record_count, MIB)
        assert written.count(b"n\xffme") == record_count
        stored = read_batch(written)
        assert isinstance(stored, RecordBatch)
        assert {one.headers[0].key for one in stored.records()} == {"n\ufffdme"}
        assert to_new_batch(stored).records[0].headers == records[0].headers

    run(work())
