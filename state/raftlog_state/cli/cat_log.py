"""Printing of a log by ``raftlog cat``: which record types, and records and batches as JSON lines.

A metadata record has ``offset``, ``leaderEpoch``, ``timestamp`` (ms), then ``type``, ``version``
and ``data`` as kafka-dump-log prints them. So has a control record, with the type's name in Kafka's
``ControlRecordType``. A record of a coordinator has ``type``, then ``key`` and ``value`` as
kafka-dump-log prints them. A record of an ordinary partition has ``key``, ``value`` and
``headers``: UTF-8 as text, other bytes as base64 in ``keyBase64`` and ``valueBase64``, null as
null. A batch has kafka-dump-log's fields, and ``file``, the segment that ``position`` refers to.

Memory is bounded by one chunk of the log or one decompressed batch: columns are converted to Python
objects in slices, and a record that is larger than a slice is written as a line in parts.

Everything before a damaged batch is printed before the error. A value that cannot be parsed, in a
batch with a valid CRC, is reported on stderr and skipped, and the exit code is 1. stderr also names
the end offset in use, and whether the records below it are committed.
"""

from __future__ import annotations

import base64
import codecs
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raftlog import compiled
from raftlog.client import EndBasis, Isolation, LogKind, LogReader, SourceKind
from raftlog.client.offset_spec import EARLIEST, LATEST, OffsetSpec, OffsetSpecKind
from raftlog.clock import Clock
from raftlog.errors import CorruptBatchError, OffsetOutOfRangeError, OptionError
from raftlog.limits import INT64_MAX, KIB, MIB
from raftlog.printable import compact_json, did_you_mean
from raftlog.records import RecordBatch, TimestampType
from raftlog.records.batch_columns import Column, RecordColumns, Scan
from raftlog.records.builder import incremented
from raftlog.records.control import (
    ControlType,
    EndTransactionMarker,
    control_json,
    control_name,
    decode_control,
)
from raftlog_state.errors import MetadataParseError
from raftlog_state.records import NO_OP_VALUE, RECORD_TYPES, NoOpRecord, Redactor, peek
from raftlog_state.records.native_json import TYPES_MAX, LineStart, NativeJson, write_json

from .follow import check_can_grow, follow, followed_end
from .output import Console, Line, Output
from .source import offset_in, range_in

if TYPE_CHECKING:
    from raftlog_state.records.internal_logs import InternalLog, RecordText

    from .record_filter import RecordFilter

RecordJson = Callable[[bytes], str]
OnDamage = Callable[[int, str], None]

_API_KEY_MAX: Final = 2**15 - 1
_REPORTED_MAX: Final = 20
"""Damaged values that are reported individually."""
_SLICE_BYTES_MAX: Final = 1 * MIB
_ROW_BYTES: Final = 64
"""Estimated size of the Python objects of a row or header, in addition to its bytes."""
_PART_BYTES: Final = 48 * KIB
"""Divisible by three, so that the concatenated base64 of parts is the base64 of the whole."""
_CONTROLS_CACHED_MAX: Final = 256
"""Number of cached texts of control records, one for each leader and set of voters."""
_CONTROL_BYTES_CACHED_MAX: Final = 4 * KIB
"""Larger control records are not cached: Kafka writes none, and a damaged log may have many."""
_TIMESTAMP_NAMES: Final = {
    TimestampType.CREATE_TIME: "CreateTime",
    TimestampType.LOG_APPEND_TIME: "LogAppendTime",
}
_NO_VALUE: Final = "a metadata record without a value"


# --- Selection of record types --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Selection:
    """Record types to print.

    ``api_keys`` None: all metadata types. ``control_names`` None: all control types.
    """

    api_keys: frozenset[int] | None
    control_names: frozenset[str] | None
    hidden_api_keys: frozenset[int]

    def takes(self, api_key: int) -> bool:
        """Return whether metadata records of this type are printed."""
        if api_key in self.hidden_api_keys:
            return False
        return self.api_keys is None or api_key in self.api_keys

    def has_types(self) -> bool:
        """Return whether only records of named types are printed."""
        return self.api_keys is not None or bool(self.control_names)

    def is_any_type(self) -> bool:
        """Return whether metadata records of all types except NoOp are printed."""
        return self.api_keys is None and self.hidden_api_keys <= {NoOpRecord.schema.api_key}

    def takes_control(self, name: str) -> bool:
        """Return whether control records of this type (``leader_change``) are printed."""
        return self.control_names is None or name in self.control_names


