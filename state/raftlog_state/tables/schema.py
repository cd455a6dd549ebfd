"""The tables and views: their names, keys and columns, declared once, as Arrow types.

Rules of this file:

1. A typed table's columns derive from its row's fields (``raftlog_state.image.rows``), in their
   order, with names after their codes. Five columns that describe the record that wrote the row
   follow. Times are UTC timestamps in microseconds, integers 32 or 64 bits wide, never narrower.
2. Every Delta engine can read and write every table: no column mapping, no deletion vectors, no
   generated columns, no identity columns; checks are plain comparisons.
3. Columns are nullable in Delta; a CHECK enforces required values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute

from raftlog_state.image.column_types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    INT,
    STRING,
    STRINGS,
    TIMESTAMP,
    Columns,
    part_type,
    row_columns,
)
from raftlog_state.image.rows import METADATA_ENTITIES, ROW_TYPES, Entity, Voter, table_of
from raftlog_state.records.internal_logs import cluster_of

pc: Any = pyarrow.compute  # pyarrow creates its functions at import, unseen by type checkers

CHECK_PREFIX: Final = "delta.constraints."
"""Prefix of a check's name in the properties of a Delta table."""

RETENTION: Final = "interval 1 day"
"""How long old versions of a table can be read, and therefore how long their files are kept.

Past states are read from ``changes``, not from old versions. Each micro-batch adds a file and an
entry to Delta's log, and the more entries a local log has, the longer an append with delta-rs
takes.
"""

VOTERS: Final = pa.list_(part_type(Voter))

LOG: Final = "log"
CHANGES: Final = "changes"
STATE: Final = "state"

CLUSTER_ID: Final = "cluster_id"
"""First column of every table and of its key, because one set of tables has many clusters.

In stored tables, it is the cluster's id for a metadata log and ``log_id_of`` for its other logs.
"""
UNKNOWN_CLUSTER: Final = "unknown"
"""``cluster_id`` of a log whose cluster id was unknown when the first record was written."""
_WHICH_LOG: Final[Columns] = {CLUSTER_ID: STRING, "topic": STRING, "partition": INT}

# --- typed tables: views of ``state`` and ``changes`` ---------------------------------------------

ORIGIN_COLUMNS: Final[Columns] = {
    "_offset": BIGINT,
    "_visible_offset": BIGINT,
    "_leader_epoch": INT,
    "_log_time": TIMESTAMP,
    "_created_offset": BIGINT,
}
"""The record that wrote the row, when it took effect, and the record that created the row."""

BEFORE_ORIGIN: Final = pa.struct({name[1:]: kind for name, kind in ORIGIN_COLUMNS.items()})
"""The origin columns of the row before a change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedTable:
    """A table of one entity. ``columns`` excludes the origin columns; ``key`` names some of them.

    A table with an empty key has at most one row.
    """

    entity: Entity
    key: tuple[str, ...]
    columns: Columns

    @property
    def name(self) -> str:
        """``topics``, ``scram``, ..."""
        return table_of(self.entity)


def _typed(
    entity: Entity, *key: str, before: Columns | None = None, after: Columns | None = None
) -> TypedTable:
    """Return an entity's table. ``before``, ``after``: columns that are no row fields."""
    columns = {**(before or {}), **row_columns(ROW_TYPES[entity]), **(after or {})}
    assert set(key) <= set(columns), entity
    return TypedTable(entity=entity, key=key, columns=columns)


TYPED_TABLES: Final = (
    _typed(Entity.FEATURE, "name"),
    _typed(Entity.ZK_MIGRATION),
    _typed(Entity.BROKER, "broker_id"),
    _typed(Entity.CONTROLLER, "controller_id"),
    _typed(Entity.TOPIC, "topic_id"),
    _typed(Entity.PARTITION, "topic_id", "partition_id"),
    _typed(Entity.CONFIG, "resource_type", "resource_name", "name", after={"redacted": BOOLEAN}),
    _typed(Entity.QUOTA, "entity_key", "quota", before={"entity_key": STRING}),
    _typed(Entity.PRODUCER_IDS),
    _typed(Entity.ACL, "acl_id"),
    _typed(Entity.SCRAM, "user", "mechanism"),
    _typed(Entity.TOKEN, "token_id"),
    _typed(Entity.EPOCH, "leader_epoch"),
    _typed(Entity.TRANSACTION, "begin_offset"),
    _typed(Entity.CONSUMER_OFFSET, "group", "topic", "partition"),
    _typed(Entity.PENDING_OFFSET, "producer_id", "group", "topic", "partition"),
    _typed(Entity.GROUP, "group"),
    _typed(Entity.GROUP_MEMBER, "group", "member_id"),
    _typed(Entity.PRODUCER_TRANSACTION, "transactional_id"),
    _typed(Entity.SHARE_PARTITION, "group", "topic_id", "partition"),
    _typed(Entity.REMOTE_SEGMENT, "segment_id"),
)

