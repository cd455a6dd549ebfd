"""Handlers of DescribeCluster and DescribeQuorum: nodes, leader, and the replicas' offsets.

The listener for clients describes brokers, the one for voters describes controllers, and a listener
for both describes either (KIP-919); any other request gets MISMATCHED_ENDPOINT_TYPE. Like Kafka's
controllers, the listener for voters requires a node, or a principal with ALTER of the cluster.

Only the leader knows the replicas' offsets. Any other node returns an error and closes the
connection, so that the tool tries the next node (Kafka's brokers forward the request instead).
Kafka's tools request ``__cluster_metadata``, whatever the name of the log: both names are accepted,
and the response contains the requested one. The leader's warnings are sent as the error message of
a partition without an error, which Kafka's tools ignore.
"""

from __future__ import annotations

from typing import Final

from kio.schema.describe_cluster.v2 import request as cluster_requests
from kio.schema.describe_cluster.v2 import response as cluster_responses
from kio.schema.describe_quorum.v2 import request as quorum_requests
from kio.schema.describe_quorum.v2 import response as responses
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName

from raftlog.node.access import Principal
from raftlog.node.request import Request
from raftlog.quorum.progress import ReplicaProgress
from raftlog.quorum.roles import Leader
from raftlog.types import CLUSTER_METADATA_TOPIC, Operation, ReplicaKey
from raftlog.wire import Listener
from raftlog.wire.log_identity import (
    PARTITION,
    directory_of,
    duration,
    int8,
    int32,
    int64,
    node,
    or_minus_one,
    port,
)

from .metadata_cache import MetadataCache, operations

_BROKERS: Final = 1
_CONTROLLERS: Final = 2
_LISTENERS: Final = {_BROKERS: Listener.CLIENTS, _CONTROLLERS: Listener.VOTERS}
_NODES_FROM: Final = 2
LEADER_WAIT_MS: Final = 2_000
"""Longest wait for a leader; then the client asks again or asks another node."""
_TYPES_FROM: Final = 1


# --- DescribeCluster ------------------------------------------------------------------------------


async def handle_describe_cluster(
    cache: MetadataCache, request: Request[cluster_requests.DescribeClusterRequest]
) -> cluster_responses.DescribeClusterResponse:
    body, principal = request.body, request.principal
    kind = int(body.endpoint_type)
    if request.version < _TYPES_FROM and Listener.CLIENTS not in principal.listener:
        kind = _CONTROLLERS
    error, text = ErrorCode.none, None
    if not _may_describe(principal):
        error = ErrorCode.cluster_authorization_failed
    elif kind not in _LISTENERS:
        error, text = ErrorCode.unsupported_endpoint_type, f"unsupported endpoint type {kind}"
    elif _LISTENERS[kind] not in principal.listener:
        error = ErrorCode.mismatched_endpoint_type
        text = f"this listener is for {principal.listener}"
    if error is not ErrorCode.none:
        return _cluster(cache, error=error, text=text, kind=kind)
    if kind == _CONTROLLERS:
        # Kafka's admin client caches a response without a controller for minutes (KIP-919)
        await cache.raft_node.wait_until(
            lambda: cache.leader_id() is not None, timeout_ms=LEADER_WAIT_MS
        )
    is_requested = body.include_cluster_authorized_operations
    found = cache.brokers() if kind == _BROKERS else cache.controllers()
    leader_id = cache.leader_id()
    if all(one.node_id != leader_id for one in found):
        leader_id = None
    return cluster_responses.DescribeClusterResponse(
        throttle_time=duration(0),
        error_code=ErrorCode.none,
        endpoint_type=int8(kind),
        cluster_id=cache.identity.cluster_id,
        controller_id=node(leader_id),
        brokers=tuple(
            cluster_responses.DescribeClusterBroker(
                broker_id=node(one.node_id),
                host=one.host,
                port=int32(one.port),
                is_fenced=False,
            )
            for one in found
        ),
        cluster_authorized_operations=int32(operations(principal, is_requested=is_requested)),
    )


def _may_describe(principal: Principal) -> bool:
    if Listener.CLIENTS in principal.listener:
        return bool(principal.possible_rights)  # like Kafka's brokers: to all that it serves
    return principal.is_node or principal.may(Operation.ALTER)


def _cluster(
    cache: MetadataCache, *, error: ErrorCode, text: str | None, kind: int
) -> cluster_responses.DescribeClusterResponse:
    return cluster_responses.DescribeClusterResponse(
        throttle_time=duration(0),
        error_code=error,
        error_message=text,
        endpoint_type=int8(kind),
        cluster_id=cache.identity.cluster_id,
        brokers=(),
    )


# --- DescribeQuorum -------------------------------------------------------------------------------

_Request = Request[quorum_requests.DescribeQuorumRequest]