def internal_log(log: LogReader, declared_kind: str | None) -> InternalLog | None:
    """Return the format of an internal log's records, None for another log.

    ``declared_kind`` ``partition``: the records are printed unchanged.
    """
    if log.kind is LogKind.METADATA or declared_kind is not None:
        return None
    from raftlog_state.records.internal_logs import INTERNAL_LOGS  # a tenth of the start of `cat`

    return INTERNAL_LOGS.get(log.topic)


def select(
    types: Iterable[str], internal: InternalLog | None = None, *, control: bool, noop: bool
) -> Selection:
    """Return the options' selection; a named type is printed even without ``control`` or ``noop``.

    ``internal`` contains the types of an internal log.

    Raises ``OptionError`` for an unknown type, with the most similar name.
    """
    names = list(types)
    api_keys: set[int] = set()
    control_names: set[str] = set()
    known, controls = _type_names(internal), _control_names()
    for name in names:
        plain = _plain(name)
        if plain in known:
            api_keys.add(known[plain])
        elif plain in controls:
            control_names.add(controls[plain])
        elif plain.isascii() and plain.isdigit() and len(plain) <= 5 and int(plain) <= _API_KEY_MAX:
            api_keys.add(int(plain))
        else:
            hint = did_you_mean(plain, [*known, *controls])
            hint = hint or "types are " + ", ".join(list(known)[:3]) + ", ..."
            raise OptionError(option="--type", reason=f"unknown record type {name!r}; {hint}")
    if not names:
        hidden = frozenset({NoOpRecord.schema.api_key})
        if noop or internal is not None:
            hidden = frozenset()
        return Selection(None, None if control else frozenset(), hidden)
    if control and not control_names:
        return Selection(frozenset(api_keys), None, frozenset())
    return Selection(frozenset(api_keys), frozenset(control_names), frozenset())


def _plain(name: str) -> str:
    letters = "".join(letter for letter in name.lower() if letter not in "_- ")
    return letters.removesuffix("record") or letters


def _type_names(internal: InternalLog | None) -> Mapping[str, int]:
    if internal is not None:
        return {_plain(name): api_key for api_key, name in internal.type_names().items()}
    return {_plain(kind.schema.name): kind.schema.api_key for kind in RECORD_TYPES}


def _control_names() -> Mapping[str, str]:
    return {_plain(kind.name): kind.name.lower() for kind in ControlType}


# --- Reading --------------------------------------------------------------------------------------


def print_records(
    log: LogReader,
    start: OffsetSpec | None,
    end: OffsetSpec | None,
    selection: Selection,
    redactor: Redactor,
    output: Output,
    console: Console,
    wanted: RecordFilter | None = None,
    *,
    internal: InternalLog | None = None,
) -> int:
    """Print records, one line each; return the exit code, 1 if a value is damaged."""
    printer = _RecordPrinter(log, selection, redactor, output, console, wanted, internal)
    for scan in _scans(log, start, end, printer.columns, output, console, wanted):
        printer.print(scan.records)
    return printer.finish()


