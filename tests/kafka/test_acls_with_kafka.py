"""Kafka's own tools at the listener for clients of nodes whose ACLs and users are in the log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.state.controller_apis.test_acls_of_nodes import (
    Cluster,
    TlsNode,
    cluster,
    has_user,
    tls_node,
)
from tests.support.controller_nodes import eventually
from tests.support.kafka import kafka_jars, run_java

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

ACLS = "org.apache.kafka.tools.AclCommand"
TOKENS = "org.apache.kafka.tools.DelegationTokenCommand"
PASSWORD = Path(__file__).parent / "TokenPassword.java"
CONFIGS = "kafka.admin.ConfigCommand"
LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule"
DENIED = "ClusterAuthorizationException"


def login(home: Path, user: str, password: str) -> str:
    """Write the configuration of a client; return its path."""
    path = home / f"{user}.properties"
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        f'sasl.jaas.config={LOGIN} required username="{user}" password="{password}";\n'
    )
    return str(path)


def tls_login(home: Path, found: TlsNode, user: str) -> str:
    """Write the configuration of a client with a certificate; return its path."""
    ca, pair = found.client_files(user)
    both = home / f"{user}.pem"
    both.write_text(Path(pair.key).read_text() + Path(pair.certificate).read_text())
    path = home / f"tls-{user}.properties"
    path.write_text(
        f"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={ca}\n"
        f"ssl.keystore.type=PEM\nssl.keystore.location={both}\n"
    )
    return str(path)


def output(work: Callable[[], str]) -> str:
    """Return what a tool prints, also if it fails."""
    try:
        return work()
    except AssertionError as failed:
        return str(failed)


async def tool(
    found: Cluster, home: Path, main: str, user: str, *arguments: str, password: str = ""
) -> str:
    """Return the output of a tool that authenticates as a user at all nodes."""
    addresses = [
        node.config.clients.address for node in found.nodes.nodes if node.config.clients is not None
    ]
    path = login(home, user, password or f"password of {user}")
    at = ("--bootstrap-server", ",".join(addresses), "--command-config", path)
    return await asyncio.to_thread(output, partial(run_java, kafka_jars(), main, *at, *arguments))


def test_acls_and_users_of_kafkas_tools_decide_about_kafkas_clients(tmp_path: Path) -> None:
    async def check() -> None:
        async with cluster(tmp_path, 3) as found:
            assert len(found.nodes.nodes) == 3
            use = partial(tool, found, tmp_path)

            assert DENIED in await use(ACLS, "alice", "--list")
            describe = ("--operation", "describe", "--cluster")
            allow = ("--add", "--allow-principal", "User:alice", *describe)
            assert DENIED in await use(ACLS, "alice", *allow), "alice cannot allow it"
            assert DENIED not in await use(ACLS, "operator", *allow)
            assert "principal=User:alice, host=*" in await use(ACLS, "alice", "--list")
            await use(ACLS, "operator", "--add", "--deny-principal", "User:*", *describe)
            assert DENIED in await use(ACLS, "alice", "--list")
            assert "permissionType=DENY" in await use(ACLS, "operator", "--list")

            user = ("--alter", "--entity-type", "users", "--entity-name", "carol")
            added = ("--add-config", "SCRAM-SHA-256=[iterations=8192,password=xyzzy]")
            assert "Completed updating" in await use(CONFIGS, "operator", *user, *added)
            for node in found.nodes.nodes:
                await eventually(partial(has_user, node, "carol"))
            assert DENIED in await use(ACLS, "carol", "--list", password="xyzzy")
            wrong = await use(ACLS, "carol", "--list", password="plugh")
            assert "SaslAuthenticationException" in wrong

    asyncio.run(check())


@pytest.mark.parametrize(
    ("listener", "option", "operation"),
    [("clients", "--bootstrap-server", "describe"), ("voters", "--bootstrap-controller", "all")],
)
def test_acls_of_kafkas_tool_decide_about_names_in_certificates(
    tmp_path: Path, listener: str, option: str, operation: str
) -> None:
    """Controllers allow the request for their nodes, which the tool sends first, with ALTER."""

    async def check() -> None:
        async with tls_node(tmp_path, "clients", "voters") as found:

            async def use(user: str, *arguments: str) -> str:
                path = tls_login(tmp_path, found, user)
                at = (option, found.address(listener), "--command-config", path)
                work = partial(run_java, kafka_jars(), ACLS, *at, *arguments)
                return await asyncio.to_thread(output, work)

            cluster_operation = ("--operation", operation, "--cluster")
            allow = ("--add", "--allow-principal", "User:alice", *cluster_operation)
            assert DENIED in await use("alice", *allow)
            assert DENIED not in await use("operator", *allow)
            assert "principal=User:alice, host=*" in await use("alice", "--list")
            await use("operator", "--add", "--deny-principal", "User:alice", *cluster_operation)
            assert DENIED in await use("alice", "--list")

    asyncio.run(check())


def test_kafkas_tool_creates_tokens_with_the_password_that_brokers_compute(tmp_path: Path) -> None:
    async def check() -> None:
        async with cluster(tmp_path) as found:
            use = partial(tool, found, tmp_path, TOKENS)
            created = await use("reader", "--create", "--max-life-time-period", "-1")
            token_id, password, owner = created.strip().splitlines()[-1].split()[:3]
            expected = run_java(kafka_jars(), str(PASSWORD), "a secret key", token_id)
            assert (password, owner) == (expected.strip(), "User:reader")
            describe = ("--describe", "--owner-principal", "User:reader")
            assert token_id in await use("reader", *describe)
            assert token_id not in await use("alice", *describe)
            end = ("--expire", "--expiry-time-period", "-1", "--hmac", password)
            assert "Exception" in await use("alice", *end)
            assert token_id in await use("reader", *describe)
            await use("reader", *end)
            assert token_id not in await use("reader", *describe)

    asyncio.run(check())
