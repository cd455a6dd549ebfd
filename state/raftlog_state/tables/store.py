"""Delta tables of a cluster; the only module that calls Delta.

Invariants:

1. A write has a (``txnAppId``, ``txnVersion``), set as writer options and never as session
   configuration, which would apply to the next write, too. Delta skips a known one silently, so
   each write has an id in its commit's ``userMetadata``, and is looked up afterwards.
2. Delta's errors are raised as ``TablesError``, with Delta's message.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final

import pyarrow as pa
from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql.types import StructType

from raftlog_state.errors import ConcurrentWriterError, TablesError

from .schema import Table, properties

METADATA_KEY: Final = "raftlog"
"""Key in a commit's ``userMetadata`` of the description of the write."""

HISTORY_LOOK: Final = 20
"""Commits that are searched before the whole history: maintenance is between raftlog's commits."""

_ACTIVE_SESSION: Final = Lock()
"""Held while ``createDataFrame`` sets its session as the active one of the process."""

SNAPSHOT_PARTITIONS: Final = "spark.databricks.delta.snapshotPartitions"
"""Into how many partitions Delta puts the list of a table's files (its default: 50)."""
SNAPSHOT_PARTITIONS_OF_TABLES: Final = "2"

_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z_][A-Za-z0-9_-]*)?")
_MAINTENANCE: Final = frozenset(
    {"OPTIMIZE", "VACUUM START", "VACUUM END", "REORG", "COMPUTE STATS"}
)
_WORDS_MAX: Final = 500


ROWS_IN_ONE_FILE: Final = 200_000
"""Up to this many rows become one file: metadata is small, and small files add up."""


def session_for_tables(spark: SparkSession) -> SparkSession:
    """Return a session with the settings of ``spark`` and few snapshot partitions.

    The tables are small, and each look at one would run a task for each of Delta's 50 snapshot
    partitions. In a session of its own the setting affects no other table. If the user has set it,
    ``spark`` itself is returned.
    """
    if spark.conf.get(SNAPSHOT_PARTITIONS, None) is not None:
        return spark
    session = spark.newSession()
    inherited = session.conf.getAll
    for name, value in spark.conf.getAll.items():
        if inherited.get(name) != value:
            session.conf.set(name, value)
    session.conf.set(SNAPSHOT_PARTITIONS, SNAPSHOT_PARTITIONS_OF_TABLES)
    session.catalog.setCurrentCatalog(spark.catalog.currentCatalog())
    session.catalog.setCurrentDatabase(spark.catalog.currentDatabase())
    return session


