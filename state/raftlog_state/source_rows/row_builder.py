"""Conversion of a scan's columns to Arrow batches of rows.

Only requested columns are read, decoded and built; ``_RULES`` declares the scan columns that each
column needs. Python objects are created only for control records and for metadata records that must
be decoded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from raftlog.append import HEADER_PREFIX
from raftlog.errors import CorruptBatchError, RaftlogError
from raftlog.limits import ARROW_ROWS_DEFAULT, MIB
from raftlog.records.control import control_json, control_name, decode_control
from raftlog.records.scan import Column
from raftlog_state.errors import MetadataParseError
from raftlog_state.records import decode
from raftlog_state.records.typed_columns import TYPED_COLUMNS

from .columns import COLUMNS, arrow_schema
from .metadata_columns import MetadataColumns
from .transactions import NEVER, TransactionLookup, transactional_producers

if TYPE_CHECKING:
    from raftlog.records.scan import Scan
    from raftlog.types import SnapshotId
    from raftlog_state.records import DecodedRecord, MetadataRecord, Redactor

    from .internal_columns import InternalColumns, InternalFormat

BATCH_BYTES_SOFT_MAX: Final = 32 * MIB
"""Small batches are concatenated up to this size, regardless of ``recordBatchRows``."""

_MICROSECONDS: Final = 1_000
_TIMESTAMP_MS_MAX: Final = (2**63 - 1) // _MICROSECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPosition:
    """Columns that all rows of a snapshot share: the state of the log below ``id.end_offset``."""

    id: SnapshotId
    timestamp_ms: int
    """Last log timestamp in the snapshot, not the time at which the file was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBuilder:
    """Builder of the rows of one partition.

    ``redactor`` is None if values are not metadata records, and ``internal`` is None if they are
    not another internal log's. If both are None, the columns about records are null. ``snapshot``
    is None for rows of the log. ``hide_reserved_headers``: raftlog wrote the log, and its reserved
    headers are omitted. ``decoded`` receives decoded records.
    """

    columns: tuple[str, ...]
    path: str
    topic: str
    partition: int
    cluster_id: str | None
    transactions: TransactionLookup
    redactor: Redactor | None
    internal: InternalFormat | None = None
    snapshot: SnapshotPosition | None = None
    with_control: bool = False
    with_aborted: bool = False
    hide_reserved_headers: bool = False
    row_count_max: int = ARROW_ROWS_DEFAULT
    decoded: dict[bytes, DecodedRecord] | None = None

    def scan_columns(self) -> Column:
        """Return the columns that the scan must build; always offsets, to find transactions."""
        needed = Column.OFFSET
        for name in self.columns:
            needed |= _RULES[name].needs
            if self.redactor is not None:
                needed |= _RULES[name].needs_of_metadata
            if self.internal is not None and (_RULES[name].needs_of_metadata or _is_bytes(name)):
                needed |= _KEY_AND_VALUE
            if self.with_control:
                needed |= _RULES[name].needs_of_control
        return needed

    def build(self, scan: Scan) -> Iterator[pa.RecordBatch]:
        """Yield the visible rows of ``scan``, at most ``row_count_max`` at a time.

        Rows before an error are yielded first.

        Raises:
            CorruptBatchError: a metadata record in a valid batch cannot be parsed; or the outcome
                of a transaction is unknown because the log is damaged after the scan.
            DataLossError: the outcome of a transaction is unknown because the log ends before it.
        """
        assert scan.records.offset is not None
        offset = scan.records.offset.to_numpy()
        visibility = self.transactions.visibility(scan, offset)
        hidden: npt.NDArray[np.bool_] = np.zeros(len(scan.records), dtype=np.bool_)
        if visibility.known_end is not None:
            hidden |= offset >= visibility.known_end
        if not self.with_control:
            hidden |= scan.records.is_control
        if not self.with_aborted:
            hidden |= visibility.aborted
        which = np.flatnonzero(~hidden) if hidden.any() else None
        row_count = len(hidden) if which is None else len(which)
        for start in range(0, row_count, self.row_count_max):
            part = slice(start, min(start + self.row_count_max, row_count))
            rows = _Rows(self, scan, part if which is None else which[part], visibility.offset)
            try:
                cells = [self._rule(name)(rows) for name in self.columns]
            except MetadataParseError as error:
                raise rows.corrupt_batch_error(error) from None
            yield pa.RecordBatch.from_arrays(cells, schema=arrow_schema(self.columns))
        if visibility.error is not None:
            raise visibility.error

    def _rule(self, name: str) -> Callable[[_Rows], pa.Array]:
        if self.snapshot is not None and name in _SNAPSHOT_RULES:
            return _SNAPSHOT_RULES[name]
        return _RULES[name].make


