"""``DeltaRsStore``: Delta tables in a local directory, by delta-rs, without Spark or a JVM.

Rules of this file:

1. Only this module imports ``deltalake``, and it is imported only to open such a store.
2. A table appears with its checks and its first rows: it is written to a hidden directory next to
   its place, which is then renamed. A directory that a crash left is deleted by ``vacuum``.
3. delta-rs does not skip a transaction that the table has (Spark does): compare before a commit.
   Between that and the commit, delta-rs rejects the second of two commits of one ``app_id``.
4. A commit of delta-rs costs time in proportion to the files of its handle: the handle is kept,
   brought up to date before each use, and reopened from time to time. A list of Delta's log takes
   a fourth of an append with 10,000 entries, so it is listed only if there is a later commit. Each
   commit of delta-rs lists it twice besides, before and after: only fewer entries change that.
5. No text of an error of delta-rs but its first line is shown: rows and a Rust stack trace follow.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raftlog_state.errors import TablesError
from raftlog_state.tables.schema import CLUSTER_ID, STATE_TABLE, StoredTable

from .protocol import (
    COMPACT_BYTES,
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
)

try:
    from arro3.core import Array, DataType
    from deltalake import (
        CommitProperties,
        DeltaTable,
        PostCommitHookProperties,
        QueryBuilder,
        write_deltalake,
    )
    from deltalake import Transaction as AppTransaction
    from deltalake.exceptions import CommitFailedError, DeltaError
    from deltalake.transaction import AddAction, RemoveAction
except ImportError:
    raise TablesError(
        place="a local path",
        reason="the engine delta-rs needs the package deltalake, which is not installed",
        remedy='install it with: pip install "raftlog[delta]"',
    ) from None

REOPEN_COMMITS: Final = 100
"""Commits after which a table's handle is reopened, which then reads a checkpoint."""
READ_SETTINGS: Final = {"datafusion.execution.parquet.coerce_int96": "us"}
"""Spark writes times as INT96 by default. Read in nanoseconds, those before 1677 or after 2262 wrap
around."""
DELETE_TRIES: Final = 5
"""Tries of a delete: one fails if a concurrent append may hold rows to delete."""

_NO_CLEANUP: Final = PostCommitHookProperties(cleanup_expired_logs=False)
"""A cleanup of Delta's log after a commit lists all of its entries: three times the rest of an
append with 10,000 entries. Merges, deletes and compactions clean it."""

_CHECK_PREFIX: Final = "delta.constraints."
_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_PERCENT_CODE: Final = re.compile(r"%[0-9A-Fa-f]{2}")
_CONFLICT: Final = re.compile(
    r"concurrent transaction|changed since last commit|existing table version"
    r"|failed to commit transaction: \d+$",
    re.IGNORECASE,
)
_ANSI_COLOR: Final = re.compile(r"\x1b\[[0-9;]*m")
_REASON_MAX: Final = 500

_SAME_KEY: Final = f"t.{CLUSTER_ID} = s.{CLUSTER_ID} AND t.entity = s.entity AND t.key = s.key"
_NEWER: Final = (
    "s._incarnation > t._incarnation OR s._incarnation = t._incarnation AND ("
    "s._visible_offset > t._visible_offset OR s._visible_offset = t._visible_offset AND "
    "s._offset > t._offset)"
)


@dataclass(slots=True)
class _Handle:
    """An open table. ``inode`` is that of its ``_delta_log``: another one is another table.

    ``checkpoint_time`` is that of the newest checkpoint, or of an earlier one, at the last update.
    """

    table: DeltaTable
    inode: int
    opened_version: int
    checkpoint_time: int | None


