"""Records of a produced batch: bounded before they are decoded, and packed if they are many."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

import raftlog.node.apis.produced_batch as produced_batch_module
import raftlog.node.apis.produced_batch as produced_records_module
from raftlog.append import named_records
from raftlog.errors import InvalidAppendError
from raftlog.limits import KIB, MIB
from raftlog.log.reading.transactions import CommitName, ValueKind, commit_header
from raftlog.log.writing.properties import LogConfig
from raftlog.node.apis.produced_batch import Produced, read_header
from raftlog.node.apis.produced_batch import produced_records as records_of
from raftlog.records import BatchAccumulator, BatchBuilder
from raftlog.records.batch import Compression, Header, NewRecord, RecordBatch, read_batch
from raftlog.records.compression import compress
from raftlog.records.encoding import PackedRecords
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
    found = produced_records(batch(first, b"w", b"x"), config)
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
