"""``DeltaRsStore``: Delta tables in a local directory, by delta-rs, without Spark or a JVM.

Rules of this file:

1. Only this module imports ``deltalake``, and it is imported only to open such a store.
2. A table appears with its checks and its first rows: it is written to a hidden directory next to
   its final path, which is then renamed. ``vacuum`` deletes a directory that a crash left.
3. ``delta_appends`` commits appends. delta-rs writes merges, compactions, deletes, and appends to a
   table that another engine has altered, to a copy, and ``staged_rewrites`` commits them. A
   transaction that the table already has is not skipped (as Spark does): it is compared before a
   commit, and again after a conflict.
4. A commit of delta-rs takes time in proportion to the files of its handle and to the entries of
   Delta's log. The handle is therefore kept, reopened from time to time, and updated before a read.
   An append needs an update only after a change of the table's metadata. It reads the log entries
   of other stores' commits, each once, for their transactions.
5. Only the first line of an error text of delta-rs is shown: rows and a Rust stack trace follow it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from raftlog_state.errors import ConcurrentWriterError, TablesError
from raftlog_state.tables.comments import STORED_COMMENTS, commented_schema
from raftlog_state.tables.schema import CHECK_PREFIX, CLUSTER_ID, STATE_TABLE, StoredTable
from raftlog_state.tables.staging import sync

from .compaction import COMPACT_BYTES, rewritten_bytes
from .delta_appends import (
    append_actions,
    commit,
    delete_staged,
    entry,
    find_torn,
    is_plain,
    names_lost_checkpoint,
    newest_checkpoint,
    read_actions,
    sync_checkpoint,
    sync_entries,
    sync_tree,
)
from .protocol import (
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
    missing_fields,
)
from .staged_rewrites import (
    Conflict,
    any_conflicts,
    conflicts_are_known,
    copy_log,
    delete_conflicts,
    delete_old_copies,
    link_files,
    publish,
    rewrite_conflicts,
)

if sys.platform == "linux":
    # Its jemalloc returns freed memory when a thread next uses the same arena. Threads of merges
    # and compactions end, so without a background thread memory would grow for thousands of
    # batches.
    os.environ.setdefault("_RJEM_MALLOC_CONF", "background_thread:true,dirty_decay_ms:1000")

try:
    from arro3.core import Array, DataType
    from deltalake import (
        CommitProperties,
        DeltaTable,
        PostCommitHookProperties,
        QueryBuilder,
        Schema,
        write_deltalake,
    )
    from deltalake import Transaction as AppTransaction
    from deltalake.exceptions import CommitFailedError, DeltaError
except ImportError:
    raise TablesError(
        place="a local path",
        reason="the engine delta-rs needs the package deltalake, which is not installed",
        remedy='install it with: pip install "raftlog[delta]"',
    ) from None

REOPEN_COMMITS: Final = 100
"""Commits after which a table's handle is reopened, which then reads a checkpoint."""
CHECKPOINT_COMMITS: Final = 100
"""Commits between checkpoints, unless the table has a property for that."""
READ_SETTINGS: Final = {"datafusion.execution.parquet.coerce_int96": "us"}
"""Spark writes INT96 by default. As nanoseconds, times before 1677 or after 2262 wrap around."""
TRIES: Final = 5
"""Attempts of a delete, and of an append to a table that another engine has altered."""

_NO_CLEANUP: Final = PostCommitHookProperties(cleanup_expired_logs=False)
"""No cleanup of Delta's log after a commit: it would list all entries of the log.

With 10,000 entries, this takes three times as long as the rest of an append. Deletes and
compactions clean the log.
"""

_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_PERCENT_CODE: Final = re.compile(r"%[0-9A-Fa-f]{2}")
_CONFLICT: Final = re.compile(
    r"concurrent transaction|changed since last commit|existing table version"
    r"|failed to commit transaction: \d+$",
    re.IGNORECASE,
)
_GAP: Final = "Expected contiguous commit files, but found gap"
_ANSI_COLOR: Final = re.compile(r"\x1b\[[0-9;]*m")
_REASON_MAX: Final = 500

