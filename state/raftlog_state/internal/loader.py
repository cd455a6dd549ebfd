"""Replay of Kafka's internal logs into rows: the state of the coordinators that write them.

Rules of this file:

1. A record changes the rows of its key, as in a coordinator that loads the log: a key's last record
   wins, and a tombstone deletes its row.
2. All records are replayed, including those of open and aborted transactions. In transactions there
   are only offset commits, whose effect ``group_replay`` determines. States and tables use the same
   replay of each log.
3. A snapshot of a share partition replaces its state, and an update changes it. Ranges of records
   are combined. Where two ranges overlap, the one with the greater delivery count wins; if the
   counts are equal, the one with the greater delivery state::

    state    0 .. 9 available, 1
    update   5 .. 14 acknowledged, 2      after it: 0 .. 4 available, 1; 5 .. 14 acknowledged, 2

4. Records of unknown types and versions have no effect, because Kafka may be upgraded first.

Source: Kafka ``CoordinatorLoaderImpl``, ``TransactionStateManager``, ``ShareCoordinatorShard``,
``PersisterStateBatchCombiner``, ``RemoteLogMetadataCache``.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple, TypeAlias, TypeVar

import numpy as np

from raftlog.client import LogReader
from raftlog.errors import CorruptBatchError
from raftlog.records.batch_columns import Column, Scan
from raftlog_state.enums import REMOTE_SEGMENT_STATES, TRANSACTION_STATES, enum_name
from raftlog_state.errors import MetadataParseError, ReplayError
from raftlog_state.image import MetadataImage
from raftlog_state.image.delta import MetadataDelta, Op, RecordChanges, RowChange
from raftlog_state.image.rows import (
    INTERNAL_ENTITIES,
    Entity,
    EpochRow,
    InternalRow,
    ProducerTransactionRow,
    RemoteSegmentRow,
    ShareBatch,
    SharePartitionRow,
)
from raftlog_state.records import Message, Redactor
from raftlog_state.records.internal_logs import (
    CONSUMER_OFFSETS,
    GROUP_RECORDS,
    INTERNAL_LOGS,
    REMOTE_LOG_METADATA,
    REMOTE_LOG_RECORDS,
    SHARE_GROUP_STATE,
    SHARE_RECORDS,
    TRANSACTION_RECORDS,
    TRANSACTION_STATE,
)
from raftlog_state.records.keyed_serde import KeyedSerde
from raftlog_state.records.schema_coordinators import (
    SharePartitionKey,
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
    StateBatch,
    TransactionLogKey,
    TransactionLogValue,
)
from raftlog_state.records.schema_groups import LegacyOffsetCommitKey, OffsetCommitKey
from raftlog_state.records.schema_remote import (
    RemoteLogSegmentMetadataRecord,
    RemoteLogSegmentMetadataUpdateRecord,
    RemotePartitionDeleteMetadataRecord,
)
from raftlog_state.source_rows.transactions import transactional_producers

from .group_replay import GroupReplay, InternalRecord, known

R = TypeVar("R", bound=InternalRow)

Replay: TypeAlias = Callable[[InternalRecord, MetadataDelta], None]
"""Replay of one record. Raises ``MetadataParseError`` or ``CorruptBatchError`` if it is damaged."""

_UNKNOWN: Final = -1
"""Unknown offset, epoch, count or time in Kafka's records."""
_DELETE_SEGMENT_FINISHED: Final = 3
_DELETE_PARTITION_FINISHED: Final = 2


# --- Transactions ---------------------------------------------------------------------------------


def transaction_row(transactional_id: str, value: TransactionLogValue) -> ProducerTransactionRow:
    """Return the row of a transactional id."""
    return ProducerTransactionRow(
        transactional_id=transactional_id,
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        state=enum_name(TRANSACTION_STATES, value.transaction_status),
        timeout_ms=value.transaction_timeout_ms,
        start_timestamp_ms=known(value.transaction_start_timestamp_ms),
        last_update_timestamp_ms=value.transaction_last_update_timestamp_ms,
        partitions=tuple(
            f"{one.topic}-{number}"
            for one in value.transaction_partitions or ()
            for number in sorted(one.partition_ids)
        ),
    )


def _replay_transaction(key: bytes | None, value: bytes | None, delta: MetadataDelta) -> None:
    record = TRANSACTION_RECORDS.decode(key, value)
    match record.key, record.value:
        case TransactionLogKey(transactional_id=name), TransactionLogValue() as state:
            delta.put(transaction_row(name, state))
        case TransactionLogKey(transactional_id=name), None:
            delta.delete(Entity.PRODUCER_TRANSACTION, (name,))


