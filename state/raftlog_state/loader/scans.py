"""Loading of a scan's columns, from a metadata log or a snapshot, into a ``MetadataLoader``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute

from raftlog.client import SnapshotReader
from raftlog.errors import CorruptBatchError, RaftlogError
from raftlog.limits import MIB
from raftlog.records.batch_columns import Column, RecordColumns, Scan
from raftlog.records.control import ControlRecord, SnapshotHeader, decode_control
from raftlog_state.collection_pause import collection_paused
from raftlog_state.errors import MetadataParseError, ReplayError
from raftlog_state.image import STATE_ENTITIES, BrokerRow, Entity, Key, MetadataImage, Row
from raftlog_state.image.delta import RecordChanges, RowChange
from raftlog_state.image.differences import diff, differences
from raftlog_state.image.entity_names import RowFilter, matching
from raftlog_state.records import (
    BrokerRegistrationChangeRecord,
    FenceBrokerRecord,
    ProducerIdsRecord,
    Redactor,
    RegisterBrokerRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    decode,
)
from raftlog_state.records.typed_columns import frames, typed_columns
from raftlog_state.replay.coded_columns import Bools, Int64s, NotPlainError, require
from raftlog_state.replay.dispatch import Rows
from raftlog_state.replay.topic_records import MARKER_KEYS
from raftlog_state.replay.topics import CONFIG_OF_TOPIC

from .metadata_loader import LogRecord, MetadataLoader
from .payload import Payload
from .topic_rows import TopicChanges, TopicColumns, replay_topics

pc: Any = pyarrow.compute  # pyarrow creates its functions at import, unseen by type checkers

LOADER_COLUMNS = Column.ALL_BUT_HEADERS
"""Columns of a scan that the loader reads. Only control records have keys."""

WINDOW_BYTES: Final = 4 * MIB
"""Size of values that are replayed together: the more there are, the fewer rows are written."""
RECORDS_MIN: Final = 1_000
"""With fewer records than this, they are replayed one by one."""
COMPARED_RECORDS_MIN: Final = 1
"""The same where every state is compared, which reads all rows."""
SNAPSHOT_WINDOW_BYTES: Final = 64 * MIB
"""Size of a snapshot's values that are loaded together. Each window copies the rows before it."""


def append_scan(loader: MetadataLoader, records: RecordColumns) -> list[RecordChanges]:
    """Replay the records of a scan. Raises the errors of ``MetadataLoader.append``."""
    if not len(records):
        return []
    return loader.append_columns(*_columns(records))


def advance(loader: MetadataLoader, scans: Iterable[Scan], redactor: Redactor) -> Iterator[int]:
    """Replay scans only for the loader's image, and yield the next offset after several of them.

    Topics are replayed by columns where that results in the same state, in windows of
    ``WINDOW_BYTES`` of values. The loader has their rows at the end of the iteration. ``redactor``
    is the one of the loader's ``decode``. Raises the errors of ``append_scan`` and of ``scans``, in
    their order.
    """
    replay = Replay(loader, redactor)
    try:
        yield from replay.advance(scans)
    finally:
        replay.write()


