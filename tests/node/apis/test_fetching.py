"""Fetch: what consumers see, how long requests are delayed, and errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from raftlog.limits import WAITING_FETCHES_MAX
from raftlog.log.reading.transactions import Marker, ValueKind, marker_value
from raftlog.log.writing.properties import LogConfig
from raftlog.node.access import Rights
from raftlog.records.batch import iter_batches
from raftlog.wire import ApiKey, latest_schemas

from .batches import batch, produce
from .cluster import Cluster, Node, answer_of, caller, run, session, settle
from .requests import OTHER_ID, READ_COMMITTED, fetch

VERSIONS = range(4, 19)


async def put(node: Node, *values: bytes) -> int:
    """Append one batch; return its base offset."""
    answer = await node.ask_client(
        ApiKey.PRODUCE, 9, produce(batch(*values)), latest_schemas.ProduceResponse
    )
    (partition,) = answer.responses[0].partition_responses
    assert partition.error_code is ErrorCode.none
    return int(partition.base_offset)


async def get(
    node: Node, request: latest_schemas.FetchRequest, version: int = 18, **more: Any
) -> Any:
    """Return the answer for the one partition of a request that is answered immediately."""
    answer = await node.ask_client(
        ApiKey.FETCH, version, request, latest_schemas.FetchResponse, **more
    )
    assert answer.error_code is ErrorCode.none
    assert answer.session_id == 0
    return answer.responses[0].partitions[0]


def values(partition: Any) -> list[bytes | None]:
    """Return the users' values in an answer, which has whole batches only."""
    batches = list(iter_batches(partition.records))
    assert sum(one.byte_count for one in batches) == len(partition.records)
    return [record.value for one in batches if not one.is_control for record in one.records()]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_returns_committed_records(version: int) -> None:
    async def work() -> None:
        leader = Cluster().elect()
        await put(leader, b"a", b"b")
        await put(leader, b"c")
        found = await get(leader, fetch(), version)
        assert found.error_code is ErrorCode.none
        assert values(found) == [b"a", b"b", b"c"]
        end = leader.replica.log.end_offset
        assert (found.high_watermark, found.last_stable_offset) == (end, end)
        assert found.aborted_transactions is None

    run(work())


def test_a_consumer_gets_the_whole_batch_with_its_offset() -> None:
    async def work() -> None:
        leader = Cluster().elect()
        base = await put(leader, b"a", b"b", b"c")
        await put(leader, b"d")
        assert values(await get(leader, fetch(base + 1))) == [b"a", b"b", b"c", b"d"]
        leader.replica.log._tail_cache.clear()  # as after a restart: from the files
        assert values(await get(leader, fetch(base + 2))) == [b"a", b"b", b"c", b"d"]
        assert values(await get(leader, fetch(base + 3))) == [b"d"]
        assert values(await get(leader, fetch(base + 4))) == []

    run(work())


def test_records_above_the_high_watermark_are_not_returned() -> None:
    async def work() -> None:
        cluster = Cluster(3)
        leader = cluster.elect()
        await put(leader, b"a")
        high_watermark = leader.replica.core.high_watermark
        for node in cluster.nodes:
            node.is_sync_held = node is not leader
        task = leader.start(ApiKey.PRODUCE, 9, produce(batch(b"b")), caller())
        await settle()
        found = await get(leader, fetch())
        assert values(found) == [b"a"]
        assert found.high_watermark == high_watermark
        beyond = await get(leader, fetch(leader.replica.log.end_offset))
        assert (beyond.error_code, beyond.records) == (ErrorCode.none, b"")
        cluster.follower.release_syncs()
        await settle()
        assert task.done()
        assert values(await get(leader, fetch())) == [b"a", b"b"]

    run(work())


def test_a_byte_limit_admits_at_least_one_batch_and_only_whole_ones() -> None:
    async def work() -> None:
        leader = Cluster().elect()
        base = await put(leader, bytes(500))
        await put(leader, b"b" * 500)
        await put(leader, b"c" * 500)
        assert len(values(await get(leader, fetch(base, max_bytes=1)))) == 1
        assert len(values(await get(leader, fetch(base, partition_max_bytes=1)))) == 1
        assert len(values(await get(leader, fetch(base, max_bytes=1300)))) == 2
        assert len(values(await get(leader, fetch(base, partition_max_bytes=1300)))) == 2
        leader.replica.log._tail_cache.clear()
        assert len(values(await get(leader, fetch(base, max_bytes=1300)))) == 2

    run(work())


