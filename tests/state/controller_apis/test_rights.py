"""Every request of a controller needs its right; without it nothing changes or is shown."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from kio.schema.errors import ErrorCode
from tests.support.controller_nodes import controller_nodes, controller_of, hosted
from tests.support.request_builder import newest, request

from raftlog.node.access import Principal, Rights
from raftlog.wire import APIS, CONTROLLER_APIS, ApiKey, Listener, encode
from raftlog_state.controller_apis import HANDLERS

NODE: Final = 7
REFUSED: Final = {
    ErrorCode.cluster_authorization_failed,
    ErrorCode.topic_authorization_failed,
    ErrorCode.group_authorization_failed,
    ErrorCode.delegation_token_request_not_allowed,
}
_TOPIC: Final = {"name": "a", "num_partitions": 1, "replication_factor": 1}
_BROKER_CONFIGS: Final = {"resource_type": 4, "resource_name": ""}
_ACL: Final = {"resource_type": 2, "resource_name": "a", "principal": "User:a", "host": "*"}

CONTENTS: Final[dict[ApiKey, dict[str, Any]]] = {
    ApiKey.CREATE_TOPICS: {"topics": [_TOPIC]},
    ApiKey.DELETE_TOPICS: {"topics": [{"name": "a"}]},
    ApiKey.CREATE_PARTITIONS: {"topics": [{"name": "a", "count": 3}]},
    ApiKey.INCREMENTAL_ALTER_CONFIGS: {"resources": [_BROKER_CONFIGS]},
    ApiKey.ALTER_CONFIGS: {"resources": [_BROKER_CONFIGS]},
    ApiKey.DESCRIBE_CONFIGS: {"resources": [_BROKER_CONFIGS]},
    ApiKey.CREATE_ACLS: {"creations": [_ACL]},
    ApiKey.DELETE_ACLS: {"filters": [{"operation": 1, "permission_type": 1}]},
    ApiKey.ALTER_CLIENT_QUOTAS: {"entries": [{"entity": [{"entity_type": "user"}]}]},
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: {"deletions": [{"name": "a", "mechanism": 1}]},
    ApiKey.BROKER_REGISTRATION: {"broker_id": NODE},
    ApiKey.BROKER_HEARTBEAT: {"broker_id": NODE},
    ApiKey.ALTER_PARTITION: {"broker_id": NODE},
    ApiKey.ALLOCATE_PRODUCER_IDS: {"broker_id": NODE},
    ApiKey.CONTROLLER_REGISTRATION: {"controller_id": NODE},
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: {"broker_id": NODE},
}
"""Fields without which a request would have no part to refuse, or names no node."""

OF_NODES: Final = {key for key in HANDLERS if key in CONTENTS and key >= ApiKey.ALTER_PARTITION}
OF_NODES.add(ApiKey.ENVELOPE)
OF_USERS: Final = {key for key in HANDLERS if key.name.endswith("DELEGATION_TOKEN")}
DESCRIPTIONS: Final = {
    ApiKey.DESCRIBE_ACLS,
    ApiKey.DESCRIBE_CLIENT_QUOTAS,
    ApiKey.DESCRIBE_CONFIGS,
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
}


@dataclass
class Asked:
    """Request as a handler gets it."""

    body: Any
    version: int
    principal: Principal


def principal(rights: Rights, node_id: int | None = None) -> Principal:
    return Principal(name="p", node_id=node_id, listener=Listener.VOTERS, rights=rights)


def insufficient(key: ApiKey) -> list[Principal]:
    """Return principals without the right for an API."""
    if key is ApiKey.ENVELOPE:
        return [principal(Rights.NONE), principal(Rights.ADMIN | Rights.DESCRIBE)]
    if key in OF_NODES:
        others = Rights.ADMIN | Rights.DESCRIBE
        return [principal(others), principal(Rights.VOTE | others, NODE + 1)]
    if key in DESCRIPTIONS or key in OF_USERS:
        return [principal(Rights.NONE)]
    return [principal(Rights.NONE), principal(Rights.DESCRIBE | Rights.READ | Rights.VOTE, NODE)]


def test_every_api_is_refused_without_its_right(tmp_path: Path) -> None:
    async def check() -> None:
        async with controller_nodes(tmp_path) as nodes:
            node = await nodes.until_active()
            before = node.node.raft_node.replica.log.end_offset
            for key, handler in HANDLERS.items():
                body = request(key, **CONTENTS.get(key, {}))
                for one in insufficient(key):
                    asked = Asked(body, newest(key), one)
                    response = await handler.respond(hosted(node), asked)
                    assert codes(response) & REFUSED, f"{key.name}: {one.rights}"
                    encode(response, newest(key))
            assert node.node.raft_node.replica.log.end_offset == before
            assert controller_of(node).active_epoch is not None

    asyncio.run(check())


@pytest.mark.parametrize("key", HANDLERS, ids=lambda key: key.name)
def test_an_error_of_a_whole_request_is_encoded_in_every_version(key: ApiKey) -> None:
    versions = {**APIS, **CONTROLLER_APIS}[key].versions
    body = request(key, **CONTENTS.get(key, {}))
    for version in range(versions.first, versions.last + 1):
        asked = Asked(body, version, principal(Rights.NONE))
        response = HANDLERS[key].refuse(asked, ErrorCode.not_controller, "no controller")
        assert encode(response, version)


def codes(message: Any) -> set[ErrorCode]:
    """Return all error codes of a response."""
    found: set[ErrorCode] = set()
    for name in message.__dataclass_fields__:
        value = getattr(message, name)
        if isinstance(value, ErrorCode):
            found.add(value)
        for one in value if isinstance(value, tuple) else ():
            if hasattr(one, "__dataclass_fields__"):
                found |= codes(one)
    return found
