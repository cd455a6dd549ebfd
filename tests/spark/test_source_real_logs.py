"""Every bundled log through the source, without Spark, compared with kafka-dump-log's output."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.batch_encoding import NewRecordBatch
from tests.support.dumps import DumpBatch, DumpRecord, dumped_logs, read_dump
from tests.support.metadata_logs import metadata_log, restored
from tests.support.small_logs import (
    ABORT_TRANSACTION,
    BEGIN_TRANSACTION,
    END_TRANSACTION,
    NO_OP,
    LogWriter,
)
from tests.support.source_rows import SCHEMA as FED_SCHEMA
from tests.support.source_rows import source_rows
from tests.support.sweep_size import is_copy, slow_except

from pyspark_raftlog.options import RaftlogOptions
from pyspark_raftlog.reader import RaftlogReader
from raftlog.errors import CorruptBatchError, DecompressionLimitError
from raftlog.records import Compression, Header, NewRecord, control
from raftlog_state.records import decode, encode, from_json, to_json
from raftlog_state.records.typed_columns import TYPED_COLUMNS
from raftlog_state.source_rows.columns import COLUMNS, arrow_schema

HOME = Path(__file__).parents[2]
DATA = HOME / "tests" / "data"
LOGS = dumped_logs(DATA / "kraft-logs")
SEGMENTS = [log for log in LOGS if log.suffix == ".log"]
CHECKPOINTS = [log for log in LOGS if log.suffix == ".checkpoint"]
OPTIONAL = ("headers", "controlType", "producerId", *TYPED_COLUMNS)
WITHOUT_HEADERS = tuple(name for name in COLUMNS if name not in OPTIONAL)
METADATA = DATA / "kraft-logs/three-nodes-4.3.1/node-100/__cluster_metadata-0"
ORDERS = DATA / "kraft-logs/three-nodes-4.3.1/node-1/orders-0-0"


def chosen(logs: list[Path]) -> list[object]:
    return slow_except([log for log in logs if not is_copy(log)], logs)


def name_of(path: Path) -> str:
    return str(path.relative_to(DATA / "kraft-logs"))


def table(path: Path, columns: tuple[str, ...] = WITHOUT_HEADERS, /, **options: str) -> pa.Table:
    """Return all rows of a batch read, in the order of the tasks."""
    reader = RaftlogReader(RaftlogOptions.parse({"path": str(path), **options}), columns)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return pa.Table.from_batches(batches, arrow_schema(columns))


def rows(
    path: Path, columns: tuple[str, ...] = WITHOUT_HEADERS, /, **options: str
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table(path, columns, **options).to_pylist()
    return found


def dumped(log: Path, *, control_too: bool = False) -> list[tuple[DumpBatch, DumpRecord]]:
    return [
        (batch, record)
        for batch in read_dump(log)
        for record in batch.records
        if control_too or not batch.is_control
    ]


@pytest.mark.parametrize("log", chosen(SEGMENTS), ids=name_of)
def test_rows_of_a_segment_equal_dump_logs_output(log: Path) -> None:
    everything = {"isolationLevel": "high_watermark", "redact": "false"}
    given_rows = rows(log, **everything)
    expected = dumped(log)
    assert len(given_rows) == len(expected)
    is_metadata = "__cluster_metadata" in str(log)
    for row, (batch, record) in zip(given_rows, expected, strict=True):
        assert row["offset"] == record.offset
        assert row["timestamp"].timestamp() == pytest.approx(record.timestamp_ms / 1000, abs=1e-4)
        assert row["timestampType"] == 0
        assert row["leaderEpoch"] == batch.leader_epoch
        assert row["snapshotPosition"] is None
        assert (-1 if row["key"] is None else len(row["key"])) == record.key_bytes
        assert (-1 if row["value"] is None else len(row["value"])) == record.value_bytes
        if is_metadata:
            assert row["recordType"] == record.json["type"]
            assert row["recordVersion"] == record.json["version"]
            assert json.loads(row["record"]) == record.json["data"]
            assert row["value"] == encode(from_json(record.json))
        elif not log.parent.name.startswith("__"):
            assert row["recordType"] is row["recordVersion"] is row["record"] is None
            assert row["recordKey"] is None
            if record.payload is not None and log.parent.name.startswith(("orders", "pay")):
                assert row["value"] == record.payload.encode()


def test_rows_of_the_table_tests_equal_those_of_the_source(tmp_path: Path) -> None:
    directory = tmp_path / "__cluster_metadata-0"
    directory.mkdir()
    log = metadata_log(restored("three-nodes-4.3.1/node-1", directory))
    given_rows = table(
        directory,
        tuple(FED_SCHEMA.names),
        startingOffsets="0",
        isolationLevel="high_watermark",
        includeControlRecords="true",
        includeAbortedRecords="true",
    )
    fed_rows = source_rows(log.records)
    assert len(given_rows) == len(fed_rows) > 2000
    for row, fed in zip(given_rows.to_pylist(), fed_rows.to_pylist(), strict=True):
        for side in (row, fed):  # numbers may have Java's or Python's format
            side["record"] = json.loads(side["record"])
        assert row == fed


@pytest.mark.parametrize("checkpoint", chosen(CHECKPOINTS), ids=name_of)
def test_rows_of_a_snapshot_equal_dump_logs_output(checkpoint: Path) -> None:
    end_offset, epoch = (int(part) for part in checkpoint.stem.split("-"))
    given_rows = rows(checkpoint, redact="false")
    expected = dumped(checkpoint)
    assert [row["snapshotPosition"] for row in given_rows] == [r.offset for _, r in expected]
    assert [json.loads(row["record"]) for row in given_rows] == [
        record.json["data"] for _, record in expected
    ]
    assert {row["offset"] for row in given_rows} <= {end_offset - 1}
    assert {row["visibleOffset"] for row in given_rows} <= {end_offset - 1}
    assert {row["leaderEpoch"] for row in given_rows} <= {epoch}
    header = dumped(checkpoint, control_too=True)[0][1]
    log_time_ms = json.loads(header.text.removeprefix("SnapshotHeader "))[
        "lastContainedLogTimestamp"
    ]
    assert {round(row["timestamp"].timestamp() * 1000) for row in given_rows} <= {log_time_ms}


@pytest.mark.parametrize("log", chosen(LOGS), ids=name_of)
def test_control_records_are_rows_only_on_request(log: Path) -> None:
    columns = ("offset", "snapshotPosition", "key", "value", "recordType", "record", "controlType")
    everything = {"isolationLevel": "high_watermark", "redact": "false"}
    given_rows = rows(log, columns, includeControlRecords="true", **everything)
    expected = dumped(log, control_too=True)
    assert len(given_rows) == len(expected)
    for row, (batch, _) in zip(given_rows, expected, strict=True):
        if not batch.is_control:
            assert row["controlType"] is None
            continue
        decoded = control.decode_control(row["key"], row["value"])
        assert row["controlType"] == control.control_name(row["key"])
        assert json.loads(row["record"]) == control.control_json(decoded)
        assert row["recordType"] is None


def test_committed_reads_have_no_aborted_transaction() -> None:
    batches = read_dump(ORDERS / "00000000000000000000.log")
    committed: list[int] = []
    pending: list[int] = []
    for batch in batches:
        offsets = [record.offset for record in batch.records]
        if batch.is_control:
            committed += pending if "COMMIT" in batch.records[0].text else []
            pending = []
        else:
            pending += offsets
    given_rows = rows(ORDERS, ("offset", "visibleOffset"))
    assert [row["offset"] for row in given_rows] == committed
    assert all(row["visibleOffset"] == row["offset"] for row in given_rows)
    with_aborted = rows(ORDERS, ("offset", "visibleOffset"), includeAbortedRecords="true")
    assert len(with_aborted) > len(given_rows)
    hidden = {row["offset"] for row in with_aborted if row["visibleOffset"] is None}
    assert hidden == {row["offset"] for row in with_aborted} - set(committed)


def test_every_offset_of_a_metadata_log_is_returned_on_request() -> None:
    everything = {"includeControlRecords": "true", "includeAbortedRecords": "true"}
    offsets = table(METADATA, ("offset",), **everything).column("offset").to_pylist()
    assert offsets == list(range(3131))


def test_records_of_the_first_transaction_are_visible_from_its_end() -> None:
    visible = {row["offset"]: row["visibleOffset"] for row in rows(METADATA, endingOffset="20")}
    assert visible == dict.fromkeys(range(3, 12), 11) | {o: o for o in range(12, 20)}


def test_a_range_is_given_by_offset_and_by_timestamp() -> None:
    part = rows(METADATA, ("offset", "timestamp"), startingOffset="100", endingOffset="200")
    assert [row["offset"] for row in part] == list(range(100, 200))
    first, last = (str(round(row["timestamp"].timestamp() * 1000)) for row in (part[0], part[-1]))
    by_time = rows(METADATA, ("offset", "timestamp"), startingTimestamp=first, endingTimestamp=last)
    assert all(part[0]["timestamp"] <= row["timestamp"] for row in by_time)
    assert by_time[-1]["timestamp"] < part[-1]["timestamp"]


def test_headers_are_returned_on_request(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "orders-0")
    headers = (Header("trace", b"\x01"), Header("empty", None))
    records = (NewRecord(key=b"k", value=b"v", headers=headers), NewRecord(key=None, value=None))
    log.append(batch=NewRecordBatch(records=records, base_timestamp_ms=5))
    given_rows = rows(log.directory, ("headers", "value"), includeHeaders="true")
    assert given_rows == [
        {
            "headers": [{"key": "trace", "value": b"\x01"}, {"key": "empty", "value": None}],
            "value": b"v",
        },
        {"headers": [], "value": None},
    ]


@pytest.mark.parametrize("is_ours", [True, False])
@pytest.mark.parametrize("as_segment", [True, False])
def test_raftlogs_headers_are_hidden_in_embedded_logs(
    tmp_path: Path, is_ours: bool, as_segment: bool
) -> None:
    log = LogWriter(tmp_path / "decisions-0")
    ours, theirs = Header("raftlog.commit", b"\x93"), Header("trace", b"\x01")
    near = Header("raftlog", b"\x02")
    headers = [(ours,), (theirs, ours, near), (), (near,), (ours, ours)]
    records = tuple(NewRecord(None, b"v", headers=of_one) for of_one in headers)
    log.append(batch=NewRecordBatch(records=records, base_timestamp_ms=5))
    if is_ours:
        (log.directory / "raftlog.properties").write_text("version=1\nvalues=bytes\n")
    path = log.directory / "00000000000000000000.log" if as_segment else log.directory
    found = table(path, ("headers",), includeHeaders="true", recordBatchRows="2").column("headers")
    assert [[one["key"] for one in row] for row in found.to_pylist()] == [
        [one.key for one in of_one if not is_ours or one != ours] for of_one in headers
    ]


# --- projection -----------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=25)
@given(st.permutations(list(COLUMNS)), st.integers(1, len(COLUMNS)), st.booleans())
def test_columns_are_independent_of_their_selection_and_order(
    names: list[str], count: int, with_control: bool
) -> None:
    options = {
        "includeHeaders": "true",
        "includeControlRecords": str(with_control).lower(),
        "endingOffset": "60",
    }
    chosen = tuple(names[:count])
    everything = table(METADATA, tuple(COLUMNS), **options)
    part = table(METADATA, chosen, **options)
    assert part.schema.equals(arrow_schema(chosen))
    assert part.equals(everything.select(list(chosen)))


@pytest.mark.slow
@settings(max_examples=12)
@given(
    st.integers(0, 3131), st.integers(0, 3131), st.integers(1, 8), st.integers(1, 2000),
    st.integers(1, 500),
)  # fmt: skip
def test_any_range_in_any_split_has_the_same_rows(
    one: int, other: int, tasks: int, per_task: int, batch_rows: int
) -> None:
    start, end = sorted((one, other))
    columns = ("offset", "visibleOffset", "recordType")
    whole = table(METADATA, columns).to_pylist()
    split = {
        "startingOffset": str(start),
        "endingOffset": str(end),
        "minPartitions": str(tasks),
        "maxRecordsPerPartition": str(per_task),
        "recordBatchRows": str(batch_rows),
    }
    expected = [row for row in whole if start <= row["offset"] < end]
    assert rows(METADATA, columns, **split) == expected


# --- secrets --------------------------------------------------------------------------------------


def secrets_of(log: Path) -> set[str]:
    """Return the SCRAM material of a log, which no output may show."""
    found = set()
    for _, record in dumped(log):
        data = record.json["data"]
        if record.json["type"] == "USER_SCRAM_CREDENTIAL_RECORD":
            found |= {data["salt"], data["storedKey"], data["serverKey"]}
    return found


@pytest.mark.parametrize("options", [{}, {"redactKey": "0123456789abcdef"}], ids=["mask", "hash"])
def test_no_column_shows_a_secret(options: dict[str, str]) -> None:
    log = METADATA / "00000000000000000436.log"
    checkpoint = METADATA / "00000000000000003128-0000000002.checkpoint"
    for path in (log, checkpoint):
        secrets = secrets_of(path)
        if path is checkpoint:
            assert secrets
        given_rows = rows(path, **options)
        texts = "\n".join(row["record"] for row in given_rows)
        values = b"\n".join(row["value"] for row in given_rows)
        for secret in secrets:
            assert secret not in texts
            assert base64.b64decode(secret) not in values
        assert "0123456789abcdef" not in texts
        for row in given_rows:
            redacted = decode(row["value"])
            assert row["recordVersion"] == redacted.version


def test_values_and_json_are_redacted_alike() -> None:
    checkpoint = METADATA / "00000000000000003128-0000000002.checkpoint"
    for row in rows(checkpoint, redactKey="0123456789abcdef"):
        assert json.loads(row["record"]) == to_json(decode(row["value"]))["data"]


def test_redaction_can_be_turned_off() -> None:
    checkpoint = METADATA / "00000000000000003128-0000000002.checkpoint"
    texts = "\n".join(row["record"] for row in rows(checkpoint, redact="false"))
    assert all(secret in texts for secret in secrets_of(checkpoint))


# --- invalid input, and work that is avoided ------------------------------------------------------


def test_a_malformed_metadata_record_is_reported_with_its_offset(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "__cluster_metadata-0")
    log.append(NO_OP, NO_OP)
    log.append(NO_OP, b"\x01\x02\x00\xff\xff")
    with pytest.raises(CorruptBatchError) as caught:
        rows(log.directory, ("offset", "record"))
    assert caught.value.offset == 3
    assert "TopicRecord version 0" in str(caught.value)
    raw = rows(log.directory, ("value", "recordType"), redact="false")
    assert raw[-1] == {"value": b"\x01\x02\x00\xff\xff", "recordType": "TOPIC_RECORD"}


def test_an_unknown_record_type_is_a_row_without_its_content(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "__cluster_metadata-0")
    log.append(b"\x01\x63\x07secret")
    (row,) = rows(log.directory)
    assert (row["recordType"], row["recordVersion"]) == ("UNKNOWN", 7)
    assert json.loads(row["record"])["apiKey"] == 99
    assert b"secret" not in row["value"]
    assert rows(log.directory, redact="false")[0]["value"] == b"\x01\x63\x07secret"


def test_the_markers_of_metadata_transactions_are_rows_with_their_names(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "__cluster_metadata-0")
    log.append(BEGIN_TRANSACTION, NO_OP, END_TRANSACTION)
    log.append(BEGIN_TRANSACTION, ABORT_TRANSACTION)
    found = table(log.directory, ("record", "visibleOffset"), includeAbortedRecords="true")
    assert found.column("record").to_pylist() == [
        *('{"name":"t"}', "{}", "{}"),
        *('{"name":"t"}', '{"reason":"r"}'),
    ]
    assert found.column("visibleOffset").to_pylist() == [2, 2, 2, None, None]


@pytest.mark.parametrize("timestamp_ms", [-1, 2**63 - 1, -(2**63), 2**62, 0])
def test_a_timestamp_outside_sparks_range_is_null(tmp_path: Path, timestamp_ms: int) -> None:
    log = LogWriter(tmp_path / "orders-0")
    log.append(b"v", timestamp_ms=timestamp_ms)
    (time,) = table(log.directory, ("timestamp",)).column("timestamp").cast(pa.int64())
    fits = abs(timestamp_ms) <= (2**63 - 1) // 1000
    assert time.as_py() == (timestamp_ms * 1000 if fits else None)


def test_damage_in_the_middle_loses_no_record_before_it(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "orders-0")
    for number in range(3):
        log.append(b"%d" % number)
    segment = log.directory / "00000000000000000000.log"
    reader = RaftlogReader(RaftlogOptions.parse({"path": str(log.directory)}), ("value",))
    (partition,) = reader.partitions()
    damaged = bytearray(segment.read_bytes())
    damaged[2 * len(damaged) // 3 - 1] ^= 1
    segment.write_bytes(damaged)
    batches = reader.read(partition)
    assert next(batches).column(0).to_pylist() == [b"0"]
    with pytest.raises(CorruptBatchError):
        next(batches)


def test_a_task_reads_only_its_own_range(monkeypatch: pytest.MonkeyPatch) -> None:
    options = RaftlogOptions.parse({"path": str(METADATA), "minPartitions": "8"})
    reader = RaftlogReader(options, ("offset", "value"))
    partitions = reader.partitions()
    assert len(partitions) >= 8
    read_bytes: list[int] = []
    pread = os.pread

    def counted(descriptor: int, byte_count: int, position: int) -> bytes:
        data = pread(descriptor, byte_count, position)
        read_bytes.append(len(data))
        return data

    monkeypatch.setattr(os, "pread", counted)
    list(reader.read(partitions[-1]))
    log_bytes = sum(segment.stat().st_size for segment in METADATA.glob("*.log"))
    assert 0 < sum(read_bytes) < log_bytes / 2


def test_finding_the_source_imports_no_large_module() -> None:
    code = (
        "import sys; import pyspark_raftlog; "
        "print([name for name in ('pyarrow', 'numpy', 'raftlog', 'raftlog_state')"
        " if name in sys.modules and name not in before])"
    )
    before = "import sys, pyspark.sql.datasource; before = set(sys.modules); "
    roots = [str(HOME / root) for root in ("connector", "state", "python_datasource")]
    done = subprocess.run(
        [sys.executable, "-c", before + code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(roots)},
    )
    assert done.stdout.strip() == "[]"


def test_a_read_of_another_log_imports_no_format_of_an_internal_one() -> None:
    code = (
        "import sys; from pyspark_raftlog import RaftlogDataSource; "
        "source = RaftlogDataSource({'path': sys.argv[1]}); "
        "reader = source.reader(source.schema()); "
        "print([sum(batch.num_rows for batch in reader.read(one)) > 0"
        " for one in reader.partitions()]); "
        "ends = ('.internal_logs', '.schema_groups'); "
        "print([name for name in sys.modules if name.endswith(ends)])"
    )
    roots = [str(HOME / root) for root in ("connector", "state", "python_datasource")]
    done = subprocess.run(
        [sys.executable, "-c", code, str(METADATA)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(roots)},
    )
    read, imported = done.stdout.splitlines()
    assert set(json.loads(read.lower())) == {True}
    assert imported == "[]"


def test_a_batch_that_expands_above_the_limit_is_not_read(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "orders-0")
    log.append(b"a")
    records = (NewRecord(None, bytes(3 * 1024 * 1024)),)
    log.append(
        batch=NewRecordBatch(records=records, base_timestamp_ms=1, compression=Compression.ZSTD)
    )
    offsets = ("offset",)
    values = ("offset", "value")
    assert len(table(log.directory, values, maxDecompressedBytes="4m")) == 2
    for columns in (offsets, values):
        with pytest.raises(DecompressionLimitError, match="maxDecompressedBytes"):
            table(log.directory, columns, maxDecompressedBytes="1m")