class DeltaRsStore:
    """Delta tables at ``place``/``<table>``, a local path that contains a slash or a file URI.

    Not for a place that Spark writes at the same time: on a local file system Delta's Spark writer
    does not detect commits of other processes reliably. Taking turns is safe.
    """

    def __init__(self, place: str) -> None:
        self._place = place.rstrip("/") or place
        self._path = _local_path(place)
        self._handles: dict[str, _Handle] = {}
        self._pinned: dict[str, DeltaTable] = {}

    @property
    def place(self) -> str:
        """The path, for error messages."""
        return self._place

    @property
    def directory(self) -> Path:
        """The directory of the tables."""
        return self._path

    def exists(self, table: StoredTable) -> bool:
        """Return whether a table exists."""
        with self._errors(table):
            return DeltaTable.is_deltatable(str(self._path_of(table)))

    def prepare(self) -> None:
        """Create the directory of the tables."""
        try:
            self._path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TablesError(
                place=self._place,
                reason=f"the directory cannot be created: {error.strerror}",
                remedy="create it, with permission to write for this user",
            ) from None

    @property
    def has_many_transactions(self) -> bool:
        """Whether an append may have several transactions."""
        return True

    def append(self, table: StoredTable, rows: Rows, *transactions: Transaction) -> None:
        """Append rows, one or more, in one commit; the first one creates the table.

        Raises:
            ConcurrentWriterError: another append has committed one of the transactions.
        """
        properties = _properties(transactions)
        with self._errors(table):
            handle = self._open_or_create(table, rows, properties)
            if handle is None:
                return
            if not any(_is_committed(handle, one) for one in transactions):
                try:
                    _write(handle, table, rows, properties)
                    return
                except CommitFailedError:
                    handle = self._reopen(table)
                    if not any(_is_committed(handle, one) for one in transactions):
                        raise
        raise concurrent_write(self._place, table.name)

    def fence(self, table: StoredTable, transactions: Sequence[Transaction]) -> None:
        """Commit transactions without rows, in one commit, unless they are committed.

        Raises:
            ConcurrentWriterError: another append has committed one of them at the same time.
        """
        with self._errors(table):
            handle = self._open(table)
            missing = [one for one in transactions if not _is_committed(handle, one)]
            if missing:
                _write(handle, table, table.no_rows, _properties(missing))

    def version(self, table: StoredTable) -> int:
        """Return the newest version of an existing table."""
        with self._errors(table):
            return self._open(table).version()

    def read(
        self,
        table: StoredTable,
        where: Where = (),
        columns: tuple[str, ...] | None = None,
        *,
        any_of: AnyOf = (),
        version: int | None = None,
    ) -> pa.Table:
        """Return rows of an existing table; ``columns``: None for all; ``version``: the newest."""
        selected = Selected.of(table, columns)
        kinds = [one.type_in(table) for one in selected]
        listed = ", ".join(
            f'"{name}"' if field is None else f"\"{name}\"['{field}']" for name, field in selected
        )
        condition = _sql(where, any_of)
        query = f"SELECT {listed} FROM stored" + (f" WHERE {condition}" if condition else "")
        chunks: list[list[pa.Array]] = [[] for _ in selected]
        with self._errors(table):
            engine = QueryBuilder(READ_SETTINGS).register("stored", self._at(table, version))
            # The engine returns views of strings; not every supported pyarrow can cast those.
            for batch in pa.RecordBatchReader.from_stream(engine.execute(query)):
                for values, kind, converted in zip(batch.columns, kinds, chunks, strict=True):
                    array = Array.from_arrow(values).cast(DataType.from_arrow(kind))
                    converted.append(pa.array(array))
            columns_of = (
                one.wrap(pa.chunked_array(converted, kind))
                for one, kind, converted in zip(selected, kinds, chunks, strict=True)
            )
            return pa.table(dict(zip((one.name for one in selected), columns_of, strict=True)))

    def cluster_ids(self, table: StoredTable) -> list[str]:
        """Return the distinct ``cluster_id`` of an existing table, in any order."""
        with self._errors(table):
            engine = QueryBuilder(READ_SETTINGS).register("stored", self._open(table))
            found = engine.execute(f"SELECT DISTINCT {CLUSTER_ID} FROM stored")
            rows = pa.RecordBatchReader.from_stream(found).read_all()
            return list(rows[CLUSTER_ID].to_pylist())

    def merge(self, rows: Rows) -> None:
        """Bring rows into ``state``, in one commit; the first one creates the table.

        Raises:
            ConcurrentWriterError: another writer changed rows of these clusters at the same time.
        """
        with self._errors(STATE_TABLE):
            handle = self._open_or_create(STATE_TABLE, rows, None)
            if handle is not None:
                # Literals, so that partitions of other clusters are neither read nor in conflict.
                clusters = ", ".join(map(_literal, clusters_of(rows)))
                same_key = f"t.{CLUSTER_ID} IN ({clusters}) AND {_SAME_KEY}"
                source = rows.reader() if isinstance(rows, RowSlices) else rows
                handle.merge(
                    source, same_key, source_alias="s", target_alias="t"
                ).when_matched_update_all(_NEWER).when_not_matched_insert_all().execute()

    def delete(self, table: StoredTable, where: Where, *, any_of: AnyOf = ()) -> None:
        """Delete the rows for which all conditions hold, in one commit or none if there are none.

        Raises:
            ConcurrentWriterError: another writer changed the table during each of several tries.
        """
        with self._errors(table):
            for tries_left in reversed(range(DELETE_TRIES)):
                try:
                    self._open(table).delete(_sql(where, any_of) or None)
                    return
                except CommitFailedError as error:
                    if not tries_left or not _is_conflict(error):
                        raise
                    self._handles.pop(table.name)

    def size(self, table: StoredTable) -> TableSize:
        """Return the size of an existing table, from its commits."""
        with self._errors(table):
            sizes = pa.table(self._open(table).get_add_actions().select(["size_bytes"]))
            byte_count = pc.sum(sizes["size_bytes"]).as_py() or 0
            return TableSize(file_count=sizes.num_rows, byte_count=byte_count)

    def compact(self, table: StoredTable) -> None:
        """Rewrite small files of an existing table as larger ones; its rows stay the same."""
        with self._errors(table):
            self._open(table).optimize.compact(target_size=COMPACT_BYTES)

    def vacuum(self, table: StoredTable) -> None:
        """Delete files that no version of an existing table within ``RETENTION`` has.

        ``RETENTION`` is a property of the table, and delta-rs uses it.
        """
        with self._errors(table):
            self._open(table).vacuum(dry_run=False, full=True)
            for staged in self._path.glob(f"{_staged_prefix(table)}*"):
                shutil.rmtree(staged, ignore_errors=True)  # the table exists: it is not needed

    # --- handles ----------------------------------------------------------------------------------

    def _path_of(self, table: StoredTable) -> Path:
        return self._path / table.name

    def _open(self, table: StoredTable) -> DeltaTable:
        """Return an up-to-date handle of an existing table."""
        log = self._path_of(table) / "_delta_log"
        try:
            inode = log.stat().st_ino
        except FileNotFoundError:
            raise self._missing(table) from None
        kept = self._handles.get(table.name)
        if kept is not None and kept.inode == inode:
            checkpoint = _checkpoint_time(log)
            has_next = (log / f"{kept.table.version() + 1:020}.json").exists()
            if has_next or checkpoint != kept.checkpoint_time:  # which may have deleted the next
                kept.table.update_incremental()
                kept.checkpoint_time = checkpoint
            if kept.table.version() - kept.opened_version < REOPEN_COMMITS:
                return kept.table
        if not self.exists(table):
            raise self._missing(table)
        checkpoint = _checkpoint_time(log)
        opened = DeltaTable(str(self._path_of(table)))
        self._handles[table.name] = _Handle(opened, inode, opened.version(), checkpoint)
        return opened

    def _at(self, table: StoredTable, version: int | None) -> DeltaTable:
        """Return a handle of a version; None: the newest one."""
        if version is None:
            return self._open(table)
        kept = self._pinned.get(table.name)
        if kept is None or kept.version() != version:
            kept = DeltaTable(str(self._path_of(table)), version=version)
            self._pinned[table.name] = kept
        return kept

    def _reopen(self, table: StoredTable) -> DeltaTable:
        self._handles.pop(table.name, None)
        return self._open(table)

    def _open_or_create(
        self, table: StoredTable, rows: Rows, properties: CommitProperties | None
    ) -> DeltaTable | None:
        """Return a handle of the table, or None if it was created, with ``rows``."""
        is_open = table.name in self._handles  # to look for the table lists its log once more
        if not is_open and not self.exists(table) and self._create(table, rows, properties):
            return None
        return self._open(table)

    def _create(self, table: StoredTable, rows: Rows, properties: CommitProperties | None) -> bool:
        """Create a table with its first rows; return False if another writer created it first."""
        self.prepare()
        staged = self._path / f"{_staged_prefix(table)}{uuid.uuid4().hex}"
        configuration = {
            name: value
            for name, value in table.properties.items()
            if not name.startswith(_CHECK_PREFIX)  # delta-rs refuses checks of a new table
        }
        try:
            created = DeltaTable.create(
                staged,
                table.schema,
                partition_by=list(table.partitioned_by),
                configuration=configuration,
            )
            created.alter.add_constraint(dict(table.checks))
            _write(created, table, rows, properties)
            os.rename(staged, self._path_of(table))  # fails if there is a directory with files
        except (DeltaError, OSError):
            if self.exists(table):
                return False
            if self._path_of(table).exists():
                raise self._not_a_table(table) from None
            raise
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        return True

    # --- errors -----------------------------------------------------------------------------------

    @contextmanager
    def _errors(self, table: StoredTable) -> Iterator[None]:
        """Convert errors of delta-rs in the block to ``TablesError``."""
        try:
            yield
        except (DeltaError, pa.ArrowException, OSError, ValueError) as error:
            self._handles.pop(table.name, None)
            if _is_conflict(error):
                raise concurrent_write(self._place, table.name) from None
            raise TablesError(
                place=self._place,
                reason=f"delta-rs failed on table {table.name}: {_first_line(error)}",
                remedy="fix the cause and run again; no commit is partial",
            ) from None

    def _missing(self, table: StoredTable) -> TablesError:
        return TablesError(
            place=self._place,
            reason=f"table {table.name} does not exist",
            remedy="check the path, or write the tables first",
        )

    def _not_a_table(self, table: StoredTable) -> TablesError:
        return TablesError(
            place=self._place,
            reason=f"directory {table.name} exists and is not a Delta table",
            remedy="remove or rename it if it is left over from a write that was interrupted",
        )


