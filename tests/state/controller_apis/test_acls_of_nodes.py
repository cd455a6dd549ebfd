"""ACLs and users in the log decide at the listeners of every node, also after a failover."""

from __future__ import annotations

import asyncio
import hashlib
import json
import ssl
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.support.certificates import Authority, KeyPair
from tests.support.controller_nodes import (
    CONTROLLER,
    ControllerNodes,
    ask,
    controller_nodes,
    eventually,
)
from tests.support.quorum_processes import free_ports
from tests.support.request_builder import request
from tests.support.sasl_client import authenticate, refused
from tests.support.served_node import RawConnection, ServedNode, served_node

from raftlog.node.sasl import no_users, with_password, write_users
from raftlog.types import (
    CLUSTER_METADATA_TOPIC,
    CLUSTER_METADATA_TOPIC_ID,
    Operation,
    ResourceType,
)
from raftlog.wire import ApiKey
from raftlog_state.cli.controller_node import create_controller, create_publishers

pytestmark = pytest.mark.slow

SERVICES = (create_controller, create_publishers)
MECHANISM = "SCRAM-SHA-256"
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
DENIED = {
    ErrorCode.topic_authorization_failed,
    ErrorCode.cluster_authorization_failed,
    ErrorCode.group_authorization_failed,
}


def acl(
    kind: ResourceType,
    name: str,
    operation: Operation,
    principal: str = "User:alice",
    *,
    is_denied: bool = False,
    is_prefix: bool = False,
) -> dict[str, Any]:
    """Return an ACL as CreateAcls has it."""
    return {
        "resource_type": kind,
        "resource_name": name,
        "resource_pattern_type": 4 if is_prefix else 3,
        "principal": principal,
        "host": "127.0.0.1",
        "operation": operation,
        "permission_type": 2 if is_denied else 3,
    }


def codes(message: Any) -> Iterator[ErrorCode]:
    for name in getattr(message, "__dataclass_fields__", ()):
        value = getattr(message, name)
        if isinstance(value, ErrorCode):
            yield value
        for one in value if isinstance(value, tuple) else ():
            yield from codes(one)


@dataclass
class Cluster:
    """Nodes with users, of which ``operator`` is a super user."""

    nodes: ControllerNodes
    audit: Path

    async def connect(self, user: str, node: ServedNode, password: str = "") -> RawConnection:
        connection = await node.connect()
        await authenticate(connection, MECHANISM, user, password or f"password of {user}")
        return connection

    async def ask(
        self, user: str, key: ApiKey, node: ServedNode | None = None, **fields: Any
    ) -> Any:
        at = await self.nodes.until_active() if node is None else node
        return await ask(at, key, request(key, **fields), connect=lambda: self.connect(user, at))

    async def allow(self, *acls: dict[str, Any]) -> None:
        response = await self.ask("operator", ApiKey.CREATE_ACLS, creations=list(acls))
        assert set(codes(response)) == {ErrorCode.none}

    async def delete_all(self) -> None:
        """Delete all ACLs."""
        numbers = ("resource_type_filter", "pattern_type_filter", "operation", "permission_type")
        texts = ("resource_name_filter", "principal_filter", "host_filter")
        everything = {**dict.fromkeys(numbers, 1), **dict.fromkeys(texts)}
        await self.ask("operator", ApiKey.DELETE_ACLS, filters=[everything])

    async def is_allowed(
        self, user: str, key: ApiKey, node: ServedNode | None = None, **fields: Any
    ) -> bool:
        return not DENIED & set(codes(await self.ask(user, key, node, **fields)))

    async def until(self, user: str, key: ApiKey, node: ServedNode, *, allowed: bool) -> None:
        """Wait until a node has replayed a change that has another effect on a request."""
        async with asyncio.timeout(20):
            while await self.is_allowed(user, key, node, **FIELDS.get(key, {})) is not allowed:
                await asyncio.sleep(0.005)


@asynccontextmanager
async def cluster(home: Path, count: int = 1) -> AsyncIterator[Cluster]:
    users = no_users()
    for name in ("operator", "alice", "reader"):
        users = with_password(users, name, f"password of {name}")
    path = str(home / "users.json")
    write_users(users, path)
    audit = home / "audit.log"
    secret = home / "tokens.key"
    secret.write_text("a secret key\n")
    secret.chmod(0o600)
    extra = (
        f'token_secret = "{secret}"\n[access]\nadmin = ["operator"]\nread = ["reader"]\n'
        f'[audit]\nfile = "{audit}"\n'
    )
    async with controller_nodes(home, count, extra=extra, services=SERVICES, users=path) as nodes:
        await nodes.until_active()
        found = Cluster(nodes, audit)
        for node in nodes.nodes:
            await eventually(partial(is_ready, node))
        yield found


