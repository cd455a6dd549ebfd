"""A controller hosted in nodes: claim, bootstrap records, failover, and requests to any node."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Coroutine
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias, cast

import pytest
from kio.schema.envelope.v0.request import EnvelopeRequest
from kio.schema.envelope.v0.response import EnvelopeResponse
from kio.schema.errors import ErrorCode
from tests.support.controller_context import found
from tests.support.controller_nodes import (
    ControllerNodes,
    active_epoch,
    ask,
    controller_nodes,
    controller_of,
    eventually,
    hosted,
)
from tests.support.controllers import Listener, hosted_on
from tests.support.dropping_proxy import DroppingProxy
from tests.support.quorum_processes import free_ports
from tests.support.request_builder import newest, request, response_class
from tests.support.served_node import ServedNode
from tests.support.shared_log import SharedLog

from raftlog.errors import OptionError
from raftlog.node.access import Principal, Rights
from raftlog.wire import (
    ApiKey,
    RequestHeader,
    decode,
    decode_versions_response,
    encode,
    encode_request_header,
    encode_response_header,
    encode_versions_request,
)
from raftlog.wire import Listener as Listeners
from raftlog_state.controller import (
    ControllerState,
    CreateTopic,
    PendingState,
    RegisterBroker,
    UnfenceBroker,
    write_change,
)
from raftlog_state.controller.activation import new_cluster_features, write_bootstrap_records
from raftlog_state.controller.features import FeatureUpdate, UpgradeType, update_features
from raftlog_state.controller.heartbeats import BrokerHeartbeat
from raftlog_state.controller_apis import HANDLERS, HostedController
from raftlog_state.controller_apis.bootstrap import bootstrap_bytes, bootstrap_features
from raftlog_state.controller_apis.brokers import handle_unregister_broker
from raftlog_state.controller_apis.envelope import ForwardedRequest, forward_request
from raftlog_state.errors import ControllerTimeoutError, NotControllerError
from raftlog_state.image import BrokerRow, TopicRow
from raftlog_state.records import (
    NO_OP_VALUE,
    AbortTransactionRecord,
    BeginTransactionRecord,
    ConfigRecord,
    DecodedRecord,
    FeatureLevelRecord,
    MetadataRecord,
    TopicRecord,
)
from raftlog_state.records import encode as encode_record


def create(*names: str) -> Any:
    """Return a request for topics with one partition on broker 1."""
    assignment = {"partition_index": 0, "broker_ids": (1,)}
    return request(
        ApiKey.CREATE_TOPICS,
        topics=[
            {
                "name": name,
                "num_partitions": -1,
                "replication_factor": -1,
                "assignments": [assignment],
            }
            for name in names
        ],
    )


def test_a_request_is_answered_when_its_records_are_committed() -> None:
    async def check() -> None:
        shared = SharedLog()
        controller = hosted_on(shared.node(1))
        shared.elect(1)
        shared.deliver()
        shared.committed_max = shared.end_offset
        change = RegisterBroker(broker_id=1, endpoints={"A": "h:1"})
        write = asyncio.create_task(controller.write("test", partial(write_change, change)))
        read = asyncio.create_task(
            controller.read("test", lambda state: state.find(BrokerRow, 1) is not None)
        )
        for _ in range(10):
            await asyncio.sleep(0)
        assert not write.done()
        assert not read.done(), "it has read what is not committed"
        level = FeatureUpdate("transaction.version", 1, UpgradeType.SAFE_DOWNGRADE)
        update = asyncio.create_task(controller.write("test", partial(update_features, [level])))
        await asyncio.sleep(0)
        assert not update.done()
        assert controller.features().finalized["transaction.version"] == 2
        shared.committed_max = None
        shared.deliver()
        await write
        assert await read
        await update
        assert controller.features().finalized["transaction.version"] == 1
        controller.begin_shutdown()

    asyncio.run(check())


def test_a_formatted_release_is_that_of_the_cluster(tmp_path: Path) -> None:
    async def check() -> None:
        features = bootstrap_features("3.7", {})
        bootstrap = bootstrap_bytes(features, written_ms=0)
        async with controller_nodes(tmp_path, bootstrap=bootstrap) as nodes:
            node = await nodes.until_active()
            assert hosted(node).features().finalized == {"metadata.version": 19}
            up = {"feature": "metadata.version", "max_version_level": 30, "upgrade_type": 1}
            updated = await nodes.admin(ApiKey.UPDATE_FEATURES, feature_updates=[up])
            assert updated.error_code is ErrorCode.none
            assert hosted(node).features().finalized == {"metadata.version": 30}

    asyncio.run(check())


@pytest.mark.parametrize(
    ("release", "levels", "reason"),
    [
        ("5.0", {}, "not a release of Kafka"),
        ("4.3", {"metadata.version": 29}, "is that of --release-version"),
        ("4.3", {"no.such.feature": 1}, "Feature no.such.feature not found"),
        ("4.3", {"group.version": 7}, "only supports versions 0-1"),
        ("3.9", {"eligible.leader.replicas.version": 1}, "depends on metadata.version"),
    ],
)
def test_features_that_no_cluster_can_have_are_refused(
    release: str, levels: dict[str, int], reason: str
) -> None:
    with pytest.raises(OptionError, match=reason):
        bootstrap_features(release, levels)


def test_the_bootstrap_records_are_those_of_kafka_in_its_order() -> None:
    pending = PendingState(ControllerState(), first_offset=4, leader_epoch=1, rng=random.Random(0))
    write_bootstrap_records(new_cluster_features(), pending)
    levels = [
        (record.name, record.feature_level)
        for one in pending.records
        if isinstance(record := one.record, FeatureLevelRecord)
    ]
    assert levels == [
        ("metadata.version", 30),
        ("eligible.leader.replicas.version", 1),
        ("group.version", 1),
        ("share.version", 1),
        ("streams.version", 1),
        ("transaction.version", 2),
    ]
    minimum = ConfigRecord(resource_type=4, name="min.insync.replicas", value="1")
    assert [one.record for one in pending.records[len(levels) :]] == [minimum]


def codes(response: Any) -> dict[str, ErrorCode]:
    return {topic.name: topic.error_code for topic in response.topics}


def test_a_log_with_records_but_without_a_metadata_version_gets_no_bootstrap_records() -> None:
    """ActivationRecordsGenerator.recordsForNonEmptyLog"""

    async def check() -> None:
        shared, listener = SharedLog(), Listener()
        shared.elect(2)
        topic = TopicRecord(name="a", topic_id="AAAAAAAAAAAAAAAAAAAAxQ")
        shared.append(2, shared.epoch, [encode_record(DecodedRecord(0, topic))], None)
        controller = hosted_on(shared.node(1), listener)
        shared.elect(1)
        end_offset = shared.end_offset
        shared.deliver()
        assert controller.controller.active_epoch is not None
        assert shared.end_offset == end_offset
        assert "Treating the log as version 7." in listener.messages[-1]
        controller.begin_shutdown()

    asyncio.run(check())


@pytest.mark.parametrize("ends", [True, False])
def test_an_aborted_bootstrap_transaction_leaves_the_log_empty(ends: bool) -> None:
    """Aborted by its writer, or open until the claim, which aborts it."""

    async def check() -> None:
        shared = SharedLog()
        shared.elect(2)
        level = FeatureLevelRecord(name="metadata.version", feature_level=30)
        found: list[MetadataRecord] = [BeginTransactionRecord(name="Bootstrap records"), level]
        if ends:
            found.append(AbortTransactionRecord(reason="test"))
        values = [encode_record(DecodedRecord(0, one)) for one in found]
        shared.append(2, shared.epoch, values, None)
        controller = hosted_on(shared.node(1))
        shared.elect(1)
        shared.deliver()
        assert controller.features().finalized == new_cluster_features()
        controller.begin_shutdown()

    asyncio.run(check())


def received(listener: Listeners, key: ApiKey, *names: str) -> Any:
    """Return a request for topics as a node receives it on a listener for one purpose."""
    rights = Rights.ADMIN | Rights.DESCRIBE
    found = SimpleNamespace(
        body=create(*names),
        version=newest(key),
        principal=Principal(name="ana", node_id=None, listener=listener, rights=rights),
        header=RequestHeader(
            api_key=key, api_version=newest(key), correlation_id=7, client_id=None
        ),
    )
    found.frame = encode_request_header(found.header) + encode(found.body, found.version)
    return found


async def ask_on(node: ServedNode, listener: Listeners, key: ApiKey, *names: str) -> Any:
    request = received(listener, key, *names)
    response = await node.node.services[0].handlers[key].handle(request)
    if isinstance(response, bytes):
        return decode(response_class(key), newest(key), response)
    return response


@pytest.mark.slow
def test_a_standby_forwards_the_requests_of_clients_as_a_broker_does(tmp_path: Path) -> None:
    """On the listener for voters it is a controller, which does not forward."""
    key = ApiKey.CREATE_TOPICS

    async def check() -> None:
        async with controller_nodes(tmp_path, 3) as nodes:
            await nodes.add_brokers(1)
            active = await nodes.until_active()
            standby = next(node for node in nodes.nodes if node is not active)
            refused = await ask_on(standby, Listeners.VOTERS, key, "a")
            assert codes(refused) == {"a": ErrorCode.not_controller}
            created = await ask_on(standby, Listeners.CLIENTS, key, "a")
            assert codes(created) == {"a": ErrorCode.none}
            again = await ask(standby, key, create("a", "b"))
            assert codes(again) == {"a": ErrorCode.topic_already_exists, "b": ErrorCode.none}
            failed = [line for line in standby.lines("controller") if "unable" in line["reason"]]
            assert not failed, "a forwarded request is no failed event"

    asyncio.run(check())


@pytest.mark.slow
def test_a_request_whose_response_is_lost_is_sent_again_and_was_executed(tmp_path: Path) -> None:
    """As Kafka's brokers do: the client gets the response to the second execution."""
    key, ports = ApiKey.CREATE_TOPICS, free_ports(6)
    own, advertised = ports[:3], ports[3:]

    async def check() -> None:
        with contextlib.ExitStack() as stack:
            proxies = [
                stack.enter_context(DroppingProxy(*pair))
                for pair in zip(advertised, own, strict=True)
            ]
            async with controller_nodes(tmp_path, 3, ports=own, advertised=advertised) as nodes:
                await nodes.add_brokers(1)
                active = await nodes.until_active()
                standby = next(node for node in nodes.nodes if node is not active)
                proxy = proxies[nodes.nodes.index(active)]
                before = proxy.request_counts.get(ApiKey.ENVELOPE, 0)
                proxy.drop_responses(ApiKey.ENVELOPE)
                found = await ask_on(standby, Listeners.CLIENTS, key, "a")
                assert codes(found) == {"a": ErrorCode.topic_already_exists}
                assert proxy.lost_count == 1
                assert proxy.request_counts[ApiKey.ENVELOPE] == before + 2
                rows = controller_of(active).committed_rows_of(TopicRow)
                assert [row.name for row in rows] == ["a"]

    asyncio.run(check())