class Replay:
    """Replay of a log through states at ascending offsets, with topics' rows as columns.

    ``topics`` contains the rows that the loader lacks until ``write``; None if it has them. With
    ``is_compared``, they are columns even after few records, because ``differences`` reads all of
    them.
    """

    def __init__(
        self, loader: MetadataLoader, redactor: Redactor, *, is_compared: bool = False
    ) -> None:
        """``redactor`` is that of the loader's ``decode``."""
        self.loader = loader
        self.topics: TopicColumns | None = None
        self._redactor = redactor
        self._is_compared = is_compared

    @property
    def image(self) -> MetadataImage:
        """State after the last record, with an object for each row."""
        self.write()
        return self.loader.image

    def load(self, snapshot: SnapshotReader) -> None:
        """Replace the state with a snapshot's. Raises the errors of ``load_snapshot``."""
        self.topics = None
        try:
            self.topics = self._load_columns(snapshot)
        except (MetadataParseError, NotPlainError, ReplayError):
            load_snapshot(self.loader, snapshot)  # its errors have the number of the record

    @collection_paused()
    def _load_columns(self, snapshot: SnapshotReader) -> TopicColumns:
        records = _SnapshotRecords(self._redactor)
        scans = snapshot.scan(columns=LOADER_COLUMNS)
        self.loader.bootstrap(snapshot.snapshot_id, records.of_no_topic(scans))
        return records.topics

    def advance(self, scans: Iterable[Scan]) -> Iterator[int]:
        """Replay scans, and yield the next offset after several of them.

        Raises the errors of ``append_scan`` and of ``scans``, in their order.
        """
        for window in _windows(scans, WINDOW_BYTES):
            self.append(window)
            window.clear()  # otherwise it stays in memory while the next one is read
            yield self.loader.next_offset

    def append(self, window: Sequence[RecordColumns]) -> None:
        """Replay a window. Raises the errors of ``append_scan``."""
        if self._append_to_columns(window):
            return
        is_tried = self.topics is not None
        self.write()
        if is_tried or _append_window(self.loader, window, self._redactor) is None:
            for records in window:
                append_scan(self.loader, records)

    @collection_paused()
    def _append_to_columns(self, window: Sequence[RecordColumns]) -> bool:
        """Replay a window after ``topics``, or if the loader has few; False if nothing was done."""
        loader, redactor = self.loader, self._redactor
        record_count_min = COMPARED_RECORDS_MIN if self._is_compared else RECORDS_MIN
        numbers = _plain_numbers(loader, window, record_count_min)
        if numbers is None:
            return False
        try:
            before = self.topics
            if before is None:
                row_count_max = None if self._is_compared else len(numbers.offsets)
                before = TopicColumns.of(loader.rows, row_count_max)
            if before is None:
                return False
            values, controls = _joined(window)
            after, others = before.after(values, numbers.offsets, redactor)
            others = _effective(loader.rows, values, others, redactor)
            _append_others(loader, numbers, values, controls, others, redactor)
        except (MetadataParseError, NotPlainError, ReplayError):
            return False  # replayed record by record, an error has its record's offset
        self.topics = after
        return True

    def differences(self, other: Replay) -> list[RowChange]:
        """Return the changes from this state to another, as ``diff`` of their images."""
        return [] if self._has_rows_of(other) else diff(self.image, other.image)

    def _has_rows_of(self, other: Replay) -> bool:
        """Return whether all rows are equal; False if some rows are not columns."""
        if self.topics is None or other.topics is None or not self.topics.has_rows_of(other.topics):
            return False
        images = self.loader.image, other.loader.image
        return not any(
            entity is not Entity.CONFIG or change.key[0] != CONFIG_OF_TOPIC
            for entity in STATE_ENTITIES
            if entity not in (Entity.TOPIC, Entity.PARTITION)
            for change in differences(*images, entity)
        )

    @collection_paused()
    def write(self) -> None:
        """Write the rows of topics to the loader."""
        topics, self.topics = self.topics, None
        if topics is not None:
            self.loader.replace_rows(topics.written(), topics.deleted())


class _SnapshotRecords:
    """Records of a snapshot; ``topics`` contains the rows of the topics read so far."""

    def __init__(self, redactor: Redactor) -> None:
        self.topics = TopicColumns.empty()
        self._redactor = redactor

    def of_no_topic(self, scans: Iterable[Scan]) -> Iterator[LogRecord]:
        """Yield the control records, and the records that do not belong to topics.

        Raises:
            NotPlainError: the loader is needed for all of them.
            MetadataParseError: a value is damaged.
            CorruptSnapshotError: after the records before the damage.
        """
        first = 0
        for window in _windows(scans, SNAPSHOT_WINDOW_BYTES):
            values, controls = _joined(window)
            # Without a header, the state has the latest time of its records.
            require(is_plain=first > 0 or isinstance(controls.get(0), SnapshotHeader))
            offsets = np.arange(first, first + len(values))
            self.topics, others = self.topics.after_snapshot(values, offsets, self._redactor)
            first += len(values)
            yield from self._records(window, values, controls, others)
            window.clear()  # otherwise it stays in memory while the next one is read

    def _records(
        self,
        window: Sequence[RecordColumns],
        values: pa.BinaryArray,
        controls: dict[int, ControlRecord],
        which: Int64s,
    ) -> Iterator[LogRecord]:
        columns = (
            _numbers([one.offset for one in window])[which],
            _numbers([one.leader_epoch for one in window])[which],
            _numbers([one.timestamp_ms for one in window])[which],
        )
        payloads = _payloads(values, controls, which, self._redactor)
        for record in zip(*(column.tolist() for column in columns), payloads, strict=True):
            yield LogRecord(*record)