T = TypeVar("T")

_SAME_KEY: Final = f"t.{CLUSTER_ID} = s.{CLUSTER_ID} AND t.entity = s.entity AND t.key = s.key"
_NEWER: Final = (
    "s._incarnation > t._incarnation OR s._incarnation = t._incarnation AND ("
    "s._visible_offset > t._visible_offset OR s._visible_offset = t._visible_offset AND "
    "s._offset > t._offset)"
)


class _OpenDirectory:
    """Directory that stays open, so that no other one gets its inode, even if it is deleted."""

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, descriptor)
        self.inode = os.fstat(descriptor).st_ino


class _Pinned(NamedTuple):
    """A version of a table. ``log`` is its ``_delta_log``, as for ``_Handle``."""

    log: _OpenDirectory
    table: DeltaTable


@dataclass(slots=True)
class _Handle:
    """An open table. ``log`` is its ``_delta_log``; another inode there means another table.

    ``end_version`` is the last version that is known; the table has the version of its last update.
    ``checkpoint_time`` is the time of the newest checkpoint then, or of an earlier one. Versions up
    to ``durable_version`` are known to be on disk. ``transactions`` contains, by ``app_id``, those
    of the versions in between, and others that were looked up.
    """

    table: DeltaTable
    log: _OpenDirectory
    opened_version: int
    checkpoint_time: int | None
    durable_version: int
    end_version: int = 0
    is_plain: bool = False
    transactions: dict[str, int | None] = field(default_factory=dict)

    @property
    def inode(self) -> int:
        """Inode of the table's log."""
        return self.log.inode

    def updated(self, table: StoredTable) -> None:
        """Record an update of the table."""
        self.end_version = self.table.version()
        schema_json = self.table.schema().to_json()
        self.is_plain = is_plain(
            *(table, self.table.protocol(), self.table.metadata(), schema_json),
            _declared(table.schema),
        )
        self.transactions.clear()

    def read_entries(self, log: Path, checkpoint_time: int | None) -> bool:
        """Read the entries of later versions; return whether the newest version is then known.

        It is unknown after a change of more than rows, or if entries before a checkpoint are
        deleted.
        """
        is_same = checkpoint_time == self.checkpoint_time
        at_least = self.end_version if is_same else newest_checkpoint(log)
        while True:
            try:
                actions = read_actions(log, self.end_version + 1)
            except FileNotFoundError:
                break
            except (OSError, ValueError):  # delta-rs determines the cause
                return False
            if any("metaData" in action or "protocol" in action for action in actions):
                return False
            for action in actions:
                if "txn" in action:
                    self.transactions[action["txn"]["appId"]] = action["txn"]["version"]
            self.end_version += 1
        if self.end_version < at_least:
            return False
        self.checkpoint_time = checkpoint_time
        return True

    def committed(self, transactions: Sequence[Transaction]) -> list[int | None]:
        """Return the last version of each transaction's ``app_id``; None without one."""
        for one in transactions:
            if one.app_id not in self.transactions:
                version = self.table.transaction_version(one.app_id)
                self.transactions[one.app_id] = version
        return [self.transactions[one.app_id] for one in transactions]

    def is_committed(self, transaction: Transaction) -> bool:
        """Return whether a transaction, or a later one with its ``app_id``, is committed."""
        [version] = self.committed([transaction])
        return version is not None and version >= transaction.version

    def make_durable(self, log: Path) -> None:
        """Sync the commits of other stores before a commit that would be durable without them."""
        if self.durable_version < self.end_version:
            sync_entries(log, range(self.durable_version + 1, self.end_version + 1))
            self.durable_version = self.end_version

    def appended(self, transactions: Sequence[Transaction]) -> None:
        """Record an append of this store."""
        self.end_version += 1
        self.durable_version = self.end_version
        self.transactions.update((one.app_id, one.version) for one in transactions)