Outcome: TypeAlias = Exception | EnvelopeResponse
NO_LEADER = ConnectionError("no leader is known")
LOST = EOFError("the peer closed the connection")
STALE = EnvelopeResponse(response_data=None, error_code=ErrorCode.not_controller)


def outcomes_for(request: Any, *outcomes: Outcome, timeout_ms: int = 30_000) -> tuple[Any, int]:
    """Return a standby's response to a request, if forwarding it has these outcomes, of which the
    last one is repeated; and how often it was sent."""
    left, sent = list(outcomes), []

    async def send(envelope: EnvelopeRequest) -> EnvelopeResponse:
        assert envelope.request_data == request.frame
        sent.append(envelope)
        outcome = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def handle(*_: object) -> object:
        raise NotControllerError(reason="this is a standby")

    async def respond() -> object:
        standby = replace(HANDLERS[ApiKey.CREATE_TOPICS], handle=handle)
        forward = partial(forward_request, request, send, timeout_ms=timeout_ms, pause_ms=0)
        return await standby.respond(cast("HostedController", None), request, forward)

    return asyncio.run(asyncio.wait_for(respond(), 60)), len(sent)


def test_a_request_is_forwarded_until_an_active_controller_responds() -> None:
    request = received(Listeners.CLIENTS, ApiKey.CREATE_TOPICS, "a")
    header = encode_response_header(7, ApiKey.CREATE_TOPICS, newest(ApiKey.CREATE_TOPICS))
    last = EnvelopeResponse(response_data=header + b"body", error_code=ErrorCode.none)
    assert outcomes_for(request, NO_LEADER, STALE, LOST, STALE, last) == (b"body", 5)


