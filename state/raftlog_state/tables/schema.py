"""The tables: their names, keys, columns and checks, declared once.

Rules of this file:

1. A typed table's columns derive from its row's fields (``raftlog_state.image.rows``), in their
   order, names after their codes; five columns with the record that wrote the row follow. Times
   are UTC TIMESTAMP, integers INT or BIGINT, never narrower.
2. Every table can be read and written by any Delta engine: no column mapping, no deletion vectors,
   no generated columns, no identity; checks are plain comparisons.
3. Columns are nullable for Delta; what must be there is a CHECK.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from raftlog_state.image.row_schema import Kind, Parts, Special, row_schema
from raftlog_state.image.rows import ROW_TYPES, Entity, Row, Voter, table_of
from raftlog_state.records.declare import Array, Scalar

RETENTION: Final = "interval 30 days"
"""How long old versions of a table can be read, and how long its files are kept for that."""

BOOLEAN: Final = BooleanType()
INT: Final = IntegerType()
BIGINT: Final = LongType()
DOUBLE: Final = DoubleType()
STRING: Final = StringType()
BINARY: Final = BinaryType()
TIMESTAMP: Final = TimestampType()
STRINGS: Final = ArrayType(STRING)


def struct(columns: Mapping[str, DataType]) -> StructType:
    """A Spark struct of nullable fields."""
    return StructType([StructField(name, kind) for name, kind in columns.items()])


_SCALARS: Final[Mapping[Scalar | Special, DataType]] = {
    Scalar.BOOL: BOOLEAN,
    Scalar.INT8: INT,
    Scalar.INT16: INT,
    Scalar.UINT16: INT,
    Scalar.INT32: INT,
    Scalar.INT64: BIGINT,
    Scalar.FLOAT64: DOUBLE,
    Scalar.UUID: STRING,
    Scalar.STRING: STRING,
    Scalar.BYTES: BINARY,
    Special.TIMESTAMP_MS: TIMESTAMP,
    Special.TEXT_PAIRS: MapType(STRING, STRING),
}


def column_type(kind: Kind) -> DataType:
    """The Spark type of a row's field."""
    if isinstance(kind, Array):
        assert isinstance(kind.element, Scalar), "an array of structs is declared with its parts"
        return ArrayType(column_type(kind.element))
    if isinstance(kind, Parts):
        of = part_type(kind.part)
        if not kind.by_name:
            return ArrayType(of)
        return MapType(of.fields[0].dataType, StructType(of.fields[1:]))
    return STRING if isinstance(kind, type) else _SCALARS[kind]


def part_type(part: type) -> StructType:
    """The Spark type of a part of a row."""
    return struct({entry.column: column_type(entry.kind) for entry in row_schema(part)})


def row_columns(kind: type[Row]) -> dict[str, DataType]:
    """The columns of a row's fields, the name of a code after it."""
    columns: dict[str, DataType] = {}
    for entry in row_schema(kind):
        columns[entry.column] = column_type(entry.kind)
        if entry.has_enum_name:
            columns[f"{entry.column}_name"] = STRING
    return columns


VOTERS: Final = ArrayType(part_type(Voter))

# --- the three tables that only grow --------------------------------------------------------------

LOG: Final = "log"
CHANGES: Final = "changes"
COMMITS: Final = "commits"

_WHICH_LOG: Final[Mapping[str, DataType]] = {
    "cluster_id": STRING,
    "topic": STRING,
    "partition": INT,
}

LOG_COLUMNS: Final[Mapping[str, DataType]] = {
    **_WHICH_LOG,
    "offset": BIGINT,
    "snapshot_position": INT,
    "leader_epoch": INT,
    "log_time": TIMESTAMP,
    "record_type": STRING,
    "api_key": INT,
    "version": INT,
    "is_control": BOOLEAN,
    "txn_begin_offset": BIGINT,
    "visible_offset": BIGINT,
    "value_json": STRING,
    "key_raw": BINARY,
    "value_raw": BINARY,
    "incarnation": INT,
    "_writer_epoch": BIGINT,
}
"""Every record of the log: control records, NoOps and aborted ones too.

Rows of a checkpoint have the offset of the last record that it contains and their place in the
file as ``snapshot_position``. ``visible_offset`` is null where a record never took effect.
"""

