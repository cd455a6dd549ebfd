"""Rows of Kafka's internal logs with keys: their records as JSON, as dump-log prints them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.internal_records import (
    DATA,
    InternalLogFile,
    dump_of,
    golden_records,
    internal_segments,
    records_in,
    segment_name,
    topic_of,
)

from pyspark_raftlog.options import RaftlogOptions
from pyspark_raftlog.reader import RaftlogReader
from raftlog.errors import CorruptBatchError
from raftlog_state.records.internal_logs import INTERNAL_LOGS
from raftlog_state.source_rows.columns import arrow_schema

SEGMENTS = internal_segments("4.3.1")
COMMITS = DATA / "kraft-logs/three-nodes-4.3.1/node-1/__consumer_offsets-3/00000000000000000000.log"
COLUMNS = ("offset", "key", "value", "recordType", "recordVersion", "recordKey", "record")


def rows(path: Path, columns: tuple[str, ...] = COLUMNS, /, **options: str) -> list[dict[str, Any]]:
    reader = RaftlogReader(RaftlogOptions.parse({"path": str(path), **options}), columns)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    found: list[dict[str, Any]] = pa.Table.from_batches(batches, arrow_schema(columns)).to_pylist()
    return found


def as_dumped(row: dict[str, Any], numbers: dict[str, int]) -> tuple[int, str]:
    key = f'{{"type":"{numbers[row["recordType"]]}","data":{row["recordKey"]}}}'
    value = "<DELETE>"
    if row["record"] is not None:
        value = f'{{"version":"{row["recordVersion"]}","data":{row["record"]}}}'
    return row["offset"], f"key: {key} payload: {value}"


@pytest.mark.parametrize("segment", SEGMENTS, ids=segment_name)
def test_rows_have_the_json_that_dump_log_prints(segment: Path) -> None:
    names = INTERNAL_LOGS[topic_of(segment)].type_names()
    numbers = {name: api_key for api_key, name in names.items()}
    given = rows(segment.parent, isolationLevel="read_uncommitted")
    assert [as_dumped(row, numbers) for row in given] == dump_of(segment)
    assert [(row["offset"], row["key"], row["value"]) for row in given] == records_in(segment)


def test_commits_of_aborted_transactions_are_no_rows() -> None:
    given = rows(COMMITS.parent)
    assert [row["offset"] for row in given] == [0, 4]
    assert '"metadata":"m0"' in given[0]["record"]
    everything = rows(COMMITS.parent, includeControlRecords="true", includeAbortedRecords="true")
    controls = [row for row in everything if row["recordType"] is None]
    assert [row["offset"] for row in controls] == [1, 3, 5, 7]
    assert "endTxnMarker" in controls[0]["record"]
    assert controls[0]["recordKey"] is None


@pytest.mark.parametrize("topic", sorted(INTERNAL_LOGS))
def test_columns_can_be_read_alone_and_in_any_order(topic: str, tmp_path: Path) -> None:
    golden = [one for one in golden_records() if one.topic == topic]
    log = InternalLogFile(tmp_path / f"{topic}-0")
    for at in range(0, len(golden), 7):
        log.append(*[(one.key, one.value) for one in golden[at : at + 7]])
    whole = rows(log.path)
    assert len(whole) == len(golden)
    for columns in [(name,) for name in COLUMNS] + [("record", "recordKey", "key")]:
        assert rows(log.path, columns) == [{name: row[name] for name in columns} for row in whole]


def test_full_redaction_hides_clients_in_all_columns() -> None:
    shown = str(rows(COMMITS.parent, redact="false"))
    assert shown == str(rows(COMMITS.parent))
    hidden = rows(COMMITS.parent, redact="full")
    assert "m0" in shown
    assert "m0" not in str(hidden)
    assert '"metadata":"[redacted]"' in hidden[0]["record"]
    keyed = rows(COMMITS.parent, redact="full", redactKey="0123456789abcdef")
    assert '"metadata":"hmac:' in keyed[0]["record"]
    assert b"hmac:" in keyed[0]["value"]


def test_values_declared_as_bytes_are_not_decoded() -> None:
    given = rows(COMMITS.parent, values="bytes", redact="full")
    assert {row["recordType"] for row in given} == {None}
    assert b"m0" in given[0]["value"]


def test_unknown_records_and_tombstones_are_rows(tmp_path: Path) -> None:
    log = InternalLogFile(tmp_path / "__consumer_offsets-0")
    log.append((b"\x00\x63x", b"\x00\x07y"), (b"\x00\x02\x00\x01g", None))
    unknown, tombstone = rows(log.path)
    assert (unknown["recordType"], unknown["recordVersion"]) == ("UNKNOWN", 7)
    assert unknown["recordKey"] == '{"reason":"this api key is not known","payload":"eA=="}'
    assert unknown["value"] == b"\x00\x07y"
    assert tombstone["recordType"] == "GROUP_METADATA"
    assert tombstone["recordKey"] == '{"group":"g"}'
    assert tombstone["record"] is tombstone["recordVersion"] is None


def test_a_damaged_record_is_reported_with_its_offset(tmp_path: Path) -> None:
    log = InternalLogFile(tmp_path / "__consumer_offsets-0")
    log.append((b"\x00\x02\x00\x01g", None), (b"\x00\x02\x00\x09g", None))
    with pytest.raises(CorruptBatchError, match="GroupMetadataKey") as caught:
        rows(log.path)
    assert caught.value.offset == 1
    assert len(rows(log.path, ("offset", "value"))) == 2
