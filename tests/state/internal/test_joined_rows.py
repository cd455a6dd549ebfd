"""Lag, hanging transactions and remote segments: internal logs joined with other partitions."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.support.internal_records import InternalLogFile

from raftlog.client import LogKind, LogReader, open_path
from raftlog.errors import CorruptBatchError
from raftlog_state.internal.joined_rows import (
    LogOffsets,
    ProducerTransaction,
    RemoteSegments,
    hanging_transactions,
    lag,
    open_transactions,
)
from raftlog_state.records import MetadataRecord
from raftlog_state.records.internal_logs import REMOTE_LOG_RECORDS
from raftlog_state.records.schema_remote import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadataRecord,
    RemoteLogSegmentMetadataUpdateRecord,
    RemotePartitionDeleteMetadataRecord,
    TopicIdPartition,
)

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAw"


def opened(log: InternalLogFile) -> LogReader:
    return open_path(str(log.path), kind=LogKind.PARTITION)


# --- lag ------------------------------------------------------------------------------------------


def commit(topic: str, partition: int, offset: int, topic_id: str | None = None) -> dict[str, Any]:
    return {
        "group": "g",
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "topic_id": topic_id,
    }


def test_lag_is_the_distance_to_the_end_of_the_log(tmp_path: Path) -> None:
    log = InternalLogFile(tmp_path / "orders-0")
    log.append(*[(None, b"v")] * 7)
    offsets = LogOffsets.of(opened(log))
    assert (offsets.log_start_offset, offsets.log_end_offset) == (0, 7)
    rows = lag([commit("orders", 0, 5), commit("orders", 1, 5)], {("orders", 0): offsets}, None)
    assert [(row["log_end_offset"], row["lag"]) for row in rows] == [(7, 2), (None, None)]
    assert [row["topic_state"] for row in rows] == [None, None]


def test_the_state_of_a_commits_topic_depends_on_its_id() -> None:
    commits = [
        commit("orders", 0, 1),
        commit("orders", 0, 1, TOPIC_ID),
        commit("orders", 0, 1, "AAAAAAAAAAAAAAAAAAAABA"),
        commit("gone", 0, 1),
    ]
    assert [row["topic_state"] for row in lag(commits, {}, {"orders": TOPIC_ID})] == [
        *("Current", "Current", "Recreated", "Deleted")
    ]


# --- hanging transactions -------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_open_transactions_are_those_without_a_marker(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    log = InternalLogFile(tmp_path / "orders-0")
    expected: dict[int, ProducerTransaction] = {}
    for _ in range(60):
        producer_id = chance.choice((-1, 1, 2, 3))
        if producer_id in expected and chance.random() < 0.5:
            log.end(producer_id, commit=chance.random() < 0.5)
            del expected[producer_id]
            continue
        offset = log.next_offset
        log.append((b"k", b"v"), producer_id=producer_id, epoch=4)
        if producer_id > 0:
            begun = expected.get(producer_id)
            expected[producer_id] = ProducerTransaction(
                producer_id=producer_id,
                producer_epoch=4,
                start_offset=offset if begun is None else begun.start_offset,
                last_timestamp_ms=1_000 + offset,
            )
    found = open_transactions(opened(log))
    assert found == sorted(expected.values(), key=lambda one: one.start_offset)


def test_a_transaction_hangs_if_its_coordinator_does_not_end_it() -> None:
    begun = {
        ("a", number): [
            ProducerTransaction(
                producer_id=producer_id, producer_epoch=0, start_offset=number, last_timestamp_ms=9
            )
        ]
        for number, producer_id in enumerate((1, 2, 3, 4))
    }
    begun["a", 3].append(
        ProducerTransaction(producer_id=5, producer_epoch=0, start_offset=9, last_timestamp_ms=10)
    )
    known = [
        {"producer_id": 1, "transactional_id": "t1", "state": "Ongoing", "partitions": ["a-0"]},
        {"producer_id": 2, "transactional_id": "t2", "state": "Ongoing", "partitions": ["b-1"]},
        {"producer_id": 3, "transactional_id": "t3", "state": "Dead", "partitions": ["a-2"]},
    ]
    rows = hanging_transactions(begun, known, last_timestamp_ms_max=9)
    assert [(row["partition"], row["producer_id"], row["transactional_id"]) for row in rows] == [
        *((1, 2, "t2"), (2, 3, None), (3, 4, None))
    ]


# --- remote segments ------------------------------------------------------------------------------


def segment_id(name: str, partition: int = 0) -> RemoteLogSegmentId:
    place = TopicIdPartition(name="tiered", id=TOPIC_ID, partition=partition)
    return RemoteLogSegmentId(topic_id_partition=place, id=name)


def copied(name: str, start: int, end: int, partition: int = 0) -> RemoteLogSegmentMetadataRecord:
    return RemoteLogSegmentMetadataRecord(
        remote_log_segment_id=segment_id(name, partition), start_offset=start, end_offset=end
    )


def changed(name: str, state: int) -> RemoteLogSegmentMetadataUpdateRecord:
    return RemoteLogSegmentMetadataUpdateRecord(
        remote_log_segment_id=segment_id(name), remote_log_segment_state=state
    )


ONE, TWO, THREE, FOUR = ("AAAAAAAAAAAAAAAAAAAAA" + letter for letter in "QgwA")


def segments_of(path: Path, *records: MetadataRecord) -> RemoteSegments:
    log = InternalLogFile(path)
    log.append(*[(None, REMOTE_LOG_RECORDS.encode(one)) for one in records])
    segments = RemoteSegments()
    segments.read(opened(log))
    return segments


def test_segments_are_those_that_are_not_deleted(tmp_path: Path) -> None:
    segments = segments_of(
        tmp_path / "__remote_log_metadata-0",
        copied(ONE, 0, 9),
        copied(TWO, 10, 19),
        changed(ONE, 1),
        copied(THREE, 20, 29),
        changed(TWO, 2),
        changed(TWO, 3),
        changed(TWO, 1),
    )
    local = {("tiered", 0): LogOffsets(log_start_offset=25, log_end_offset=30)}
    assert [
        (row["start_offset"], row["end_offset"], row["state"], row["only_remote"])
        for row in segments.rows(local)
    ] == [(0, 9, "CopySegmentFinished", True), (20, 29, "CopySegmentStarted", False)]
    assert [row["only_remote"] for row in segments.rows({})] == [None, None]
    assert segments.topics() == {"tiered"}


def test_a_deleted_partition_has_no_segments(tmp_path: Path) -> None:
    place = TopicIdPartition(name="tiered", id=TOPIC_ID, partition=0)
    segments = segments_of(
        tmp_path / "__remote_log_metadata-0",
        copied(ONE, 0, 9),
        copied(TWO, 0, 9, partition=1),
        *(
            RemotePartitionDeleteMetadataRecord(
                topic_id_partition=place, remote_partition_delete_state=state
            )
            for state in (0, 1, 2)
        ),
    )
    assert [row["partition"] for row in segments.rows({})] == [1]


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    log = InternalLogFile(tmp_path / "__remote_log_metadata-0")
    log.append((None, REMOTE_LOG_RECORDS.encode(copied(ONE, 0, 9))), (None, b"\x00"))
    with pytest.raises(CorruptBatchError) as caught:
        RemoteSegments().read(opened(log))
    assert caught.value.offset == 1
