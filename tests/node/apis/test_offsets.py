"""ListOffsets and OffsetForLeaderEpoch: offsets by name, timestamp and epoch."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v11.response import ListOffsetsResponse
from kio.schema.offset_for_leader_epoch.v4.response import OffsetForLeaderEpochResponse

from raftlog.log.reading.transactions import Marker, ValueKind, marker_value
from raftlog.log.writing.properties import LogConfig
from raftlog.node.access import Rights
from raftlog.records.batch import NewRecord
from raftlog.wire import ApiKey, latest_schemas

from .batches import batch, produce
from .cluster import TIME_MS, Cluster, Node, caller, run, settle
from .requests import READ_COMMITTED, epoch_end, list_offsets

LATEST, EARLIEST, MAX_TIMESTAMP, LOCAL, TIERED, PENDING = -1, -2, -3, -4, -5, -6
LATER_MS = TIME_MS + 3_000_000


async def put(node: Node, *values: Any, **more: Any) -> int:
    answer = await node.ask_client(
        ApiKey.PRODUCE, 9, produce(batch(*values, **more)), latest_schemas.ProduceResponse
    )
    return int(answer.responses[0].partition_responses[0].base_offset)


async def find(node: Node, timestamp: int, version: int = 11, **more: Any) -> Any:
    principal = more.pop("principal", None)
    answer = await node.ask_client(
        ApiKey.LIST_OFFSETS,
        version,
        list_offsets(timestamp, **more),
        ListOffsetsResponse,
        principal,
    )
    return answer.topics[0].partitions[0]


@pytest.mark.parametrize("version", range(1, 12))
def test_start_and_end_are_returned_in_every_version(version: int) -> None:
    async def work() -> None:
        leader = Cluster().elect()
        await put(leader, b"a")
        latest, earliest = (
            await find(leader, LATEST, version),
            await find(leader, EARLIEST, version),
        )
        assert (latest.error_code, latest.offset) == (ErrorCode.none, leader.replica.log.end_offset)
        assert (earliest.offset, earliest.timestamp) == (0, -1)
        if version >= 4:
            assert latest.leader_epoch == leader.replica.core.epoch
            assert earliest.leader_epoch == 1

    run(work())


@pytest.mark.parametrize(
    ("name", "first_version"), [(MAX_TIMESTAMP, 7), (LOCAL, 8), (TIERED, 9), (PENDING, 11)]
)
def test_newer_names_are_unsupported_in_older_versions(name: int, first_version: int) -> None:
    async def work() -> None:
        leader = Cluster().elect()
        before = await find(leader, name, first_version - 1)
        assert before.error_code is ErrorCode.unsupported_version
        assert (await find(leader, name, first_version)).error_code is ErrorCode.none
        assert (await find(leader, -7)).error_code is ErrorCode.unsupported_version

    run(work())


def test_tiered_storage_is_empty_and_the_local_log_is_complete() -> None:
    async def work() -> None:
        leader = Cluster().elect()
        assert (await find(leader, LOCAL)).offset == 0
        for name in (TIERED, PENDING):
            found = await find(leader, name)
            assert (found.offset, found.timestamp, found.leader_epoch) == (-1, -1, -1)

    run(work())


def test_a_timestamp_finds_the_first_record_that_is_not_older() -> None:
    async def work() -> None:
        leader = Cluster().elect()
        records = [NewRecord(None, b"%d" % at, LATER_MS + at * 10) for at in range(5)]
        base = await put(leader, *records)
        await put(leader, NewRecord(None, b"old", LATER_MS + 7))
        for wanted_ms, offset in ((LATER_MS, base), (LATER_MS + 11, base + 2)):
            found = await find(leader, wanted_ms)
            assert found.offset == offset
            assert found.timestamp == records[offset - base].timestamp_ms
            assert found.leader_epoch == leader.replica.core.epoch
        beyond = await find(leader, LATER_MS + 41)
        assert (beyond.error_code, beyond.offset) == (ErrorCode.none, -1)
        newest = await find(leader, MAX_TIMESTAMP)
        assert (newest.offset, newest.timestamp) == (base + 4, LATER_MS + 40)

    run(work())


def test_timestamps_are_found_in_every_segment() -> None:
    async def work() -> None:
        leader = Cluster(config=LogConfig(segment_bytes=2000)).elect()
        bases = [
            await put(leader, NewRecord(None, bytes(500), LATER_MS + at * 100)) for at in range(20)
        ]
        for at in (0, 7, 19):
            assert (await find(leader, LATER_MS + at * 100 - 50)).offset == bases[at]
        assert (await find(leader, MAX_TIMESTAMP)).offset == bases[-1]

    run(work())


def test_uncommitted_records_are_not_found() -> None:
    async def work() -> None:
        cluster = Cluster(3)
        leader = cluster.elect()
        high_watermark = leader.replica.core.high_watermark
        for node in cluster.nodes:
            node.is_sync_held = node is not leader
        request = produce(batch(NewRecord(None, b"x", LATER_MS)))
        leader.start(ApiKey.PRODUCE, 9, request, caller())
        await settle()
        assert leader.replica.log.end_offset > (high_watermark or 0)
        assert (await find(leader, LATEST)).offset == high_watermark
        assert (await find(leader, LATER_MS)).offset == -1
        assert (await find(leader, MAX_TIMESTAMP)).offset == -1

    run(work())


def test_read_committed_ends_before_an_open_transaction() -> None:
    async def work() -> None:
        leader = Cluster(config=LogConfig(values=ValueKind.KRAFT)).elect()
        begin = marker_value(Marker.BEGIN, "t")
        base = await put(leader, begin, b"\x01\x0e\x00b")
        assert (await find(leader, LATEST, isolation=READ_COMMITTED)).offset == base
        assert (await find(leader, LATEST)).offset == leader.replica.log.end_offset

    run(work())


@pytest.mark.parametrize(
    ("version", "error"), [(4, ErrorCode.leader_not_available), (5, ErrorCode.offset_not_available)]
)
def test_a_new_leader_returns_no_end_before_it_is_confirmed(version: int, error: ErrorCode) -> None:
    async def work() -> None:
        cluster = Cluster(3)
        old = cluster.elect()
        await put(old, b"a")
        for node in cluster.nodes:
            node.is_sync_held = True
        epoch = old.replica.core.epoch
        old.is_cut_off = True
        for _ in range(100):
            cluster.pass_time(100)
            if cluster.leader.replica.core.epoch > epoch:
                break
        assert cluster.leader is not old
        assert (await find(cluster.leader, LATEST, version)).error_code is error
        assert (await find(cluster.leader, EARLIEST, version)).offset == 0

    run(work())


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"topic": "other"}, ErrorCode.unknown_topic_or_partition),
        ({"partition": 1}, ErrorCode.unknown_topic_or_partition),
        ({"leader_epoch": 0}, ErrorCode.fenced_leader_epoch),
        ({"leader_epoch": 99}, ErrorCode.unknown_leader_epoch),
        ({"principal": caller(Rights.NONE)}, ErrorCode.topic_authorization_failed),
    ],
)
def test_offset_errors_have_kafkas_codes(more: dict[str, Any], error: ErrorCode) -> None:
    async def work() -> None:
        assert (await find(Cluster().elect(), LATEST, **more)).error_code is error

    run(work())


def test_only_the_leader_returns_offsets() -> None:
    async def work() -> None:
        cluster = Cluster(3)
        cluster.elect()
        found = await find(cluster.follower, LATEST)
        assert found.error_code is ErrorCode.not_leader_or_follower

    run(work())


# --- by epoch -------------------------------------------------------------------------------------


async def end_of(node: Node, epoch: int, version: int = 4, **more: Any) -> Any:
    principal = more.pop("principal", None)
    answer = await node.ask_client(
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        version,
        epoch_end(epoch, **more),
        OffsetForLeaderEpochResponse,
        principal,
    )
    return answer.topics[0].partitions[0]


@pytest.mark.parametrize("version", [2, 3, 4])
def test_an_epoch_ends_where_the_next_one_starts(version: int) -> None:
    async def work() -> None:
        cluster = Cluster(3)
        first = cluster.elect()
        await put(first, b"a")
        epoch, end = first.replica.core.epoch, first.replica.log.end_offset
        leader = cluster.change_leader()
        found = await end_of(leader, epoch, version)
        assert (found.error_code, found.leader_epoch, found.end_offset) == (0, epoch, end)
        now = await end_of(leader, leader.replica.core.epoch, version)
        assert now.end_offset == leader.replica.log.end_offset
        unknown = await end_of(leader, 99, version)
        assert (unknown.leader_epoch, unknown.end_offset) == (-1, -1)

    run(work())


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"topic": "other"}, ErrorCode.unknown_topic_or_partition),
        ({"leader_epoch": 0}, ErrorCode.fenced_leader_epoch),
        ({"leader_epoch": 99}, ErrorCode.unknown_leader_epoch),
        ({"principal": caller(Rights.NONE)}, ErrorCode.topic_authorization_failed),
    ],
)
def test_epoch_errors_have_kafkas_codes(more: dict[str, Any], error: ErrorCode) -> None:
    async def work() -> None:
        cluster = Cluster(3)
        leader = cluster.elect()
        assert (await end_of(leader, 1, **more)).error_code is error
        there = await end_of(cluster.follower, 1)
        assert there.error_code is ErrorCode.not_leader_or_follower

    run(work())
