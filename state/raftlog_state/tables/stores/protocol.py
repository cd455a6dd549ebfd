"""``TableStore``: what the writer needs of a Delta engine.

Rules of this file:

1. Every operation is one Delta commit or none. After an exception, the commit may or may not exist;
   the writer drops its state and reads the tables again.
2. Rows and results are Arrow tables in the schemas of ``schema.STORED_TABLES``. The protocol
   contains no engine's types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import IO, Any, Final, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from raftlog_state.errors import ConcurrentWriterError, TablesError
from raftlog_state.tables.schema import CLUSTER_ID, ROW, StoredTable, of_entities

pc: Any = pyarrow.compute  # pyarrow creates its functions at import, unseen by type checkers

Condition: TypeAlias = (
    tuple[str, Literal["=", "!=", "<", "<=", ">", ">="], int | str]
    | tuple[str, Literal["not in"], tuple[str, ...]]
)
"""A column, a comparison and a value other than null, as in pyarrow's ``filters``.

Or a column and one or more values that it does not have.
"""
Where: TypeAlias = tuple[Condition, ...]
"""Conditions that must all hold. None of them holds for a null."""
AnyOf: TypeAlias = tuple[Where, ...]
"""Alternatives, of which at least one must hold; without any there is no restriction."""


STAGED_AGE_MAX_S: Final = 24 * 60 * 60
"""Age after which no process is still committing staged data."""
FILE_ROWS_READ: Final = 20_000
"""Rows of a file in memory at a time."""
RUNS_MAX: Final = 5
"""Runs of adjacent rows that are joined: joining more takes as long as filtering nested columns."""
RUN_ROWS_MAX: Final = 20_000
"""Rows in runs that are joined: with more rows, copying their values takes most of the time."""

_COMPARISONS: Final = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def mask_of(rows: pa.Table, *where: Condition, any_of: AnyOf = ()) -> pa.ChunkedArray:
    """Return for which rows one or more conditions hold; null where a value is null."""
    masks = [_comparison(rows, condition) for condition in where]
    if any_of:
        masks.append(reduce(pc.or_kleene, (mask_of(rows, *each) for each in any_of)))
    return reduce(pc.and_kleene, masks)


def rows_where(rows: pa.Table, *where: Condition, any_of: AnyOf = ()) -> pa.Table:
    """Return the rows for which one or more conditions hold, without copying them if all do."""
    return filtered(rows, mask_of(rows, *where, any_of=any_of))


def filtered(rows: pa.Table, mask: pa.ChunkedArray) -> pa.Table:
    """Return the rows whose mask is true. If all or none are, nested columns are not copied."""
    count = sum(chunk.true_count for chunk in mask.chunks)
    if count == rows.num_rows:
        return rows
    if count == 0:
        return rows.slice(0, 0)
    joined = joined_runs(rows, pc.indices_nonzero(mask)) if count <= RUN_ROWS_MAX else None
    return rows.filter(mask) if joined is None else joined


def joined_runs(rows: pa.Table, positions: pa.Array) -> pa.Table | None:
    """Return copies of the rows at one or more increasing positions if these form a few runs.

    pyarrow takes microseconds for each field of a nested column to filter it or to take its rows,
    and a fifth of that to join slices. Even a single run is copied: delta-rs ends the process at a
    slice of nested columns.
    """
    if len(positions) > RUN_ROWS_MAX:
        return None
    at = positions.to_numpy().astype(np.int64)
    starts = np.append(0, np.flatnonzero(at[1:] - at[:-1] != 1) + 1)
    if len(starts) + rows.column(0).num_chunks - 1 > RUNS_MAX:
        return None
    lengths = np.append(starts[1:], len(at)) - starts
    runs = [rows.slice(*run) for run in zip(at[starts].tolist(), lengths.tolist(), strict=True)]
    return pa.concat_tables([*runs, rows.slice(0, 0)]).combine_chunks()


def _comparison(rows: pa.Table, condition: Condition) -> pa.ChunkedArray:
    """Return for which rows a condition holds.

    The value gets the column's type: inferring the type of a Python value takes pyarrow ten times
    as long.
    """
    name, sign, value = condition
    values = rows[name]
    if isinstance(value, tuple):
        is_in = pc.is_in(values, value_set=pa.array(value, values.type))
        return pc.and_(pc.is_valid(values), pc.invert(is_in))
    return _COMPARISONS[sign](values, pa.scalar(value, values.type))


def in_schema(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with a schema's columns and fields of structs, null where the rows lack them."""
    columns = (_in_type(rows[field.name], field.type) for field in schema)
    return pa.table(list(columns), schema=schema)


def schema_of_rows(table: StoredTable, rows: pa.Table) -> pa.Schema:
    """Return a table's schema, whose structs of rows have only the fields that are not null."""
    names = {
        field.name
        for name, kind in table.columns.items()
        if kind == ROW
        for chunk in rows[name].chunks
        for field, values in zip(ROW, chunk.flatten(), strict=True)
        if values.null_count < len(values)
    }
    # Parquet does not support structs without fields.
    return of_entities(table.schema, names or {ROW[0].name})


