"""Comments of tables and of their columns, for DESCRIBE and catalogs.

Those of the fields of rows are beside the fields (``raftlog_state.image.rows``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

import pyarrow as pa

from raftlog_state.image.row_schema import row_schema
from raftlog_state.image.rows import ROW_TYPES

from .schema import (
    BEFORE_ORIGIN,
    CHANGES,
    CLUSTER_ID,
    LOG,
    ORIGIN_COLUMNS,
    PROGRESS,
    PROGRESS_COLUMNS,
    ROW,
    STATE,
    STORED_TABLES,
    TYPED_TABLES,
    StoredTable,
    TypedTable,
)

TABLE_COMMENTS: Final[Mapping[str, str]] = {
    "features": "Finalized features of the cluster, such as metadata.version",
    "zk_migration": "State of a migration from ZooKeeper; Kafka 4 ignores it",
    "brokers": "Registered brokers",
    "controllers": "Registered controllers",
    "topics": "Topics by topic id; a topic that was created again has a new id",
    "partitions": "Partitions: replicas, ISR, leader and epochs",
    "configs": "Dynamic configs that are set; secret values are redacted",
    "quotas": "Client quotas",
    "producer_ids": "Next producer id to allocate, in a single row",
    "acls": "Access control entries",
    "scram": "SCRAM credentials of users; salts and keys are redacted",
    "tokens": "Delegation tokens; the log does not contain their HMACs",
    "epochs": "Leader epochs of the quorum",
    "transactions": "Completed metadata transactions (KIP-868)",
    "consumer_offsets": "Committed offsets of groups, from __consumer_offsets",
    "pending_offsets": "Offset commits of open transactions, from __consumer_offsets",
    "groups": "Groups of all protocols, from __consumer_offsets",
    "group_members": "Members of groups, from __consumer_offsets",
    "transactions_of_producers": "Transactional ids and their transactions (KIP-98)",
    "share_partitions": "Delivery states of partitions in share groups (KIP-932)",
    "remote_segments": "Segments in remote storage (KIP-405)",
}

OTHER_COMMENTS: Final[Mapping[str, str]] = {
    CLUSTER_ID: "Cluster id of the log",
    "entity_key": "Entity as JSON, sorted by type",
    "leader_recovery_state_name": "RECOVERED, or RECOVERING after an unclean election",
    "mechanism_name": "SCRAM-SHA-256 or SCRAM-SHA-512",
    "operation_name": "Operation, such as READ",
    "pattern_type_name": "LITERAL or PREFIXED",
    "permission_name": "ALLOW or DENY",
    "redacted": "Whether the value is redacted",
    "resource_type_name": "Resource type, such as TOPIC",
    "state_name": "State, such as MIGRATION",
    "_offset": "Offset of the record that wrote the row",
    "_visible_offset": "Offset at which the row took effect: its own, or the end of a transaction",
    "_leader_epoch": "Leader epoch of the quorum when the record was written",
    "_log_time": "Timestamp of the record that wrote the row",
    "_created_offset": "Offset of the record that created the row",
}
"""Comments of the columns that are no field of a row (``rows``)."""

HISTORY_COMMENTS: Final[Mapping[str, str]] = {
    "valid_from": "First offset at which this version was current",
    "valid_to": "First offset at which it was no longer current; null for the current version",
    "written_time": "Timestamp of the record that wrote this version",
    "replaced_time": "Timestamp of the record that replaced this version",
}
"""Comments of the columns of a history after those of its table."""


def column_comments(table: TypedTable) -> dict[str, str]:
    """Return the comments of a table's columns, with ``cluster_id`` and the origin columns."""
    fields = {entry.column: entry.comment for entry in row_schema(ROW_TYPES[table.entity])}
    names = (CLUSTER_ID, *table.columns, *ORIGIN_COLUMNS)
    return {name: fields.get(name) or OTHER_COMMENTS[name] for name in names}


assert set(TABLE_COMMENTS) == {table.name for table in TYPED_TABLES}, "each table has a comment"

# --- stored tables --------------------------------------------------------------------------------

STORED_COMMENTS: Final[Mapping[str, str]] = {
    LOG: "Every record of the logs, including control records, NoOps and aborted records",
    CHANGES: "Each change of a row, with the row before and after; and progress rows of appends",
    STATE: "Rows as of the offset of their cluster's progress row; changes has later ones",
}
"""Comments of the stored tables."""