# --- Share partitions -----------------------------------------------------------------------------


def _replay_share(key: bytes | None, value: bytes | None, delta: MetadataDelta) -> None:
    record = SHARE_RECORDS.decode(key, value)
    match record.key, record.value:
        case ShareSnapshotKey() as place, ShareSnapshotValue() as snapshot:
            delta.put(_snapshot_row(place, snapshot))
        case ShareSnapshotKey() as place, None:
            delta.delete(Entity.SHARE_PARTITION, (place.group_id, place.topic_id, place.partition))
        case ShareUpdateKey() as place, ShareUpdateValue() as update:
            before = delta.find(SharePartitionRow, place.group_id, place.topic_id, place.partition)
            delta.put(_updated(before or _without_snapshot(place, update), update))


def _snapshot_row(key: SharePartitionKey, value: ShareSnapshotValue) -> SharePartitionRow:
    return SharePartitionRow(
        group=key.group_id,
        topic_id=key.topic_id,
        partition=key.partition,
        start_offset=known(value.start_offset),
        delivery_complete_count=known(value.delivery_complete_count),
        state_epoch=known(value.state_epoch),
        leader_epoch=known(value.leader_epoch),
        snapshot_epoch=value.snapshot_epoch,
        create_timestamp_ms=value.create_timestamp,
        write_timestamp_ms=value.write_timestamp,
        state_batches=tuple(_batches(value.state_batches)),
    )


def _without_snapshot(key: SharePartitionKey, value: ShareUpdateValue) -> SharePartitionRow:
    """Return the state before an update whose snapshot was deleted below the log start."""
    row = _snapshot_row(key, ShareSnapshotValue(snapshot_epoch=value.snapshot_epoch))
    return replace(
        row,
        start_offset=None,
        state_epoch=None,
        leader_epoch=None,
        create_timestamp_ms=None,
        write_timestamp_ms=None,
    )


def _updated(before: SharePartitionRow, value: ShareUpdateValue) -> SharePartitionRow:
    start = before.start_offset if value.start_offset == _UNKNOWN else value.start_offset
    is_same_leader = value.leader_epoch == _UNKNOWN
    return replace(
        before,
        start_offset=start,
        delivery_complete_count=known(value.delivery_complete_count),
        leader_epoch=before.leader_epoch if is_same_leader else value.leader_epoch,
        state_batches=combined([*before.state_batches, *_batches(value.state_batches)], start),
    )


def _batches(batches: Iterable[StateBatch]) -> Iterator[ShareBatch]:
    for one in batches:
        yield ShareBatch(one.first_offset, one.last_offset, one.delivery_count, one.delivery_state)


class _Range(NamedTuple):
    """Batch in the order in which Kafka combines them."""

    first_offset: int
    last_offset: int
    rank: tuple[int, int]
    """Delivery count and state: of overlapping batches, the one with the greatest rank wins."""


def combined(batches: Iterable[ShareBatch], start_offset: int | None) -> tuple[ShareBatch, ...]:
    """Return batches that do not overlap, by offset, without offsets below the start offset."""
    start = _UNKNOWN if start_offset is None else start_offset
    pending = [
        _Range(
            max(one.first_offset, start),
            one.last_offset,
            (one.delivery_count, one.delivery_state),
        )
        for one in batches
        if one.last_offset >= start
    ]
    heapq.heapify(pending)
    found: list[_Range] = []
    while len(pending) > 1:
        first, second = heapq.heappop(pending), pending[0]
        is_next = first.last_offset + 1 == second.first_offset and first.rank == second.rank
        if second.first_offset > first.last_offset and not is_next:
            found.append(first)
            continue
        heapq.heappop(pending)
        for part in _merged(first, second):
            heapq.heappush(pending, part)
    return tuple(
        ShareBatch(one.first_offset, one.last_offset, *one.rank) for one in (*found, *pending)
    )


def _merged(first: _Range, second: _Range) -> Iterator[_Range]:
    """Yield the parts of two batches that overlap, or that are adjacent and have the same rank."""
    if first.rank == second.rank:
        yield first._replace(last_offset=max(first.last_offset, second.last_offset))
    elif first.rank > second.rank:
        yield first
        if second.last_offset > first.last_offset:
            yield second._replace(first_offset=first.last_offset + 1)
    else:
        if second.first_offset > first.first_offset:
            yield first._replace(last_offset=second.first_offset - 1)
        yield second
        if first.last_offset > second.last_offset:
            yield first._replace(first_offset=second.last_offset + 1)


