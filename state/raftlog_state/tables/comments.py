"""Comments of the typed tables and of their columns, for DESCRIBE and catalogs.

A column has the same comment in every table that has it, unless ``table.column`` has one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

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

COLUMN_COMMENTS: Final[Mapping[str, str]] = {
    CLUSTER_ID: "Cluster id of the log",
    "acl_id": "Id of the ACL in the log",
    "adding_replicas": "Broker ids that a reassignment adds",
    "begin_offset": "Offset of the begin marker",
    "broker_epoch": "Epoch of the broker: the offset of its registration",
    "broker_id": "Broker id (node.id)",
    "controller_id": "Controller id (node.id)",
    "cordoned_log_dirs": "Ids of log directories that get no new replicas; null if never sent",
    "directories": "Ids of the log directories of the replicas, in the order of replicas",
    "elr": "Eligible leader replicas (KIP-966): broker ids that have all committed records",
    "end_offset": "Offset after the last one; null for the current epoch",
    "endpoints": "Listeners: name, host, port, id of the security protocol",
    "entity": "Entity by type: user, client-id, ip; a null name is the default",
    "entity_key": "Entity as JSON, sorted by type",
    "expiration_timestamp": "Time at which the token expires unless it is renewed",
    "features": "Supported levels of each feature",
    "fenced": "Whether the broker is fenced: it may lead no partition",
    "host": "Host from which the principal has access; * is any",
    "in_controlled_shutdown": "Whether the broker is in a controlled shutdown",
    "incarnation_id": "Id of the process, another after each start",
    "is_migrating_zk_broker": "Whether the broker still uses ZooKeeper",
    "isr": "In-sync replicas: broker ids",
    "issue_timestamp": "Time at which the token was issued",
    "iterations": "Iterations of the hash",
    "kraft_version": "Finalized kraft.version: 1 with dynamic voters",
    "last_known_elr": "Last known eligible leader replicas (KIP-966)",
    "leader": "Broker id of the leader; -1: no leader",
    "leader_epoch": "Leader epoch of the partition",
    "leader_id": "Node id of the leader; null if it is not in the log",
    "leader_recovery_state": "Number of the leader recovery state",
    "leader_recovery_state_name": "RECOVERED, or RECOVERING after an unclean election",
    "level": "Finalized level",
    "log_dirs": "Ids of the log directories",
    "max_timestamp": "Time after which the token cannot be renewed",
    "mechanism": "Number of the SCRAM mechanism",
    "mechanism_name": "SCRAM-SHA-256 or SCRAM-SHA-512",
    "name": "Name",
    "next_producer_id": "First producer id that is not allocated",
    "operation": "Number of the operation",
    "operation_name": "Operation, such as READ",
    "outcome": "committed or aborted",
    "owner": "Principal that owns the token",
    "partition_epoch": "Epoch of the partition, which each change increases",
    "partition_id": "Partition within the topic",
    "pattern_type": "Number of the pattern type",
    "pattern_type_name": "LITERAL or PREFIXED",
    "permission": "Number of the permission",
    "permission_name": "ALLOW or DENY",
    "principal": "Principal, such as User:alice",
    "quota": "Name of the quota, such as producer_byte_rate",
    "rack": "Rack of the broker (broker.rack)",
    "reason": "Reason of an abort",
    "record_count": "Metadata records between the markers",
    "redacted": "Whether the value is redacted",
    "removing_replicas": "Broker ids that a reassignment removes",
    "renewers": "Principals that may renew the token",
    "replicas": "Replicas: broker ids, the preferred leader first",
    "requester": "Principal that requested the token",
    "resource_name": "Resource; of configs of brokers empty for the default of all brokers",
    "resource_type": "Number of the resource type",
    "resource_type_name": "Resource type, such as TOPIC",
    "salt": "Salt; redacted",
    "server_key": "Server key; redacted",
    "start_offset": "First offset of the epoch; null if it is not in the log",
    "state": "Number of the state",
    "state_name": "State, such as MIGRATION",
    "stored_key": "Stored key; redacted",
    "token_id": "Id of the token; no secret",
    "topic_id": "Topic id",
    "topic_name": "Name of the topic",
    "user": "User",
    "value": "Value",
    "voters": "Voters of the quorum",
    "zk_migration_ready": "Whether the controller is ready for a migration from ZooKeeper",
    "epochs.leader_epoch": "Leader epoch of the quorum",
    "producer_ids.broker_id": "Broker that allocated the last block; -1 if it is not in the log",
    "producer_ids.broker_epoch": "Epoch of that broker",
    "transactions.end_offset": "Offset after the end or abort marker",
    "_offset": "Offset of the record that wrote the row",
    "_visible_offset": "Offset at which the row took effect: the end of its transaction",
    "_leader_epoch": "Leader epoch of the quorum in which the record was written",
    "_log_time": "Timestamp of that record",
    "_created_offset": "Offset of the record that created the row",
}


HISTORY_COMMENTS: Final[Mapping[str, str]] = {
    "valid_from": "First offset at which this version was the row",
    "valid_to": "First offset at which it was not any more; null for the current version",
    "written_time": "Timestamp of the record that wrote this version",
    "replaced_time": "Timestamp of the record that replaced it",
}
"""Comments of the columns of a history after those of its table."""


def column_comments(table: TypedTable) -> dict[str, str]:
    """Return the comments of a table's columns, with ``cluster_id`` and the origin columns."""
    names = (CLUSTER_ID, *table.columns, *ORIGIN_COLUMNS)
    return {
        name: COLUMN_COMMENTS.get(f"{table.name}.{name}") or COLUMN_COMMENTS[name] for name in names
    }


assert set(TABLE_COMMENTS) == {table.name for table in TYPED_TABLES}, "each table has a comment"
