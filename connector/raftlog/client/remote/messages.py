"""A client's requests as Kafka's messages, and parsers of the responses. Pure.

All messages concern one partition of one topic. Requests have both the topic's name and its id; the
codec writes the one that the version has. A response about anything else raises
``MalformedMessageError``.
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
from kio.schema.fetch.v18 import request as fetch
from kio.schema.fetch_snapshot.v1 import request as fetch_snapshot
from kio.schema.init_producer_id.v5.request import InitProducerIdRequest
from kio.schema.list_offsets.v11 import request as list_offsets
from kio.schema.offset_for_leader_epoch.v4 import request as epoch_ends

from raftlog.types import CLUSTER_METADATA_TOPIC, SnapshotId
from raftlog.wire import (
    ProducedBatch,
    ProducedTopic,
    ProduceRequest,
    ProduceResponse,
    ProduceResult,
    latest_schemas,
)
from raftlog.wire.errors import MalformedMessageError
from raftlog.wire.log_identity import COMMIT_GROUP_PREFIX

PARTITION: Final = 0
LATEST_TIMESTAMP: Final = -1
EARLIEST_TIMESTAMP: Final = -2
OFFSET_MAX: Final = 2**62
"""Beyond the end of any log: a Fetch from it returns the end of the requested epoch (KIP-595)."""
READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1
CONTROLLERS: Final = 2
"""Endpoint type of controllers in DescribeCluster (KIP-919)."""
_TOPIC_RESOURCE: Final = 2
_MILLISECONDS_MAX: Final = 2**31 - 1
RETRIABLE_ERRORS: Final = frozenset((3, 5, 6, 9, 13, 14, 15, 16, 74, 75, 100, 103))
"""Kafka's error codes after which nothing was done, and a retry, or another leader, may help."""
_ACCESS_ERRORS: Final = frozenset((29, 30, 31, 33, 34, 53, 58))
"""Kafka's error codes of authorization (topic, group, cluster, and transactional id, which is the
application id here) and of authentication."""


@dataclass(frozen=True, slots=True)
class TopicIdentity:
    """Identity of the log. ``topic_id`` is in kio's form."""

    topic: str
    topic_id: uuid.UUID | None
    cluster_id: str | None
    is_controller: bool
    """Whether the nodes are Kafka's controllers, whose log clients can only read."""


# --- requests -------------------------------------------------------------------------------------


def metadata_request() -> latest_schemas.MetadataRequest:
    """Return a request for all nodes, topics and leaders."""
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


def produce_request(log: TopicIdentity, batch: bytes, timeout_ms: int) -> ProduceRequest:
    """Return a request to append one batch, which is answered when the batch is committed."""
    topic_id = (log.topic_id or uuid.UUID(int=0)).bytes
    topic = ProducedTopic(topic_id, log.topic, [ProducedBatch(PARTITION, batch)])
    return ProduceRequest(None, -1, timeout_ms, [topic])


def producer_id_request() -> InitProducerIdRequest:
    """Return a request for a new producer id with epoch 0, without transactions."""
    return InitProducerIdRequest(transactional_id=None, transaction_timeout=_duration(0))


def fetch_request(
    log: TopicIdentity,
    offset: int,
    *,
    leader_epoch: int,
    byte_count_max: int,
    last_epoch: int = -1,
    wait_ms: int = 0,
) -> latest_schemas.FetchRequest:
    """Return a consumer's request for batches from ``offset`` on, without a session (KIP-227).

    Its isolation level is READ_UNCOMMITTED, as readers look up the transactions themselves.
    """
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
        isolation_level=_any(READ_UNCOMMITTED),
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
    """Return a request for the offset of a timestamp in milliseconds or a special timestamp."""
    partition = list_offsets.ListOffsetsPartition(
        partition_index=_any(PARTITION), timestamp=_any(timestamp)
    )
    return list_offsets.ListOffsetsRequest(
        replica_id=_any(-1),
        isolation_level=_any(READ_COMMITTED if is_committed_only else READ_UNCOMMITTED),
        topics=(list_offsets.ListOffsetsTopic(name=_any(log.topic), partitions=(partition,)),),
        timeout=_duration(0),
    )


