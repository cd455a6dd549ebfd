"""Records of ``__remote_log_metadata``: segments in remote storage (KIP-405).

Source: the message files of Kafka's ``storage`` module, 4.3; ``RemoteLogSegmentState``,
``RemotePartitionDeleteState``.
"""

from __future__ import annotations

from raftlog.types import ZERO_UUID

from .declare import (
    BOOL,
    BYTES,
    INT8,
    INT32,
    INT64,
    STRING,
    UUID,
    Array,
    MetadataRecord,
    Nested,
    Struct,
    field,
    record,
    struct,
)


@struct
class TopicIdPartition(Struct):
    """Partition, by the name and the id of its topic."""

    name: str = field(STRING, default="")
    id: str = field(UUID, default=ZERO_UUID)
    partition: int = field(INT32, default=0)


@struct
class RemoteLogSegmentId(Struct):
    """Identity of a segment in remote storage."""

    topic_id_partition: TopicIdPartition = field(
        Nested(TopicIdPartition), default=TopicIdPartition()
    )
    id: str = field(UUID, default=ZERO_UUID)


@struct
class SegmentLeaderEpoch(Struct):
    """Leader epoch, and its first offset in the segment."""

    leader_epoch: int = field(INT32, default=0)
    offset: int = field(INT64, default=0)


@record(api_key=0)
class RemoteLogSegmentMetadataRecord(MetadataRecord):
    """Segment that is copied to remote storage. Both offsets are inclusive.

    ``remote_log_segment_state``: 0 copy started, 1 copy finished, 2 delete started, 3 delete
    finished. ``custom_metadata``: of the remote storage manager.
    """

    remote_log_segment_id: RemoteLogSegmentId = field(
        Nested(RemoteLogSegmentId), default=RemoteLogSegmentId()
    )
    start_offset: int = field(INT64, default=0)
    end_offset: int = field(INT64, default=0)
    broker_id: int = field(INT32, default=0)
    max_timestamp_ms: int = field(INT64, default=0)
    event_timestamp_ms: int = field(INT64, default=0)
    segment_leader_epochs: tuple[SegmentLeaderEpoch, ...] = field(
        Array(SegmentLeaderEpoch), default=()
    )
    segment_size_in_bytes: int = field(INT32, default=0)
    custom_metadata: bytes | None = field(BYTES, nullable=True, default=None)
    remote_log_segment_state: int = field(INT8, default=0)
    txn_index_empty: bool = field(BOOL, tag=0, default=False)


@record(api_key=1)
class RemoteLogSegmentMetadataUpdateRecord(MetadataRecord):
    """Change of a segment's state."""

    remote_log_segment_id: RemoteLogSegmentId = field(
        Nested(RemoteLogSegmentId), default=RemoteLogSegmentId()
    )
    broker_id: int = field(INT32, default=0)
    event_timestamp_ms: int = field(INT64, default=0)
    custom_metadata: bytes | None = field(BYTES, nullable=True, default=None)
    remote_log_segment_state: int = field(INT8, default=0)


@record(api_key=2)
class RemotePartitionDeleteMetadataRecord(MetadataRecord):
    """Deletion of a partition in remote storage: 0 marked, 1 started, 2 finished."""

    topic_id_partition: TopicIdPartition = field(
        Nested(TopicIdPartition), default=TopicIdPartition()
    )
    broker_id: int = field(INT32, default=0)
    event_timestamp_ms: int = field(INT64, default=0)
    remote_partition_delete_state: int = field(INT8, default=0)


@record(api_key=3)
class RemoteLogSegmentMetadataSnapshotRecord(MetadataRecord):
    """Segment in a snapshot file of one partition's segments."""

    segment_id: str = field(UUID, default=ZERO_UUID)
    start_offset: int = field(INT64, default=0)
    end_offset: int = field(INT64, default=0)
    broker_id: int = field(INT32, default=0)
    max_timestamp_ms: int = field(INT64, default=0)
    event_timestamp_ms: int = field(INT64, default=0)
    segment_leader_epochs: tuple[SegmentLeaderEpoch, ...] = field(
        Array(SegmentLeaderEpoch), default=()
    )
    segment_size_in_bytes: int = field(INT32, default=0)
    custom_metadata: bytes | None = field(BYTES, nullable=True, default=None)
    remote_log_segment_state: int = field(INT8, default=0)
    txn_index_empty: bool = field(BOOL, tag=0, default=False)