def changes_of_scans(
    loader: MetadataLoader,
    scans: Iterable[Scan],
    redactor: Redactor,
    filters: Sequence[RowFilter] | None,
) -> Iterator[Iterator[RecordChanges]]:
    """Replay scans as ``advance`` does, and yield the changes of each part of them.

    They are changes of rows that match any of ``filters``; None: of all rows. Only matching topics'
    changes become objects.
    """
    for window in _windows(scans, WINDOW_BYTES):
        replayed = _append_window(loader, window, redactor)
        if replayed is None:
            for records in window:
                yield matching(append_scan(loader, records), filters)
        else:
            yield replayed.changes(filters)
        del replayed
        window.clear()


def _windows(scans: Iterable[Scan], window_bytes: int) -> Iterator[list[RecordColumns]]:
    """Yield the records of several scans. Records before an error are yielded first."""
    window: list[RecordColumns] = []
    byte_count = 0
    try:
        for scan in scans:
            if len(scan.records):
                window.append(scan.records)
                byte_count += 0 if scan.records.value is None else scan.records.value.nbytes
            if byte_count >= window_bytes:
                yield window
                window, byte_count = [], 0
    except RaftlogError:
        if window:
            yield window
        raise
    if window:
        yield window


class _Numbers(NamedTuple):
    """Numbers of each record of a window."""

    offsets: Int64s
    leader_epochs: Int64s
    timestamps_ms: Int64s


class _Replayed(NamedTuple):
    """Changes of a window: the topics', by columns, and those of all other records."""

    topics: TopicChanges
    others: list[RecordChanges]
    numbers: _Numbers

    def changes(self, filters: Sequence[RowFilter] | None) -> Iterator[RecordChanges]:
        """Yield the changes of rows that match, in the order in which they take effect."""
        topics = self.topics.records(*self.numbers, filters)
        return merge(topics, matching(self.others, filters), key=_order)


_order = attrgetter("visible_offset", "offset")


@collection_paused()
def _append_window(
    loader: MetadataLoader, window: Sequence[RecordColumns], redactor: Redactor
) -> _Replayed | None:
    """Replay a window, with its topics by columns; None if nothing was done."""
    numbers = _plain_numbers(loader, window, RECORDS_MIN)
    if numbers is None:
        return None
    try:
        values, controls = _joined(window)
        topics = replay_topics(loader.rows, values, numbers.offsets, redactor)
        others = _append_others(
            *(loader, numbers, values, controls, topics.others, redactor),
            written=topics.written,
            deleted=topics.deleted,
        )
    except (MetadataParseError, NotPlainError, ReplayError):
        return None  # replayed record by record, an error has its record's offset
    return _Replayed(topics.changes, others, numbers)


def _plain_numbers(
    loader: MetadataLoader, window: Sequence[RecordColumns], record_count_min: int
) -> _Numbers | None:
    """Return the numbers of a window that can be replayed by columns."""
    offsets = _numbers([records.offset for records in window])
    leader_epochs = _numbers([records.leader_epoch for records in window])
    is_plain = (
        len(offsets) >= record_count_min
        and loader.open_transaction_offset is None
        and offsets[0] == loader.next_offset
        and np.all(np.diff(offsets) == 1)
        and leader_epochs[0] >= loader.leader_epoch
        and np.all(np.diff(leader_epochs) >= 0)
    )
    if not is_plain:
        return None
    return _Numbers(offsets, leader_epochs, _numbers([one.timestamp_ms for one in window]))