def access_of(node: ServedNode) -> Any:
    return node.node.services[1].access


def is_ready(node: ServedNode) -> bool:
    return bool(access_of(node).is_ready)


def has_user(node: ServedNode, user: str) -> bool:
    return access_of(node).find_credential(MECHANISM, user) is not None


def lacks_user(node: ServedNode, user: str) -> bool:
    return not has_user(node, user)


FIELDS: dict[ApiKey, dict[str, Any]] = {
    ApiKey.METADATA: {"topics": [{"name": CLUSTER_METADATA_TOPIC}]},
    ApiKey.LIST_OFFSETS: {
        "topics": [{"name": CLUSTER_METADATA_TOPIC, "partitions": [{"partition_index": 0}]}]
    },
    ApiKey.OFFSET_FOR_LEADER_EPOCH: {
        "topics": [{"topic": CLUSTER_METADATA_TOPIC, "partitions": [{"partition": 0}]}]
    },
    ApiKey.FIND_COORDINATOR: {"key_type": 0, "coordinator_keys": ["g"]},
    ApiKey.OFFSET_FETCH: {"groups": [{"group_id": "g", "topics": []}]},
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: {"topics": [{"name": CLUSTER_METADATA_TOPIC}]},
    ApiKey.DESCRIBE_QUORUM: {
        "topics": [{"topic_name": CLUSTER_METADATA_TOPIC, "partitions": [{"partition_index": 0}]}]
    },
    ApiKey.FETCH: {
        "replica_state": {"replica_id": -1},
        "max_bytes": 10_000,
        "topics": [
            {
                "topic_id": CLUSTER_METADATA_TOPIC_ID,
                "partitions": [
                    {
                        "partition": 0,
                        "current_leader_epoch": -1,
                        "last_fetched_epoch": -1,
                        "fetch_offset": 0,
                        "partition_max_bytes": 10_000,
                    }
                ],
            }
        ],
    },
    ApiKey.FETCH_SNAPSHOT: {
        "replica_id": -1,
        "max_bytes": 10_000,
        "topics": [
            {
                "name": CLUSTER_METADATA_TOPIC,
                "partitions": [{"partition": 0, "snapshot_id": {"end_offset": 0, "epoch": 0}}],
            }
        ],
    },
    ApiKey.DELETE_RECORDS: {
        "topics": [
            {
                "name": CLUSTER_METADATA_TOPIC,
                "partitions": [{"partition_index": 0, "offset": 10**9}],
            }
        ]
    },
    ApiKey.ADD_RAFT_VOTER: {
        "cluster_id": None,
        "voter_id": 1,
        "voter_directory_id": uuid.UUID(int=77),
        "listeners": [{"name": "CONTROLLER", "host": "127.0.0.1", "port": 9}],
    },
    ApiKey.REMOVE_RAFT_VOTER: {
        "cluster_id": None,
        "voter_id": 77,
        "voter_directory_id": uuid.UUID(int=77),
    },
    ApiKey.UPDATE_FEATURES: {
        "feature_updates": [{"feature": "kraft.version", "max_version_level": 1}],
        "validate_only": True,
    },
    ApiKey.DESCRIBE_ACLS: {"operation": 1, "permission_type": 1, "pattern_type_filter": 1},
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: {},
}
NEEDED: dict[ApiKey, tuple[ResourceType, str, Operation]] = {
    **dict.fromkeys(
        (
            ApiKey.METADATA,
            ApiKey.LIST_OFFSETS,
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        ),
        (TOPIC, CLUSTER_METADATA_TOPIC, Operation.DESCRIBE),
    ),
    ApiKey.FETCH: (TOPIC, CLUSTER_METADATA_TOPIC, Operation.READ),
    ApiKey.DELETE_RECORDS: (TOPIC, CLUSTER_METADATA_TOPIC, Operation.DELETE),
    ApiKey.ADD_RAFT_VOTER: (CLUSTER, "kafka-cluster", Operation.ALTER),
    ApiKey.UPDATE_FEATURES: (CLUSTER, "kafka-cluster", Operation.ALTER),
    ApiKey.FIND_COORDINATOR: (GROUP, "g", Operation.DESCRIBE),
    ApiKey.OFFSET_FETCH: (GROUP, "g", Operation.DESCRIBE),
    ApiKey.DESCRIBE_QUORUM: (CLUSTER, "kafka-cluster", Operation.DESCRIBE),
    ApiKey.REMOVE_RAFT_VOTER: (CLUSTER, "kafka-cluster", Operation.ALTER),
    ApiKey.DESCRIBE_ACLS: (CLUSTER, "kafka-cluster", Operation.DESCRIBE),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (CLUSTER, "kafka-cluster", Operation.DESCRIBE),
}