@pytest.mark.parametrize("outcome", [NO_LEADER, LOST, STALE])
def test_a_request_without_an_active_controller_times_out(outcome: Outcome) -> None:
    request = received(Listeners.CLIENTS, ApiKey.CREATE_TOPICS, "a")
    response, _ = outcomes_for(request, outcome, timeout_ms=20)
    assert codes(response) == {"a": ErrorCode.request_timed_out}


@pytest.mark.parametrize(
    "outcome",
    [
        EnvelopeResponse(response_data=None, error_code=ErrorCode.cluster_authorization_failed),
        EnvelopeResponse(response_data=b"short", error_code=ErrorCode.none),
    ],
)
def test_an_envelope_that_the_controller_refuses_is_a_server_error(outcome: Outcome) -> None:
    request = received(Listeners.CLIENTS, ApiKey.CREATE_TOPICS, "a")
    response, sent_count = outcomes_for(request, outcome)
    assert (codes(response), sent_count) == ({"a": ErrorCode.unknown_server_error}, 1)


def test_a_forwarded_request_without_a_response_times_out() -> None:
    request = received(Listeners.CLIENTS, ApiKey.CREATE_TOPICS, "a")
    cancelled: list[EnvelopeRequest] = []

    async def send(envelope: EnvelopeRequest) -> EnvelopeResponse:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(envelope)
        raise AssertionError("the event is never set")

    async def check() -> None:
        with pytest.raises(ControllerTimeoutError, match="has not responded within 0 ms"):
            await forward_request(request, send, timeout_ms=0)
        assert len(cancelled) == 1

    asyncio.run(asyncio.wait_for(check(), 60))