def epoch_end_request(
    log: TopicIdentity, epoch: int, *, leader_epoch: int
) -> epoch_ends.OffsetForLeaderEpochRequest:
    """Return a consumer's request for the end offset of an epoch (KIP-101)."""
    partition = epoch_ends.OffsetForLeaderPartition(
        partition=_any(PARTITION),
        current_leader_epoch=_any(leader_epoch),
        leader_epoch=_any(epoch),
    )
    return epoch_ends.OffsetForLeaderEpochRequest(
        replica_id=_any(-1),
        topics=(epoch_ends.OffsetForLeaderTopic(topic=_any(log.topic), partitions=(partition,)),),
    )


def commit_request(log: TopicIdentity, application_id: str) -> latest_schemas.OffsetFetchRequest:
    """Return a request for the last commit of an application id, as if it were a group's."""
    topic = latest_schemas.OffsetFetchTopic(
        topic_id=log.topic_id, name=_any(log.topic), partition_indexes=(_any(PARTITION),)
    )
    group_id = _any(COMMIT_GROUP_PREFIX + application_id)
    group = latest_schemas.OffsetFetchGroup(group_id=group_id, topics=(topic,))
    return latest_schemas.OffsetFetchRequest(
        groups=(group,), group_id=group_id, topics=(topic,), require_stable=True
    )


def settings_request(log: TopicIdentity) -> describe_configs.DescribeConfigsRequest:
    resource = describe_configs.DescribeConfigsResource(
        resource_type=_any(_TOPIC_RESOURCE), resource_name=log.topic, configuration_keys=None
    )
    return describe_configs.DescribeConfigsRequest(resources=(resource,))


# --- responses ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Committed:
    """Last commit of an application id, as OffsetFetch returns it."""

    query_id: str
    version: int
    epoch: int


def only_partition(topics: Any) -> Any:
    """Return the only partition in a response."""
    if len(topics) != 1 or len(topics[0].partitions) != 1:
        raise malformed("it does not have exactly one partition")
    return topics[0].partitions[0]


def only_result(response: ProduceResponse) -> ProduceResult:
    """Return the only result in a response to Produce."""
    if len(response.results) != 1:
        raise malformed("it does not have exactly one partition")
    return response.results[0]


def parse_committed(response: latest_schemas.OffsetFetchResponse) -> tuple[int, Committed | None]:
    """Return Kafka's error code, and the last commit if there is one."""
    topics = response.groups[0].topics if response.groups else response.topics
    error = int(response.groups[0].error_code if response.groups else response.error_code)
    if error:
        return error, None
    partition = only_partition(topics)
    if partition.error_code or partition.committed_offset < 0:
        return int(partition.error_code), None
    epoch = partition.committed_leader_epoch
    return 0, Committed(partition.metadata or "", partition.committed_offset, epoch)


def parse_settings(response: DescribeConfigsResponse) -> tuple[int, dict[str, str]]:
    """Return Kafka's error code, and the settings of the topic that have a value."""
    if len(response.results) != 1:
        raise malformed("it does not have exactly one topic")
    result = response.results[0]
    settings = {one.name: one.value for one in result.configs if one.value is not None}
    return int(result.error_code), settings


def parse_partition(response: Any, topics: Any = None) -> tuple[int, Any]:
    """Return Kafka's error code, and the partition unless the error is the response's own.

    ``topics``: the response's topics; None to use its attribute ``topics``.
    """
    error = getattr(response, "error_code", 0)  # responses about offsets have none of their own
    if error:
        return int(error), None
    partition = only_partition(response.topics if topics is None else topics)
    return int(partition.error_code), partition


def parse_controllers(response: DescribeClusterResponse) -> dict[int, tuple[str, int]]:
    """Return host and port by controller id."""
    return {int(one.broker_id): (one.host, int(one.port)) for one in response.brokers}


def is_access_error(error: int) -> bool:
    """Return whether Kafka's error code denies access."""
    return error in _ACCESS_ERRORS


def malformed(reason: str) -> MalformedMessageError:
    return MalformedMessageError(api="a response", version=None, position=0, reason=reason)


def _duration(value_ms: int) -> Any:
    return timedelta(milliseconds=min(max(value_ms, 0), _MILLISECONDS_MAX))


def _any(value: object) -> Any:
    """Return a value as any of kio's types: the codec checks it."""
    return cast("Any", value)