def test_every_request_of_a_client_needs_its_operation_and_is_denied_by_a_deny(
    tmp_path: Path,
) -> None:
    async def check() -> None:
        async with cluster(tmp_path) as found:
            for key in NEEDED:
                assert not await found.is_allowed("alice", key, **FIELDS[key]), key.name
            for key, (kind, name, operation) in NEEDED.items():
                allowed = acl(kind, name, operation)
                await found.allow(allowed)
                assert await found.is_allowed("alice", key, **FIELDS[key]), key.name
                await found.allow({**allowed, "principal": "User:*", "permission_type": 2})
                assert not await found.is_allowed("alice", key, **FIELDS[key]), key.name
                is_allowed = await found.is_allowed("operator", key, **FIELDS[key])
                assert is_allowed or kind is GROUP or operation is Operation.READ
                await found.delete_all()
                assert not await found.is_allowed("alice", key, **FIELDS[key]), key.name
            assert await found.is_allowed("reader", ApiKey.METADATA, **FIELDS[ApiKey.METADATA])
            await found.allow(
                acl(TOPIC, "__", Operation.ALL, "User:reader", is_denied=True, is_prefix=True)
            )
            refused = await found.is_allowed("reader", ApiKey.METADATA, **FIELDS[ApiKey.METADATA])
            assert not refused, "an ACL denies what the table allows to other than super users"

    asyncio.run(check())
    lines = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    denied = {(line["principal"], line["request"]) for line in lines if line["event"] == "refused"}
    assert denied >= {("alice", key.name) for key in NEEDED} | {("reader", "METADATA")}


def test_acls_decide_at_every_node_and_after_a_failover(tmp_path: Path) -> None:
    topic = {"name": "alice-1", "num_partitions": 1, "replication_factor": 1, "assignments": []}
    key = ApiKey.DESCRIBE_ACLS

    async def check() -> None:
        async with cluster(tmp_path, 3) as found:
            active = await found.nodes.until_active()
            for node in found.nodes.nodes:
                assert not await found.is_allowed("alice", key, node, **FIELDS[key])
            await found.allow(
                acl(CLUSTER, "kafka-cluster", Operation.DESCRIBE),
                acl(TOPIC, "alice-", Operation.CREATE, is_prefix=True),
            )
            for node in found.nodes.nodes:
                await found.until("alice", key, node, allowed=True)
                created = await found.ask(
                    "alice",
                    ApiKey.CREATE_TOPICS,
                    node,
                    topics=[topic, {**topic, "name": "bob-1"}],
                )
                results = {one.name: one.error_code for one in created.topics}
                assert results["bob-1"] is ErrorCode.topic_authorization_failed
                assert results["alice-1"] is ErrorCode.invalid_replication_factor, "no broker"
            await active.node.close()
            found.nodes.nodes.remove(active)
            await found.nodes.until_active()
            for node in found.nodes.nodes:
                assert await found.is_allowed("alice", key, node, **FIELDS[key])
            await found.delete_all()
            for node in found.nodes.nodes:
                await found.until("alice", key, node, allowed=False)

    asyncio.run(check())


def credential(user: str, password: str) -> dict[str, Any]:
    salt = f"salt of {user}".encode()
    return {
        "name": user,
        "mechanism": 1,
        "iterations": 4096,
        "salt": salt,
        "salted_password": hashlib.pbkdf2_hmac("sha256", password.encode(), salt, 4096),
    }