def follow_records(
    log: LogReader,
    start: OffsetSpec | None,
    selection: Selection,
    redactor: Redactor,
    output: Output,
    console: Console,
    wanted: RecordFilter | None = None,
    *,
    internal: InternalLog | None = None,
    clock: Clock,
    raise_if_stopped: Callable[[], None],
) -> NoReturn:
    """Print records as they are committed, one line each, until a signal.

    Raises ``OptionError`` if the source is a file, and the errors of ``follow``.
    """
    check_can_grow(log)
    console.disable_progress_bar()
    printer = _RecordPrinter(log, selection, redactor, output, console, wanted, internal)
    next_offset = log.log_start_offset
    if start is not None:

        def end() -> int:
            return followed_end(log, Isolation.READ_UNCOMMITTED, clock).look().offset

        next_offset = offset_in(log, "--from", start, end, console)
        log.check_range(next_offset, next_offset)
    if wanted is not None:
        wanted.read_ids(log, next_offset, console)

    def print_up_to(end_offset: int) -> None:
        nonlocal next_offset
        for scan in log.scan(next_offset, end_offset, columns=printer.columns):
            printer.print(scan.records)
            if len(scan.batches):
                next_offset = min(int(scan.batches.next_offset[-1]), end_offset)

    follow(
        log,
        Isolation.READ_UNCOMMITTED,
        print_up_to,
        output,
        console,
        clock=clock,
        raise_if_stopped=raise_if_stopped,
    )


class _RecordPrinter:
    """Printer of the selected records of one log."""

    def __init__(
        self,
        log: LogReader,
        selection: Selection,
        redactor: Redactor,
        output: Output,
        console: Console,
        wanted: RecordFilter | None,
        internal: InternalLog | None,
    ) -> None:
        self._internal = internal
        self._is_metadata = log.kind is LogKind.METADATA
        self._selection = selection
        self._redactor = redactor
        self._output = output
        self._wanted = wanted
        self._console = console
        self._damaged = _DamagedValues(log.path, console)
        self.columns = Column.ALL_BUT_HEADERS if self._is_metadata else Column.ALL

    def print(self, records: RecordColumns) -> None:
        """Print the records of a scan."""
        report = self._damaged.report
        for part in slices(records):
            chosen = part if self._wanted is None else _filtered(part, self._wanted)
            if self._is_metadata:
                print_metadata(chosen, self._selection, self._redactor, self._output, report)
            elif self._internal is not None:
                texts = (self._internal, self._redactor)
                self._output.lines(internal_lines(chosen, self._selection, *texts, report))
            else:
                self._output.lines(partition_lines(chosen, self._selection, report))

    def finish(self) -> int:
        """Report the damaged values, or that no record is selected; return the exit code."""
        status = self._damaged.finish()
        if self._output.is_empty and not status:
            self._console.log(self._explain_no_output())
        return status

    def _explain_no_output(self) -> str:
        chosen = self._selection
        found = "no records" if self._wanted is None else f"no records of {self._wanted}"
        if chosen.has_types():
            found += " with the requested types"
        if self._wanted is not None:
            hint = self._wanted.did_you_mean()
            return f"{found}; {hint}" if hint else found
        hidden = []
        if self._is_metadata and chosen.hidden_api_keys:
            hidden.append("NoOpRecords (--noop)")
        if chosen.control_names is not None and not chosen.has_types():
            hidden.append("control records (--control)")
        return f"{found}; not printed are {' and '.join(hidden)}" if hidden else found


def _filtered(records: RecordColumns, wanted: RecordFilter) -> RecordColumns:
    """Return the records that a filter selects. Control records have no name and no typed key."""
    rows = _selected_rows(records, wanted)
    return records if len(rows) == len(records) else _take(records, rows)


def _selected_rows(records: RecordColumns, wanted: RecordFilter) -> npt.NDArray[np.int32]:
    keys, values = _list(records.key, len(records)), _list(records.value, len(records))
    rows = np.array(wanted.rows(keys, values), np.int32)
    return rows[~records.is_control[rows]]


def print_batches(
    log: LogReader,
    start: OffsetSpec | None,
    end: OffsetSpec | None,
    output: Output,
    console: Console,
) -> int:
    """Print the batches that overlap the range, one line each; return the exit code."""
    is_remote = log.source is SourceKind.QUORUM
    for batch in _batches(log, start, end, console):
        output.line(batch_line(batch, None if is_remote else _file_name(batch)))
    return 0


def _file_name(batch: RecordBatch) -> str | None:
    return None if batch.path is None else batch.path.replace("\\", "/").rpartition("/")[2]


