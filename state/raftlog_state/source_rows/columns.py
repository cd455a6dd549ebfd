"""Columns of a log's rows, with their Arrow types.

After the cluster id, the first columns have the names and types of Spark's Kafka source, followed
by the leader epoch. All columns are nullable, so that Arrow's nullability always equals Spark's.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import pyarrow as pa

from raftlog_state.records.typed_columns import TYPED_COLUMNS, struct_type

_HEADERS: Final = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)

COLUMNS: Final[Mapping[str, pa.DataType]] = {
    "clusterId": pa.string(),
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "leaderEpoch": pa.int32(),
    "visibleOffset": pa.int64(),
    "recordType": pa.string(),
    "recordVersion": pa.int32(),
    "recordKey": pa.string(),
    "record": pa.string(),
    **{name: struct_type(kind) for name, kind in TYPED_COLUMNS.items()},
    "snapshotPosition": pa.int32(),
    "headers": _HEADERS,
    "controlType": pa.string(),
    "producerId": pa.int64(),
}
"""Name to the Arrow type that Spark requires for the column.

- ``clusterId``: the log's cluster id, in a read of several logs
- ``visibleOffset``: where the record took effect, the end of its metadata transaction; null if the
  transaction was aborted or is open
- ``recordKey`` and ``record``: the redacted fields of an internal record's key and value as JSON;
  metadata records have no key, and for control records ``record`` contains their fields
- ``topic_record`` and the other names of record types: the redacted fields of such a record, null
  for other records
- ``snapshotPosition``: the position in the file of a snapshot's row, null for rows of the log
- ``controlType``: the name of a control record's type
- ``producerId``: the producer of the record's transaction, or of the one that a marker ends; null
  for other records
"""


@lru_cache
def arrow_schema(columns: tuple[str, ...]) -> pa.Schema:
    """Return the schema of Arrow batches with these columns."""
    return pa.schema([pa.field(name, COLUMNS[name]) for name in columns])
