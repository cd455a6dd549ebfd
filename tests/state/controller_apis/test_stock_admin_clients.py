"""Admin client of librdkafka against a node with a controller."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from tests.support.controller_nodes import controller_nodes, controller_of

import raftlog
from raftlog.errors import LogReadOnlyError
from raftlog_state import apply_changes

LISTENER = {"CLIENT": "PLAINTEXT://localhost:9092"}


def change_everything(address: str) -> dict[str, Any]:
    """Create, alter and delete, and return what the client describes."""
    client = AdminClient({"bootstrap.servers": address})

    def done(futures: dict[Any, Future[Any]]) -> dict[Any, Any]:
        return {key: future.result(20) for key, future in futures.items()}

    names = ("orders", "payments", "old")
    done(client.create_topics([NewTopic(name, 2, 1) for name in names]))
    with pytest.raises(KafkaException, match="Topic 'orders' already exists"):
        done(client.create_topics([NewTopic("orders", 2, 1)]))
    done(client.create_partitions([NewPartitions("orders", 4)]))
    done(client.delete_topics(["old"]))
    retention = ConfigEntry("retention.ms", "77", incremental_operation=AlterConfigOpType.SET)
    orders = ConfigResource(ResourceType.TOPIC, "orders", incremental_configs=[retention])
    done(client.incremental_alter_configs([orders]))
    (described,) = done(
        client.describe_configs([ConfigResource(ResourceType.TOPIC, "orders")])
    ).values()
    acl = AclBinding(
        ResourceType.TOPIC,
        "orders",
        ResourcePatternType.LITERAL,
        "User:ana",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    done(client.create_acls([acl]))
    anything: Any = None
    every_rule = AclBindingFilter(
        ResourceType.ANY,
        anything,
        ResourcePatternType.ANY,
        anything,
        anything,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    acls = client.describe_acls(every_rule).result(20)
    return {"retention": described["retention.ms"].value, "acls": [one.principal for one in acls]}


def test_the_admin_client_of_librdkafka(tmp_path: Path) -> None:
    async def check() -> None:
        async with controller_nodes(tmp_path) as nodes:
            await nodes.add_brokers(1)
            node = await nodes.until_active()
            address = f"127.0.0.1:{node.port}"
            found = await asyncio.to_thread(change_everything, address)
            assert found == {"retention": "77", "acls": ["User:ana"]}
            state = controller_of(node).state
            orders = state.topic("orders")
            assert len(state.partition_keys(orders.topic_id)) == 4
            assert state.topic("old") is None

    asyncio.run(check())


def test_an_append_of_a_client_is_refused_with_the_reason(tmp_path: Path) -> None:
    def append(address: str) -> None:
        with raftlog.connect(address, timeout_ms=5_000) as log:
            apply_changes(
                log, [{"change": "register_broker", "broker_id": 1, "endpoints": LISTENER}]
            )

    async def check() -> None:
        async with controller_nodes(tmp_path) as nodes:
            node = await nodes.until_active()
            end_offset = node.node.raft_node.replica.log.end_offset
            with pytest.raises(LogReadOnlyError, match="only the controllers of its nodes append"):
                await asyncio.to_thread(append, f"127.0.0.1:{node.port}")
            assert node.node.raft_node.replica.log.end_offset == end_offset

    asyncio.run(check())