def one_file(frame: DataFrame, rows: pa.Table) -> DataFrame:
    """Coalesce ``frame``, whose rows are ``rows``, to one partition unless it is large."""
    return frame.coalesce(1) if rows.num_rows <= ROWS_IN_ONE_FILE else frame


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Commit in a table's history. ``written`` is raftlog's ``userMetadata``, None without it."""

    version: int
    operation: str
    restored_version: int | None
    written: Mapping[str, Any] | None


class DeltaStore:
    """One Delta table a folder of a path, or a table of a catalog's schema. Holds no state."""

    def __init__(self, spark: SparkSession, path_or_schema: str) -> None:
        self._spark = spark
        self.place = path_or_schema.rstrip("/") or path_or_schema
        self._is_path = any(sign in path_or_schema for sign in "/:\\")
        if not self._is_path and not _IDENTIFIER.fullmatch(path_or_schema):
            raise TablesError(
                place=path_or_schema,
                reason="this is neither a path nor the name of a schema",
                remedy="use a path that contains a slash, `schema` or `catalog.schema`",
            )

    def in_session(self, spark: SparkSession) -> DeltaStore:
        """Return the same tables as another session reads and writes them."""
        other = copy.copy(self)
        other._spark = spark
        return other

    def frame(self, rows: pa.Table, schema: StructType) -> DataFrame:
        """Return rows as a frame of this session; Python's active session stays what it is."""
        with _ACTIVE_SESSION:
            active = SparkSession._activeSession
            try:
                return self._spark.createDataFrame(rows, schema)
            finally:
                SparkSession._activeSession = active

    def prepare(self) -> None:
        """Make the schema that the tables will be in; a path needs nothing."""
        if not self._is_path:
            with self.errors(self.place):
                quoted = ".".join(f"`{part}`" for part in self.place.split("."))
                self._spark.sql(f"CREATE SCHEMA IF NOT EXISTS {quoted}")

    def name_of(self, table: str) -> str:
        """A table's full name: its path, or its name in the catalog."""
        if self._is_path:
            return f"{self.place}/{table}"
        return ".".join(f"`{part}`" for part in (*self.place.split("."), table))

    def exists(self, table: str) -> bool:
        """Return whether a table exists."""
        name = self.name_of(table)
        with self.errors(table):
            if self._is_path:
                return bool(DeltaTable.isDeltaTable(self._spark, name))
            return bool(self._spark.catalog.tableExists(name))

    def read(self, table: str, version: int | None = None) -> DataFrame:
        """A table as it is now, or as it was at a version."""
        reader = self._spark.read
        if version is not None:
            reader = reader.option("versionAsOf", version)
        with self.errors(table):
            if self._is_path:
                return reader.format("delta").load(self.name_of(table))
            return reader.table(self.name_of(table))

    def append(
        self,
        table: Table,
        frame: DataFrame,
        *,
        app_id: str,
        txn_version: int,
        written: Mapping[str, Any],
    ) -> None:
        """Append rows in one commit; the first one creates the table.

        ``written`` is stored in the commit's user metadata. Delta writes nothing, and raises
        nothing, if ``app_id`` was committed with this ``txn_version`` or a later one.
        """
        writer = (
            _writer(table, frame)
            .mode("append")
            .option("txnAppId", app_id)
            .option("txnVersion", str(txn_version))
            .option("userMetadata", json.dumps({METADATA_KEY: written}))
        )
        with self.errors(table.name):
            if self._is_path:
                writer.save(self.name_of(table.name))
                return
            name = self.name_of(table.name)
            if not self._spark.catalog.tableExists(name):
                # CREATE TABLE AS SELECT would lose txnAppId and userMetadata: create it empty.
                _writer(table, frame.limit(0)).mode("ignore").saveAsTable(name)
            writer.saveAsTable(name)

    def delta_table(self, table: str) -> DeltaTable:
        """Delta's own handle, for MERGE."""
        with self.errors(table):
            if self._is_path:
                return DeltaTable.forPath(self._spark, self.name_of(table))
            return DeltaTable.forName(self._spark, self.name_of(table))

    def restore(self, table: str, version: int) -> None:
        """Restore a table to ``version``, in a new commit."""
        with self.errors(table):
            self.delta_table(table).restoreToVersion(version)

    def version(self, table: str) -> int:
        """The newest version of a table."""
        return self.history(table, 1)[0].version

    def history(self, table: str, limit: int | None = None) -> list[Commit]:
        """The newest commits of a table, newest first."""
        with self.errors(table):
            rows = (
                self.delta_table(table)
                .history(limit)
                .select("version", "operation", "operationParameters", "userMetadata")
                .collect()
            )
        return [
            Commit(
                version=row["version"],
                operation=row["operation"],
                restored_version=_restored_version(row["operation"], row["operationParameters"]),
                written=_written(row["userMetadata"]),
            )
            for row in rows
        ]

    def newest(self, table: str, incarnation: int) -> tuple[int, Mapping[str, Any] | None]:
        """Return the newest version of a table, and the description of raftlog's newest commit.

        The latter is None if the commit is older than a truncation or than Delta's retention.
        """
        version = -1
        for limit in (1, HISTORY_LOOK, None):
            commits = self.history(table, limit)
            version = max(version, commits[0].version)
            for commit in commits:
                if commit.written is not None:
                    ours = commit.written.get("incarnation") == incarnation
                    return version, commit.written if ours else None
                if commit.operation == "RESTORE":
                    return version, None
            if limit is None or len(commits) < limit:
                break
        return version, None

    def newest_change(self, table: str) -> Commit:
        """The newest commit that is not maintenance."""
        for limit in (1, HISTORY_LOOK, None):
            for commit in self.history(table, limit):
                if commit.operation not in _MAINTENANCE:
                    return commit
        raise AssertionError("every table has the commit that created it")

    @contextmanager
    def errors(self, table: str) -> Iterator[None]:
        """Convert Delta's errors in the block to ``TablesError``."""
        try:
            yield
        except (PySparkException, Py4JJavaError) as error:
            raise self._translated(table, error) from error

    def _translated(self, table: str, error: Exception) -> TablesError:
        words = str(error)
        if "Concurrent" in words or "DELTA_CONCURRENT" in words or "MetadataChanged" in words:
            return ConcurrentWriterError(
                place=self.place,
                reason=f"another writer changed table {table} at the same time",
                remedy="run one writer at a time; its write is complete, so run this one again",
            )
        if "BEYOND_DELETED_FILE_RETENTION" in words or "DELTA_FILE_NOT_FOUND" in words:
            return TablesError(
                place=self.place,
                reason=f"a version of table {table} was deleted by VACUUM or log retention",
                remedy="use a later offset",
            )
        if isinstance(error, AnalysisException) and "DATA_SOURCE_NOT_FOUND" in words:
            return TablesError(
                place=self.place,
                reason="this Spark session does not find Delta",
                remedy="create the session with delta-spark's jars, extension and catalog",
            )
        return TablesError(
            place=self.place,
            reason=f"Delta failed on table {table}: {_first_words(words)}",
            remedy="nothing of this step was written; fix the cause and run again",
        )


def _writer(table: Table, frame: DataFrame) -> DataFrameWriter:
    """Return a writer that creates a missing table with its properties."""
    writer = frame.write.format("delta")
    for name, value in properties(table).items():
        writer = writer.option(name, value)
    return writer


def _first_words(words: str) -> str:
    """Return the first line of Delta's message, without the Java stack trace."""
    found = re.search(r"\[[A-Z_.]+\][^\n]*", words)
    first = found[0] if found else words.partition("\n")[0] or "no reason given"
    return first[:_WORDS_MAX]


def _restored_version(operation: str, parameters: Mapping[str, Any] | None) -> int | None:
    if operation != "RESTORE" or not parameters:
        return None
    version = parameters.get("version")
    return None if version is None else int(version)


def _written(user_metadata: str | None) -> Mapping[str, Any] | None:
    if not user_metadata:
        return None
    try:
        found = json.loads(user_metadata)
    except ValueError:
        return None
    ours = found.get(METADATA_KEY) if isinstance(found, dict) else None
    return ours if isinstance(ours, dict) else None