# --- Remote segments ------------------------------------------------------------------------------


def segment_row(record: RemoteLogSegmentMetadataRecord) -> RemoteSegmentRow:
    """Return the row of a segment. Both offsets are inclusive, as in Kafka."""
    partition = record.remote_log_segment_id.topic_id_partition
    return RemoteSegmentRow(
        topic=partition.name,
        partition=partition.partition,
        start_offset=record.start_offset,
        end_offset=record.end_offset,
        state=enum_name(REMOTE_SEGMENT_STATES, record.remote_log_segment_state),
        segment_size_in_bytes=record.segment_size_in_bytes,
        max_timestamp_ms=record.max_timestamp_ms,
        event_timestamp_ms=record.event_timestamp_ms,
        broker_id=record.broker_id,
        topic_id=partition.id,
        segment_id=record.remote_log_segment_id.id,
    )


def _replay_remote(_: bytes | None, value: bytes | None, delta: MetadataDelta) -> None:
    record = REMOTE_LOG_RECORDS.decode(value or b"").record
    match record:
        case RemoteLogSegmentMetadataRecord() | RemoteLogSegmentMetadataUpdateRecord():
            segment_id, state = record.remote_log_segment_id.id, record.remote_log_segment_state
            before = delta.find(RemoteSegmentRow, segment_id)
            if state == _DELETE_SEGMENT_FINISHED:
                delta.delete(Entity.REMOTE_SEGMENT, (segment_id,))
            elif isinstance(record, RemoteLogSegmentMetadataRecord):
                delta.put(segment_row(record))
            elif before is not None:
                delta.put(replace(before, state=enum_name(REMOTE_SEGMENT_STATES, state)))
        case RemotePartitionDeleteMetadataRecord():
            if record.remote_partition_delete_state == _DELETE_PARTITION_FINISHED:
                topic = record.topic_id_partition
                for row in rows_in(delta, RemoteSegmentRow):
                    if (row.topic_id, row.partition) == (topic.id, topic.partition):
                        delta.delete(Entity.REMOTE_SEGMENT, row.key)


# --- Partitions -----------------------------------------------------------------------------------


def _without_transactions(
    replay: Callable[[bytes | None, bytes | None, MetadataDelta], None],
) -> Callable[[MetadataImage], Replay]:
    """Return the replay of a log to which no producer writes in transactions."""

    def apply(record: InternalRecord, delta: MetadataDelta) -> None:
        if not record.is_control:
            replay(record.key, record.value, delta)

    return lambda _: apply


_REPLAY: Final[Mapping[str, Callable[[MetadataImage], Replay]]] = {
    CONSUMER_OFFSETS: GroupReplay,
    TRANSACTION_STATE: _without_transactions(_replay_transaction),
    SHARE_GROUP_STATE: _without_transactions(_replay_share),
    REMOTE_LOG_METADATA: _without_transactions(_replay_remote),
}
"""By topic, the replay that continues a state."""


def rows_in(delta: MetadataDelta, kind: type[R]) -> list[R]:
    """Return the current rows of a type, by key."""
    found = (delta.find(kind, *key) for key in sorted(delta.keys(kind.ENTITY)))
    return [row for row in found if row is not None]


