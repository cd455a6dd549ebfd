"""Columns: Arrow agrees with Spark, and a schema is a projection or is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from pyspark_raftlog.options import RaftlogOptions
from pyspark_raftlog.schema import COLUMNS, project, source_schema
from raftlog.errors import OptionError
from raftlog_state.source_rows.columns import arrow_schema

ALL = RaftlogOptions(path="/x", include_headers=True, include_control_records=True)
PLAIN = RaftlogOptions(path="/x")
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


def test_headers_have_the_type_of_sparks_kafka_source() -> None:
    assert source_schema(ALL)["headers"].dataType.simpleString() == (
        "array<struct<key:string,value:binary>>"
    )


@given(st.permutations(list(COLUMNS)), st.integers(1, len(COLUMNS)))
def test_the_arrow_schema_equals_sparks_conversion(names: list[str], count: int) -> None:
    chosen = names[:count]
    wanted = to_arrow_schema(schema_of(chosen), timezone="UTC")
    assert arrow_schema(chosen).equals(wanted)
    assert project(schema_of(chosen), ALL) == tuple(chosen)


def test_every_column_is_nullable() -> None:
    assert all(field.nullable for field in source_schema(ALL).fields)


def refusal(*fields: StructField, options: RaftlogOptions = ALL) -> str:
    with pytest.raises(OptionError) as caught:
        project(StructType(list(fields)), options)
    return str(caught.value)


def test_an_unknown_column_is_reported_with_the_nearest_one() -> None:
    assert "did you mean offset?" in refusal(StructField("ofset", LongType()))


def test_another_type_is_refused() -> None:
    assert "offset must be bigint" in refusal(StructField("offset", IntegerType()))


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
    assert "includeControlRecords=true" in refusal(
        StructField("controlType", StringType()), options=PLAIN
    )
