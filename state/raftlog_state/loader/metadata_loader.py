"""Replay of a metadata log: from records to images and row changes.

Offsets are contiguous, including control records, and leader epochs do not decrease. A call of
``append`` or ``bootstrap`` is atomic: after any error, even one of the input iterator, the loader
is in its state before the call. Images and changes do not depend on how the log is split into
calls.

Records of unknown type or version are skipped and counted, because Kafka may be upgraded first. A
record that contradicts the state, or whose bytes are damaged, fails the call. With ``on_rejected``,
it has no effect instead, and the records after it are replayed, as in Kafka's brokers.

Invariants, verified after every call, even a failed one. If one does not hold, this call and every
later one raise ``StateInvariantError``: the loader returns no more images.

1. The next offset and the leader epoch never decrease. A snapshot does not end before the next
   offset.
2. Records are visible up to the last one or, while a transaction is open, up to its begin marker.
3. Each row change of appended records was returned by exactly one call, at an offset that was not
   visible before the call and is visible after it.
4. While a snapshot is read, the state does not change. The snapshot's changes are at its last
   offset.

Source: Kafka ``MetadataLoader``, ``MetadataBatchLoader``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NoReturn, TypeAlias

from raftlog.fast_dataclass import fast_dataclass
from raftlog.records.control import ControlRecord, UnknownControl
from raftlog.types import SnapshotId
from raftlog_state.errors import OffsetGapError, ReplayError, StateInvariantError
from raftlog_state.image import Entity, Key, MetadataImage, Quorum, Row, TransactionOutcome
from raftlog_state.image.delta import MetadataDelta, RecordChanges
from raftlog_state.records import (
    NO_OP_VALUE,
    RECORD_TYPES,
    DecodedRecord,
    MetadataRecord,
    UnknownRecord,
    decode,
)
from raftlog_state.replay import Position, replay, replay_in_steps
from raftlog_state.replay.dispatch import Rows
from raftlog_state.steps import RECORDS_PER_STEP, Steps, begin, complete, for_each_in_steps

from .control_records import replay_control
from .payload import (
    JSON_TYPES,
    Decode,
    LogRecord,
    Payload,
    SkippedRecords,
    batch_records,
    metadata_record,
)
from .snapshot_loader import SnapshotLoader
from .transactions import MARKERS, BeginMarker, EndMarker, OpenTransaction, marker_of

__all__ = ["MetadataLoader", "LogRecord", "SkippedRecords", "batch_records"]


_Skipped: TypeAlias = dict[tuple[bool, int, int], SkippedRecords]
_REPLAY_BY_TYPE: Final[dict[type[MetadataRecord], Callable[..., Steps]]] = {
    kind: replay_in_steps.registry.get(kind) or replay.dispatch(kind) for kind in RECORD_TYPES
}
"""``replay_in_steps`` with dispatch resolved in advance: it is called once for each record."""

_position = fast_dataclass(Position)
_record_changes = fast_dataclass(RecordChanges)
_GAP_REMEDY: Final = "append the missing records, or load a snapshot that ends after the gap"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Savepoint:
    """State of a loader before a call, except for the delta."""

    quorum: Quorum
    next_offset: int
    leader_epoch: int
    visible: tuple[int, int, int]
    transaction: OpenTransaction | None
    transaction_sizes: tuple[int, int, int]
    skipped: _Skipped
    collected_count: int


class MetadataLoader:
    """Cluster state replayed from a log. Not thread-safe.

    ``image``: the initial state; the first record must be at ``image.offset + 1``. ``decode``:
    decoder of value bytes; one that redacts keeps secrets out of rows, changes and digests.
    ``on_rejected``: called for each rejected metadata record; None: the call fails.
    """

    _delta: MetadataDelta
    _quorum: Quorum
    _next_offset: int
    _leader_epoch: int
    _visible: tuple[int, int, int]
    _transaction: OpenTransaction | None

    def __init__(
        self,
        image: MetadataImage | None = None,
        *,
        decode: Decode = decode,
        on_rejected: Callable[[ReplayError], None] | None = None,
    ) -> None:
        image = MetadataImage.empty() if image is None else image
        self._decode = decode
        self._on_rejected = on_rejected
        self._skipped: _Skipped = {}
        self._collected_count = 0
        """Records with changes since the loader was created, minus those undone."""
        self._violation: str | None = None
        self._reset(image)

    @property
    def next_offset(self) -> int:
        """Offset that the next record must have."""
        return self._next_offset

    @property
    def leader_epoch(self) -> int:
        """Leader epoch of the last record."""
        return self._leader_epoch

    @property
    def open_transaction_offset(self) -> int | None:
        """Offset of the begin marker of the open transaction, or None."""
        return None if self._transaction is None else self._transaction.begin_offset

    @property
    def skipped(self) -> tuple[SkippedRecords, ...]:
        """Records skipped since the last snapshot, including its own, by type and version."""
        return tuple(self._skipped[kind] for kind in sorted(self._skipped))

    @property
    def rows(self) -> Rows:
        """Rows after the last record, without those of an open transaction."""
        return self._delta

    @property
    def image(self) -> MetadataImage:
        """Visible state: while a transaction is open, the state before it."""
        self._check_open()
        offset, leader_epoch, timestamp_ms = self._visible
        if not self._delta.is_empty() or self._delta.image.offset != offset:
            try:
                image = self._delta.apply(
                    offset=offset,
                    leader_epoch=leader_epoch,
                    timestamp_ms=timestamp_ms,
                    quorum=self._quorum,
                )
            except AssertionError as violation:
                self._close(violation)
            self._delta = MetadataDelta(image)
        return self._delta.image

    def append(self, records: Iterable[LogRecord]) -> list[RecordChanges]:
        """Replay records in order and return their changes, sorted by visible offset, then offset.

        Records without changes are left out: NoOps, skipped records, and records of an open
        transaction.

        Raises:
            OffsetGapError: a record is not at ``next_offset``.
            ReplayError: a record contradicts the state, its bytes are damaged, a transaction marker
                has no counterpart, or its leader epoch is lower than the previous one.
            StateInvariantError: an invariant does not hold, now or since an earlier call.
        """
        return complete(self.append_in_steps(records))

    def append_in_steps(
        self, records: Iterable[LogRecord]
    ) -> Generator[None, None, list[RecordChanges]]:
        """Replay records as ``append`` does; a record that may change many rows has steps.

        The image changes in the last step; nothing else may be appended before it.
        """
        with self._atomic() as changes:
            for record in records:
                at = record.offset, record.leader_epoch, record.timestamp_ms
                steps = self._append_one(*at, record.payload, changes)
                if steps is not None:
                    yield from steps
        return changes

    def append_columns(
        self,
        offsets: Sequence[int],
        leader_epochs: Sequence[int],
        timestamps_ms: Sequence[int],
        payloads: Sequence[Payload],
    ) -> list[RecordChanges]:
        """Append records from columns of equal length, without an object for each record."""
        rows = zip(offsets, leader_epochs, timestamps_ms, payloads, strict=True)
        with self._atomic() as changes:
            for row in rows:
                for _ in self._append_one(*row, changes) or ():
                    pass
        return changes

    def append_selected(
        self,
        offsets: Sequence[int],
        leader_epochs: Sequence[int],
        timestamps_ms: Sequence[int],
        payloads: Sequence[Payload],
        *,
        last: tuple[int, int, int],
        written: Iterable[Row] = (),
        deleted: Iterable[tuple[Entity, Key]] = (),
    ) -> list[RecordChanges]:
        """Append the records of a range that change rows of this state, a part of another.

        The columns do not contain the other records of the range. They have the effect of NoOps,
        except for those that have ``written`` and ``deleted`` rows, whose changes are not returned.
        The caller has checked their offsets and epochs. ``last``: offset, leader epoch and
        timestamp of the range's last record.
        """
        rows = zip(offsets, leader_epochs, timestamps_ms, payloads, strict=True)
        with self._atomic() as changes:
            for offset, leader_epoch, timestamp_ms, payload in rows:
                self._skip_to(offset)
                for _ in (
                    self._append_one(offset, leader_epoch, timestamp_ms, payload, changes) or ()
                ):
                    pass
            offset, leader_epoch, timestamp_ms = last
            if offset >= self._next_offset:
                self._skip_to(offset)
                self._append_one(offset, leader_epoch, timestamp_ms, NO_OP_VALUE, changes)
            self._replace(written, deleted)
        return changes

    def replace_rows(self, written: Iterable[Row], deleted: Iterable[tuple[Entity, Key]]) -> None:
        """Delete rows, then write others, as records before the next offset have done.

        These records were left out of a call of ``append_selected``; their changes are not
        returned.
        """
        with self._atomic():
            self._replace(written, deleted)

    def _replace(self, written: Iterable[Row], deleted: Iterable[tuple[Entity, Key]]) -> None:
        for entity, key in deleted:
            self._delta.delete(entity, key)
        for row in written:
            self._delta.put(row)
        self._delta.take_changes()

    def bootstrap(
        self, snapshot_id: SnapshotId, records: Iterable[LogRecord]
    ) -> list[RecordChanges]:
        """Replace the state with a snapshot's, and return the changes.

        ``records`` are the snapshot's, with or without its control records; their offsets are
        ignored. Rows in the snapshot are returned as ``Op.READ``, rows that it lacks as
        ``Op.DELETE``, all at the offset of the last record that the snapshot contains. An open
        transaction is discarded; earlier epochs and completed transactions are kept.

        Raises:
            OffsetGapError: the snapshot ends before the next offset.
            ReplayError: a record contradicts the records before it, or is a removal, or the
                snapshot's leader epoch is lower than the previous one.
            StateInvariantError: as ``append``.
        """
        return complete(self.bootstrap_in_steps(snapshot_id, records))

    def bootstrap_in_steps(
        self, snapshot_id: SnapshotId, records: Iterable[LogRecord]
    ) -> Generator[None, None, list[RecordChanges]]:
        """Replace the state as ``bootstrap`` does, in steps of ``RECORDS_PER_STEP`` records.

        The state is unchanged until the last step; nothing may be appended before it.
        """
        before = self.image
        if snapshot_id.end_offset < self._next_offset:
            raise OffsetGapError(
                expected_offset=self._next_offset,
                offset=snapshot_id.end_offset,
                remedy="the snapshot is older than the state: load it into a new MetadataLoader",
            )
        if snapshot_id.epoch < self._leader_epoch:
            last_offset, name = snapshot_id.end_offset - 1, f"snapshot {snapshot_id}"
            raise self._epoch_error(snapshot_id.epoch, last_offset, name)
        savepoint = self._savepoint()
        snapshot_loader = SnapshotLoader(snapshot_id, before, self._decode, self._on_rejected)
        try:
            yield from for_each_in_steps(records, snapshot_loader.load)
            image, changes = yield from snapshot_loader.finish_in_steps()
        finally:
            self._check_unchanged(savepoint)
        self._reset(image)
        self._skipped = {}
        for unknown in snapshot_loader.unknown:
            self._skip(False, unknown.api_key, unknown.version, image.offset)
        self._check_invariants(savepoint, [])
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
    ) -> Steps:
        """Replay a record, or return the steps that do so, after running the first one."""
        if offset != self._next_offset:
            raise OffsetGapError(
                expected_offset=self._next_offset, offset=offset, remedy=_GAP_REMEDY
            )
        if leader_epoch < self._leader_epoch:
            raise self._epoch_error(leader_epoch, offset, "a record")
        steps = None
        if payload != NO_OP_VALUE:
            steps = self._handle_payload(
                payload, _position(offset, offset, leader_epoch, timestamp_ms), changes
            )
        elif self._transaction is not None:
            self._transaction.record_count += 1
        self._next_offset = offset + 1
        self._leader_epoch = leader_epoch
        if steps is not None:
            return self._make_visible_after(steps, (offset, leader_epoch, timestamp_ms))
        if self._transaction is None:
            self._visible = (offset, leader_epoch, timestamp_ms)
        return None

    def _make_visible_after(
        self, steps: Iterator[None], position: tuple[int, int, int]
    ) -> Iterator[None]:
        yield
        yield from steps
        self._visible = position

    def _skip_to(self, offset: int) -> None:
        """Continue at an offset as if the records before it were NoOps."""
        count = offset - self._next_offset
        if count > 0:
            self._next_offset = offset
            if self._transaction is None:
                self._visible = (offset - 1, *self._visible[1:])
            else:
                self._transaction.record_count += count

    def _epoch_error(self, leader_epoch: int, offset: int, record: str) -> ReplayError:
        reason = f"leader epoch {leader_epoch} is lower than the previous {self._leader_epoch}"
        return ReplayError(offset=offset, record=record, reason=reason)

    def _handle_payload(
        self, payload: Payload, at: Position, changes: list[RecordChanges]
    ) -> Steps:
        transaction = self._transaction
        if not (payload is None or isinstance(payload, bytes | DecodedRecord)):
            if transaction is None:
                self._replay_control(payload, at, changes)
            else:
                transaction.controls.append((at, payload))
            return None
        try:
            record = metadata_record(payload, at.offset, self._decode)
        except ReplayError as error:
            self._reject(error)
            if transaction is not None:
                transaction.record_count += 1
            return None
        if isinstance(record, MARKERS):
            marker = marker_of(record)
            if marker is not None:
                return self._handle_marker(marker, at, changes)
        if transaction is None:
            return self._replay(record, at, changes)
        transaction.records.append((at, record))
        transaction.record_count += 1
        return None

    def _handle_marker(
        self, marker: BeginMarker | EndMarker, at: Position, changes: list[RecordChanges]
    ) -> Steps:
        transaction = self._transaction
        if isinstance(marker, BeginMarker):
            if transaction is not None:
                reason = f"the transaction begun at offset {transaction.begin_offset} is still open"
                self._reject(
                    ReplayError(offset=at.offset, record=marker.record_name, reason=reason)
                )
            else:
                self._transaction = OpenTransaction(at.offset, marker.name)
            return None
        if transaction is None:
            reason = "no transaction is open"
            self._reject(ReplayError(offset=at.offset, record=marker.record_name, reason=reason))
            return None
        return begin(self._end_transaction(transaction, marker, at, changes))

    def _end_transaction(
        self,
        transaction: OpenTransaction,
        marker: EndMarker,
        at: Position,
        changes: list[RecordChanges],
    ) -> Iterator[None]:
        for control_at, control in transaction.controls:
            self._replay_control(control, control_at, changes)
        if marker.outcome is TransactionOutcome.COMMITTED:
            for number, (record_at, record) in enumerate(transaction.records):
                if number and not number % RECORDS_PER_STEP:
                    yield
                visible = dataclasses.replace(record_at, visible_offset=at.offset)
                steps = self._replay(record, visible, changes)
                if steps is not None:
                    yield
                    yield from steps
        self._delta.put(transaction.to_row(marker, at.offset))
        self._collect(marker.record_type, at, changes)
        self._transaction = None

    def _replay(
        self, record: MetadataRecord | UnknownRecord, at: Position, changes: list[RecordChanges]
    ) -> Steps:
        if isinstance(record, UnknownRecord):
            self._skip(False, record.api_key, record.version, at.offset)
            return None
        kind = type(record)
        try:
            steps = _REPLAY_BY_TYPE[kind](record, self._delta, at)
            if steps is not None:
                steps = begin(steps)
        except ReplayError as error:
            self._reject(self._with_skipped(error))
            return None
        if steps is not None:
            return self._collect_after(steps, JSON_TYPES[kind], at, changes)
        self._collect(JSON_TYPES[kind], at, changes)
        return None

    def _collect_after(
        self,
        steps: Iterator[None],
        record_type: str,
        at: Position,
        changes: list[RecordChanges],
    ) -> Iterator[None]:
        yield from steps
        self._collect(record_type, at, changes)

    def _with_skipped(self, error: ReplayError) -> ReplayError:
        """Add the skipped records, which may have caused an error, to it."""
        skipped = [str(one) for one in self.skipped if not one.is_control]
        error.unsupported = ", ".join(skipped) or None
        return error

    def _reject(self, error: ReplayError) -> None:
        """Leave out a record, which has written nothing, or raise its error."""
        if self._on_rejected is None:
            raise error
        self._on_rejected(error)

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
            self._collected_count += 1
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
        """Collect the changes of a call, and undo them on any error."""
        self._check_open()
        changes: list[RecordChanges] = []
        savepoint = self._savepoint()
        try:
            yield changes
        except BaseException:
            self._rollback(savepoint, changes)
            self._check_invariants(savepoint, [])
            raise
        self._check_invariants(savepoint, changes)

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
            collected_count=self._collected_count,
        )

    def _rollback(self, savepoint: _Savepoint, changes: list[RecordChanges]) -> None:
        """Undo a failed call, including partial changes of its last record."""
        self._delta.undo(reversed(self._delta.take_changes()))
        for done in reversed(changes):
            self._delta.undo(reversed(done.changes))
            self._collected_count -= 1
        self._quorum = savepoint.quorum
        self._next_offset = savepoint.next_offset
        self._leader_epoch = savepoint.leader_epoch
        self._visible = savepoint.visible
        self._transaction = savepoint.transaction
        if savepoint.transaction is not None:
            savepoint.transaction.truncate(savepoint.transaction_sizes)
        self._skipped = savepoint.skipped

    # --- invariants -------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._violation is not None:
            raise StateInvariantError(reason=self._violation)

    def _close(self, violation: AssertionError) -> NoReturn:
        self._violation = str(violation)
        raise StateInvariantError(reason=self._violation) from violation

    def _check_unchanged(self, before: _Savepoint) -> None:
        """Assert that reading a snapshot has changed nothing; otherwise close the loader."""
        try:
            assert (self._next_offset, self._collected_count) == (
                before.next_offset,
                before.collected_count,
            ), (
                f"records from offset {before.next_offset} on were appended while a snapshot "
                "was read"
            )
        except AssertionError as violation:
            self._close(violation)

    def _check_invariants(self, before: _Savepoint, changes: list[RecordChanges]) -> None:
        """Assert what holds after a call that returns ``changes``; otherwise close the loader."""
        next_offset, epoch, transaction = self._next_offset, self._leader_epoch, self._transaction
        visible_offset, visible_epoch, _ = self._visible
        expected = (next_offset if transaction is None else transaction.begin_offset) - 1
        untaken_count = self._delta.untaken_count
        unreturned_count = self._collected_count - before.collected_count - len(changes)
        try:
            assert before.next_offset <= next_offset, (
                f"the next offset fell from {before.next_offset} to {next_offset}"
            )
            assert before.leader_epoch <= epoch, (
                f"the leader epoch fell from {before.leader_epoch} to {epoch}"
            )
            assert visible_offset == expected, (
                f"records up to offset {visible_offset} are visible, expected {expected}"
            )
            assert visible_epoch <= epoch, (
                f"the visible leader epoch {visible_epoch} is above the last one, {epoch}"
            )
            assert not untaken_count, f"row changes that were not collected: {untaken_count}"
            assert not unreturned_count, f"changes that no call returned: {unreturned_count}"
            assert not changes or (
                before.visible[0] < changes[0].visible_offset
                and changes[-1].visible_offset <= visible_offset
            ), (
                f"changes are visible at offsets {changes[0].visible_offset} to "
                f"{changes[-1].visible_offset}, expected {before.visible[0] + 1} to "
                f"{visible_offset}"
            )
        except AssertionError as violation:
            self._close(violation)
