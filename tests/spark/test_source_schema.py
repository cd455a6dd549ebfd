"""Columns: Arrow agrees with Spark, and a schema is a projection or is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

import raftlog
from pyspark_raftlog import RaftlogDataSource
from pyspark_raftlog.errors import RaftlogWriteError
from pyspark_raftlog.options import RaftlogOptions
from pyspark_raftlog.schema import COLUMNS, available_columns, project, source_schema
from raftlog.errors import OptionError
from raftlog_state.records.typed_columns import TYPED_COLUMNS
from raftlog_state.source_rows.columns import arrow_schema

ALL = RaftlogOptions(
    path="2 sources",
    sources=(RaftlogOptions(path="/x"), RaftlogOptions(path="/y")),
    include_headers=True,
    include_control_records=True,
)
PLAIN = RaftlogOptions(path="/x")
TYPED = dataclasses.replace(ALL, has_typed_columns=True)
KAFKA_SOURCE = [
    ("key", "binary"),
    ("value", "binary"),
    ("topic", "string"),
    ("partition", "int"),
    ("offset", "bigint"),
    ("timestamp", "timestamp"),
    ("timestampType", "int"),
]


def schema_of(names: list[str]) -> StructType:
    return StructType([StructField(name, COLUMNS[name]) for name in names])


def test_the_first_columns_equal_those_of_sparks_kafka_source() -> None:
    fields = source_schema(PLAIN).fields[: len(KAFKA_SOURCE)]
    assert [(field.name, field.dataType.simpleString()) for field in fields] == KAFKA_SOURCE


def test_the_first_column_of_several_logs_is_the_cluster_id() -> None:
    names = [field.name for field in source_schema(ALL).fields]
    assert names == [name for name in COLUMNS if name not in TYPED_COLUMNS]
    assert names[0] == "clusterId"


def test_typed_columns_are_in_the_place_of_the_json() -> None:
    names = [field.name for field in source_schema(TYPED).fields]
    assert names == [name for name in COLUMNS if name != "record"]
    assert set(TYPED_COLUMNS) < set(names)
    assert source_schema(TYPED)["topic_record"].dataType.simpleString() == (
        "struct<name:string,topic_id:string>"
    )


def test_headers_have_the_type_of_sparks_kafka_source() -> None:
    assert source_schema(ALL)["headers"].dataType.simpleString() == (
        "array<struct<key:string,value:binary>>"
    )


@given(st.permutations(list(COLUMNS)), st.integers(1, len(COLUMNS)))
def test_the_arrow_schema_equals_sparks_conversion(names: list[str], count: int) -> None:
    chosen = names[:count]
    wanted = to_arrow_schema(schema_of(chosen), timezone="UTC")
    assert arrow_schema(tuple(chosen)).equals(wanted)
    for options in (ALL, TYPED):
        offered = [name for name in chosen if name in available_columns(options)]
        if offered:
            assert project(schema_of(offered), options) == tuple(offered)


def test_every_column_is_nullable() -> None:
    assert all(field.nullable for field in source_schema(ALL).fields)


def refusal(*fields: StructField, options: RaftlogOptions = ALL) -> str:
    with pytest.raises(OptionError) as caught:
        project(StructType(list(fields)), options)
    return str(caught.value)


def test_an_unknown_column_is_reported_with_the_nearest_one() -> None:
    assert "did you mean offset?" in refusal(StructField("ofset", LongType()))


def test_another_type_is_refused() -> None:
    assert "offset must be bigint, but is int; cast it in the query" in refusal(
        StructField("offset", IntegerType())
    )


def test_not_null_is_refused() -> None:
    assert "must be nullable" in refusal(StructField("offset", LongType(), nullable=False))


def test_a_duplicate_column_is_refused() -> None:
    twice = StructField("offset", LongType())
    assert "offset twice" in refusal(twice, twice)


def test_an_empty_schema_is_refused() -> None:
    assert "has no columns" in refusal()


def test_a_column_that_needs_an_option_reports_it() -> None:
    assert "includeHeaders=true" in refusal(
        StructField("headers", COLUMNS["headers"]), options=PLAIN
    )
    assert "requires option sources" in refusal(
        StructField("clusterId", StringType()), options=PLAIN
    )
    assert "columns=typed" in refusal(StructField("topic_record", COLUMNS["topic_record"]))
    assert "columns=json" in refusal(StructField("record", StringType()), options=TYPED)
    for name in ("controlType", "producerId"):
        assert "includeControlRecords=true" in refusal(
            StructField(name, COLUMNS[name]), options=PLAIN
        )


CREATED = {
    "provider": "raftlog",
    "owner": "me",
    "path": "file:/logs/ids-0",
    "location": "file:/logs/ids-0",
    "option.startingOffset": "5",
    "startingOffset": "5",
}
"""Options of ``CREATE TABLE ... USING raftlog OPTIONS (path ..., startingOffset 5)``."""


def test_a_table_of_a_catalog_is_read_by_the_options_in_its_columns() -> None:
    schema = RaftlogDataSource(dict(CREATED)).schema()
    assert schema.fieldNames() == source_schema(PLAIN).fieldNames()
    source = RaftlogDataSource({})
    source.reader(StructType.fromJson(schema.jsonValue()))
    assert "path='/logs/ids-0'" in repr(source)
    assert "starting_offset=" in repr(source)
    assert "number=5" in repr(source)
    assert RaftlogDataSource({"path": "/logs/ids-0"}).schema() == source_schema(PLAIN)


def test_the_comment_and_properties_of_a_table_are_not_options() -> None:
    added = {"comment": "ids", "collation": "UNICODE", "is_managed_location": "true", "team": "a"}
    schema = RaftlogDataSource(CREATED | added).schema()
    assert schema == RaftlogDataSource(dict(CREATED)).schema()
    for mistake in ({"startingOfset": "5"}, {"comment": "5"}):
        (name,) = mistake
        with pytest.raises(OptionError, match=f"option {name}: is unknown"):
            RaftlogDataSource(CREATED | mistake | {f"option.{name}": "5"})
        with pytest.raises(OptionError, match=f"option {name}: is unknown"):
            RaftlogDataSource({"path": "/logs/ids-0"} | mistake)


def test_rows_of_a_table_are_not_written_to_its_log_without_a_path(tmp_path: Path) -> None:
    """Their columns have the options of the table, as ``spark.table(t).select(...)``."""
    path = str(tmp_path / "ids-0")
    raftlog.open(path).close()
    read = RaftlogDataSource({"provider": "raftlog", "path": path}).schema()
    rows = StructType([read["key"], read["value"]])
    assert rows.fields[0].metadata
    RaftlogDataSource({"path": path}).writer(rows, overwrite=False)
    with pytest.raises(RaftlogWriteError, match=r"option path: is missing: call save\(path\)"):
        RaftlogDataSource({}).writer(rows, overwrite=False)


def test_options_that_a_table_lost_are_reported() -> None:
    with pytest.raises(OptionError, match=r"path: is missing: .* create it without columns"):
        RaftlogDataSource({}).reader(source_schema(PLAIN))
    with pytest.raises(OptionError, match="path: is missing"):
        RaftlogDataSource({}).schema()


@pytest.mark.parametrize(
    "name", ["redactKey", "redactSecret", "ssl.key.password", "kafka.ssl.key.password"]
)
def test_no_secret_is_stored_with_a_table(name: str) -> None:
    given = {"provider": "raftlog", "bootstrap.servers": "a:1", name: "5ecret of a whole log"}
    if not name.startswith("redact"):
        given |= {"ssl.ca.location": "a.pem", "ssl.certificate.location": "b.pem"}
    with pytest.raises(OptionError, match="not allowed in CREATE TABLE") as caught:
        RaftlogDataSource(given).schema()
    assert "5ecret" not in str(caught.value)


def test_references_to_secrets_are_stored_with_a_table(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("0123456789abcdef")
    references = {
        "kafka.sasl.password": "${env:RAFTLOG_TEST_PASSWORD}",
        "redactKey": f"${{directory:{tmp_path}:key}}",
    }
    given = {
        "provider": "raftlog",
        "bootstrap.servers": "a:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        **references,
    }
    source = RaftlogDataSource(given)
    stored = json.loads(source.schema().fields[0].metadata["raftlog.options"])
    assert stored.items() >= references.items()
    assert source._read_options().redact_key == b"0123456789abcdef"
    with pytest.raises(OptionError, match="not allowed in CREATE TABLE"):
        RaftlogDataSource(given | {"kafka.sasl.password": "5ecret"}).schema()


@pytest.mark.parametrize("name", ["ssl.key.password", "kafka.SSL.key.password"])
def test_no_secret_of_one_of_several_logs_is_stored_with_a_table(name: str) -> None:
    of_files = {"path": "/logs/ids-0"}
    files = {"ssl.ca.location": "a.pem", "ssl.certificate.location": "b.pem"}
    of_nodes = {"bootstrap.servers": "a:1", **files, name: "5ecret of a whole log"}
    given = {"provider": "raftlog", "sources": json.dumps([of_files, of_nodes])}
    with pytest.raises(OptionError, match="not allowed in CREATE TABLE") as caught:
        RaftlogDataSource(given).schema()
    assert caught.value.option == f"sources[1].{name}"
    assert "5ecret" not in str(caught.value)
    given["sources"] = json.dumps([of_files])
    schema = RaftlogDataSource(given).schema()
    assert schema.fields[0].metadata


@pytest.mark.parametrize(
    "given",
    [
        {"path": "/logs/ids-0"},
        {"paths": '["/logs/node-1", "/logs/node-2"]'},
        {"kafka.bootstrap.servers": "a:9092"},
        {"sources": '[{"path": "/logs/ids-0"}]'},
    ],
)
def test_a_frame_with_a_location_needs_no_options_of_a_table(given: dict[str, str]) -> None:
    source = RaftlogDataSource(given)
    source.reader(source.schema())