# --- the typed tables -----------------------------------------------------------------------------

ORIGIN_COLUMNS: Final[Mapping[str, DataType]] = {
    "_offset": BIGINT,
    "_visible_offset": BIGINT,
    "_leader_epoch": INT,
    "_log_time": TIMESTAMP,
    "_created_offset": BIGINT,
}
"""The record that wrote the row, when that took effect, and the record that created the row."""

BEFORE_ORIGIN: Final = struct({name[1:]: kind for name, kind in ORIGIN_COLUMNS.items()})
"""The same of the row before a change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedTable:
    """A table of one entity: ``columns`` without the origin columns; ``key`` names some of them.

    A table with an empty key has one row at most.
    """

    entity: Entity
    key: tuple[str, ...]
    columns: Mapping[str, DataType]
    checks: Mapping[str, str]

    @property
    def name(self) -> str:
        """``topics``, ``scram``, ..."""
        return table_of(self.entity)

    @property
    def schema(self) -> StructType:
        """All its columns."""
        return struct({**self.columns, **ORIGIN_COLUMNS})


def _typed(
    entity: Entity,
    *key: str,
    before: Mapping[str, DataType] | None = None,
    after: Mapping[str, DataType] | None = None,
    **checks: str,
) -> TypedTable:
    """A table of an entity; ``before`` and ``after``: columns that are not fields of its row."""
    columns = {**(before or {}), **row_columns(ROW_TYPES[entity]), **(after or {})}
    assert set(key) <= set(columns), entity
    return TypedTable(entity=entity, key=key, columns=columns, checks=checks)


TYPED_TABLES: Final = (
    _typed(Entity.FEATURE, "name", level_is_positive="level > 0"),
    _typed(Entity.ZK_MIGRATION),
    _typed(Entity.BROKER, "broker_id", broker_is_named="broker_id >= 0"),
    _typed(Entity.CONTROLLER, "controller_id", controller_is_named="controller_id >= 0"),
    _typed(
        Entity.TOPIC,
        "topic_id",
        topic_is_named="topic_id IS NOT NULL AND name IS NOT NULL",
    ),
    _typed(
        Entity.PARTITION,
        "topic_id",
        "partition_id",
        partition_is_numbered="partition_id >= 0",
        leader_is_a_broker_or_none="leader >= -1",
        partition_epoch_is_counted="partition_epoch >= 0",
    ),
    _typed(
        Entity.CONFIG,
        "resource_type",
        "resource_name",
        "name",
        after={"redacted": BOOLEAN},
        value_is_set="value IS NOT NULL",
    ),
    _typed(Entity.QUOTA, "entity_key", "quota", before={"entity_key": STRING}),
    _typed(Entity.PRODUCER_IDS),
    _typed(Entity.ACL, "acl_id"),
    _typed(Entity.SCRAM, "user", "mechanism"),
    _typed(Entity.TOKEN, "token_id"),
    _typed(
        Entity.EPOCH,
        "leader_epoch",
        reign_is_not_empty=(
            "end_offset IS NULL OR start_offset IS NULL OR end_offset > start_offset"
        ),
    ),
    _typed(Entity.TRANSACTION, "begin_offset", markers_are_in_order="end_offset > begin_offset"),
)

BY_NAME: Final[Mapping[str, TypedTable]] = {table.name: table for table in TYPED_TABLES}
BY_ENTITY: Final[Mapping[Entity, TypedTable]] = {table.entity: table for table in TYPED_TABLES}
assert set(BY_ENTITY) == set(Entity), "every entity has its table"

# --- changes and commits, which speak of the typed tables -----------------------------------------

_ROWS: Final = struct({str(table.entity): struct(table.columns) for table in TYPED_TABLES})

CHANGES_COLUMNS: Final[Mapping[str, DataType]] = {
    **_WHICH_LOG,
    "offset": BIGINT,
    "seq": INT,
    "visible_offset": BIGINT,
    "leader_epoch": INT,
    "log_time": TIMESTAMP,
    "record_type": STRING,
    "entity": STRING,
    "key": STRING,
    "op": STRING,
    "changed": STRINGS,
    "before": _ROWS,
    "after": _ROWS,
    "before_origin": BEFORE_ORIGIN,
    "incarnation": INT,
    "_writer_epoch": BIGINT,
}
"""One row a change: ``op`` c, u, d, or r (of a checkpoint); whole rows before and after.

