"""DeleteRecords: the leader and then all voters start their logs at the requested offset."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, cast

import pytest
from kio.schema.delete_records.v2 import request as requests
from kio.schema.delete_records.v2.response import DeleteRecordsResponse
from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v11.response import ListOffsetsResponse

from raftlog.log.format.directory import checkpoint_name
from raftlog.log.reading.transactions import ValueKind
from raftlog.log.writing.properties import CleanupPolicy, LogConfig
from raftlog.node.access import Principal, Rights
from raftlog.quorum.events import TimePassed
from raftlog.records.batch import NewRecord
from raftlog.wire import ApiKey, latest_schemas
from raftlog.wire.log_identity import int32, int64
from raftlog.wire.log_identity import name as topic_name

from .batches import batch, commit_header, produce
from .cluster import TIME_MS, TOPIC, Cluster, Node, answer_of, caller, run, settle
from .requests import fetch, list_offsets

TIMEOUT_MS = 5_000
SMALL = LogConfig(segment_bytes=500)


async def put(node: Node, *values: Any, **more: Any) -> int:
    answer = await node.ask_client(
        ApiKey.PRODUCE, 9, produce(batch(*values, **more)), latest_schemas.ProduceResponse
    )
    return int(answer.responses[0].partition_responses[0].base_offset)


async def elect_and_put() -> tuple[Cluster, Node, int]:
    """Return three voters, their leader, and the offset of its first record."""
    cluster = Cluster(3)
    leader = cluster.elect()
    return cluster, leader, await put(leader, b"a")


def deletion(
    *offsets: int, topic: str = TOPIC, partition: int = 0
) -> requests.DeleteRecordsRequest:
    partitions = tuple(
        requests.DeleteRecordsPartition(partition_index=int32(partition), offset=int64(offset))
        for offset in offsets
    )
    return requests.DeleteRecordsRequest(
        topics=(requests.DeleteRecordsTopic(name=topic_name(topic), partitions=partitions),),
        timeout=cast("Any", timedelta(milliseconds=TIMEOUT_MS)),
    )


def start(
    node: Node, *offsets: int, version: int = 2, principal: Principal | None = None, **more: Any
) -> asyncio.Future[bytes | None]:
    request = deletion(*offsets, **more)
    return node.start(ApiKey.DELETE_RECORDS, version, request, principal or caller())


def results(task: asyncio.Future[bytes | None], version: int = 2) -> list[tuple[ErrorCode, int]]:
    answer = answer_of(task, DeleteRecordsResponse, version)
    return [
        (ErrorCode(one.error_code), int(one.low_watermark))
        for topic in answer.topics
        for one in topic.partitions
    ]


async def delete(node: Node, *offsets: int, **more: Any) -> list[tuple[ErrorCode, int]]:
    task = start(node, *offsets, **more)
    await settle()
    assert task.done(), "it is delayed"
    return results(task, more.get("version", 2))


def starts(cluster: Cluster) -> list[int]:
    return [node.replica.log.log_start_offset for node in cluster.nodes]


@pytest.mark.parametrize("version", range(3))
def test_all_voters_start_at_the_offset(version: int) -> None:
    async def work() -> None:
        cluster = Cluster(3, SMALL)
        leader = cluster.elect()
        offsets = [await put(leader, bytes(100)) for _ in range(20)]
        cluster.pass_time(1_000)
        before = [len(node.disk.files()) for node in cluster.nodes]
        task = start(leader, offsets[12], version=version)
        await settle()
        assert results(task, version) == [(ErrorCode.none, offsets[12])]
        assert starts(cluster) == [offsets[12]] * 3
        assert all(
            len(node.disk.files()) < count
            for node, count in zip(cluster.nodes, before, strict=True)
        )
        earliest = await leader.ask_client(
            ApiKey.LIST_OFFSETS, 11, list_offsets(-2), ListOffsetsResponse
        )
        assert earliest.topics[0].partitions[0].offset == offsets[12]
        fetched = await leader.ask_client(
            ApiKey.FETCH, 16, fetch(offsets[11]), latest_schemas.FetchResponse
        )
        (partition,) = fetched.responses[0].partitions
        assert partition.error_code is ErrorCode.offset_out_of_range

    run(work())


def test_a_batch_is_deleted_as_a_whole_and_minus_one_is_the_high_watermark() -> None:
    async def work() -> None:
        cluster = Cluster(3)
        leader = cluster.elect()
        first = await put(leader, b"a", b"b", b"c")
        assert await delete(leader, first + 2) == [(ErrorCode.none, first)]
        assert await delete(leader, 0) == [(ErrorCode.none, first)]
        assert await delete(leader, -1) == [(ErrorCode.none, first + 3)]
        assert starts(cluster) == [first + 3] * 3
        assert await put(leader, b"d") == first + 3

    run(work())


def test_of_several_offsets_of_a_partition_the_last_one_counts() -> None:
    async def work() -> None:
        cluster = Cluster(3)
        leader = cluster.elect()
        offsets = [await put(leader, b"a") for _ in range(5)]
        found = await delete(leader, offsets[1], offsets[4], offsets[2])
        assert found == [(ErrorCode.none, offsets[2])]
        assert starts(cluster) == [offsets[2]] * 3

    run(work())


def test_the_log_start_and_named_commits_survive_restarts_and_new_leaders() -> None:
    async def work() -> None:
        cluster = Cluster(3, SMALL)
        leader = cluster.elect()
        named = batch(NewRecord(None, b"a", TIME_MS, (commit_header("app", "query", 7),)))
        await leader.ask_client(ApiKey.PRODUCE, 9, produce(named), latest_schemas.ProduceResponse)
        end = await put(leader, b"b")
        assert await delete(leader, end) == [(ErrorCode.none, end)]
        new = cluster.change_leader()
        assert new is not leader
        commit = new.replica.log.producer_state.last_commit("app")
        assert commit is not None
        assert commit.name.version == 7
        assert await delete(new, -1) == [(ErrorCode.none, new.replica.log.end_offset)]

    run(work())


def test_a_voter_that_is_away_delays_the_response_and_deletes_when_it_is_back() -> None:
    async def work() -> None:
        cluster, leader, end = await elect_and_put()
        away = cluster.follower
        away.is_cut_off = True
        task = start(leader, end)
        await settle()
        cluster.pass_time(TIMEOUT_MS - 100)
        await settle()
        assert not task.done()
        assert leader.replica.log.log_start_offset == end
        cluster.pass_time(200)
        await settle()
        assert results(task) == [(ErrorCode.request_timed_out, -1)]
        assert away.replica.log.log_start_offset == 0
        later = start(leader, end)
        await settle()
        away.is_cut_off = False
        cluster.pass_time(TIMEOUT_MS - 100)
        await settle()
        assert results(later) == [(ErrorCode.none, end)]
        assert starts(cluster) == [end] * 3

    run(work())


def test_a_new_leader_ends_the_wait() -> None:
    async def work() -> None:
        cluster, leader, end = await elect_and_put()
        away = cluster.follower
        away.is_cut_off = True
        task = start(leader, end)
        await settle()
        cluster.change_leader()
        await settle()
        assert results(task) == [(ErrorCode.not_leader_or_follower, -1)]

    run(work())


def test_errors_delete_nothing() -> None:
    async def work() -> None:
        cluster = Cluster(3)
        leader = cluster.elect()
        end = await put(leader, b"a") + 1
        admin = Rights.ADMIN
        for error, node, offset, more in (
            (ErrorCode.offset_out_of_range, leader, end + 1, {}),
            (ErrorCode.offset_out_of_range, leader, -2, {}),
            (ErrorCode.unknown_topic_or_partition, leader, end, {"topic": "other"}),
            (ErrorCode.unknown_topic_or_partition, leader, end, {"partition": 1}),
            (ErrorCode.not_leader_or_follower, cluster.follower, end, {}),
            (ErrorCode.topic_authorization_failed, leader, end, {"principal": caller(~admin)}),
        ):
            assert await delete(node, offset, **more) == [(error, -1)], error
        assert starts(cluster) == [0] * 3

    run(work())


@pytest.mark.parametrize(
    "config",
    [LogConfig(values=ValueKind.KRAFT), LogConfig(cleanup_policy=CleanupPolicy.COMPACT)],
    ids=["metadata", "compact"],
)
def test_a_log_whose_start_something_else_determines_is_refused(config: LogConfig) -> None:
    async def work() -> None:
        leader = Cluster(1, config).elect()
        assert await delete(leader, -1) == [(ErrorCode.policy_violation, -1)]

    run(work())


def test_a_log_with_a_state_machine_is_refused_and_follows_no_leader() -> None:
    async def work() -> None:
        cluster, leader, end = await elect_and_put()
        cluster.follower.replica.has_listeners = True
        task = start(leader, end)
        await settle()
        cluster.pass_time(TIMEOUT_MS + 100)
        await settle()
        assert results(task) == [(ErrorCode.request_timed_out, -1)]
        assert sorted(starts(cluster)) == [0, end, end]
        leader.replica.has_listeners = True
        assert await delete(leader, end + 1) == [(ErrorCode.policy_violation, -1)]

    run(work())


def test_a_full_disk_of_a_voter_only_delays_it() -> None:
    async def work() -> None:
        cluster, leader, end = await elect_and_put()
        voter = cluster.follower
        cluster.pass_time(1_000)
        voter.disk.leave_room(0)
        task = start(leader, end)
        await settle()
        assert not task.done()
        voter.disk.full_at(None)
        cluster.pass_time(TIMEOUT_MS - 100)
        await settle()
        assert results(task) == [(ErrorCode.none, end)]

    run(work())


def test_a_snapshot_that_is_at_the_new_start_is_what_a_new_voter_fetches() -> None:
    async def work() -> None:
        cluster, leader, end = await elect_and_put()
        await delete(leader, end)
        for node in cluster.nodes:
            log = node.replica.log
            (snapshot_id,) = log.snapshots
            assert snapshot_id.end_offset == end
            names = [path.rpartition("/")[2] for path in node.disk.files()]
            assert checkpoint_name(snapshot_id) in names
            node.step(TimePassed())

    run(work())
