"""DeleteRecords of a log with remote storage: the log of all nodes starts at the offset."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kio.schema.errors import ErrorCode

from raftlog.log.format.directory import REMOTE_SEGMENTS_NAME
from raftlog.log.writing.properties import LogConfig
from tests.log.remote.tiered_logs import segment_names

from .cluster import TOPIC, Cluster, Node, run, settle
from .test_deletion import TIMEOUT_MS, delete, results, start
from .test_offsets import EARLIEST, LOCAL
from .test_remote_storage import (
    COUNT,
    REMOTE,
    TIERED_LOG,
    ObservedCluster,
    ObservedDisk,
    consumed,
    copy_all,
    filled,
    find,
    get,
    local_start,
    time_of,
    value,
)

FIRST = 3
"""Offset of the first record, after those of the election."""


def earliest(cluster: Cluster) -> list[int | None]:
    return [node.replica.log.earliest_offset for node in cluster.nodes]


async def check_starts_at(cluster: Cluster, node: Node, offset: int) -> None:
    """Check what clients and all nodes see of a log that starts at an offset."""
    assert earliest(cluster) == [offset] * len(cluster.nodes)
    assert (await find(node, EARLIEST)).offset == offset
    assert (await get(node, offset - 1)).error_code is ErrorCode.offset_out_of_range
    assert (await get(node, offset)).log_start_offset == offset
    left = [value(at) for at in range(COUNT) if FIRST + at >= offset]
    assert await consumed(node, offset) == left
    assert (await find(node, time_of(0))).offset == max(offset, FIRST)


@pytest.mark.parametrize("where", ["remote", "local"])
def test_all_nodes_start_at_the_offset_and_the_leader_deletes_the_objects_below(where: str) -> None:
    async def work() -> None:
        cluster = Cluster(3, config=TIERED_LOG)
        leader = await filled(cluster)
        copy_all(cluster)
        cluster.pass_time(1_000)
        offset = 12 if where == "remote" else leader.replica.log.end_offset - 3
        assert (offset < local_start(leader)) is (where == "remote")
        before = segment_names(cluster.remote_disk, REMOTE)
        assert await delete(leader, offset) == [(ErrorCode.none, offset)]
        await check_starts_at(cluster, leader, offset)
        assert segment_names(cluster.remote_disk, REMOTE) == before, "readers may have begun"
        for _ in range(2):
            copy_all(cluster)
            await check_starts_at(cluster, leader, offset)
        bases = sorted(int(name[:20]) for name in segment_names(cluster.remote_disk, REMOTE))
        assert all(end > offset for end in [*bases[1:], leader.replica.log.end_offset])
        assert len(bases) < len(before)
        second = cluster.change_leader()
        assert second is not leader
        assert earliest(cluster) == [offset] * 3
        assert (await find(second, EARLIEST)).offset == offset

    run(work())


def test_before_the_first_copy_the_start_is_known_to_all_nodes_and_nothing_below_is_copied() -> (
    None
):
    async def work() -> None:
        cluster = Cluster(3, config=TIERED_LOG)
        leader = await filled(cluster)
        assert await delete(leader, 20) == [(ErrorCode.none, 20)]
        await check_starts_at(cluster, leader, 20)
        copy_all(cluster)
        await check_starts_at(cluster, leader, 20)
        assert min(segment_names(cluster.remote_disk, REMOTE)).startswith(f"{20:020d}")

    run(work())


def test_everything_is_deleted_at_the_high_watermark() -> None:
    async def work() -> None:
        cluster = Cluster(3, config=TIERED_LOG)
        leader = await filled(cluster)
        copy_all(cluster)
        cluster.pass_time(1_000)
        end = leader.replica.log.end_offset
        assert await delete(leader, -1) == [(ErrorCode.none, end)]
        for _ in range(2):
            copy_all(cluster)
        assert earliest(cluster) == [end] * 3
        assert not segment_names(cluster.remote_disk, REMOTE)
        assert (await find(leader, EARLIEST)).offset == (await find(leader, LOCAL)).offset == end

    run(work())


def test_a_log_start_never_decreases() -> None:
    async def work() -> None:
        cluster = Cluster(3, config=TIERED_LOG)
        leader = await filled(cluster)
        copy_all(cluster)
        cluster.pass_time(1_000)
        for offset in (12, 5, 12):
            assert await delete(leader, offset) == [(ErrorCode.none, 12)]
        assert earliest(cluster) == [12] * 3

    run(work())


def test_a_voter_that_is_away_learns_the_start_when_it_is_back() -> None:
    async def work() -> None:
        cluster = Cluster(3, config=TIERED_LOG)
        leader = await filled(cluster)
        copy_all(cluster)
        cluster.pass_time(1_000)
        away = cluster.follower
        away.is_cut_off = True
        task = start(leader, 12)
        await settle()
        cluster.pass_time(TIMEOUT_MS + 100)
        await settle()
        assert results(task) == [(ErrorCode.request_timed_out, -1)]
        assert away.replica.log.earliest_offset == 0
        away.is_cut_off = False
        cluster.pass_time(5_000)
        assert earliest(cluster) == [12] * 3

    run(work())


def test_a_voter_that_does_not_know_its_remote_segments_yet_delays_the_response() -> None:
    """Its local segments start later, so that nothing there shows where the log starts."""

    async def work() -> None:
        cluster = Cluster(3, config=TIERED_LOG)
        cluster.elect()
        late = cluster.follower
        late.is_cut_off = late.is_remote_held = True
        leader = await filled(cluster)
        copy_all(cluster)
        late.is_cut_off = False
        cluster.pass_time(5_000)
        assert local_start(late) > 12
        assert late.replica.log.earliest_offset is None
        task = start(leader, 12)
        await settle()
        cluster.pass_time(1_000)
        await settle()
        assert not task.done()
        late.release_remote()
        cluster.pass_time(1_000)
        await settle()
        assert results(task) == [(ErrorCode.none, 12)]
        await check_starts_at(cluster, leader, 12)

    run(work())


class MixedCluster(Cluster):
    """Cluster whose last node has no remote storage."""

    def config_of(self, node_id: int, config: LogConfig) -> LogConfig:
        return replace(config, remote_storage_enable=node_id < 3)


def test_a_node_without_remote_storage_does_not_follow_the_local_start_of_the_leader() -> None:
    async def work() -> None:
        cluster = MixedCluster(3, config=TIERED_LOG)
        leader, plain = await filled(cluster), cluster.nodes[-1]
        while leader is plain:
            leader = cluster.change_leader()
        copy_all(cluster)
        cluster.pass_time(2_000)
        assert local_start(leader) > 20
        assert local_start(plain) == 0
        leader.raft_node.delete_records(local_start(leader))
        cluster.pass_time(2_000)
        assert local_start(plain) == local_start(leader)

    run(work())


def test_a_damaged_list_of_remote_segments_refuses_a_deletion_until_it_is_written_again() -> None:
    async def work() -> None:
        cluster = Cluster(3, config=TIERED_LOG)
        leader = await filled(cluster)
        copy_all(cluster)
        for node in cluster.nodes:
            node.disk.put(f"/data/{TOPIC}-0/{REMOTE_SEGMENTS_NAME}", b"damaged")
            node.restart()
        leader = cluster.elect()
        assert earliest(cluster) == [None] * 3
        assert await delete(leader, 12) == [(ErrorCode.policy_violation, -1)]
        copy_all(cluster)
        cluster.pass_time(1_000)
        assert await delete(leader, 12) == [(ErrorCode.none, 12)]
        await check_starts_at(cluster, leader, 12)

    run(work())


def test_a_follower_with_a_damaged_list_of_remote_segments_deletes_once_it_is_written_again() -> (
    None
):
    """Until then it reads the damaged list once, and not for each response of the leader."""

    async def work() -> None:
        cluster = ObservedCluster(3, config=TIERED_LOG)
        leader = await filled(cluster)
        copy_all(cluster)
        cluster.pass_time(1_000)
        follower = cluster.follower
        follower.disk.put(f"/data/{TOPIC}-0/{REMOTE_SEGMENTS_NAME}", b"damaged")
        follower.restart()
        cluster.pass_time(1_000)
        task = start(leader, 12)
        await settle()
        assert isinstance(follower.disk, ObservedDisk)
        before = follower.disk.opened_counts.copy()
        cluster.pass_time(2_000)
        await settle()
        assert not task.done()
        assert REMOTE_SEGMENTS_NAME not in str(follower.disk.opened_counts - before)
        assert earliest(cluster).count(12) == 2
        assert follower.replica.log.earliest_offset is None
        copy_all(cluster)
        cluster.pass_time(1_000)
        await settle()
        assert results(task) == [(ErrorCode.none, 12)]
        await check_starts_at(cluster, leader, 12)

    run(work())
