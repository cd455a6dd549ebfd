"""Every request of a controller needs its right; without it nothing changes or is shown."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pytest
from kio.schema.errors import ErrorCode
from tests.support.controller_nodes import controller_nodes, controller_of, hosted
from tests.support.request_builder import newest, request

from raftlog.node.access import Principal, Rights
from raftlog.types import CLUSTER, Operation, Resource, ResourceType
from raftlog.wire import APIS, CONTROLLER_APIS, ApiKey, Listener, encode
from raftlog_state.controller_apis import HANDLERS
from raftlog_state.image import AclRow
from raftlog_state.publishing import AclIndex

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


_T, _C = ResourceType.TOPIC, ResourceType.CLUSTER
OPERATIONS: Final[dict[ApiKey, tuple[ResourceType, Operation]]] = {
    ApiKey.CREATE_TOPICS: (_T, Operation.CREATE),
    ApiKey.DELETE_TOPICS: (_T, Operation.DELETE),
    ApiKey.CREATE_PARTITIONS: (_T, Operation.ALTER),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (_C, Operation.ALTER_CONFIGS),
    ApiKey.ALTER_CONFIGS: (_C, Operation.ALTER_CONFIGS),
    ApiKey.DESCRIBE_CONFIGS: (_C, Operation.DESCRIBE_CONFIGS),
    ApiKey.CREATE_ACLS: (_C, Operation.ALTER),
    ApiKey.DELETE_ACLS: (_C, Operation.ALTER),
    ApiKey.DESCRIBE_ACLS: (_C, Operation.DESCRIBE),
    ApiKey.ALTER_CLIENT_QUOTAS: (_C, Operation.ALTER_CONFIGS),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (_C, Operation.DESCRIBE_CONFIGS),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (_C, Operation.ALTER),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (_C, Operation.DESCRIBE),
    ApiKey.UPDATE_FEATURES: (_C, Operation.ALTER),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (_C, Operation.ALTER),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (_C, Operation.DESCRIBE),
    ApiKey.ELECT_LEADERS: (_C, Operation.ALTER),
    ApiKey.UNREGISTER_BROKER: (_C, Operation.ALTER),
}
"""Kafka's documentation, "Operations and Resources on Protocols". By no ACL: requests of nodes."""

IMPLIED: Final = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}


@dataclass
class Acls:
    """Authorizer with a list of ACLs."""

    index: AclIndex
    is_ready: bool = True

    def authorize(
        self, principal: str, host: str, operation: Operation, resource: Resource
    ) -> bool | None:
        return self.index.authorize(principal, host, operation, resource)

    def allowed_operations(self, principal: str, host: str) -> set[Operation]:
        return self.index.allowed_operations(principal, host)


def with_acls(
    *entries: tuple[ResourceType, Operation, str], rights: Rights = Rights.NONE
) -> Principal:
    """Return a principal with these ACLs: type of all its resources, operation, permission."""
    rows = [
        AclRow(
            acl_id=f"{number}",
            resource_type=kind,
            resource_name=CLUSTER.name if kind is ResourceType.CLUSTER else "*",
            pattern_type=3,
            principal="User:p",
            host="10.0.0.1",
            operation=operation,
            permission={"ALLOW": 3, "DENY": 2}[permission],
        )
        for number, (kind, operation, permission) in enumerate(entries)
    ]
    one = principal(rights)
    return replace(one, host="10.0.0.1", authorizer=Acls(AclIndex(rows)))


