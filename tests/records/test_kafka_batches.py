"""Batches that Kafka's own builder wrote, for cases that the bundled logs lack.

Headers, both kinds of log append time, compaction with its gaps and delete horizon, markers, codecs
with several blocks, old formats. ``MakeBatches.java`` wrote the file and documents what Kafka
reads.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.batch_encoding import encode_batch, to_new_batch
from tests.support.record_rows import read_rows, scan_rows

from raftlog.errors import UnsupportedMagicError
from raftlog.records import (
    Compression,
    ControlType,
    RecordBatch,
    TimestampType,
    decode_control,
    encode_control,
    read_batch,
)
from raftlog.records.control import EndTransactionMarker, LeaderChange, control_json
from raftlog.records.scan import Stop, scan

VECTORS_FILE = Path(__file__).parent / "batches-4.3.1.tsv"


def batch_vectors() -> dict[str, tuple[bytes, Any]]:
    lines = VECTORS_FILE.read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines]
    return {name: (bytes.fromhex(data), json.loads(expected)) for name, data, expected in rows}


BATCHES = batch_vectors()
MAGIC_2 = [name for name in BATCHES if not name.startswith(("magic", "leader"))]


def read(name: str) -> RecordBatch:
    batch = read_batch(BATCHES[name][0])
    assert isinstance(batch, RecordBatch)
    return batch


def unhex(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


@pytest.mark.parametrize("name", MAGIC_2)
def test_both_readers_agree_with_kafka(name: str) -> None:
    data, expected = BATCHES[name]
    rows = read_rows(data)
    assert (rows.end_position, rows.error) == (len(data), None)
    assert scan_rows(data) == rows
    if name.startswith("several-blocks"):
        assert len(rows.rows) == 120
        for ordinal, (offset, timestamp_ms, _, key, value, headers, _) in enumerate(rows.rows):
            assert (offset, timestamp_ms) == (ordinal, 1_700_000_000_000 + ordinal)
            assert key == b"key-%d" % ordinal
            assert (value, headers) == (b"value-%d" % (ordinal % 3) * 140, ())
        return
    assert [(*row[:2], *row[3:6]) for row in rows.rows] == [
        (
            offset,
            timestamp_ms,
            unhex(key),
            unhex(value),
            tuple((name, unhex(text)) for name, text in headers),
        )
        for offset, timestamp_ms, key, value, headers in expected
    ]


@pytest.mark.parametrize("name", MAGIC_2)
def test_parsed_batches_are_encoded_to_the_same_bytes(name: str) -> None:
    data, _ = BATCHES[name]
    batch = read(name)
    again = encode_batch(
        to_new_batch(batch), base_offset=batch.base_offset, leader_epoch=batch.leader_epoch
    )
    if batch.compression is Compression.NONE:
        assert again == data
    else:
        assert read_rows(again).rows == read_rows(data).rows


def test_log_append_time_replaces_the_times_of_records() -> None:
    batch = read("log-append-time-by-broker")
    assert batch.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert {record.timestamp_ms for record in batch.records()} == {batch.max_timestamp_ms}
    created = [record.timestamp_ms for record in to_new_batch(batch).records]
    assert created == [1_700_000_000_000, 1_700_000_000_111]


def test_a_compacted_batch_keeps_its_offsets_and_has_its_delete_horizon() -> None:
    batch = read("compacted-with-delete-horizon")
    assert (batch.base_offset, batch.last_offset, batch.record_count) == (100, 103, 2)
    assert batch.delete_horizon_ms == 1_700_000_100_000 + 86_400_000
    assert batch.is_transactional
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (4_000_000_000, 3, 17)


def test_a_batch_without_records_keeps_its_offsets() -> None:
    batch = read("emptied-by-compaction")
    assert (batch.record_count, list(batch.records()), batch.next_offset) == (0, [], 104)


def test_transaction_markers_have_their_coordinators_epoch() -> None:
    for name, control_type, epoch in (
        ("commit-marker", ControlType.COMMIT, 9),
        ("abort-marker", ControlType.ABORT, 10),
    ):
        (record,) = read(name).records()
        marker = decode_control(record.key, record.value)
        assert marker == EndTransactionMarker(control_type=control_type, coordinator_epoch=epoch)
        assert encode_control(marker) == (record.key, record.value)


def test_a_leader_change_of_version_1_has_directories() -> None:
    value, expected = BATCHES["leader-change-version-1"]
    key = bytes.fromhex("00000002")
    change = decode_control(key, value)
    assert isinstance(change, LeaderChange)
    assert control_json(change) == expected
    assert encode_control(change) == (key, value)


@pytest.mark.parametrize("magic", [0, 1])
def test_a_format_before_kafka_0_11_is_reported(magic: int) -> None:
    data, _ = BATCHES[f"magic-{magic}"]
    with pytest.raises(UnsupportedMagicError) as expected:
        read_batch(data, path="old.log")
    assert (expected.value.magic, expected.value.position, expected.value.offset) == (magic, 0, 3)
    scanned = scan(data, path="old.log")
    assert (scanned.stop, str(scanned.error)) == (Stop.DAMAGED, str(expected.value))
    end = read("transactional").byte_count
    scanned = scan(BATCHES["transactional"][0] + data)
    assert (scanned.stop, scanned.end_position) == (Stop.DAMAGED, end)
    assert isinstance(scanned.error, UnsupportedMagicError)
