"""Changes of metadata in the audit log of a node with a controller: no secret is in it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.state.controller_apis.test_broker_requests import ALICE, forwarded
from tests.support.controller_nodes import ControllerNodes, ask, controller_nodes
from tests.support.request_builder import request

from raftlog.wire import ApiKey

SECRET = "s3cr3t-of-a-listener"
SALTED = b"salted-password-of-32-bytes-long"


def changes(path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if line["event"] == "change"]


async def _change(nodes: ControllerNodes) -> None:
    topic = {"name": "a", "num_partitions": 1, "replication_factor": 1}
    config = {"name": "ssl.key.password", "config_operation": 0, "value": SECRET}
    credential = {
        "name": "alice",
        "mechanism": 1,
        "iterations": 4096,
        "salt": b"salt-of-alice",
        "salted_password": SALTED,
    }
    acl = {
        "resource_type": 2,
        "resource_name": "a",
        "resource_pattern_type": 3,
        "principal": "User:bob",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    await nodes.add_brokers(1)
    await nodes.admin(ApiKey.CREATE_TOPICS, topics=[topic])
    await nodes.admin(ApiKey.CREATE_TOPICS, topics=[topic])
    await nodes.admin(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        resources=[{"resource_type": 4, "resource_name": "1", "configs": [config]}],
    )
    await nodes.admin(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, deletions=[], upsertions=[credential])
    await nodes.admin(ApiKey.CREATE_ACLS, creations=[acl])
    key = ApiKey.DELETE_TOPICS
    envelope = forwarded(key, request(key, topics=[{"name": "a", "topic_id": None}]))
    await nodes.admin(ApiKey.ENVELOPE, **envelope | {"request_principal": ALICE})


@pytest.mark.slow
def test_a_forwarded_change_that_a_standby_refuses_has_its_outcome(tmp_path: Path) -> None:
    path, key = tmp_path / "audit.log", ApiKey.DELETE_TOPICS

    async def check() -> None:
        async with controller_nodes(tmp_path, 3, extra=f'[audit]\nfile = "{path}"\n') as nodes:
            active = await nodes.until_active()
            standby = next(node for node in nodes.nodes if node is not active)
            envelope = forwarded(key, request(key, topics=[{"name": "a", "topic_id": None}]))
            refused = await ask(standby, ApiKey.ENVELOPE, request(ApiKey.ENVELOPE, **envelope))
            assert refused.error_code is ErrorCode.not_controller

    asyncio.run(check())
    found = [line["outcome"] for line in changes(path) if line["request"] == key.name]
    assert found == ["requested", ["NOT_CONTROLLER"]]


def test_changes_are_logged_with_principal_arguments_and_outcome(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"

    async def check() -> None:
        async with controller_nodes(tmp_path, extra=f'[audit]\nfile = "{path}"\n') as nodes:
            await nodes.until_active()
            await _change(nodes)

    asyncio.run(check())
    found = changes(path)
    assert [line["outcome"] == "requested" for line in found] == [True, False] * 6
    assert [line["request"] for line in found[::2]] == [
        "CREATE_TOPICS",
        "CREATE_TOPICS",
        "INCREMENTAL_ALTER_CONFIGS",
        "ALTER_USER_SCRAM_CREDENTIALS",
        "CREATE_ACLS",
        "DELETE_TOPICS",
    ]
    assert [line["outcome"] for line in found[1::2]][:2] == [["NONE"], ["TOPIC_ALREADY_EXISTS"]]
    arguments = [line["arguments"] for line in found[::2]]
    assert arguments[0]["topics"][0]["name"] == "a"
    assert arguments[2]["resources"][0]["configs"] == [
        {"name": "ssl.key.password", "config_operation": 0}
    ]
    assert arguments[3]["upsertions"] == [{"name": "alice", "mechanism": 1, "iterations": 4096}]
    assert arguments[4]["creations"][0]["principal"] == "User:bob"
    assert arguments[5]["topics"][0]["name"] == "a"
    assert {line["principal"] for line in found[:10]} == {"anonymous"}
    assert {line["principal"] for line in found[10:]} == {"alice"}
    assert {line["address"] for line in found[10:]} == {"forwarded by anonymous"}
    text = path.read_text()
    for secret in (SECRET, "salt-of-alice", SALTED.decode(), SALTED.hex()):
        assert secret not in text