@pytest.mark.parametrize("length", [-(2**31), -12, -1, 0, 48, 2**31 - 1])
def test_batches_before_a_corrupt_length_are_returned(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        leader = Cluster().elect()
        await put(leader, b"a")
        second = await put(leader, b"b")
        log = leader.replica.log
        data = bytearray(log.read_bytes(0, 10_000))
        at = len(data) - len(log.read_bytes(second, 10_000))
        data[at + 8 : at + 12] = length.to_bytes(4, "big", signed=True)
        monkeypatch.setattr(log, "read_bytes", lambda _offset, _count: bytes(data))
        assert values(await get(leader, fetch())) == [b"a"]

    run(work())


def test_read_committed_ends_before_an_open_transaction() -> None:
    begin, end = marker_value(Marker.BEGIN, "t"), marker_value(Marker.END)

    async def work() -> None:
        leader = Cluster(config=LogConfig(values=ValueKind.KRAFT)).elect()
        await put(leader, b"\x01\x0e\x00a")
        base = await put(leader, begin, b"\x01\x0e\x00b")
        committed = await get(leader, fetch(isolation=READ_COMMITTED))
        assert values(committed) == [b"\x01\x0e\x00a"]
        assert committed.last_stable_offset == base < committed.high_watermark
        assert committed.aborted_transactions == ()
        assert len(values(await get(leader, fetch()))) == 3
        await put(leader, b"\x01\x0e\x00c", end)
        assert len(values(await get(leader, fetch(isolation=READ_COMMITTED)))) == 5

    run(work())


# --- delayed requests -----------------------------------------------------------------------------


async def waiting(node: Node, request: latest_schemas.FetchRequest) -> Any:
    task = node.start(ApiKey.FETCH, 18, request, caller())
    await settle()
    assert not task.done()
    return task


def result(task: Any) -> Any:
    return answer_of(task, latest_schemas.FetchResponse, 18).responses[0].partitions[0]


def test_a_delayed_fetch_is_answered_by_the_next_commit() -> None:
    async def work() -> None:
        leader = Cluster().elect()
        task = await waiting(leader, fetch(leader.replica.log.end_offset, max_wait_ms=500))
        await put(leader, b"new")
        await settle()
        assert values(result(task)) == [b"new"]

    run(work())


def test_a_delayed_fetch_is_answered_empty_at_its_deadline() -> None:
    async def work() -> None:
        cluster = Cluster()
        leader = cluster.elect()
        task = await waiting(leader, fetch(leader.replica.log.end_offset, max_wait_ms=500))
        cluster.pass_time(400)
        await settle()
        assert not task.done()
        cluster.pass_time(200)
        await settle()
        assert (result(task).error_code, result(task).records) == (ErrorCode.none, b"")

    run(work())


def test_a_fetch_waits_for_its_minimum_of_bytes() -> None:
    async def work() -> None:
        cluster = Cluster()
        leader = cluster.elect()
        end = leader.replica.log.end_offset
        task = await waiting(leader, fetch(end, max_wait_ms=5000, min_bytes=1000))
        await put(leader, bytes(300))
        await settle()
        assert not task.done()
        await put(leader, bytes(900))
        await settle()
        assert len(values(result(task))) == 2
        short = await waiting(
            leader, fetch(leader.replica.log.end_offset, max_wait_ms=500, min_bytes=1000)
        )
        await put(leader, b"x")
        cluster.pass_time(600)
        await settle()
        assert values(result(short)) == [b"x"]

    run(work())


@pytest.mark.parametrize("limit", ["max_bytes", "partition_max_bytes"])
def test_a_fetch_with_a_minimum_above_its_maximum_gets_the_maximum_immediately(limit: str) -> None:
    async def work() -> None:
        leader = Cluster().elect()
        end = leader.replica.log.end_offset
        for _ in range(3):
            await put(leader, bytes(300))
        limits: dict[str, Any] = {limit: 900}
        request = fetch(end, max_wait_ms=5000, min_bytes=2000, **limits)
        task = leader.start(ApiKey.FETCH, 18, request, caller())
        await settle()
        assert len(values(result(task))) == 2

    run(work())


def test_a_partition_named_repeatedly_counts_once() -> None:
    async def work() -> None:
        leader = Cluster().elect()
        base = await put(leader, b"a")
        await put(leader, b"b")
        topic = fetch(base).topics[0]
        (first,), (last,) = topic.partitions, fetch(base + 1).topics[0].partitions
        many = replace(topic, partitions=(first,) * 1_000)
        request = replace(
            fetch(base), topics=(many, many, replace(topic, partitions=(first, last)))
        )
        answer = await leader.ask_client(ApiKey.FETCH, 18, request, latest_schemas.FetchResponse)
        (only,) = answer.responses
        (partition,) = only.partitions
        assert values(partition) == [b"b"]

    run(work())


def test_excess_fetches_of_one_principal_are_answered_at_their_deadline() -> None:
    async def work() -> None:
        cluster = Cluster()
        leader = cluster.elect()
        end = leader.replica.log.end_offset
        request = fetch(end, max_wait_ms=500)
        tasks = [
            leader.start(ApiKey.FETCH, 18, request, caller())
            for _ in range(WAITING_FETCHES_MAX + 1)
        ]
        other = leader.start(ApiKey.FETCH, 18, request, replace(caller(), name="another"))
        await settle()
        await put(leader, b"news")
        await settle()
        assert [task.done() for task in tasks] == [True] * WAITING_FETCHES_MAX + [False]
        assert other.done()
        cluster.pass_time(500)
        await settle()
        answer = answer_of(tasks[-1], latest_schemas.FetchResponse, 18)
        assert values(answer.responses[0].partitions[0]) == [b"news"]
        again = await waiting(leader, fetch(end + 1, max_wait_ms=500))
        await put(leader, b"more")  # there is room for one that is delayed again
        await settle()
        assert again.done()

    run(work())


def test_a_delayed_fetch_is_answered_on_a_change_of_leaders() -> None:
    async def work() -> None:
        cluster = Cluster(3)
        old = cluster.elect()
        task = await waiting(old, fetch(old.replica.log.end_offset, max_wait_ms=60_000))
        leader = cluster.change_leader()
        await settle()
        answer = answer_of(task, latest_schemas.FetchResponse, 18)
        (partition,) = answer.responses[0].partitions
        assert partition.error_code is ErrorCode.not_leader_or_follower
        assert leader is not old

    run(work())


def test_a_fetch_without_memory_waits_for_it_or_ends_with_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("raftlog.node.apis.fetch.ROOM_WAIT_MS", 60_000)

    async def work() -> None:
        leader = Cluster().elect()
        await put(leader, b"a")
        first, lost = session(), session()
        for one in (first, lost):
            one.memory.allocate(2**30)
        answered, dropped = (leader.start(ApiKey.FETCH, 18, fetch(), one) for one in (first, lost))
        await settle()
        assert [len(one.fetches) for one in (first, lost)] == [1, 1]
        assert not answered.done()
        lost.cancel()
        for one in (first, lost):
            one.memory.release(2**30)
        await settle()
        assert values(result(answered)) == [b"a"]
        assert not dropped.done()
        assert [len(one.fetches) for one in (first, lost)] == [0, 0]
        assert [one.memory.pool.waiting_count for one in (first, lost)] == [0, 0]

    run(work())


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [11, 12, 18])
def test_a_follower_names_the_leader(version: int) -> None:
    async def work() -> None:
        cluster = Cluster(3)
        leader = cluster.elect()
        answer = await cluster.follower.ask_client(
            ApiKey.FETCH, version, fetch(max_wait_ms=500), latest_schemas.FetchResponse
        )
        (partition,) = answer.responses[0].partitions
        assert partition.error_code is ErrorCode.not_leader_or_follower
        if version >= 12:
            assert partition.current_leader.leader_id == leader.node_id
            assert partition.current_leader.leader_epoch == leader.replica.core.epoch
        if version >= 16:
            assert [one.port for one in answer.node_endpoints] == [9100 + leader.node_id]

    run(work())