_LOG_COLUMNS: Final[Mapping[str, str]] = {
    CLUSTER_ID: "Cluster id; followed by @TOPIC-PARTITION unless the log is a metadata log",
    "topic": "Topic of the log",
    "partition": "Partition of the log",
    "leader_epoch": "Leader epoch of the quorum when the record was written",
    "log_time": "Timestamp of the record",
    "record_type": "Type of the record, such as TOPIC_RECORD",
    "incarnation": "Incarnation of the writer; each truncation of the tables begins a new one",
}
_ROW_COLUMNS: Final[Mapping[str, str]] = {
    "entity": "Kind of the row, such as topic; the field of the struct that is not null",
    "key": "Key of the row within its entity, as a JSON array",
}
_COLUMN_COMMENTS: Final[Mapping[str, Mapping[str, str]]] = {
    LOG: {
        **_LOG_COLUMNS,
        "offset": "Offset of the record; in a snapshot, the last offset that the snapshot contains",
        "snapshot_position": "Position of the record in its snapshot; null for a record of the log",
        "api_key": "API key of the record type; null for control records",
        "version": "Version of the record type",
        "is_control": "Whether the record is a control record",
        "txn_begin_offset": "Offset at which its metadata transaction begins; null outside one",
        "producer_id": "Producer of its transaction, or of the one that a marker ends; or null",
        "visible_offset": "Offset at which the record took effect; null if it never did",
        "value_json": "Value as JSON, as kafka-dump-log prints it; secrets are redacted",
        "key_raw": "Key of the record; null for metadata records",
        "value_raw": "Value of the record; secrets are redacted",
    },
    CHANGES: {
        **_LOG_COLUMNS,
        **_ROW_COLUMNS,
        "offset": "Offset of the record; for a progress row, the last offset of its append",
        "seq": "Order among changes with the same offset; -1 for a progress row",
        "visible_offset": "Offset at which it took effect: its own, or the end of a transaction",
        "op": "c created, u updated, d deleted, r read from a snapshot, p progress of an append",
        "changed": "Columns that differ between before and after",
        "before": "Row before the change; null if the change created it",
        "after": "Row after the change; null if the change deleted it",
        "before_origin": "Record that wrote the row before the change",
        "committed_at": "Time of the append to this table",
    },
    STATE: {
        **_LOG_COLUMNS,
        **_ROW_COLUMNS,
        **{name: OTHER_COMMENTS[name] for name in ORIGIN_COLUMNS},
        "is_deleted": "Whether the row was deleted; if so, it has its last values",
        "row": "The row, as a struct with a field for each entity",
        "_incarnation": _LOG_COLUMNS["incarnation"],
    },
}
_PROGRESS_COMMENTS: Final[Mapping[str, str]] = {
    "log_cluster_id": "Cluster id of the log; null if unknown",
    "from_offset": "First offset of the append",
    "first_offset": "First offset of the tables",
    "expired_to": "Last offset whose changes were deleted",
    "expired_time_us": "Latest time of a deleted change, in microseconds since 1970",
    "truncated_to": "Offset after which this incarnation began",
    "gaps": "First and last offsets without history, because a later state was loaded",
    "metadata_version": "Level of the feature metadata.version",
    "row_counts": "Number of rows in each typed table",
    "group": "Group of clusters that writes this one; null if no group does",
    "group_versions": "Version of the last transaction of each group that wrote the cluster",
    "software": "Release that wrote the append",
}
assert set(_PROGRESS_COMMENTS) == set(PROGRESS_COLUMNS), "each column has a comment"


def stored_comments(table: StoredTable) -> dict[str, str]:
    """Return the comments of a stored table's columns."""
    return {name: _COLUMN_COMMENTS[table.name][name] for name in table.columns}


@cache
def commented_schema(name: str) -> pa.Schema:
    """Return the schema of a stored table with the comments of its columns, nested ones too.

    They are in the metadata of the fields, as ``comment``, where Delta and Spark have them.
    """
    table = STORED_TABLES[name]
    comments = stored_comments(table)
    kinds: dict[pa.DataType, Callable[[], pa.DataType]] = {ROW: _rows, BEFORE_ORIGIN: _origin}
    return pa.schema(
        [
            _field(column, kinds[kind]() if kind in kinds else kind, comments[column])
            for column, kind in table.columns.items()
        ]
    )


def _rows() -> pa.DataType:
    """Return the struct of rows, each entity with the comments of its table."""
    found = [
        _field(
            str(table.entity),
            _struct(table.columns, column_comments(table)),
            TABLE_COMMENTS[table.name],
        )
        for table in TYPED_TABLES
    ]
    progress = _struct(PROGRESS_COLUMNS, _PROGRESS_COMMENTS)
    return pa.struct([*found, _field(PROGRESS, progress, "What an append added: one row each")])


def _origin() -> pa.DataType:
    comments = {name[1:]: OTHER_COMMENTS[name] for name in ORIGIN_COLUMNS}
    return _struct({field.name: field.type for field in BEFORE_ORIGIN}, comments)


def _struct(columns: Mapping[str, pa.DataType], comments: Mapping[str, str]) -> pa.DataType:
    return pa.struct([_field(name, kind, comments[name]) for name, kind in columns.items()])


def _field(name: str, kind: pa.DataType, comment: str) -> pa.Field:
    return pa.field(name, kind, metadata={"comment": comment})