async def handle_describe_quorum(
    cache: MetadataCache, request: _Request
) -> responses.DescribeQuorumResponse:
    role = cache.core.role
    if not request.principal.may(Operation.DESCRIBE):
        return _quorum_error(ErrorCode.cluster_authorization_failed)
    if not _is_own_log(cache, request):
        return responses.DescribeQuorumResponse(
            error_code=ErrorCode.none,
            error_message=None,
            topics=tuple(_unknown(topic) for topic in request.body.topics),
            nodes=(),
        )
    if not isinstance(role, Leader):
        request.closes_connection = True
        return _quorum_error(ErrorCode.not_leader_or_follower, cache.core.election_problem)
    topic = responses.TopicData(
        topic_name=request.body.topics[0].topic_name,
        partitions=(_partition(cache, role),),
    )
    has_nodes = request.version >= _NODES_FROM
    return responses.DescribeQuorumResponse(
        error_code=ErrorCode.none,
        error_message=None,
        topics=(topic,),
        nodes=_nodes(cache) if has_nodes else (),
    )


def _is_own_log(cache: MetadataCache, request: _Request) -> bool:
    """Return whether the request is for exactly the partition of this quorum."""
    topics = request.body.topics
    if len(topics) != 1 or len(topics[0].partitions) != 1:
        return False
    names = (cache.identity.topic, CLUSTER_METADATA_TOPIC)
    return topics[0].topic_name in names and topics[0].partitions[0].partition_index == PARTITION


def _unknown(topic: quorum_requests.TopicData) -> responses.TopicData:
    return responses.TopicData(
        topic_name=TopicName(topic.topic_name),
        partitions=tuple(
            responses.PartitionData(
                partition_index=partition.partition_index,
                error_code=ErrorCode.unknown_topic_or_partition,
                error_message=None,
                leader_id=node(None),
                leader_epoch=int32(-1),
                high_watermark=int64(-1),
                current_voters=(),
                observers=(),
            )
            for partition in topic.partitions
        ),
    )


def _partition(cache: MetadataCache, role: Leader) -> responses.PartitionData:
    core = cache.core
    voters = tuple(
        _own_state(cache, voter.key)
        if voter.key.node_id == core.node_id
        else _state(cache, voter.key, role.progress.voter(core.voters, voter.key.node_id))
        for voter in core.voters
    )
    observers = tuple(
        _state(cache, progress.key, progress) for progress in role.progress.observers(core.voters)
    )
    return responses.PartitionData(
        partition_index=int32(PARTITION),
        error_code=ErrorCode.none,
        error_message="\n".join(cache.warnings()) or None,
        leader_id=node(core.node_id),
        leader_epoch=int32(role.epoch),
        high_watermark=int64(cache.high_watermark if role.has_committed_in_epoch else -1),
        current_voters=voters,
        observers=observers,
    )


def _own_state(cache: MetadataCache, key: ReplicaKey) -> responses.ReplicaState:
    now_ms = int64(cache.raft_node.time_ms())
    return responses.ReplicaState(
        replica_id=node(key.node_id),
        replica_directory_id=directory_of(key),
        log_end_offset=int64(cache.raft_node.replica.log.end_offset),
        last_fetch_timestamp=now_ms,
        last_caught_up_timestamp=now_ms,
    )


def _state(
    cache: MetadataCache, key: ReplicaKey, progress: ReplicaProgress | None
) -> responses.ReplicaState:
    """Return the state of a replica, with the quorum clock's times as wall-clock times."""
    if progress is None:
        progress = ReplicaProgress(key=key)
    ahead_ms = cache.raft_node.time_ms() - cache.raft_node.now_ms()
    fetched_ms, caught_up_ms = progress.fetched_ms, progress.caught_up_ms
    return responses.ReplicaState(
        replica_id=node(key.node_id),
        replica_directory_id=directory_of(progress.key),
        log_end_offset=int64(or_minus_one(progress.end_offset)),
        last_fetch_timestamp=int64(-1 if fetched_ms is None else fetched_ms + ahead_ms),
        last_caught_up_timestamp=int64(-1 if caught_up_ms is None else caught_up_ms + ahead_ms),
    )


def _nodes(cache: MetadataCache) -> tuple[responses.Node, ...]:
    return tuple(
        responses.Node(
            node_id=node(voter.key.node_id),
            listeners=tuple(
                responses.Listener(name=one.name, host=one.host, port=port(one.port))
                for one in voter.endpoints
            ),
        )
        for voter in cache.core.voters
    )


def _quorum_error(error: ErrorCode, text: str | None = None) -> responses.DescribeQuorumResponse:
    return responses.DescribeQuorumResponse(
        error_code=error, error_message=text, topics=(), nodes=()
    )
