"""Tables in memory, for tests and simulations: commits can be lost, interrupted and counted.

Rules of this file:

1. ``MemoryTables`` is the durable content, ``MemoryStore`` a handle, which has no state. Content is
   replaced and never modified, so earlier reads stay the same.
2. A commit is the assignment of a table's new content. ``before_commit`` is called before it and
   may raise (the commit is lost) or change the tables (another writer was faster);
   ``after_commit`` is called after it and may raise (it is durable, and the caller does not know).
   An operation that writes nothing calls neither.
3. CHECK constraints are not evaluated: that is left to the engines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Final, Literal, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from raftlog_state.errors import ConcurrentWriterError, TablesError
from raftlog_state.tables.schema import STATE_TABLE, StoredTable
from raftlog_state.tables.stores.protocol import (
    AnyOf,
    Rows,
    RowSlices,
    Selected,
    TableSize,
    Transaction,
    Where,
    filtered,
    mask_of,
    missing_fields,
)

Operation: TypeAlias = Literal["append", "fence", "merge", "delete", "compact"]
Hook: TypeAlias = Callable[[Operation, str], None]
"""Called with the operation of a commit and the name of its table."""

_KEY: Final = ("cluster_id", "entity", "key")
_ORDER: Final = ("_incarnation", "_visible_offset", "_offset")


def no_hook(operation: Operation, table: str) -> None:
    """Do nothing."""


class Commit(NamedTuple):
    """Durable commit of one table."""

    operation: Operation
    table: str


class Read(NamedTuple):
    """Read of a table, and the rows that it returns."""

    table: StoredTable
    where: Where
    columns: tuple[str, ...] | None
    found: pa.Table


@dataclass(slots=True)
class MemoryTables:
    """Content of the tables of one place, shared by all stores that are opened on it.

    ``commits``: all of them, oldest first; ``transactions``: the version of the last append by
    table and ``app_id``; ``versions``: the contents that readers have pinned, None if a vacuum has
    deleted one. Chunks of a table's columns correspond to files.
    """

    contents: dict[str, pa.Table] = field(default_factory=dict)
    transactions: dict[tuple[str, str], int] = field(default_factory=dict)
    commits: list[Commit] = field(default_factory=list)
    versions: dict[str, list[pa.Table | None]] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)
    _in_one_chunk: dict[str, tuple[pa.Table, pa.Table]] = field(default_factory=dict, repr=False)

    def copy(self) -> MemoryTables:
        """Return other tables with the same content, which no reader has pinned."""
        return MemoryTables(dict(self.contents), dict(self.transactions), list(self.commits))

    def in_one_chunk(self, name: str, content: pa.Table) -> pa.Table:
        """Return the same rows: filters of many chunks with nested columns are slow."""
        kept = self._in_one_chunk.get(name)
        if kept is None or kept[0] is not content:
            kept = self._in_one_chunk[name] = (content, content.combine_chunks())
        return kept[1]


class MemoryStore:
    """``TableStore`` on ``MemoryTables``. ``place`` is used in error messages only."""

    def __init__(
        self,
        tables: MemoryTables,
        place: str = "memory",
        *,
        before_commit: Hook = no_hook,
        after_commit: Hook = no_hook,
        has_many_transactions: bool = True,
    ) -> None:
        self._tables = tables
        self._has_many_transactions = has_many_transactions
        self._place = place
        self._before_commit = before_commit
        self._after_commit = after_commit

    @property
    def place(self) -> str:
        """Name of the tables, for error messages."""
        return self._place

    def exists(self, table: StoredTable) -> bool:
        """Return whether a table exists."""
        return table.name in self._tables.contents

    def missing_fields(self, table: StoredTable) -> list[str]:
        return (
            missing_fields(self._content(table).schema, table.schema) if self.exists(table) else []
        )

    def prepare(self) -> None:
        """Do nothing: memory needs no preparation."""

    @property
    def has_many_transactions(self) -> bool:
        """Whether an append may have several transactions."""
        return self._has_many_transactions

    def append(self, table: StoredTable, rows: Rows, *transactions: Transaction) -> None:
        """Append rows unless a transaction, or a later one of its ``app_id``, is committed."""
        rows = rows.table() if isinstance(rows, RowSlices) else rows
        self._check_rows(table, rows)
        assert len(transactions) == 1 or self._has_many_transactions
        if not any(self._is_committed(table, one) for one in transactions):
            self._before_commit("append", table.name)
            if self._commit_append(table, rows, transactions):
                self._after_commit("append", table.name)
                return
        listed = ", ".join(f"{one.app_id} {one.version}" for one in transactions)
        raise ConcurrentWriterError(
            place=self._place,
            reason=f"another append committed a transaction of {listed} to table {table.name}",
            remedy="run one writer at a time; open the tables again to continue at their end",
        )

    def fence(self, table: StoredTable, transactions: Sequence[Transaction]) -> None:
        """Commit transactions without rows unless these, or later ones, are committed."""
        content = self._content(table)
        missing = [one for one in transactions if not self._is_committed(table, one)]
        if not missing:
            return
        self._before_commit("fence", table.name)
        with self._tables.lock:
            if any(self._is_committed(table, one) for one in missing):
                raise self._conflict("fence", table)
            for one in missing:
                self._tables.transactions[table.name, one.app_id] = one.version
            self._replace("fence", table, self._tables.contents.get(table.name, content))
        self._after_commit("fence", table.name)

    def version(self, table: StoredTable) -> int:
        """Return the newest version of an existing table."""
        content = self._content(table)
        with self._tables.lock:
            kept = self._tables.versions.setdefault(table.name, [])
            if not kept or kept[-1] is not content:
                kept.append(content)
            return len(kept) - 1

    def read(
        self,
        table: StoredTable,
        where: Where = (),
        columns: tuple[str, ...] | None = None,
        *,
        any_of: AnyOf = (),
        version: int | None = None,
    ) -> pa.Table:
        """Return rows of an existing table."""
        content = self._content(table)
        if version is not None:
            pinned = self._tables.versions[table.name][version]
            if pinned is None:
                raise TablesError(
                    place=self._place,
                    reason=f"version {version} of table {table.name} was deleted by a vacuum",
                    remedy="read a later version",
                )
            content = pinned
        content = self._tables.in_one_chunk(table.name, content)
        found = pa.table({one.name: one.column_of(content) for one in Selected.of(table, columns)})
        if where or any_of:
            found = filtered(found, mask_of(content, *where, any_of=any_of))
        self.has_read(Read(table, where, columns, found))
        return found

    def has_read(self, read: Read) -> None:
        """Do nothing; a store that counts reads, or fails one, overrides it."""

    def cluster_ids(self, table: StoredTable, known: str | None = None) -> list[str]:
        """Return the distinct ``cluster_id`` of an existing table."""
        return list(pc.unique(self._content(table)["cluster_id"]).to_pylist())

    def merge(self, rows: Rows) -> None:
        """Replace rows of ``state`` by later ones of the same key, and insert those of new keys."""
        rows = rows.table() if isinstance(rows, RowSlices) else rows
        self._check_rows(STATE_TABLE, rows)
        clusters = pc.unique(rows["cluster_id"])
        old = self._tables.contents.get(STATE_TABLE.name)
        self._before_commit("merge", STATE_TABLE.name)
        with self._tables.lock:
            content = self._tables.contents.get(STATE_TABLE.name)
            if not _is_same_of(clusters, old, content):
                raise self._conflict("merge", STATE_TABLE)
            self._replace("merge", STATE_TABLE, self._merged(content, rows))
        self._after_commit("merge", STATE_TABLE.name)

    def delete(self, table: StoredTable, where: Where, *, any_of: AnyOf = ()) -> None:
        """Delete the rows for which all conditions hold."""
        old = self._content(table)
        kept = old.slice(0, 0)
        if where or any_of:
            holds = mask_of(old, *where, any_of=any_of)
            kept = filtered(old, pc.invert(pc.fill_null(holds, fill_value=False)))
        if kept.num_rows < old.num_rows:
            self._commit_unless_changed("delete", table, old, kept)

    def size(self, table: StoredTable) -> TableSize:
        """Return the number of a table's chunks, and their bytes."""
        content = self._content(table)
        return TableSize(file_count=content.column(0).num_chunks, byte_count=content.nbytes)

    def compact(self, table: StoredTable) -> None:
        """Join the chunks of a table."""
        old = self._content(table)
        if old.column(0).num_chunks > 1:
            self._commit_unless_changed("compact", table, old, old.combine_chunks())

    def checkpoint(self, table: StoredTable) -> None:
        """Check that the table exists: there are no commits to read."""
        self._content(table)

    def vacuum(self, table: StoredTable) -> None:
        """Delete the versions before the newest, as a vacuum without retention does."""
        content = self._content(table)
        with self._tables.lock:
            kept = self._tables.versions.get(table.name, [])
            kept[:] = [one if one is content else None for one in kept]

    def _content(self, table: StoredTable) -> pa.Table:
        content = self._tables.contents.get(table.name)
        if content is None:
            raise TablesError(
                place=self._place,
                reason=f"table {table.name} does not exist",
                remedy="append to it first, or check the location",
            )
        return content

    def _is_committed(self, table: StoredTable, transaction: Transaction) -> bool:
        last = self._tables.transactions.get((table.name, transaction.app_id))
        return last is not None and transaction.version <= last

    def _commit_append(
        self, table: StoredTable, rows: pa.Table, transactions: Sequence[Transaction]
    ) -> bool:
        """Commit rows and return True, or return False if a transaction is committed already."""
        with self._tables.lock:
            if any(self._is_committed(table, one) for one in transactions):
                return False
            old = self._tables.contents.get(table.name)
            new = rows if old is None else pa.concat_tables([old, rows])
            for one in transactions:
                self._tables.transactions[table.name, one.app_id] = one.version
            self._replace("append", table, new)
            return True

    def _commit_unless_changed(
        self, operation: Operation, table: StoredTable, old: pa.Table | None, new: pa.Table
    ) -> None:
        """Commit ``new``, which was computed from ``old``, if that is still the content."""
        self._before_commit(operation, table.name)
        with self._tables.lock:
            if self._tables.contents.get(table.name) is not old:
                raise self._conflict(operation, table)
            self._replace(operation, table, new)
        self._after_commit(operation, table.name)

    def _replace(self, operation: Operation, table: StoredTable, new: pa.Table) -> None:
        """Commit. The caller has the lock."""
        self._tables.contents[table.name] = new
        self._tables.commits.append(Commit(operation, table.name))

    def _merged(self, old: pa.Table | None, rows: pa.Table) -> pa.Table:
        """Return the rows of ``old`` that stay, and those of ``rows`` that replace the others."""
        offered = _orders_by_key(rows)
        if len(offered) != rows.num_rows:
            raise self._invalid_rows(STATE_TABLE, "rows have a key more than once")
        if old is None:
            return rows
        orders = _orders_by_key(old)
        replaced = {key for key, order in offered.items() if key in orders and order > orders[key]}
        taken = replaced | (offered.keys() - orders.keys())
        return pa.concat_tables(
            [
                filtered(old, _mask(key not in replaced for key in orders)),
                filtered(rows, _mask(key in taken for key in offered)),
            ]
        )

    def _check_rows(self, table: StoredTable, rows: pa.Table) -> None:
        """Raise ``TablesError`` unless there are rows, and with exactly the table's columns."""
        if not rows.schema.equals(table.schema):
            raise self._invalid_rows(table, "rows do not have the columns of the table")
        if rows.num_rows == 0:
            raise self._invalid_rows(table, "there are no rows")

    def _conflict(self, operation: Operation, table: StoredTable) -> ConcurrentWriterError:
        return ConcurrentWriterError(
            place=self._place,
            reason=f"another writer changed table {table.name} during this {operation}",
            remedy="run one writer at a time; nothing was written, so run this one again",
        )

    def _invalid_rows(self, table: StoredTable, reason: str) -> TablesError:
        return TablesError(
            place=self._place,
            reason=f"cannot write to table {table.name}: {reason}",
            remedy="nothing was written; this is a bug of the writer, report it",
        )


