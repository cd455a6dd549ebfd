"""Table functions in SQL, ``raftlog_state`` and ``raftlog_changes``, and their registration.

::

    pyspark_raftlog.register(spark)
    spark.sql("SELECT * FROM raftlog_state('/logs/node-1', 'topics', at => '2026-11-21 08:04')")
    spark.sql("SELECT * FROM raftlog_changes('/logs/node-1', 'brokers', from => '-2h')")

Arguments are constants: ``analyze`` parses them on the driver, and returns the columns of the
table. One task replays the log.

Spark collects the rows of a call of a Python table function before it sends them, so a call returns
at most ``TABLE_FUNCTION_ROWS_MAX`` rows. Its Arrow table functions have no such limit, but no
``analyze`` either, so their columns cannot depend on the table (SPARK-53286).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute
from pyspark.sql.functions import udtf
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType, TimestampNTZType
from pyspark.sql.udtf import AnalyzeArgument, AnalyzeResult

from raftlog.client import LogReader
from raftlog.client.location import PATH
from raftlog.client.offset_spec import OffsetSpec
from raftlog.client.remote.nodes import BOOTSTRAP_SERVERS
from raftlog.errors import OptionError
from raftlog.limits import TABLE_FUNCTION_ROWS_MAX
from raftlog.printable import compact_json, did_you_mean
from raftlog_state.image import row_json
from raftlog_state.image.column_types import BIGINT, INT, STRING, TIMESTAMP
from raftlog_state.image.delta import Op
from raftlog_state.image.entity_names import RowFilter, row_filters, split_name
from raftlog_state.image.rows import Row
from raftlog_state.log_changes import LoggedChange, changes_between, offset_spec
from raftlog_state.log_state import read_state
from raftlog_state.tables.comments import column_comments
from raftlog_state.tables.convert import columns_of, microseconds
from raftlog_state.tables.schema import BY_ENTITY, CLUSTER_ID, METADATA_TABLES

from .errors import ResultTooLargeError
from .options import CONNECTION_OPTIONS, OPTIONS, RaftlogOptions, has_location, unknown_option
from .reader import open_source, redactor_of
from .schema import refuse_secrets
from .source import RaftlogDataSource, absolute_paths

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from raftlog_state.tables.schema import TypedTable

pc: Any = pyarrow.compute  # pyarrow creates its functions at import, unseen by type checkers

FUNCTION_OPTIONS: Final = {
    name.lower(): name
    for name in (
        *(name for name in CONNECTION_OPTIONS if name != PATH),
        *("redact", "redactKey", "redactSecret", "values", "maxDecompressedBytes"),
    )
}
"""Options of the source that the functions have, by their names in lower case."""

ROWS_AT_ONCE: Final = 10_000
"""Changes that are converted at the same time."""
_FIRST_TIME, _LAST_TIME = (
    pa.scalar(datetime(year, 12, 31, tzinfo=UTC), TIMESTAMP).cast(BIGINT) for year in (1, 9998)
)

CHANGE_TYPES: Final[Mapping[Op, tuple[str, ...]]] = {
    Op.READ: ("insert",),
    Op.CREATE: ("insert",),
    Op.UPDATE: ("update_preimage", "update_postimage"),
    Op.DELETE: ("delete",),
}
"""Delta's ``_change_type`` of the rows of a change."""
_TABLES: Final = {table.name: table for table in METADATA_TABLES}
_OF_ROWS_BEFORE: Final = frozenset({"update_preimage", "delete"})

CHANGE_COLUMNS: Final[Mapping[str, tuple[pa.DataType, str]]] = {
    "_change_type": (STRING, "insert, update_preimage, update_postimage or delete"),
    "_commit_version": (BIGINT, "Offset at which the change took effect"),
    "_commit_timestamp": (TIMESTAMP, "Timestamp of the record"),
    "_offset": (BIGINT, "Offset of the record, before the end of its transaction"),
    "_leader_epoch": (INT, "Leader epoch of the quorum in which the record was written"),
    "_record_type": (STRING, "Type of the record, such as PARTITION_CHANGE_RECORD"),
}
"""Columns of ``raftlog_changes`` after those of the table: types and comments."""
ANY_COLUMNS: Final[Mapping[str, tuple[pa.DataType, str]]] = {
    "entity": (STRING, "Kind of the row, such as topic"),
    "name": (STRING, "Name of the row, such as topic/orders"),
    "row": (STRING, "The row as JSON"),
}
"""Columns of ``raftlog_changes`` without a table, before ``CHANGE_COLUMNS``."""


