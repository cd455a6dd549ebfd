"""kafka-dump-log reads every codec with several blocks, and every kind of batch by raftlog."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.batch_encoding import NewRecordBatch, encode_batch
from tests.support.dumps import DumpBatch, parse_dump
from tests.support.kafka import kafka_jars, run_java

from raftlog.records import (
    Compression,
    Header,
    NewRecord,
    RecordBatch,
    TimestampType,
    encode_control,
    iter_batches,
)
from raftlog.records.control import ControlType as Type
from raftlog.records.control import EndTransactionMarker, UnknownControl

pytestmark = pytest.mark.kafka
TIME_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def jars() -> Path:
    return kafka_jars()


def large(codec: Compression) -> NewRecordBatch:
    """Return some 300 KB of records with keys, headers and timestamps; some are incompressible."""
    noise = "".join(chr(0x4E00 + n * 7919 % 20000) for n in range(3000))
    records = tuple(
        NewRecord(
            key=f"key {n}".encode() if n % 3 else None,
            value=(f"value {n} " * 40 + noise[n : n + 40 * (n % 5)]).encode() if n % 7 else None,
            timestamp_ms=TIME_MS + 1000 * (n % 11) - 5000,
            headers=tuple(Header(f"header {k}", b"x" if k else None) for k in range(n % 4)),
        )
        for n in range(900)
    )
    return NewRecordBatch(records=records, base_timestamp_ms=TIME_MS, compression=codec)


def control(*records: EndTransactionMarker | UnknownControl) -> NewRecordBatch:
    return NewRecordBatch(
        records=tuple(NewRecord(*encode_control(record)) for record in records),
        base_timestamp_ms=TIME_MS,
        is_control=True,
        is_transactional=True,
        producer_id=9,
        producer_epoch=1,
    )


BATCHES = [
    *map(large, Compression),
    NewRecordBatch(
        records=(NewRecord(b"k", b"v", TIME_MS), NewRecord(b"k", b"w", TIME_MS - 10**12)),
        base_timestamp_ms=TIME_MS,
        max_timestamp_ms=TIME_MS + 5,
        timestamp_type=TimestampType.LOG_APPEND_TIME,
    ),
    NewRecordBatch(
        records=(NewRecord(b"k", None, TIME_MS),),
        offset_deltas=(3,),
        base_timestamp_ms=TIME_MS,
        last_offset_delta=9,
        delete_horizon_ms=TIME_MS + 10**9,
    ),
    NewRecordBatch(records=(), base_timestamp_ms=TIME_MS, last_offset_delta=4),
    NewRecordBatch(
        records=(NewRecord(b"k", b"v"), NewRecord(b"l", b"v")),
        base_timestamp_ms=TIME_MS,
        is_transactional=True,
        producer_id=9,
        producer_epoch=1,
        base_sequence=41,
    ),
    control(EndTransactionMarker(control_type=Type.ABORT, coordinator_epoch=3)),
    control(EndTransactionMarker(control_type=Type.COMMIT, coordinator_epoch=4)),
    control(UnknownControl(42, b"\0\0\0\x2a", b"later")),
]


def test_dump_log_reads_every_kind_of_batch(jars: Path, tmp_path: Path) -> None:
    written = bytearray()
    offset = 0
    for new in BATCHES:
        written += encode_batch(new, base_offset=offset, leader_epoch=7)
        offset += (new.last_offset_delta or len(new.records) - 1) + 1
    segment = tmp_path / "topic-0" / "00000000000000000000.log"
    segment.parent.mkdir()
    segment.write_bytes(written)
    printed = run_java(
        jars,
        "org.apache.kafka.tools.DumpLogSegments",
        "--print-data-log",
        "--files",
        str(segment),
    )
    dumped = list(parse_dump(printed.splitlines()[1:]))
    batches = list(iter_batches(written))
    assert len(dumped) == len(batches) == len(BATCHES)
    for batch, line in zip(batches, dumped, strict=True):
        assert line.is_valid
        assert (line.base_offset, line.last_offset) == (batch.base_offset, batch.last_offset)
        assert (line.codec, line.crc) == (batch.compression.name.lower(), batch.crc)
        assert line.delete_horizon_ms == batch.delete_horizon_ms
        agree(batch, line)


def agree(batch: RecordBatch, line: DumpBatch) -> None:
    for record, printed in zip(batch.records(), line.records, strict=True):
        assert (record.offset, record.timestamp_ms) == (printed.offset, printed.timestamp_ms)
        assert tuple(header.key for header in record.headers) == printed.header_keys
        if not batch.is_control:
            assert printed.key == (None if record.key is None else record.key.decode())
            assert printed.payload == (None if record.value is None else record.value.decode())
    texts = [printed.text for printed in line.records]
    if batch.is_control:
        assert texts in (
            ["endTxnMarker: ABORT coordinatorEpoch: 3"],
            ["endTxnMarker: COMMIT coordinatorEpoch: 4"],
            ["controlType: UNKNOWN(42)"],
        )
