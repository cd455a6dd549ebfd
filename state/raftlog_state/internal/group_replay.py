"""Replay of ``__consumer_offsets`` into the rows of the group coordinator: offsets.

Groups and their members are in ``group_rows``.

Rules of this file:

1. A commit outside of transactions takes effect at its own offset, regardless of transactions that
   are open before it. A commit in a transaction is pending until its producer's marker, which
   commits or drops all of the producer's pending commits.
2. Of one group's commits for one partition, the one with the largest record offset wins, even if
   its transaction ends later, because compaction, which ignores markers, keeps that one. A commit
   that takes effect therefore drops the pending ones with smaller offsets, and a tombstone drops
   all of them::

    offset    10      11           12      13
    record    a = 1   a = 2 (p)    b = 3   p commits
    offsets   a = 1   a = 1        a = 1   a = 2
                                   b = 3   b = 3
    pending           a = 2 of p   the same

3. Pending commits are rows, too, so a replay that continues from the rows at any offset has the
   same state as one that began at the start of the log.

Source: Kafka ``OffsetMetadataManager.replay``, ``replayEndTransactionMarker``.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from raftlog.records.control import ControlType, EndTransactionMarker, decode_control
from raftlog.types import ZERO_UUID
from raftlog_state.image import MetadataImage
from raftlog_state.image.delta import MetadataDelta
from raftlog_state.image.row_schema import row_schema
from raftlog_state.image.rows import ConsumerOffsetRow, Entity, OffsetCommit, PendingOffsetRow
from raftlog_state.records import Message
from raftlog_state.records.internal_logs import GROUP_RECORDS
from raftlog_state.records.schema_groups import (
    LegacyOffsetCommitKey,
    LegacyOffsetCommitValue,
    OffsetCommitKey,
    OffsetCommitValue,
)

from .group_rows import GroupRows

_Place: TypeAlias = tuple[str, str, int]
"""Group, topic and partition."""


class InternalRecord(NamedTuple):
    """Record of an internal log.

    ``producer_id``: for a record, the producer of its transaction, None outside of one; for a
    marker, the producer whose transaction it ends.
    """

    offset: int
    key: bytes | None
    value: bytes | None
    producer_id: int | None
    is_control: bool


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
        leader_epoch=known(commit.leader_epoch),
        metadata=value.metadata,
        commit_timestamp_ms=value.commit_timestamp,
        expire_timestamp_ms=known(commit.expire_timestamp),
        topic_id=None if commit.topic_id == ZERO_UUID else commit.topic_id,
    )


def known(number: int) -> int | None:
    """Return an offset, epoch, count or time of a record; None if it is unknown."""
    return None if number < 0 else number


_COMMIT_FIELDS: Final = tuple(entry.name for entry in row_schema(OffsetCommit))


class GroupReplay:
    """Replay of the records of one partition in offset order."""

    def __init__(self, image: MetadataImage) -> None:
        self._groups = GroupRows(image)
        self._places: dict[int, set[_Place]] = {}
        """Pending commits by producer."""
        self._producers: dict[_Place, set[int]] = {}
        for row in image.map(Entity.PENDING_OFFSET).values():
            assert isinstance(row, PendingOffsetRow)
            self._index(row.producer_id, (row.group, row.topic, row.partition))

    def __call__(self, record: InternalRecord, delta: MetadataDelta) -> None:
        """Apply a record.

        Raises ``MetadataParseError`` if it is damaged, ``CorruptBatchError`` if a marker is.
        """
        if record.is_control:
            self._end_transaction(record, delta)
            return
        found = GROUP_RECORDS.decode(record.key, record.value)
        match found.key, found.value:
            case (
                OffsetCommitKey() | LegacyOffsetCommitKey() as key,
                OffsetCommitValue() | LegacyOffsetCommitValue() as value,
            ):
                row = offset_row(key, value)
                if record.producer_id is None:
                    self._commit(row, record.offset, delta)
                else:
                    self._begin_commit(row, record.producer_id, record.offset, delta)
            case OffsetCommitKey() | LegacyOffsetCommitKey() as key, None:
                place = (key.group, key.topic, key.partition)
                for producer_id in sorted(self._producers.get(place, ())):
                    self._drop(producer_id, place, delta)
                if delta.delete(Entity.CONSUMER_OFFSET, place):
                    self._groups.count_commits(key.group, -1, delta)
            case Message() as other, (Message() | None) as content:
                self._groups.apply(other, content, delta)

    def _begin_commit(
        self, row: ConsumerOffsetRow, producer_id: int, record_offset: int, delta: MetadataDelta
    ) -> None:
        fields = {name: getattr(row, name) for name in _COMMIT_FIELDS}
        place = (row.group, row.topic, row.partition)
        is_new = producer_id not in self._producers.get(place, ())
        delta.put(PendingOffsetRow(producer_id=producer_id, record_offset=record_offset, **fields))
        if is_new:
            self._index(producer_id, place)
            self._groups.count_commits(row.group, 1, delta)

    def _end_transaction(self, record: InternalRecord, delta: MetadataDelta) -> None:
        marker = decode_control(record.key or b"", record.value)
        if not isinstance(marker, EndTransactionMarker) or record.producer_id is None:
            return
        for place in sorted(self._places.get(record.producer_id, ())):
            pending = delta.find(PendingOffsetRow, record.producer_id, *place)
            assert pending is not None, "the index has the keys of the rows"
            if marker.control_type is ControlType.COMMIT:
                fields = {name: getattr(pending, name) for name in _COMMIT_FIELDS}
                self._commit(ConsumerOffsetRow(**fields), pending.record_offset, delta)
            self._drop(record.producer_id, place, delta)

    def _commit(self, row: ConsumerOffsetRow, record_offset: int, delta: MetadataDelta) -> None:
        """Write a committed offset before pending ones are dropped: its group always has one."""
        place = (row.group, row.topic, row.partition)
        is_new = delta.get(Entity.CONSUMER_OFFSET, place) is None
        delta.put(row)
        if is_new:
            self._groups.count_commits(row.group, 1, delta)
        for producer_id in sorted(self._producers.get(place, ())):
            pending = delta.find(PendingOffsetRow, producer_id, *place)
            if pending is not None and pending.record_offset < record_offset:
                self._drop(producer_id, place, delta)

    def _index(self, producer_id: int, place: _Place) -> None:
        self._places.setdefault(producer_id, set()).add(place)
        self._producers.setdefault(place, set()).add(producer_id)

    def _drop(self, producer_id: int, place: _Place, delta: MetadataDelta) -> None:
        delta.delete(Entity.PENDING_OFFSET, (producer_id, *place))
        places, producers = self._places[producer_id], self._producers[place]
        places.remove(place)
        producers.remove(producer_id)
        if not places:
            del self._places[producer_id]
        if not producers:
            del self._producers[place]
        self._groups.count_commits(place[0], -1, delta)