def register(spark: SparkSession) -> None:
    """Register the data source and the table functions in a session.

    Spark finds the data source of an installed wheel without this call. If the calling thread has
    no
    active session, the session becomes its active one: without an active session, Spark finds no
    Python data source when the thread writes, and fails with DATA_SOURCE_NOT_FOUND. Every thread of
    the driver that writes must therefore call this once.
    """
    spark.dataSource.register(RaftlogDataSource)
    for kind in (RaftlogState, RaftlogChanges):
        function: Any = udtf(kind, useArrow=False)
        spark.udtf.register(kind.NAME, function)
    spark.createDataFrame([], "activated int")


@dataclass
class _FunctionCall(AnalyzeResult):
    """Arguments of a call. Spark passes them to the tasks."""

    options: RaftlogOptions | None = None
    table: str | None = None
    filters: tuple[RowFilter, ...] = ()
    first: OffsetSpec | None = None
    last: OffsetSpec | None = None

    def open(self) -> LogReader:
        assert self.options is not None, "analyze has set them"
        return open_source(self.options)


class RaftlogState:
    """Table function: the rows of a table in the state of a metadata log.

    ``raftlog_state(path, table, at => ..., options => map(...))`` returns the columns of
    ``raftlog_state.read_state(path, at=...).table(table)``. ``at`` is the end offset, exclusive: an
    offset, a timestamp, or the text of a time, an age or a name, as for ``startingOffset``; by
    default it is the committed end. ``options`` are the data source's options for the location and
    for redaction. With ``bootstrap.servers`` the path is omitted.
    """

    NAME = "raftlog_state"

    def __init__(self, call: _FunctionCall) -> None:
        self._call = call

    @staticmethod
    def analyze(
        path: AnalyzeArgument | None = None,
        table: AnalyzeArgument | None = None,
        at: AnalyzeArgument | None = None,
        options: AnalyzeArgument | None = None,
    ) -> _FunctionCall:
        """Return the columns of the table. Raises ``OptionError``."""
        parsed = _options(path, options)
        name = _text("table", table)
        if name is None:
            reason = f"is missing; tables are {', '.join(_TABLES)}"
            raise OptionError(option="table", reason=reason)
        typed = _typed_table(name)
        comments = column_comments(typed)
        columns = {CLUSTER_ID: STRING, **typed.columns}
        return _FunctionCall(
            schema=_schema({one: (kind, comments[one]) for one, kind in columns.items()}),
            options=parsed,
            table=name,
            last=_position("at", at),
        )

    def eval(self, *_arguments: object, **_named: object) -> Iterator[tuple[Any, ...]]:
        """Yield the rows in the order of their keys."""
        call = self._call
        assert call.options is not None
        assert call.table is not None
        is_history = call.table in ("epochs", "transactions")
        redactor = redactor_of(call.options)
        with call.open() as log:
            state = read_state(log, at=call.last, from_oldest=is_history, redactor=redactor)
        batches = state.table(call.table).to_batches(max_chunksize=ROWS_AT_ONCE)
        yield from _limited(_tuples(batches), self.NAME, log.path)


