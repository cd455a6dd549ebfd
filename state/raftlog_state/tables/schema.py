"""The tables: their names, keys, columns and checks, declared once.

Rules of this file:

1. A typed table's columns are its row's fields (``raftlog_state.rows``) in their order, names
   after their codes, then five columns with the record that wrote the row. Times are UTC TIMESTAMP,
   integers INT or BIGINT, never narrower.
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

from raftlog_state.rows import Entity, table_of

RETENTION: Final = "interval 30 days"
"""How long old versions of a table can be read, and how long its files are kept for that."""

BOOLEAN: Final = BooleanType()
INT: Final = IntegerType()
BIGINT: Final = LongType()
DOUBLE: Final = DoubleType()
STRING: Final = StringType()
BINARY: Final = BinaryType()
TIMESTAMP: Final = TimestampType()
INTS: Final = ArrayType(INT)
STRINGS: Final = ArrayType(STRING)


def struct(columns: Mapping[str, DataType]) -> StructType:
    """A Spark struct of nullable fields."""
    return StructType([StructField(name, kind) for name, kind in columns.items()])


ENDPOINTS: Final = ArrayType(struct({"name": STRING, "host": STRING, "port": INT, "protocol": INT}))
FEATURE_RANGES: Final = MapType(STRING, struct({"min_version": INT, "max_version": INT}))
VOTERS: Final = ArrayType(
    struct(
        {
            "voter_id": INT,
            "directory_id": STRING,
            "endpoints": ArrayType(struct({"name": STRING, "host": STRING, "port": INT})),
            "min_kraft_version": INT,
            "max_kraft_version": INT,
        }
    )
)

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


def _typed(entity: Entity, *key: str, columns: Mapping[str, DataType], **checks: str) -> TypedTable:
    assert set(key) <= set(columns), entity
    return TypedTable(entity=entity, key=key, columns=columns, checks=checks)


TYPED_TABLES: Final = (
    _typed(
        Entity.FEATURE,
        "name",
        columns={"name": STRING, "level": INT},
        level_is_positive="level > 0",
    ),
    _typed(
        Entity.ZK_MIGRATION,
        columns={"state": INT, "state_name": STRING},
    ),
    _typed(
        Entity.BROKER,
        "broker_id",
        columns={
            "broker_id": INT,
            "incarnation_id": STRING,
            "broker_epoch": BIGINT,
            "rack": STRING,
            "fenced": BOOLEAN,
            "in_controlled_shutdown": BOOLEAN,
            "is_migrating_zk_broker": BOOLEAN,
            "endpoints": ENDPOINTS,
            "features": FEATURE_RANGES,
            "log_dirs": STRINGS,
            "cordoned_log_dirs": STRINGS,
        },
        broker_is_named="broker_id >= 0",
    ),
    _typed(
        Entity.CONTROLLER,
        "controller_id",
        columns={
            "controller_id": INT,
            "incarnation_id": STRING,
            "zk_migration_ready": BOOLEAN,
            "endpoints": ENDPOINTS,
            "features": FEATURE_RANGES,
        },
        controller_is_named="controller_id >= 0",
    ),
    _typed(
        Entity.TOPIC,
        "topic_id",
        columns={"topic_id": STRING, "name": STRING},
        topic_is_named="topic_id IS NOT NULL AND name IS NOT NULL",
    ),
    _typed(
        Entity.PARTITION,
        "topic_id",
        "partition_id",
        columns={
            "topic_id": STRING,
            "partition_id": INT,
            "topic_name": STRING,
            "replicas": INTS,
            "isr": INTS,
            "adding_replicas": INTS,
            "removing_replicas": INTS,
            "elr": INTS,
            "last_known_elr": INTS,
            "directories": STRINGS,
            "leader": INT,
            "leader_epoch": INT,
            "partition_epoch": INT,
            "leader_recovery_state": INT,
            "leader_recovery_state_name": STRING,
        },
        partition_is_numbered="partition_id >= 0",
        leader_is_a_broker_or_none="leader >= -1",
        partition_epoch_is_counted="partition_epoch >= 0",
    ),
    _typed(
        Entity.CONFIG,
        "resource_type",
        "resource_name",
        "name",
        columns={
            "resource_type": INT,
            "resource_type_name": STRING,
            "resource_name": STRING,
            "name": STRING,
            "value": STRING,
            "redacted": BOOLEAN,
        },
        value_is_set="value IS NOT NULL",
    ),
    _typed(
        Entity.QUOTA,
        "entity_key",
        "quota",
        columns={
            "entity_key": STRING,
            "entity": MapType(STRING, STRING),
            "quota": STRING,
            "value": DOUBLE,
        },
    ),
    _typed(
        Entity.PRODUCER_IDS,
        columns={
            "next_producer_id": BIGINT,
            "broker_id": INT,
            "broker_epoch": BIGINT,
        },
    ),
    _typed(
        Entity.ACL,
        "acl_id",
        columns={
            "acl_id": STRING,
            "resource_type": INT,
            "resource_type_name": STRING,
            "resource_name": STRING,
            "pattern_type": INT,
            "pattern_type_name": STRING,
            "principal": STRING,
            "host": STRING,
            "operation": INT,
            "operation_name": STRING,
            "permission": INT,
            "permission_name": STRING,
        },
    ),
    _typed(
        Entity.SCRAM,
        "user",
        "mechanism",
        columns={
            "user": STRING,
            "mechanism": INT,
            "mechanism_name": STRING,
            "iterations": INT,
            "salt": BINARY,
            "stored_key": BINARY,
            "server_key": BINARY,
        },
    ),
    _typed(
        Entity.TOKEN,
        "token_id",
        columns={
            "token_id": STRING,
            "owner": STRING,
            "requester": STRING,
            "renewers": STRINGS,
            "issue_timestamp": TIMESTAMP,
            "max_timestamp": TIMESTAMP,
            "expiration_timestamp": TIMESTAMP,
        },
    ),
    _typed(
        Entity.EPOCH,
        "leader_epoch",
        columns={
            "leader_epoch": INT,
            "start_offset": BIGINT,
            "end_offset": BIGINT,
            "leader_id": INT,
            "voters": VOTERS,
            "kraft_version": INT,
        },
        reign_is_not_empty=(
            "end_offset IS NULL OR start_offset IS NULL OR end_offset > start_offset"
        ),
    ),
    _typed(
        Entity.TRANSACTION,
        "begin_offset",
        columns={
            "begin_offset": BIGINT,
            "end_offset": BIGINT,
            "outcome": STRING,
            "name": STRING,
            "reason": STRING,
            "record_count": INT,
        },
        markers_are_in_order="end_offset > begin_offset",
    ),
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
    "incarnation": INT,
    "_writer_epoch": BIGINT,
}
"""One row a change: ``op`` c, u, d, or r (it stood in a checkpoint); whole rows before and after.

``before`` and ``after`` hold one struct an entity, null but for the one that ``entity`` names.
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
stood for. ``high_watermark`` is null where files were read: they do not say it.
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
