"""Records that replay rejects have no effect, where the caller of a loader permits them."""

from __future__ import annotations

import random
from functools import cache

import pytest
from tests.support.metadata_logs import LOGS, at, flat, metadata_log, state_after

from raftlog.types import SnapshotId
from raftlog_state.errors import OffsetGapError, ReplayError
from raftlog_state.loader.metadata_loader import LogRecord, MetadataLoader
from raftlog_state.loader.payload import Payload
from raftlog_state.records import (
    NO_OP_VALUE,
    BeginTransactionRecord,
    DecodedRecord,
    EndTransactionRecord,
    PartitionChangeRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)

RECORDS = 1_200
"""The start of the log has its transaction, every kind of change and two epochs."""
UNKNOWN_ID = "muSNo3lITFSJf4sY_teOaw"
BAD: tuple[Payload, ...] = (
    None,
    b"",
    b"\x01\x02\x00\xff",
    b"\x01\x18\x00\x00",  # the end of a transaction: none is open
    DecodedRecord(0, RemoveTopicRecord(topic_id=UNKNOWN_ID)),
    DecodedRecord(0, PartitionChangeRecord(partition_id=0, topic_id=UNKNOWN_ID)),
)


@cache
def records() -> list[LogRecord]:
    found = metadata_log(LOGS / "three-nodes-4.3.1" / "node-100" / "__cluster_metadata-0")
    return list(found.records[:RECORDS])


@pytest.mark.parametrize("seed", range(4))
def test_a_log_with_rejected_records_has_the_changes_of_one_with_noops_there(seed: int) -> None:
    rng = random.Random(seed)
    expected = MetadataLoader()
    expected_changes = flat(expected.append(records()))
    bad, log = [], []
    for record in records():
        if record.payload == NO_OP_VALUE and rng.random() < 0.9:
            bad.append(record.offset)
            record = LogRecord(
                record.offset, record.leader_epoch, record.timestamp_ms, rng.choice(BAD)
            )
        log.append(record)
    rejected: list[ReplayError] = []
    loader = MetadataLoader(on_rejected=rejected.append)
    changes = []
    while log:
        count = rng.randrange(1, 300)
        changes += loader.append(log[:count])
        del log[:count]
    assert len(bad) > 50
    assert [error.offset for error in rejected] == bad
    assert flat(changes) == expected_changes
    assert loader.image == expected.image


def test_a_rejected_record_of_a_transaction_does_not_keep_the_others_from_their_effect() -> None:
    first, second = (TopicRecord(name=name, topic_id=name * 22) for name in ("A", "I"))
    removal = RemoveTopicRecord(topic_id=UNKNOWN_ID)
    begin, end = BeginTransactionRecord(name="t"), EndTransactionRecord()
    rejected: list[ReplayError] = []
    loader = MetadataLoader(on_rejected=rejected.append)
    loader.append(at(0, begin, first, removal, b"\x01", begin, second, end, end))
    assert [error.offset for error in rejected] == [3, 4, 2, 7]
    for topic in (first, second):
        assert loader.image.topic(topic.name) is not None
    assert loader.open_transaction_offset is None


def test_gaps_and_epochs_are_not_a_matter_of_one_record() -> None:
    rejected: list[ReplayError] = []
    loader = MetadataLoader(on_rejected=rejected.append)
    loader.append(at(0, RegisterBrokerRecord(broker_id=1)))
    with pytest.raises(OffsetGapError):
        loader.append(at(2, NO_OP_VALUE))
    with pytest.raises(ReplayError, match="leader epoch 0 is lower"):
        loader.append([LogRecord(1, 0, 0, NO_OP_VALUE)])
    assert rejected == []
    assert loader.image == state_after(RegisterBrokerRecord(broker_id=1))


def test_a_rejected_record_of_a_snapshot_has_no_effect() -> None:
    rejected: list[ReplayError] = []
    loader = MetadataLoader(on_rejected=rejected.append)
    topic = TopicRecord(name="a", topic_id=UNKNOWN_ID)
    removal = RemoveTopicRecord(topic_id=UNKNOWN_ID)
    loader.bootstrap(SnapshotId(epoch=9, end_offset=1), at(0, removal, topic, removal, topic))
    reasons = [error.reason for error in rejected]
    assert len(reasons) == 3
    assert reasons[1] == "a snapshot must not contain removals"
    assert loader.image.topic("a") is not None
