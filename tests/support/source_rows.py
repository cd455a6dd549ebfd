"""Records as rows of the source ``raftlog``, without reading files or starting Spark.

Implemented separately from the source, so that tests of tables do not depend on it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa

from raftlog.records import encode_control
from raftlog.records.control import UnknownControl, control_json
from raftlog_state.loader.metadata_loader import LogRecord
from raftlog_state.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    DecodedRecord,
    EndTransactionRecord,
    Redactor,
    decode,
    encode,
    to_json,
)
from tests.support.redaction import redact_value

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("leaderEpoch", pa.int32()),
        ("visibleOffset", pa.int64()),
        ("recordType", pa.string()),
        ("recordVersion", pa.int32()),
        ("record", pa.string()),
        ("snapshotPosition", pa.int32()),
        ("controlType", pa.string()),
        ("producerId", pa.int64()),
    ]
)


def source_rows(records: Iterable[LogRecord], *, redact: bool = True) -> pa.Table:
    """Return the rows of a log's records, control and aborted records included."""
    redactor = Redactor(reveal=not redact)
    rows = [_row(record, redactor) for record in records]
    begin: int | None = None
    for at, record in enumerate(rows):
        kind = record["recordType"]
        if kind == BeginTransactionRecord.schema.json_type:
            begin = at
        elif begin is not None and kind in _ENDS:
            visible = record["offset"] if kind == _ENDS[0] else None
            for inside in rows[begin : at + 1]:
                if inside["controlType"] is None:
                    inside["visibleOffset"] = visible
            begin = None
    return pa.Table.from_pylist(rows, schema=SCHEMA)


_ENDS = (EndTransactionRecord.schema.json_type, AbortTransactionRecord.schema.json_type)


def without_secrets(records: Iterable[LogRecord]) -> list[LogRecord]:
    """Return the same records with secrets redacted, as the source returns them by default."""
    redactor = Redactor()

    def shown(record: LogRecord) -> LogRecord:
        payload = record.payload
        if isinstance(payload, bytes):
            return replace(record, payload=redact_value(redactor, payload))
        if isinstance(payload, DecodedRecord):
            return replace(record, payload=redactor.redact(payload))
        return record

    return [shown(record) for record in records]


def checkpoint_rows(
    records: Iterable[LogRecord], *, end_offset: int, epoch: int, timestamp_ms: int
) -> pa.Table:
    """Return the rows of a snapshot's records, all at the offset of the last contained record."""
    rows = source_rows(records).to_pylist()
    for position, row in enumerate(rows):
        row |= {
            "snapshotPosition": position,
            "offset": end_offset - 1,
            "visibleOffset": end_offset - 1,
            "leaderEpoch": epoch,
            "timestamp": timestamp_ms * 1_000,
        }
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def _row(record: LogRecord, redactor: Redactor) -> dict[str, object]:
    row: dict[str, object] = {
        "topic": "__cluster_metadata",
        "partition": 0,
        "offset": record.offset,
        "timestamp": record.timestamp_ms * 1_000,
        "leaderEpoch": record.leader_epoch,
        "visibleOffset": record.offset,
        "recordType": None,
        "controlType": None,
    }
    payload = decode(record.payload) if isinstance(record.payload, bytes) else record.payload
    if isinstance(payload, DecodedRecord):
        shown = redactor.redact(payload)
        found = to_json(shown)
        return row | {
            "value": encode(shown),
            "recordType": found["type"],
            "recordVersion": found["version"],
            "record": _json(found["data"]),
        }
    assert payload is not None, "metadata records have values"
    assert not isinstance(payload, UnknownControl)
    key, value = encode_control(payload)
    return row | {
        "key": key,
        "value": value,
        "record": _json(control_json(payload)),
        "controlType": payload.control_type.name.lower(),
    }


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
