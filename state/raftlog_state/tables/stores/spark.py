"""``SparkStore``: the tables through a Spark session, classic or Spark Connect.

Rules of this file:

1. Spark is used only through SQL, reader and writer options, and Arrow: no py4j, no ``DeltaTable``.
2. An append has a (``txnAppId``, ``txnVersion``), set as writer options and never as session
   configuration, which would also apply to the next write. Delta silently skips a known
   transaction, so each append has an id in its commit's ``userMetadata`` and is looked up
   afterwards: first in the next entry of Delta's log, which is read without Spark if it is a local
   file, and then in the history, which takes four times as long as an entry that Spark reads.
3. Delta looks up a transaction in the state of the newest version. Spark computes this state once
   for each version, with a job that takes as long as the rest of an append of a few rows. After an
   append, a thread therefore requests the table's state, so that the next append finds it. The
   thread's session is created before the append: an error after the commit would fail an append
   that is complete.
4. Plans for few rows are interpreted, in a separate session: appends of micro-batches, and states
   of tables. Generating and compiling code for so many columns takes longer.
5. Spark's and Delta's errors are raised as ``TablesError``, with Delta's message.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple, TypeVar
from urllib.parse import unquote

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameWriter, Row, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from raftlog_state.errors import TablesError
from raftlog_state.image.column_types import BIGINT, STRING
from raftlog_state.tables.comments import STORED_COMMENTS, commented_schema
from raftlog_state.tables.schema import (
    CLUSTER_ID,
    PROGRESS,
    PROGRESS_OP,
    STATE_TABLE,
    StoredTable,
)

from .compaction import COMPACT_BYTES, FULL_BYTES, rewritten_bytes
from .delta_appends import entry, newest_entry
from .protocol import (
    STAGED_AGE_MAX_S,
    AnyOf,
    Condition,
    Rows,
    RowSlices,
    Selected,
    TableSize,
    Transaction,
    Where,
    clusters_of,
    concurrent_write,
    condition_sql,
    in_schema,
    missing_fields,
    schema_of_rows,
)

try:
    from py4j.protocol import Py4JJavaError
except ImportError:  # a client of Spark Connect has no py4j
    Py4JJavaError = PySparkException

T = TypeVar("T")
R = TypeVar("R")

TABLES_AT_ONCE: Final = 4
ROWS_IN_ONE_FILE: Final = 200_000
"""Up to this many rows are written to one file: metadata is small, and small files accumulate."""

READ_ROWS: Final = 50_000
"""Rows in one part of a read, which the driver holds in memory several times.

A part that is a file would be as large as the file's rows.
"""

SESSION_SETTINGS: Final = {
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.databricks.delta.optimize.maxFileSize": str(COMPACT_BYTES),
}
"""Session settings for tables.

Their lists of files are short, and each partition of such a list is a task. This limits the
partitions of Delta's lists (50 by default) and of the files that VACUUM finds (10,000 by default).
Times are 64 bits, as other engines write them: INT96 has no years that delta-rs can read exactly.
"""

FEW_ROWS: Final = 100
"""Largest append whose plan is interpreted, in rows: that of a log that is followed."""

FEW_ROWS_SETTINGS: Final = {
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.databricks.delta.allFilesInCrc.enabled": "false",
}
"""Session settings for plans of few rows with many columns.

These are appends of micro-batches, and states of tables, which have few actions. With adaptive
execution, a state takes three jobs instead of one. Delta's checksum lists the files of tables with
up to 50 files, and each commit computes the list again from the state if the session's time zone is
not UTC.
"""

UNLISTED_BYTES: Final = 8 << 20
"""Size below which OPTIMIZE rewrites files if their sizes are unknown."""
_SMALL_FILE: Final = "spark.databricks.delta.optimize.minFileSize"
"""Size below which OPTIMIZE rewrites files; the default, 1 GB, is all of them each time."""

COMMITS_MEANWHILE_MAX: Final = 100
"""Number of newest commits among which an append is looked up.