def _local_path(place: str) -> Path:
    """Return the absolute path that ``place`` names."""
    uri = urlsplit(place)
    if uri.scheme == "file" and uri.netloc in ("", "localhost"):
        path = unquote(uri.path)
    elif "/" in place and not _URI.match(place):
        path = place
    else:
        raise TablesError(
            place=place,
            reason="this is not a local path, and delta-rs is used for local tables only",
            remedy="use a path that contains a slash, or use Spark for this place",
        )
    if _PERCENT_CODE.search(path):  # it would read another directory than it writes
        raise TablesError(
            place=place,
            reason="delta-rs does not support a path with % and two hexadecimal digits",
            remedy="use another path, or use Spark for this place",
        )
    return Path(os.path.abspath(path))


def _checkpoint_time(log: Path) -> int | None:
    """Return when the newest checkpoint was written, in nanoseconds; None without one."""
    try:
        return (log / "_last_checkpoint").stat().st_mtime_ns
    except FileNotFoundError:
        return None


def _staged_prefix(table: StoredTable) -> str:
    return f".{table.name}-new-"


def _write(
    handle: DeltaTable, table: StoredTable, rows: Rows, properties: CommitProperties | None
) -> None:
    """Append rows in one commit. Files of rows become files of the table, unread."""
    if isinstance(rows, RowSlices) and rows.files and not table.partitioned_by:
        _add_files(handle, table, rows, properties)
        return
    write_deltalake(
        handle,
        rows.reader() if isinstance(rows, RowSlices) else rows,
        mode="append",
        commit_properties=properties,
        post_commithook_properties=_NO_CLEANUP,
    )


