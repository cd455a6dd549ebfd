"""Rows of Kafka's internal logs joined with the partitions of a node: lag of groups, hanging
transactions, and remote segments.

Definitions are those of Kafka's tools: ``ConsumerGroupCommand``, ``TransactionsCommand``
(``find-hanging``), and of ``RemoteLogMetadataCache``. A row is as in ``rows``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np

from raftlog.client import Isolation, LogReader
from raftlog.errors import CorruptBatchError
from raftlog.records.batch_columns import Column
from raftlog_state.errors import MetadataParseError
from raftlog_state.records import MetadataRecord, UnknownRecord
from raftlog_state.records.internal_logs import (
    CONSUMER_OFFSETS,
    REMOTE_LOG_METADATA,
    REMOTE_LOG_RECORDS,
    TRANSACTION_STATE,
)
from raftlog_state.records.schema_remote import (
    RemoteLogSegmentMetadataRecord,
    RemoteLogSegmentMetadataUpdateRecord,
    RemotePartitionDeleteMetadataRecord,
)

from .rows import ROW_KINDS, Row

PartitionName: TypeAlias = tuple[str, int]
"""Topic and number of a partition."""

REMOTE_SEGMENT_STATES: Final = (
    "CopySegmentStarted",
    "CopySegmentFinished",
    "DeleteSegmentStarted",
    "DeleteSegmentFinished",
)
"""By number (Kafka: ``RemoteLogSegmentState``)."""
_DELETE_SEGMENT_FINISHED: Final = 3
_DELETE_PARTITION_FINISHED: Final = 2


# --- Lag of groups --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOffsets:
    """Start and end offset of a partition's log in a node's directory."""

    log_start_offset: int
    log_end_offset: int

    @classmethod
    def of(cls, log: LogReader) -> LogOffsets:
        """Return the offsets of a log, uncommitted records included: a replica may lag or lead."""
        end = log.read_end(isolation=Isolation.READ_UNCOMMITTED)
        return cls(log_start_offset=log.log_start_offset, log_end_offset=end.offset)


def lag(
    offsets: Iterable[Row],
    logs: Mapping[PartitionName, LogOffsets],
    topic_ids: Mapping[str, str] | None,
) -> list[Row]:
    """Return the lag of each group in each partition that it has committed an offset of.

    Args:
        offsets: rows of ``consumer_offsets``.
        logs: the partitions that the node has. Lag is None in others.
        topic_ids: the ids of the cluster's topics by their names; None if unknown.
    """
    return [_lag_row(row, logs, topic_ids) for row in offsets]


def _lag_row(
    row: Row, logs: Mapping[PartitionName, LogOffsets], topic_ids: Mapping[str, str] | None
) -> Row:
    found = logs.get((row["topic"], row["partition"]))
    return {
        "group": row["group"],
        "topic": row["topic"],
        "partition": row["partition"],
        "offset": row["offset"],
        "log_start_offset": None if found is None else found.log_start_offset,
        "log_end_offset": None if found is None else found.log_end_offset,
        "lag": None if found is None else found.log_end_offset - row["offset"],
        "topic_state": None if topic_ids is None else _topic_state(row, topic_ids),
    }


def _topic_state(row: Row, topic_ids: Mapping[str, str]) -> str:
    topic_id = topic_ids.get(row["topic"])
    if topic_id is None:
        return "Deleted"
    return "Current" if row["topic_id"] in (None, topic_id) else "Recreated"


# --- Hanging transactions -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerTransaction:
    """Open transaction of a producer in one partition. ``last_timestamp_ms``: of its last batch."""

    producer_id: int
    producer_epoch: int
    start_offset: int
    last_timestamp_ms: int


def open_transactions(log: LogReader) -> list[ProducerTransaction]:
    """Return the open transactions of a partition; only batches from the first one on are read.

    Raises as ``LogReader.scan``.
    """
    end = log.read_end(isolation=Isolation.READ_UNCOMMITTED).offset
    stable = log.read_end(isolation=Isolation.READ_COMMITTED).offset
    found: dict[int, ProducerTransaction] = {}
    for scan in log.scan(stable, end, columns=Column.NONE) if stable < end else ():
        batches = scan.batches
        for at in np.flatnonzero(batches.is_transactional).tolist():
            producer_id = int(batches.producer_id[at])
            if batches.is_control[at]:
                found.pop(producer_id, None)
                continue
            batch = ProducerTransaction(
                producer_id=producer_id,
                producer_epoch=int(batches.producer_epoch[at]),
                start_offset=int(batches.base_offset[at]),
                last_timestamp_ms=int(batches.max_timestamp_ms[at]),
            )
            begun = found.get(producer_id, batch)
            found[producer_id] = replace(batch, start_offset=begun.start_offset)
    return sorted(found.values(), key=lambda one: one.start_offset)


def hanging_transactions(
    opened: Mapping[PartitionName, Iterable[ProducerTransaction]],
    transactions: Iterable[Row],
    *,
    last_timestamp_ms_max: int,
) -> list[Row]:
    """Return the open transactions that no coordinator will end, by partition and offset.

    The coordinator of the producer does not know the producer, or the partition is not in its
    transaction.

    Args:
        opened: the open transactions of each partition.
        transactions: rows of ``transactions``, of all partitions of ``__transaction_state``.
        last_timestamp_ms_max: transactions with later batches are left out.
    """
    by_producer = {row["producer_id"]: row for row in transactions if row["state"] != "Dead"}
    found = []
    for (topic, partition), begun in sorted(opened.items()):
        for one in begun:
            row = by_producer.get(one.producer_id)
            is_expected = row is not None and f"{topic}-{partition}" in row["partitions"]
            if not is_expected and one.last_timestamp_ms <= last_timestamp_ms_max:
                found.append(_hanging_row(topic, partition, one, row))
    return found


def _hanging_row(topic: str, partition: int, one: ProducerTransaction, row: Row | None) -> Row:
    return {
        "topic": topic,
        "partition": partition,
        "producer_id": one.producer_id,
        "producer_epoch": one.producer_epoch,
        "transactional_id": None if row is None else row["transactional_id"],
        "start_offset": one.start_offset,
        "last_timestamp_ms": one.last_timestamp_ms,
    }


# --- Remote segments ------------------------------------------------------------------------------


class RemoteSegments:
    """Segments in remote storage, replayed from partitions of ``__remote_log_metadata``."""

    def __init__(self) -> None:
        self._by_id: dict[str, Row] = {}

    def read(self, log: LogReader) -> None:
        """Replay one partition. Raises ``CorruptBatchError``, and as ``LogReader.scan``."""
        end = log.read_end(isolation=Isolation.READ_UNCOMMITTED).offset
        columns = Column.OFFSET | Column.VALUE
        for scan in log.scan(log.log_start_offset, end, columns=columns):
            records = scan.records
            assert records.offset is not None, "a requested column"
            assert records.value is not None, "a requested column"
            for at in np.flatnonzero(~records.is_control).tolist():
                value = records.value[at].as_py()
                try:
                    self._apply(REMOTE_LOG_RECORDS.decode(value or b"").record)
                except MetadataParseError as error:
                    offset = records.offset[at].as_py()
                    raise CorruptBatchError(
                        reason=error.message(), path=log.path, offset=offset
                    ) from None

    def _apply(self, record: MetadataRecord | UnknownRecord) -> None:
        match record:
            case RemoteLogSegmentMetadataRecord():
                self._by_id[record.remote_log_segment_id.id] = _segment_row(record)
                self._change(record)
            case RemoteLogSegmentMetadataUpdateRecord():
                self._change(record)
            case RemotePartitionDeleteMetadataRecord():
                if record.remote_partition_delete_state == _DELETE_PARTITION_FINISHED:
                    topic = record.topic_id_partition
                    deleted = topic.id, topic.partition
                    self._by_id = {
                        segment_id: row
                        for segment_id, row in self._by_id.items()
                        if (row["topic_id"], row["partition"]) != deleted
                    }

    def _change(
        self, record: RemoteLogSegmentMetadataRecord | RemoteLogSegmentMetadataUpdateRecord
    ) -> None:
        segment_id, state = record.remote_log_segment_id.id, record.remote_log_segment_state
        row = self._by_id.get(segment_id)
        if state == _DELETE_SEGMENT_FINISHED:
            self._by_id.pop(segment_id, None)
        elif row is not None:
            is_known = 0 <= state < len(REMOTE_SEGMENT_STATES)
            row["state"] = REMOTE_SEGMENT_STATES[state] if is_known else state

    def topics(self) -> set[str]:
        """Return the topics that have segments."""
        return {row["topic"] for row in self._by_id.values()}

    def rows(self, logs: Mapping[PartitionName, LogOffsets]) -> Iterator[Row]:
        """Yield the segments by partition and start offset. ``logs``: what the node has locally.

        ``only_remote``: whether the local log begins after the segment; None if the node does not
        have the partition.
        """
        for row in sorted(self._by_id.values(), key=_place):
            found = logs.get((row["topic"], row["partition"]))
            local = None if found is None else found.log_start_offset
            yield row | {"only_remote": None if local is None else row["end_offset"] < local}


def _place(row: Row) -> tuple[Any, ...]:
    return row["topic"], row["partition"], row["start_offset"], row["segment_id"]


def _segment_row(record: RemoteLogSegmentMetadataRecord) -> Row:
    """Return the row of a segment. Both offsets are inclusive, as in Kafka."""
    partition = record.remote_log_segment_id.topic_id_partition
    return {
        "topic": partition.name,
        "partition": partition.partition,
        "start_offset": record.start_offset,
        "end_offset": record.end_offset,
        "state": None,
        "segment_size_in_bytes": record.segment_size_in_bytes,
        "max_timestamp_ms": record.max_timestamp_ms,
        "event_timestamp_ms": record.event_timestamp_ms,
        "broker_id": record.broker_id,
        "topic_id": partition.id,
        "segment_id": record.remote_log_segment_id.id,
        "only_remote": None,
    }


# --- Kinds ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JoinedKind:
    """Kind of rows: the internal topic that is joined with the node's partitions, and columns."""

    topic: str
    columns: tuple[str, ...]


_ONE: Final = ProducerTransaction(
    producer_id=0, producer_epoch=0, start_offset=0, last_timestamp_ms=0
)
_COMMIT: Final[Row] = dict.fromkeys(ROW_KINDS["consumer_offsets"].columns)
JOINED_KINDS: Final[Mapping[str, JoinedKind]] = {
    "lag": JoinedKind(CONSUMER_OFFSETS, (*_lag_row(_COMMIT, {}, None),)),
    "hanging_transactions": JoinedKind(TRANSACTION_STATE, (*_hanging_row("", 0, _ONE, None),)),
    "remote_segments": JoinedKind(
        REMOTE_LOG_METADATA, (*_segment_row(RemoteLogSegmentMetadataRecord()),)
    ),
}
"""By name."""
