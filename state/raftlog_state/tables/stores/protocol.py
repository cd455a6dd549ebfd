"""``TableStore``: what the writer needs of a Delta engine.

Rules of this file:

1. Every operation is one Delta commit or none. After an exception the commit may exist or not; the
   writer drops its state and reads the tables again.
2. Rows and results are Arrow tables in the schemas of ``schema.STORED_TABLES``. No type of an
   engine is part of this protocol.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

import pyarrow as pa

from raftlog_state.errors import ConcurrentWriterError
from raftlog_state.tables.schema import StoredTable

Condition: TypeAlias = tuple[str, Literal["=", "<", "<=", ">", ">="], int | str]
"""A column, a comparison and a value that is not null, as in pyarrow's ``filters``."""
Where: TypeAlias = tuple[Condition, ...]
"""Conditions that all hold. None of them holds for a null."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """Delta's application transaction of an append: ``txnAppId`` and ``txnVersion``.

    The first of several appends with one ``app_id`` and ``version`` commits; the others, and those
    with a lower version, write nothing.
    """

    app_id: str
    version: int


def concurrent_write(place: str, table_name: str) -> ConcurrentWriterError:
    """Return the error of a write whose table another writer changed meanwhile."""
    return ConcurrentWriterError(
        place=place,
        reason=f"another writer changed table {table_name} at the same time",
        remedy="run one writer at a time; its write is complete, so run this one again",
    )


COMPACT_BYTES: Final = 64 << 20
"""Compacted files are at least half as large, if there are enough rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSize:
    """Files of a table's newest version, and the sum of their sizes."""

    file_count: int
    byte_count: int


class TableStore(Protocol):
    """Stored tables of one place. Used by one thread at a time; several may be open on a place.

    Errors of the engine are raised as ``TablesError``.
    """

    @property
    def place(self) -> str:
        """The path or schema, for error messages."""
        ...

    def exists(self, table: StoredTable) -> bool:
        """Return whether a table exists."""
        ...

    def cluster_ids(self, table: StoredTable) -> list[str]:
        """Return the distinct ``cluster_id`` of an existing table, in any order."""
        ...

    def prepare(self) -> None:
        """Create what the tables need, before the first append."""
        ...

    def append(self, table: StoredTable, rows: pa.Table, transaction: Transaction) -> None:
        """Append rows, one or more, in one commit; the first one creates the table.

        The rows are of one cluster. Both ``log`` and ``changes`` end, for each cluster, with the
        greatest ``offset`` of the rows appended last.

        Raises:
            ConcurrentWriterError: another writer has committed this transaction, and the cluster
                does not end with these rows. (An append of the same offsets has the same content.)
        """
        ...

    def version(self, table: StoredTable) -> int:
        """Return the newest version of an existing table, whose rows never change."""
        ...

    def read(
        self,
        table: StoredTable,
        where: Where = (),
        columns: tuple[str, ...] | None = None,
        *,
        version: int | None = None,
    ) -> pa.Table:
        """Return rows of an existing table, in any order.

        ``columns``: None for all; ``version``: None for the newest one.
        """
        ...

    def merge(self, rows: pa.Table) -> None:
        """Bring rows into ``state``, in one commit; the first one creates the table.

        ``rows`` has one row or more, and each (``cluster_id``, ``entity``, ``key``) once. A row
        replaces that with its key if its (``_incarnation``, ``_visible_offset``, ``_offset``) is
        greater, and is inserted if there is no such row.

        Raises:
            ConcurrentWriterError: another writer changed rows of these clusters at the same time.
        """
        ...

    def delete(self, table: StoredTable, where: Where) -> None:
        """Delete the rows of an existing table for which all conditions hold, in one commit."""
        ...

    def size(self, table: StoredTable) -> TableSize:
        """Return the size of an existing table. Reads no rows."""
        ...

    def compact(self, table: StoredTable) -> None:
        """Rewrite small files of an existing table as larger ones; its rows stay the same."""
        ...

    def vacuum(self, table: StoredTable) -> None:
        """Delete files that no version of an existing table within ``RETENTION`` has."""
        ...
