"""Conversion of rows to records: checked and encoded on executors, assembled on the driver.

An executor sends the columns of ``MESSAGE_COLUMNS`` that the DataFrame has, with encoded values,
and only after all of its rows have been checked. An invalid row raises ``InvalidRowError``, which
contains its position, never its values. Values of type bytes are converted without a Python object
for each row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from raftlog import ValueKind
from raftlog.client.user_records import HEADER_PREFIX
from raftlog.errors import InvalidRowError
from raftlog.records.encoding import RecordToAppend
from raftlog.records.header import RECORD_BYTES_MIN
from raftlog.records.record import Header, NewRecord

from .write_schema import InputColumns, RecordForm
from .write_values import (
    InvalidValueError,
    check_kraft,
    check_msgpack,
    kraft_value,
    msgpack_value,
    parse_json,
    plain_of,
)

if TYPE_CHECKING:
    from raftlog_state.record_versions import RecordVersions

_HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
MESSAGE_COLUMNS: Final = {
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": pa.list_(pa.field("element", _HEADER)),
    "timestamp": pa.timestamp("ms", "UTC"),
}
"""Columns that executors send, with their types."""

_HEADER_BYTES_MIN: Final = 2
"""Minimum size of a header: two varint lengths."""


def message_schema(columns: InputColumns) -> pa.Schema:
    """Return the schema that executors send for a DataFrame with these columns."""
    names = [name for name in MESSAGE_COLUMNS if name == "value" or name in columns.names]
    return pa.schema([pa.field(name, MESSAGE_COLUMNS[name]) for name in names])


class RowConverter:
    """Converter of the rows of one task, batch by batch."""

    def __init__(
        self,
        columns: InputColumns,
        values: ValueKind,
        partition: int,
        versions: RecordVersions | None = None,
    ) -> None:
        self._columns = columns
        self._values = values
        self._partition = partition
        self._versions = versions
        self._schema = message_schema(columns)
        self.row_count = 0

    def convert(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Convert rows to columns of ``MESSAGE_COLUMNS``. Raises ``InvalidRowError``."""
        arrays = {
            "value": self._values_of(rows),
            "key": self._column(rows, "key"),
            "headers": self._headers(rows),
            "timestamp": self._timestamps(rows),
        }
        converted = pa.RecordBatch.from_arrays(
            [arrays[field.name] for field in self._schema], schema=self._schema
        )
        self.row_count += rows.num_rows
        return converted

    def _column(self, rows: pa.RecordBatch, name: str) -> pa.Array | None:
        return (
            rows.column(name).cast(MESSAGE_COLUMNS[name]) if name in self._columns.names else None
        )

    def _values_of(self, rows: pa.RecordBatch) -> pa.Array:
        if self._columns.form is not RecordForm.VALUE:
            return self._typed_values(rows)
        values = rows.column("value").cast(MESSAGE_COLUMNS["value"])
        match self._values:
            case ValueKind.MSGPACK:
                self._check_each(values, check_msgpack)
            case ValueKind.KRAFT:
                self._check_each(values, check_kraft)
            case ValueKind.BYTES:
                pass
        return values

    def _check_each(self, values: pa.Array, check: Callable[[bytes | None], None]) -> None:
        for at, value in enumerate(values.to_pylist()):
            try:
                check(value)
            except InvalidValueError as invalid:
                raise self._row_error(at, invalid.column, invalid.reason) from None

    def _typed_values(self, rows: pa.RecordBatch) -> pa.Array:
        types = rows.column("recordType").to_pylist()
        versions: Sequence[int | None] = [None] * len(types)
        if "recordVersion" in self._columns.names:
            versions = rows.column("recordVersion").to_pylist()
        records = rows.column("record")
        plain = plain_of(records.type, self._values)
        encoded = []
        for at, (kind, version, record) in enumerate(
            zip(types, versions, records.to_pylist(), strict=True)
        ):
            try:
                if record is None:
                    raise InvalidValueError("record", "is null")
                if self._columns.form is RecordForm.JSON:
                    fields = parse_json(record)
                else:
                    fields = plain(record) if plain else record
                encoded.append(self._typed_value(kind, version, fields))
            except InvalidValueError as invalid:
                raise self._row_error(at, invalid.column, invalid.reason) from None
        return pa.array(encoded, MESSAGE_COLUMNS["value"])

    def _typed_value(self, kind: Any, version: int | None, fields: Any) -> bytes:
        if self._values is ValueKind.MSGPACK:
            return msgpack_value(kind, version, fields)
        return kraft_value(kind, version, fields, self._columns.form, self._versions)

    def _headers(self, rows: pa.RecordBatch) -> pa.Array | None:
        headers = self._column(rows, "headers")
        if headers is None:
            return None
        names = pc.call_function("struct_field", [headers.flatten()], pc.StructFieldOptions([0]))
        prefix = pc.MatchSubstringOptions(HEADER_PREFIX)
        reserved = pc.call_function("starts_with", [names], prefix)
        if names.null_count or pc.call_function("any", [reserved]).as_py():
            self._raise_invalid_header(headers)
        return headers

    def _raise_invalid_header(self, headers: pa.Array) -> None:
        for at, row in enumerate(headers.to_pylist()):
            for header in row or ():
                if header is None or header["key"] is None:
                    raise self._row_error(at, "headers", "has a header without a key")
                if header["key"].startswith(HEADER_PREFIX):
                    reason = f"has a header with the reserved prefix {HEADER_PREFIX!r}"
                    raise self._row_error(at, "headers", reason)
        raise AssertionError("an invalid header was found")

    def _timestamps(self, rows: pa.RecordBatch) -> pa.Array | None:
        if "timestamp" not in self._columns.names:
            return None
        times = rows.column("timestamp").cast(MESSAGE_COLUMNS["timestamp"], safe=False)
        for at in _first_negative(times.view(pa.int64())):
            raise self._row_error(at, "timestamp", "is before 1970")
        return times

    def _row_error(self, at: int, column: str, reason: str) -> InvalidRowError:
        return InvalidRowError(
            column=column, partition=self._partition, row=self.row_count + at, reason=reason
        )


