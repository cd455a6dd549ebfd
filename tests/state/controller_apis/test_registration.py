"""Nodes with a controller register themselves, as Kafka's controllers do (KIP-919)."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from kio.schema.controller_registration.v0.request import Listener as ControllerListener
from kio.schema.controller_registration.v0.response import ControllerRegistrationResponse
from kio.schema.errors import ErrorCode
from tests.support.controller_nodes import ControllerNodes, controller_nodes, eventually
from tests.support.controllers import Listener

from raftlog.wire import ApiKey
from raftlog.wire.log_identity import duration, int16, port
from raftlog_state.cli.controller_node import create_controller, create_publishers
from raftlog_state.controller_apis.bootstrap import bootstrap_bytes, bootstrap_features
from raftlog_state.controller_apis.registration import (
    BACKOFF_S,
    ControllerRegistrationManager,
    registration_request,
)
from raftlog_state.image import ControllerRow, Entity, FeatureRow, MetadataImage
from raftlog_state.image.rows import Endpoint
from raftlog_state.publishing import PublishingLoader

LOGS: Final = Path(__file__).parents[2] / "data" / "kraft-logs"
SERVICES: Final = (create_controller, create_publishers)
OWN, OTHER = "AAAAAAAAAAAAAAAAAAAAxQ", "AAAAAAAAAAAAAAAAAAAA8w"


# --- nodes ----------------------------------------------------------------------------------------


def registered_by_kafka() -> dict[str, Any]:
    """Return the first registration in the log of a Kafka 4.3 cluster."""
    path = LOGS / "three-nodes-4.3.1/node-100/__cluster_metadata-0/00000000000000000000.log.dump.gz"
    with gzip.open(path, "rt") as lines:
        found = next(line for line in lines if "REGISTER_CONTROLLER_RECORD" in line)
    data: dict[str, Any] = json.loads(found.partition("payload: ")[2])["data"]
    return data


def image_of(nodes: ControllerNodes, at: int = 0) -> MetadataImage:
    loader = nodes.nodes[at].node.services[1].listener
    assert isinstance(loader, PublishingLoader)
    return loader.image


async def registered(nodes: ControllerNodes) -> list[ControllerRow]:
    """Return the controllers that all nodes know, once each node has registered its own."""
    count = len(nodes.nodes)
    await eventually(
        lambda: all(len(image_of(nodes, at).rows_of(ControllerRow)) == count for at in range(count))
    )
    await nodes.until_equal()
    return image_of(nodes).rows_of(ControllerRow)


@pytest.mark.slow
def test_each_node_registers_itself_as_a_controller_of_kafka_does(tmp_path: Path) -> None:
    async def check() -> None:
        async with controller_nodes(tmp_path, 3, services=SERVICES) as nodes:
            await nodes.until_active()
            rows = await registered(nodes)
            assert [row.controller_id for row in rows] == [1, 2, 3]
            assert len({row.incarnation_id for row in rows}) == 3
            kafkas = registered_by_kafka()
            ranges = {
                one["name"]: (one["minSupportedVersion"], one["maxSupportedVersion"])
                for one in kafkas["features"]
            }
            assert ranges["metadata.version"] == (7, 30)
            ranges |= {"metadata.version": (7, 33), "share.version": (0, 2)}  # those of 4.4.0
            (endpoint,) = kafkas["endPoints"]
            for row, node in zip(rows, nodes.nodes, strict=True):
                assert row.zk_migration_ready is kafkas["zkMigrationReady"] is False
                found = {one.name: (one.min_version, one.max_version) for one in row.features}
                assert found == ranges
                name, protocol = endpoint["name"], endpoint["securityProtocol"]
                assert row.endpoints == (Endpoint(name, "127.0.0.1", node.port, protocol),)

    asyncio.run(check())


def test_a_node_registers_itself_once_in_its_life(tmp_path: Path) -> None:
    async def check() -> None:
        async with controller_nodes(tmp_path, services=SERVICES) as nodes:
            node = await nodes.until_active()
            before = await registered(nodes)
            log = node.node.raft_node.replica.log
            end_offset = log.end_offset
            await nodes.admin(ApiKey.CREATE_TOPICS, topics=[])
            alter = {"entity": [{"entity_type": "user", "entity_name": "a"}], "ops": []}
            await nodes.admin(ApiKey.ALTER_CLIENT_QUOTAS, entries=[alter])
            assert log.end_offset == end_offset
            assert await registered(nodes) == before

    asyncio.run(check())


def test_a_cluster_whose_metadata_version_is_too_old_has_no_registrations(tmp_path: Path) -> None:
    async def check() -> None:
        features = bootstrap_features("3.6", {})
        bootstrap = bootstrap_bytes(features, written_ms=0)
        async with controller_nodes(tmp_path, bootstrap=bootstrap, services=SERVICES) as nodes:
            await nodes.until_active()
            assert not image_of(nodes).rows_of(ControllerRow)
            up = {"feature": "metadata.version", "max_version_level": 30, "upgrade_type": 1}
            updated = await nodes.admin(ApiKey.UPDATE_FEATURES, feature_updates=[up])
            assert updated.error_code is ErrorCode.none
            assert len(await registered(nodes)) == 1

    asyncio.run(check())


# --- the manager ----------------------------------------------------------------------------------


class Responses:
    """Active controller that gives these responses, and the pauses between the requests."""

    def __init__(self, *responses: ErrorCode | Exception) -> None:
        self.left = list(responses)
        self.pauses: list[float] = []
        self.listener = Listener()
        endpoint = ControllerListener(
            name="CONTROLLER", host="h", port=port(9093), security_protocol=int16(0)
        )
        self.manager = ControllerRegistrationManager(
            registration_request(1, OWN, endpoint),
            send=self.send,
            listener=self.listener,
            sleep=self.sleep,
        )

    async def send(self, request: object) -> ControllerRegistrationResponse:
        response = self.left.pop(0)
        if isinstance(response, Exception):
            raise response
        return ControllerRegistrationResponse(
            throttle_time=duration(0), error_code=response, error_message=None
        )

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)

    async def update(self, incarnation_id: str | None, level: int = 30) -> None:
        """Publish an image with this registration of the node, and let the manager act on it."""
        features = [FeatureRow(name="metadata.version", level=level)]
        rows = [
            ControllerRow(
                controller_id=1,
                incarnation_id=incarnation_id,
                zk_migration_ready=False,
                endpoints=(),
                features=(),
            )
            for incarnation_id in ([] if incarnation_id is None else [incarnation_id])
        ]
        empty = MetadataImage.empty()
        maps = {
            **empty.maps,
            Entity.FEATURE: {row.key: row for row in features},
            Entity.CONTROLLER: {row.key: row for row in rows},
        }
        self.manager.on_metadata_update(None, replace(empty, maps=maps), None)
        for _ in range(20):
            await asyncio.sleep(0)


def run(check: Callable[[], Awaitable[None]]) -> None:
    async def in_loop() -> None:
        await check()

    asyncio.run(in_loop())


def test_a_registration_is_sent_until_it_is_acknowledged() -> None:
    async def check() -> None:
        failures = (ConnectionError("no leader is known"), ErrorCode.not_controller, TimeoutError())
        env = Responses(*failures, ErrorCode.none, ErrorCode.none)
        await env.update(None)
        assert env.pauses == [BACKOFF_S, 2 * BACKOFF_S, 4 * BACKOFF_S]
        assert len(env.left) == 1
        assert [one.rpartition(": ")[2] for one in env.listener.messages] == [
            "no leader is known",
            "not_controller",
            "TimeoutError",
        ]
        await env.update(None)
        assert len(env.left) == 1, "an update without a change of the registration"

    run(check)


def test_a_node_that_another_process_has_registered_registers_itself_again() -> None:
    async def check() -> None:
        env = Responses(ErrorCode.none, ErrorCode.none)
        await env.update(OTHER)
        assert len(env.left) == 1, "the registration of an earlier process"
        await env.update(OWN)
        assert len(env.left) == 1
        await env.update(OTHER)
        assert not env.left

    run(check)


def test_nothing_is_sent_while_the_metadata_version_has_no_registrations() -> None:
    async def check() -> None:
        env = Responses(ErrorCode.none)
        await env.update(None, level=14)
        assert len(env.left) == 1
        await env.update(None, level=15)
        assert not env.left

    run(check)


def test_a_closed_manager_sends_no_more() -> None:
    async def check() -> None:
        env = Responses(*[ErrorCode.not_controller] * 50)
        task = asyncio.create_task(env.update(None))
        for _ in range(5):
            await asyncio.sleep(0)
        env.manager.close()
        await task
        assert 40 < len(env.left) < 50

    run(check)
