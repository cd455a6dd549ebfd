"""Nodes with malformed responses, or records above the high watermark: the client rejects them."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.add_raft_voter.v1.response import AddRaftVoterResponse
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v13 import response as metadata
from tests.support.batch_encoding import NewRecordBatch, encode_batch
from tests.support.scripted_controller import Controller
from tests.support.scripted_node import Answer, ScriptedNode

import raftlog
from raftlog.client.followed_records import FollowedRecords
from raftlog.client.remote.log import RemoteLog
from raftlog.client.remote.voters import NodeAddress, add_voter
from raftlog.clock import Clock
from raftlog.errors import (
    AccessDeniedError,
    CorruptBatchError,
    LogGapError,
    NodeRefusedError,
    QuorumUnavailableError,
    RaftlogError,
    VoterChangeError,
)
from raftlog.log.reading.reads import Isolation
from raftlog.records.record import NewRecord
from raftlog.types import ReplicaKey
from raftlog.wire import ApiKey, latest_schemas
from raftlog.wire.log_identity import duration, int32, name, node


def batch(base_offset: int, *values: bytes) -> bytes:
    records = tuple(NewRecord(None, value) for value in values)
    new = NewRecordBatch(records=records, base_timestamp_ms=1000)
    return encode_batch(new, base_offset=base_offset, leader_epoch=1)


def values(log: RemoteLog, end: int) -> tuple[list[bytes | None], RaftlogError | None]:
    """Return the values that were read up to an offset, and the error that ended the read."""
    found: list[bytes | None] = []
    try:
        for one in log.batches(0, end):
            found += [record.value for record in one.records()]
    except RaftlogError as error:
        return found, error
    return found, None


def test_records_above_the_high_watermark_are_never_read() -> None:
    data = batch(0, b"a", b"b") + batch(2, b"c") + batch(3, b"not committed")
    controller = Controller(data, high_watermark=3)
    with controller.node as peer:
        log = raftlog.follow(peer.address, timeout_ms=300)
        assert log.log_end_offset == 3
        assert values(log, 3) == ([b"a", b"b", b"c"], None)
        found, error = values(log, 4)
        assert found == [b"a", b"b", b"c"]
        assert isinstance(error, QuorumUnavailableError)


@pytest.mark.parametrize(
    ("data", "whole", "kind"),
    [
        (batch(0, b"a") + batch(5, b"b"), [b"a"], LogGapError),
        (batch(0, b"a") + batch(0, b"b"), [b"a"], LogGapError),
        (batch(0, b"a") + batch(1, b"b")[:-1] + b"X", [b"a"], CorruptBatchError),
        (b"no batch at all, and long enough for one to be looked for in it" * 3, [], RaftlogError),
        (batch(0, b"a")[:30], [], CorruptBatchError),
    ],
)
def test_damage_is_raised_after_the_valid_records(
    data: bytes, whole: list[bytes], kind: type[RaftlogError]
) -> None:
    with Controller(data, high_watermark=9).node as peer:
        found, error = values(raftlog.follow(peer.address, timeout_ms=300), 9)
        assert found == whole
        assert isinstance(error, kind)


def test_a_read_of_storage_that_fails_for_a_moment_is_repeated() -> None:
    """As by Kafka's clients: an object store may be unreachable, or another node leads soon."""
    data, error = batch(0, b"a"), ErrorCode.kafka_storage_error
    controller = Controller(data, high_watermark=1, is_often_busy=True, error=error)
    with controller.node as peer:
        log = raftlog.follow(peer.address, timeout_ms=20_000)
        assert values(log, 1) == ([b"a"], None)
        log.close()


def test_storage_that_fails_until_the_timeout_is_the_reason_of_the_error() -> None:
    controller = Controller(high_watermark=1)
    controller.fail_every_fetch(ErrorCode.kafka_storage_error)
    with controller.node as peer:
        log = raftlog.follow(peer.address, timeout_ms=500)
        found, error = values(log, 1)
        assert (found, type(error)) == ([], QuorumUnavailableError)
        assert "FETCH: the node could not use its disk or its object store" in str(error)
        log.close()


def test_damage_of_the_log_on_a_node_ends_a_read_that_follows_the_log() -> None:
    """As a ``KafkaException`` of Kafka's consumer: a retry cannot repair the log."""
    controller = Controller(batch(0, b"a"), high_watermark=1)
    controller.fail_every_fetch(ErrorCode.corrupt_message)
    with controller.node as peer:
        log = raftlog.follow(peer.address, timeout_ms=20_000)
        isolation = Isolation.READ_UNCOMMITTED
        records = FollowedRecords(lambda: log, 0, None, isolation, Clock(), lambda: False)
        for read in (lambda: list(records), lambda: list(records.to_batches())):
            with pytest.raises(NodeRefusedError) as caught:
                read()
            assert caught.value.message() == (
                f"{peer.address} answered FETCH with Kafka error code 2: the log on node 1 "
                f"({peer.address}), or one of its remote segments, is damaged or missing; run "
                "`raftlog doctor` with the node's node.toml there: it finds the damage and names "
                "the next command"
            )
        log.close()