def missing_fields(found: Iterable[pa.Field], declared: Iterable[pa.Field]) -> list[str]:
    """Return the declared columns, and fields of structs, that are not among those found."""
    known = {field.name: field.type for field in found}
    missing = []
    for field in declared:
        kind = known.get(field.name)
        if kind is None:
            missing.append(field.name)
        elif pa.types.is_struct(field.type) and pa.types.is_struct(kind):
            missing += [f"{field.name}.{name}" for name in missing_fields(kind, field.type)]
    return missing


def _in_type(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type == kind or not pa.types.is_struct(kind):
        return column.cast(kind)
    chunks = [_struct_of(chunk, kind) for chunk in column.chunks]
    return pa.chunked_array(chunks, kind)


def _struct_of(structs: pa.StructArray, kind: pa.StructType) -> pa.StructArray:
    fields = [
        pa.nulls(len(structs), field.type)
        if structs.type.get_field_index(field.name) < 0
        else structs.field(field.name).cast(field.type)
        for field in kind
    ]
    return pa.StructArray.from_arrays(fields, fields=list(kind), mask=structs.is_null())


class Selected(NamedTuple):
    """Column of a read: a stored one or, with ``field``, a struct reduced to this field.

    The struct is null where the field is null. Engines need not read its other fields.
    """

    name: str
    field: str | None

    @classmethod
    def of(cls, table: StoredTable, columns: tuple[str, ...] | None) -> tuple[Selected, ...]:
        """Return the columns of a read: ``row.topic`` is the field ``topic`` of ``row``."""
        parts = (name.partition(".") for name in (columns or tuple(table.columns)))
        return tuple(cls(name, field or None) for name, _, field in parts)

    def type_in(self, table: StoredTable) -> pa.DataType:
        """Return the type of the column, or of the field."""
        kind = table.columns[self.name]
        return kind if self.field is None else kind.field(self.field).type

    def column_of(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return the column of rows with all columns."""
        values = rows[self.name]
        return values if self.field is None else self.wrap(pc.struct_field(values, [self.field]))

    def wrap(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the column of stored values, or of those of the field."""
        if self.field is None:
            return values
        structs = pa.struct({self.field: values.type})
        chunks = [
            pa.StructArray.from_arrays([chunk], fields=list(structs), mask=chunk.is_null())
            for chunk in values.chunks
        ]
        return pa.chunked_array(chunks, structs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """Delta's application transaction of an append: ``txnAppId`` and ``txnVersion``.

    If several appends have the same ``app_id`` and ``version``, the first one commits. The others,
    and appends with a lower version, write nothing.
    """

    app_id: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSlices:
    """Rows of clusters that are written in one commit, one slice at a time.

    Each call of ``slices`` returns them from the first one on. If there are ``files``, the rows are
    those of these Parquet files, followed by ``rest``: a store may add the files to the table, or
    let its engine read them. Files have the table's columns; fields that their structs lack are
    null.
    """

    cluster_ids: tuple[str, ...]
    schema: pa.Schema
    slices: Callable[[], Iterator[pa.Table]]
    files: tuple[str, ...] = ()
    rest: pa.Table | None = None

    @classmethod
    def of_files(
        cls, cluster_id: str, table: StoredTable, files: Sequence[str], rest: pa.Table | None = None
    ) -> RowSlices:
        """Return the rows of a cluster's files for a table, followed by ``rest``."""

        def slices() -> Iterator[pa.Table]:
            for file in files:
                yield from slices_of_file(file, table.schema)
            if rest is not None:
                yield rest

        return cls(
            cluster_ids=(cluster_id,),
            schema=table.schema,
            slices=slices,
            files=tuple(files),
            rest=rest,
        )

    def reader(self) -> pa.RecordBatchReader:
        """Return a reader that builds each slice when it is read."""
        batches = (batch for rows in self.slices() for batch in rows.to_batches())
        return pa.RecordBatchReader.from_batches(self.schema, batches)

    def table(self) -> pa.Table:
        """Return all rows in memory."""
        return pa.concat_tables(self.slices())


def slices_of_file(file: str | IO[bytes], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of a Parquet file, whose structs may lack fields of the schema."""
    with pq.ParquetFile(file) as reader:
        for batch in reader.iter_batches(FILE_ROWS_READ):
            yield in_schema(pa.Table.from_batches([batch]), schema)


Rows: TypeAlias = pa.Table | RowSlices
"""Rows to be written, all of them in memory or in slices."""


def clusters_of(rows: Rows) -> list[str]:
    """Return the clusters of rows to be written, each once."""
    if isinstance(rows, RowSlices):
        return list(rows.cluster_ids)
    return list(pc.unique(rows[CLUSTER_ID]).to_pylist())


def columns_of_entity(table: StoredTable, entity: str) -> tuple[str, ...]:
    """Return the columns to read for an entity's rows; of structs of rows, only its field."""
    return tuple(
        f"{name}.{entity}" if kind == ROW else name for name, kind in table.columns.items()
    )


def concurrent_write(place: str, table_name: str) -> ConcurrentWriterError:
    """Return the error of a write during which another writer changed the table."""
    return ConcurrentWriterError(
        place=place,
        reason=f"another writer changed table {table_name} at the same time",
        remedy="run one writer at a time; its write is complete, so run this one again",
    )


def condition_sql(where: Where, any_of: AnyOf, one: Callable[[Condition], str]) -> str:
    """Return conditions in SQL, empty without any; ``one`` converts a single condition."""
    parts = [one(condition) for condition in where]
    if any_of:
        parts.append(_any_sql([" AND ".join(map(one, each)) for each in any_of]))
    return " AND ".join(parts)


def _any_sql(parts: list[str]) -> str:
    """Return alternatives as a balanced tree: parsers limit the depth of expressions."""
    if len(parts) == 1:
        return f"({parts[0]})"
    half = len(parts) // 2
    return f"({_any_sql(parts[:half])} OR {_any_sql(parts[half:])})"


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

    def missing_fields(self, table: StoredTable) -> list[str]:
        """Return what the schema of a table lacks; nothing if the table does not exist."""
        ...

    def cluster_ids(self, table: StoredTable, known: str | None = None) -> list[str]:
        """Return the distinct ``cluster_id`` of an existing table, in any order.

        ``known`` is one of them; files that contain no other one are not read.
        """
        ...

    def prepare(self) -> None:
        """Create what the tables need, before the first append."""
        ...

    @property
    def has_many_transactions(self) -> bool:
        """Whether an append may have several transactions."""
        ...

    def append(self, table: StoredTable, rows: Rows, *transactions: Transaction) -> None:
        """Append rows, one or more, in one commit; the first append creates the table.

        The rows may be of any clusters. There is one transaction, or more if the store supports
        many.

        Raises:
            ConcurrentWriterError: another append has committed one of the transactions, perhaps an
                earlier one of this writer.
        """
        ...

    def fence(self, table: StoredTable, transactions: Sequence[Transaction]) -> None:
        """Commit transactions without rows, so that no append to an existing table commits them.

        A transaction is ignored if it, or a later one with its ``app_id``, is already committed.
        This takes one commit or several, which do not make other appends to the table fail.

        Raises:
            ConcurrentWriterError: another writer changed the table at the same time.
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
        any_of: AnyOf = (),
        version: int | None = None,
    ) -> pa.Table:
        """Return rows of an existing table, in any order.

        ``columns``: as in ``Selected.of``, None for all; ``version``: None for the newest one.
        """
        ...

    def merge(self, rows: Rows) -> None:
        """Merge rows into ``state``, in one commit; the first merge creates the table.

        ``rows`` has at least one row, and each (``cluster_id``, ``entity``, ``key``) once. A row
        replaces the row with its key if its (``_incarnation``, ``_visible_offset``, ``_offset``) is
        greater, and is inserted if there is no such row.

        Raises:
            ConcurrentWriterError: another writer changed rows of these clusters at the same time.
        """
        ...

    def delete(self, table: StoredTable, where: Where, *, any_of: AnyOf = ()) -> None:
        """Delete the rows of an existing table for which all conditions hold, in one commit."""
        ...

    def size(self, table: StoredTable) -> TableSize:
        """Return the size of an existing table. Reads no rows."""
        ...

    def compact(self, table: StoredTable) -> None:
        """Rewrite small files of an existing table as larger ones; its rows stay the same.

        Which ones: see ``compaction``.
        """
        ...

    def checkpoint(self, table: StoredTable) -> None:
        """Write a checkpoint of an existing table if the newest one is old; its rows stay the same.

        Does nothing if the engine writes checkpoints with its commits.
        """
        ...

    def vacuum(self, table: StoredTable) -> None:
        """Delete files that belong to no version of an existing table within ``RETENTION``."""
        ...


def read_version(
    store: TableStore,
    table: StoredTable,
    version: int | None,
    where: Where = (),
    columns: tuple[str, ...] | None = None,
    *,
    any_of: AnyOf = (),
) -> pa.Table:
    """Return rows of a table's version that was the newest; None: of the newest version.

    Raises:
        ConcurrentWriterError: there is a later version, and a vacuum may have deleted this one.
        TablesError: the engine failed.
    """
    try:
        return store.read(table, where, columns, any_of=any_of, version=version)
    except TablesError as error:
        if version is None or store.version(table) == version:
            raise
        raise ConcurrentWriterError(
            place=store.place,
            reason=error.reason,
            remedy=f"read the tables again; if that fails too, {error.remedy}",
        ) from error