class _DamagedValues:
    """Report of the values that cannot be parsed: first each value, then only their number."""

    def __init__(self, path: str, console: Console) -> None:
        self._path = path
        self._console = console
        self._count = 0

    def report(self, offset: int, reason: str) -> None:
        self._count += 1
        if self._count <= _REPORTED_MAX:
            self._console.warn(f"{self._path}, offset {offset}: {reason}")

    def finish(self) -> int:
        if self._count > _REPORTED_MAX:
            self._console.warn(f"{self._count} records have damaged values in total")
        return 1 if self._count else 0


def _scans(
    log: LogReader,
    start: OffsetSpec | None,
    end: OffsetSpec | None,
    columns: Column,
    output: Output,
    console: Console,
    wanted: RecordFilter | None,
) -> Iterator[Scan]:
    if output.is_terminal():
        console.disable_progress_bar()
    if log.source is SourceKind.CHECKPOINT:
        yield from _snapshot_scans(log, start, end, columns)
        return
    start_offset, end_offset = _range(log, start, end, console)
    if wanted is not None:
        wanted.read_ids(log, start_offset, console)
    for scan in log.scan(start_offset, end_offset, columns=columns):
        yield scan
        if len(scan.batches):
            done = int(scan.batches.last_offset[-1]) - start_offset
            console.progress(done, end_offset - start_offset)


def _snapshot_scans(
    log: LogReader, start: OffsetSpec | None, end: OffsetSpec | None, columns: Column
) -> Iterator[Scan]:
    """Yield the scans of a snapshot file, whose offsets begin at 0."""
    snapshot_id = log.newest_snapshot()
    assert snapshot_id is not None, "opened as a snapshot"
    start_offset, end_offset = _snapshot_range(start, end)
    for scan in log.read_snapshot(snapshot_id).scan(columns=columns):
        yield replace(scan, records=_clip(scan.records, start_offset, end_offset))


def _snapshot_range(start: OffsetSpec | None, end: OffsetSpec | None) -> tuple[int, int]:
    """Return the offsets to print of a snapshot. Raises ``OptionError`` for those of the log."""

    def offset(option: str, spec: OffsetSpec) -> int:
        if spec.kind is OffsetSpecKind.OFFSET:
            return spec.number
        if spec in (EARLIEST, LATEST):
            return 0 if spec == EARLIEST else INT64_MAX
        reason = "a snapshot has offsets of its own: a number, start or end is allowed"
        raise OptionError(option=option, reason=reason)

    return offset("--from", start or EARLIEST), offset("--to", end or LATEST)


def _batches(
    log: LogReader, start: OffsetSpec | None, end: OffsetSpec | None, console: Console
) -> Iterator[RecordBatch]:
    if log.source is not SourceKind.CHECKPOINT:
        yield from log.batches(*_range(log, start, end, console))
        return
    snapshot_id = log.newest_snapshot()
    assert snapshot_id is not None, "opened as a snapshot"
    start_offset, end_offset = _snapshot_range(start, end)
    for batch in log.read_snapshot(snapshot_id).batches():
        if batch.last_offset >= start_offset and batch.base_offset < end_offset:
            yield batch


def _range(
    log: LogReader, start: OffsetSpec | None, end: OffsetSpec | None, console: Console
) -> tuple[int, int]:
    """Return the start and end offset to print.

    Raises ``OffsetOutOfRangeError`` and the errors of ``range_in``.
    """
    log_start_offset = log.log_start_offset
    found = log.read_end(isolation=Isolation.READ_UNCOMMITTED)
    log_end_offset = found.offset
    if end is None:
        console.log(f"reading up to offset {log_end_offset} (exclusive): {found.explanation}")
    elif found.basis in (EndBasis.DIRECTORY, EndBasis.FILE):
        console.log(f"the log ends at offset {log_end_offset} (exclusive): {found.explanation}")

    start_offset, end_offset = range_in(log, start, end, lambda: log_end_offset, console)
    for wanted in (start_offset, end_offset):
        if not log_start_offset <= wanted <= log_end_offset:
            raise OffsetOutOfRangeError(
                path=log.path,
                offset=wanted,
                log_start_offset=log_start_offset,
                log_end_offset=log_end_offset,
            )
    return start_offset, end_offset


