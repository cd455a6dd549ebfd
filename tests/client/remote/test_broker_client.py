"""Committed offsets of all groups and offsets of partitions: scripted brokers.

``tests/kafka/test_kafka_groups.py`` compares the same with Kafka's tools.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from kio.schema.errors import ErrorCode
from tests.support.scripted_brokers import TOPIC_ID, Broker, Script, scripted_brokers
from tests.support.scripted_node import Answer, ScriptedNode

from raftlog.client.remote.broker_client import (
    BrokerClient,
    GroupOffset,
    ListedOffsets,
    PartitionOffsets,
)
from raftlog.client.remote.nodes import parse_addresses
from raftlog.errors import (
    AccessDeniedError,
    BrokersUnavailableError,
    NodeRefusedError,
    WrongClusterError,
)
from raftlog.wire import APIS, ApiKey
from raftlog.wire.log_identity import uuid_text

LOADING = ErrorCode.coordinator_load_in_progress
NOT_LEADER = ErrorCode.not_leader_or_follower
PATIENCE_MS = 60_000


@contextmanager
def cluster(
    script: Script, *, broker_count: int = 2, timeout_ms: float = PATIENCE_MS
) -> Iterator[BrokerClient]:
    with scripted_brokers(script, broker_count=broker_count) as address:
        client = BrokerClient(parse_addresses(address), timeout_ms=timeout_ms)
        with closing(client):
            yield client


def test_each_coordinator_returns_the_offsets_of_its_groups() -> None:
    script = Script(
        groups={
            "b": (0, "Consumer"),
            "a": (1, "Consumer"),
            "none": (1, "Consumer"),
            "shared": (0, "Share"),
        },
        commits={"b": {("t", 1): 5, ("s", 0): 0}, "a": {("t", 0): 3, ("t", 1): -1}},
    )
    with cluster(script) as client:
        assert client.group_offsets() == [
            GroupOffset("a", "t", 0, 3),
            GroupOffset("b", "s", 0, 0),
            GroupOffset("b", "t", 1, 5),
        ]
    assert set(script.versions) == {("OffsetFetch", 9)}


def test_what_fails_is_requested_again_and_nothing_twice() -> None:
    """A broker that loads its groups may have more of them than it lists."""
    script = Script(
        groups={"a": (0, "Consumer"), "b": (1, "Consumer")},
        commits={"a": {("t", 0): 3}, "b": {("t", 0): 4}},
        list_errors=[LOADING],
        group_errors={"b": [ErrorCode.not_coordinator, LOADING]},
    )
    with cluster(script) as client:
        assert [one.offset for one in client.group_offsets()] == [3, 4]
    assert len(script.versions) == 4


def test_a_group_that_was_deleted_in_between_has_no_offsets() -> None:
    script = Script(
        groups={"a": (0, "Consumer")},
        commits={"a": {("t", 0): 3}},
        group_errors={"a": [ErrorCode.group_id_not_found]},
    )
    with cluster(script) as client:
        assert client.group_offsets() == []


def test_groups_of_a_broker_that_does_not_respond_are_not_left_out() -> None:
    script = Script(groups={"a": (0, "Consumer")}, list_errors=[LOADING] * 2)
    error = pytest.raises(BrokersUnavailableError, match="LIST_GROUPS: Kafka's error 14")
    with cluster(script, timeout_ms=0) as client, error:
        client.group_offsets()


def test_leaders_return_the_offsets_of_their_partitions() -> None:
    script = Script(
        leaders={("t", 0): 0, ("t", 1): 1, ("s", 0): 1},
        ends={("t", 0): (1, 9), ("t", 1): (0, 0), ("s", 0): (4, 4)},
        partition_errors={("t", 1): [NOT_LEADER, ErrorCode.offset_not_available]},
    )
    wanted = {("t", 0), ("t", 1), ("t", 2), ("s", 0), ("deleted", 0)}
    with cluster(script) as client:
        assert client.list_offsets(wanted) == ListedOffsets(
            offsets={
                ("t", 0): PartitionOffsets(1, 9),
                ("t", 1): PartitionOffsets(0, 0),
                ("s", 0): PartitionOffsets(4, 4),
            },
            topic_ids={"t": uuid_text(TOPIC_ID), "s": uuid_text(TOPIC_ID)},
        )


def test_a_partition_without_leader_is_missing_after_the_timeout() -> None:
    script = Script(leaders={("t", 0): 0, ("t", 1): -1, ("t", 2): 7}, ends={("t", 0): (1, 9)})
    with cluster(script, timeout_ms=0) as client:
        listed = client.list_offsets({("t", 0), ("t", 1), ("t", 2)})
    assert listed.offsets == {("t", 0): PartitionOffsets(1, 9)}
    assert listed.missing == dict.fromkeys([("t", 1), ("t", 2)], "it has no leader")


def test_no_partitions_are_no_request() -> None:
    with cluster(Script()) as client:
        assert client.list_offsets(set()) == ListedOffsets()


def test_a_denied_request_is_an_error() -> None:
    script = Script(list_errors=[ErrorCode.cluster_authorization_failed])
    with cluster(script) as client, pytest.raises(AccessDeniedError, match="LIST_GROUPS"):
        client.group_offsets()
    script = Script(
        leaders={("t", 0): 0},
        ends={("t", 0): (1, 9)},
        partition_errors={("t", 0): [ErrorCode.topic_authorization_failed]},
    )
    with cluster(script) as client, pytest.raises(AccessDeniedError, match="DESCRIBE on the"):
        client.list_offsets({("t", 0)})


def test_an_error_that_a_retry_does_not_change_is_raised() -> None:
    script = Script(groups={"a": (0, "Consumer")}, group_errors={"a": [ErrorCode.invalid_request]})
    with cluster(script) as client, pytest.raises(NodeRefusedError, match="OFFSET_FETCH"):
        client.group_offsets()


def test_a_node_without_groups_is_refused() -> None:
    nodes: list[ScriptedNode] = []
    answers: dict[ApiKey, Answer] = {ApiKey.METADATA: Broker(Script(), 0, nodes).answer_metadata}
    apis = {key: api for key, api in APIS.items() if key != ApiKey.LIST_GROUPS}
    nodes.append(ScriptedNode(answers, apis=apis))
    with (
        nodes[0] as one,
        closing(BrokerClient(parse_addresses(one.address), timeout_ms=PATIENCE_MS)) as client,
        pytest.raises(NodeRefusedError, match="give the address of a broker"),
    ):
        client.group_offsets()


def test_brokers_of_two_clusters_are_refused() -> None:
    script = Script(groups={"a": (0, "Consumer")}, cluster_ids={0: "one"})
    with cluster(script, broker_count=1) as client:
        assert client.group_offsets() == []
        script.cluster_ids[0] = "two"
        with pytest.raises(WrongClusterError):
            client.group_offsets()