BY_NAME: Final[Mapping[str, TypedTable]] = {table.name: table for table in TYPED_TABLES}
BY_ENTITY: Final[Mapping[Entity, TypedTable]] = {table.entity: table for table in TYPED_TABLES}
assert set(BY_ENTITY) == set(Entity), "every entity has its table"
METADATA_TABLES: Final = tuple(one for one in TYPED_TABLES if one.entity in METADATA_ENTITIES)
"""The tables of a metadata log; the others are of internal logs."""


def id_in_table(table: TypedTable, log_id: str) -> str:
    """Return the ``cluster_id`` of a log's rows in a typed table.

    In a table of internal logs it is the cluster's id, because the cluster's partitions have
    different keys. In ``epochs`` it is the log's id, because each log of a cluster has an epoch 0.
    """
    return log_id if table in METADATA_TABLES else cluster_of(log_id)


# --- stored tables --------------------------------------------------------------------------------

PROGRESS: Final = "progress"
"""``entity`` of progress rows."""
PROGRESS_OP: Final = "p"
PROGRESS_COLUMNS: Final[Columns] = {
    "log_cluster_id": STRING,
    "from_offset": BIGINT,
    "first_offset": BIGINT,
    "expired_to": BIGINT,
    "expired_time_us": BIGINT,
    "truncated_to": BIGINT,
    "gaps": pa.list_(pa.struct({"first": BIGINT, "last": BIGINT})),
    "metadata_version": INT,
    "row_counts": pa.map_(STRING, BIGINT),
    "group": STRING,
    "group_versions": pa.map_(STRING, BIGINT),
    "software": STRING,
}
"""``row.progress``: what one append to ``changes`` added.

- ``log_cluster_id``: the log's cluster id, null if it is unknown
- ``from_offset``: the first offset of the append
- ``first_offset``: the first offset of the tables
- ``expired_to``: the last offset whose changes were deleted, null without any
- ``expired_time_us``: the latest ``log_time`` of these changes, null without any
- ``truncated_to``: the offset after which the incarnation began, null for the first one
- ``gaps``: first and last offsets whose history snapshots replaced
- ``row_counts``: row count of each typed table at the append's end
- ``group``: the group of clusters that writes this one, null without
- ``group_versions``: for each group that has ever appended rows of the cluster, the version of its
  last transaction that did

Rows of an earlier incarnation with a visible offset after ``truncated_to`` are reverted.
"""

_ENTITIES: Final[Columns] = {
    **{str(table.entity): pa.struct(table.columns) for table in TYPED_TABLES},
    PROGRESS: pa.struct(PROGRESS_COLUMNS),
}
ROW: Final = pa.struct(_ENTITIES)
"""One struct per entity, null except for the one that ``entity`` names."""


class Check(NamedTuple):
    """CHECK constraint, in SQL and as a test of rows. It does not hold for a null."""

    sql: str
    is_true: Callable[[pa.Table], pa.ChunkedArray]

    def holds(self, rows: pa.Table) -> bool:
        """Return whether it is true for all rows."""
        return bool(pc.all(self.is_true(rows), skip_nulls=False, min_count=0).as_py())


@dataclass(frozen=True, kw_only=True)
class StoredTable:
    """A Delta table.

    ``skipping`` names the columns with statistics for file skipping. ``partitioned_by``: commits
    that change rows of different partitions do not conflict.
    """

    name: str
    columns: Columns
    checks: Mapping[str, Check]
    skipping: tuple[str, ...]
    partitioned_by: tuple[str, ...] = ()

    @cached_property
    def schema(self) -> pa.Schema:
        """All its columns."""
        return pa.schema(dict(self.columns))

    @cached_property
    def no_rows(self) -> pa.Table:
        """An empty table with all its columns. Creating hundreds of columns takes a millisecond."""
        return self.schema.empty_table()

    @property
    def properties(self) -> dict[str, str]:
        """The Delta properties of a new table."""
        return {
            "delta.enableDeletionVectors": "false",
            "delta.deletedFileRetentionDuration": RETENTION,
            "delta.logRetentionDuration": RETENTION,
            "delta.checkpointInterval": "100",
            "delta.dataSkippingStatsColumns": ",".join(self.skipping),
            **{f"{CHECK_PREFIX}{name}": check.sql for name, check in self.checks.items()},
        }


