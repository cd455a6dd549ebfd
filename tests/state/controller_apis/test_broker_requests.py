"""Requests of brokers to a node: registration, heartbeats, ISRs, producer ids, envelopes."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.support.controller_nodes import (
    ControllerNodes,
    controller_nodes,
    controller_of,
    eventually,
)
from tests.support.request_builder import newest, request, response_class

from raftlog.node.access import ANONYMOUS, AccessTable, Principal, Rights, forwarded_principal
from raftlog.types import Operation
from raftlog.wire import (
    ApiKey,
    Listener,
    RequestHeader,
    decode,
    decode_response_header,
    encode,
    encode_request_header,
)
from raftlog.wire.errors import MalformedMessageError
from raftlog_state.controller_apis.envelope import encode_principal, parse_principal
from raftlog_state.controller_apis.tokens import timestamp
from raftlog_state.image import BrokerRow

BROKER = 7
INCARNATION = "AAAAAAAAAAAAAAAAAAAAxQ"
DIRECTORY = "BBBBBBBBBBBBBBBBBBBBBQ"
ALICE = b"\x00\x00\x05User\x06alice\x00\x00"
BY_TOKEN = b"\x00\x00\x05User\x06alice\x01\x00"
"""Principal ``User:alice``, as a broker serializes it, and authenticated by a delegation token."""


def run(
    home: Path, check: Callable[[ControllerNodes], Awaitable[None]], *, extra: str = ""
) -> None:
    async def run_node() -> None:
        async with controller_nodes(home, extra=extra) as nodes:
            await nodes.until_active()
            await check(nodes)

    asyncio.run(run_node())


async def register(nodes: ControllerNodes, **differing: Any) -> Any:
    values: dict[str, Any] = {
        "broker_id": BROKER,
        "cluster_id": nodes.nodes[0].node.log_identity.cluster_id,
        "incarnation_id": INCARNATION,
        "listeners": [{"name": "CLIENT", "host": "h", "port": 9092, "security_protocol": 0}],
        "features": [
            {"name": "metadata.version", "min_supported_version": 7, "max_supported_version": 30},
            *(
                {"name": name, "min_supported_version": 0, "max_supported_version": 2}
                for name in (
                    "eligible.leader.replicas.version",
                    "group.version",
                    "kraft.version",
                    "share.version",
                    "streams.version",
                    "transaction.version",
                )
            ),
        ],
        "log_dirs": [DIRECTORY],
    }
    return await nodes.admin(ApiKey.BROKER_REGISTRATION, **values | differing)


async def beat(nodes: ControllerNodes, epoch: int, offset: int, **more: Any) -> Any:
    return await nodes.admin(
        ApiKey.BROKER_HEARTBEAT,
        broker_id=BROKER,
        broker_epoch=epoch,
        current_metadata_offset=offset,
        **more,
    )


async def unfenced(nodes: ControllerNodes) -> int:
    """Register and unfence the broker; return its epoch."""
    registered = await register(nodes)
    assert registered.error_code is ErrorCode.none
    reply = await beat(nodes, registered.broker_epoch, registered.broker_epoch)
    assert (reply.error_code, reply.is_fenced) == (ErrorCode.none, False)
    return int(registered.broker_epoch)


def test_a_broker_is_unfenced_once_it_has_replayed_its_registration(tmp_path: Path) -> None:
    async def check(nodes: ControllerNodes) -> None:
        registered = await register(nodes)
        epoch = registered.broker_epoch
        lagging = await beat(nodes, epoch, epoch - 1)
        assert (lagging.is_caught_up, lagging.is_fenced) == (False, True)
        level = await beat(nodes, epoch, epoch)
        assert (level.is_caught_up, level.is_fenced) == (True, False)
        stale = await beat(nodes, epoch - 1, epoch)
        assert stale.error_code is ErrorCode.stale_broker_epoch
        stop = await beat(nodes, epoch, epoch, want_shut_down=True)
        assert stop.should_shut_down, "it leads no partition"

        other = await register(nodes, cluster_id="another cluster")
        assert other.error_code is ErrorCode.inconsistent_cluster_id
        removed = await nodes.admin(ApiKey.UNREGISTER_BROKER, broker_id=BROKER)
        assert removed.error_code is ErrorCode.none
        unknown = await nodes.admin(ApiKey.UNREGISTER_BROKER, broker_id=BROKER)
        assert unknown.error_code is ErrorCode.broker_id_not_registered

    run(tmp_path, check)


def test_the_version_of_the_quorum_is_that_of_its_control_records(tmp_path: Path) -> None:
    async def check(nodes: ControllerNodes) -> None:
        assert controller_of(nodes.nodes[0]).kraft_version == 1
        codes = []
        for level, kind in ((0, 2), (1, 1)):
            update = {"feature": "kraft.version", "max_version_level": level, "upgrade_type": kind}
            updated = await nodes.admin(ApiKey.UPDATE_FEATURES, feature_updates=[update])
            codes.append(updated.error_code)
        assert codes == [ErrorCode.invalid_update_version, ErrorCode.none]
        old = {"name": "metadata.version", "min_supported_version": 7, "max_supported_version": 30}
        registered = await register(nodes, features=[old])
        assert registered.error_code is ErrorCode.unsupported_version

    run(tmp_path, check)


def test_a_second_incarnation_is_refused_while_the_first_is_in_contact(tmp_path: Path) -> None:
    async def check(nodes: ControllerNodes) -> None:
        await unfenced(nodes)
        second = await register(nodes, incarnation_id="AAAAAAAAAAAAAAAAAAAAyQ")
        assert second.error_code is ErrorCode.duplicate_broker_registration

    run(tmp_path, check)


def test_a_broker_without_heartbeats_is_fenced(tmp_path: Path) -> None:
    async def check(nodes: ControllerNodes) -> None:
        await unfenced(nodes)
        state = controller_of(nodes.nodes[0]).state
        await eventually(lambda: state.find(BrokerRow, BROKER).fenced)

    run(tmp_path, check, extra="session_timeout_ms = 200\n")


def test_blocks_of_producer_ids_do_not_overlap(tmp_path: Path) -> None:
    async def check(nodes: ControllerNodes) -> None:
        epoch = await unfenced(nodes)
        found = [
            await nodes.admin(ApiKey.ALLOCATE_PRODUCER_IDS, broker_id=BROKER, broker_epoch=at)
            for at in (epoch, epoch, epoch - 1)
        ]
        assert [one.error_code for one in found] == [
            ErrorCode.none,
            ErrorCode.none,
            ErrorCode.stale_broker_epoch,
        ]
        assert [(one.producer_id_start, one.producer_id_len) for one in found[:2]] == [
            (0, 1000),
            (1000, 1000),
        ]

    run(tmp_path, check)


def test_the_leader_alters_its_isr_with_the_epochs_that_it_knows(tmp_path: Path) -> None:
    async def check(nodes: ControllerNodes) -> None:
        epoch = await unfenced(nodes)
        topic = {"name": "a", "num_partitions": 1, "replication_factor": 1}
        created = await nodes.admin(ApiKey.CREATE_TOPICS, topics=[topic])
        topic_id = created.topics[0].topic_id

        async def alter(partition_epoch: int, version: int, broker_epoch: int = epoch) -> Any:
            partition = {
                "partition_index": 0,
                "leader_epoch": 0,
                "partition_epoch": partition_epoch,
                "new_isr_with_epochs": [{"broker_id": BROKER, "broker_epoch": epoch}],
                "new_isr": (BROKER,),
            }
            return await nodes.admin(
                ApiKey.ALTER_PARTITION,
                version,
                broker_id=BROKER,
                broker_epoch=broker_epoch,
                topics=[{"topic_id": topic_id, "partitions": [partition]}],
            )

        for version in (2, 3):
            response = await alter(0, version)
            (found,) = response.topics[0].partitions
            assert (found.error_code, found.leader_id, found.isr) == (
                ErrorCode.none,
                BROKER,
                (BROKER,),
            )
        ahead = await alter(5, 3)
        assert ahead.topics[0].partitions[0].error_code is ErrorCode.not_controller
        stale = await alter(0, 3, epoch - 1)
        assert stale.error_code is ErrorCode.stale_broker_epoch

        directories = await nodes.admin(
            ApiKey.ASSIGN_REPLICAS_TO_DIRS,
            broker_id=BROKER,
            broker_epoch=epoch,
            directories=[
                {
                    "id_": DIRECTORY,
                    "topics": [
                        {
                            "topic_id": topic_id,
                            "partitions": [{"partition_index": 0}, {"partition_index": 1}],
                        }
                    ],
                }
            ],
        )
        (of_topic,) = directories.directories[0].topics
        assert [one.error_code for one in of_topic.partitions] == [
            ErrorCode.none,
            ErrorCode.unknown_topic_or_partition,
        ]

    run(tmp_path, check)


def test_reassignments_and_elections(tmp_path: Path) -> None:
    async def check(nodes: ControllerNodes) -> None:
        await nodes.add_brokers(1, 2)
        assignment = {"partition_index": 0, "broker_ids": (1,)}
        topic = {
            "name": "a",
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": [assignment],
        }
        await nodes.admin(ApiKey.CREATE_TOPICS, topics=[topic])

        async def reassign(replicas: tuple[int, ...] | None) -> ErrorCode:
            partition = {"partition_index": 0, "replicas": replicas}
            response = await nodes.admin(
                ApiKey.ALTER_PARTITION_REASSIGNMENTS,
                topics=[{"name": "a", "partitions": [partition]}],
            )
            code: ErrorCode = response.responses[0].partitions[0].error_code
            return code

        async def ongoing() -> list[Any]:
            response = await nodes.admin(ApiKey.LIST_PARTITION_REASSIGNMENTS, topics=None)
            return [one for topic in response.topics for one in topic.partitions]

        assert await reassign((2,)) is ErrorCode.none
        (found,) = await ongoing()
        assert (found.adding_replicas, found.removing_replicas) == ((2,), (1,))
        assert await reassign(None) is ErrorCode.none
        assert await reassign(None) is ErrorCode.no_reassignment_in_progress
        assert not await ongoing()
        elected = await nodes.admin(
            ApiKey.ELECT_LEADERS,
            election_type=0,
            topic_partitions=[{"topic": "a", "partitions": (0, 9)}],
        )
        (of_topic,) = elected.replica_election_results
        assert [(one.partition_id, one.error_code) for one in of_topic.partition_result] == [
            (0, ErrorCode.election_not_needed),
            (9, ErrorCode.unknown_topic_or_partition),
        ]

    run(tmp_path, check)


# --- forwarded requests ---------------------------------------------------------------------------


def forwarded(key: ApiKey, body: Any, version: int | None = None) -> dict[str, Any]:
    version = newest(key) if version is None else version
    header = RequestHeader(api_key=key, api_version=version, correlation_id=77, client_id="c")
    data = encode_request_header(header) + encode(body, version)
    return {"request_data": data, "request_principal": ALICE, "client_host_address": b"\x7f\0\0\1"}


def test_a_forwarded_request_is_answered_inside_an_envelope(tmp_path: Path) -> None:
    async def check(nodes: ControllerNodes) -> None:
        await nodes.add_brokers(1)
        key = ApiKey.CREATE_TOPICS
        topic = {"name": "a", "num_partitions": 1, "replication_factor": 1}
        envelope = forwarded(key, request(key, topics=[topic]))
        response = await nodes.admin(ApiKey.ENVELOPE, **envelope)
        assert response.error_code is ErrorCode.none
        correlation_id, start = decode_response_header(response.response_data, key, newest(key))
        assert correlation_id == 77
        created = decode(response_class(key), newest(key), response.response_data, start=start)
        assert created.topics[0].error_code is ErrorCode.none
        assert controller_of(nodes.nodes[0]).state.topic("a") is not None

        heartbeat = request(ApiKey.BROKER_HEARTBEAT, broker_id=1)
        not_of_clients = forwarded(ApiKey.BROKER_HEARTBEAT, heartbeat)
        for wrong in (
            not_of_clients,
            envelope | {"request_data": b"\x00\x13\x00\x07"},
            envelope | {"request_data": envelope["request_data"] + b"more"},
            envelope | {"request_principal": b"\x00\x01\x05User\x06alice\x00\x00"},
        ):
            refused = await nodes.admin(ApiKey.ENVELOPE, **wrong)
            assert refused.error_code is ErrorCode.invalid_request
        anonymous = await nodes.admin(ApiKey.ENVELOPE, **envelope | {"request_principal": None})
        assert anonymous.error_code is ErrorCode.principal_deserialization_failure

        controller_of(nodes.nodes[0]).begin_shutdown()

    run(tmp_path, check)


@pytest.mark.parametrize("key", [ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.ALTER_CONFIGS])
def test_only_a_broker_adds_directories_to_be_cordoned(tmp_path: Path, key: ApiKey) -> None:
    """A broker knows whether it has them, and forwards a change that it has validated."""
    config: dict[str, Any] = {"name": "cordoned.log.dirs", "value": "/a"}
    if key == ApiKey.INCREMENTAL_ALTER_CONFIGS:
        config["config_operation"] = 0
    resources = [{"resource_type": 4, "resource_name": str(BROKER), "configs": [config]}]

    async def check(nodes: ControllerNodes) -> None:
        await unfenced(nodes)
        direct = await nodes.admin(key, resources=resources)
        by_standby = await forward(nodes, key, encode_principal("alice"), resources=resources)
        for refused in (direct, by_standby):
            assert refused.responses[0].error_code is ErrorCode.invalid_config
            assert "must be a subset" in refused.responses[0].error_message
        by_broker = await forward(nodes, key, resources=resources)
        assert by_broker.responses[0].error_code is ErrorCode.none
        state = controller_of(nodes.nodes[0]).state
        assert state.config(4, str(BROKER), "cordoned.log.dirs") == "/a"

    run(tmp_path, check)


def test_the_name_of_a_principal() -> None:
    assert parse_principal(ALICE) == ("alice", False, False)
    standby = encode_principal("alice")
    assert standby[: len(ALICE) - 1] == ALICE[:-1], "Kafka skips the tagged field after it"
    assert parse_principal(standby) == ("alice", False, True)
    assert parse_principal(encode_principal("é" * 200)) == ("é" * 200, False, True)
    assert parse_principal(BY_TOKEN) == ("alice", True, False)
    not_utf8, without_type = b"\x00\x00\x05User\x02\xff\x00\x00", b"\x00\x00\x00\x02a\x00\x00"
    group = b"\x00\x00\x06Group\x02g\x00\x00"
    for data in (b"", ALICE[:-3], not_utf8, without_type, group):
        with pytest.raises(MalformedMessageError):
            parse_principal(data)


def test_a_forwarded_request_has_the_rights_of_its_own_principal() -> None:
    access = AccessTable(admin=("operator",), describe=("viewer",), nodes={1: "broker"})
    broker = Principal(
        name="broker", node_id=1, listener=Listener.VOTERS, rights=Rights.VOTE | Rights.DESCRIBE
    )
    admin = forwarded_principal(broker, "operator", access)
    assert admin.may(Operation.ALTER)
    assert not admin.is_node
    assert not forwarded_principal(broker, "viewer", access).may(Operation.ALTER)
    assert not forwarded_principal(broker, "stranger", access).may(Operation.DESCRIBE)
    everyone = AccessTable(admin=("*",))
    assert forwarded_principal(broker, "stranger", everyone).may(Operation.ALTER)
    unauthenticated = forwarded_principal(broker, "ANONYMOUS", everyone)
    assert not unauthenticated.may(Operation.DESCRIBE), "a pattern matches authenticated names only"
    named = AccessTable(describe=(ANONYMOUS,))
    assert forwarded_principal(broker, "ANONYMOUS", named).may(Operation.DESCRIBE)
    all_rights = Rights.VOTE | Rights.ADMIN | Rights.DESCRIBE
    plain = Principal(name=ANONYMOUS, node_id=None, listener=Listener.VOTERS, rights=all_rights)
    found = forwarded_principal(plain, "stranger", AccessTable())
    assert found.may(Operation.ALTER), "without TLS every client has the rights of the listener"
    found = forwarded_principal(plain, "stranger", AccessTable(), are_clients_known=True)
    assert not found.may(Operation.DESCRIBE), "a standby has authenticated it"
    assert not found.is_node


# --- delegation tokens ----------------------------------------------------------------------------


def test_a_time_after_the_year_9999_is_sent_as_its_end() -> None:
    """A log may have a token without an end; kio has times as those of Python."""
    assert timestamp(2**63 - 1) == timestamp(253_402_300_799_999)


async def forward(nodes: ControllerNodes, key: ApiKey, caller: bytes = ALICE, **values: Any) -> Any:
    """Return the response to a request of a user that a broker forwards."""
    envelope = forwarded(key, request(key, **values)) | {"request_principal": caller}
    response = await nodes.admin(ApiKey.ENVELOPE, **envelope)
    if response.error_code is not ErrorCode.none:
        return response
    _, start = decode_response_header(response.response_data, key, newest(key))
    return decode(response_class(key), newest(key), response.response_data, start=start)


def test_a_user_creates_renews_and_expires_tokens_through_a_broker(tmp_path: Path) -> None:
    secret = tmp_path / "tokens.key"
    secret.write_text("a secret key\n")
    secret.chmod(0o600)
    week, day = timedelta(days=7), timedelta(days=1)

    async def check(nodes: ControllerNodes) -> None:
        created = await forward(
            nodes,
            ApiKey.CREATE_DELEGATION_TOKEN,
            renewers=[{"principal_type": "User", "principal_name": "bob"}],
            max_lifetime=timedelta(milliseconds=-1),
        )
        assert (created.error_code, created.principal_name) == (ErrorCode.none, "alice")
        assert created.max_timestamp - created.issue_timestamp == week
        assert created.expiry_timestamp - created.issue_timestamp == day
        expected = hmac.digest(b"a secret key", created.token_id.encode(), "sha512")
        assert created.hmac == expected, "as Kafka's brokers compute it"

        described = await forward(nodes, ApiKey.DESCRIBE_DELEGATION_TOKEN, owners=None)
        assert [one.token_id for one in described.tokens] == [created.token_id]
        mallory = b"\x00\x00\x05User\x08mallory\x00\x00"
        others = await forward(nodes, ApiKey.DESCRIBE_DELEGATION_TOKEN, mallory, owners=None)
        assert (others.error_code, others.tokens) == (ErrorCode.none, ())

        renewal = {"hmac": created.hmac, "renew_period": timedelta(milliseconds=-1)}
        renewed = await forward(nodes, ApiKey.RENEW_DELEGATION_TOKEN, **renewal)
        assert renewed.error_code is ErrorCode.none
        refused = await forward(nodes, ApiKey.RENEW_DELEGATION_TOKEN, mallory, **renewal)
        assert refused.error_code is ErrorCode.delegation_token_owner_mismatch
        by_token = await forward(nodes, ApiKey.RENEW_DELEGATION_TOKEN, BY_TOKEN, **renewal)
        assert by_token.error_code is ErrorCode.delegation_token_request_not_allowed

        end = {"hmac": created.hmac, "expiry_time_period": timedelta(milliseconds=-1)}
        expired = await forward(nodes, ApiKey.EXPIRE_DELEGATION_TOKEN, **end)
        assert expired.error_code is ErrorCode.none
        again = await forward(nodes, ApiKey.EXPIRE_DELEGATION_TOKEN, **end)
        assert again.error_code is ErrorCode.delegation_token_not_found
        direct = await nodes.admin(ApiKey.DESCRIBE_DELEGATION_TOKEN, owners=None)
        assert direct.error_code is ErrorCode.delegation_token_request_not_allowed
        assert "a secret key" not in nodes.nodes[0].all_lines

    run(tmp_path, check, extra=f'token_secret = "{secret}"\n')


def test_without_a_secret_key_there_are_no_tokens(tmp_path: Path) -> None:
    async def check(nodes: ControllerNodes) -> None:
        created = await forward(nodes, ApiKey.CREATE_DELEGATION_TOKEN)
        assert created.error_code is ErrorCode.delegation_token_auth_disabled

    run(tmp_path, check)
