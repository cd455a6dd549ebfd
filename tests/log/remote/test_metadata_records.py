"""Events of a manifest are the records that the schema of Kafka's message files declares."""

from __future__ import annotations

import base64
from random import Random

import pytest

from raftlog.log.format.epoch_cache import EpochEntry
from raftlog.log.remote.metadata_records import InvalidRecordError, decode_event, encode_event
from raftlog.log.remote.segment_metadata import (
    ManifestEvent,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from raftlog.types import TopicPartition
from raftlog_state.records.internal_logs import REMOTE_LOG_RECORDS
from raftlog_state.records.schema_remote import (
    RemoteLogSegmentMetadataRecord,
    RemoteLogSegmentMetadataUpdateRecord,
    RemotePartitionDeleteMetadataRecord,
)


def event(chance: Random) -> ManifestEvent:
    def new_id() -> str:
        return base64.urlsafe_b64encode(chance.randbytes(16)).decode().rstrip("=")

    custom = chance.choice((None, b"", chance.randbytes(chance.randrange(300))))
    partition = TopicPartition("orders-é" * chance.randrange(1, 9), chance.randrange(2**31))
    common = (new_id(), partition, new_id())
    broker_id, time_ms = chance.randrange(-1, 2**31), chance.randrange(-1, 2**63)
    state = chance.choice(list(RemoteLogSegmentState))
    if chance.random() < 0.5:
        return RemoteLogSegmentMetadataUpdate(
            segment_id=common[0],
            topic_partition=common[1],
            topic_id=common[2],
            broker_id=broker_id,
            event_timestamp_ms=time_ms,
            state=state,
            custom_metadata=custom,
        )
    return RemoteLogSegmentMetadata(
        segment_id=common[0],
        topic_partition=common[1],
        topic_id=common[2],
        first_offset=chance.randrange(2**63),
        last_offset=chance.randrange(2**63),
        broker_id=broker_id,
        max_timestamp_ms=-1,
        event_timestamp_ms=time_ms,
        leader_epochs=tuple(
            EpochEntry(epoch=at, start_offset=chance.randrange(2**63))
            for at in range(chance.randrange(4))
        ),
        byte_count=chance.randrange(2**31),
        state=state,
        custom_metadata=custom,
    )


@pytest.mark.parametrize("seed", range(50))
def test_an_event_has_the_bytes_of_its_record(seed: int) -> None:
    found = event(Random(seed))
    data = encode_event(found)
    record = REMOTE_LOG_RECORDS.decode(data).record
    assert isinstance(record, RemoteLogSegmentMetadataRecord | RemoteLogSegmentMetadataUpdateRecord)
    assert REMOTE_LOG_RECORDS.encode(record) == data
    assert decode_event(data) == found
    segment_id = record.remote_log_segment_id
    assert (segment_id.id, segment_id.topic_id_partition.id) == (found.segment_id, found.topic_id)
    assert record.remote_log_segment_state == found.state
    assert record.custom_metadata == found.custom_metadata


def test_a_record_of_another_type_is_no_event() -> None:
    data = REMOTE_LOG_RECORDS.encode(RemotePartitionDeleteMetadataRecord())
    assert decode_event(data) is None
    later = REMOTE_LOG_RECORDS.encode(RemoteLogSegmentMetadataRecord(txn_index_empty=True))
    assert isinstance(decode_event(later), RemoteLogSegmentMetadata)


@pytest.mark.parametrize("seed", range(30))
def test_damaged_bytes_are_refused_or_another_event(seed: int) -> None:
    chance = Random(seed)
    data = encode_event(event(chance))
    for cut in range(len(data)):
        with pytest.raises(InvalidRecordError):
            decode_event(data[:cut])
    with pytest.raises(InvalidRecordError):
        decode_event(data + b"\x00")
    for _ in range(50):
        damaged = bytearray(data)
        damaged[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        try:
            decode_event(bytes(damaged))
        except InvalidRecordError:
            continue