class InternalState:
    """Rows of one partition of an internal log, without their changes.

    For ``__remote_log_metadata``, they may be of several partitions or objects, by segment. A
    record that only overwrites a row is not decoded if a later record with the same key overwrites
    it, too, unless a transaction's record with the same key is between them. Damage in such a
    record is therefore not detected::

        offset    10      11          12      13            14
        record    a = 1   a = 2 (p)   a = 3   p commits     a = 4
        decoded   yes     yes         no      yes           yes

    ``redactor``: full redaction hides data that clients send about themselves.
    """

    def __init__(self, topic: str, redactor: Redactor | None = None) -> None:
        self._loader = InternalLoader(topic)
        self._format = INTERNAL_LOGS[topic]
        self._redactor = redactor if redactor is not None and redactor.full else None
        self._overwriting = _OVERWRITING.get(topic, frozenset())
        self._last: dict[bytes, InternalRecord] = {}
        """By key without its type: the record to apply before the next one of another kind."""
        self.path = ""
        """The partition that was read last."""

    def read(self, log: LogReader, end_offset: int) -> None:
        """Replay the records of the partition below ``end_offset``.

        Raises:
            CorruptBatchError: a record is damaged. Also the errors of ``LogReader.scan``.
        """
        self.path = log.path
        try:
            for scan in log.scan(log.log_start_offset, end_offset, columns=_COLUMNS):
                self._replay(scan, end_offset)
            for record in sorted(self._last.values(), key=lambda one: one.offset):
                self._apply(record)
        except ReplayError as error:
            raise CorruptBatchError(
                reason=error.reason, path=log.path, offset=error.offset
            ) from None
        self._last.clear()

    def _replay(self, scan: Scan, end_offset: int) -> None:
        records, batches = scan.records, scan.batches
        assert records.offset is not None, "a requested column"
        assert records.key is not None, "a requested column"
        assert records.value is not None, "a requested column"
        offsets = records.offset.to_numpy()
        count = int(np.searchsorted(offsets, end_offset))
        rows = zip(
            offsets[:count].tolist(),
            records.key.slice(0, count).to_pylist(),
            records.value.slice(0, count).to_pylist(),
            transactional_producers(batches)[records.batch_ordinal[:count]].tolist(),
            records.is_control[:count].tolist(),
            strict=True,
        )
        last, overwriting = self._last, self._overwriting
        for offset, key, value, producer_id, is_control in rows:
            record = InternalRecord(offset, key, value, known(producer_id), is_control)
            if key is None or is_control:
                self._apply(record)
            elif producer_id < 0 and value is not None and (key[:2], value[:2]) in overwriting:
                last[key[2:]] = record
            else:
                before = last.pop(key[2:], None)
                if before is not None:
                    self._apply(before)
                self._apply(record)
        self._advance(scan, count)

    def _advance(self, scan: Scan, count: int) -> None:
        """Record the last of the first ``count`` records, and the epochs that begin in them."""
        records = scan.records
        assert records.offset is not None, "a requested column"
        assert records.timestamp_ms is not None, "a requested column"
        assert records.leader_epoch is not None, "a requested column"
        if count == 0:
            return
        epochs = records.leader_epoch.slice(0, count).to_numpy()
        first_of_epoch = np.flatnonzero(np.diff(epochs)) + 1
        for at in (0, *first_of_epoch.tolist(), count - 1):
            self._loader.advance(
                records.offset[at].as_py(), int(epochs[at]), records.timestamp_ms[at].as_py()
            )

    def _apply(self, record: InternalRecord) -> None:
        key, value = record.key, record.value
        if self._redactor is not None and not record.is_control:
            with suppress(MetadataParseError):  # the replay reports it
                key, value = self._format.redacted(key, value, self._redactor)
        self._loader.apply(record._replace(key=key, value=value))

    def image(self) -> MetadataImage:
        """Return all rows at the end of the last read."""
        return self._loader.image

    def rows(self, kind: type[R]) -> list[R]:
        """Return the rows of a type, by key."""
        return self._loader.image.rows_of(kind)


def _heads(serde: KeyedSerde, *keys: type[Message]) -> frozenset[tuple[bytes, bytes]]:
    """Return the first two bytes of key and value, for the known versions of record types."""
    return frozenset(
        (kind.api_key.to_bytes(2), version.to_bytes(2))
        for kind in serde.types
        if kind.key in keys
        for version in range(kind.value.schema.latest_version + 1)
    )


_OVERWRITING: Final = {
    CONSUMER_OFFSETS: _heads(GROUP_RECORDS, LegacyOffsetCommitKey, OffsetCommitKey),
    TRANSACTION_STATE: _heads(TRANSACTION_RECORDS, TransactionLogKey),
}
"""By topic, records that overwrite one row each.

Keys that differ only in their type are equal: legacy commits are for the same rows. A value of an
unknown version has no effect.
"""
_COLUMNS: Final = Column.OFFSET | Column.TIMESTAMP | Column.LEADER_EPOCH | Column.KEY | Column.VALUE