class DeltaRsStore:
    """Delta tables at ``place``/``<table>``, a local path that contains a slash or a file URI.

    Do not use it for a place that Spark writes at the same time: on a local file system, Delta's
    Spark writer does not reliably detect commits of other processes. Taking turns is safe.
    """

    def __init__(self, place: str, *, writes_checkpoints: bool = True) -> None:
        """``writes_checkpoints``: with appends; False if another store calls ``checkpoint``."""
        self._writes_checkpoints = writes_checkpoints
        self._place = place.rstrip("/") or place
        self._path = _local_path(place)
        self._handles: dict[str, _Handle] = {}
        self._pinned: dict[str, _Pinned] = {}

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

    def missing_fields(self, table: StoredTable) -> list[str]:
        """Return what the schema of a table lacks; nothing if the table does not exist."""
        if not self.exists(table):
            return []
        with self._errors(table):
            handle = self._newest(table)
            if handle.is_plain:
                return []
            return missing_fields(pa.schema(handle.table.schema().to_arrow()), table.schema)

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
        """Append rows, one or more, in one commit; the first append creates the table.

        Raises:
            ConcurrentWriterError: another append has committed one of the transactions.
        """
        with self._errors(table):
            if not self._created(table, rows, transactions):
                self._append(table, rows, transactions)

    def fence(self, table: StoredTable, transactions: Sequence[Transaction]) -> None:
        """Commit transactions without rows, in one commit, unless they are already committed.

        Raises:
            ConcurrentWriterError: another append has committed one of them at the same time.
        """
        with self._errors(table):
            handle = self._newest(table)
            missing = [one for one in transactions if not handle.is_committed(one)]
            if missing:
                self._append(table, None, missing)

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
            # The engine returns string views, which some supported versions of pyarrow cannot cast.
            for batch in pa.RecordBatchReader.from_stream(engine.execute(query)):
                for values, kind, converted in zip(batch.columns, kinds, chunks, strict=True):
                    array = Array.from_arrow(values).cast(DataType.from_arrow(kind))
                    converted.append(pa.array(array))
            columns_of = (
                one.wrap(pa.chunked_array(converted, kind))
                for one, kind, converted in zip(selected, kinds, chunks, strict=True)
            )
            return pa.table(dict(zip((one.name for one in selected), columns_of, strict=True)))

    def cluster_ids(self, table: StoredTable, known: str | None = None) -> list[str]:
        """Return the distinct ``cluster_id`` of an existing table, in any order."""
        query = f"SELECT DISTINCT {CLUSTER_ID} FROM stored"
        if known is not None:  # the engine skips files by their statistics
            query += f" WHERE {CLUSTER_ID} != {_literal(known)}"
        with self._errors(table):
            engine = QueryBuilder(READ_SETTINGS).register("stored", self._open(table))
            rows = pa.RecordBatchReader.from_stream(engine.execute(query)).read_all()
            return [*rows[CLUSTER_ID].to_pylist(), *([] if known is None else [known])]

    def merge(self, rows: Rows) -> None:
        """Merge rows into ``state``, in one commit; the first merge creates the table.

        Raises:
            ConcurrentWriterError: another writer changed rows of these clusters at the same time.
        """
        with self._errors(STATE_TABLE):
            if not self._created(STATE_TABLE, rows, ()):
                # Literals, so that partitions of other clusters are neither read nor in conflict.
                clusters = ", ".join(map(_literal, clusters_of(rows)))
                same_key = f"t.{CLUSTER_ID} IN ({clusters}) AND {_SAME_KEY}"
                source = rows.reader() if isinstance(rows, RowSlices) else rows
                with self._copied(STATE_TABLE, rewrite_conflicts) as copy:
                    copy.merge(
                        source, same_key, source_alias="s", target_alias="t"
                    ).when_matched_update_all(_NEWER).when_not_matched_insert_all().execute()

    def delete(self, table: StoredTable, where: Where, *, any_of: AnyOf = ()) -> None:
        """Delete the rows for which all conditions hold, in one commit; without such rows, in none.

        Raises:
            ConcurrentWriterError: another writer changed the table during every try.
        """
        with self._errors(table):
            for tries_left in reversed(range(TRIES)):
                try:
                    with self._copied(table, delete_conflicts(where, any_of)) as copy:
                        copy.delete(_sql(where, any_of) or None)
                    return
                except ConcurrentWriterError:
                    if not tries_left:
                        raise

    def size(self, table: StoredTable) -> TableSize:
        """Return the size of an existing table, from its commits."""
        with self._errors(table):
            sizes = pa.table(self._open(table).get_add_actions().select(["size_bytes"]))
            byte_count = pc.sum(sizes["size_bytes"]).as_py() or 0
            return TableSize(file_count=sizes.num_rows, byte_count=byte_count)

    def compact(self, table: StoredTable) -> None:
        """Rewrite small files of an existing table as larger ones; its rows stay the same."""
        with self._errors(table):
            small_bytes = rewritten_bytes(self._file_sizes(table).values())
            if small_bytes is not None:
                with self._copied(table, rewrite_conflicts) as copy:
                    copy.optimize.compact(target_size=min(small_bytes + 1, COMPACT_BYTES))
            self._open(table).cleanup_metadata()

    def _file_sizes(self, table: StoredTable) -> dict[str, list[int]]:
        """Return the sizes of the files of each partition."""
        files = pa.table(self._open(table).get_add_actions().select(["path", "size_bytes"]))
        found: dict[str, list[int]] = {}
        for path, size in zip(*(column.to_pylist() for column in files.columns), strict=True):
            found.setdefault(os.path.dirname(path), []).append(size)
        return found

    def checkpoint(self, table: StoredTable) -> None:
        """Write a checkpoint of an existing table if the newest one is as old as its interval."""
        with self._errors(table):
            opened, log = self._open(table), self._log_of(table)
            if opened.version() - newest_checkpoint(log) >= _checkpoint_interval(opened):
                opened.create_checkpoint()
                sync_checkpoint(log, opened.version())

    def vacuum(self, table: StoredTable) -> None:
        """Delete files that belong to no version of an existing table within ``RETENTION``.

        ``RETENTION`` is a property of the table, and delta-rs uses it.
        """
        with self._errors(table):
            directory = self._path_of(table)
            for path in self._open(table).vacuum(dry_run=True, full=True):
                (directory / path).unlink(missing_ok=True)
            delete_staged(self._log_of(table))
            delete_old_copies(self._path.glob(f"{_copy_prefix(table)}*"))
            for staged in self._path.glob(f"{_staged_prefix(table)}*"):
                shutil.rmtree(staged, ignore_errors=True)  # not needed, because the table exists

    # --- handles ----------------------------------------------------------------------------------

    def _path_of(self, table: StoredTable) -> Path:
        return self._path / table.name

    def _log_of(self, table: StoredTable) -> Path:
        return self._path_of(table) / "_delta_log"

    def _open(self, table: StoredTable) -> DeltaTable:
        """Return an up-to-date handle of an existing table."""
        handle = self._newest(table)
        if handle.table.version() < handle.end_version:
            _listed(handle.table.update_incremental)
            handle.updated(table)
        return handle.table

    def _newest(self, table: StoredTable) -> _Handle:
        """Return the handle of an existing table, whose ``end_version`` is now the newest."""
        log = self._log_of(table)
        try:
            inode = log.stat().st_ino
        except FileNotFoundError:
            raise self._missing(table) from None
        checkpoint = _checkpoint_time(log)
        kept = self._handles.get(table.name)
        if kept is not None and kept.inode == inode:
            if not kept.read_entries(log, checkpoint):
                _listed(kept.table.update_incremental)
                kept.checkpoint_time = checkpoint
                kept.updated(table)
            if kept.table.version() - kept.opened_version < REOPEN_COMMITS:
                return kept
        if not self.exists(table):
            raise self._missing(table)
        directory, checkpoint = _OpenDirectory(log), _checkpoint_time(log)
        opened = _listed(lambda: DeltaTable(str(self._path_of(table))))
        version = opened.version()
        found = _Handle(opened, directory, version, checkpoint, durable_version=version - 1)
        found.updated(table)
        self._handles[table.name] = found
        return found

    @contextmanager
    def _copied(
        self, table: StoredTable, conflicts: Conflict, *, reads_files: bool = True
    ) -> Iterator[DeltaTable]:
        """Yield a handle of a copy; commit to the table what the block commits to the copy.

        Raises:
            ConcurrentWriterError: another commit conflicts; nothing was committed.
        """
        handle, directory = self._newest(table), self._path_of(table)
        handle.make_durable(self._log_of(table))
        copy = self._path / f"{_copy_prefix(table)}{uuid.uuid4().hex}"
        try:
            copy_log(directory, copy, newest_checkpoint(self._log_of(table)))
            opened = DeltaTable(str(copy))
            version = opened.version()
            protocol = opened.protocol()
            if reads_files:
                paths = pa.table(opened.get_add_actions().select(["path"]))["path"]
                has_vectors = "deletionVectors" in (protocol.reader_features or ())
                link_files(directory, copy, paths.to_pylist(), with_vectors=has_vectors)
            yield opened
            conflicts = conflicts if conflicts_are_known(protocol) else any_conflicts
            committed = publish(directory, copy, version, handle.inode, conflicts)
        finally:
            shutil.rmtree(copy, ignore_errors=True)
        if committed is None:
            raise concurrent_write(self._place, table.name)
        if committed > version:
            self._check_is_part(table, committed)
            self._write_checkpoint_if_due(table, self._newest(table))

    def _at(self, table: StoredTable, version: int | None) -> DeltaTable:
        """Return a handle of a version; None: the newest one."""
        if version is None:
            return self._open(table)
        log, kept = self._log_of(table), self._pinned.get(table.name)
        is_same = kept is not None and kept.log.inode == log.stat().st_ino
        if kept is None or not is_same or kept.table.version() != version:
            directory = _OpenDirectory(log)
            opened = _listed(lambda: DeltaTable(str(self._path_of(table)), version=version))
            kept = self._pinned[table.name] = _Pinned(directory, opened)
        return kept.table

    # --- appends ----------------------------------------------------------------------------------

    def _append(
        self, table: StoredTable, rows: Rows | None, transactions: Sequence[Transaction]
    ) -> None:
        """Append rows, or transactions alone, to an existing table."""
        handle, log = self._newest(table), self._log_of(table)
        if any(map(handle.is_committed, transactions)):
            raise concurrent_write(self._place, table.name)
        known = handle.committed(transactions)
        if not handle.is_plain or table.partitioned_by:
            self._append_on_copy(table, rows, transactions, known)
            return
        actions = append_actions(log.parent, table, rows, transactions)
        handle.make_durable(log)
        inode, end_version = handle.inode, handle.end_version - 1
        while not commit(log, handle.end_version + 1, actions, inode):
            if handle.end_version == end_version:
                raise self._not_read(table, end_version + 1)
            end_version = handle.end_version
            handle = self._newest(table)
            is_same = handle.inode == inode
            if not is_same or not handle.is_plain or handle.committed(transactions) != known:
                raise concurrent_write(self._place, table.name)
            handle.make_durable(log)
        if _checkpoint_time(log) != handle.checkpoint_time:
            self._check_is_part(table, handle.end_version + 1)
        handle.appended(transactions)
        self._write_checkpoint_if_due(table, handle)

    def _append_on_copy(
        self,
        table: StoredTable,
        rows: Rows | None,
        transactions: Sequence[Transaction],
        known: list[int | None],
    ) -> None:
        """Append to a table with features that ``delta_appends`` does not support."""
        for tries_left in reversed(range(TRIES)):
            try:
                with self._copied(table, any_conflicts, reads_files=False) as copy:
                    if [copy.transaction_version(one.app_id) for one in transactions] != known:
                        raise concurrent_write(self._place, table.name)
                    _write(copy, table, rows, transactions)
                return
            except ConcurrentWriterError:
                if not tries_left or self._newest(table).committed(transactions) != known:
                    raise

    def _check_is_part(self, table: StoredTable, version: int) -> None:
        """Raise ``ConcurrentWriterError`` if a committed version may be another process's.

        If this process was suspended for longer than the retention, others may have committed the
        version and deleted the entries before their checkpoint. This process's entry is then not
        read. They also delete the entry of the version before.
        """
        log = self._log_of(table)
        if newest_checkpoint(log) >= version and not entry(log, version - 1).exists():
            self._handles.pop(table.name)
            raise concurrent_write(self._place, table.name)

    def _write_checkpoint_if_due(self, table: StoredTable, handle: _Handle) -> None:
        """Write a checkpoint at the versions at which delta-rs does so after its own commits."""
        interval = _checkpoint_interval(handle.table)
        if self._writes_checkpoints and (handle.end_version + 1) % interval == 0:
            self._open(table).create_checkpoint()
            sync_checkpoint(self._log_of(table), handle.end_version)

    def _created(self, table: StoredTable, rows: Rows, transactions: Sequence[Transaction]) -> bool:
        """Create a table with its first rows if it does not exist; return whether it did not."""
        is_open = table.name in self._handles  # looking for the table lists its log once more
        return not is_open and not self.exists(table) and self._create(table, rows, transactions)

    def _create(self, table: StoredTable, rows: Rows, transactions: Sequence[Transaction]) -> bool:
        """Create a table with its first rows; return False if another writer created it first."""
        self.prepare()
        staged = self._path / f"{_staged_prefix(table)}{uuid.uuid4().hex}"
        configuration = {
            name: value
            for name, value in table.properties.items()
            if not name.startswith(CHECK_PREFIX)  # delta-rs rejects checks of a new table
        }
        try:
            created = DeltaTable.create(
                staged,
                Schema.from_arrow(commented_schema(table.name)),
                description=STORED_COMMENTS[table.name],
                partition_by=list(table.partitioned_by),
                configuration=configuration,
            )
            created.alter.add_constraint({name: one.sql for name, one in table.checks.items()})
            if table.partitioned_by:
                _write(created, table, rows, transactions)
            else:
                actions = append_actions(staged, table, rows, transactions)
                commit(staged / "_delta_log", created.version() + 1, actions)
            sync_tree(staged)
            os.rename(staged, self._path_of(table))  # fails if there is a directory with files
            sync(self._path)
            sync(self._path.parent)
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
            if isinstance(error, DeltaError) and (torn := find_torn(self._log_of(table))):
                raise self._torn(table, torn) from None
            if isinstance(error, DeltaError) and names_lost_checkpoint(self._log_of(table)):
                raise self._lost_checkpoint(table) from None
            failed = f"delta-rs failed on table {table.name}: {_first_line(error)}"
            if isinstance(error, OSError) and error.strerror:
                failed = f"table {table.name} cannot be used: {error.strerror}"
            raise TablesError(
                place=self._place,
                reason=failed,
                remedy="fix the cause and run again; no commit is partial",
            ) from None

    def _missing(self, table: StoredTable) -> TablesError:
        return TablesError(
            place=self._place,
            reason=f"table {table.name} does not exist",
            remedy="check the path, or write the tables first",
        )

    def _torn(self, table: StoredTable, torn: Path) -> TablesError:
        return TablesError(
            place=self._place,
            reason=f"the last entry of table {table.name} is incomplete, as after a loss of power: "
            f"{torn.name} in its _delta_log",
            remedy="delete this file: its write never returned and is repeated",
        )

    def _lost_checkpoint(self, table: StoredTable) -> TablesError:
        return TablesError(
            place=self._place,
            reason=f"_last_checkpoint in the _delta_log of table {table.name} names a checkpoint "
            "that does not exist, as in a copy of a table that is being written",
            remedy="delete this file: the newest checkpoint is then found by its name",
        )

    def _not_read(self, table: StoredTable, version: int) -> TablesError:
        return TablesError(
            place=self._place,
            reason=f"{entry(self._log_of(table), version).name} in the _delta_log of table "
            f"{table.name} exists, but delta-rs does not read it as a version",
            remedy="remove it if it is not a file of Delta",
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


@cache
def _declared(schema: pa.Schema) -> Any:
    """Return a schema in Delta's JSON, decoded."""
    return json.loads(Schema.from_arrow(schema).to_json())


def _checkpoint_interval(opened: DeltaTable) -> int:
    """Return the commits from one checkpoint to the next; an invalid property has no effect."""
    configured = opened.metadata().configuration.get("delta.checkpointInterval") or ""
    valid = configured.isascii() and configured.isdecimal() and int(configured)
    return valid or CHECKPOINT_COMMITS


def _checkpoint_time(log: Path) -> int | None:
    """Return when the newest checkpoint was written, in nanoseconds; None without one."""
    try:
        return (log / "_last_checkpoint").stat().st_mtime_ns
    except FileNotFoundError:
        return None


def _staged_prefix(table: StoredTable) -> str:
    return f".{table.name}-new-"


def _copy_prefix(table: StoredTable) -> str:
    return f".{table.name}-copy-"


def _write(
    handle: DeltaTable, table: StoredTable, rows: Rows | None, transactions: Sequence[Transaction]
) -> None:
    """Append rows in one commit of delta-rs."""
    source = rows.reader() if isinstance(rows, RowSlices) else rows
    committed = [AppTransaction(one.app_id, one.version) for one in transactions]
    write_deltalake(
        handle,
        table.no_rows if source is None else source,
        mode="append",
        commit_properties=CommitProperties(app_transactions=committed),
        post_commithook_properties=_NO_CLEANUP,
    )


def _sql(where: Where, any_of: AnyOf) -> str:
    """Return the conditions in SQL, empty without any."""

    def one(condition: Condition) -> str:
        column, sign, value = condition
        if isinstance(value, tuple):
            return f'"{column}" NOT IN ({", ".join(map(_literal, value))})'
        return f'"{column}" {sign} {_literal(value)}'

    return condition_sql(where, any_of, one)


def _literal(value: int | str) -> str:
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


def _listed(call: Callable[[], T]) -> T:
    """Return the result of a call that lists Delta's log; repeat it once if the list has a gap.

    A directory listing may contain an entry that is created meanwhile and lack the one before it.
    """
    try:
        return call()
    except DeltaError as error:
        if _GAP not in str(error):
            raise
        return call()


def _is_conflict(error: Exception) -> bool:
    """Return whether a commit failed because of another one.

    ``CommitFailedError`` alone is too broad: it is also raised for a table feature that delta-rs
    lacks, and for a commit file that cannot be written.
    """
    return isinstance(error, CommitFailedError) and _CONFLICT.search(_first_line(error)) is not None


def _first_line(error: Exception) -> str:
    words = _ANSI_COLOR.sub("", str(error)).strip()
    return words.partition("\n")[0][:_REASON_MAX].rstrip(".") or type(error).__name__
