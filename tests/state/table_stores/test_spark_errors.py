"""Errors of a Spark session that cannot write tables, as a user sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, cast

import pytest
from pyspark.errors import AnalysisException

from raftlog_state.errors import TablesError
from raftlog_state.tables.schema import CHANGES_TABLE
from raftlog_state.tables.stores.spark import SparkStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_session_without_delta_is_reported_with_what_it_lacks() -> None:
    store = SparkStore(cast("SparkSession", None), "/tables")  # no call needs the session
    missing = "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: delta."
    reported = r"does not find Delta; create .* extension and catalog"
    with pytest.raises(TablesError, match=reported), store.errors("changes"):
        raise AnalysisException(missing)


class WithoutDelta:
    """Session without Delta: no table of a path exists, and the format is not found."""

    def __getattr__(self, name: str) -> object:
        return (lambda reference: False) if name == "tableExists" else self

    def format(self, name: str) -> WithoutDelta:
        return self

    def load(self, path: str) -> NoReturn:
        raise AnalysisException("[DATA_SOURCE_NOT_FOUND] Failed to find the data source: delta.")


def test_the_first_look_for_a_table_reports_a_session_without_delta() -> None:
    """Else a stream is started, and fails in its first micro-batch."""
    store = SparkStore(cast("SparkSession", WithoutDelta()), "/tables")
    with pytest.raises(TablesError, match="does not find Delta"):
        store.exists(CHANGES_TABLE)


def test_an_error_of_java_is_reported_by_its_exception_not_by_the_call() -> None:
    store = SparkStore(cast("SparkSession", None), "s3://bucket/tables")
    of_py4j = (
        "An error occurred while calling o371.tableExists.\n"
        ': org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "s3"\n'
        "\tat org.apache.hadoop.fs.FileSystem.getFileSystemClass(FileSystem.java:3585)\n"
    )
    reported = r'on table changes: org\.apache\S+Exception: No FileSystem for scheme "s3"; fix'
    with pytest.raises(TablesError, match=reported), store.errors("changes"):
        raise AnalysisException(of_py4j)
