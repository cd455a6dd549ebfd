"""Arguments, columns and rows of the table functions, as Spark's workers call them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import TimestampNTZType
from tests.support.dumps import read_dump
from tests.support.table_functions import argument, called

import pyspark_raftlog.table_functions as functions
from pyspark_raftlog import reader
from pyspark_raftlog.errors import ResultTooLargeError
from pyspark_raftlog.options import RaftlogOptions
from pyspark_raftlog.table_functions import RaftlogChanges, RaftlogState
from raftlog.client import LogReader
from raftlog.errors import LogNotFoundError, OffsetOutOfRangeError, OptionError
from raftlog.log.reading.directory_log import DirectoryLog
from raftlog_state import read_state
from raftlog_state.image.rows import Entity
from raftlog_state.log_changes import read_changes
from raftlog_state.records.redaction import MASK
from raftlog_state.tables.schema import METADATA_TABLES

NODE = "kraft-logs/three-nodes-4.3.1/node-100"
TRIMMED = "kraft-logs/trimmed-3.9.2/node-1"


def dictionaries(call: tuple[list[str], list[Any]]) -> list[dict[str, Any]]:
    names, rows = call
    return [dict(zip(names, row, strict=True)) for row in rows]


@pytest.mark.parametrize("table", [one.name for one in METADATA_TABLES])
def test_a_table_of_a_state_is_that_of_read_state(data: Path, table: str) -> None:
    path = str(data / NODE)
    names, rows = called(RaftlogState, path, table, at=2_700)
    is_history = table in ("epochs", "transactions")
    expected = read_state(path, at=2_700, from_oldest=is_history).table(table)
    assert names == expected.schema.names
    maps = {name for name in names if pa.types.is_map(expected.schema.field(name).type)}
    assert dictionaries((names, rows)) == [
        {name: dict(value) if name in maps else value for name, value in row.items()}
        for row in expected.to_pylist()
    ]


@pytest.mark.parametrize("function", [RaftlogState, RaftlogChanges])
@pytest.mark.parametrize("table", METADATA_TABLES, ids=lambda table: table.name)
def test_columns_have_the_types_of_the_tables_and_a_comment(function: Any, table: Any) -> None:
    schema = function.analyze(argument("/logs"), argument(table.name)).schema
    assert all(field.metadata["comment"] and field.nullable for field in schema)
    types = {field.name: field.dataType for field in schema}
    assert types.items() >= {n: from_arrow_type(kind) for n, kind in table.columns.items()}.items()


def test_changes_of_topics_are_those_of_the_records_that_kafka_dumped(data: Path) -> None:
    segments = sorted((data / NODE / "__cluster_metadata-0").glob("*.log"))
    written = [
        (record.offset, record.json["data"])
        for segment in segments
        for batch in read_dump(segment)
        if not batch.is_control
        for record in batch.records
        if record.json["type"] in ("TOPIC_RECORD", "REMOVE_TOPIC_RECORD")
    ]
    rows = dictionaries(called(RaftlogChanges, str(data / NODE), "topics"))
    assert [(row["_offset"], row["topic_id"]) for row in rows] == [
        (offset, record["topicId"]) for offset, record in written
    ]
    assert [row["_change_type"] for row in rows] == [
        "insert" if "name" in record else "delete" for _, record in written
    ]


def test_an_update_is_the_row_before_and_the_row_after(data: Path) -> None:
    rows = dictionaries(
        called(RaftlogChanges, str(data / NODE), "brokers", name="broker/3", **{"from": 1_000})
    )
    assert [(row["_change_type"], row["_commit_version"], row["fenced"]) for row in rows] == [
        ("update_preimage", 1_231, False),
        ("update_postimage", 1_231, True),
        ("delete", 1_270, True),
    ]
    assert rows[0]["_record_type"] == "BROKER_REGISTRATION_CHANGE_RECORD"
    assert rows[0]["_leader_epoch"] == 2
    assert rows[0]["_commit_timestamp"].isoformat() == "2026-11-21T08:04:18.007000+00:00"


def test_changes_without_a_table_are_those_of_all_entities(data: Path) -> None:
    rows = dictionaries(called(RaftlogChanges, str(data / NODE), to="2026-11-21 08:04"))
    expected = list(read_changes(str(data / NODE), until="2026-11-21 08:04", partitions=True))
    kept = [row for row in rows if row["_change_type"] != "update_preimage"]
    assert [(row["name"], row["_commit_version"]) for row in kept] == [
        (one.name, one.visible_offset) for one in expected
    ]
    assert {row["entity"] for row in rows} >= {Entity.TOPIC, Entity.PARTITION, Entity.BROKER}
    assert '"fenced":true' in next(row["row"] for row in rows if row["name"] == "broker/1")


def test_the_rows_of_a_snapshot_are_inserts(data: Path) -> None:
    rows = dictionaries(called(RaftlogChanges, str(data / TRIMMED), "topics"))
    first = read_state(str(data / TRIMMED), at="snapshot").topics()
    inserted = [row["name"] for row in rows[: first.num_rows]]
    assert sorted(inserted) == sorted(first["name"].to_pylist())
    assert rows[0]["_change_type"] == "insert"


@pytest.mark.parametrize("function", [RaftlogState, RaftlogChanges])
def test_secrets_are_redacted_unless_that_is_disabled(function: Any, data: Path) -> None:
    path = str(data / NODE)
    masked = dictionaries(called(function, path, "scram"))
    assert {row["stored_key"] for row in masked} == {MASK.encode()}
    shown = dictionaries(called(function, path, "scram", options={"redact": "false"}))
    assert MASK.encode() not in {row["stored_key"] for row in shown}
    assert len(shown) == len(masked) > 0


def test_rows_beyond_the_limit_are_refused(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = len(called(RaftlogChanges, str(data / NODE), "topics")[1])
    monkeypatch.setattr(functions, "TABLE_FUNCTION_ROWS_MAX", count)
    assert len(called(RaftlogChanges, str(data / NODE), "topics")[1]) == count
    monkeypatch.setattr(functions, "TABLE_FUNCTION_ROWS_MAX", count - 1)
    with pytest.raises(ResultTooLargeError, match=rf"more than {count - 1} rows of .*node-100"):
        called(RaftlogChanges, str(data / NODE), "topics")


@pytest.mark.parametrize("function", [RaftlogState, RaftlogChanges])
@pytest.mark.parametrize("row_count", [None, 1, 0])
def test_the_log_is_closed_after_a_call_also_if_it_fails_or_is_abandoned(
    function: Any, row_count: int | None, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections to nodes would stay open; ``opened`` keeps the logs from garbage collection."""
    opened: list[LogReader] = []
    closed: list[LogReader] = []

    def open_source(options: RaftlogOptions) -> LogReader:
        opened.append(reader.open_source(options))
        return opened[-1]

    monkeypatch.setattr(functions, "open_source", open_source)
    monkeypatch.setattr(DirectoryLog, "close", lambda log: closed.append(log))
    if row_count == 0:
        monkeypatch.setattr(functions, "TABLE_FUNCTION_ROWS_MAX", 0)
        with pytest.raises(ResultTooLargeError):
            called(function, str(data / NODE), "topics")
    else:
        call = function.analyze(argument(str(data / NODE)), argument("topics"))
        rows = function(call).eval()
        assert len([*islice(rows, row_count)]) >= 1
        rows.close()
    assert len(opened) == 1
    assert closed == opened


