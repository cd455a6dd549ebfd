"""The questions of a client and the answers to them, as Kafka's messages say them: pure.

Rules of this file:

1. Everything is about one partition of one topic, named by name and id: which of them a version
   writes is the codec's matter.
2. An answer is taken apart only as far as it is needed. One that is not about what was asked is
   ``MalformedMessageError``: who sent it cannot be trusted.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, cast

from kio.schema.describe_cluster.v2.request import DescribeClusterRequest
from kio.schema.describe_cluster.v2.response import DescribeClusterResponse
from kio.schema.describe_configs.v4 import request as describe_configs
from kio.schema.describe_configs.v4.response import DescribeConfigsResponse
from kio.schema.describe_quorum.v2 import request as describe_quorum
from kio.schema.describe_quorum.v2.response import DescribeQuorumResponse
from kio.schema.fetch.v18 import request as fetch
from kio.schema.fetch_snapshot.v1 import request as fetch_snapshot
from kio.schema.init_producer_id.v5.request import InitProducerIdRequest
from kio.schema.list_offsets.v11 import request as list_offsets
from kio.schema.offset_for_leader_epoch.v4 import request as epoch_ends
from kio.schema.produce.v13 import request as produce

from raftlog.errors import MalformedMessageError
from raftlog.types import CLUSTER_METADATA_TOPIC, SnapshotId
from raftlog.wire import latest_schemas

PARTITION: Final = 0
LATEST_TIMESTAMP: Final = -1
EARLIEST_TIMESTAMP: Final = -2
OFFSET_MAX: Final = 2**62
"""No log ends there: a fetch from there tells where an epoch ends (KIP-595)."""
CONTROLLERS: Final = 2
"""The endpoint type of DescribeCluster that means controllers (KIP-919)."""
_TOPIC_RESOURCE: Final = 2
_MILLISECONDS_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class TopicIdentity:
    """Which log it is. ``topic_id`` is kio's form of the id."""

    topic: str
    topic_id: uuid.UUID | None
    cluster_id: str | None
    is_controller: bool
    """Whether the nodes are Kafka's controllers, whose log this protocol can only read."""


# --- questions ------------------------------------------------------------------------------------


def metadata_request() -> latest_schemas.MetadataRequest:
    """Which nodes there are, and who leads what."""
    return latest_schemas.MetadataRequest(
        topics=None,
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )


def controllers_request() -> DescribeClusterRequest:
    return DescribeClusterRequest(
        include_cluster_authorized_operations=False,
        endpoint_type=_any(CONTROLLERS),
        include_fenced_brokers=False,
    )


def quorum_request() -> describe_quorum.DescribeQuorumRequest:
    partition = describe_quorum.PartitionData(partition_index=_any(PARTITION))
    topic = describe_quorum.TopicData(
        topic_name=_any(CLUSTER_METADATA_TOPIC), partitions=(partition,)
    )
    return describe_quorum.DescribeQuorumRequest(topics=(topic,))


def produce_request(
    log: TopicIdentity, batch: bytes, timeout_ms: int
) -> latest_schemas.ProduceRequest:
    """Append one batch, and answer when it is committed."""
    partition = produce.PartitionProduceData(index=_any(PARTITION), records=_any(batch))
    topic = latest_schemas.ProduceTopic(
        topic_id=log.topic_id, name=_any(log.topic), partition_data=(partition,)
    )
    return latest_schemas.ProduceRequest(
        transactional_id=None,
        acks=_any(-1),
        timeout=_duration(timeout_ms),
        topic_data=(topic,),
    )


def producer_id_request() -> InitProducerIdRequest:
    """A new id, with epoch 0, for a producer without transactions."""
    return InitProducerIdRequest(transactional_id=None, transaction_timeout=_duration(0))


def fetch_request(
    log: TopicIdentity,
    offset: int,
    *,
    leader_epoch: int,
    byte_count_max: int,
    is_committed_only: bool = True,
    last_epoch: int = -1,
    wait_ms: int = 0,
) -> latest_schemas.FetchRequest:
    """Batches from the one that holds ``offset`` on, as a consumer asks (KIP-227: no session)."""
    partition = fetch.FetchPartition(
        partition=_any(PARTITION),
        current_leader_epoch=_any(leader_epoch),
        fetch_offset=_any(offset),
        last_fetched_epoch=_any(last_epoch),
        partition_max_bytes=_any(byte_count_max),
        replica_directory_id=None,
    )
    topic = latest_schemas.FetchTopic(
        topic_id=log.topic_id, topic=_any(log.topic), partitions=(partition,)
    )
    return latest_schemas.FetchRequest(
        cluster_id=None,
        max_wait=_duration(wait_ms),
        min_bytes=_any(1 if wait_ms else 0),
        max_bytes=_any(byte_count_max),
        isolation_level=_any(1 if is_committed_only else 0),
        topics=(topic,),
        forgotten_topics_data=(),
    )


