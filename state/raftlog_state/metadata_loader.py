"""The loader: records of a log in, whole rows before and after out.

Rules of this file:

1. Offsets are contiguous, control records counted; leader epochs never fall.
2. A call of ``append`` or ``bootstrap`` is all or nothing: after an error, of the caller's input
   too, the loader stands where it stood before the call.
3. How a log is cut into calls changes neither changes nor image.
4. What a record's type or version makes unreadable is skipped and counted, never an error: a
   reader outlives upgrades.

Source: Kafka ``MetadataLoader``, ``MetadataBatchLoader``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeAlias

from raftlog.errors import OffsetGapError, ReplayError
from raftlog.records.control import ControlRecord, UnknownControl
from raftlog.types import SnapshotId

from .control_records import replay_control
from .delta import MetadataDelta, RecordChanges
from .fast_dataclass import fast_dataclass
from .image import MetadataImage, Quorum, TransactionOutcome
from .payload import (
    JSON_TYPES,
    Decode,
    LogRecord,
    Payload,
    SkippedRecords,
    batch_records,
    metadata_record,
)
from .records import NO_OP_VALUE, RECORD_TYPES, DecodedRecord, MetadataRecord, UnknownRecord, decode
from .replay import Position, replay
from .snapshot_loader import SnapshotLoader
from .transactions import MARKERS, BeginMarker, EndMarker, OpenTransaction, marker_of

__all__ = ["MetadataLoader", "LogRecord", "SkippedRecords", "batch_records"]


_Skipped: TypeAlias = dict[tuple[bool, int, int], SkippedRecords]
_REPLAY_BY_TYPE: Final = {kind: replay.dispatch(kind) for kind in RECORD_TYPES}
"""``replay`` with its choice changes beforehand: it is asked a million times."""

_position = fast_dataclass(Position)
_record_changes = fast_dataclass(RecordChanges)
_GAP_REMEDY: Final = "feed the records that are missing, or begin at a checkpoint behind the gap"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Savepoint:
    """Where a loader stood before a call."""

    quorum: Quorum
    next_offset: int
    leader_epoch: int
    visible: tuple[int, int, int]
    transaction: OpenTransaction | None
    transaction_sizes: tuple[int, int, int]
    skipped: _Skipped


class MetadataLoader:
    """State that follows a log. Owned by one thread.

    ``image``: where to begin; the loader wants the record behind it first. ``decode``: how bytes
    become records; one that redacts keeps secrets out of rows, changes and digests.
    """

    _delta: MetadataDelta
    _quorum: Quorum
    _next_offset: int
    _leader_epoch: int
    _visible: tuple[int, int, int]
    _transaction: OpenTransaction | None

    def __init__(self, image: MetadataImage | None = None, *, decode: Decode = decode) -> None:
        image = MetadataImage.empty() if image is None else image
        self._decode = decode
        self._skipped: _Skipped = {}
        self._reset(image)

    @property
    def next_offset(self) -> int:
        """The offset that the next record must have."""
        return self._next_offset

    @property
    def open_transaction_offset(self) -> int | None:
        """The offset of the begin marker of the transaction that is open, if one is."""
        return None if self._transaction is None else self._transaction.begin_offset

    @property
    def skipped(self) -> tuple[SkippedRecords, ...]:
        """What was not understood so far, by kind."""
        return tuple(self._skipped[kind] for kind in sorted(self._skipped))

    @property
    def image(self) -> MetadataImage:
        """The state as readers may see it: while a transaction is open, the one before it."""
        offset, leader_epoch, timestamp_ms = self._visible
        if not self._delta.is_empty() or self._delta.image.offset != offset:
            image = self._delta.apply(
                offset=offset,
                leader_epoch=leader_epoch,
                timestamp_ms=timestamp_ms,
                quorum=self._quorum,
            )
            self._delta = MetadataDelta(image)
        return self._delta.image

    def append(self, records: Iterable[LogRecord]) -> list[RecordChanges]:
        """Replay records in order; what changed, by visible offset and then by offset.

        Records without a change (NoOp, what is skipped, what waits in a transaction) give nothing.

        Raises ``OffsetGapError`` if a record is not the next one, ``ReplayError`` if it contradicts
        the state, its bytes are damaged, a transaction marker is astray, or its epoch falls.
        """
        with self._atomic() as changes:
            for record in records:
                at = record.offset, record.leader_epoch, record.timestamp_ms
                self._append_one(*at, record.payload, changes)
        return changes

    def append_columns(
        self,
        offsets: Sequence[int],
        leader_epochs: Sequence[int],
        timestamps_ms: Sequence[int],
        payloads: Sequence[Payload],
    ) -> list[RecordChanges]:
        """As ``append``, from columns of equal length: no object for each record."""
        rows = zip(offsets, leader_epochs, timestamps_ms, payloads, strict=True)
        with self._atomic() as changes:
            for offset, leader_epoch, timestamp_ms, payload in rows:
                self._append_one(offset, leader_epoch, timestamp_ms, payload, changes)
        return changes

    def bootstrap(
        self, snapshot_id: SnapshotId, records: Iterable[LogRecord]
    ) -> list[RecordChanges]:
        """Truncate and load: the state becomes what a checkpoint holds.

        ``records`` are the checkpoint's, with or without its control records; their own offsets
        mean nothing. Rows that it holds come back as ``Op.READ``, rows that it lacks as
        ``Op.DELETE``, all at the offset of the last record that it contains. An open transaction
        is forgotten; epochs and transactions that were seen before are kept.

        Raises ``OffsetGapError`` if the checkpoint is older than the state, ``ReplayError`` if it
        contradicts itself.
        """
        before = self.image
        if snapshot_id.end_offset <= before.offset:
            raise OffsetGapError(
                expected_offset=before.offset + 1,
                offset=snapshot_id.end_offset,
                remedy="the checkpoint is older than the state: load it into an empty one",
            )
        snapshot_loader = SnapshotLoader(snapshot_id, before, self._decode)
        for record in records:
            snapshot_loader.load(record)
        image, changes = snapshot_loader.finish()
        self._reset(image)
        for unknown in snapshot_loader.unknown:
            self._skip(False, unknown.api_key, unknown.version, image.offset)
        return changes

    def _reset(self, image: MetadataImage) -> None:
        self._delta = MetadataDelta(image)
        self._quorum = image.quorum
        self._next_offset = image.offset + 1
        self._leader_epoch = image.leader_epoch
        self._visible = (image.offset, image.leader_epoch, image.timestamp_ms)
        self._transaction = None

    def _append_one(
        self,
        offset: int,
        leader_epoch: int,
        timestamp_ms: int,
        payload: Payload,
        changes: list[RecordChanges],
    ) -> None:
        if offset != self._next_offset:
            raise OffsetGapError(
                expected_offset=self._next_offset, offset=offset, remedy=_GAP_REMEDY
            )
        if leader_epoch < self._leader_epoch:
            reason = f"leader epoch {leader_epoch} comes after {self._leader_epoch}: it never falls"
            raise ReplayError(offset=offset, record="a record", reason=reason)
        if payload != NO_OP_VALUE:
            self._handle_payload(
                payload, _position(offset, offset, leader_epoch, timestamp_ms), changes
            )
        elif self._transaction is not None:
            self._transaction.record_count += 1
        self._next_offset = offset + 1
        self._leader_epoch = leader_epoch
        if self._transaction is None:
            self._visible = (offset, leader_epoch, timestamp_ms)

    def _handle_payload(self, payload: Payload, at: Position, changes: list[RecordChanges]) -> None:
        transaction = self._transaction
        if not (payload is None or isinstance(payload, bytes | DecodedRecord)):
            if transaction is None:
                self._replay_control(payload, at, changes)
            else:
                transaction.controls.append((at, payload))
            return
        record = metadata_record(payload, at.offset, self._decode)
        if isinstance(record, MARKERS):
            marker = marker_of(record)
            if marker is not None:
                self._handle_marker(marker, at, changes)
                return
        if transaction is None:
            self._replay(record, at, changes)
        else:
            transaction.records.append((at, record))
            transaction.record_count += 1

    def _handle_marker(
        self, marker: BeginMarker | EndMarker, at: Position, changes: list[RecordChanges]
    ) -> None:
        transaction = self._transaction
        if isinstance(marker, BeginMarker):
            if transaction is not None:
                reason = f"the transaction begun at offset {transaction.begin_offset} is still open"
                raise ReplayError(offset=at.offset, record=marker.record_name, reason=reason)
            self._transaction = OpenTransaction(at.offset, marker.name)
            return
        if transaction is None:
            reason = "no transaction is open"
            raise ReplayError(offset=at.offset, record=marker.record_name, reason=reason)
        for control_at, control in transaction.controls:
            self._replay_control(control, control_at, changes)
        if marker.outcome is TransactionOutcome.COMMITTED:
            for record_at, record in transaction.records:
                visible = dataclasses.replace(record_at, visible_offset=at.offset)
                self._replay(record, visible, changes)
        self._delta.put(transaction.to_row(marker, at.offset))
        self._collect(marker.record_type, at, changes)
        self._transaction = None

    def _replay(
        self, record: MetadataRecord | UnknownRecord, at: Position, changes: list[RecordChanges]
    ) -> None:
        if isinstance(record, UnknownRecord):
            self._skip(False, record.api_key, record.version, at.offset)
            return
        kind = type(record)
        _REPLAY_BY_TYPE[kind](record, self._delta, at)
        self._collect(JSON_TYPES[kind], at, changes)

    def _replay_control(
        self, control: ControlRecord, at: Position, changes: list[RecordChanges]
    ) -> None:
        if isinstance(control, UnknownControl):
            self._skip(True, control.type_id, 0, at.offset)
            return
        self._quorum = replay_control(control, self._delta, self._quorum, at)
        self._collect(control.control_type.name, at, changes)

    def _collect(self, record_type: str, at: Position, changes: list[RecordChanges]) -> None:
        row_changes = self._delta.take_changes()
        if row_changes:
            changes.append(
                _record_changes(
                    at.offset,
                    at.visible_offset,
                    at.leader_epoch,
                    at.timestamp_ms,
                    record_type,
                    row_changes,
                )
            )

    def _skip(self, is_control: bool, type_id: int, version: int, offset: int) -> None:
        kind = (is_control, type_id, version)
        known = self._skipped.get(kind)
        count, first = (0, offset) if known is None else (known.record_count, known.first_offset)
        self._skipped[kind] = SkippedRecords(*kind, count + 1, first, offset)

    @contextmanager
    def _atomic(self) -> Iterator[list[RecordChanges]]:
        """Collect the changes of a call; whatever ends it early, undo them."""
        changes: list[RecordChanges] = []
        savepoint = self._savepoint()
        try:
            yield changes
        except BaseException:
            self._rollback(savepoint, changes)
            raise

    def _savepoint(self) -> _Savepoint:
        transaction = self._transaction
        return _Savepoint(
            quorum=self._quorum,
            next_offset=self._next_offset,
            leader_epoch=self._leader_epoch,
            visible=self._visible,
            transaction=transaction,
            transaction_sizes=(0, 0, 0) if transaction is None else transaction.sizes(),
            skipped=dict(self._skipped),
        )

    def _rollback(self, savepoint: _Savepoint, changes: list[RecordChanges]) -> None:
        """Undo a call that failed: its last record may have written some of its changes."""
        self._delta.undo(reversed(self._delta.take_changes()))
        for done in reversed(changes):
            self._delta.undo(reversed(done.changes))
        self._quorum = savepoint.quorum
        self._next_offset = savepoint.next_offset
        self._leader_epoch = savepoint.leader_epoch
        self._visible = savepoint.visible
        self._transaction = savepoint.transaction
        if savepoint.transaction is not None:
            savepoint.transaction.truncate(savepoint.transaction_sizes)
        self._skipped = savepoint.skipped
