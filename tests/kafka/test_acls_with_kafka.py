"""Kafka's own tools at the listener for clients of nodes whose ACLs and users are in the log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.state.controller_apis.test_acls_of_nodes import cluster, has_user
from tests.support.controller_nodes import eventually
from tests.support.kafka import kafka_jars, run_java

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

ACLS = "org.apache.kafka.tools.AclCommand"
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


def output(work: Callable[[], str]) -> str:
    """Return what a tool prints, also if it fails."""
    try:
        return work()
    except AssertionError as failed:
        return str(failed)


def test_acls_and_users_of_kafkas_tools_decide_about_kafkas_clients(tmp_path: Path) -> None:
    async def check() -> None:
        async with cluster(tmp_path, 3) as found:
            addresses = [
                node.config.clients.address
                for node in found.nodes.nodes
                if node.config.clients is not None
            ]
            assert len(addresses) == 3

            async def tool(main: str, user: str, *arguments: str, password: str = "") -> str:
                path = login(tmp_path, user, password or f"password of {user}")
                at = ("--bootstrap-server", ",".join(addresses), "--command-config", path)
                return await asyncio.to_thread(
                    output, partial(run_java, kafka_jars(), main, *at, *arguments)
                )

            assert DENIED in await tool(ACLS, "alice", "--list")
            describe = ("--operation", "describe", "--cluster")
            allow = ("--add", "--allow-principal", "User:alice", *describe)
            assert DENIED in await tool(ACLS, "alice", *allow), "alice cannot allow it"
            assert DENIED not in await tool(ACLS, "operator", *allow)
            assert "principal=User:alice, host=*" in await tool(ACLS, "alice", "--list")
            await tool(ACLS, "operator", "--add", "--deny-principal", "User:*", *describe)
            assert DENIED in await tool(ACLS, "alice", "--list")
            assert "permissionType=DENY" in await tool(ACLS, "operator", "--list")

            user = ("--alter", "--entity-type", "users", "--entity-name", "carol")
            added = ("--add-config", "SCRAM-SHA-256=[iterations=8192,password=xyzzy]")
            assert "Completed updating" in await tool(CONFIGS, "operator", *user, *added)
            for node in found.nodes.nodes:
                await eventually(partial(has_user, node, "carol"))
            assert DENIED in await tool(ACLS, "carol", "--list", password="xyzzy")
            wrong = await tool(ACLS, "carol", "--list", password="plugh")
            assert "SaslAuthenticationException" in wrong

    asyncio.run(check())