def test_a_voter_change_that_does_not_fit_on_the_disk_is_refused_with_the_reason() -> None:
    controller = Controller(high_watermark=1)
    refusal = AddRaftVoterResponse(
        throttle_time=duration(0),
        error_code=ErrorCode.kafka_storage_error,
        error_message="the disk is full",
    )
    controller.node.add_answers({ApiKey.ADD_RAFT_VOTER: lambda version, body: refusal})
    with controller.node as peer:
        log = raftlog.follow(peer.address, timeout_ms=20_000)
        address = NodeAddress(listener="CONTROLLER", host="c2", port=9093)
        with pytest.raises(VoterChangeError, match="the disk is full"):
            add_voter(log._quorum, ReplicaKey(2, "wP1XW_XDTjOcp3STS81TJA"), [address])
        log.close()


def test_a_damaged_response_that_was_waited_for_is_not_read_again() -> None:
    controller = Controller(high_watermark=0)
    with controller.node as peer:
        log = raftlog.follow(peer.address, timeout_ms=300)
        assert log.log_end_offset == 0
        controller.data, controller.high_watermark = batch(0, b"a")[:-1] + b"X", 1
        assert log._quorum.begin_wait(0).result()
        controller.data = batch(0, b"a")
        found, error = values(log, 1)
        assert (found, type(error)) == ([], CorruptBatchError)
        assert values(log, 1) == ([b"a"], None)


def _node_of(answer: Answer) -> ScriptedNode:
    return ScriptedNode({ApiKey.METADATA: answer})


def _metadata(topics: tuple[Any, ...]) -> Answer:
    return lambda version, body: latest_schemas.MetadataResponse(
        throttle_time=duration(0),
        brokers=(),
        cluster_id="cluster",
        topics=topics,
        error_code=ErrorCode.none,
    )


def _topic(text: str) -> metadata.MetadataResponseTopic:
    return metadata.MetadataResponseTopic(
        error_code=ErrorCode.none, name=name(text), topic_id=None, partitions=()
    )


def test_a_node_with_several_topics_is_no_quorum() -> None:
    two, none = _node_of(_metadata((_topic("a"), _topic("b")))), _node_of(_metadata(()))
    with two as peer, pytest.raises(NodeRefusedError, match="is a broker with 2 topics"):
        raftlog.connect(peer.address, timeout_ms=300)
    with none as peer, pytest.raises(AccessDeniedError, match="may not describe the topic"):
        raftlog.connect(peer.address, timeout_ms=300)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"\x7f\xff\xff\xff", "frame"),
        (b"\x00\x00\x00\x05\xff\xff\xff\xff\x00", "correlation id -1, expected"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "frame"),
        (None, "closed"),
    ],
)
def test_a_server_of_another_protocol_is_refused(answer: bytes | None, words: str) -> None:
    for asked in (ApiKey.METADATA, ApiKey.API_VERSIONS):
        node = ScriptedNode({asked: lambda version, body: answer})
        with node as peer, pytest.raises(QuorumUnavailableError, match=words):
            raftlog.connect(peer.address, timeout_ms=200)


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (ApiKey.API_VERSIONS, b"\x00\x00\x00\x01\x00"),
        (ApiKey.METADATA, b"\x00\x00\x00\x04\x00\x00\x00\x01"),
    ],
)
def test_a_response_with_a_truncated_header_is_an_error_of_its_request(
    asked: ApiKey, answer: bytes
) -> None:
    node = ScriptedNode({asked: lambda version, body: answer})
    with node as peer, pytest.raises(QuorumUnavailableError, match="ResponseHeader"):
        raftlog.connect(peer.address, timeout_ms=200)


def test_one_correct_node_among_them_is_enough() -> None:
    data = batch(0, b"a")
    liar = _node_of(lambda version, body: b"\xff" * 8)
    with Controller(data, high_watermark=1).node as honest, liar as peer:
        log = raftlog.follow(f"{peer.address},{honest.address}", timeout_ms=5000)
        assert values(log, 1) == ([b"a"], None)


@pytest.mark.parametrize(
    ("host", "number"), [("127.0.0.1", 70_000), ("127.0.0.1", -1), ("a..b", 9092), ("a\0b", 9092)]
)
def test_an_invalid_advertised_address_is_ignored(host: str, number: int) -> None:
    topic = metadata.MetadataResponseTopic(
        error_code=ErrorCode.none,
        name=name("orders"),
        topic_id=None,
        partitions=(
            metadata.MetadataResponsePartition(
                error_code=ErrorCode.none,
                partition_index=int32(0),
                leader_id=node(7),
                leader_epoch=int32(1),
                replica_nodes=(),
                isr_nodes=(),
                offline_replicas=(),
            ),
        ),
    )
    broker = metadata.MetadataResponseBroker(
        node_id=node(7), host=host, port=int32(number), rack=None
    )
    metadata_response = latest_schemas.MetadataResponse(
        throttle_time=duration(0),
        brokers=(broker,),
        cluster_id="cluster",
        topics=(topic,),
        error_code=ErrorCode.none,
    )
    with (
        _node_of(lambda version, body: metadata_response) as peer,
        pytest.raises(QuorumUnavailableError, match="node 7 is the leader"),
    ):
        raftlog.connect(peer.address, timeout_ms=300)
