"""The upgrade of a quorum of real nodes from static voters: by UpdateFeatures of a controller, and,
of nodes without one, by changes of a batch job and the command line."""

from __future__ import annotations

import asyncio
import base64
import random
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from tests.support.cli import run as command
from tests.support.controller_nodes import (
    ControllerNodes,
    active_epoch,
    ask,
    controller_nodes,
    eventually,
)
from tests.support.request_builder import request
from tests.support.served_node import ServedNode
from tests.support.sweep_size import nightly_except

import raftlog
from raftlog import ConnectedLog
from raftlog.errors import LogReadOnlyError, OptionError, VoterChangeError
from raftlog.wire import ApiKey
from raftlog_state import apply_changes
from raftlog_state.controller import SetFeature
from raftlog_state.errors import InvalidChangesError
from raftlog_state.image import FeatureRow
from raftlog_state.loader.image_reader import ImageReader
from raftlog_state.records import NoOpRecord, Redactor

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
    update = {"feature": "kraft.version", "max_version_level": level, "upgrade_type": kind}
    asked = request(ApiKey.UPDATE_FEATURES, feature_updates=[update], validate_only=dry)
    while True:  # without the election of another leader meanwhile
        await eventually(lambda: nodes.active is not None)
        response = await ask(nodes.active or nodes.nodes[0], ApiKey.UPDATE_FEATURES, asked)
        if response.error_code is not ErrorCode.not_controller:
            return response


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


LEVEL = SetFeature(feature="metadata.version", level=30)
UPGRADE = SetFeature(feature="kraft.version", level=1)
DOWN = SetFeature(feature="kraft.version", level=0, allow_downgrade=True)
UNKNOWN = SetFeature(feature="share.version", level=99)


def elections_only(log: ConnectedLog) -> bool:
    return all(one.record_count == 1 for one in log.reader().batches(0, log.end_offset))


def change(address: str) -> None:
    """Raise kraft.version of a quorum whose nodes host no controller, as a batch job does."""
    with raftlog.connect(address, timeout_ms=20_000) as log:
        with pytest.raises(InvalidChangesError, match="This release only supports versions 0-2"):
            apply_changes(log, [LEVEL, UPGRADE, UNKNOWN])
        assert elections_only(log)
        while True:  # until the voters have reported themselves to the leader
            try:
                dry = apply_changes(log, [LEVEL, UPGRADE], validate_only=True)
                break
            except InvalidChangesError as error:
                if "not all of the voters support it" not in str(error):
                    raise
        assert [type(one.record) for one in dry.records][1:] == [NoOpRecord]
        with pytest.raises(InvalidChangesError, match="Can't downgrade the version of this feat"):
            apply_changes(log, [LEVEL, UPGRADE, DOWN])
        assert elections_only(log)
        done = apply_changes(log, [LEVEL, UPGRADE], rng=random.Random(1))
        batches = list(log.reader().batches(0, done.result.end_offset))
        found = [(one.is_control, one.record_count) for one in batches if one.record_count > 1]
        assert found == [(True, 2), (False, 4)], "the voters precede the changes"
        assert batches[-1].base_offset == done.result.base_offset
        images = ImageReader(log.reader(), Redactor(reveal=True))
        image = images.image_at(images.end_offset())
        assert image.quorum.kraft_version == 1
        assert [row.level for row in image.rows_of(FeatureRow)] == [30]
        # a job that was killed after the upgrade is run again, and once more after its changes
        name = ("job", "query", 1)
        again = apply_changes(log, [UPGRADE, LEVEL], commit=name)
        assert type(again.records[0].record) is NoOpRecord, "it has that version"
        repeated = apply_changes(log, [UPGRADE, LEVEL], commit=name)
        assert repeated.result.was_duplicate
        assert repeated.result.last_offset == again.result.last_offset
        assert image.quorum == ImageReader(log.reader(), Redactor()).image_at(log.end_offset).quorum
        with pytest.raises(InvalidChangesError, match="Can't downgrade the version of this feat"):
            apply_changes(log, [DOWN])
        with pytest.raises(VoterChangeError, match="the new version is a downgrade"):
            log.upgrade_kraft_version(0)
        with pytest.raises(OptionError, match="option version: it must be from 0 to 32767"):
            log.upgrade_kraft_version(2**15)


