"""Comments of the typed tables and of their columns, for DESCRIBE and catalogs.

Those of the fields of rows are beside the fields (``raftlog_state.image.rows``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from raftlog_state.image.row_schema import row_schema
from raftlog_state.image.rows import ROW_TYPES

from .schema import CLUSTER_ID, ORIGIN_COLUMNS, TYPED_TABLES, TypedTable

TABLE_COMMENTS: Final[Mapping[str, str]] = {
    "features": "Finalized features of the cluster, such as metadata.version",
    "zk_migration": "State of a migration from ZooKeeper; Kafka 4 ignores it",
    "brokers": "Registered brokers",
    "controllers": "Registered controllers",
    "topics": "Topics by topic id; a topic that was created again has another id",
    "partitions": "Partitions: replicas, ISR, leader and epochs",
    "configs": "Dynamic configs that are set; values of secrets are redacted",
    "quotas": "Client quotas",
    "producer_ids": "The next producer id to allocate: one row",
    "acls": "Access control entries",
    "scram": "SCRAM credentials of users; salts and keys are redacted",
    "tokens": "Delegation tokens; their HMAC is not in the log",
    "epochs": "Leader epochs of the quorum",
    "transactions": "Completed metadata transactions (KIP-868)",
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
    "_visible_offset": "Offset at which the row took effect: the end of its transaction",
    "_leader_epoch": "Leader epoch of the quorum in which the record was written",
    "_log_time": "Timestamp of that record",
    "_created_offset": "Offset of the record that created the row",
}
"""Comments of the columns that are no field of a row (``rows``)."""

HISTORY_COMMENTS: Final[Mapping[str, str]] = {
    "valid_from": "First offset at which this version was the row",
    "valid_to": "First offset at which it was not any more; null for the current version",
    "written_time": "Timestamp of the record that wrote this version",
    "replaced_time": "Timestamp of the record that replaced it",
}
"""Comments of the columns of a history after those of its table."""


def column_comments(table: TypedTable) -> dict[str, str]:
    """Return the comments of a table's columns, with ``cluster_id`` and the origin columns."""
    fields = {entry.column: entry.comment for entry in row_schema(ROW_TYPES[table.entity])}
    names = (CLUSTER_ID, *table.columns, *ORIGIN_COLUMNS)
    return {name: fields.get(name) or OTHER_COMMENTS[name] for name in names}


assert set(TABLE_COMMENTS) == {table.name for table in TYPED_TABLES}, "each table has a comment"