LOG_TABLE: Final = StoredTable(
    name=LOG,
    columns={
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
        "producer_id": BIGINT,
        "visible_offset": BIGINT,
        "value_json": STRING,
        "key_raw": BINARY,
        "value_raw": BINARY,
        "incarnation": INT,
    },
    checks={
        "offset_not_negative": Check(
            "offset >= 0", lambda rows: pc.greater_equal(rows["offset"], 0)
        ),
        "epoch_not_negative": Check(
            "leader_epoch >= 0", lambda rows: pc.greater_equal(rows["leader_epoch"], 0)
        ),
    },
    skipping=(CLUSTER_ID, "offset", "leader_epoch", "log_time", "record_type", "visible_offset"),
)
"""Every record of the log, including control records, NoOps and aborted records.

Rows of a snapshot have the offset of the last record that it contains, and their place in the file
as ``snapshot_position``. ``visible_offset`` is null where a record never took effect. In internal
logs it is the record's own offset, even inside a transaction of ``producer_id``.
"""

CHANGES_TABLE: Final = StoredTable(
    name=CHANGES,
    columns={
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
        "before": ROW,
        "after": ROW,
        "before_origin": BEFORE_ORIGIN,
        "incarnation": INT,
        "committed_at": TIMESTAMP,
    },
    checks={
        "visible_when_or_after_written": Check(
            "visible_offset >= offset",
            lambda rows: pc.greater_equal(rows["visible_offset"], rows["offset"]),
        ),
        "op_is_known": Check(
            "op IN ('c', 'u', 'd', 'r', 'p')",
            lambda rows: pc.is_in(rows["op"], pa.array(["c", "u", "d", "r", "p"])),
        ),
    },
    skipping=(
        *(CLUSTER_ID, "offset", "visible_offset", "log_time", "entity", "key"),
        *("op", "committed_at"),
    ),
)
"""One row per change: ``op`` is c, u, d, or r (of a snapshot); whole rows before and after.

``before`` was the state from ``before_origin.visible_offset`` up to ``visible_offset`` (exclusive).
(``offset``, ``seq``) is the order of a cluster's changes; together with ``cluster_id`` it is the
table's key. Each append also has one progress row (``op`` p, ``seq`` -1), whose ``offset`` is the
append's end, inclusive.
"""

STATE_TABLE: Final = StoredTable(
    name=STATE,
    columns={
        **_WHICH_LOG,
        "entity": STRING,
        "key": STRING,
        "is_deleted": BOOLEAN,
        "row": ROW,
        **ORIGIN_COLUMNS,
        "_incarnation": INT,
    },
    checks={
        "row_is_identified": Check(
            "entity IS NOT NULL AND key IS NOT NULL",
            lambda rows: pc.and_(rows["entity"].is_valid(), rows["key"].is_valid()),
        )
    },
    skipping=("entity", "key", "_visible_offset"),
    partitioned_by=(CLUSTER_ID,),
)
"""Each cluster's rows after the offset of its progress row, including deleted rows.

Deleted rows have their last values. ``changes`` alone has the same content. A row is replaced only
by a row with a later (``_incarnation``, ``_visible_offset``, ``_offset``), so a late or repeated
merge changes nothing.
"""

STORED_TABLES: Final[Mapping[str, StoredTable]] = {
    table.name: table for table in (LOG_TABLE, CHANGES_TABLE, STATE_TABLE)
}


def of_entities(schema: pa.Schema, entities: Collection[str]) -> pa.Schema:
    """Return the schema of rows of some entities only, whose structs have no other fields.

    A Parquet file of such rows has a quarter of the columns. Engines read the other fields as null.
    """
    names = {str(entity) for entity in entities}
    kind = pa.struct([field for field in ROW if field.name in names])
    fields = (field.with_type(kind) if field.type == ROW else field for field in schema)
    return pa.schema(list(fields))


COMMITS_OF_EARLIER_RELEASES: Final = StoredTable(name="commits", columns={}, checks={}, skipping=())
"""A table of the layouts before this release's."""