def test_users_of_the_log_authenticate_at_every_node_until_their_password_changes(
    tmp_path: Path,
) -> None:
    key = ApiKey.ALTER_USER_SCRAM_CREDENTIALS

    async def check() -> None:
        async with cluster(tmp_path, 3) as found:

            async def alter(*upsertions: dict[str, Any], **deleted: Any) -> None:
                response = await found.ask(
                    "operator",
                    key,
                    deletions=list(deleted.get("deletions", ())),
                    upsertions=list(upsertions),
                )
                assert set(codes(response)) == {ErrorCode.none}

            await alter(credential("carol", "first"), credential("alice", "another"))
            open_ones = []
            for node in found.nodes.nodes:
                await eventually(partial(has_user, node, "carol"))
                open_ones.append(await found.connect("carol", node, "first"))
                async with await node.connect() as connection:
                    await refused(connection, MECHANISM, "alice", "another")
                async with await found.connect("alice", node):
                    pass  # the file decides about a user that it has
            await alter(credential("carol", "second"))
            for node, connection in zip(found.nodes.nodes, open_ones, strict=True):
                assert await connection.next_frame() is None, "it is closed"
                await connection.__aexit__()
                async with await found.connect("carol", node, "second"):
                    pass
                async with await node.connect() as connection:
                    await refused(connection, MECHANISM, "carol", "first")
            await alter(deletions=[{"name": "carol", "mechanism": 1}])
            for node in found.nodes.nodes:
                await eventually(partial(lacks_user, node, "carol"))
                async with await node.connect() as connection:
                    await refused(connection, MECHANISM, "carol", "second")

    asyncio.run(check())
    assert b"salt of carol" not in (tmp_path / "audit.log").read_bytes()


class TlsNode:
    """Node with a controller and mutual TLS, whose clients' listener requires no certificate."""

    def __init__(self, home: Path, *listeners: str) -> None:
        self._ca = Authority(home / "ca", "a CA")
        self._ports = dict(zip(listeners, free_ports(len(listeners)), strict=True))
        self.nodes: list[ServedNode] = []

    def listeners(self) -> str:
        found, pair = "", self._ca.sign("node-1.example", file_name="server")
        for name, port in self._ports.items():
            optional = ', client_certificates = "optional"' if name == "clients" else ""
            found += (
                f'[listeners.{name}]\naddress = "127.0.0.1:{port}"\ntls = {{ certificate = '
                f'"{pair.certificate}", key = "{pair.key}", ca = "{self._ca.path}"{optional} }}\n'
            )
        return found

    def address(self, listener: str) -> str:
        return f"127.0.0.1:{self._ports[listener]}"

    def client_files(self, name: str) -> tuple[str, KeyPair]:
        """Return the path of the CA, and a client's certificate with its key."""
        return self._ca.path, self._ca.sign(name, file_name=f"client-{name}")

    async def connect(self, name: str | None, listener: str) -> RawConnection:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(self._ca.path)
        if name is not None:
            pair = self._ca.sign(name, file_name="client")
            context.load_cert_chain(pair.certificate, pair.key)
        opened = await asyncio.open_connection(
            "127.0.0.1", self._ports[listener], ssl=context, server_hostname="node-1.example"
        )
        return RawConnection(*opened)

    async def ask(self, name: str | None, key: ApiKey, listener: str, **fields: Any) -> Any:
        connect = partial(self.connect, name, listener)
        return await ask(self.nodes[0], key, request(key, **fields), connect=connect)

    async def is_allowed(self, name: str | None, key: ApiKey, listener: str = "clients") -> bool:
        fields = {"endpoint_type": 2} if key is ApiKey.DESCRIBE_CLUSTER else FIELDS[key]
        return not DENIED & set(codes(await self.ask(name, key, listener, **fields)))

    async def create(self, *acls: dict[str, Any], listener: str = "clients") -> None:
        key = ApiKey.CREATE_ACLS
        response = await self.ask("operator", key, listener, creations=list(acls))
        assert set(codes(response)) == {ErrorCode.none}


@asynccontextmanager
async def tls_node(home: Path, *listeners: str) -> AsyncIterator[TlsNode]:
    found = TlsNode(home, *listeners)
    access = '[access]\nadmin = ["operator"]\n[access.nodes]\n1 = "node-1.example"\n'
    async with served_node(
        home, f"{access}{CONTROLLER}", listeners=found.listeners(), services=SERVICES
    ) as node:
        await eventually(partial(is_ready, node))
        found.nodes.append(node)
        yield found