def _append_others(
    loader: MetadataLoader,
    numbers: _Numbers,
    values: pa.BinaryArray,
    controls: dict[int, ControlRecord],
    which: Int64s,
    redactor: Redactor,
    *,
    written: Iterable[Row] = (),
    deleted: Iterable[tuple[Entity, Key]] = (),
) -> list[RecordChanges]:
    """Append a window's records ``which``, which do not belong to topics, and rows of topics."""
    payloads = _payloads(values, controls, which, redactor)
    offset, leader_epoch, timestamp_ms = (int(column[-1]) for column in numbers)
    offsets, leader_epochs, timestamps_ms = (column[which].tolist() for column in numbers)
    return loader.append_selected(
        offsets,
        leader_epochs,
        timestamps_ms,
        payloads,
        last=(offset, leader_epoch, timestamp_ms),
        written=written,
        deleted=deleted,
    )


def _payloads(
    values: pa.BinaryArray, controls: dict[int, ControlRecord], which: Int64s, redactor: Redactor
) -> list[Payload]:
    """Return a window's records ``which``; ``controls`` has its control records by row."""
    payloads = decoded_payloads(values.take(pa.array(which)), redactor)
    for row, control in controls.items():
        payloads[int(np.searchsorted(which, row))] = control
    return payloads


def _joined(
    window: Sequence[RecordColumns],
) -> tuple[pa.BinaryArray, dict[int, ControlRecord]]:
    """Return the values of a window, null for control records, and the control records by row."""
    values: list[pa.BinaryArray] = []
    controls: dict[int, ControlRecord] = {}
    first = 0
    for records in window:
        column: Any = records.value
        own = _controls(records)
        if own:
            is_control = pa.array(records.is_control)
            column = pc.if_else(is_control, pa.scalar(None, column.type), column)
        values.append(column)
        controls |= {first + row: control for row, control in own.items()}
        first += len(records)
    return pa.concat_arrays(values), controls


def _numbers(columns: list[Any]) -> Any:
    return np.concatenate([column.to_numpy() for column in columns])


# --- Records whose effect a later record of their window replaces ---------------------------------
# A busy cluster allocates producer ids, and fences and unfences brokers, all the time. The state
# after a window depends only on the last of these records, so the earlier ones are not replayed.

_REGISTRATIONS: Final = (
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
    FenceBrokerRecord,
    UnfenceBrokerRecord,
)
_KEEPING_KEYS: Final = (*MARKER_KEYS, *(kind.schema.api_key for kind in _REGISTRATIONS))
"""If a window has records of these types, all of its records are kept.

The broker's registration or the transaction's outcome may be different without them.
"""


def _effective(rows: Rows, values: pa.BinaryArray, which: Int64s, redactor: Redactor) -> Int64s:
    """Return a window's records ``which`` without those that have no effect after it.

    Raises ``MetadataParseError``.
    """
    chosen = values.take(pa.array(which))
    found = frames(chosen)
    if np.isin(found[0], _KEEPING_KEYS).any():
        return which
    typed = typed_columns(
        chosen, (ProducerIdsRecord, BrokerRegistrationChangeRecord), redactor, found
    )
    changes = typed[BrokerRegistrationChangeRecord]
    is_kept = np.ones(len(which), np.bool_)
    is_kept[typed[ProducerIdsRecord].rows[:-1]] = False
    is_kept[changes.rows[_is_replaced(rows, changes.fields)]] = False
    return which[is_kept]


