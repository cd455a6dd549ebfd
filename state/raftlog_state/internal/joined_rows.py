"""Rows of Kafka's internal logs, joined with the partitions of a node.

They are the lag of groups and of share groups, hanging transactions, and remote segments. The
definitions are those of Kafka's tools ``ConsumerGroupCommand``, ``ShareGroupCommand``,
``TransactionsCommand`` (``find-hanging``), and of ``RemoteLogMetadataCache``. Rows are like those
in ``rows``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np

from raftlog.client import Isolation, LogReader
from raftlog.records.batch_columns import Column
from raftlog_state.image.rows import RemoteSegmentRow, row_json
from raftlog_state.records.internal_logs import (
    CONSUMER_OFFSETS,
    REMOTE_LOG_METADATA,
    SHARE_GROUP_STATE,
    TRANSACTION_STATE,
)

from .loader import InternalState
from .rows import ROW_KINDS, Row, columns_of

PartitionName: TypeAlias = tuple[str, int]
"""Topic and number of a partition."""


# --- Lag of groups --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOffsets:
    """Start and end offset of a partition's log in a node's directory."""

    log_start_offset: int
    log_end_offset: int

    @classmethod
    def of(cls, log: LogReader) -> LogOffsets:
        """Return a log's offsets, including uncommitted records: a replica may lag or lead."""
        end = log.read_end(isolation=Isolation.READ_UNCOMMITTED)
        return cls(log_start_offset=log.log_start_offset, log_end_offset=end.offset)


def lag(
    offsets: Iterable[Row],
    logs: Mapping[PartitionName, LogOffsets],
    topic_ids: Mapping[str, str] | None,
) -> list[Row]:
    """Return the lag of each group in each partition for which it has committed an offset.

    Args:
        offsets: rows of ``consumer_offsets``.
        logs: the node's partitions. In others, lag is None.
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


def share_lag(
    shares: Iterable[Row],
    logs: Mapping[PartitionName, LogOffsets],
    topics: Mapping[str, str],
) -> list[Row]:
    """Return the lag of each share group in each of its partitions, by group and partition.

    The lag is the number of records from the start offset on whose delivery is not complete
    (KIP-1226); None if the group has not read the partition yet.

    Args:
        shares: rows of ``share_partitions``.
        logs: the node's partitions. In others, lag is None.
        topics: the names of the cluster's topics by id; a missing topic's name is None.
    """
    rows = [_share_lag_row(row, logs, topics) for row in shares]
    return sorted(
        rows,
        key=lambda row: (row["group"], row["topic"] or "", row["topic_id"], row["partition"]),
    )


def _share_lag_row(
    row: Row, logs: Mapping[PartitionName, LogOffsets], topics: Mapping[str, str]
) -> Row:
    topic = topics.get(row["topic_id"])
    found = None if topic is None else logs.get((topic, row["partition"]))
    start, complete = row["start_offset"], row["delivery_complete_count"]
    lag = None
    if found is not None and start is not None and complete is not None:
        lag = found.log_end_offset - start - complete
    return {
        "group": row["group"],
        "topic": topic,
        "partition": row["partition"],
        "start_offset": start,
        "delivery_complete_count": complete,
        "log_end_offset": None if found is None else found.log_end_offset,
        "lag": lag,
        "topic_id": row["topic_id"],
    }


# --- Hanging transactions -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerTransaction:
    """Open transaction of a producer in one partition. ``last_timestamp_ms``: of its last batch."""

    producer_id: int
    producer_epoch: int
    start_offset: int
    last_timestamp_ms: int


def open_transactions(log: LogReader) -> list[ProducerTransaction]:
    """Return a partition's open transactions, reading only batches from the first open one on.

    Raises the errors of ``LogReader.scan``.
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

    The coordinator does not know the producer, or the producer's transaction does not include the
    partition.

    Args:
        opened: the open transactions of each partition.
        transactions: rows of ``transactions``, from all partitions of ``__transaction_state``.
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
        self._state = InternalState(REMOTE_LOG_METADATA)

    def read(self, log: LogReader) -> None:
        """Replay one partition, or one object of a manifest.

        Its records of a segment replace those that were read before. Raises ``CorruptBatchError``
        and the errors of ``LogReader.scan``.
        """
        self._state.read(log, log.read_end(isolation=Isolation.READ_UNCOMMITTED).offset)

    def topics(self) -> set[str]:
        """Return the topics that have segments."""
        return {row.topic for row in self._state.rows(RemoteSegmentRow)}

    def rows(self, logs: Mapping[PartitionName, LogOffsets]) -> Iterator[Row]:
        """Yield the segments by partition and start offset. ``logs``: the node's local logs.

        ``only_remote``: whether the local log begins after the segment; None if the node does not
        have the partition.
        """
        for row in sorted(self._state.rows(RemoteSegmentRow), key=_place):
            found = logs.get((row.topic, row.partition))
            local = None if found is None else found.log_start_offset
            yield row_json(row) | {"only_remote": None if local is None else row.end_offset < local}


def _place(row: RemoteSegmentRow) -> tuple[str, int, int, str]:
    return row.topic, row.partition, row.start_offset, row.segment_id


# --- Kinds ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JoinedKind:
    """Kind of rows: columns, and the internal topic that is joined with the node's partitions."""

    topic: str
    columns: tuple[str, ...]


_ONE: Final = ProducerTransaction(
    producer_id=0, producer_epoch=0, start_offset=0, last_timestamp_ms=0
)
_COMMIT: Final[Row] = dict.fromkeys(ROW_KINDS["consumer_offsets"].columns)
_SHARE: Final[Row] = dict.fromkeys(ROW_KINDS["share_partitions"].columns)
JOINED_KINDS: Final[Mapping[str, JoinedKind]] = {
    "lag": JoinedKind(CONSUMER_OFFSETS, (*_lag_row(_COMMIT, {}, None),)),
    "share_lag": JoinedKind(SHARE_GROUP_STATE, (*_share_lag_row(_SHARE, {}, {}),)),
    "hanging_transactions": JoinedKind(TRANSACTION_STATE, (*_hanging_row("", 0, _ONE, None),)),
    "remote_segments": JoinedKind(
        REMOTE_LOG_METADATA, (*columns_of(RemoteSegmentRow), "only_remote")
    ),
}
"""By name."""
