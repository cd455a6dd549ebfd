"""Replay of Kafka's internal logs into rows: the state of the coordinators that write them.

Rules of this file:

1. A record changes the rows in its place of the log, as at a coordinator that loads it: a key's
   last record decides, a tombstone deletes its row.
2. Records of a producer's transaction have their effect at their own offsets, not at its marker: of
   a key's records that with the larger offset decides, since compaction, which knows no markers,
   keeps that one. The callers leave out those of aborted transactions, and read up to the last
   stable offset.
3. A snapshot of a share partition replaces its state, an update changes it. Ranges of records are
   combined: where two overlap, that with the greater delivery count counts, then that with the
   greater delivery state::

    state    0 .. 9 available, 1
    update   5 .. 14 acknowledged, 2      after it: 0 .. 4 available, 1; 5 .. 14 acknowledged, 2

4. Records of unknown types and versions have no effect, since Kafka may be upgraded first.

Source: Kafka ``OffsetMetadataManager``, ``TransactionStateManager``, ``ShareCoordinatorShard``,
``PersisterStateBatchCombiner``, ``RemoteLogMetadataCache``.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, TypeAlias, TypeVar

import numpy as np

from raftlog.client import Isolation, LogReader
from raftlog.errors import CorruptBatchError
from raftlog.records.batch_columns import Column
from raftlog.types import ZERO_UUID
from raftlog_state.enums import REMOTE_SEGMENT_STATES, TRANSACTION_STATES, enum_name
from raftlog_state.errors import MetadataParseError, ReplayError
from raftlog_state.image import MetadataImage
from raftlog_state.image.delta import MetadataDelta, RecordChanges
from raftlog_state.image.rows import (
    ConsumerOffsetRow,
    Entity,
    EpochRow,
    InternalRow,
    ProducerTransactionRow,
    RemoteSegmentRow,
    ShareBatch,
    SharePartitionRow,
)
from raftlog_state.records import Redactor
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
from raftlog_state.records.schema_groups import (
    LegacyOffsetCommitKey,
    LegacyOffsetCommitValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from raftlog_state.records.schema_remote import (
    RemoteLogSegmentMetadataRecord,
    RemoteLogSegmentMetadataUpdateRecord,
    RemotePartitionDeleteMetadataRecord,
)
from raftlog_state.source_rows.transactions import NEVER, ProducerTransactions

R = TypeVar("R", bound=InternalRow)

KeyAndValue: TypeAlias = tuple[bytes | None, bytes | None]

_UNKNOWN: Final = -1
"""Offset, epoch, count or time that is not known, in Kafka's records."""
_DELETE_SEGMENT_FINISHED: Final = 3
_DELETE_PARTITION_FINISHED: Final = 2


# --- Offset commits -------------------------------------------------------------------------------


def offset_row(
    key: OffsetCommitKey | LegacyOffsetCommitKey,
    value: OffsetCommitValue | LegacyOffsetCommitValue,
) -> ConsumerOffsetRow:
    """Return the row of a commit. A field that the record's version lacks is None."""
    commit = value if isinstance(value, OffsetCommitValue) else OffsetCommitValue()
    return ConsumerOffsetRow(
        group=key.group,
        topic=key.topic,
        partition=key.partition,
        offset=value.offset,
        leader_epoch=_known(commit.leader_epoch),
        metadata=value.metadata,
        commit_timestamp_ms=value.commit_timestamp,
        expire_timestamp_ms=_known(commit.expire_timestamp),
        topic_id=None if commit.topic_id == ZERO_UUID else commit.topic_id,
    )


def _replay_group(key: bytes | None, value: bytes | None, delta: MetadataDelta) -> None:
    record = GROUP_RECORDS.decode(key, value)
    match record.key, record.value:
        case (
            OffsetCommitKey() | LegacyOffsetCommitKey() as place,
            OffsetCommitValue() | LegacyOffsetCommitValue() as commit,
        ):
            delta.put(offset_row(place, commit))
        case OffsetCommitKey() | LegacyOffsetCommitKey() as place, None:
            delta.delete(Entity.CONSUMER_OFFSET, (place.group, place.topic, place.partition))


# --- Transactions ---------------------------------------------------------------------------------


def transaction_row(transactional_id: str, value: TransactionLogValue) -> ProducerTransactionRow:
    """Return the row of a transactional id."""
    return ProducerTransactionRow(
        transactional_id=transactional_id,
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        state=enum_name(TRANSACTION_STATES, value.transaction_status),
        timeout_ms=value.transaction_timeout_ms,
        start_timestamp_ms=_known(value.transaction_start_timestamp_ms),
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
        start_offset=_known(value.start_offset),
        delivery_complete_count=_known(value.delivery_complete_count),
        state_epoch=_known(value.state_epoch),
        leader_epoch=_known(value.leader_epoch),
        snapshot_epoch=value.snapshot_epoch,
        create_timestamp_ms=value.create_timestamp,
        write_timestamp_ms=value.write_timestamp,
        state_batches=tuple(_batches(value.state_batches)),
    )


def _without_snapshot(key: SharePartitionKey, value: ShareUpdateValue) -> SharePartitionRow:
    """Return the state before an update whose snapshot was deleted with the start of the log."""
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
        delivery_complete_count=_known(value.delivery_complete_count),
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
    """Delivery count and state: of batches that overlap the greatest one counts."""