class _Rows:
    """Selected records of a scan."""

    def __init__(
        self,
        builder: RowBuilder,
        scan: Scan,
        which: slice | npt.NDArray[np.int64],
        visible_offset: npt.NDArray[np.int64],
    ) -> None:
        self.builder = builder
        self.scan = scan
        self._which = which
        self._visible_offset = visible_offset
        self.row_count = which.stop - which.start if isinstance(which, slice) else len(which)

    def column(self, name: str) -> pa.Array:
        """Return an Arrow column of the scan's records."""
        column = getattr(self.scan.records, name)
        assert column is not None, f"{name} was not requested"
        if isinstance(self._which, slice):
            return column.slice(self._which.start, self.row_count)
        return column.take(pa.array(self._which))

    def numbers(self, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a numpy column of the scan's records."""
        return column[self._which]

    def of_batch(self, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the value of each row's batch."""
        return np.asarray(column[self.numbers(self.scan.records.batch_ordinal)])

    def repeated(self, value: str | int | None, kind: pa.DataType) -> pa.Array:
        """Return a column with the same value in every row."""
        return pa.repeat(pa.scalar(value, kind), self.row_count)

    def visible_offset(self) -> pa.Array:
        visible = self.numbers(self._visible_offset)
        return pa.array(visible, mask=visible == NEVER)

    def producer_id(self) -> pa.Array:
        producers = self.of_batch(transactional_producers(self.scan.batches))
        return pa.array(producers, pa.int64(), mask=producers < 0)

    @cached_property
    def is_control(self) -> npt.NDArray[np.bool_]:
        return self.numbers(self.scan.records.is_control)

    @cached_property
    def metadata(self) -> MetadataColumns | None:
        """Columns about metadata records, null for control records; None in other logs."""
        if self.builder.redactor is None:
            return None
        values = self.column("value")
        if self.is_control.any():
            values = _if_else(self.is_control, pa.scalar(None, pa.binary()), values)
        kinds = [kind for name, kind in TYPED_COLUMNS.items() if name in self.builder.columns]
        return MetadataColumns(values, self.builder.redactor, self.builder.decoded, kinds)

    @cached_property
    def internal(self) -> InternalColumns | None:
        """Columns about the records of another internal log; None in other logs."""
        form = self.builder.internal
        if form is None:
            return None
        from .internal_columns import InternalColumns  # formats that other logs do not need

        is_control = self.is_control.tolist()
        return InternalColumns(self.column("key"), self.column("value"), is_control, form)

    def key(self) -> pa.Array:
        return self.column("key") if self.internal is None else self.internal.key

    def value(self) -> pa.Array:
        if self.internal is not None:
            return self.internal.value
        if self.metadata is None:
            return self.column("value")
        if not self.is_control.any():
            return self.metadata.value
        return _if_else(self.is_control, self.column("value"), self.metadata.value)

    def record(self) -> pa.Array:
        columns = self.metadata or self.internal
        if columns is None:
            return self.control_texts(_control_record)
        if not self.is_control.any():
            return columns.record
        return _if_else(self.is_control, self.control_texts(_control_record), columns.record)

    def headers(self) -> pa.Array:
        headers = self.column("headers")
        if self.builder.hide_reserved_headers:
            headers = _without_reserved(headers)
        return headers.cast(COLUMNS["headers"])

    def control_texts(self, text_of: Callable[[bytes, bytes | None], str]) -> pa.Array:
        """Return a text for each control record, from key and value; null for other records."""
        if not self.is_control.any():
            return self.repeated(None, pa.string())
        texts: list[str | None] = [None] * self.row_count
        keys, values = self.column("key"), self.column("value")
        for row in np.flatnonzero(self.is_control).tolist():
            texts[row] = text_of(keys[row].as_py(), values[row].as_py())
        return pa.array(texts, pa.string())

    def corrupt_batch_error(self, error: MetadataParseError) -> CorruptBatchError:
        """Return the error with the offset of the record that cannot be parsed."""
        offset = None
        offsets, values = self.column("offset"), self.column("value")
        path = self.builder.path
        if self.internal is not None:
            damaged = self.internal.damaged_row()
            offset = None if damaged is None else offsets[damaged].as_py()
            return CorruptBatchError(reason=error.message(), path=path, offset=offset)
        for row in np.flatnonzero(~self.is_control).tolist():
            try:
                decode(values[row].as_py() or b"")
            except MetadataParseError:
                offset = offsets[row].as_py()
                break
        return CorruptBatchError(reason=error.message(), path=path, offset=offset)


def _timestamps(timestamp_ms: npt.NDArray[np.int64]) -> pa.Array:
    """Convert milliseconds to Spark's microseconds; null if they do not fit into int64."""
    fits = (timestamp_ms <= _TIMESTAMP_MS_MAX) & (timestamp_ms >= -_TIMESTAMP_MS_MAX)
    microseconds = np.where(fits, timestamp_ms, 0) * _MICROSECONDS
    return pa.array(microseconds, mask=~fits).view(COLUMNS["timestamp"])


def _if_else(which: npt.NDArray[np.bool_], left: pa.Array | pa.Scalar, right: pa.Array) -> pa.Array:
    """Return ``left`` where ``which`` is true, ``right`` elsewhere."""
    return pc.call_function("if_else", [pa.array(which), left, right])


def _without_reserved(headers: pa.ListArray) -> pa.ListArray:
    """Remove headers with reserved keys. Headers of a scan are never null."""
    bounds = headers.offsets.to_numpy()
    values = headers.values.slice(bounds[0], bounds[-1] - bounds[0])
    names = values.field("key")
    options = pc.MatchSubstringOptions(HEADER_PREFIX)
    is_reserved = pc.call_function("starts_with", [names], options)
    kept = ~is_reserved.to_numpy(zero_copy_only=False)
    if kept.all():
        return headers
    kept_before = np.concatenate(([0], np.cumsum(kept, dtype=np.int32)))
    offsets = pa.array(kept_before[bounds - bounds[0]], pa.int32())
    return pa.ListArray.from_arrays(offsets, values.filter(pa.array(kept)))


def _control_record(key: bytes, value: bytes | None) -> str:
    return json.dumps(control_json(decode_control(key, value)), separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class _ColumnRule:
    """Function that builds a column, and the scan columns that it needs.

    These are needed always, for metadata records, or for control records.
    """

    make: Callable[[_Rows], pa.Array]
    needs: Column = Column.NONE
    needs_of_metadata: Column = Column.NONE
    needs_of_control: Column = Column.NONE


def _metadata_rule(name: str, kind: pa.DataType) -> _ColumnRule:
    def make(rows: _Rows) -> pa.Array:
        columns = rows.metadata or rows.internal
        return rows.repeated(None, kind) if columns is None else getattr(columns, name)

    return _ColumnRule(make, needs_of_metadata=Column.VALUE)


def _typed_rule(name: str, record: type[MetadataRecord]) -> _ColumnRule:
    def make(rows: _Rows) -> pa.Array:
        columns = rows.metadata
        if columns is None:
            return rows.repeated(None, COLUMNS[name])
        return columns.fields(record)

    return _ColumnRule(make, needs_of_metadata=Column.VALUE)


def _record_key(rows: _Rows) -> pa.Array:
    columns = rows.internal
    return rows.repeated(None, pa.string()) if columns is None else columns.record_key


def _is_bytes(name: str) -> bool:
    """Return whether a column contains bytes of the log, which full redaction changes."""
    return name in ("key", "value")


_KEY_AND_VALUE: Final = Column.KEY | Column.VALUE

_RULES: Final[Mapping[str, _ColumnRule]] = {
    "clusterId": _ColumnRule(lambda rows: rows.repeated(rows.builder.cluster_id, pa.string())),
    "key": _ColumnRule(_Rows.key, Column.KEY),
    "value": _ColumnRule(_Rows.value, Column.VALUE),
    "topic": _ColumnRule(lambda rows: rows.repeated(rows.builder.topic, pa.string())),
    "partition": _ColumnRule(lambda rows: rows.repeated(rows.builder.partition, pa.int32())),
    "offset": _ColumnRule(lambda rows: rows.column("offset"), Column.OFFSET),
    "timestamp": _ColumnRule(
        lambda rows: _timestamps(rows.column("timestamp_ms").to_numpy()), Column.TIMESTAMP
    ),
    "timestampType": _ColumnRule(
        lambda rows: pa.array(rows.of_batch(rows.scan.batches.is_log_append_time).astype(np.int32))
    ),
    "leaderEpoch": _ColumnRule(lambda rows: rows.column("leader_epoch"), Column.LEADER_EPOCH),
    "visibleOffset": _ColumnRule(_Rows.visible_offset, Column.OFFSET),
    "recordType": _metadata_rule("record_type", pa.string()),
    "recordVersion": _metadata_rule("record_version", pa.int32()),
    "recordKey": _ColumnRule(_record_key, needs_of_metadata=Column.VALUE),
    "record": _ColumnRule(
        _Rows.record, needs_of_metadata=Column.VALUE, needs_of_control=_KEY_AND_VALUE
    ),
    **{name: _typed_rule(name, record) for name, record in TYPED_COLUMNS.items()},
    "snapshotPosition": _ColumnRule(lambda rows: rows.repeated(None, pa.int32())),
    "headers": _ColumnRule(_Rows.headers, Column.HEADERS),
    "controlType": _ColumnRule(
        lambda rows: rows.control_texts(lambda key, _: control_name(key)),
        needs_of_control=_KEY_AND_VALUE,
    ),
    "producerId": _ColumnRule(_Rows.producer_id),
}
assert _RULES.keys() == COLUMNS.keys()


def _snapshot_position(rows: _Rows) -> SnapshotPosition:
    assert rows.builder.snapshot is not None
    return rows.builder.snapshot


def _last_offset(rows: _Rows) -> pa.Array:
    return rows.repeated(_snapshot_position(rows).id.end_offset - 1, pa.int64())


_SNAPSHOT_RULES: Final[Mapping[str, Callable[[_Rows], pa.Array]]] = {
    "offset": _last_offset,
    "visibleOffset": _last_offset,
    "leaderEpoch": lambda rows: rows.repeated(_snapshot_position(rows).id.epoch, pa.int32()),
    "timestamp": lambda rows: _timestamps(
        np.full(rows.row_count, _snapshot_position(rows).timestamp_ms, dtype=np.int64)
    ),
    "snapshotPosition": lambda rows: rows.column("offset").cast(pa.int32()),
}
"""Columns whose values differ in rows of a snapshot."""


def rebatch(batches: Iterable[pa.RecordBatch], row_count: int) -> Iterator[pa.RecordBatch]:
    """Split large batches, and concatenate batches with less than a quarter of ``row_count`` rows.

    Larger ones are not worth a copy. No batch has more than ``row_count`` rows, and none is empty.
    Rows before an error of ``batches`` are yielded first.
    """
    enough = -(-row_count // 4)
    pending: list[pa.RecordBatch] = []
    pending_rows = pending_bytes = 0
    try:
        for batch in batches:
            for start in range(0, batch.num_rows, row_count):
                part = batch if batch.num_rows <= row_count else batch.slice(start, row_count)
                is_full = pending_rows >= enough or pending_rows + part.num_rows > row_count
                if pending and (is_full or pending_bytes > BATCH_BYTES_SOFT_MAX):
                    yield from _concatenated(pending)
                    pending, pending_rows, pending_bytes = [], 0, 0
                pending.append(part)
                pending_rows += part.num_rows
                if pending_rows < enough:
                    pending_bytes += part.nbytes
    except RaftlogError:
        if pending:
            yield from _concatenated(pending)
        raise
    if pending:
        yield from _concatenated(pending)


def _concatenated(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return the batches as one, even with pyarrow 17, which lacks ``concat_batches``."""
    if len(batches) == 1:
        return batches
    return list(pa.Table.from_batches(batches).combine_chunks().to_batches())