def refusal(function: type[Any], *values: object, **named: Any) -> str:
    with pytest.raises(OptionError) as caught:
        called(function, *values, **named)
    return str(caught.value)


def test_invalid_arguments_are_refused_with_what_is_valid() -> None:
    assert "option table: is missing; tables are features," in refusal(RaftlogState, "/logs")
    assert "option path: must be a text" in refusal(RaftlogState, 5, "topics")
    assert "options => map('bootstrap.servers'" in refusal(RaftlogState, table="topics")
    assert "option at:" in refusal(RaftlogState, "/logs", "topics", at="yesterday")
    assert "arguments are path, table" in refusal(RaftlogChanges, "/logs", since=5)
    assert "option from:" in refusal(RaftlogChanges, "/logs", **{"from": "yesterday"})
    assert "option name:" in refusal(RaftlogChanges, "/logs", name="tpic/orders")
    assert "did you mean redact?" in refusal(
        RaftlogState, "/logs", "topics", options={"redakt": "false"}
    )
    for options in ("redact", {"redact": None}, {1: "2"}):
        assert "option options: must be a map" in refusal(
            RaftlogState, "/logs", "topics", options=options
        )
    assert "startingOffset: is for load()" in refusal(
        RaftlogState, "/logs", "topics", options={"startingOffset": "5"}
    )
    with pytest.raises(OptionError, match="unknown table 'topic'; did you mean topics"):
        called(RaftlogState, "/logs", "topic")
    with pytest.raises(LogNotFoundError):
        called(RaftlogState, "/logs/nowhere", "topics")


