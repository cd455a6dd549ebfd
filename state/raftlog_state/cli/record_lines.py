"""Records and batches as the JSON lines of ``raftlog cat``.

A metadata record has ``offset``, ``leaderEpoch``, ``timestamp`` (ms), then ``type``, ``version``
and ``data`` as kafka-dump-log prints them. So has a control record, with the type's name in Kafka's
``ControlRecordType``. A record of an ordinary partition has ``key``, ``value`` and ``headers``:
UTF-8 as text, other bytes as base64 in ``keyBase64`` and ``valueBase64``, null as null. A batch has
kafka-dump-log's fields, and ``file``, the segment that ``position`` refers to.

Memory is bounded: columns are converted to Python objects in slices, and a record that is larger
than a slice is written as a line in parts.
"""

from __future__ import annotations

import base64
import codecs
import json
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from raftlog.errors import CorruptBatchError, MetadataParseError
from raftlog.limits import KIB, MIB
from raftlog.records import RecordBatch, TimestampType
from raftlog.records.batch_columns import RecordColumns
from raftlog.records.control import EndTransactionMarker, control_json, control_name, decode_control
from raftlog_state.records import NO_OP_VALUE, NoOpRecord, peek

from .output import Line
from .selection import Selection

RecordJson = Callable[[bytes], str]
OnDamage = Callable[[int, str], None]

_SLICE_BYTES_MAX: Final = 1 * MIB
_ROW_BYTES: Final = 64
"""Estimated size of the Python objects of a row or header, in addition to its bytes."""
_PART_BYTES: Final = 48 * KIB
"""Divisible by three, so that the concatenated base64 of parts is the base64 of the whole."""
_INT32_MAX: Final = 2**31 - 1
_TIMESTAMP_NAMES: Final = {
    TimestampType.CREATE_TIME: "CreateTime",
    TimestampType.LOG_APPEND_TIME: "LogAppendTime",
}
_NO_VALUE: Final = "a metadata record without a value"


def metadata_lines(
    records: RecordColumns, selection: Selection, record_json: RecordJson, on_damage: OnDamage
) -> Iterator[str]:
    """Yield the lines of a metadata log's records; ``record_json`` converts and redacts a value.

    A value that cannot be parsed, in a batch with a valid CRC, is reported to ``on_damage`` with
    its offset.
    """
    takes_noop = selection.takes(NoOpRecord.schema.api_key)
    noop_json = record_json(NO_OP_VALUE)  # most records of an idle cluster: converted once
    any_type = selection.api_keys is None and selection.hidden_api_keys <= {
        NoOpRecord.schema.api_key
    }
    controls = records.is_control.tolist()
    keys = _list(records.key, len(records))
    rows = zip(*_offset_columns(records), _list(records.value, len(records)), strict=True)
    for at, (offset, epoch, timestamp_ms, value) in enumerate(rows):
        try:
            if value == NO_OP_VALUE and not controls[at]:
                if not takes_noop:
                    continue
                shown = noop_json
            elif controls[at]:
                if not selection.takes_control(control_name(keys[at])):
                    continue
                shown = _control_json(keys[at], value)
            elif value is None:
                on_damage(offset, _NO_VALUE)
                continue
            elif any_type or selection.takes(peek(value)[0]):
                shown = record_json(value)
            else:
                continue
        except (MetadataParseError, CorruptBatchError) as error:
            on_damage(offset, error.message())
            continue
        yield (f'{{"offset":{offset},"leaderEpoch":{epoch},"timestamp":{timestamp_ms},{shown[1:]}')


def slices(records: RecordColumns) -> Iterator[RecordColumns]:
    """Yield the records in slices of bounded size; a larger record is a slice of its own."""
    ends = np.cumsum(_byte_counts(records) + _ROW_BYTES)
    start = 0
    while start < len(records):
        begun = int(ends[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(ends, begun + _SLICE_BYTES_MAX, side="right")))
        yield _slice(records, start, end)
        start = end


def _byte_counts(records: RecordColumns) -> npt.NDArray[np.int64]:
    """Return the size of each record's key, value and headers, in bytes."""
    byte_count = np.zeros(len(records), np.int64)
    for column in (records.key, records.value):
        if column is not None:
            byte_count += _lengths(column)
    if records.headers is not None and len(records):
        fields = records.headers.flatten()
        ends = np.cumsum(_filled(pc.list_value_length(records.headers)))
        whole = np.cumsum(_lengths(fields.field(0)) + _lengths(fields.field(1)) + _ROW_BYTES)
        byte_count += np.diff(np.concatenate(([0], whole))[ends], prepend=0)
    return byte_count


def _lengths(column: Any) -> npt.NDArray[np.int64]:
    return _filled(pc.binary_length(column))


def _filled(counts: Any) -> npt.NDArray[np.int64]:
    filled: npt.NDArray[np.int64] = counts.fill_null(0).to_numpy(zero_copy_only=False)
    return filled.astype(np.int64)


def _slice(records: RecordColumns, start: int, end: int) -> RecordColumns:
    part: dict[str, Any] = {}
    for field in fields(records):
        column = getattr(records, field.name)
        part[field.name] = None if column is None else column[start:end]
    return RecordColumns(**part)