def _first_negative(numbers: pa.Array) -> list[int]:
    """Return a list with the index of the first negative number, or an empty list."""
    which = pc.call_function("less", [numbers, pa.scalar(0, pa.int64())])
    found: list[int] = pc.call_function("indices_nonzero", [which]).slice(0, 1).to_pylist()
    return found


def min_byte_count(rows: pa.RecordBatch) -> int:
    """Return the minimum size of the records in an uncompressed batch."""
    byte_count: int = rows.num_rows * RECORD_BYTES_MIN
    parts = [rows.column(name) for name in ("key", "value") if name in rows.schema.names]
    if "headers" in rows.schema.names:
        headers = rows.column("headers").flatten()
        byte_count += len(headers) * _HEADER_BYTES_MIN
        parts += [headers.field("key").cast(pa.binary()), headers.field("value")]
    for part in parts:
        lengths = pc.call_function("binary_length", [part])
        byte_count += pc.call_function("sum", [lengths]).as_py() or 0
    return byte_count


def records_of(rows: pa.Table) -> list[RecordToAppend]:
    """Convert columns of ``MESSAGE_COLUMNS`` to records, in order."""
    return [record for batch in rows.to_batches() for record in _records_of(batch)]


def _records_of(rows: pa.RecordBatch) -> Iterator[RecordToAppend]:
    names = rows.schema.names
    values = rows.column("value").to_pylist()
    if names == ["value"] and None not in values:
        yield from values
        return
    nothing: list[Any] = [None] * rows.num_rows
    keys = rows.column("key").to_pylist() if "key" in names else nothing
    headers = rows.column("headers").to_pylist() if "headers" in names else nothing
    times = nothing
    if "timestamp" in names:
        times = rows.column("timestamp").view(pa.int64()).to_pylist()
    for key, value, given, time_ms in zip(keys, values, headers, times, strict=True):
        record_headers = tuple([Header(one["key"], one["value"]) for one in given or ()])
        if key is None and time_ms is None and not record_headers and value is not None:
            yield value
        else:
            yield NewRecord(key, value, time_ms, record_headers)