``before`` and ``after`` hold one struct an entity, null but for the one that ``entity`` names.
``before`` was the state from ``before_origin.visible_offset`` up to ``visible_offset`` (exclusive).
(``offset``, ``seq``) is the order of changes, and the key of this table.
"""

COMMITS_COLUMNS: Final[Mapping[str, DataType]] = {
    **_WHICH_LOG,
    "incarnation": INT,
    "offset": BIGINT,
    "from_offset": BIGINT,
    "kind": STRING,
    "leader_epoch": INT,
    "high_watermark": BIGINT,
    "log_time": TIMESTAMP,
    "max_log_time": TIMESTAMP,
    "committed_at": TIMESTAMP,
    "table_versions": MapType(STRING, BIGINT),
    "row_counts": MapType(STRING, BIGINT),
    "image_digest": STRING,
    "metadata_version": INT,
    "gap_from": BIGINT,
    "gap_to": BIGINT,
    "software": STRING,
    "_writer_epoch": BIGINT,
}
"""The manifest, one row a publication, written last.

``offset`` (inclusive) is what the tables hold; ``table_versions`` are the Delta versions that hold
exactly that. ``gap_from`` and ``gap_to`` (inclusive) bound offsets whose history a checkpoint
replaced. ``high_watermark`` is null if files were read, which do not have it.
"""

KIND_APPLY: Final = "apply"
KIND_BOOTSTRAP: Final = "bootstrap"
KIND_TRUNCATE: Final = "truncate"


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowingTable:
    """A table that is only ever appended to."""

    name: str
    columns: Mapping[str, DataType]
    checks: Mapping[str, str]

    @property
    def schema(self) -> StructType:
        """All its columns."""
        return struct(self.columns)


GROWING_TABLES: Final[Mapping[str, GrowingTable]] = {
    LOG: GrowingTable(
        name=LOG,
        columns=LOG_COLUMNS,
        checks={"offset_is_one": "offset >= 0", "epoch_is_one": "leader_epoch >= 0"},
    ),
    CHANGES: GrowingTable(
        name=CHANGES,
        columns=CHANGES_COLUMNS,
        checks={
            "visible_when_or_after_written": "visible_offset >= offset",
            "op_is_known": "op IN ('c', 'u', 'd', 'r')",
        },
    ),
    COMMITS: GrowingTable(
        name=COMMITS,
        columns=COMMITS_COLUMNS,
        checks={"range_is_in_order": "offset >= from_offset - 1"},
    ),
}

Table = TypedTable | GrowingTable


def properties(table: Table) -> dict[str, str]:
    """Return the Delta properties of a new table."""
    found = {
        "delta.enableDeletionVectors": "false",
        "delta.deletedFileRetentionDuration": RETENTION,
        "delta.logRetentionDuration": RETENTION,
    }
    if isinstance(table, GrowingTable):
        found["delta.appendOnly"] = "true"
    for name, expression in table.checks.items():
        found[f"delta.constraints.{name}"] = expression
    return found


# --- the same types for Arrow ---------------------------------------------------------------------

_ARROW: Final[Mapping[DataType, pa.DataType]] = {
    BOOLEAN: pa.bool_(),
    INT: pa.int32(),
    BIGINT: pa.int64(),
    DOUBLE: pa.float64(),
    STRING: pa.string(),
    BINARY: pa.binary(),
    TIMESTAMP: pa.timestamp("us", tz="UTC"),
}


def arrow_type(kind: DataType) -> pa.DataType:
    """The Arrow type that Spark takes for one of its own."""
    if isinstance(kind, ArrayType):
        return pa.list_(arrow_type(kind.elementType))
    if isinstance(kind, MapType):
        return pa.map_(arrow_type(kind.keyType), arrow_type(kind.valueType))
    if isinstance(kind, StructType):
        return pa.struct([pa.field(part.name, arrow_type(part.dataType)) for part in kind.fields])
    return _ARROW[kind]


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema of a table's columns."""
    return pa.schema([pa.field(part.name, arrow_type(part.dataType)) for part in schema.fields])
