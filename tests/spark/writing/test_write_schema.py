"""Columns of a frame: those that each format of values accepts, and refusals before a task runs."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructType
from tests.support.ddl import schema_of

from pyspark_raftlog.errors import WriteSchemaError
from pyspark_raftlog.schema import COLUMNS
from pyspark_raftlog.sink_rows import InputColumns, RecordForm, input_columns
from raftlog import ValueKind

BYTES, MSGPACK, KRAFT = ValueKind.BYTES, ValueKind.MSGPACK, ValueKind.KRAFT
HEADERS = "headers array<struct<key:string,value:binary>>"
DEEP = (
    "record struct<a:array<struct<b:tinyint,c:boolean>>,d:map<string,array<double>>,e:binary,f:int>"
)


@pytest.mark.parametrize(
    ("text", "values", "form"),
    [
        ("value binary", BYTES, RecordForm.VALUE),
        ("value string, key string", BYTES, RecordForm.VALUE),
        (f"key binary, {HEADERS}, value binary, timestamp timestamp", BYTES, RecordForm.VALUE),
        (f"value binary, {HEADERS}", MSGPACK, RecordForm.VALUE),
        ("recordType string, recordVersion int, record string", MSGPACK, RecordForm.JSON),
        (f"recordType smallint, recordVersion bigint, {DEEP}", MSGPACK, RecordForm.STRUCT),
        ("value binary", KRAFT, RecordForm.VALUE),
        ("recordType string, record string", KRAFT, RecordForm.JSON),
        (
            "recordType string, recordVersion int, record struct<name:string,topicId:string>",
            KRAFT,
            RecordForm.STRUCT,
        ),
    ],
)
def test_columns_of_a_record_are_accepted(text: str, values: ValueKind, form: RecordForm) -> None:
    fields = schema_of(text)
    assert input_columns(fields, values) == InputColumns(tuple(fields.names), form)


@pytest.mark.parametrize(
    ("text", "values", "column", "words"),
    [
        ("key binary", BYTES, "value", "is missing"),
        ("key binary", MSGPACK, "value", "or recordType, recordVersion, record"),
        ("value binary, offset bigint", BYTES, "offset", "not a column of records; columns of"),
        ("value binary, topic string", BYTES, "topic", "as v (value BINARY) USING raftlog"),
        ("vaule binary", BYTES, "vaule", "did you mean value?"),
        ("value binary, value binary", BYTES, "value", "is duplicated"),
        ("value int", BYTES, "value", "must be binary or string, but is int; cast it"),
        ("value void", BYTES, "value", "is void"),
        ("value string", MSGPACK, "value", "must be binary, but is string"),
        ("value string", KRAFT, "value", "must be binary"),
        ("value binary, timestamp timestamp_ntz", BYTES, "timestamp", "must be timestamp"),
        ("value binary, timestamp bigint", BYTES, "timestamp", "must be timestamp"),
        ("value binary, headers map<string,binary>", BYTES, "headers", "array<struct<key:string"),
        (
            "value binary, headers array<struct<value:binary,key:string>>",
            BYTES,
            "headers",
            "must be array",
        ),
        ("recordType string, recordVersion int, record string", BYTES, "recordType", "bytes logs"),
        ("value binary, key binary", KRAFT, "key", "metadata records have no key"),
        (f"value binary, {HEADERS}", KRAFT, "headers", "not supported by kraft logs"),
        ("value binary, timestamp timestamp", KRAFT, "timestamp", "not supported by kraft logs"),
        ("value binary, record string", MSGPACK, "record", "cannot be combined with value"),
        ("recordType string, record string", MSGPACK, "recordVersion", "is missing; required with"),
        ("recordType string", KRAFT, "record", "is missing; required with recordType"),
        ("recordType int, record string", KRAFT, "recordType", "must be string"),
        (
            "recordType string, recordVersion string, record string",
            KRAFT,
            "recordVersion",
            "an integer",
        ),
        ("recordType string, record binary", KRAFT, "record", "struct, or string with JSON"),
        (
            "recordType string, recordVersion int, record struct<a:struct<at:timestamp>>",
            MSGPACK,
            "record.a.at",
            "is timestamp; cast it",
        ),
        (
            "recordType string, recordVersion int, record struct<a:array<decimal(3,1)>>",
            MSGPACK,
            "record.a[]",
            "is decimal",
        ),
        (
            "recordType string, recordVersion int, record struct<a:map<int,string>>",
            MSGPACK,
            "record.a (its keys)",
            "must be string",
        ),
        (
            "recordType string, record struct<a:map<string,string>>",
            KRAFT,
            "record.a",
            "is map<string,string>",
        ),
    ],
)
def test_an_invalid_column_is_reported(
    text: str, values: ValueKind, column: str, words: str
) -> None:
    with pytest.raises(WriteSchemaError) as caught:
        input_columns(schema_of(text), values)
    assert caught.value.column == column
    assert words in caught.value.reason


@pytest.mark.parametrize("name", sorted(COLUMNS.keys() - {"key", "value", "headers", "timestamp"}))
def test_columns_that_the_source_adds_cannot_be_written(name: str) -> None:
    fields = StructType(schema_of("value binary").fields).add(name, COLUMNS[name])
    with pytest.raises(WriteSchemaError) as caught:
        input_columns(fields, BYTES)
    assert caught.value.column == name