def _clip(records: RecordColumns, start_offset: int, end_offset: int) -> RecordColumns:
    """Return the records with offsets in [start, end)."""
    assert records.offset is not None, "a requested column"
    offsets = records.offset.to_numpy()
    mask = (offsets >= start_offset) & (offsets < end_offset)
    chosen: dict[str, Any] = {}
    for field in fields(records):
        column = getattr(records, field.name)
        if isinstance(column, np.ndarray):
            chosen[field.name] = column[mask]
        else:
            chosen[field.name] = None if column is None else column.filter(pa.array(mask))
    return RecordColumns(**chosen)


# --- Slices of bounded size -----------------------------------------------------------------------


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
        ends = np.cumsum(_lengths(records.headers))
        whole = np.cumsum(_lengths(fields.field(0)) + _lengths(fields.field(1)) + _ROW_BYTES)
        byte_count += np.diff(np.concatenate(([0], whole))[ends], prepend=0)
    return byte_count


def _lengths(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return the number of bytes or elements of each row; a null has none.

    They are computed from the offsets, because importing Arrow's functions takes as long as
    printing 100,000 records.
    """
    offsets = column.buffers()[1]
    if offsets is None or not len(column):
        return np.zeros(len(column), np.int64)
    bounds = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    return np.diff(bounds).astype(np.int64)


def _slice(records: RecordColumns, start: int, end: int) -> RecordColumns:
    part: dict[str, Any] = {}
    for field in fields(records):
        column = getattr(records, field.name)
        part[field.name] = None if column is None else column[start:end]
    return RecordColumns(**part)


# --- Records as lines by the compiled core --------------------------------------------------------


def print_metadata(
    records: RecordColumns,
    selection: Selection,
    redactor: Redactor,
    output: Output,
    on_damage: OnDamage,
) -> None:
    """Print a metadata log's records; the compiled core, if it is used, prints the plain ones."""
    written = None
    if compiled.is_native and len(records):
        written = _native_lines(records, selection, redactor.reveal)
    if written is None:
        output.lines(metadata_lines(records, selection, redactor.record_json, on_damage))
        return
    begin = 0
    rows = written.rows
    given_back = _take(records, rows)
    for at, line in _numbered_lines(given_back, selection, redactor.record_json, on_damage):
        end = int(written.ends[rows[at]])  # a row for Python has no text
        output.block(written.text[begin:end])
        begin = end
        output.line(line)
    output.block(written.text[begin:])


def _native_lines(records: RecordColumns, selection: Selection, reveal: bool) -> NativeJson | None:
    takes = None
    if not selection.is_any_type():
        takes = bytes(selection.takes(api_key) for api_key in range(TYPES_MAX))
    given = records.is_control
    values = records.value
    assert values is not None, "a requested column"
    if values.null_count:
        given = given | values.is_null().to_numpy(zero_copy_only=False)
    start = LineStart(records.offset, records.leader_epoch, records.timestamp_ms)
    noop = selection.takes(NoOpRecord.schema.api_key)
    return write_json(values, given, reveal=reveal, start=start, takes=takes, noop=noop)


def _take(records: RecordColumns, rows: npt.NDArray[np.int32]) -> RecordColumns:
    """Return some of the records, in order."""
    taken: dict[str, Any] = {}
    for field in fields(records):
        column = getattr(records, field.name)
        if isinstance(column, pa.Array):  # as in `_lengths`, without Arrow's functions
            column = pa.array([column[row].as_py() for row in rows.tolist()], column.type)
        elif column is not None:
            column = column[rows]
        taken[field.name] = column
    return RecordColumns(**taken)


# --- Records as lines -----------------------------------------------------------------------------


def metadata_lines(
    records: RecordColumns, selection: Selection, record_json: RecordJson, on_damage: OnDamage
) -> Iterator[str]:
    """Yield the lines of a metadata log's records; ``record_json`` converts and redacts a value.

    A value that cannot be parsed, in a batch with a valid CRC, is reported to ``on_damage`` with
    its offset.
    """
    for _, line in _numbered_lines(records, selection, record_json, on_damage):
        yield line


def _numbered_lines(
    records: RecordColumns, selection: Selection, record_json: RecordJson, on_damage: OnDamage
) -> Iterator[tuple[int, str]]:
    """Yield the row of each record that is printed, and its line."""
    takes_noop = selection.takes(NoOpRecord.schema.api_key)
    noop_json = record_json(NO_OP_VALUE)  # most records of an idle cluster: converted once
    any_type = selection.is_any_type()
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
        line = f'{{"offset":{offset},"leaderEpoch":{epoch},"timestamp":{timestamp_ms},{shown[1:]}'
        yield at, line


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
        if controls[at]:
            yield from _control_line(offset, prefix, key, value, selection, on_damage)
            continue
        pairs = [
            f'{{"key":{_text(header["key"])},{_bytes("value", header["value"])}}}'
            for header in headers or ()
        ]
        shown = f'{_bytes("key", key)},{_bytes("value", value)},"headers":[{",".join(pairs)}]}}'
        yield prefix + shown


def internal_lines(
    records: RecordColumns,
    selection: Selection,
    internal: InternalLog,
    redactor: Redactor,
    on_damage: OnDamage,
) -> Iterator[str]:
    """Yield the lines of an internal log's records; damaged ones are reported as for metadata."""
    controls = records.is_control.tolist()
    count = len(records)
    columns = (_list(records.key, count), _list(records.value, count))
    rows = zip(*_offset_columns(records), *columns, strict=True)
    for at, (offset, epoch, timestamp_ms, key, value) in enumerate(rows):
        prefix = f'{{"offset":{offset},"leaderEpoch":{epoch},"timestamp":{timestamp_ms},'
        if controls[at]:
            yield from _control_line(offset, prefix, key, value, selection, on_damage)
            continue
        try:
            if selection.takes(internal.api_key(key, value)):
                yield prefix + _internal_json(internal.text(key, value, redactor))
        except MetadataParseError as error:
            on_damage(offset, error.message())


def _internal_json(text: RecordText) -> str:
    """Return the type, and the record as kafka-dump-log prints it."""
    if text.key is None:
        return f'"type":"{text.type_name}","version":{text.version},"data":{text.value}}}'
    value = "null"
    if text.value is not None:
        version = "null" if text.version is None else f'"{text.version}"'
        value = f'{{"version":{version},"data":{text.value}}}'
    key = f'{{"type":"{text.api_key}","data":{text.key}}}'
    return f'"type":"{text.type_name}","key":{key},"value":{value}}}'


def _control_line(
    offset: int,
    prefix: str,
    key: bytes | None,
    value: bytes | None,
    selection: Selection,
    on_damage: OnDamage,
) -> Iterator[str]:
    """Yield the line of a control record, if it is selected."""
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
    """Return the JSON of a control record; in a long log, most are equal to earlier ones."""
    is_small = len(key or b"") + len(value or b"") <= _CONTROL_BYTES_CACHED_MAX
    return (_cached_control_text if is_small else _control_text)(key, value)


def _control_text(key: bytes | None, value: bytes | None) -> str:
    control = decode_control(key, value)
    data = control_json(control)
    version = control.version if isinstance(control, EndTransactionMarker) else data.get("version")
    shown = {"type": control_name(key).upper(), "version": version or 0, "data": data}
    return compact_json(shown)


_cached_control_text: Final = lru_cache(_CONTROLS_CACHED_MAX)(_control_text)


def _bytes(name: str, data: bytes | None) -> str:
    if data is None:
        return f'"{name}":null'
    try:
        return f'"{name}":{_text(data.decode())}'
    except UnicodeDecodeError:
        return f'"{name}Base64":"{base64.b64encode(data).decode("ascii")}"'


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


# --- Batches as lines -----------------------------------------------------------------------------


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
    return compact_json(fields)


def _last_sequence(batch: RecordBatch) -> int:
    """Return the sequence of the last record, -1 without one."""
    if batch.base_sequence == -1:
        return -1
    return incremented(batch.base_sequence, batch.last_offset - batch.base_offset)