class AllReads(MemoryStore):
    """Store that keeps its reads of rows; others raise an error."""

    def __init__(self, tables: MemoryTables) -> None:
        super().__init__(tables)
        self.reads: list[Read] = []

    def has_read(self, read: Read) -> None:
        """Keep a read."""
        self.reads.append(read)

    def cluster_ids(self, table: StoredTable, known: str | None = None) -> list[str]:
        """Raise an error unless no other cluster is to be looked for: that reads the table."""
        assert known is not None, f"all rows of {table.name} are read"
        return super().cluster_ids(table, known)


def _is_same_of(clusters: pa.Array, old: pa.Table | None, new: pa.Table | None) -> bool:
    """Return whether the rows of clusters are the same."""
    if old is None or new is None or old is new:
        return old is new
    before, now = (
        rows.filter(pc.is_in(rows["cluster_id"], value_set=clusters)) for rows in (old, new)
    )
    return bool(before.equals(now))


def _mask(flags: Iterable[bool]) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(flags, pa.bool_())])


def _orders_by_key(rows: pa.Table) -> dict[tuple[str, ...], tuple[int, int, int]]:
    """Return what decides which row of a key stays, for each key, in the order of the rows."""
    keys = zip(*(rows[name].to_pylist() for name in _KEY), strict=True)
    orders = zip(*(rows[name].to_pylist() for name in _ORDER), strict=True)
    return dict(zip(keys, orders, strict=True))