def test_every_api_needs_the_operation_that_kafka_documents(tmp_path: Path) -> None:
    assert set(OPERATIONS) == set(HANDLERS) - OF_NODES - OF_USERS
    everything = [(kind, Operation.ALL, "ALLOW") for kind in ResourceType]

    async def check() -> None:
        async with controller_nodes(tmp_path) as nodes:
            node = await nodes.until_active()
            for key, (kind, operation) in OPERATIONS.items():
                sufficient = [Operation.ALL, operation, *IMPLIED.get(operation, ())]
                allowed = [with_acls((kind, one, "ALLOW")) for one in sufficient]
                denied = [
                    with_acls((kind, one, "ALLOW")) for one in Operation if one not in sufficient
                ]
                denied.append(replace(allowed[0], host="10.0.0.2"))
                denied.append(replace(allowed[0], name="q"))
                denied.append(replace(allowed[0], name=""))
                by_deny = [(one, operation, "DENY") for one in ResourceType]
                denied.append(with_acls(*everything, *by_deny))
                others = Rights.DESCRIBE | Rights.READ
                denied.append(with_acls(*everything, *by_deny, rights=others))
                allowed.append(with_acls(*by_deny, rights=Rights.ADMIN))  # a super user
                for one, is_denied in [(at, False) for at in allowed] + [
                    (at, True) for at in denied
                ]:
                    asked = Asked(request(key, **CONTENTS.get(key, {})), newest(key), one)
                    response = await HANDLERS[key].respond(hosted(node), asked)
                    was_denied = bool(codes(response) & REFUSED)
                    assert was_denied is is_denied, f"{key.name}: {one.authorizer}"

    asyncio.run(check())


def test_no_acl_allows_requests_of_nodes(tmp_path: Path) -> None:
    async def check() -> None:
        async with controller_nodes(tmp_path) as nodes:
            node = await nodes.until_active()
            everything = [(kind, Operation.ALL, "ALLOW") for kind in ResourceType]
            for key in OF_NODES:
                body = request(key, **CONTENTS.get(key, {}))
                asked = Asked(body, newest(key), with_acls(*everything))
                response = await HANDLERS[key].respond(hosted(node), asked)
                assert codes(response) & REFUSED, key.name

    asyncio.run(check())


def test_topics_of_a_request_are_decided_one_by_one(tmp_path: Path) -> None:
    async def check() -> None:
        async with controller_nodes(tmp_path) as nodes:
            node = await nodes.until_active()
            await nodes.add_brokers(1)
            names = [f"mine-{at}" for at in range(2)] + ["other"]
            acl = AclRow(
                acl_id="1",
                resource_type=ResourceType.TOPIC,
                resource_name="mine-",
                pattern_type=4,
                principal="User:*",
                host="*",
                operation=Operation.ALL,
                permission=3,
            )
            one = replace(principal(Rights.NONE), authorizer=Acls(AclIndex([acl])))
            described = replace(acl, acl_id="2", pattern_type=3, operation=Operation.DESCRIBE)
            describing = replace(
                principal(Rights.NONE),
                authorizer=Acls(AclIndex([replace(described, resource_name="other")])),
            )

            async def ask(key: ApiKey, by: Principal, **fields: Any) -> Any:
                asked = Asked(request(key, **fields), newest(key), by)
                return await HANDLERS[key].respond(hosted(node), asked)

            topics = [{**_TOPIC, "name": name} for name in names]
            created = await ask(ApiKey.CREATE_TOPICS, one, topics=topics)
            denied = ErrorCode.topic_authorization_failed
            found = {at.name: at.error_code for at in created.topics}
            assert found == {"mine-0": 0, "mine-1": 0, "other": denied}
            admin = principal(Rights.ADMIN)
            created = await ask(ApiKey.CREATE_TOPICS, admin, topics=topics[2:])
            topic_id = created.topics[0].topic_id
            grown = [{"name": name, "count": 2, "assignments": None} for name in names]
            response = await ask(ApiKey.CREATE_PARTITIONS, one, topics=grown)
            found = {at.name: at.error_code for at in response.results}
            assert found == {"mine-0": 0, "mine-1": 0, "other": denied}
            only_create = replace(acl, operation=Operation.CREATE)
            by = replace(one, authorizer=Acls(AclIndex([only_create])))
            created = await ask(ApiKey.CREATE_TOPICS, by, topics=[{**_TOPIC, "name": "mine-2"}])
            assert created.topics[0].topic_config_error_code == denied
            assert created.topics[0].configs == ()
            unknown = {"name": "absent"}
            wanted = [unknown, {"name": "mine-0"}, {"name": None, "topic_id": topic_id}]
            for by, name in ((one, None), (describing, "other")):
                response = await ask(ApiKey.DELETE_TOPICS, by, topics=wanted)
                by_id = next(at for at in response.responses if at.topic_id == topic_id)
                assert (by_id.name, by_id.error_code) == (name, denied)
                assert response.responses[0].error_code == denied, "absent is not distinguished"
            assert {at.name for at in response.responses} == {"absent", "mine-0", "other"}

    asyncio.run(check())


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