def test_the_log_is_an_internal_topic_to_which_no_client_writes(tmp_path: Path) -> None:
    write, read = 1 << 4, 1 << 3

    async def check() -> None:
        async with controller_nodes(tmp_path) as nodes:
            asked = {"topics": None, "include_topic_authorized_operations": True}
            found = await nodes.admin(ApiKey.METADATA, version=10, **asked)
            (topic,) = found.topics
            assert (topic.name, topic.is_internal) == ("__cluster_metadata", True)
            assert topic.topic_authorized_operations & (write | read) == read
            described = await nodes.admin(ApiKey.DESCRIBE_TOPIC_PARTITIONS, topics=[])
            (topic,) = described.topics
            assert topic.is_internal
            assert topic.topic_authorized_operations & (write | read) == read

    asyncio.run(check())


@pytest.mark.slow
def test_a_topic_is_on_every_node_after_a_failover(tmp_path: Path) -> None:
    async def check() -> None:
        async with controller_nodes(tmp_path, 3) as nodes:
            await nodes.add_brokers(1)
            first = await nodes.ask(ApiKey.CREATE_TOPICS, create("a", "b"))
            assert codes(first) == {"a": ErrorCode.none, "b": ErrorCode.none}
            old = await nodes.until_active()
            for node in nodes.nodes:
                if node is not old:
                    refused = await ask_on(node, Listeners.VOTERS, ApiKey.CREATE_TOPICS, "c")
                    assert codes(refused) == {"c": ErrorCode.not_controller}
                    text = f"The active controller appears to be node {old.config.node_id}."
                    assert refused.topics[0].error_message == text

            await old.node.hand_over()
            await eventually(lambda: nodes.active not in (None, old))
            second = await nodes.ask(ApiKey.CREATE_TOPICS, create("a", "c"))
            assert codes(second) == {"a": ErrorCode.topic_already_exists, "c": ErrorCode.none}

            others = ControllerNodes([node for node in nodes.nodes if node is not old])
            await others.until_equal()
            for node in others.nodes:
                state = controller_of(node).state
                assert [state.topic(one) is not None for one in "abc"] == [True] * 3

    asyncio.run(check())