@pytest.mark.parametrize("count", nightly_except([1], [1, 3]))
def test_a_batch_job_raises_it_at_nodes_without_a_controller(count: int, tmp_path: Path) -> None:
    async def check() -> None:
        async with controller_nodes(
            tmp_path, count, is_static=True, extra=FAST, services=()
        ) as nodes:
            address = f"127.0.0.1:{nodes.nodes[-1].port}"
            await asyncio.to_thread(change, address)
            await eventually(
                lambda: all(
                    node.node.raft_node.replica.core.kraft_version == 1 for node in nodes.nodes
                )
            )

    asyncio.run(check())


def test_of_a_controllers_log_it_is_raised_by_the_command_and_not_by_a_batch_job(
    tmp_path: Path,
) -> None:
    def refused(address: str) -> None:
        with raftlog.connect(address) as log, pytest.raises(LogReadOnlyError):
            apply_changes(log, [UPGRADE])

    async def check() -> None:
        async with controller_nodes(tmp_path, is_static=True) as nodes:
            (node,) = nodes.nodes
            await eventually(lambda: nodes.active is not None)
            address, core = f"127.0.0.1:{node.port}", node.node.raft_node.replica.core
            while not await has_succeeded(nodes, 1, dry=True):
                await asyncio.sleep(0.01)
            await asyncio.to_thread(refused, address)
            assert core.kraft_version == 0
            change = ("quorum", "--bootstrap-server", address, "--kraft-version")
            code, _, text = await asyncio.to_thread(command, *change, "1")
            assert (code, text) == (0, "")
            assert core.kraft_version == 1
            epoch, end_offset = active_epoch(node), node.node.raft_node.replica.log.end_offset
            twice = [{"feature": "kraft.version", "max_version_level": 1, "upgrade_type": 1}] * 2
            asked = request(ApiKey.UPDATE_FEATURES, feature_updates=twice)
            response = await ask(node, ApiKey.UPDATE_FEATURES, asked)
            assert response.error_code is ErrorCode.none, response
            assert node.node.raft_node.replica.log.end_offset == end_offset + 1, "a NoOp"
            assert active_epoch(node) == epoch, "it does not fail over"
            code, _, text = await asyncio.to_thread(command, *change, "0")
            assert code == 1
            assert "Can't downgrade the version of this feature" in text

    asyncio.run(check())


def test_a_node_without_a_controller_refuses_what_it_cannot_update(tmp_path: Path) -> None:
    async def check() -> None:
        async with controller_nodes(tmp_path, 1, services=()) as nodes:
            (node,) = nodes.nodes
            core = node.node.raft_node.replica.core
            await eventually(
                lambda: core.high_watermark == node.node.raft_node.replica.log.end_offset
            )
            before = node.node.raft_node.replica.log.end_offset
            for feature, level, kind, version, reason in (
                ("metadata.version", 30, 1, 2, "Feature metadata.version not found"),
                ("kraft.version", 0, 1, 2, "the new version is a downgrade"),
                ("kraft.version", 0, 2, 2, "Can't downgrade the version of this feature"),
                ("kraft.version", 2, 1, 1, "from version KRAFT_VERSION_1 to KRAFT_VERSION_2"),
            ):
                update = {"feature": feature, "max_version_level": level, "upgrade_type": kind}
                asked = request(ApiKey.UPDATE_FEATURES, feature_updates=[update])
                response = await ask(node, ApiKey.UPDATE_FEATURES, asked, version)
                assert response.error_code is ErrorCode.invalid_update_version
                assert reason in response.error_message
            same = {"feature": "kraft.version", "max_version_level": 1}
            asked = request(
                ApiKey.UPDATE_FEATURES, feature_updates=[{**same, "max_version_level": 0}, same]
            )
            response = await ask(node, ApiKey.UPDATE_FEATURES, asked, 0)
            assert response.error_code is ErrorCode.none
            assert node.node.raft_node.replica.log.end_offset == before

    asyncio.run(check())