@pytest.mark.parametrize(
    ("request_", "version", "error"),
    [
        (fetch(topic="other"), 12, ErrorCode.unknown_topic_or_partition),
        (fetch(partition=3), 12, ErrorCode.unknown_topic_or_partition),
        (fetch(topic_id=OTHER_ID), 13, ErrorCode.unknown_topic_id),
        (fetch(partition=3), 13, ErrorCode.unknown_topic_or_partition),
        (fetch(offset=1_000), 13, ErrorCode.offset_out_of_range),
        (fetch(offset=-1), 13, ErrorCode.offset_out_of_range),
        (fetch(leader_epoch=0), 13, ErrorCode.fenced_leader_epoch),
        (fetch(leader_epoch=99), 13, ErrorCode.unknown_leader_epoch),
        (fetch(last_fetched_epoch=99), 13, ErrorCode.offset_out_of_range),
    ],
)
def test_errors_are_answered_immediately(
    request_: latest_schemas.FetchRequest, version: int, error: ErrorCode
) -> None:
    async def work() -> None:
        found = await get(Cluster().elect(), request_, version)
        assert found.error_code is error
        assert (found.high_watermark, found.records) == (-1, b"")

    run(work())


def test_an_offset_below_the_log_start_is_out_of_range() -> None:
    async def work() -> None:
        leader = Cluster().elect()
        await put(leader, b"a")
        end = leader.replica.log.end_offset
        writer = leader.replica.begin_snapshot(end, time_ms=leader.time_ms())
        assert writer is not None
        writer.freeze()
        leader.replica.log.delete_before(leader.replica.log.snapshots[-1])
        await put(leader, b"b")
        assert (await get(leader, fetch(0))).error_code is ErrorCode.offset_out_of_range
        found = await get(leader, fetch(end))
        assert (values(found), found.log_start_offset) == ([b"b"], end)

    run(work())