class RaftlogChanges:
    """Table function: the changes of a metadata log, in the vocabulary of Delta's change feed.

    ``raftlog_changes(path, table, from => ..., to => ..., name => ..., options => map(...))``
    returns the columns of the table; then ``_change_type``, ``_commit_version`` and
    ``_commit_timestamp``, as Delta's ``table_changes`` does; then offset, epoch and type of the
    record. Without a table, it returns the changes of all tables, with the row as JSON. ``from`` is
    inclusive and ``to`` exclusive. Both have the forms of ``at`` of ``raftlog_state``; by default
    all changes are returned. ``name`` selects an entity as in ``raftlog log``: ``topic/orders``,
    ``broker/3``. With a table, it selects the rows of the table that belong to that entity, such as
    the configs of a topic. If the log begins with a snapshot, its rows are inserts.
    """

    NAME = "raftlog_changes"

    def __init__(self, call: _FunctionCall) -> None:
        self._call = call

    @staticmethod
    def analyze(
        path: AnalyzeArgument | None = None,
        table: AnalyzeArgument | None = None,
        name: AnalyzeArgument | None = None,
        options: AnalyzeArgument | None = None,
        **between: AnalyzeArgument,
    ) -> _FunctionCall:
        """Return the columns of the table. Raises ``OptionError``."""
        parsed = _options(path, options)
        for unknown in sorted(between.keys() - {"from", "to"}):
            reason = "is unknown; arguments are path, table, name, from, to and options"
            raise OptionError(option=unknown, reason=reason)
        chosen, columns = _text("table", table), ANY_COLUMNS
        typed = None if chosen is None else _typed_table(chosen)
        if typed is not None:
            comments = column_comments(typed)
            columns = {one: (kind, comments[one]) for one, kind in typed.columns.items()}
        return _FunctionCall(
            schema=_schema({**columns, **CHANGE_COLUMNS}),
            options=parsed,
            table=chosen,
            filters=_filters(typed, _text("name", name)),
            first=_position("from", between.get("from")),
            last=_position("to", between.get("to")),
        )

    def eval(self, *_arguments: object, **_named: object) -> Iterator[tuple[Any, ...]]:
        """Yield the rows in the order in which the changes took effect."""
        call = self._call
        assert call.options is not None
        typed = None if call.table is None else _TABLES[call.table]
        redactor = redactor_of(call.options)
        with call.open() as log:
            changes = changes_between(
                log, call.filters, call.first, call.last, ("from", "to"), redactor
            )
            yield from _limited(_tuples(_change_batches(changes, typed)), self.NAME, log.path)


# --- arguments ------------------------------------------------------------------------------------


def _typed_table(name: str) -> TypedTable:
    """Return a table by its name. Raises ``OptionError``."""
    found = _TABLES.get(name)
    if found is None:
        hint = did_you_mean(name, _TABLES) or f"tables are {', '.join(_TABLES)}"
        raise OptionError(option="table", reason=f"unknown table {name!r}; {hint}")
    return found


def _options(path: AnalyzeArgument | None, options: AnalyzeArgument | None) -> RaftlogOptions:
    """Return the location and the redaction of a call."""
    given = {} if options is None else _constant("options", options)
    texts = (*given.keys(), *given.values()) if isinstance(given, Mapping) else (None,)
    if not all(isinstance(one, str) for one in texts):
        raise OptionError(option="options", reason="must be a map of names and values, both text")
    for name in given:
        if name.lower() not in FUNCTION_OPTIONS:
            raise _refused(name)
    refuse_secrets(given, "a statement, whose text Spark logs")
    location = _text("path", path)
    found = dict(given) if location is None else {**given, PATH: location}
    if not has_location(found):
        reason = f"is missing: give a path, or options => map('{BOOTSTRAP_SERVERS}', 'host:port')"
        raise OptionError(option=PATH, reason=reason)
    return RaftlogOptions.parse(found).with_paths(absolute_paths)


def _refused(name: str) -> OptionError:
    if name.lower() in map(str.lower, OPTIONS):
        reason = "is for load(): table functions have options of the location and of redaction"
        return OptionError(option=name, reason=reason)
    return unknown_option(name, FUNCTION_OPTIONS.values())


def _text(name: str, argument: AnalyzeArgument | None) -> str | None:
    value = None if argument is None else _constant(name, argument)
    if value is not None and not isinstance(value, str):
        raise OptionError(option=name, reason="must be a text")
    return value


def _position(name: str, argument: AnalyzeArgument | None) -> OffsetSpec | None:
    if argument is None:
        return None
    value = _constant(name, argument)
    if isinstance(argument.dataType, TimestampNTZType):
        reason = (
            "is a TIMESTAMP_NTZ, which has no time zone; use TIMESTAMP_LTZ'...', which is in that "
            "of the session, or a text, which is in UTC"
        )
        raise OptionError(option=name, reason=reason)
    return offset_spec(name, value)


