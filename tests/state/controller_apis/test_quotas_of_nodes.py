"""Quotas in the log of a controller apply to the clients of its nodes, and not to brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.support.controller_nodes import ControllerNodes, ask, controller_nodes, eventually
from tests.support.request_builder import request
from tests.support.served_node import ServedNode

from raftlog.node.client_quotas import QuotaType
from raftlog.wire import ApiKey
from raftlog.wire.log_identity import milliseconds
from raftlog_state.cli.controller_node import create_controller, create_publishers

pytestmark = pytest.mark.slow

PERCENTAGE = "request_percentage"


async def alter(nodes: ControllerNodes, value: float | None) -> None:
    """Set or remove the quota of every user, and wait until all nodes have it."""
    entity = {"entity_type": "user", "entity_name": None}
    op = {"key": PERCENTAGE, "value": value or 0.0, "remove": value is None}
    entry = {"entity": [entity], "ops": [op]}
    response = await nodes.admin(ApiKey.ALTER_CLIENT_QUOTAS, entries=[entry])
    assert response.entries[0].error_code is ErrorCode.none

    def is_applied(node: ServedNode) -> bool:
        access = node.node._log_access
        assert access is not None
        return access.has_quota(PERCENTAGE) is (value is not None)

    await eventually(lambda: all(map(is_applied, nodes.nodes)))


async def throttle_ms(node: ServedNode, key: ApiKey, **fields: Any) -> int:
    """Return the throttle time of a response on a connection of its own."""
    response = await ask(node, key, request(key, **fields))
    return milliseconds(response.throttle_time)


def test_a_quota_in_the_log_throttles_clients_at_every_node(tmp_path: Path) -> None:
    async def check(nodes: ControllerNodes) -> None:
        await nodes.add_brokers(1)
        (node,) = nodes.nodes
        assert await throttle_ms(node, ApiKey.DESCRIBE_CLUSTER) == 0
        await alter(nodes, 1e-6)
        for key in (ApiKey.DESCRIBE_CLUSTER, ApiKey.METADATA, ApiKey.DESCRIBE_CLIENT_QUOTAS):
            assert 0 < await throttle_ms(node, key) <= 1_000
        quotas = node.node._apis.quotas
        count = quotas.throttled_requests[QuotaType.REQUEST]
        assert count >= 3
        heartbeat = {"broker_id": 1, "broker_epoch": 1, "current_metadata_offset": 0}
        assert await throttle_ms(node, ApiKey.BROKER_HEARTBEAT, **heartbeat) == 0
        assert quotas.throttled_requests[QuotaType.REQUEST] == count
        await alter(nodes, None)
        assert await throttle_ms(node, ApiKey.DESCRIBE_CLUSTER) == 0

    run(tmp_path, check)


def run(home: Path, check: Callable[[ControllerNodes], Awaitable[None]]) -> None:
    async def with_nodes() -> None:
        services = (create_controller, create_publishers)
        async with controller_nodes(home, services=services) as nodes:
            await check(nodes)

    asyncio.run(with_nodes())