def test_diverging_logs_are_answered_with_the_divergence() -> None:
    async def work() -> None:
        cluster = Cluster(3)
        first = cluster.elect()
        await put(first, b"a")
        first_epoch, first_end = first.replica.core.epoch, first.replica.log.end_offset
        leader = cluster.change_leader()
        request = fetch(first_end + 1, last_fetched_epoch=first_epoch, max_wait_ms=500)
        found = await get(leader, request, 12)
        assert (found.diverging_epoch.epoch, found.diverging_epoch.end_offset) == (
            first_epoch,
            first_end,
        )
        assert found.records == b""
        agreeing = await get(leader, fetch(first_end, last_fetched_epoch=first_epoch), 12)
        assert agreeing.diverging_epoch.epoch == -1

    run(work())


def test_a_client_without_the_right_to_read_gets_no_records() -> None:
    async def work() -> None:
        leader = Cluster().elect()
        await put(leader, b"secret")
        principal = caller(Rights.APPEND | Rights.DESCRIBE | Rights.ADMIN)
        found = await get(leader, fetch(max_wait_ms=500), principal=principal)
        assert found.error_code is ErrorCode.topic_authorization_failed
        assert found.records == b""

    run(work())


# --- sessions -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("session_id", "epoch"), [(0, 0), (0, -1), (7, -1)])
def test_a_request_for_a_session_gets_none_and_a_full_response(session_id: int, epoch: int) -> None:
    async def work() -> None:
        leader = Cluster().elect()
        await put(leader, b"a")
        request = fetch(session_id=session_id, session_epoch=epoch)
        assert values(await get(leader, request)) == [b"a"]

    run(work())


@pytest.mark.parametrize("session_id", [0, 7])
def test_a_request_in_a_session_is_refused_as_unknown(session_id: int) -> None:
    async def work() -> None:
        leader = Cluster().elect()
        request = fetch(session_id=session_id, session_epoch=3, max_wait_ms=500)
        answer = await leader.ask_client(ApiKey.FETCH, 18, request, latest_schemas.FetchResponse)
        assert answer.error_code is ErrorCode.fetch_session_id_not_found
        assert answer.responses == ()

    run(work())