def partition_lines(
    records: RecordColumns, selection: Selection, on_damage: OnDamage
) -> Iterator[Line]:
    """Yield the lines of one slice of an ordinary partition's records."""
    is_long = len(records) == 1 and int(_byte_counts(records)[0]) > _SLICE_BYTES_MAX
    if is_long and not records.is_control[0]:
        yield _long_line(records)
        return
    controls = records.is_control.tolist()
    count = len(records)
    columns = (_list(records.key, count), _list(records.value, count))
    rows = zip(*_offset_columns(records), *columns, _list(records.headers, count), strict=True)
    for at, (offset, epoch, timestamp_ms, key, value, headers) in enumerate(rows):
        prefix = f'{{"offset":{offset},"leaderEpoch":{epoch},"timestamp":{timestamp_ms},'
        if not controls[at]:
            pairs = [
                f'{{"key":{_text(header["key"])},{_bytes("value", header["value"])}}}'
                for header in headers or ()
            ]
            shown = f'{_bytes("key", key)},{_bytes("value", value)},"headers":[{",".join(pairs)}]}}'
            yield prefix + shown
            continue
        try:
            if selection.takes_control(control_name(key)):
                yield prefix + _control_json(key, value)[1:]
        except CorruptBatchError as error:
            on_damage(offset, error.message())


def _long_line(records: RecordColumns) -> Iterator[str]:
    """Yield the line of one record in parts, so that only one part is in memory."""
    (offset,), (epoch,), (timestamp_ms,) = _offset_columns(records)
    yield f'{{"offset":{offset},"leaderEpoch":{epoch},"timestamp":{timestamp_ms},'
    yield from _bytes_parts("key", _view(records.key))
    yield ","
    yield from _bytes_parts("value", _view(records.value))
    yield ',"headers":['
    assert records.headers is not None, "a requested column"
    pairs: Any = records.headers.flatten()
    for at in range(len(pairs)):
        yield ',{"key":"' if at else '{"key":"'
        yield from _text_parts(_view(pairs.field(0)[at : at + 1]) or memoryview(b""))
        yield '",'
        yield from _bytes_parts("value", _view(pairs.field(1)[at : at + 1]))
        yield "}"
    yield "]}"


def _view(column: Any) -> memoryview | None:
    """Return the bytes of a column's only cell, without copying them."""
    if column is None or not column[0].is_valid:
        return None
    return memoryview(column[0].as_buffer())


def _bytes_parts(name: str, data: memoryview | None) -> Iterator[str]:
    """Yield the text that ``_bytes`` returns, in parts."""
    if data is None or len(data) <= _PART_BYTES:
        yield _bytes(name, None if data is None else bytes(data))
    elif _is_utf8(data):
        yield f'"{name}":"'
        yield from _text_parts(data)
        yield '"'
    else:
        yield f'"{name}Base64":"'
        for at in range(0, len(data), _PART_BYTES):
            yield base64.b64encode(data[at : at + _PART_BYTES]).decode("ascii")
        yield '"'


def _text_parts(data: memoryview) -> Iterator[str]:
    """Yield UTF-8 as the content of a JSON string, without quotes."""
    for text in _decoded(data):
        yield _text(text)[1:-1]


def _is_utf8(data: memoryview) -> bool:
    try:
        for _ in _decoded(data):
            pass
    except UnicodeDecodeError:
        return False
    return True


def _decoded(data: memoryview) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    for at in range(0, len(data), _PART_BYTES):
        yield decoder.decode(data[at : at + _PART_BYTES])
    yield decoder.decode(b"", final=True)


def batch_line(batch: RecordBatch, file_name: str | None) -> str:
    """Return the line of a batch with a valid CRC (Kafka: ``DumpLogSegments.printBatchLevel``).

    ``file_name`` is None for a batch that was fetched from a node, and so has no position.
    """
    fields: dict[str, Any] = {
        "baseOffset": batch.base_offset,
        "lastOffset": batch.last_offset,
        "count": batch.record_count,
        "baseSequence": batch.base_sequence,
        "lastSequence": _last_sequence(batch),
        "producerId": batch.producer_id,
        "producerEpoch": batch.producer_epoch,
        "partitionLeaderEpoch": batch.leader_epoch,
        "isTransactional": batch.is_transactional,
        "isControl": batch.is_control,
        "deleteHorizonMs": batch.delete_horizon_ms,
        "position": None if file_name is None else batch.position,
        _TIMESTAMP_NAMES[batch.timestamp_type]: batch.max_timestamp_ms,
        "size": batch.byte_count,
        "magic": 2,
        "compresscodec": batch.compression.name.lower(),
        "crc": batch.crc,
        "isvalid": True,
        "file": file_name,
    }
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)


def _last_sequence(batch: RecordBatch) -> int:
    """Return the sequence of the last record, which wraps around at 2**31 - 1 (Kafka:
    ``DefaultRecordBatch.incrementSequence``)."""
    if batch.base_sequence == -1:
        return -1
    last = batch.base_sequence + batch.last_offset - batch.base_offset
    return last if last <= _INT32_MAX else last - _INT32_MAX - 1


def _offset_columns(records: RecordColumns) -> tuple[list[Any], list[Any], list[Any]]:
    count = len(records)
    return (
        _list(records.offset, count),
        _list(records.leader_epoch, count),
        _list(records.timestamp_ms, count),
    )


def _list(column: Any, count: int) -> list[Any]:
    return [None] * count if column is None else column.to_pylist()


def _control_json(key: bytes | None, value: bytes | None) -> str:
    control = decode_control(key, value)
    data = control_json(control)
    version = control.version if isinstance(control, EndTransactionMarker) else data.get("version")
    shown = {"type": control_name(key).upper(), "version": version or 0, "data": data}
    return json.dumps(shown, separators=(",", ":"), ensure_ascii=False)


def _bytes(name: str, data: bytes | None) -> str:
    if data is None:
        return f'"{name}":null'
    try:
        return f'"{name}":{_text(data.decode())}'
    except UnicodeDecodeError:
        return f'"{name}Base64":"{base64.b64encode(data).decode("ascii")}"'


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
