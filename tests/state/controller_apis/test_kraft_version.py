"""The upgrade of a quorum of real nodes from static voters, by UpdateFeatures."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from tests.support.controller_nodes import ControllerNodes, ask, controller_nodes, eventually
from tests.support.request_builder import request
from tests.support.served_node import ServedNode

from raftlog.wire import ApiKey

NOT_ALL = (
    "The update failed for all features since the following feature had an error: Invalid upgrade "
    "of kraft.version to KRAFT_VERSION_1 because not all of the voters support it"
)
DOWNGRADE = (
    "The update failed for all features since the following feature had an error: Invalid update "
    "version 0 for feature kraft.version. Can't downgrade the version of this feature."
)
FAST = "[quorum]\nfetch_timeout_ms = 500\n"


def directory_id(node: ServedNode) -> str:
    text = (Path(node.config.directory) / "meta.properties").read_text()
    return text.partition("directory.id=")[2].split()[0]


async def updated(nodes: ControllerNodes, level: int, kind: int = 1, *, dry: bool = False) -> Any:
    assert nodes.active is not None
    update = {"feature": "kraft.version", "max_version_level": level, "upgrade_type": kind}
    asked = request(ApiKey.UPDATE_FEATURES, feature_updates=[update], validate_only=dry)
    return await ask(nodes.active, ApiKey.UPDATE_FEATURES, asked)


async def has_succeeded(nodes: ControllerNodes, level: int, *, dry: bool = False) -> bool:
    response = await updated(nodes, level, dry=dry)
    assert response.error_code is ErrorCode.none or response.error_message == NOT_ALL, response
    return response.error_code is ErrorCode.none


@pytest.mark.slow
def test_static_voters_are_in_the_log_after_the_upgrade(tmp_path: Path) -> None:
    async def check() -> None:
        async with controller_nodes(tmp_path, 3, is_static=True, extra=FAST) as nodes:
            replicas = [node.node.raft_node.replica for node in nodes.nodes]
            await eventually(lambda: nodes.active is not None)
            while not await has_succeeded(nodes, 1, dry=True):
                await asyncio.sleep(0.01)
            assert {one.core.kraft_version for one in replicas} == {0}
            assert await has_succeeded(nodes, 1)
            await eventually(lambda: {one.core.kraft_version for one in replicas} == {1})
            ids = [directory_id(node) for node in nodes.nodes]
            for one in replicas:
                assert [voter.key.directory_id for voter in one.core.voters] == ids
            await eventually(lambda: len({one.core.high_watermark for one in replicas}) == 1)
            assert await has_succeeded(nodes, 1), "it has that version"
            refused = await updated(nodes, 0, 2)
            assert refused.error_code is ErrorCode.invalid_update_version
            assert refused.error_message == DOWNGRADE
            assert nodes.active is not None
            (leaving,) = [at for at in nodes.nodes if at is not nodes.active][:1]
            removed = await ask(
                nodes.active,
                ApiKey.REMOVE_RAFT_VOTER,
                request(
                    ApiKey.REMOVE_RAFT_VOTER,
                    cluster_id=None,
                    voter_id=leaving.node.raft_node.replica.core.node_id,
                    voter_directory_id=UUID(
                        bytes=base64.urlsafe_b64decode(f"{directory_id(leaving)}==")
                    ),
                ),
            )
            assert removed.error_code is ErrorCode.none, removed

    asyncio.run(check())
