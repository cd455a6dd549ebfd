"""Consumers read from a follower in their rack (KIP-392), otherwise from the leader."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from raftlog.log.writing.properties import LogConfig
from raftlog.quorum.roles import Leader
from raftlog.records.batch import iter_batches
from raftlog.wire import ApiKey, latest_schemas

from .batches import batch, produce
from .cluster import Cluster, Node, answer_of, caller, run, settle
from .requests import fetch, metadata
from .test_remote_storage import (
    COUNT,
    TIERED_LOG,
    UnreachableCluster,
    consumed,
    copy_all,
    filled,
    get,
    local_start,
    value,
)

RACKS = {1: "a", 2: "b", 3: "c"}


async def fetched(node: Node, offset: int, rack: str, version: int = 13, **more: Any) -> Any:
    """Return the answer of a fetch for its partition."""
    request = fetch(offset, rack=rack, **more)
    answer = await node.ask_client(ApiKey.FETCH, version, request, latest_schemas.FetchResponse)
    return answer.responses[0].partitions[0]


async def append(node: Node, *values: bytes) -> None:
    task = node.start(ApiKey.PRODUCE, 13, produce(batch(*values)), caller())
    await settle()
    assert task.done()


def started() -> tuple[Cluster, Node, Node]:
    """Return a cluster whose nodes have racks, its leader and a follower that is caught up."""
    cluster = Cluster(3, racks=RACKS)
    leader = cluster.elect()
    cluster.pass_time(1_000)
    return cluster, leader, cluster.follower


def rack_of(node: Node) -> str:
    return RACKS[node.node_id]


def values_of(partition: Any) -> list[bytes | None]:
    return [
        record.value
        for one in iter_batches(partition.records or b"")
        if not one.is_control
        for record in one.records()
    ]


@pytest.mark.parametrize("version", [11, 12, 13, 16])
def test_a_leader_names_the_follower_in_the_rack_of_a_consumer(version: int) -> None:
    async def work() -> None:
        cluster, leader, follower = started()
        await append(leader, b"one", b"two")
        cluster.pass_time(1_000)
        answer = await fetched(leader, 0, rack_of(follower), version)
        assert answer.error_code is ErrorCode.none
        assert answer.preferred_read_replica == follower.node_id
        assert not answer.records
        assert answer.high_watermark == leader.replica.log.end_offset
        answer = await fetched(follower, 0, rack_of(follower), version)
        assert (answer.error_code, answer.preferred_read_replica) == (ErrorCode.none, -1)
        assert values_of(answer) == [b"one", b"two"]
        counts = [
            (one.raft_node.counts.redirected_fetches, one.raft_node.counts.follower_fetches)
            for one in (leader, follower)
        ]
        assert counts == [(1, 0), (0, 1)]

    run(work())


@pytest.mark.parametrize("rack", ["", "elsewhere", "own"])
def test_a_consumer_without_a_follower_in_its_rack_reads_from_the_leader(rack: str) -> None:
    async def work() -> None:
        _, leader, follower = started()
        await append(leader, b"one")
        chosen = rack_of(leader) if rack == "own" else rack
        answer = await fetched(leader, 0, chosen)
        assert answer.preferred_read_replica == -1
        assert values_of(answer) == [b"one"]
        answer = await fetched(follower, 0, "")
        assert answer.error_code is ErrorCode.not_leader_or_follower

    run(work())


def test_a_node_without_a_rack_serves_as_the_leader_only() -> None:
    async def work() -> None:
        cluster = Cluster(3)
        leader = cluster.elect()
        answer = await fetched(cluster.follower, 0, "a")
        assert answer.error_code is ErrorCode.not_leader_or_follower
        answer = await fetched(leader, 0, "a")
        assert (answer.error_code, answer.preferred_read_replica) == (ErrorCode.none, -1)

    run(work())


def test_a_follower_that_lags_is_not_preferred_and_shows_only_what_it_knows_to_be_committed() -> (
    None
):
    async def work() -> None:
        cluster, leader, follower = started()
        await append(leader, b"one")
        cluster.pass_time(1_000)
        seen = follower.replica.log.end_offset
        follower.is_cut_off = True
        await append(leader, b"two")
        end_offset = leader.replica.log.end_offset
        answer = await fetched(leader, end_offset, rack_of(follower))
        assert answer.preferred_read_replica == -1, "it does not have the offset"
        answer = await fetched(follower, 0, rack_of(follower))
        assert values_of(answer) == [b"one"]
        answer = await fetched(follower, end_offset, rack_of(follower))
        assert answer.error_code is ErrorCode.offset_not_available
        answer = await fetched(follower, seen, rack_of(follower))
        assert (answer.error_code, answer.records) == (ErrorCode.none, b"")

    run(work())


def test_a_follower_completes_a_delayed_fetch_and_refuses_after_it_has_lost_its_leader() -> None:
    async def work() -> None:
        cluster, leader, follower = started()
        end_offset = leader.replica.log.end_offset
        request = fetch(end_offset, rack=rack_of(follower), max_wait_ms=30_000)
        task = follower.start(ApiKey.FETCH, 13, request, caller())
        await settle()
        assert not task.done()
        await append(leader, b"one")
        cluster.pass_time(1_000)
        await settle()
        answer = answer_of(task, latest_schemas.FetchResponse, 13).responses[0].partitions[0]
        assert values_of(answer) == [b"one"]
        epoch = leader.replica.core.epoch
        answer = await fetched(follower, 0, rack_of(follower), leader_epoch=epoch - 1)
        assert answer.error_code is ErrorCode.fenced_leader_epoch
        answer = await fetched(follower, 0, rack_of(follower), leader_epoch=epoch + 1)
        assert answer.error_code is ErrorCode.unknown_leader_epoch
        follower.is_cut_off = True
        cluster.pass_time(10_000)
        answer = await fetched(follower, 0, rack_of(follower))
        assert answer.error_code is ErrorCode.not_leader_or_follower

    run(work())


def test_metadata_has_the_racks_that_a_leader_has_learned() -> None:
    async def work() -> None:
        _, leader, _ = started()
        answer = await leader.ask_client(
            ApiKey.METADATA, 12, metadata(), latest_schemas.MetadataResponse
        )
        assert {one.node_id: one.rack for one in answer.brokers} == RACKS

    run(work())


def test_a_follower_that_no_longer_fetches_is_not_preferred_although_it_was_in_sync() -> None:
    async def work() -> None:
        cluster, leader, follower = started()
        await append(leader, b"one")
        cluster.pass_time(1_000)
        answer = await fetched(leader, 0, rack_of(follower))
        assert answer.preferred_read_replica == follower.node_id
        follower.is_cut_off = True
        cluster.pass_time(4_000)
        assert leader.is_leader
        answer = await fetched(leader, 0, rack_of(follower))
        assert (answer.preferred_read_replica, values_of(answer)) == (-1, [b"one"])

    run(work())


def test_a_follower_whose_connection_is_lost_is_not_preferred_until_it_fetches_again() -> None:
    async def work() -> None:
        cluster, leader, follower = started()
        await append(leader, b"one")
        cluster.pass_time(1_000)
        role = leader.replica.core.role
        assert isinstance(role, Leader)
        waiting = [
            request_id
            for request_id, delayed in role.delayed_fetches.items()
            if delayed.request.replica.node_id == follower.node_id
        ]
        assert len(waiting) == 1
        leader.raft_node.drop(waiting[0])
        answer = await fetched(leader, 0, rack_of(follower))
        assert (answer.preferred_read_replica, values_of(answer)) == (-1, [b"one"])
        cluster.pass_time(3_000)
        answer = await fetched(leader, 0, rack_of(follower))
        assert answer.preferred_read_replica == follower.node_id

    run(work())


def test_the_leader_decides_about_what_a_follower_does_not_have() -> None:
    async def work() -> None:
        cluster = Cluster(3, LogConfig(segment_bytes=500), racks=RACKS)
        leader = cluster.elect()
        follower = cluster.follower
        for _ in range(10):
            await append(leader, bytes(100))
        cluster.pass_time(1_000)
        start = follower.raft_node.replica.log.end_offset - 3
        leader.raft_node.delete_records(start)
        cluster.pass_time(1_000)
        assert follower.replica.log.log_start_offset == start
        epoch = leader.replica.core.epoch
        for offset, more in ((0, {}), (start, {"last_fetched_epoch": epoch + 1})):
            answer = await fetched(follower, offset, rack_of(follower), **more)
            assert answer.error_code is ErrorCode.not_leader_or_follower
            assert answer.current_leader.leader_id == leader.node_id
            answer = await fetched(leader, offset, rack_of(follower), **more)
            assert answer.error_code is ErrorCode.offset_out_of_range
            assert answer.preferred_read_replica == -1
        assert leader.raft_node.counts.redirected_fetches == 0

    run(work())


# --- remote storage -------------------------------------------------------------------------------


class RackCluster(UnreachableCluster):
    """Cluster with racks and a store, which cannot be opened once ``is_unreachable``."""

    def __init__(self) -> None:
        super().__init__(3, TIERED_LOG, racks=RACKS)


def test_a_redirected_fetch_does_not_read_remote_storage() -> None:
    """The follower still has the segments that the leader has only in the store."""

    async def work() -> None:
        cluster = RackCluster()
        leader = await filled(cluster)
        follower = cluster.follower
        leader.raft_node.copy_to_remote()
        cluster.deliver()
        assert local_start(follower) == 0 < local_start(leader)
        cluster.is_unreachable = True
        before = cluster.opened_count
        answer = await get(leader, 0, rack=rack_of(follower))
        assert cluster.opened_count == before
        assert (answer.error_code, answer.records) == (ErrorCode.none, b"")
        assert answer.preferred_read_replica == follower.node_id
        assert answer.log_start_offset == 0
        assert values_of(await get(follower, 0, rack=rack_of(follower)))
        assert (await get(leader, 0)).error_code is ErrorCode.kafka_storage_error

    run(work())


def test_a_follower_in_the_rack_also_reads_remote_segments() -> None:
    async def work() -> None:
        cluster = RackCluster()
        leader = await filled(cluster)
        copy_all(cluster)
        cluster.pass_time(1_000)
        follower = cluster.follower
        rack = rack_of(follower)
        assert local_start(follower) > 20
        assert await consumed(follower, rack=rack) == [value(at) for at in range(COUNT)]
        for offset in (0, local_start(follower)):
            answer = await get(leader, offset, rack=rack)
            assert (answer.preferred_read_replica, answer.records) == (follower.node_id, b"")
            assert answer.log_start_offset == 0

    run(work())


def test_a_follower_without_the_list_of_remote_segments_sends_consumers_to_the_leader() -> None:
    async def work() -> None:
        cluster = RackCluster()
        cluster.elect()
        late = cluster.follower
        late.is_cut_off = late.is_remote_held = True
        leader = await filled(cluster)
        leader.raft_node.copy_to_remote()
        cluster.deliver()
        late.is_cut_off = False
        cluster.pass_time(10_000)
        start = local_start(late)
        assert start > 0
        answer = await get(late, 0, rack=rack_of(late))
        assert answer.error_code is ErrorCode.not_leader_or_follower
        answer = await get(leader, 0, rack=rack_of(late))
        assert (answer.error_code, answer.preferred_read_replica) == (ErrorCode.none, -1)
        assert values_of(answer)
        assert values_of(await get(late, start, rack=rack_of(late)))
        late.release_remote()
        assert await consumed(late, rack=rack_of(late)) == [value(at) for at in range(COUNT)]

    run(work())


def test_a_follower_whose_list_has_a_deleted_segment_sends_consumers_to_the_leader() -> None:
    async def work() -> None:
        cluster = RackCluster()
        leader = await filled(cluster)
        copy_all(cluster)
        follower = cluster.follower
        for path in list(cluster.remote_disk.files()):
            if f"/{'0' * 20}-" in path:
                cluster.remote_disk.unlink(path)
        answer = await get(follower, 0, rack=rack_of(follower))
        assert answer.error_code is ErrorCode.not_leader_or_follower
        assert answer.current_leader.leader_id == leader.node_id
        assert (await get(leader, 0)).error_code is ErrorCode.corrupt_message

    run(work())
