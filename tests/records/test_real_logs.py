"""Every batch of every bundled log: two readers and kafka-dump-log agree, and bytes round trip."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest
from tests.support.batch_encoding import encode_batch, to_new_batch
from tests.support.dumps import DumpBatch, DumpRecord, control_text, dumped_logs, read_dump
from tests.support.record_rows import read_rows, rows_of, scan_rows
from tests.support.sweep_size import is_copy, slow_except

from raftlog.records import (
    Compression,
    Record,
    RecordBatch,
    TimestampType,
    decode_control,
    encode_control,
    iter_batches,
    read_batch,
)
from raftlog.records.batch_columns import scan_headers
from raftlog.records.control import UnknownControl
from raftlog.records.scan import Column, Stop, scan

LOGS = Path(__file__).parents[1] / "data" / "kraft-logs"
DUMPED = dumped_logs(LOGS)
UNDUMPED = [
    path
    for pattern in ("bootstrap.checkpoint", "*.log.deleted", "*.checkpoint.deleted")
    for path in sorted(LOGS.rglob(pattern))
]


def _chosen(logs: list[Path]) -> list[object]:
    return slow_except([log for log in logs if not is_copy(log)], logs)


TIME_KINDS = {
    TimestampType.CREATE_TIME: "CreateTime",
    TimestampType.LOG_APPEND_TIME: "LogAppendTime",
}


def name_of(path: Path) -> str:
    return str(path.relative_to(LOGS))


def as_dumped(batch: RecordBatch) -> DumpBatch:
    """Return the batch as dump-log prints it, without its records."""
    last_sequence = -1
    if batch.base_sequence >= 0:
        last_sequence = batch.base_sequence + batch.last_offset - batch.base_offset
    return DumpBatch(
        base_offset=batch.base_offset,
        last_offset=batch.last_offset,
        record_count=batch.record_count,
        base_sequence=batch.base_sequence,
        last_sequence=last_sequence,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        leader_epoch=batch.leader_epoch,
        is_transactional=batch.is_transactional,
        is_control=batch.is_control,
        delete_horizon_ms=batch.delete_horizon_ms,
        position=batch.position,
        time_kind=TIME_KINDS[batch.timestamp_type],
        max_timestamp_ms=batch.max_timestamp_ms,
        byte_count=batch.byte_count,
        magic=2,
        codec=batch.compression.name.lower(),
        crc=batch.crc,
        is_valid=True,
    )


def agree(batch: RecordBatch, record: Record, dumped: DumpRecord, log: Path) -> None:
    """Return whether ``record`` equals dump-log's output, as far as that has its fields."""
    assert record.offset == dumped.offset
    assert record.timestamp_ms == dumped.timestamp_ms
    assert (-1 if record.key is None else len(record.key)) == dumped.key_bytes
    assert (-1 if record.value is None else len(record.value)) == dumped.value_bytes
    assert tuple(header.key for header in record.headers) == dumped.header_keys
    if batch.is_control:
        control = decode_control(record.key, record.value)
        assert not isinstance(control, UnknownControl)
        plain = f"controlType: {control.control_type.name}({control.control_type})"  # Kafka 3.9
        assert dumped.text in (control_text(control), plain)
    elif not log.parent.name.startswith("__"):  # a topic of users: dump-log prints text
        assert dumped.key == (None if record.key is None else record.key.decode())
        assert dumped.payload == (None if record.value is None else record.value.decode())


@pytest.mark.parametrize("log", _chosen(DUMPED), ids=name_of)
def test_a_log_equals_dump_logs_output(log: Path) -> None:
    data = log.read_bytes()
    dumped = read_dump(log)
    batches = list(iter_batches(data, path=str(log)))
    assert batches
    assert sum(batch.byte_count for batch in batches) == len(data)
    for batch, expected in zip(batches, dumped, strict=True):
        assert as_dumped(batch) == DumpBatch(**{**vars(expected), "records": []})
        records = list(batch.records())
        for record, line in zip(records, expected.records, strict=True):
            agree(batch, record, line, log)


@pytest.mark.parametrize("log", _chosen(DUMPED + UNDUMPED), ids=name_of)
def test_parsed_batches_are_encoded_to_the_same_bytes(log: Path) -> None:
    data = log.read_bytes()
    for batch in iter_batches(data):
        is_damaged = data[batch.position : batch.position + batch.byte_count]
        place = {"base_offset": batch.base_offset, "leader_epoch": batch.leader_epoch}
        written = encode_batch(to_new_batch(batch), **place)
        if batch.compression is Compression.NONE:
            assert written == is_damaged
        else:
            again = read_batch(written)
            assert isinstance(again, RecordBatch)
            assert to_new_batch(again) == to_new_batch(batch)
        if batch.is_control:
            for record in batch.records():
                control = decode_control(record.key, record.value)
                assert encode_control(control) == (record.key, record.value)


@pytest.mark.parametrize("log", _chosen(DUMPED + UNDUMPED), ids=name_of)
def test_the_scan_agrees_with_the_reader_of_batches(log: Path) -> None:
    data = log.read_bytes()
    expected = read_rows(data)
    assert (expected.stop, expected.end_position) == (Stop.END, len(data))
    assert scan_rows(data) == expected
    batches = list(iter_batches(data, file_position=4096))
    scanned = scan(data, columns=Column.NONE, file_position=4096)
    walked = scan_headers(data, file_position=4096)
    assert (walked.end_position, walked.stop) == (len(data), Stop.END)
    for columns in (scanned.batches, walked.batches):
        for name in columns.__slots__:
            if name != "attributes":
                assert getattr(columns, name).tolist() == [getattr(one, name) for one in batches]
        assert columns.is_control.tolist() == [one.is_control for one in batches]
        assert columns.is_transactional.tolist() == [one.is_transactional for one in batches]
        assert columns.compression.tolist() == [one.compression for one in batches]


@pytest.mark.parametrize("log", _chosen(DUMPED), ids=name_of)
def test_any_range_of_offsets_gives_its_rows(log: Path) -> None:
    data = log.read_bytes()
    rows = read_rows(data).rows
    offsets = sorted({row[0] for row in rows})
    chance = np.random.default_rng(len(data))
    for _ in range(5):
        start, end = sorted(chance.integers(offsets[0] - 2, offsets[-1] + 3, 2).tolist())
        scanned = scan(data, columns=Column.ALL, start_offset=start, end_offset=end)
        assert rows_of(scanned) == [row for row in rows if start <= row[0] < end]
        assert scanned.stop is (Stop.END if end > offsets[-1] else Stop.END_OFFSET)


def test_a_log_copied_from_a_running_node_is_complete(tmp_path: Path) -> None:
    with tarfile.open(LOGS / "running-4.3.1" / "running.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    files = [*tmp_path.rglob("*.log"), *tmp_path.rglob("*.checkpoint")]
    assert len(files) == 3
    for path in files:
        data = path.read_bytes()
        expected = read_rows(data)
        assert expected.error is None
        assert scan_rows(data) == expected
        assert expected.end_position == len(data)
        written = b"".join(
            encode_batch(
                to_new_batch(batch), base_offset=batch.base_offset, leader_epoch=batch.leader_epoch
            )
            for batch in iter_batches(data)
        )
        assert written == data
