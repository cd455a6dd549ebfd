"""``OffsetControl``: a controller's state, with its stable, committed and written offsets.

    last stable <= last committed <= next write - 1

    offset      0 ... 7      8    9   10       11 12   13 14
    record      data         begin data        data    data
    committed   yes          yes               no      no
                ^ last stable     ^ last committed      ^ next write offset is 15

A standby replays committed records, so its state is the one at the last stable offset. The active
controller's state is the one at the next write offset - 1: its records are replayed before they are
appended, and not again when they are committed.

Records of an open transaction are kept, and are replayed at the end marker, as in
``MetadataLoader``, so the last stable offset is before its begin marker. The active controller has
already replayed its own transactions, so their kept records matter only after ``deactivate``.

Invariants:

1. The snapshots of the state's registry are at the last stable offset, at the claim, and at the
   last offsets of the writes after it. The state can therefore revert to the last stable offset at
   any time.
2. Control records change no rows, take effect when they are committed, and are never reverted.
3. While a batch is replayed in steps, a standby's current state has a part of it. The state at the
   last stable offset has none of it.

Source: Kafka ``OffsetControlManager``, which reverts to the begin marker on an abort and thus loses
the committed records of a transaction that is open at a failover.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Protocol

from raftlog.records import RecordBatch
from raftlog.types import SnapshotId
from raftlog_state.errors import MetadataParseError, OffsetGapError, ReplayError
from raftlog_state.image import MetadataImage, Quorum, TransactionOutcome
from raftlog_state.loader.control_records import quorum_after
from raftlog_state.loader.payload import LogRecord, batch_records, metadata_record
from raftlog_state.loader.snapshot_loader import SnapshotLoader
from raftlog_state.loader.transactions import (
    MARKERS,
    BeginMarker,
    EndMarker,
    OpenTransaction,
    marker_of,
)
from raftlog_state.records import DecodedRecord, MetadataRecord, UnknownRecord, decode
from raftlog_state.replay import Position
from raftlog_state.steps import RECORDS_PER_STEP, Steps, complete, for_each_in_steps

from .controller_state import ControllerState


class Snapshot(Protocol):
    """Snapshot of a log, as its reader gives it."""

    @property
    def snapshot_id(self) -> SnapshotId: ...

    def batches(self) -> Iterable[RecordBatch]: ...


class RecordNotAppliedError(Exception):
    """Failed replay of a record that is committed or being written; internal to the controller."""

    def __init__(self, message: str, cause: Exception) -> None:
        super().__init__(message)
        self.cause: Final = cause


@dataclass(frozen=True, slots=True)
class RecordPosition:
    """Position of a record; the offset is -1 before the first one."""

    offset: int = -1
    leader_epoch: int = 0
    timestamp_ms: int = -1


class OffsetControl:
    """State of a controller with its offsets. Not thread-safe.

    ``next_write_offset`` is None on a standby. ``is_empty``: whether no metadata record is
    committed outside open and aborted transactions (Kafka: ``LogReplayTracker``). ``unknown``:
    number of skipped records of each type and version that this release does not support.
    """

    def __init__(self) -> None:
        self.state = ControllerState()
        self.last_committed = RecordPosition()
        self.last_stable = RecordPosition()
        self._last_replayed = self.last_stable
        """The last record outside a transaction, even inside a batch that is being replayed."""
        self.next_write_offset: int | None = None
        self.is_empty = True
        self.unknown: Counter[tuple[int, int]] = Counter()
        self._quorum = Quorum()
        self._transaction: OpenTransaction | None = None
        self._plain_writes: set[int] = set()
        """Base offsets of this active controller's batches without markers and unknown records.

        They need not be decoded when they are committed.
        """
        self.state.registry.get_or_create_snapshot(-1)

    @classmethod
    def from_image(cls, image: MetadataImage) -> OffsetControl:
        """Return a standby's state after the last record of an image."""
        found = cls()
        found._load(image, ControllerState.from_image(image))
        return found

    @property
    def open_transaction_offset(self) -> int | None:
        """Offset of a committed begin marker without a committed end, or None."""
        return None if self._transaction is None else self._transaction.begin_offset

    @property
    def kraft_version(self) -> int:
        """The last kraft.version outside an open transaction."""
        return self._quorum.kraft_version

    @property
    def last_applied_offset(self) -> int:
        """Offset of the last record that the state includes, or will include at the end marker."""
        if self.next_write_offset is not None:
            return self.next_write_offset - 1
        return self.last_committed.offset

    def image(self) -> MetadataImage:
        """Return the state at the last stable offset, in time linear in the number of rows."""
        at = self.last_stable
        return self.state.image_at(
            at.offset,
            leader_epoch=at.leader_epoch,
            timestamp_ms=at.timestamp_ms,
            quorum=self._quorum,
        )

    # --- active controller ------------------------------------------------------------------------

    def activate(self, next_write_offset: int) -> None:
        """Begin to write at an offset, which is the one after the last committed record."""
        assert self.next_write_offset is None, "it is active already"
        assert next_write_offset == self.last_committed.offset + 1, "it is not caught up"
        self.next_write_offset = next_write_offset
        self.state.registry.get_or_create_snapshot(next_write_offset - 1)

    def deactivate(self) -> None:
        """Revert the writes that are not stable, and continue to follow the log."""
        assert self.next_write_offset is not None, "it is not active"
        self.next_write_offset = None
        self._plain_writes.clear()
        self.state.registry.revert_to_snapshot(self.last_stable.offset)

    def schedule_append(self, last_offset: int, *, plain_offsets: Iterable[int] = ()) -> None:
        """Register the state after a write, whose records are replayed and will be appended next.

        ``plain_offsets``: base offsets of its batches, if they have no markers.
        """
        assert self.next_write_offset is not None, "it is not active"
        self._plain_writes.update(plain_offsets)
        self.next_write_offset = last_offset + 1
        self.state.registry.get_or_create_snapshot(last_offset)

    def revert_write(self, base_offset: int, next_write_offset: int) -> None:
        """Revert the state to that before the write at an offset.

        ``next_write_offset``: end of the write's batches that were appended, if it is a
        transaction. The caller aborts it.
        """
        assert self.next_write_offset is not None, "it is not active"
        self.next_write_offset = next_write_offset
        self._plain_writes = {one for one in self._plain_writes if one < next_write_offset}
        self.state.registry.revert_to_snapshot(base_offset - 1)
        self.state.registry.get_or_create_snapshot(next_write_offset - 1)

    # --- committed log ----------------------------------------------------------------------------

    def is_replayed(self, batch: RecordBatch) -> bool:
        """Return whether this active controller wrote a batch."""
        return self.next_write_offset is not None and batch.base_offset < self.next_write_offset

    def handle_commit(self, batch: RecordBatch) -> None:
        """Replay a committed batch, like ``replay_in_steps``."""
        complete(self.replay_in_steps(batch))

    def replay_in_steps(self, batch: RecordBatch) -> Generator[None, None, None]:
        """Replay a committed batch, unless this active controller wrote it.

        A standby runs steps of ``RECORDS_PER_STEP``, even within a transaction's records and one
        record's rows. The active controller, which has replayed them, runs one step.

        Raises:
            OffsetGapError: the batch does not follow the last one.
            RecordNotAppliedError: a record contradicts the state, or its replay failed. The state
                is then undefined, as after any other exception.
        """
        expected = self.last_committed.offset + 1
        if batch.base_offset != expected:
            remedy = "deliver all committed batches in order"
            raise OffsetGapError(expected_offset=expected, offset=batch.base_offset, remedy=remedy)
        is_replayed, is_active = self.is_replayed(batch), self.next_write_offset is not None
        if is_replayed and self._transaction is None and batch.base_offset in self._plain_writes:
            self.is_empty = False
            self._note_committed(batch, batch.max_timestamp_ms)
            return
        record = None
        for index, record in enumerate(batch_records(batch), start=1):
            if not (is_active or (index - 1) % RECORDS_PER_STEP) and index > 1:
                yield
            try:
                steps = self._handle_record(record, is_replayed)
                if steps is not None:
                    yield from steps
            except Exception as error:
                message = (
                    f"Unable to apply {_name_of(record)} record on standby controller, which was "
                    f"{index} of {batch.record_count} record(s) in the batch with baseOffset "
                    f"{batch.base_offset}"
                )
                raise RecordNotAppliedError(message, error) from error
            if self._transaction is None:
                self._last_replayed = RecordPosition(
                    record.offset, record.leader_epoch, record.timestamp_ms
                )
        self._note_committed(
            batch, self.last_committed.timestamp_ms if record is None else record.timestamp_ms
        )
        if is_active and not is_replayed:
            self.next_write_offset = batch.next_offset

    def _note_committed(self, batch: RecordBatch, timestamp_ms: int) -> None:
        self._plain_writes.discard(batch.base_offset)
        self.last_committed = RecordPosition(
            batch.next_offset - 1, batch.leader_epoch, timestamp_ms
        )
        if self._transaction is None:
            self.last_stable = self._last_replayed = self.last_committed
        self._register_stable()

    def load_snapshot(self, snapshot: Snapshot) -> None:
        """Replace the state with a snapshot's, like ``load_in_steps``."""
        complete(self.load_in_steps(snapshot))

    def load_in_steps(self, snapshot: Snapshot) -> Generator[None, None, None]:
        """Replace the state with a snapshot's, in steps; the state changes in the last one.

        Raises:
            OffsetGapError: the snapshot ends before the last committed offset.
            RecordNotAppliedError: a record contradicts the records before it, or its replay failed.
                The state is unchanged, as after any other exception.
        """
        snapshot_id, expected = snapshot.snapshot_id, self.last_committed.offset + 1
        if snapshot_id.end_offset < expected:
            remedy = "load a snapshot that is newer than the state"
            raise OffsetGapError(
                expected_offset=expected, offset=snapshot_id.end_offset, remedy=remedy
            )
        loader = SnapshotLoader(snapshot_id, None, decode)

        def load(at: tuple[RecordBatch, int, LogRecord]) -> None:
            batch, number, record = at
            try:
                loader.load(record)
            except Exception as error:
                message = (
                    f"Unable to apply {_name_of(record)} record from snapshot {snapshot_id} on "
                    f"standby controller, which was {number} of {batch.record_count} record(s) in "
                    f"the batch with baseOffset {batch.base_offset}"
                )
                raise RecordNotAppliedError(message, error) from error

        records = (
            (batch, number, record)
            for batch in snapshot.batches()
            for number, record in enumerate(batch_records(batch), start=1)
        )
        yield from for_each_in_steps(records, load)
        image, _ = yield from loader.finish_in_steps()
        self._load(image, (yield from ControllerState.from_image_in_steps(image)))
        for unknown in loader.unknown:
            self.unknown[unknown.api_key, unknown.version] += 1

    def _load(self, image: MetadataImage, state: ControllerState) -> None:
        self.state = state
        self.last_committed = RecordPosition(image.offset, image.leader_epoch, image.timestamp_ms)
        self.last_stable = self._last_replayed = self.last_committed
        self.is_empty = not any(image.maps.values())
        self.unknown = Counter()
        self._quorum = image.quorum
        self._transaction = None
        self._register_stable()

    def _register_stable(self) -> None:
        registry = self.state.registry
        registry.get_or_create_snapshot(self.last_stable.offset)
        registry.delete_snapshots_up_to(self.last_stable.offset)

    def _handle_record(self, record: LogRecord, is_replayed: bool) -> Steps:
        """Handle a record; return its steps, if any, before the first one runs."""
        payload = record.payload
        at = Position(record.offset, record.offset, record.leader_epoch, record.timestamp_ms)
        if payload is None or isinstance(payload, bytes | DecodedRecord):
            metadata = metadata_record(payload, record.offset, decode)
            marker = marker_of(metadata) if isinstance(metadata, MARKERS) else None
            if isinstance(marker, BeginMarker):
                self._begin_transaction(marker, at)
            elif isinstance(marker, EndMarker):
                return self._end_transaction(marker, at, is_replayed)
            elif self._transaction is not None:
                self._transaction.records.append((at, metadata))
            else:
                return self._replay(metadata, at, is_replayed)
        elif self._transaction is not None:
            self._transaction.controls.append((at, payload))
        else:
            self._quorum = quorum_after(payload, self._quorum)
        return None

    def _begin_transaction(self, marker: BeginMarker, at: Position) -> None:
        if self._transaction is not None:
            begun = self._transaction.begin_offset
            reason = f"the transaction begun at offset {begun} is still open"
            raise ReplayError(offset=at.offset, record=marker.record_name, reason=reason)
        self.last_stable = self._last_replayed
        self._register_stable()
        self._transaction = OpenTransaction(at.offset, marker.name)

    def _end_transaction(
        self, marker: EndMarker, at: Position, is_replayed: bool
    ) -> Iterator[None]:
        transaction = self._transaction
        if transaction is None:
            reason = "no transaction is open"
            raise ReplayError(offset=at.offset, record=marker.record_name, reason=reason)
        if marker.outcome is TransactionOutcome.COMMITTED:
            for number, (record_at, record) in enumerate(transaction.records, start=1):
                visible = replace(record_at, visible_offset=at.offset)
                yield from self._replay(record, visible, is_replayed) or ()
                if not (is_replayed or number % RECORDS_PER_STEP):
                    yield
        for _, control in transaction.controls:
            self._quorum = quorum_after(control, self._quorum)
        self._transaction = None

    def _replay(
        self, record: MetadataRecord | UnknownRecord, at: Position, is_replayed: bool
    ) -> Steps:
        self.is_empty = False
        if isinstance(record, UnknownRecord):
            self.unknown[record.api_key, record.version] += 1
        elif not is_replayed:
            return self.state.replay_in_steps(record, at)
        return None


def _name_of(record: LogRecord) -> str:
    """Return the type of a record, for a message about it."""
    payload = record.payload
    if isinstance(payload, bytes):
        try:
            payload = decode(payload)
        except MetadataParseError as error:
            return error.record
    named = payload.record if isinstance(payload, DecodedRecord) else payload
    return type(named).__name__