def snapshot_request(
    log: TopicIdentity,
    snapshot_id: SnapshotId,
    position: int,
    *,
    leader_epoch: int,
    byte_count_max: int,
) -> fetch_snapshot.FetchSnapshotRequest:
    partition = fetch_snapshot.PartitionSnapshot(
        partition=_any(PARTITION),
        current_leader_epoch=_any(leader_epoch),
        snapshot_id=fetch_snapshot.SnapshotId(
            end_offset=_any(snapshot_id.end_offset), epoch=_any(snapshot_id.epoch)
        ),
        position=_any(position),
        replica_directory_id=None,
    )
    return fetch_snapshot.FetchSnapshotRequest(
        cluster_id=log.cluster_id,
        max_bytes=_any(byte_count_max),
        topics=(fetch_snapshot.TopicSnapshot(name=_any(log.topic), partitions=(partition,)),),
    )


def offset_request(
    log: TopicIdentity, timestamp: int, *, is_committed_only: bool
) -> list_offsets.ListOffsetsRequest:
    """The offset of a time in milliseconds, or of one of the special ones."""
    partition = list_offsets.ListOffsetsPartition(
        partition_index=_any(PARTITION), timestamp=_any(timestamp)
    )
    return list_offsets.ListOffsetsRequest(
        replica_id=_any(-1),
        isolation_level=_any(1 if is_committed_only else 0),
        topics=(list_offsets.ListOffsetsTopic(name=_any(log.topic), partitions=(partition,)),),
        timeout=_duration(0),
    )


def epoch_end_request(log: TopicIdentity, epoch: int) -> epoch_ends.OffsetForLeaderEpochRequest:
    """Where the records of an epoch end (KIP-101), as a consumer asks."""
    partition = epoch_ends.OffsetForLeaderPartition(
        partition=_any(PARTITION), leader_epoch=_any(epoch)
    )
    return epoch_ends.OffsetForLeaderEpochRequest(
        replica_id=_any(-1),
        topics=(epoch_ends.OffsetForLeaderTopic(topic=_any(log.topic), partitions=(partition,)),),
    )


def commit_request(log: TopicIdentity, application_id: str) -> latest_schemas.OffsetFetchRequest:
    """The last version that was committed under an application id, which is a group's name."""
    topic = latest_schemas.OffsetFetchTopic(
        topic_id=log.topic_id, name=_any(log.topic), partition_indexes=(_any(PARTITION),)
    )
    group = latest_schemas.OffsetFetchGroup(group_id=_any(application_id), topics=(topic,))
    return latest_schemas.OffsetFetchRequest(
        groups=(group,), group_id=_any(application_id), topics=(topic,), require_stable=True
    )


def settings_request(log: TopicIdentity) -> describe_configs.DescribeConfigsRequest:
    resource = describe_configs.DescribeConfigsResource(
        resource_type=_any(_TOPIC_RESOURCE), resource_name=log.topic, configuration_keys=None
    )
    return describe_configs.DescribeConfigsRequest(resources=(resource,))


# --- answers --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Committed:
    """The last commit under an application id: what OffsetFetch can say of it."""

    query_id: str
    version: int
    epoch: int


def only_partition(topics: Any, partitions: str = "partitions") -> Any:
    """The one partition that an answer is about."""
    if len(topics) != 1 or len(getattr(topics[0], partitions)) != 1:
        raise malformed("it is not about one partition")
    return getattr(topics[0], partitions)[0]


def parse_committed(answer: latest_schemas.OffsetFetchResponse) -> tuple[int, Committed | None]:
    """An error of Kafka's, and the last commit if there is one."""
    topics = answer.groups[0].topics if answer.groups else answer.topics
    error = int(answer.groups[0].error_code if answer.groups else answer.error_code)
    if error:
        return error, None
    partition = only_partition(topics)
    if partition.error_code or partition.committed_offset < 0:
        return int(partition.error_code), None
    epoch = partition.committed_leader_epoch
    return 0, Committed(partition.metadata or "", partition.committed_offset, epoch)


def parse_settings(answer: DescribeConfigsResponse) -> tuple[int, dict[str, str]]:
    """An error of Kafka's, and the settings of the topic that have a value."""
    if len(answer.results) != 1:
        raise malformed("it is not about one topic")
    result = answer.results[0]
    settings = {one.name: one.value for one in result.configs if one.value is not None}
    return int(result.error_code), settings


def parse_quorum(answer: DescribeQuorumResponse) -> tuple[int, Any]:
    """An error of Kafka's, and the partition of the answer if there is none at the top."""
    if answer.error_code:
        return int(answer.error_code), None
    partition = only_partition(answer.topics)
    return int(partition.error_code), partition


def parse_controllers(answer: DescribeClusterResponse) -> dict[int, tuple[str, int]]:
    """Where each controller listens."""
    return {int(one.broker_id): (one.host, int(one.port)) for one in answer.brokers}


def malformed(reason: str) -> MalformedMessageError:
    return MalformedMessageError(api="an answer", version=None, position=0, reason=reason)


def _duration(value_ms: int) -> Any:
    return timedelta(milliseconds=min(max(value_ms, 0), _MILLISECONDS_MAX))


def _any(value: object) -> Any:
    """A value as kio's types: whether a field takes it is checked by the codec."""
    return cast("Any", value)