def combined(batches: Iterable[ShareBatch], start_offset: int | None) -> tuple[ShareBatch, ...]:
    """Return batches that do not overlap, by offset, without what is below the start offset."""
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
    """Yield the parts of two batches that overlap, or are of one rank and follow each other."""
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

_REPLAY: Final[Mapping[str, Callable[[bytes | None, bytes | None, MetadataDelta], None]]] = {
    CONSUMER_OFFSETS: _replay_group,
    TRANSACTION_STATE: _replay_transaction,
    SHARE_GROUP_STATE: _replay_share,
    REMOTE_LOG_METADATA: _replay_remote,
}
"""By topic: replay of one record, which raises ``MetadataParseError`` if that is damaged."""


def rows_in(delta: MetadataDelta, kind: type[R]) -> list[R]:
    """Return the current rows of a type, by key."""
    found = (delta.find(kind, *key) for key in sorted(delta.keys(kind.ENTITY)))
    return [row for row in found if row is not None]


class InternalState:
    """Rows of an internal log, without their changes, of any of its partitions.

    ``redactor``: full redaction hides what clients say of themselves.
    """

    def __init__(self, topic: str, redactor: Redactor | None = None) -> None:
        self._replay = _REPLAY[topic]
        self._format = INTERNAL_LOGS[topic]
        self._redactor = redactor if redactor is not None and redactor.full else None
        self._delta = MetadataDelta(MetadataImage.empty())
        self._last_offset = -1

    def read(self, log: LogReader, end_offset: int) -> None:
        """Replay the records of a partition below ``end_offset`` and the last stable offset.

        Records of aborted transactions have no effect.

        Raises:
            CorruptBatchError: a record is damaged. Also as ``LogReader.scan``.
        """
        end_offset = min(end_offset, log.read_end(isolation=Isolation.READ_COMMITTED).offset)
        transactions = ProducerTransactions(log)
        columns = Column.OFFSET | Column.KEY | Column.VALUE
        for scan in log.scan(log.log_start_offset, end_offset, columns=columns):
            records = scan.records
            assert records.offset is not None, "a requested column"
            assert records.key is not None, "a requested column"
            assert records.value is not None, "a requested column"
            offsets = records.offset.to_numpy()
            visibility = transactions.visibility(scan, offsets)
            if visibility.error is not None:
                raise visibility.error
            has_effect = ~records.is_control & (visibility.offset != NEVER)
            for at in np.flatnonzero(has_effect & (offsets < end_offset)).tolist():
                try:
                    self._apply(records.key[at].as_py(), records.value[at].as_py())
                except MetadataParseError as error:
                    raise CorruptBatchError(
                        reason=error.message(), path=log.path, offset=int(offsets[at])
                    ) from None
            self._delta.take_changes()
        self._last_offset = end_offset - 1

    def _apply(self, key: bytes | None, value: bytes | None) -> None:
        if self._redactor is not None:
            key, value = self._format.redacted(key, value, self._redactor)
        self._replay(key, value, self._delta)

    def image(self) -> MetadataImage:
        """Return all rows, at the end that was read last."""
        return self._delta.apply(offset=self._last_offset, leader_epoch=0, timestamp_ms=-1)

    def rows(self, kind: type[R]) -> list[R]:
        """Return the rows of a type, by key."""
        return rows_in(self._delta, kind)


class InternalLoader:
    """State of one partition of an internal log, and its changes. Not thread-safe.

    ``image``: the state before the first record. Leader epochs of the partition are rows, too.
    """

    def __init__(self, topic: str, image: MetadataImage | None = None) -> None:
        self._topic = topic
        self._replay = _REPLAY[topic]
        image = MetadataImage.empty() if image is None else image
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

    def append_columns(
        self,
        offsets: Sequence[int],
        leader_epochs: Sequence[int],
        timestamps_ms: Sequence[int],
        record_types: Sequence[str | None],
        records: Sequence[KeyAndValue | None],
    ) -> list[RecordChanges]:
        """Replay records from columns of equal length; return their changes.

        A record is None if it has no effect: a control record, or one of an aborted transaction.
        The caller has checked that offsets rise and leader epochs do not fall.

        Raises:
            ReplayError: a record is damaged. The state is undefined then.
        """
        found = []
        rows = zip(offsets, leader_epochs, timestamps_ms, record_types, records, strict=True)
        for offset, leader_epoch, timestamp_ms, record_type, record in rows:
            if self._epoch is None or self._epoch.leader_epoch < leader_epoch:
                self._begin_epoch(leader_epoch, offset)
            if record is not None:
                try:
                    self._replay(*record, self._delta)
                except MetadataParseError as error:
                    raise ReplayError(
                        offset=offset,
                        record=f"a record of {self._topic}",
                        reason=error.message(),
                    ) from None
            self._end = (offset, leader_epoch, timestamp_ms)
            changes = self._delta.take_changes()
            if changes:
                at = (offset, offset, leader_epoch, timestamp_ms, record_type or "")
                found.append(RecordChanges(*at, changes))
        return found

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


def _known(number: int) -> int | None:
    return None if number < 0 else number
