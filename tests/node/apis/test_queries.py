"""Metadata, producer ids, coordinators, commits, configs and the quorum, as clients query them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.describe_cluster.v2.request import DescribeClusterRequest
from kio.schema.describe_cluster.v2.response import DescribeClusterResponse
from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.describe_configs.v4.response import DescribeConfigsResponse
from kio.schema.describe_quorum.v2 import request as quorum_request
from kio.schema.describe_quorum.v2.response import DescribeQuorumResponse
from kio.schema.describe_topic_partitions.v0 import request as partitions_request
from kio.schema.describe_topic_partitions.v0.response import DescribeTopicPartitionsResponse
from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v5.response import InitProducerIdResponse

from raftlog.log.reading.transactions import ValueKind
from raftlog.log.writing.properties import LogConfig
from raftlog.node.access import Rights
from raftlog.node.apis import ClientApis
from raftlog.node.apis.group_offsets import CONFIRM_MS
from raftlog.node.apis.metadata_cache import MetadataCache
from raftlog.records.batch import NewRecord
from raftlog.types import CLUSTER_METADATA_TOPIC, Operation, Resource, ResourceType
from raftlog.wire import ApiKey, Listener, decode, encode, latest_schemas
from raftlog.wire.errors import MalformedMessageError
from raftlog.wire.log_identity import COMMIT_GROUP_PREFIX, uuid_or_none

from .batches import batch, commit_header, produce
from .cluster import (
    CLUSTER_ID,
    TIME_MS,
    TOPIC,
    TOPIC_ID,
    Acls,
    Cluster,
    Node,
    answer_of,
    asked,
    caller,
    is_last,
    run,
    settle,
)
from .requests import OTHER_ID, init_producer_id, metadata, offset_fetch

# --- Metadata -------------------------------------------------------------------------------------


async def sent_metadata(node: Node, version: int = 13, principal: Any = None, **more: Any) -> Any:
    return await node.ask_client(
        ApiKey.METADATA, version, metadata(**more), latest_schemas.MetadataResponse, principal
    )


@pytest.mark.parametrize("version", range(14))
def test_metadata_of_every_version_has_nodes_topic_and_leader(version: int) -> None:
    async def work() -> None:
        cluster = Cluster(3)
        leader = cluster.elect()
        for node in cluster.nodes:
            answer = await sent_metadata(node, version, names=() if version == 0 else None)
            assert [(one.node_id, one.host, one.port) for one in answer.brokers] == [
                (at, f"node{at}.public", 9100 + at) for at in (1, 2, 3)
            ]
            (topic,) = answer.topics
            (partition,) = topic.partitions
            assert (topic.error_code, topic.name) == (ErrorCode.none, TOPIC)
            assert partition.leader_id == leader.node_id
            assert partition.replica_nodes == partition.isr_nodes == (1, 2, 3)
            if version >= 1:
                assert answer.controller_id == leader.node_id
            if version >= 2:
                assert answer.cluster_id == CLUSTER_ID
            if version >= 7:
                assert partition.leader_epoch == leader.replica.core.epoch
            if version >= 10:
                assert topic.topic_id == uuid_or_none(TOPIC_ID)

    run(work())


def test_topics_are_found_by_name_and_by_id() -> None:
    async def work() -> None:
        leader = Cluster().elect()
        names = (TOPIC, "other", "no topic", "..")
        answer = await sent_metadata(leader, names=names, ids=(TOPIC_ID, OTHER_ID))
        assert [(one.error_code, one.name) for one in answer.topics] == [
            (ErrorCode.none, TOPIC),
            (ErrorCode.unknown_topic_or_partition, "other"),
            (ErrorCode.invalid_topic_exception, "no topic"),
            (ErrorCode.invalid_topic_exception, ".."),
            (ErrorCode.none, TOPIC),
            (ErrorCode.unknown_topic_id, None),
        ]
        assert (await sent_metadata(leader, 12, names=())).topics == ()

    run(work())


def test_without_a_leader_metadata_names_none() -> None:
    async def work() -> None:
        (partition,) = (await sent_metadata(Cluster(3).nodes[0])).topics[0].partitions
        assert (partition.error_code, partition.leader_id) == (ErrorCode.leader_not_available, -1)

    run(work())


def test_a_replica_that_stopped_fetching_is_out_of_sync() -> None:
    async def work() -> None:
        cluster = Cluster(3)
        leader = cluster.elect()
        cluster.follower.is_cut_off = True
        cluster.pass_time(31_000)
        (partition,) = (await sent_metadata(leader)).topics[0].partitions
        assert cluster.leader is leader
        assert partition.isr_nodes == tuple(
            node.node_id for node in cluster.nodes if not node.is_cut_off
        )

    run(work())


@pytest.mark.parametrize("names_clients", [False, True])
def test_voters_with_one_listener_serve_clients_there(names_clients: bool) -> None:
    """Static voters, and initial ones, register no client listener at first."""

    async def work() -> None:
        cluster = Cluster(3, names_clients=names_clients)
        apis = ClientApis(cluster.elect().raft_node, is_one_socket=True)
        body = await asked(apis, ApiKey.METADATA, 9, encode(metadata(), 9))
        assert body is not None
        decoded = decode(latest_schemas.MetadataResponse, 9, bytes(body))
        hosts = [f"node{at}.public" if names_clients else f"node{at}" for at in (1, 2, 3)]
        assert [one.host for one in decoded.brokers] == hosts

    run(work())


def test_a_client_without_rights_sees_no_topic() -> None:
    async def work() -> None:
        leader = Cluster().elect()
        without_rights = caller(Rights.NONE)
        assert (await sent_metadata(leader, principal=without_rights)).topics == ()
        answer = await sent_metadata(
            leader, principal=without_rights, names=(TOPIC,), ids=(TOPIC_ID,)
        )
        assert [one.error_code for one in answer.topics] == [
            ErrorCode.topic_authorization_failed,
            ErrorCode.unknown_topic_id,
        ]
        assert all(one.partitions == () for one in answer.topics)

    run(work())


def test_a_node_whose_controller_owns_the_log_reports_no_write_that_acls_allow() -> None:
    async def work() -> None:
        leader = Cluster().elect()
        topic = Resource(ResourceType.TOPIC, TOPIC)
        allowed = Acls(*((one, topic) for one in (Operation.DESCRIBE, Operation.WRITE)))
        principal = replace(caller(Rights.NONE, Listener.CLIENTS), authorizer=allowed)
        expected = {False: 1 << 4 | 1 << 8, True: 1 << 8}
        with ThreadPoolExecutor(1) as executor:
            for is_read_only, operations in expected.items():
                cache = MetadataCache(
                    leader.raft_node,
                    executor,
                    is_one_socket=True,
                    is_read_only=is_read_only,
                    quotas=leader.apis.quotas,
                )
                assert cache.topic_operations(principal, is_requested=True) == operations
                assert cache.topic_operations(principal, is_requested=False) == -(2**31)

    run(work())


def test_rights_are_reported_as_kafkas_operations() -> None:
    async def work() -> None:
        leader = Cluster().elect()
        principal = caller(Rights.READ | Rights.APPEND)
        answer = await sent_metadata(
            leader, 10, principal, include_topic_authorized_operations=True
        )
        assert answer.topics[0].topic_authorized_operations == 1 << 3 | 1 << 4 | 1 << 8
        answer = await sent_metadata(leader, 10, principal)
        assert answer.topics[0].topic_authorized_operations == -(2**31)

    run(work())


def test_trailing_bytes_are_ignored_and_malformed_requests_are_not() -> None:
    async def work() -> None:
        leader = Cluster().elect()
        frame = encode(metadata(), 13) + b"\0\0\0"
        assert await asked(leader.apis, ApiKey.METADATA, 13, frame)
        with pytest.raises(MalformedMessageError):
            await asked(leader.apis, ApiKey.METADATA, 13, b"\x05")

    run(work())


# --- producer ids ---------------------------------------------------------------------------------


async def producer_id(node: Node, version: int = 5, **more: Any) -> Any:
    request = init_producer_id(more.pop("transactional_id", None))
    return await node.ask_client(
        ApiKey.INIT_PRODUCER_ID,
        version,
        request,
        InitProducerIdResponse,
        more.pop("principal", None),
    )


@pytest.mark.parametrize("version", range(6))
def test_producer_ids_are_of_the_epoch_and_never_reused(version: int) -> None:
    async def work() -> None:
        cluster = Cluster(3)
        leader = cluster.elect()
        first, second = [await producer_id(leader, version) for _ in range(2)]
        epoch = leader.replica.core.epoch
        assert [one.producer_id for one in (first, second)] == [epoch << 32, (epoch << 32) + 1]
        assert (first.error_code, first.producer_epoch) == (ErrorCode.none, 0)
        later = cluster.change_leader()
        answer = await producer_id(later, version)
        assert answer.producer_id == later.replica.core.epoch << 32

    run(work())


def test_an_exhausted_range_of_ids_is_refused_until_the_next_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("raftlog.node.apis.produce._COUNTER_BITS", 1)

    async def work() -> None:
        cluster = Cluster(3)
        leader = cluster.elect()
        answers = [await producer_id(leader) for _ in range(4)]
        refused = ErrorCode.coordinator_load_in_progress
        assert [one.error_code for one in answers] == [ErrorCode.none] * 2 + [refused] * 2
        assert [one.producer_id for one in answers[2:]] == [-1, -1]
        later = await producer_id(cluster.change_leader())
        assert later.producer_id not in [one.producer_id for one in answers]

    run(work())


def test_a_follower_redirects_producers_to_another_node() -> None:
    async def work() -> None:
        cluster = Cluster(3)
        cluster.elect()
        task = cluster.follower.start(ApiKey.INIT_PRODUCER_ID, 4, init_producer_id(), caller())
        await settle()
        answer = answer_of(task, InitProducerIdResponse, 4)
        assert answer.error_code is ErrorCode.coordinator_load_in_progress
        assert answer.error_code.retriable
        assert is_last(task)

    run(work())


def test_transactional_and_unauthorized_clients_get_no_producer_id() -> None:
    async def work() -> None:
        leader = Cluster().elect()
        named = await producer_id(leader, transactional_id="t")
        assert named.error_code is ErrorCode.unsupported_version
        reader = await producer_id(leader, principal=caller(Rights.READ))
        assert reader.error_code is ErrorCode.cluster_authorization_failed
        assert reader.producer_id == named.producer_id == -1

    run(work())


# --- coordinators and commits ---------------------------------------------------------------------


def coordinator_request(
    version: int, key: str, key_type: int = 0
) -> latest_schemas.FindCoordinatorRequest:
    kind: Any = key_type
    if version >= 4:
        return latest_schemas.FindCoordinatorRequest(key_type=kind, coordinator_keys=(key,))
    return latest_schemas.FindCoordinatorRequest(key_type=kind, key=key, coordinator_keys=())


async def coordinator(node: Node, version: int, *, key_type: int = 0, principal: Any = None) -> Any:
    answer = await node.ask_client(
        ApiKey.FIND_COORDINATOR,
        version,
        coordinator_request(version, "app", key_type),
        latest_schemas.FindCoordinatorResponse,
        principal,
    )
    return answer.coordinators[0] if version >= 4 else answer


@pytest.mark.parametrize("version", range(7))
def test_a_groups_coordinator_is_the_leader(version: int) -> None:
    async def work() -> None:
        cluster = Cluster(3)
        leader = cluster.elect()
        for node in cluster.nodes:
            found = await coordinator(node, version)
            assert found.error_code is ErrorCode.none
            assert (found.node_id, found.port) == (leader.node_id, 9100 + leader.node_id)

    run(work())


def test_there_are_no_coordinators_of_other_types() -> None:
    async def work() -> None:
        no_leader = await coordinator(Cluster(3).nodes[0], 6)
        assert no_leader.error_code is ErrorCode.coordinator_not_available
        leader = Cluster().elect()
        for version in (1, 6):
            found = await coordinator(leader, version, key_type=1)
            denied = ErrorCode.transactional_id_authorization_failed
            assert found.error_code is (ErrorCode.unsupported_version if version == 6 else denied)
            assert found.error_message.startswith("transactions are not supported")
            assert found.node_id == -1
        assert (await coordinator(leader, 6, key_type=2)).error_code is ErrorCode.invalid_request
        refused = await coordinator(leader, 6, principal=caller(Rights.NONE))
        assert refused.error_code is ErrorCode.group_authorization_failed

    run(work())


def named(version: int) -> Any:
    header = commit_header("app", "query", version)
    return produce(batch(NewRecord(None, b"x", TIME_MS, (header,))))


async def committed(node: Node, version: int, *apps: str, **more: Any) -> Any:
    """Return the response with the last commits of application ids."""
    principal = more.pop("principal", None)
    groups = [COMMIT_GROUP_PREFIX + app for app in apps]
    return await node.ask_client(
        ApiKey.OFFSET_FETCH,
        version,
        offset_fetch(version, *groups, **more),
        latest_schemas.OffsetFetchResponse,
        principal,
    )


@pytest.mark.parametrize("version", range(1, 11))
def test_a_group_named_after_an_application_returns_its_last_commit(version: int) -> None:
    async def work() -> None:
        leader = Cluster().elect()
        for number in (3, 4):
            await leader.ask_client(
                ApiKey.PRODUCE, 9, named(number), latest_schemas.ProduceResponse
            )
        for group, expected in (("app", (4, "query")), ("other", (-1, ""))):
            answer = await committed(leader, version, group)
            found = answer if version < 8 else answer.groups[0]
            assert found.error_code is ErrorCode.none
            (partition,) = found.topics[0].partitions
            assert (partition.committed_offset, partition.metadata) == expected
            assert partition.error_code is ErrorCode.none
            if version >= 5:
                epoch = leader.replica.core.epoch
                assert partition.committed_leader_epoch == (epoch if group == "app" else -1)

    run(work())


def test_all_topics_of_several_groups_are_returned() -> None:
    async def work() -> None:
        leader = Cluster().elect()
        await leader.ask_client(ApiKey.PRODUCE, 9, named(1), latest_schemas.ProduceResponse)
        answer = await committed(leader, 10, "app", "other", is_all=True)
        assert [len(group.topics) for group in answer.groups] == [1, 0]
        assert answer.groups[0].topics[0].topic_id == uuid_or_none(TOPIC_ID)
        strange = await committed(leader, 9, "app", topic="strange")
        (partition,) = strange.groups[0].topics[0].partitions
        assert (partition.error_code, partition.committed_offset) == (ErrorCode.none, -1)
        (partition,) = (
            (await committed(leader, 10, "app", topic_id=OTHER_ID)).groups[0].topics[0].partitions
        )
        assert partition.error_code is ErrorCode.unknown_topic_id

    run(work())


def test_a_commit_is_returned_once_it_is_committed() -> None:
    async def work() -> None:
        cluster = Cluster(3)
        leader = cluster.elect()
        for node in cluster.nodes:
            node.is_sync_held = node is not leader
        leader.start(ApiKey.PRODUCE, 9, named(7), caller())
        task = leader.start(
            ApiKey.OFFSET_FETCH, 9, offset_fetch(9, COMMIT_GROUP_PREFIX + "app"), caller()
        )
        await settle()
        assert not task.done()
        cluster.follower.release_syncs()
        await settle()
        answer = answer_of(task, latest_schemas.OffsetFetchResponse, 9)
        assert answer.groups[0].topics[0].partitions[0].committed_offset == 7

    run(work())


def test_a_commit_that_is_not_committed_in_time_is_to_be_read_again() -> None:
    async def work() -> None:
        cluster = Cluster(3)
        leader = cluster.elect()
        leader.is_sync_held = cluster.follower.is_sync_held = True
        leader.start(ApiKey.PRODUCE, 9, named(7), caller())
        task = leader.start(
            ApiKey.OFFSET_FETCH, 9, offset_fetch(9, COMMIT_GROUP_PREFIX + "app"), caller()
        )
        await settle()
        cluster.pass_time(CONFIRM_MS - 1)
        await settle()
        assert not task.done()
        cluster.pass_time(1)
        await settle()
        assert leader.is_leader
        group = answer_of(task, latest_schemas.OffsetFetchResponse, 9).groups[0]
        assert group.error_code is ErrorCode.coordinator_load_in_progress
        assert group.topics == ()

    run(work())


def test_a_replaced_leader_returns_no_commits() -> None:
    async def work() -> None:
        cluster = Cluster(3)
        old = cluster.elect()
        old.is_cut_off = True
        task = old.start(
            ApiKey.OFFSET_FETCH, 9, offset_fetch(9, COMMIT_GROUP_PREFIX + "app"), caller()
        )
        await settle()
        assert not task.done()
        cluster.pass_time(6_000)
        await settle()
        group = answer_of(task, latest_schemas.OffsetFetchResponse, 9).groups[0]
        assert group.error_code.retriable
        assert group.topics == ()

    run(work())


@pytest.mark.parametrize("version", [1, 2, 9])
def test_only_the_leader_returns_commits_and_only_to_authorized_clients(version: int) -> None:
    async def work() -> None:
        cluster = Cluster(3)
        leader = cluster.elect()

        def error(answer: Any) -> ErrorCode:
            if version == 1:
                return ErrorCode(answer.topics[0].partitions[0].error_code)
            found = answer if version < 8 else answer.groups[0]
            assert found.topics == ()
            return ErrorCode(found.error_code)

        elsewhere = await committed(cluster.follower, version, "app")
        assert error(elsewhere) is ErrorCode.not_coordinator
        stranger = await committed(leader, version, "app", principal=caller(Rights.NONE))
        assert error(stranger) is ErrorCode.group_authorization_failed

    run(work())


# --- the cluster and the quorum -------------------------------------------------------------------


def cluster_request(kind: int = 1) -> Any:
    any_kind: Any = kind
    return DescribeClusterRequest(
        include_cluster_authorized_operations=True,
        endpoint_type=any_kind,
        include_fenced_brokers=False,
    )


@pytest.mark.parametrize("version", range(3))
def test_the_cluster_is_described_in_every_version(version: int) -> None:
    async def work() -> None:
        cluster = Cluster(3)
        leader = cluster.elect()
        answer = await cluster.follower.ask_client(
            ApiKey.DESCRIBE_CLUSTER, version, cluster_request(), DescribeClusterResponse
        )
        assert (answer.error_code, answer.cluster_id) == (ErrorCode.none, CLUSTER_ID)
        assert answer.controller_id == leader.node_id
        assert [one.port for one in answer.brokers] == [9101, 9102, 9103]
        assert answer.cluster_authorized_operations > 0

    run(work())


@pytest.mark.parametrize(
    ("listener", "kind", "ports"),
    [
        (Listener.CLIENTS, 1, [9101]),
        (Listener.VOTERS, 2, [9001]),
        (Listener.CLIENTS | Listener.VOTERS, 2, [9001]),
        (Listener.CLIENTS, 2, ErrorCode.mismatched_endpoint_type),
        (Listener.VOTERS, 1, ErrorCode.mismatched_endpoint_type),
        (Listener.CLIENTS, 3, ErrorCode.unsupported_endpoint_type),
    ],
)
def test_a_listener_describes_nodes_for_its_clients(
    listener: Listener, kind: int, ports: Any
) -> None:
    async def work() -> None:
        answer = (
            await Cluster()
            .elect()
            .ask_client(
                ApiKey.DESCRIBE_CLUSTER,
                2,
                cluster_request(kind),
                DescribeClusterResponse,
                caller(listener=listener),
            )
        )
        if isinstance(ports, ErrorCode):
            assert answer.error_code is ports
        else:
            assert [one.port for one in answer.brokers] == ports
        assert answer.endpoint_type == kind

    run(work())


def quorum(topic: str = CLUSTER_METADATA_TOPIC, partition: int = 0) -> Any:
    index: Any = partition
    name: Any = topic
    one = quorum_request.PartitionData(partition_index=index)
    return quorum_request.DescribeQuorumRequest(
        topics=(quorum_request.TopicData(topic_name=name, partitions=(one,)),)
    )


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize("topic", [CLUSTER_METADATA_TOPIC, TOPIC])
def test_the_leader_describes_the_end_offset_of_every_replica(version: int, topic: str) -> None:
    async def work() -> None:
        cluster = Cluster(3)
        leader = cluster.elect()
        await leader.ask_client(ApiKey.PRODUCE, 9, named(1), latest_schemas.ProduceResponse)
        answer = await leader.ask_client(
            ApiKey.DESCRIBE_QUORUM, version, quorum(topic), DescribeQuorumResponse
        )
        assert answer.error_code is ErrorCode.none
        assert answer.topics[0].topic_name == topic
        (partition,) = answer.topics[0].partitions
        end = leader.replica.log.end_offset
        assert (partition.leader_id, partition.high_watermark) == (leader.node_id, end)
        assert partition.leader_epoch == leader.replica.core.epoch
        assert [one.replica_id for one in partition.current_voters] == [1, 2, 3]
        assert {one.log_end_offset for one in partition.current_voters} == {end}
        assert partition.observers == ()
        if version >= 1:
            times = {one.last_fetch_timestamp for one in partition.current_voters}
            assert max(times) <= leader.time_ms()
            assert min(times) > TIME_MS
        if version >= 2:
            assert [len(one.listeners) for one in answer.nodes] == [2, 2, 2]
            assert partition.current_voters[0].replica_directory_id is not None

    run(work())


def test_a_follower_redirects_queries_of_the_quorum() -> None:
    async def work() -> None:
        cluster = Cluster(3)
        cluster.elect()
        task = cluster.follower.start(ApiKey.DESCRIBE_QUORUM, 2, quorum(), caller())
        await settle()
        answer = answer_of(task, DescribeQuorumResponse, 2)
        assert answer.error_code is ErrorCode.not_leader_or_follower
        assert is_last(task)

    run(work())


def test_another_partitions_quorum_is_unknown() -> None:
    async def work() -> None:
        leader = Cluster().elect()
        for topic, partition in (("other", 0), (TOPIC, 1)):
            answer = await leader.ask_client(
                ApiKey.DESCRIBE_QUORUM, 2, quorum(topic, partition), DescribeQuorumResponse
            )
            (found,) = answer.topics[0].partitions
            assert found.error_code is ErrorCode.unknown_topic_or_partition
        answer = await leader.ask_client(
            ApiKey.DESCRIBE_QUORUM, 2, quorum(), DescribeQuorumResponse, caller(Rights.NONE)
        )
        assert answer.error_code is ErrorCode.cluster_authorization_failed

    run(work())


# --- configs --------------------------------------------------------------------------------------


async def configs(
    node: Node,
    kind: int,
    name: str,
    *,
    version: int = 4,
    keys: tuple[str, ...] | None = None,
    principal: Any = None,
) -> Any:
    any_kind: Any = kind
    request = DescribeConfigsRequest(
        resources=(
            DescribeConfigsResource(
                resource_type=any_kind, resource_name=name, configuration_keys=keys
            ),
        ),
        include_synonyms=True,
        include_documentation=True,
    )
    answer = await node.ask_client(
        ApiKey.DESCRIBE_CONFIGS, version, request, DescribeConfigsResponse, principal
    )
    return answer.results[0]


@pytest.mark.parametrize("version", range(1, 5))
def test_the_topics_configs_have_the_format_of_values(version: int) -> None:
    async def work() -> None:
        config = LogConfig(values=ValueKind.MSGPACK, batch_bytes_max=1 << 20, retention_ms=60_000)
        leader = Cluster(config=config).elect()
        found = await configs(leader, 2, TOPIC, version=version)
        assert found.error_code is ErrorCode.none
        decoded = {one.name: one.value for one in found.configs}
        assert decoded == {
            "cleanup.policy": "delete",
            "compression.type": "uncompressed",
            "max.message.bytes": "1048576",
            "message.timestamp.type": "CreateTime",
            "raftlog.values": "msgpack",
            "retention.bytes": "-1",
            "retention.ms": "60000",
            "segment.bytes": "1073741824",
            "segment.ms": "604800000",
        }
        sources = {one.name: one.config_source for one in found.configs}
        assert (sources["max.message.bytes"], sources["segment.bytes"]) == (1, 5)
        assert all(one.read_only and not one.is_sensitive for one in found.configs)
        if version >= 3:
            assert all(one.documentation for one in found.configs)

    run(work())


def test_selected_configs_can_be_queried_and_a_node_reports_its_id() -> None:
    async def work() -> None:
        leader = Cluster().elect()
        some = await configs(leader, 2, TOPIC, keys=("raftlog.values", "no.such"))
        assert [(one.name, one.value) for one in some.configs] == [("raftlog.values", "bytes")]
        node = await configs(leader, 4, "1")
        assert [(one.name, one.value) for one in node.configs] == [("node.id", "1")]
        assert (await configs(leader, 4, "")).configs == ()

    run(work())


@pytest.mark.parametrize(
    ("kind", "name", "rights", "error"),
    [
        (2, "other", Rights.READ, ErrorCode.unknown_topic_or_partition),
        (4, "2", Rights.READ, ErrorCode.invalid_request),
        (8, "1", Rights.READ, ErrorCode.invalid_request),
        (2, TOPIC, Rights.NONE, ErrorCode.topic_authorization_failed),
        (4, "1", Rights.NONE, ErrorCode.cluster_authorization_failed),
    ],
)
def test_other_configs_are_refused(kind: int, name: str, rights: Rights, error: ErrorCode) -> None:
    async def work() -> None:
        found = await configs(Cluster().elect(), kind, name, principal=caller(rights))
        assert found.error_code is error
        assert found.configs == ()

    run(work())


# --- DescribeTopicPartitions ----------------------------------------------------------------------


async def pages(node: Node, *names: str, after: str | None = None, principal: Any = None) -> Any:
    some: Any = tuple(partitions_request.TopicRequest(name=_any(name)) for name in names)
    cursor = None
    if after is not None:
        cursor = partitions_request.Cursor(topic_name=_any(after), partition_index=_any(0))
    request = partitions_request.DescribeTopicPartitionsRequest(
        topics=some, response_partition_limit=_any(10), cursor=cursor
    )
    return await node.ask_client(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, request, DescribeTopicPartitionsResponse, principal
    )


def _any(value: Any) -> Any:
    return value


def test_the_topics_partition_is_described_page_by_page() -> None:
    async def work() -> None:
        cluster = Cluster(3)
        leader = cluster.elect()
        for names in ((), (TOPIC,)):
            answer = await pages(leader, *names)
            (topic,) = answer.topics
            (partition,) = topic.partitions
            assert (topic.name, topic.topic_id) == (TOPIC, uuid_or_none(TOPIC_ID))
            assert (partition.leader_id, partition.isr_nodes) == (leader.node_id, (1, 2, 3))
            assert answer.next_cursor is None
        assert (await pages(leader, after="zz")).topics == ()
        assert len((await pages(leader, after=TOPIC)).topics) == 1
        other = await pages(leader, "other")
        assert other.topics[0].error_code is ErrorCode.unknown_topic_or_partition
        without_rights = caller(Rights.NONE)
        assert (await pages(leader, principal=without_rights)).topics == ()
        refused = await pages(leader, TOPIC, principal=without_rights)
        assert refused.topics[0].error_code is ErrorCode.topic_authorization_failed

    run(work())