def _add_files(
    handle: DeltaTable, table: StoredTable, rows: RowSlices, properties: CommitProperties | None
) -> None:
    """Append rows of files in one commit, and those besides in a file of their own.

    A file that no commit has, as after a crash, is deleted by ``vacuum``.
    """
    directory = Path(_local_path(handle.table_uri))
    actions: list[AddAction | RemoveAction] = []
    for file in rows.files:
        name = f"part-{uuid.uuid4().hex}.parquet"
        try:
            os.link(file, directory / name)
        except OSError:  # on another file system, or one without links
            shutil.copyfile(file, directory / name)
        os.utime(directory / name)  # a vacuum before the commit deletes what is old
        actions.append(_add_action(directory, name, table))
    if rows.rest is not None:
        name = f"part-{uuid.uuid4().hex}.parquet"
        pq.write_table(rows.rest, directory / name)
        actions.append(_add_action(directory, name, table))
    handle.create_write_transaction(
        actions,
        "append",
        rows.schema,
        commit_properties=properties,
        post_commithook_properties=_NO_CLEANUP,
    )


def _add_action(directory: Path, name: str, table: StoredTable) -> AddAction:
    """Return the action of a file; its statistics are those of the columns for file skipping."""
    metadata = pq.read_metadata(directory / name)
    least: dict[str, int | str] = {}
    greatest: dict[str, int | str] = {}
    for at in range(metadata.num_columns):
        column = metadata.schema.column(at).path
        if column in table.skipping:
            parts = [metadata.row_group(row).column(at) for row in range(metadata.num_row_groups)]
            known = [part.statistics for part in parts if part.statistics is not None]
            if len(known) == len(parts) and all(found.has_min_max for found in known):
                least[column] = _statistic(min(found.min for found in known))
                greatest[column] = _statistic(max(found.max for found in known))
    status = (directory / name).stat()
    return AddAction(
        path=name,
        size=status.st_size,
        partition_values={},
        modification_time=int(status.st_mtime * 1_000),
        data_change=True,
        stats=json.dumps(
            {"numRecords": metadata.num_rows, "minValues": least, "maxValues": greatest}
        ),
    )


