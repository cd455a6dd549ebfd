"""Small rows for stored tables: columns that are not named are null."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

from raftlog_state.tables.schema import CHANGES_TABLE, PROGRESS, PROGRESS_OP, StoredTable

Row = dict[str, Any]

CLUSTER: Final = "cluster-a"
METADATA: Final[Row] = {"cluster_id": CLUSTER, "topic": "__cluster_metadata", "partition": 0}
TIME: Final = datetime(2026, 11, 23, 7, 8, 9, 123456, UTC)

KEYS: Final = {
    "log": ("offset", "snapshot_position"),
    "changes": ("offset", "seq"),
    "state": ("entity", "key"),
}
"""Columns that order the rows of each stored table."""


def table_of(table: StoredTable, rows: list[Row]) -> pa.Table:
    """Return rows as Arrow, with all columns of the table."""
    return pa.Table.from_pylist(rows, schema=table.schema)


def rows_of(table: StoredTable, rows: pa.Table) -> list[Row]:
    """Return rows of a stored table with all columns, in the order of their keys."""
    assert rows.schema.equals(table.schema), rows.schema
    keys = KEYS[table.name]
    found: list[Row] = rows.to_pylist()
    return sorted(
        found, key=lambda row: tuple(-1 if row[key] is None else row[key] for key in keys)
    )


def log_row(offset: int, **columns: Any) -> Row:
    """Return a row of ``log``."""
    return {**METADATA, "offset": offset, "leader_epoch": 0, **columns}


def change(offset: int, **columns: Any) -> Row:
    """Return a row of ``changes``: a new topic unless ``columns`` differ."""
    name = f"topic-{offset}"
    return {
        **METADATA,
        "offset": offset,
        "seq": 0,
        "visible_offset": offset,
        "leader_epoch": 1,
        "log_time": TIME,
        "record_type": "TopicRecord",
        "entity": "topic",
        "key": f'["{name}"]',
        "op": "c",
        "after": {"topic": {"topic_id": name, "name": name}},
        "incarnation": 0,
        "committed_at": TIME,
        **columns,
    }


def progress(from_offset: int, end_offset: int) -> Row:
    """Return the progress row of an append to ``changes``, which ends at an offset, inclusive."""
    return change(
        end_offset,
        seq=-1,
        record_type=None,
        entity=PROGRESS,
        key="[]",
        op=PROGRESS_OP,
        after={PROGRESS: {"from_offset": from_offset, "row_counts": [("topics", end_offset)]}},
    )


def changes(from_offset: int, end_offset: int) -> pa.Table:
    """Return an append to ``changes``: a topic at each offset, up to ``end_offset`` inclusive."""
    rows = [change(offset) for offset in range(from_offset, end_offset + 1)]
    return table_of(CHANGES_TABLE, [*rows, progress(from_offset, end_offset)])


def of_cluster(table: StoredTable, rows: pa.Table, cluster_id: str) -> pa.Table:
    """Return the same rows of another cluster."""
    at = table.schema.get_field_index("cluster_id")
    names = pa.array([cluster_id] * rows.num_rows, pa.string())
    return rows.set_column(at, table.schema.field(at), names)


def state_row(
    key: str,
    incarnation: int,
    visible_offset: int,
    offset: int,
    *,
    name: str,
    is_deleted: bool = False,
    entity: str = "topic",
) -> Row:
    """Return a row of ``state``: a topic, unless ``entity`` is another."""
    return {
        **METADATA,
        "entity": entity,
        "key": key,
        "is_deleted": is_deleted,
        "row": {"topic": {"topic_id": key, "name": name}},
        "_offset": offset,
        "_visible_offset": visible_offset,
        "_leader_epoch": 1,
        "_log_time": TIME,
        "_created_offset": offset,
        "_incarnation": incarnation,
    }


_INT_MIN, _INT_MAX = -(2**31), 2**31 - 1
_BIGINT_MAX = 2**63 - 1
_ENDPOINTS = [{"name": "CONTROLLER", "host": "host-a", "port": 9093}]

VALUES: Final[tuple[Row, ...]] = (
    {
        "broker": {
            "broker_id": _INT_MAX,
            "incarnation_id": "",
            "broker_epoch": _BIGINT_MAX,
            "fenced": False,
            "endpoints": [
                {"name": "PLAIN", "host": "höst-\N{GRINNING FACE}", "port": 9092, "protocol": 0},
                {"name": None, "host": "", "port": None, "protocol": _INT_MIN},
            ],
            "features": [
                ("metadata.version", {"min_version": 1, "max_version": 29}),
                ("kraft.version", {"min_version": None, "max_version": 1}),
            ],
            "log_dirs": ["dir-a", None, ""],
            "cordoned_log_dirs": [],
        }
    },
    {
        "quota": {
            "entity_key": '{"user": "it\'s"}',
            "entity": [("user", "it's"), ("client-id", None)],
            "quota": "producer_byte_rate",
            "value": 0.1,
        }
    },
    {"quota": {"entity": [], "value": 1e300}},
    {
        "scram": {
            "user": "ä\n\t\\",
            "iterations": 4096,
            "salt": bytes(range(256)),
            "server_key": b"",
        }
    },
    {
        "token": {
            "renewers": ["User:a", "User:b"],
            "issue_timestamp": TIME,
            "max_timestamp": datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
            "expiration_timestamp": datetime(2262, 1, 1, tzinfo=UTC),
        }
    },
    {
        "epoch": {
            "leader_epoch": 0,
            "start_offset": -1,
            "voters": [
                {"voter_id": 1, "directory_id": "dir-a", "endpoints": _ENDPOINTS},
                {"voter_id": 2, "endpoints": []},
            ],
        }
    },
    {"progress": {"from_offset": 0, "row_counts": [("topics", _BIGINT_MAX), ("brokers", 0)]}},
    {"topic": {}},
    {},
)
"""Rows of entities that have values of every type: extremes, empty ones and nulls."""