def test_tokens_of_others_are_described_by_acls(tmp_path: Path) -> None:
    """Kafka: KafkaApis.handleDescribeTokensRequest"""
    key, user = ApiKey.DESCRIBE_DELEGATION_TOKEN, ResourceType.USER

    async def check() -> None:
        async with cluster(tmp_path) as found:
            created = await found.ask(
                "reader", ApiKey.CREATE_DELEGATION_TOKEN, max_lifetime=timedelta(milliseconds=-1)
            )

            async def described(name: str) -> list[str]:
                response = await found.ask(name, key, owners=None)
                assert response.error_code is ErrorCode.none
                return [one.token_id for one in response.tokens]

            # Principals without any right have no request of tokens.
            await found.allow(acl(GROUP, "g", Operation.READ))
            assert (await described("reader"), await described("alice")) == ([created.token_id], [])
            assert await described("operator") == [created.token_id]
            for allowed in (
                acl(user, "User:reader", Operation.DESCRIBE_TOKENS),
                acl(ResourceType.DELEGATION_TOKEN, created.token_id, Operation.DESCRIBE),
            ):
                await found.allow(allowed)
                assert await described("alice") == [created.token_id]
                await found.allow({**allowed, "permission_type": 2})
                assert await described("alice") == []

    asyncio.run(check())


def test_acls_decide_about_names_in_certificates_and_clients_without_one(tmp_path: Path) -> None:
    everyone = ("alice", "Alice", "alice ", "User:alice", "*", None)
    key = ApiKey.DESCRIBE_QUORUM

    async def check() -> None:
        async with tls_node(tmp_path, "clients", "voters") as found:

            async def allowed() -> list[str | None]:
                return [name for name in everyone if await found.is_allowed(name, key)]

            assert not await allowed()
            await found.create(acl(CLUSTER, "kafka-cluster", Operation.DESCRIBE))
            assert await allowed() == ["alice"]
            await found.create(acl(CLUSTER, "kafka-cluster", Operation.DESCRIBE, "User:*"))
            assert await allowed() == list(everyone), "without a certificate, too"
            denied = acl(
                CLUSTER, "kafka-cluster", Operation.DESCRIBE, "User:ANONYMOUS", is_denied=True
            )
            await found.create(denied)
            assert await allowed() == list(everyone[:-1])

    asyncio.run(check())


def test_at_the_voters_listener_acls_allow_what_they_do_at_a_controller_of_kafka(
    tmp_path: Path,
) -> None:
    async def check() -> None:
        async with tls_node(tmp_path, "clients", "voters") as found:

            async def allowed(name: str) -> list[ApiKey]:
                keys = (ApiKey.DESCRIBE_QUORUM, ApiKey.DESCRIBE_CLUSTER, ApiKey.FETCH_SNAPSHOT)
                return [key for key in keys if await found.is_allowed(name, key, "voters")]

            described = [ApiKey.DESCRIBE_QUORUM, ApiKey.DESCRIBE_CLUSTER]
            assert await allowed("node-1.example") == described
            assert await allowed("operator") == described
            assert await allowed("alice") == []
            await found.create(acl(CLUSTER, "kafka-cluster", Operation.DESCRIBE))
            assert await allowed("alice") == [ApiKey.DESCRIBE_QUORUM]
            await found.create(
                acl(CLUSTER, "kafka-cluster", Operation.ALL), acl(TOPIC, "*", Operation.ALL)
            )
            assert await allowed("alice") == described, "replicas only read there"
            quotas = found.nodes[0].node.server.quotas
            await eventually(lambda: quotas.clients.count == 0)
            async with await found.connect("alice", "voters"):
                await eventually(lambda: quotas.clients.count == 1)
                assert quotas.voters.count == 0

    asyncio.run(check())


def test_a_snapshot_is_read_under_the_right_to_read_the_log(tmp_path: Path) -> None:
    key = ApiKey.FETCH_SNAPSHOT

    async def check() -> None:
        async with tls_node(tmp_path, "both") as found:
            for operation in (Operation.DESCRIBE, Operation.READ):
                assert not await found.is_allowed("alice", key, "both")
                allowed = acl(TOPIC, CLUSTER_METADATA_TOPIC, operation)
                await found.create(allowed, listener="both")
            assert await found.is_allowed("alice", key, "both")
            await found.create(
                acl(TOPIC, "__", Operation.READ, is_denied=True, is_prefix=True), listener="both"
            )
            assert not await found.is_allowed("alice", key, "both")

    asyncio.run(check())