@pytest.mark.parametrize("function", [RaftlogState, RaftlogChanges])
def test_an_argument_that_is_null_is_refused(function: Any) -> None:
    """It may be a computed one, such as try_to_timestamp('x'), whose default is not meant."""
    names = {RaftlogState: ("at",), RaftlogChanges: ("from", "to", "name")}[function]
    for name in (*names, "table", "options"):
        given = {"path": "/logs", "table": "topics", name: None}
        assert f"option {name}: is NULL" in refusal(function, **given)


def test_errors_of_a_range_name_the_arguments_of_sql(data: Path) -> None:
    text = refusal(RaftlogChanges, str(data / NODE), "topics", **{"from": 900, "to": 5})
    assert "option from: offset 900 is after that of to, 5" in text
    with pytest.raises(OffsetOutOfRangeError, match="offset 99999 is out of range"):
        called(RaftlogChanges, str(data / NODE), "topics", **{"from": 99_999})


def test_a_name_selects_rows_of_the_table(data: Path) -> None:
    path = str(data / NODE)
    (name, *_) = {row["name"] for row in dictionaries(called(RaftlogChanges, path, "topics"))}
    for table in ("topics", "partitions"):
        found = dictionaries(called(RaftlogChanges, path, table, name=f"topic/{name}"))
        column = "name" if table == "topics" else "topic_name"
        assert {row[column] for row in found} == {name}
    text = refusal(RaftlogChanges, path, "topics", name="broker/3")
    assert "option name: broker/3 is in table brokers or configs, not in topics" in text


def test_an_argument_that_is_no_constant_is_refused() -> None:
    column = argument(None, is_constant=False)
    with pytest.raises(OptionError, match="option at: must be a constant; an age such as '-15m'"):
        RaftlogState.analyze(argument("/logs"), argument("topics"), at=column)


def test_a_secret_in_the_text_of_a_statement_is_refused() -> None:
    options = {"bootstrap.servers": "a:1", "kafka.sasl.password": "5ecret"}
    text = refusal(RaftlogState, table="topics", options=options)
    assert "kafka.sasl.password: is not allowed in a statement" in text
    assert "5ecret" not in text


def test_a_timestamp_without_a_time_zone_is_refused() -> None:
    """Spark passes it as a TIMESTAMP, but it is not in the zone of its workers."""
    value = datetime(2026, 11, 21, 8, 4, 18, tzinfo=UTC).replace(tzinfo=None)
    time = replace(argument(value), dataType=TimestampNTZType())
    path = argument("/logs")
    for call in (
        partial(RaftlogState.analyze, path, argument("topics"), at=time),
        partial(RaftlogChanges.analyze, path, to=time),
        partial(RaftlogChanges.analyze, path, **{"from": time}),
    ):
        with pytest.raises(OptionError, match=r"is a TIMESTAMP_NTZ, .*; use TIMESTAMP_LTZ"):
            call()


def test_a_timestamp_is_that_of_the_session(data: Path) -> None:
    """Spark passes a timestamp as a time without a zone, in the zone of its Python workers."""
    time = datetime(2026, 11, 21, 8, 4, 18, tzinfo=UTC)
    local = time.astimezone().replace(tzinfo=None)
    by_time = called(RaftlogState, str(data / NODE), "brokers", at=local)
    assert by_time == called(RaftlogState, str(data / NODE), "brokers", at=time.isoformat())