class InternalLoader:
    """State of one partition of an internal log that returns its changes. Not thread-safe.

    ``image``: the state before the first record. Leader epochs of the partition are rows, too.
    """

    def __init__(self, topic: str, image: MetadataImage | None = None) -> None:
        self._topic = topic
        image = MetadataImage.empty() if image is None else image
        self._replay = _REPLAY[topic](image)
        self._delta = MetadataDelta(image)
        self._end = (image.offset, image.leader_epoch, image.timestamp_ms)
        epochs = image.map(Entity.EPOCH)
        self._epoch: EpochRow | None = image.find(EpochRow, *max(epochs)) if epochs else None

    @property
    def image(self) -> MetadataImage:
        """State after the last record."""
        offset, leader_epoch, timestamp_ms = self._end
        if not self._delta.is_empty() or self._delta.image.offset != offset:
            image = self._delta.apply(
                offset=offset, leader_epoch=leader_epoch, timestamp_ms=timestamp_ms
            )
            self._delta = MetadataDelta(image)
        return self._delta.image

    def append(
        self,
        records: Sequence[InternalRecord],
        leader_epochs: Sequence[int],
        timestamps_ms: Sequence[int],
        record_types: Iterable[str | None],
    ) -> list[RecordChanges]:
        """Replay records, with their columns; return their changes.

        The caller has checked that offsets increase and leader epochs do not decrease.

        Raises:
            ReplayError: a record is damaged. The state is undefined then.
        """
        found = []
        rows = zip(records, leader_epochs, timestamps_ms, record_types, strict=True)
        for record, leader_epoch, timestamp_ms, record_type in rows:
            self.advance(record.offset, leader_epoch, timestamp_ms)
            changes = self.apply(record)
            if changes:
                at = (record.offset, record.offset, leader_epoch, timestamp_ms, record_type or "")
                found.append(RecordChanges(*at, changes))
        return found

    def bootstrap(
        self,
        records: Sequence[InternalRecord],
        leader_epochs: Sequence[int],
        timestamps_ms: Sequence[int],
    ) -> list[RecordChanges]:
        """Replace the state with that of all records of the log; return the differences.

        Rows that differ are returned as ``Op.READ``, rows without a record as ``Op.DELETE``, all at
        the last record. Leader epochs before it are kept. The caller has checked the records as for
        ``append``.

        Raises:
            ReplayError: a record is damaged. The state is unchanged then.
        """
        before = self.image
        epochs = MetadataImage.from_rows(
            before.rows(Entity.EPOCH),
            offset=before.offset,
            leader_epoch=before.leader_epoch,
            timestamp_ms=before.timestamp_ms,
        )
        loaded = InternalLoader(self._topic, epochs)
        for record, leader_epoch, timestamp_ms in zip(
            records, leader_epochs, timestamps_ms, strict=True
        ):
            if record.offset > before.offset:
                loaded.advance(record.offset, leader_epoch, timestamp_ms)
            loaded.apply(record)
        after = loaded.image
        self._replay, self._delta = loaded._replay, loaded._delta
        self._end, self._epoch = loaded._end, loaded._epoch
        entities = (Entity.EPOCH, *INTERNAL_ENTITIES[self._topic])
        changes = tuple(_differences(before, after, entities))
        at = (after.offset, after.offset, after.leader_epoch, after.timestamp_ms, "")
        return [RecordChanges(*at, changes)] if changes else []

    def advance(self, offset: int, leader_epoch: int, timestamp_ms: int) -> None:
        """Move the state to the position after a record, and begin its leader epoch."""
        if self._epoch is None or self._epoch.leader_epoch < leader_epoch:
            self._begin_epoch(leader_epoch, offset)
        self._end = (offset, leader_epoch, timestamp_ms)

    def apply(self, record: InternalRecord) -> tuple[RowChange, ...]:
        """Apply a record; return the changes since the last call. Raises as ``append``."""
        try:
            self._replay(record, self._delta)
        except (MetadataParseError, CorruptBatchError) as error:
            is_record = isinstance(error, MetadataParseError)
            raise ReplayError(
                offset=record.offset,
                record=f"a record of {self._topic}",
                reason=error.message() if is_record else error.reason,
            ) from None
        return self._delta.take_changes()

    def _begin_epoch(self, leader_epoch: int, offset: int) -> None:
        """Write the row of a leader epoch, whose leader is not in the log."""
        if self._epoch is not None:
            self._delta.put(replace(self._epoch, end_offset=offset))
        self._epoch = EpochRow(
            leader_epoch=leader_epoch,
            start_offset=offset,
            end_offset=None,
            leader_id=None,
            voters=(),
            kraft_version=0,
        )
        self._delta.put(self._epoch)


def _differences(
    before: MetadataImage, after: MetadataImage, entities: Iterable[Entity]
) -> Iterator[RowChange]:
    """Yield the rows of a loaded state that differ from those before, and those it lacks."""
    for entity in entities:
        known, loaded = before.map(entity), after.map(entity)
        for key, row in loaded.items():
            earlier = known.get(key)
            if row != earlier:
                yield RowChange(entity, key, Op.READ, earlier, row)
        for key in sorted(key for key in known if key not in loaded):
            yield RowChange(entity, key, Op.DELETE, known[key], None)