def _constant(name: str, argument: AnalyzeArgument) -> Any:
    if not argument.isConstantExpression:
        reason = "must be a constant; an age such as '-15m' is a time before the present"
        raise OptionError(option=name, reason=reason)
    if argument.value is None:
        reason = "is NULL, as the result of try_to_timestamp may be; leave it out for its default"
        raise OptionError(option=name, reason=reason)
    return argument.value


def _filters(table: TypedTable | None, name: str | None) -> tuple[RowFilter, ...]:
    """Return filters of the rows of a table, or of all tables, that a name selects."""
    if table is not None and name is None:
        return (RowFilter(table.entity),)
    entity = (None, None) if name is None else split_name(name)
    found = row_filters(*entity, partitions=True, text_option="name")
    if table is None:
        return found
    kept = tuple(one for one in found if one.entity is table.entity)
    if not kept:
        tables = " or ".join(BY_ENTITY[one.entity].name for one in found)
        reason = f"{name} is in table {tables}, not in {table.name}; select one of these tables"
        raise OptionError(option="name", reason=reason)
    return kept


def _schema(columns: Mapping[str, tuple[pa.DataType, str]]) -> StructType:
    return StructType(
        [
            StructField(name, from_arrow_type(kind), metadata={"comment": comment})
            for name, (kind, comment) in columns.items()
        ]
    )


# --- rows -----------------------------------------------------------------------------------------


def _change_batches(
    changes: Iterable[LoggedChange], table: TypedTable | None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the changes; ``table``: None for the changes of all tables."""
    changes = iter(changes)
    while found := list(islice(changes, ROWS_AT_ONCE)):
        rows = [(logged, kind) for logged in found for kind in CHANGE_TYPES[logged.change.op]]
        images = [_image(logged, kind) for logged, kind in rows]
        if table is None:
            columns = _any_columns([logged for logged, _ in rows], images)
        else:
            columns = columns_of(table.entity, images)
        columns |= {
            "_change_type": [kind for _, kind in rows],
            "_commit_version": [logged.visible_offset for logged, _ in rows],
            "_commit_timestamp": [microseconds(logged.timestamp_ms) for logged, _ in rows],
            "_offset": [logged.offset for logged, _ in rows],
            "_leader_epoch": [logged.leader_epoch for logged, _ in rows],
            "_record_type": [logged.record_type for logged, _ in rows],
        }
        arrays = [
            pa.array(values, CHANGE_COLUMNS[name][0]) if isinstance(values, list) else values
            for name, values in columns.items()
        ]
        yield pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _image(logged: LoggedChange, kind: str) -> Row:
    change = logged.change
    row = change.before if kind in _OF_ROWS_BEFORE else change.after
    assert row is not None, "a change has the rows of its type"
    return row


def _any_columns(changes: Iterable[LoggedChange], images: Iterable[Row]) -> dict[str, Any]:
    images = list(images)
    texts = [compact_json(row_json(row)) for row in images]
    return {
        "entity": pa.array([str(row.ENTITY) for row in images], STRING),
        "name": pa.array([logged.name for logged in changes], STRING),
        "row": pa.array(texts, STRING),
    }


def _tuples(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    """Yield rows as Spark takes them: maps as dictionaries, times that Python has."""
    for batch in batches:
        yield from zip(*map(_values, batch.columns), strict=True)


def _values(column: pa.Array) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        micros = pc.max_element_wise(column.cast(BIGINT), _FIRST_TIME, skip_nulls=False)
        column = pc.min_element_wise(micros, _LAST_TIME, skip_nulls=False).cast(TIMESTAMP)
    values: list[Any] = column.to_pylist()
    if pa.types.is_map(column.type):
        return [None if pairs is None else dict(pairs) for pairs in values]
    return values


def _limited(
    rows: Iterable[tuple[Any, ...]], function: str, path: str
) -> Iterator[tuple[Any, ...]]:
    for count, row in enumerate(rows):
        if count == TABLE_FUNCTION_ROWS_MAX:
            raise ResultTooLargeError(
                path=path, function=function, row_count_max=TABLE_FUNCTION_ROWS_MAX
            )
        yield row


assert set(ANY_COLUMNS).isdisjoint(CHANGE_COLUMNS)