def _is_replaced(rows: Rows, changes: pa.StructArray) -> Bools:
    """Return which changes set only ``fenced``, which a later change of the broker sets again.

    No change is returned if any has another epoch than its broker's registration, or if ``fenced``
    has an unknown value. A change of other fields may be rejected, so it is neither left out nor
    does it replace others.
    """
    names = ("broker_id", "broker_epoch", "fenced")
    broker_id, epoch, fenced = (changes.field(name).to_numpy() for name in names)
    of_broker = {one: rows.find(BrokerRow, one) for one in np.unique(broker_id).tolist()}
    epochs = {one: None if row is None else row.broker_epoch for one, row in of_broker.items()}
    if not np.isin(fenced, (-1, 0, 1)).all() or any(
        epochs[one] != its_epoch
        for one, its_epoch in zip(broker_id.tolist(), epoch.tolist(), strict=True)
    ):
        return np.zeros(len(changes), np.bool_)
    is_alone = np.ones(len(changes), np.bool_)
    for field in BrokerRegistrationChangeRecord.fields_schema:
        if field.attribute not in names:
            is_alone &= _is_default(changes.field(field.attribute), field.default)
    last = dict.fromkeys(epochs, -1)
    last |= {int(broker_id[at]): at for at in np.flatnonzero(is_alone & (fenced != 0)).tolist()}
    is_last = np.arange(len(changes)) >= np.array([last[one] for one in broker_id.tolist()], int)
    replaced: Bools = is_alone & ~is_last
    return replaced


def _is_default(column: pa.Array, default: Any) -> Bools:
    """Return which values of a field are its default: None, an empty list, or a number."""
    if default is None:
        found = column.is_null()
    elif default == ():
        found = pc.equal(pc.list_value_length(column), pa.scalar(0, pa.int32())).fill_null(False)
    else:
        found = pc.equal(column, pa.scalar(default, column.type))
    are_default: Bools = found.to_numpy(zero_copy_only=False)
    return are_default


def load_snapshot(loader: MetadataLoader, snapshot: SnapshotReader) -> list[RecordChanges]:
    """Load a snapshot into a loader.

    Raises ``CorruptSnapshotError`` if it is damaged, and the errors of
    ``MetadataLoader.bootstrap``.
    """
    return loader.bootstrap(
        snapshot.snapshot_id, _log_records(snapshot.scan(columns=LOADER_COLUMNS))
    )


def load_rows(loader: MetadataLoader, snapshot: SnapshotReader, redactor: Redactor) -> None:
    """Load a snapshot as ``load_snapshot`` does, without returning changes.

    Topics are loaded by columns where that results in the same state. ``redactor`` is the one of
    the loader's ``decode``.
    """
    replay = Replay(loader, redactor)
    replay.load(snapshot)
    replay.write()


def _log_records(scans: Iterable[Scan]) -> Iterator[LogRecord]:
    for scan in scans:
        for row in zip(*_columns(scan.records), strict=True):
            yield LogRecord(*row)


def _columns(
    records: RecordColumns,
) -> tuple[list[int], list[int], list[int], list[Payload]]:
    payloads: list[Payload] = _list(records.value)
    for row, control in _controls(records).items():
        payloads[row] = control
    numbers = (records.offset, records.leader_epoch, records.timestamp_ms)
    offsets, leader_epochs, timestamps_ms = map(_list, numbers)
    return offsets, leader_epochs, timestamps_ms, payloads


def _controls(records: RecordColumns) -> dict[int, ControlRecord]:
    """Return the control records, by row."""
    found = {}
    for row in np.flatnonzero(records.is_control).tolist():
        columns: tuple[Any, Any] = records.key, records.value
        key, value = (column[row].as_py() for column in columns)
        try:
            found[row] = decode_control(key, value)
        except CorruptBatchError as error:
            offset = _list(records.offset)[row]
            raise ReplayError(
                offset=offset, record="a control record", reason=error.reason
            ) from None
    return found


def decoded_payloads(values: pa.BinaryArray, redactor: Redactor) -> list[Payload]:
    """Return redacted records; equal ones are decoded once.

    Raises ``MetadataParseError`` if a value is damaged.
    """
    encoded = values.dictionary_encode()
    decoded = [redactor.redact(decode(value)) for value in encoded.dictionary.to_pylist()]
    return [None if index is None else decoded[index] for index in encoded.indices.to_pylist()]


def _list(column: Any) -> list[Any]:
    assert column is not None, "the scan was requested with LOADER_COLUMNS"
    found: list[Any] = column.to_pylist()
    return found