def test_the_first_controller_writes_the_records_of_a_new_cluster(tmp_path: Path) -> None:
    async def check() -> None:
        async with controller_nodes(tmp_path) as nodes:
            node = await nodes.until_active()
            async with await node.connect() as connection:
                body = encode_versions_request(4, software="test", software_version="1")
                connection.ask(ApiKey.API_VERSIONS, 4, body)
                _, answer = await connection.answer(ApiKey.API_VERSIONS, 4)
            versions = decode_versions_response(4, answer).versions
            assert ApiKey.CREATE_TOPICS in versions
            assert ApiKey.PRODUCE not in versions, "only the controller writes"
            finalized = hosted(node).features().finalized
            assert finalized == new_cluster_features()
            epoch = active_epoch(node)

            controller_of(node).begin_shutdown()
            assert epoch is not None
            assert active_epoch(node) is None
            refused = await ask(node, ApiKey.CREATE_TOPICS, create("late"))
            assert codes(refused) == {"late": ErrorCode.request_timed_out}

    asyncio.run(check())


def no_op_count(shared: SharedLog) -> int:
    values = [one.value for batch in shared.batches for one in batch.records()]
    return values.count(NO_OP_VALUE)


def test_an_active_controller_appends_no_op_records_while_nothing_changes() -> None:
    async def check() -> None:
        shared = SharedLog()
        controllers = [hosted_on(shared.node(at), max_idle_interval_ms=1) for at in (1, 2)]
        for leader in (1, 2):
            shared.elect(leader)
            before = no_op_count(shared)

            def are_appended(before: int = before) -> bool:
                shared.deliver()
                return no_op_count(shared) >= before + 3

            await eventually(are_appended)
            assert controllers[leader - 1].controller.active_epoch == shared.epoch
        for one in controllers:
            one.begin_shutdown()

    asyncio.run(check())


@pytest.mark.slow
def test_a_broker_may_have_more_partitions_than_one_request_has_records() -> None:
    """It is fenced when its session is over, and can be unregistered."""

    async def check() -> None:
        shared, now_us = SharedLog(), 0
        shared.batch_bytes_max = 1 << 23
        controller = hosted_on(shared.node(1), session_timeout_ms=80, time_us=lambda: now_us)
        shared.elect(1)
        shared.deliver()
        shared.deliver()

        async def run(handling: Coroutine[Any, Any, Any]) -> Any:
            task = asyncio.create_task(handling)
            while not task.done():
                await asyncio.sleep(0)
                shared.deliver()
            return await task

        def is_fenced() -> bool:
            shared.deliver()
            row = controller.controller.state.find(BrokerRow, 1)
            return row is not None and row.fenced

        for change in (
            RegisterBroker(broker_id=1, endpoints={"A": "h:1"}),
            UnfenceBroker(broker_id=1),
            CreateTopic(topic="a", partitions=5_001),
            CreateTopic(topic="b", partitions=5_001),
        ):
            await run(controller.write("test", partial(write_change, change)))
        row = controller.controller.state.find(BrokerRow, 1)
        assert row is not None
        heartbeat = BrokerHeartbeat(broker_id=1, broker_epoch=row.broker_epoch)
        contact = partial(controller.brokers.heartbeat, heartbeat, now_us=now_us)
        await run(controller.write_in_steps("contact", contact))
        now_us += 90_000
        await eventually(is_fenced)
        assert len(found(controller.controller.state.leaderless_partitions())) == 10_002
        admin = Principal(
            name="admin", node_id=None, listener=Listeners.CLIENTS, rights=Rights.ADMIN
        )
        body = request(ApiKey.UNREGISTER_BROKER, broker_id=1)
        removed = await run(
            handle_unregister_broker(
                controller, ForwardedRequest(body, 0, admin, is_from_broker=True)
            )
        )
        assert removed.error_code is ErrorCode.none
        assert controller.controller.state.find(BrokerRow, 1) is None
        controller.begin_shutdown()

    asyncio.run(check())