If other writers have committed more, the append is reported as another writer's, and the tables are
read again.
"""

_ACTIVE_SESSION: Final = Lock()
"""Held while ``createDataFrame`` sets its session as the active one of the process."""

_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z_][A-Za-z0-9_-]*)?")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_CONDITION: Final = re.compile(r"\[([A-Z][A-Z0-9_]+(\.[A-Z0-9_]+)*)\][^\n]*")

_STAGED_PREFIX: Final = "raftlog_slices_"
"""Prefix of tables for slices, which exist while a large batch is written.

A process that is killed leaves one, which a vacuum drops.
"""
_STAGED: Final = re.compile(_STAGED_PREFIX + "([0-9]+)_[0-9a-f]+")
"""Names of these tables, with their creation time in seconds since 1970."""

_NO_TABLE: Final = ("DELTA_MISSING_DELTA_TABLE", "DELTA_PATH_DOES_NOT_EXIST")
_CONCURRENT: Final = ("DELTA_CONCURRENT_", "DELTA_METADATA_CHANGED", "DELTA_PROTOCOL_CHANGED")
_VERSION_DELETED: Final = (
    "DELTA_UNSUPPORTED_TIME_TRAVEL_BEYOND_DELETED_FILE_RETENTION",
    "DELTA_FILE_NOT_FOUND",
    "DELTA_LOG_FILE_NOT_FOUND",
    "DELTA_VERSION_NOT_FOUND",
)
_NO_VERSION: Final = -1
_NO_DELTA: Final = ("DATA_SOURCE_NOT_FOUND", "DELTA_CONFIGURE_SPARK_SESSION_WITH_EXTENSION")


def session_for_tables(spark: SparkSession) -> SparkSession:
    """Return a session with the settings of ``spark`` and ``SESSION_SETTINGS``."""
    return _session_with(spark, SESSION_SETTINGS)


def _session_with(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """Return a session with the settings of ``spark`` and others.

    In a separate session, these affect no other table. Settings of the user take precedence. If the
    user has set all of them, or if Spark does not allow setting them, ``spark`` itself is returned.
    """
    missing = {n: v for n, v in settings.items() if spark.conf.get(n, None) is None}
    if not missing:
        return spark
    try:
        session = spark.newSession()
        inherited = session.conf.getAll
        changed = {n: v for n, v in spark.conf.getAll.items() if inherited.get(n) != v}
        for name, value in {**changed, **missing}.items():
            session.conf.set(name, value)
        session.catalog.setCurrentCatalog(spark.catalog.currentCatalog())
        session.catalog.setCurrentDatabase(spark.catalog.currentDatabase())
    except PySparkException:
        return spark
    return session


def is_connect(spark: SparkSession) -> bool:
    """Return whether a session is of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


@contextmanager
def _active_session_kept() -> Iterator[None]:
    """Restore the active session of the process after the block, which creates a frame."""
    with _ACTIVE_SESSION:
        active = SparkSession._activeSession
        try:
            yield
        finally:
            SparkSession._activeSession = active


def shuffle_partitions(spark: SparkSession) -> int:
    """Return the number of partitions of a shuffle in a session."""
    return int(spark.conf.get("spark.sql.shuffle.partitions", "200") or 200)