def _statistic(value: Any) -> int | str:
    """Return a value in Delta's statistics: a time is text, in microseconds."""
    return f"{value:%Y-%m-%dT%H:%M:%S.%fZ}" if isinstance(value, datetime) else value


def _properties(transactions: Sequence[Transaction]) -> CommitProperties:
    return CommitProperties(
        app_transactions=[AppTransaction(one.app_id, one.version) for one in transactions]
    )


def _is_committed(handle: DeltaTable, transaction: Transaction) -> bool:
    version = handle.transaction_version(transaction.app_id)
    return version is not None and version >= transaction.version


def _sql(where: Where, any_of: AnyOf) -> str:
    """Return the conditions in SQL, empty without any."""

    def one(condition: Condition) -> str:
        column, sign, value = condition
        return f'"{column}" {sign} {_literal(value)}'

    return condition_sql(where, any_of, one)


def _literal(value: int | str) -> str:
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


def _is_conflict(error: Exception) -> bool:
    """Return whether a commit failed because of another one.

    ``CommitFailedError`` alone is too wide: it is also raised for a table feature that delta-rs
    lacks and for a commit file that cannot be written.
    """
    return isinstance(error, CommitFailedError) and _CONFLICT.search(_first_line(error)) is not None


def _first_line(error: Exception) -> str:
    words = _ANSI_COLOR.sub("", str(error)).strip()
    return words.partition("\n")[0][:_REASON_MAX].rstrip(".") or type(error).__name__
