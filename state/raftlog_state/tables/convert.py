"""Rows of the fold to columns of the tables and back.

Rules of this file:

1. What goes in comes out: ``row_of(entity, columns_of(row)) == row`` for every row, but for what a
   TIMESTAMP cannot hold (a token's time beyond the year 294 000 is cut there).
2. Values are what Arrow takes: lists, dictionaries for structs, pairs for maps, microseconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

import pyarrow as pa

from raftlog_state.delta import RecordChanges, RowChange
from raftlog_state.records import MASK
from raftlog_state.rows import (
    ROW_TYPES,
    BrokerRow,
    ConfigRow,
    ControllerRow,
    Endpoint,
    Entity,
    FeatureRange,
    QuotaRow,
    Row,
    TokenRow,
    TransactionOutcome,
    TransactionRow,
    Voter,
    VoterEndpoint,
)

from .schema import BY_ENTITY, CHANGES_COLUMNS, arrow_schema, struct

MICROSECONDS: Final = 1_000
_LONG_MAX: Final = 2**63 - 1
_KEYED_HASH: Final = re.compile(r"hmac:[0-9a-f]{32}")
_TOKEN_TIMES: Final = ("issue_timestamp", "max_timestamp", "expiration_timestamp")
_CHANGES_ARROW: Final = arrow_schema(struct(CHANGES_COLUMNS))

Columns = dict[str, Any]


def microseconds(timestamp_ms: int) -> int:
    """Kafka's milliseconds as what a TIMESTAMP counts, cut to what it can hold."""
    return max(-_LONG_MAX, min(_LONG_MAX, timestamp_ms * MICROSECONDS))


def columns_of(row: Row) -> Columns:
    """A row's columns by name."""
    special = _SPECIAL_COLUMNS.get(type(row))
    found = {} if special is None else special(row)
    for name in BY_ENTITY[row.ENTITY].columns:
        if name not in found:
            found[name] = _plain(getattr(row, name))
    return found


def row_of(entity: Entity, columns: Mapping[str, Any]) -> Row:
    """The row that a table's columns are, as ``plain_rows`` gives them."""
    kind = ROW_TYPES[entity]
    special = _SPECIAL_ROWS.get(entity)
    found = {} if special is None else special(columns)
    for part in fields(kind):
        if part.name not in found:
            found[part.name] = _frozen(columns[part.name])
    return kind(**found)


def plain_rows(table: pa.Table) -> list[Columns]:
    """An Arrow table as dictionaries; a TIMESTAMP is its microseconds, for it may be in no year
    that Python knows."""
    plain = [pa.field(part.name, _without_time(part.type)) for part in table.schema]
    return list(table.cast(pa.schema(plain)).to_pylist())


def _without_time(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(part.name, _without_time(part.type)) for part in kind])
    return kind


def changes_table(record_changes: Iterable[RecordChanges], shared: Columns) -> pa.Table:
    """Return rows of ``changes``; ``shared`` has the columns that identify the log."""
    rows: list[Columns] = []
    seqs: dict[int, int] = {}
    for record in record_changes:
        for change in record.changes:
            seq = seqs.get(record.offset, 0)
            seqs[record.offset] = seq + 1
            rows.append(_change(record, change, seq) | shared)
    return pa.Table.from_pylist(rows, schema=_CHANGES_ARROW)


def _change(record: RecordChanges, change: RowChange, seq: int) -> Columns:
    return {
        "offset": record.offset,
        "seq": seq,
        "visible_offset": record.visible_offset,
        "leader_epoch": record.leader_epoch,
        "log_time": microseconds(record.timestamp_ms),
        "record_type": record.record_type,
        "entity": str(change.entity),
        "key": change.key_json,
        "op": str(change.op),
        "changed": list(change.changed),
        "before": None if change.before is None else {change.entity: columns_of(change.before)},
        "after": None if change.after is None else {change.entity: columns_of(change.after)},
    }


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Endpoint | Voter | VoterEndpoint):
        return {part.name: _plain(getattr(value, part.name)) for part in fields(value)}
    return value


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


# --- what is not the same on both sides -----------------------------------------------------------


def _config_columns(row: ConfigRow) -> Columns:
    hidden = row.value == MASK or _KEYED_HASH.fullmatch(row.value) is not None
    return {"redacted": hidden}


def _token_columns(row: TokenRow) -> Columns:
    return {name: microseconds(getattr(row, f"{name}_ms")) for name in _TOKEN_TIMES}


def _node_columns(row: BrokerRow | ControllerRow) -> Columns:
    features = [
        (of.name, {"min_version": of.min_version, "max_version": of.max_version})
        for of in row.features
    ]
    return {"features": features}


def _quota_columns(row: QuotaRow) -> Columns:
    return {"entity": list(row.entity)}


def _transaction_columns(row: TransactionRow) -> Columns:
    return {"outcome": str(row.outcome)}


_SPECIAL_COLUMNS: Final[Mapping[type[Row], Callable[[Any], Columns]]] = {
    ConfigRow: _config_columns,
    TokenRow: _token_columns,
    BrokerRow: _node_columns,
    ControllerRow: _node_columns,
    QuotaRow: _quota_columns,
    TransactionRow: _transaction_columns,
}


def _token_row(columns: Mapping[str, Any]) -> Columns:
    return {f"{name}_ms": columns[name] // MICROSECONDS for name in _TOKEN_TIMES}


def _node_row(columns: Mapping[str, Any]) -> Columns:
    features = sorted(columns["features"])
    return {
        "endpoints": tuple(Endpoint(**endpoint) for endpoint in columns["endpoints"]),
        "features": tuple(FeatureRange(name, **levels) for name, levels in features),
    }


def _quota_row(columns: Mapping[str, Any]) -> Columns:
    return {"entity": tuple(sorted(columns["entity"], key=_first))}


def _first(pair: Sequence[Any]) -> Any:
    return pair[0]


def _epoch_row(columns: Mapping[str, Any]) -> Columns:
    return {"voters": tuple(_voter(voter) for voter in columns["voters"])}


def _voter(columns: Mapping[str, Any]) -> Voter:
    endpoints = tuple(VoterEndpoint(**endpoint) for endpoint in columns["endpoints"])
    return Voter(**{**columns, "endpoints": endpoints})


def _transaction_row(columns: Mapping[str, Any]) -> Columns:
    return {"outcome": TransactionOutcome(columns["outcome"])}


_SPECIAL_ROWS: Final[Mapping[Entity, Callable[[Mapping[str, Any]], Columns]]] = {
    Entity.TOKEN: _token_row,
    Entity.BROKER: _node_row,
    Entity.CONTROLLER: _node_row,
    Entity.QUOTA: _quota_row,
    Entity.EPOCH: _epoch_row,
    Entity.TRANSACTION: _transaction_row,
}