def for_each(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Do work concurrently, because Spark's driver idles between small jobs.

    Return results in the order of items. The first error is raised after all items.
    """
    with ThreadPoolExecutor(TABLES_AT_ONCE, thread_name_prefix="raftlog-tables") as pool:
        futures = [pool.submit(work, item) for item in items]
    return [future.result() for future in futures]


class _Newest(NamedTuple):
    """The newest version of a table, and when it was committed: another table may have it, too."""

    version: int
    committed_at: object


class SparkStore:
    """Delta tables, each a folder of a path or a table of a catalog's schema.

    Its only state is whether its session has Delta, where an append is looked up first, whether the
    tables are in the local file system, their newest versions and the frames of those, which tables
    lack no column, what its threads compute, and a store with the session for few rows.
    """

    def __init__(self, spark: SparkSession, path_or_schema: str) -> None:
        self._spark = spark
        self._is_path = any(sign in path_or_schema for sign in "/:\\")
        if not self._is_path and not _IDENTIFIER.fullmatch(path_or_schema):
            raise TablesError(
                place=path_or_schema,
                reason="this is neither a path nor the name of a schema",
                remedy="use a path that contains a slash, `schema` or `catalog.schema`",
            )
        self._place = _absolute(path_or_schema) if self._is_path else path_or_schema
        self._has_delta = False
        self._seen_versions: dict[str, int] = {}
        self._newest: dict[str, _Newest] = {}
        self._frames: dict[str, tuple[_Newest, DataFrame]] = {}
        self._local_place: Path | None = None
        self._complete: set[str] = set()
        self._snapshots: dict[str, Future[TableSize]] = {}
        self._few: SparkStore | None = None

    @property
    def place(self) -> str:
        """The absolute path, or the name of the schema."""
        return self._place

    @property
    def is_path(self) -> bool:
        """Whether the tables are folders of a path."""
        return self._is_path

    @property
    def session(self) -> SparkSession:
        """The session that reads and writes."""
        return self._spark

    def in_session(self, spark: SparkSession) -> SparkStore:
        """Return the same tables, read and written by another session."""
        return SparkStore(spark, self._place)

    def reference(self, name: str) -> str:
        """Return the name in SQL of a table, or of a view of the schema."""
        if self._is_path:
            return f"delta.{quoted(f'{self._place}/{name}')}"
        return f"{self._schema}.{quoted(name)}"

    @property
    def _schema(self) -> str:
        """The name in SQL of the schema."""
        return ".".join(quoted(part) for part in self._place.split("."))

    def has_views(self, names: Iterable[str], one: str, property_of_it: tuple[str, str]) -> bool:
        """Return whether the schema has all of these views, and one of them a property."""
        name, value = property_of_it
        with self.errors(one):
            views = self._spark.sql(f"SHOW VIEWS IN {self._schema}").collect()
            if not {row["viewName"] for row in views if not row["isTemporary"]}.issuperset(names):
                return False
            found = self._spark.sql(f"SHOW TBLPROPERTIES {self.reference(one)} ('{name}')")
            return [row["value"] for row in found.collect()] == [value]

    # --- reads ------------------------------------------------------------------------------------

    def exists(self, table: StoredTable) -> bool:
        """Return whether a table exists."""
        if self._newest_entry(table) is not None:
            return True
        with self.errors(table.name):
            try:
                if self._spark.catalog.tableExists(self.reference(table.name)):
                    return True
            except PySparkException as error:
                if _condition_and_reason(error)[0] not in _NO_TABLE:
                    raise
            self._check_delta()
        return False

    def missing_fields(self, table: StoredTable) -> list[str]:
        """Return what the schema of a table lacks; nothing if there is no such table."""
        if table.name in self._complete or not self.exists(table):
            return []
        frame = self.frame(table)
        with self.errors(table.name):
            found = missing_fields(_names_in(frame.schema), table.schema)
        if not found:
            self._complete.add(table.name)
        return found

    def _check_delta(self) -> None:
        """Raise Spark's error if the session has no Delta, as it would find no table of a path.

        Otherwise a stream would fail in its first micro-batch, with a Java stack trace.
        """
        if not self._is_path or self._has_delta:
            return
        try:
            self._spark.read.format("delta").load(self._place).columns.copy()
        except PySparkException as error:
            if _condition_and_reason(error)[0].startswith(_NO_DELTA):
                raise
        self._has_delta = True

    def frame(self, table: StoredTable, version: int | None = None) -> DataFrame:
        """Return a table as of the time when the frame is read, or as of a version.

        For a version, Delta lists the log twice. The frame of the newest one is kept: the next
        queries of the same state have the same version.
        """
        newest = self._newest.get(table.name)
        if version is None or newest is None or newest.version != version:
            return self._loaded(table, version)
        kept = self._frames.get(table.name)
        if kept is None or kept[0] != newest:
            kept = self._frames[table.name] = newest, self._loaded(table, version)
        return kept[1]

    def _loaded(self, table: StoredTable, version: int | None) -> DataFrame:
        reader = self._spark.read
        if version is not None:
            reader = reader.option("versionAsOf", version)
        with self.errors(table.name):
            if self._is_path:
                return reader.format("delta").load(f"{self._place}/{table.name}")
            return reader.table(self.reference(table.name))

    def version(self, table: StoredTable) -> int:
        """Return the newest version of a table.

        DESCRIBE HISTORY lists the whole log and is a job. If the log is a directory of this host,
        its names are looked up instead, from the last known version on.
        """
        if self._local_place is None:
            self._local_place = self._find_local_place(table)
        newest = self._newest_entry(table)
        if newest is None:
            commit = self._newest_commit(table)
            newest = _Newest(int(commit["version"]), commit["timestamp"])
        self._newest[table.name] = newest
        return newest.version

    def _newest_entry(self, table: StoredTable) -> _Newest | None:
        """Return the newest version by the names in the log; None if it is not a local directory,
        or without entries."""
        if self._local_place is None or not self._local_place.name:
            return None
        log, known = self._local_place / table.name / "_delta_log", self._newest.get(table.name)
        version = newest_entry(log, -1 if known is None else known.version)
        if version is None:
            return None
        try:
            return _Newest(version, entry(log, version).stat().st_mtime_ns)
        except FileNotFoundError:  # the table was dropped meanwhile
            return None

    def _find_local_place(self, table: StoredTable) -> Path:
        """Return the path of the tables in the local file system, an empty one if it has none.

        Spark resolves a path without a scheme in its default file system: only Delta knows which.
        """
        if not self._is_path or is_connect(self._spark):
            return Path()
        with self.errors(table.name):
            statement = f"DESCRIBE DETAIL {self.reference(table.name)}"
            location = str(self._spark.sql(statement).collect()[0]["location"])
        is_local = location.startswith("file:")
        return Path(location.removeprefix("file:")).parent if is_local else Path()

    def read(
        self,
        table: StoredTable,
        where: Where = (),
        columns: tuple[str, ...] | None = None,
        *,
        any_of: AnyOf = (),
        version: int | None = None,
    ) -> pa.Table:
        """Return rows of an existing table, in any order."""
        selected = Selected.of(table, columns)
        listed = ", ".join(
            quoted(name) if field is None else f"{quoted(name)}.{quoted(field)}"
            for name, field in selected
        )
        with self.errors(table.name):
            pinned = "" if version is None else f" VERSION AS OF {version}"
            stored = f"{self.reference(table.name)}{pinned}"
            statement = f"SELECT {listed} FROM {stored}{_clause(table, where, any_of)}"
            rows = self._spark.sql(statement)
            if _has_structs(selected, table) and not _are_few(where, any_of):
                rows = _in_small_parts(rows)
            found = rows.toArrow()
        columns_of = (
            one.wrap(values.cast(one.type_in(table)))
            for one, values in zip(selected, found.columns, strict=True)
        )
        return pa.table(dict(zip((one.name for one in selected), columns_of, strict=True)))

    def cluster_ids(self, table: StoredTable, known: str | None = None) -> list[str]:
        """Return the distinct ``cluster_id`` of an existing table, in any order."""
        reference = self.reference(table.name)
        with self.errors(table.name):
            if known is not None:
                # Delta skips files by their statistics, so files of only one cluster are not read.
                other = _clause(table, ((CLUSTER_ID, "!=", known),), ())
                statement = f"SELECT {CLUSTER_ID} FROM {reference}{other} LIMIT 1"
                if not self._spark.sql(statement).collect():
                    return [known]
            found = self._spark.sql(f"SELECT DISTINCT {CLUSTER_ID} FROM {reference}").collect()
            return [row[0] for row in found]

    # --- writes -----------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Create the schema that the tables will be in; a path needs nothing."""
        if not self._is_path:
            with self.errors(self._place):
                self._spark.sql(f"CREATE SCHEMA IF NOT EXISTS {self._schema}")

    def create(self, table: StoredTable) -> None:
        """Create a table without rows unless it exists."""
        if self.exists(table):
            return
        with self.errors(table.name), _active_session_kept():
            empty = self._spark.createDataFrame([], _commented_type(table))
        self._create_with(table, empty)

    def _create_with(self, table: StoredTable, rows: DataFrame) -> bool:
        """Create a table with rows, in one commit; return False if another writer has created it.

        Also return False if Delta raises an error after it has committed the rows.
        """
        new = rows.to(_commented_type(table)).write.mode("errorifexists")
        try:
            with self.errors(table.name):
                self._save(table, new, comment=STORED_COMMENTS[table.name])
        except TablesError:
            if not self.exists(table):
                raise
            return False
        return True

    @property
    def has_many_transactions(self) -> bool:
        """Whether an append may have several transactions: Delta's Spark writer takes only one."""
        return False

    def append(self, table: StoredTable, rows: Rows, *transactions: Transaction) -> None:
        """Append rows in one commit; the first one creates the table."""
        (transaction,) = transactions
        if not self._is_path:
            # CREATE TABLE AS SELECT would lose txnAppId: create it empty.
            self.create(table)
        commit = uuid.uuid4().hex
        is_new = table.name not in self._seen_versions and not self.exists(table)
        if isinstance(rows, pa.Table) and not is_new:
            # Null fields enlarge each plan and file.
            rows = in_schema(rows, schema_of_rows(table, rows))
        is_few = isinstance(rows, pa.Table) and rows.num_rows <= FEW_ROWS
        with self.errors(table.name):
            few = self._for_few_rows()
            with (few if is_few else self)._frame_of(rows) as frame:
                if is_new:
                    frame = frame.to(_commented_type(table))
                self._wait_for_snapshot(table)
                self._save(
                    table,
                    frame.write.mode("append"),
                    txnAppId=transaction.app_id,
                    txnVersion=str(transaction.version),
                    userMetadata=commit,
                )
        if is_new:
            self._seen_versions[table.name] = _NO_VERSION
        if not self._is_committed(table, commit):
            raise concurrent_write(self._place, table.name)
        if not is_new:  # with `availableNow` there may be no second append that uses the state
            self._begin_snapshot(table, few)

    def _for_few_rows(self) -> SparkStore:
        """Return the same tables, read and written by a session for plans of few rows."""
        if self._few is None:
            self._few = self.in_session(_session_with(self._spark, FEW_ROWS_SETTINGS))
        return self._few

    def _begin_snapshot(self, table: StoredTable, few: SparkStore) -> None:
        """Begin to compute the state of a table after its append.

        The size of a table is part of its state, and requesting it writes nothing. An error has no
        effect: the next append computes the state, or fails with the same error. The thread ends
        with its work, so a store need not be closed.
        """
        thread = ThreadPoolExecutor(1, "raftlog-snapshots")
        with suppress(RuntimeError):  # no thread can be started
            self._snapshots[table.name] = thread.submit(few.size, table)
        thread.shutdown(wait=False)

    def _wait_for_snapshot(self, table: StoredTable) -> None:
        """Wait for the state of a table, as its next append would."""
        begun = self._snapshots.pop(table.name, None)
        if begun is not None:
            wait([begun])

    def fence(self, table: StoredTable, transactions: Sequence[Transaction]) -> None:
        """Commit transactions without rows, each in a commit of its own."""
        for transaction in transactions:
            with self.errors(table.name):
                with _active_session_kept():
                    empty = self._spark.createDataFrame([], from_arrow_schema(table.schema))
                self._save(
                    table,
                    empty.write.mode("append"),
                    txnAppId=transaction.app_id,
                    txnVersion=str(transaction.version),
                )

    def merge(self, rows: Rows) -> None:
        """Bring rows into ``state``, in one commit; the first one creates the table."""
        with self.errors(STATE_TABLE.name), self._frame_of(rows) as frame:
            # An append to nothing is the same as a MERGE, without its joins and their planning.
            if self.exists(STATE_TABLE) or not self._create_with(STATE_TABLE, frame):
                self._merge(frame, clusters_of(rows))

    def _merge(self, rows: DataFrame, cluster_ids: Iterable[str]) -> None:
        """Bring rows of clusters into the existing table ``state``."""
        source = f"raftlog_{uuid.uuid4().hex}"
        clusters = ", ".join(_literal(name, STRING) for name in cluster_ids)
        newer = " > ".join(
            f"struct({side}._incarnation, {side}._visible_offset, {side}._offset)"
            for side in ("new", "old")
        )
        rows.createOrReplaceTempView(source)
        try:
            self._spark.sql(
                f"MERGE INTO {self.reference(STATE_TABLE.name)} AS old USING {source} AS new "
                # Literals, so that Delta reads only the partitions of these clusters.
                f"ON old.cluster_id IN ({clusters}) AND old.cluster_id = new.cluster_id "
                "AND old.entity = new.entity AND old.key = new.key "
                f"WHEN MATCHED AND {newer} THEN UPDATE SET * "
                "WHEN NOT MATCHED THEN INSERT *"
            )
        finally:
            self._spark.catalog.dropTempView(source)

    def delete(self, table: StoredTable, where: Where, *, any_of: AnyOf = ()) -> None:
        """Delete the rows for which all conditions hold."""
        clause = _clause(table, where, any_of)
        with self.errors(table.name):
            self._spark.sql(f"DELETE FROM {self.reference(table.name)}{clause}")

    def size(self, table: StoredTable) -> TableSize:
        """Return the size of an existing table, from its commits."""
        with self.errors(table.name):
            row = self._spark.sql(f"DESCRIBE DETAIL {self.reference(table.name)}").collect()[0]
        return TableSize(file_count=int(row["numFiles"]), byte_count=int(row["sizeInBytes"]))

    def compact(self, table: StoredTable) -> None:
        """Rewrite small files of an existing table as larger ones."""
        with self.errors(table.name):
            small_bytes = self._small_bytes(table)
            if small_bytes is not None:
                with self._setting(_SMALL_FILE, str(min(small_bytes, FULL_BYTES))):
                    self._spark.sql(f"OPTIMIZE {self.reference(table.name)}")

    def _small_bytes(self, table: StoredTable) -> int | None:
        """Return the size below which files are rewritten; None: no file.

        Files are listed by path, without reading them. A catalog may not allow that.
        """
        partitions: dict[str, list[int]] = {}
        paths = [unquote(path) for path in self.frame(table).inputFiles()]
        if not paths:
            return None
        try:
            files = self._spark.read.format("binaryFile").load(paths).select("path", "length")
            for path, size in files.collect():
                partitions.setdefault(os.path.dirname(path), []).append(size)
        except (PySparkException, Py4JJavaError):
            return UNLISTED_BYTES
        return rewritten_bytes(partitions.values())

    @contextmanager
    def _setting(self, name: str, value: str) -> Iterator[None]:
        """Set a setting of the session for the block, if Spark allows it."""
        before = self._spark.conf.get(name, None)
        try:
            self._spark.conf.set(name, value)
        except PySparkException:
            yield
            return
        try:
            yield
        finally:
            if before is None:
                self._spark.conf.unset(name)
            else:
                self._spark.conf.set(name, before)

    def checkpoint(self, table: StoredTable) -> None:
        """Do nothing: Spark writes checkpoints with its commits."""

    def vacuum(self, table: StoredTable) -> None:
        """Delete files that belong to no version of an existing table within its retention."""
        with self.errors(table.name):
            self._spark.sql(f"VACUUM {self.reference(table.name)}")
        with suppress(PySparkException):  # a session may have a schema that cannot be listed
            self._drop_old_slices()

    def _drop_old_slices(self) -> None:
        """Drop the slice tables of processes that were killed a day ago or earlier."""
        oldest_s = time.time() - STAGED_AGE_MAX_S
        schema = "" if self._is_path else f" IN {self._schema}"
        for row in self._spark.sql(f"SHOW TABLES{schema} LIKE '{_STAGED_PREFIX}*'").collect():
            found = _STAGED.fullmatch(row["tableName"])
            if found is not None and int(found[1]) < oldest_s:
                self._spark.sql(f"DROP TABLE IF EXISTS {self._staged(found[0])}")

    @contextmanager
    def _frame_of(self, rows: Rows) -> Iterator[DataFrame]:
        """Yield rows as a frame of this session.

        Rows of a table are in memory, and Spark reads rows of files. Slices are first written, one
        at a time, to a separate table, which is dropped after the block.
        """
        if not isinstance(rows, RowSlices):
            yield self._in_memory(rows)
        elif rows.files:
            files = self._spark.read.schema(from_arrow_schema(rows.schema)).parquet(*rows.files)
            yield files if rows.rest is None else files.union(self._in_memory(rows.rest))
        else:
            slices = rows.slices()
            first, second = next(slices), next(slices, None)
            if second is None:
                yield self._in_memory(first)
                return
            name = self._staged(f"{_STAGED_PREFIX}{int(time.time())}_{uuid.uuid4().hex}")
            try:
                for part in chain((first, second), slices):
                    write = self._in_memory(part).write.format("delta").mode("append")
                    write.saveAsTable(name)
                yield self._spark.read.table(name)
            finally:
                self._spark.sql(f"DROP TABLE IF EXISTS {name}")

    def _staged(self, name: str) -> str:
        """Return the name in SQL of a table for slices: in the schema, or in the current one."""
        return quoted(name) if self._is_path else self.reference(name)

    def _in_memory(self, rows: pa.Table) -> DataFrame:
        """Return rows as a frame of this session, which has all of them in memory."""
        # Spark ends a partition at an empty batch, so the rows of later batches would be lost.
        batches = [batch for batch in rows.to_batches() if batch.num_rows]
        with _active_session_kept():
            frame = self._spark.createDataFrame(pa.Table.from_batches(batches, rows.schema))
        return frame.coalesce(1) if rows.num_rows <= ROWS_IN_ONE_FILE else frame

    def _save(self, table: StoredTable, writer: DataFrameWriter, **options: str) -> None:
        """Write to a table; a missing one is created with its properties."""
        writer = writer.format("delta").options(**table.properties, **options)
        if table.partitioned_by:
            writer = writer.partitionBy(*table.partitioned_by)
        if self._is_path:
            writer.save(f"{self._place}/{table.name}")
        else:
            writer.saveAsTable(self.reference(table.name))

    def _newest_commit(self, table: StoredTable) -> Row:
        with self.errors(table.name):
            statement = f"DESCRIBE HISTORY {self.reference(table.name)} LIMIT 1"
            return self._spark.sql(statement).collect()[0]

    def _is_committed(self, table: StoredTable, commit: str) -> bool:
        """Return whether an append was committed: Delta silently skips a known transaction."""
        if self._is_next_commit(table, commit):
            return True
        counts = (1, COMMITS_MEANWHILE_MAX)
        return any(commit in self._commit_ids(table, count) for count in counts)

    def _is_next_commit(self, table: StoredTable, commit: str) -> bool:
        """Return whether a commit is known to be the one after the last commit that was looked up.

        If not, it may still be a later one, because others have written meanwhile.
        """
        seen = self._seen_versions.get(table.name)
        if seen is None or not self._is_path:
            return False
        path = f"{self._place}/{table.name}/_delta_log/{seen + 1:020}.json"
        text = _local_text(path)
        try:
            lines = [text] if text else [row[0] for row in self._spark.read.text(path).collect()]
        except PySparkException:  # Delta did not write it, or it cannot be read
            return False
        is_next = any(commit in line for line in lines)
        if is_next:
            self._seen_versions[table.name] = seen + 1
        return is_next

    def _commit_ids(self, table: StoredTable, count: int) -> list[str | None]:
        """Return the user metadata of the newest commits."""
        with self.errors(table.name):
            statement = f"DESCRIBE HISTORY {self.reference(table.name)} LIMIT {count}"
            newest = self._spark.sql(statement).collect()
        self._seen_versions[table.name] = int(newest[0]["version"])
        return [row["userMetadata"] for row in newest]

    # --- errors -----------------------------------------------------------------------------------

    @contextmanager
    def errors(self, table_name: str) -> Iterator[None]:
        """Convert Spark's and Delta's errors in the block to ``TablesError``."""
        try:
            yield
        except (PySparkException, Py4JJavaError) as error:
            raise self._translated(table_name, error) from error

    def _translated(self, table_name: str, error: Exception) -> TablesError:
        condition, reason = _condition_and_reason(error)
        if condition.startswith(_CONCURRENT):
            return concurrent_write(self._place, table_name)
        if condition.startswith(_VERSION_DELETED):
            return TablesError(
                place=self._place,
                reason=f"a version of table {table_name} was deleted by VACUUM or log retention",
                remedy="use a later offset",
            )
        if condition.startswith(_NO_DELTA):
            return TablesError(
                place=self._place,
                reason="this Spark session does not find Delta",
                remedy="create the session with delta-spark's jars, extension and catalog",
            )
        return TablesError(
            place=self._place,
            reason=f"Delta failed on table {table_name}: {reason}",
            remedy="fix the cause and run again; no commit is partial",
        )


def _commented_type(table: StoredTable) -> StructType:
    """Return the type of a table's rows with the comments of its columns, nested ones too."""
    return _with_comments(from_arrow_schema(table.schema), commented_schema(table.name))


def _names_in(kind: StructType) -> pa.StructType:
    """Return a struct with the same names, nested ones too: type conversions need a time zone."""
    return pa.struct(
        [
            (
                one.name,
                _names_in(one.dataType) if isinstance(one.dataType, StructType) else pa.null(),
            )
            for one in kind
        ]
    )


def _with_comments(kind: StructType, declared: Iterable[pa.Field]) -> StructType:
    return StructType(
        [
            StructField(
                field.name,
                _with_comments(field.dataType, arrow.type)
                if isinstance(field.dataType, StructType)
                else field.dataType,
                field.nullable,
                {"comment": (arrow.metadata or {}).get(b"comment", b"").decode()},
            )
            for field, arrow in zip(kind, declared, strict=True)
        ]
    )


def _has_structs(selected: Iterable[Selected], table: StoredTable) -> bool:
    """Return whether a read has whole rows. Without them, even a million rows need no parts."""
    return any(pa.types.is_nested(one.type_in(table)) for one in selected)


def _are_few(where: Where, any_of: AnyOf) -> bool:
    """Return whether conditions select few rows: those of a key, or progress rows."""

    few = (("entity", "=", PROGRESS), ("op", "=", PROGRESS_OP))

    def are_few(conditions: Where) -> bool:
        return any(one in few or one[:2] == ("key", "=") for one in conditions)

    return are_few(where) or (bool(any_of) and all(map(are_few, any_of)))


def _in_small_parts(rows: DataFrame) -> DataFrame:
    """Return rows in parts that fit into the driver's memory. Few rows are not moved between tasks.

    Counting them first reads only the columns of their conditions, or none.
    """
    part_count = -(-rows.count() // READ_ROWS)
    return rows.repartition(part_count) if part_count > 1 else rows


def _clause(table: StoredTable, where: Where, any_of: AnyOf) -> str:
    """Return a WHERE clause, empty without conditions."""

    def one(condition: Condition) -> str:
        column, comparison, value = condition
        kind = table.columns[column]
        if isinstance(value, tuple):
            listed = ", ".join(_literal(each, kind) for each in value)
            return f"{quoted(column)} NOT IN ({listed})"
        return f"{quoted(column)} {comparison} {_literal(value, kind)}"

    conditions = condition_sql(where, any_of, one)
    return f" WHERE {conditions}" if conditions else ""


def _literal(value: int | str, kind: pa.DataType) -> str:
    """Return a literal of a column's type, because with a cast Delta would not skip files.

    Delta's SQL parser does not support parameters.
    """
    if isinstance(value, int):
        return f"{value}L" if kind == BIGINT else str(value)
    if re.search(r"['\\]", value):  # a session setting decides what these mean
        return f"CAST(X'{value.encode().hex()}' AS STRING)"
    return f"'{value}'"


def quoted(name: str) -> str:
    """Return a name as an identifier of SQL."""
    return "`{}`".format(name.replace("`", "``"))


def _absolute(path: str) -> str:
    """Return an absolute path without trailing slashes, because SQL takes no relative path."""
    path = path.rstrip("/") or "/"
    return path if _SCHEME.match(path) else os.path.abspath(path)


def _local_text(path: str) -> str:
    """Return the text of a file of this host, empty if it cannot be read."""
    try:
        return Path(path.removeprefix("file:")).read_text(errors="replace")
    except OSError:
        return ""


def _condition_and_reason(error: Exception) -> tuple[str, str]:
    """Return the name of an error's condition, empty without one, and its message's line."""
    words = str(error)
    named = _CONDITION.search(words)
    condition = error.getCondition() if isinstance(error, PySparkException) else None
    # py4j's first line names the call that failed; the next one is Java's exception.
    java = next((line[2:] for line in words.splitlines() if line.startswith(": ")), None)
    reason = named[0] if named else java or words.partition("\n")[0] or "no reason given"
    return condition or (named[1] if named else ""), reason[:500]
