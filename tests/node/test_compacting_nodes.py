"""Nodes compact their logs on their own: in turns, with followers that lag, in real processes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import pytest
from kio.schema.delete_records.v2.response import DeleteRecordsResponse
from kio.schema.errors import ErrorCode

import raftlog
from raftlog.append import AppendRequest
from raftlog.client.table import Table
from raftlog.errors import DataLossError, DiskFullError, InvalidAppendError
from raftlog.log.format.directory import CLEANED_SUFFIX, OUT_OF_ELECTION_NAME
from raftlog.log.reading.latest_by_key import LatestByKey
from raftlog.log.reading.opening import open_log
from raftlog.log.reading.reads import LogKind
from raftlog.log.writing.properties import CleanupPolicy, LogConfig
from raftlog.node.raft_node import CleaningRefused, LogCompacted
from raftlog.quorum.config import QuorumConfig
from raftlog.quorum.roles import Leader
from raftlog.records.record import NewRecord
from raftlog.storage.local import LocalStorage
from raftlog.wire import ApiKey, latest_schemas
from tests.log.cleaning.test_compaction import COMPACTED
from tests.node.apis.batches import batch, produce
from tests.node.apis.cluster import (
    TIME_MS,
    TOPIC,
    Cluster,
    Node,
    answer_of,
    caller,
    run,
    settle,
)
from tests.node.apis.requests import offset_commit
from tests.node.apis.test_deletion import deletion
from tests.simulated_disk.crash_model import Survival
from tests.simulated_disk.simulated_disk import SimulatedDisk
from tests.support.appending import batches_of
from tests.support.one_replica import OneReplica
from tests.support.quorum_checks import follows
from tests.support.quorum_processes import NodeProcess, QuorumProcesses, eventually

INTERVAL_MS = 1_000
PATH = f"/data/{TOPIC}-0"


def fill(one: OneReplica, count: int = 40) -> None:
    for at in range(count):
        record = NewRecord(b"key %d" % (at % 3), b"%d" % at + b"v" * 50)
        one.submit(AppendRequest(records=(record,), deadline_ms=0))


def compacting(config: LogConfig = COMPACTED) -> OneReplica:
    one = OneReplica(log_config=config, clean_interval_ms=INTERVAL_MS)
    one.elect()
    fill(one)
    return one


def test_a_node_compacts_at_intervals_one_segment_in_each_turn() -> None:
    one = compacting()
    node = one.raft_node
    deadline_ms = node.next_deadline_ms
    assert deadline_ms is not None
    one.pass_time(deadline_ms)
    turn_count = 0
    while one.notifications[-1:] != [] and not isinstance(one.notifications[-1], LogCompacted):
        assert node.next_deadline_ms == node.now_ms()
        fill(one, 1)
        node.pass_time()
        turn_count += 1
    compacted = one.notifications[-1]
    assert isinstance(compacted, LogCompacted)
    assert compacted.segment_count == turn_count > 3
    assert compacted.byte_count_after < compacted.byte_count_before
    assert node.counts.compactions == 1
    assert node.counts.compacted_bytes_before == compacted.byte_count_before
    assert node.counts.compacted_bytes_after == compacted.byte_count_after
    assert node.next_deadline_ms is not None
    assert node.next_deadline_ms > node.now_ms()


def test_a_full_disk_refuses_a_compaction_until_the_next_interval() -> None:
    one = compacting()
    deadline_ms = one.raft_node.next_deadline_ms
    assert deadline_ms is not None
    one.disk.leave_room(0)
    one.pass_time(deadline_ms)
    refused = one.notifications[-1]
    assert isinstance(refused, CleaningRefused)
    assert isinstance(refused.error, DiskFullError)
    assert not one.raft_node.is_over
    one.disk.leave_room(10**6)
    one.pass_time(deadline_ms + INTERVAL_MS)
    for _ in range(50):
        one.raft_node.pass_time()
    assert any(isinstance(note, LogCompacted) for note in one.notifications)


@pytest.mark.parametrize("replaced_count", [0, 1, 2])
def test_a_disk_that_is_full_while_segments_are_replaced_ends_the_compaction_only(
    replaced_count: int,
) -> None:
    one = compacting()
    node = one.raft_node
    node.compact()
    for _ in range(replaced_count):
        node.pass_time()
    one.disk.full_at(0)
    for _ in range(50):
        node.pass_time()
    assert not node.is_over
    (refused,) = [note for note in one.notifications if isinstance(note, CleaningRefused)]
    assert isinstance(refused.error, DiskFullError)
    names = one.disk.list_names(one.replica.log.path)
    assert not [name for name in names if name.endswith(CLEANED_SUFFIX)]
    one.disk.full_at(None)
    node.compact()
    for _ in range(50):
        node.pass_time()
    assert any(isinstance(note, LogCompacted) for note in one.notifications)
    batches = batches_of(one.disk, one.replica.log.path)
    for found in batches:
        assert one.replica.log.base_offset_at(found.last_offset) == found.base_offset
    one.replica.log.close()
    again = OneReplica(one.disk, log_config=COMPACTED)
    assert batches_of(one.disk, again.replica.log.path)[: len(batches)] == batches


def test_the_end_of_a_node_between_two_steps_leaves_the_log_whole() -> None:
    one = compacting()
    deadline_ms = one.raft_node.next_deadline_ms
    assert deadline_ms is not None
    one.pass_time(deadline_ms)
    one.raft_node.end()
    one.raft_node.pass_time()
    one.replica.log.close()
    again = OneReplica(one.disk, log_config=COMPACTED, clean_interval_ms=INTERVAL_MS)
    assert not again.replica.log.is_read_only
    assert again.replica.log.begin_compaction(now_ms=TIME_MS) is not None, "its lock is released"


# --- a quorum -------------------------------------------------------------------------------------


async def put(node: Node, key: bytes, value: bytes | None) -> None:
    data = batch(NewRecord(key, value, TIME_MS))
    answer = await node.ask_client(ApiKey.PRODUCE, 9, produce(data), latest_schemas.ProduceResponse)
    assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none


def compact(node: Node) -> int:
    """Compact the log of a node to the end; return how often it was."""
    before = node.raft_node.counts.compactions
    for _ in range(5):
        node.raft_node.compact()
        node.raft_node.pass_time()
        for _ in range(100):
            node.raft_node.pass_time()
    return node.raft_node.counts.compactions - before


def table(node: Node) -> dict[bytes, bytes]:
    batches = batches_of(node.disk, f"/data/{TOPIC}-0")
    ends = [one.base_offset for one in batches[1:]]
    assert ends == [one.next_offset for one in batches[:-1]], "it has no gaps"
    found = [record for one in batches if not one.is_control for record in one.records()]
    last = {record.key: record.value for record in found}
    return {key: value for key, value in last.items() if key and value is not None}


@pytest.mark.parametrize("seed", range(4))
def test_a_follower_that_lags_catches_up_from_a_compacted_leader(seed: int) -> None:
    async def work() -> None:
        rng, expected = Random(seed), dict[bytes, bytes]()

        async def fill(node: Node, count: int) -> None:
            for _ in range(count):
                key, value = b"key %d" % rng.randrange(7), b"%d" % rng.randrange(10**6) + b"v" * 30
                if rng.random() < 0.2:
                    expected.pop(key, None)
                    await put(node, key, None)
                else:
                    expected[key] = value
                    await put(node, key, value)

        cluster = Cluster(3, COMPACTED)
        leader = cluster.elect()
        lagging = cluster.follower
        await fill(leader, 10 + seed)
        await leader.ask_client(
            ApiKey.OFFSET_COMMIT, 9, offset_commit(5), latest_schemas.OffsetCommitResponse
        )
        lagging.is_cut_off = True
        await fill(leader, 60)
        assert compact(leader)
        await fill(leader, 20)
        lagging.is_cut_off = False
        cluster.pass_time(5_000)
        leader = cluster.elect()
        await fill(leader, 20)
        cluster.pass_time(1_000)
        for node in cluster.nodes:
            assert node.replica.log.end_offset == leader.replica.log.end_offset
            assert table(node) == expected
            compact(node)
            assert table(node) == expected
            commit = node.replica.log.producer_state.group_offsets.commit_of("readers")
            assert commit is not None
            assert commit.offset == 5
        leader = cluster.change_leader()
        await fill(leader, 5)
        assert table(leader) == expected

    run(work())


def state_at(node: Node, offset: int) -> dict[bytes, bytes | None] | None:
    """Return the state of the records below an offset on a replica; None if it is refused."""
    log = open_log(node.disk, f"/data/{TOPIC}-0", kind=LogKind.PARTITION)
    if not log.compacted_offset <= offset <= log.log_end_offset:
        return None
    latest = LatestByKey(log.path)
    latest.read(log, offset)
    return {key: record.value for key, record in latest.records()}


@pytest.mark.parametrize(
    "seed", [0, 3, *(pytest.param(one, marks=pytest.mark.nightly) for one in (1, 2, 4, 5))]
)
def test_a_past_state_is_refused_or_right_on_every_replica(seed: int) -> None:
    """Also on those that have fetched from a leader that had compacted what they lacked, or had
    removed tombstones that they have missed."""

    async def work() -> None:
        rng = Random(seed)
        cluster = Cluster(3, COMPACTED)
        leader = cluster.elect()
        states: dict[int, dict[bytes, bytes | None]] = {}
        now: dict[bytes, bytes | None] = {}
        refused = 0
        for _ in range(6):
            lagging = rng.choice([node for node in cluster.nodes if node is not leader])
            lagging.is_cut_off = True
            for _ in range(rng.randrange(5, 30)):
                key, value = b"key %d" % rng.randrange(7), b"%d" % rng.randrange(10**6) + b"v" * 30
                now.pop(key, None)
                if rng.random() < 0.2:
                    await put(leader, key, None)
                else:
                    now[key] = value
                    await put(leader, key, value)
                states[leader.replica.log.end_offset] = dict(now)
            compact(rng.choice([leader, *cluster.nodes]))
            if rng.random() < 0.5:
                cluster.pass_time(COMPACTED.delete_retention_ms + 100)
                compact(leader)
            for node in cluster.nodes:  # as on a log that is larger than the cache of its end
                node.replica.log._tail_cache.clear()
            lagging.is_cut_off = False
            cluster.pass_time(5_000)
            if rng.random() < 0.5:
                leader = cluster.change_leader()
            leader = cluster.elect()
            for node in cluster.nodes:
                for offset, expected in states.items():
                    found = state_at(node, offset)
                    refused += found is None
                    assert found in (None, expected), f"offset {offset} of node {node.node_id}"
                assert state_at(node, max(states)) is not None
        assert refused

    run(work())


async def miss_a_tombstone(cluster: Cluster) -> tuple[Node, Node]:
    """Cut off a follower that has key a; return the leader, which has removed the key and its
    tombstone, and the follower."""
    leader = cluster.elect()
    lagging = cluster.follower
    await put(leader, b"a", b"old")
    cluster.pass_time(1_000)
    lagging.is_cut_off = True
    await put(leader, b"a", None)
    cluster.pass_time(QuorumConfig().fetch_timeout_ms + 100)
    for _ in range(2):
        for at in range(30):
            await put(leader, b"key %d" % (at % 3), b"%d" % at + b"v" * 30)
        compact(leader)
        cluster.pass_time(COMPACTED.delete_retention_ms + 100)
    compact(leader)
    keys = {one.key for found in batches_of(leader.disk, PATH) for one in found.records()}
    assert b"a" not in keys, "the tombstone is removed"
    assert table(lagging)[b"a"] == b"old"
    return leader, lagging


def test_a_deleted_key_does_not_return_from_a_follower_that_has_missed_its_tombstone() -> None:
    """It fetches the log from the start, once, also after a restart."""

    async def work() -> None:
        cluster = Cluster(3, COMPACTED)
        leader, lagging = await miss_a_tombstone(cluster)
        expected, end_offset = table(leader), leader.replica.log.end_offset
        lagging.is_cut_off = False
        cluster.pass_time(50)
        assert lagging.refetch_count == 1
        cluster.pass_time(10_000)
        assert not lagging.replica.log.is_out_of_election
        assert lagging.refetch_count == 1
        assert [table(node) for node in cluster.nodes] == [expected] * 3
        start = leader.replica.log.tombstone_start_offset
        assert 0 < start <= leader.replica.log.compacted_offset <= end_offset
        assert lagging.replica.log.tombstone_start_offset == start
        lagging.restart()
        assert lagging.replica.log.tombstone_start_offset == start
        cluster.pass_time(10_000)
        assert lagging.refetch_count == 1

    run(work())


def test_a_follower_that_has_all_tombstones_continues_where_its_log_ends() -> None:
    async def work() -> None:
        cluster = Cluster(3, COMPACTED)
        leader, lagging = await miss_a_tombstone(cluster)
        lagging.is_cut_off = False
        cluster.pass_time(10_000)
        others = [node for node in cluster.nodes if node is not leader]
        for node in others:
            node.is_cut_off = node is lagging
        for at in range(30):
            await put(leader, b"key %d" % (at % 3), b"%d" % at + b"v" * 30)
        assert compact(leader)
        assert leader.replica.log.tombstone_start_offset <= lagging.replica.log.end_offset
        lagging.is_cut_off = False
        cluster.pass_time(10_000)
        assert [node.refetch_count for node in others] == [int(one is lagging) for one in others]
        assert {node.replica.log.end_offset for node in cluster.nodes} == {
            leader.replica.log.end_offset
        }

    run(work())


def test_a_leader_retains_tombstones_while_a_replica_fetches_what_was_compacted() -> None:
    """Otherwise a log whose fetch is slower than delete.retention.ms is fetched again and again."""

    async def work() -> None:
        cluster = Cluster(3, COMPACTED)
        leader = cluster.elect()
        lagging = cluster.follower
        await put(leader, b"a", b"old")
        for at in range(30):
            await put(leader, b"key %d" % (at % 3), b"%d" % at + b"v" * 30)
        await put(leader, b"a", None)
        cluster.pass_time(1_000)
        lagging.is_cut_off = True

        async def compact_later() -> bool:
            for at in range(30):
                await put(leader, b"key %d" % (at % 3), b"%d" % at + b"v" * 30)
            cluster.pass_time(COMPACTED.delete_retention_ms + 100)
            compact(leader)
            return any(
                one.key == b"a"
                for found in batches_of(leader.disk, PATH)
                for one in found.records()
            )

        assert await compact_later()
        role, log = leader.replica.core.role, leader.replica.log
        assert isinstance(role, Leader)
        node_id = lagging.replica.core.node_id
        (fetched,) = (one for one in role.progress.replicas if one.key.node_id == node_id)
        for _ in range(3):
            fetched.end_offset, fetched.fetched_ms = 1, leader.raft_node.now_ms() + 2_000
            assert leader.raft_node.keeps_tombstones
            assert await compact_later()
        assert log.tombstone_start_offset == 0
        cluster.pass_time(5_000)
        assert not leader.raft_node.keeps_tombstones
        assert not await compact_later()
        assert log.tombstone_start_offset > 0

    run(work())


@pytest.mark.parametrize("every", [17, pytest.param(6, marks=pytest.mark.nightly)])
def test_a_crash_while_a_log_is_deleted_to_be_fetched_again_revives_no_key(every: int) -> None:
    async def work() -> None:
        cluster = Cluster(3, COMPACTED)
        leader, lagging = await miss_a_tombstone(cluster)
        expected, end_offset = table(leader), lagging.replica.log.end_offset
        recording = lagging.disk.record()
        lagging.is_cut_off = False
        cluster.pass_time(10_000)
        assert table(lagging) == expected
        start = leader.replica.log.tombstone_start_offset
        for state in list(recording.states((None, *Survival), seeds=range(1)))[::every]:
            lagging.disk = SimulatedDisk.after(state)
            lagging.restart()
            log = lagging.replica.log
            is_whole = log.end_offset in (end_offset, leader.replica.log.end_offset)
            assert log.is_out_of_election or is_whole, f"{state}"
            if log.end_offset and not log.misses_tombstones(start):
                assert log.tombstone_start_offset == start, f"{state}"
            cluster.pass_time(4_000)
            assert table(lagging) == expected, f"{state}"
            assert not lagging.replica.log.is_out_of_election, f"{state}"

    run(work())


def test_a_follower_stores_what_its_leader_has_compacted_before_it_appends() -> None:
    """A crash between both leaves it with the greater offset, and one that has all records does
    not store it."""

    async def work() -> None:
        cluster = Cluster(3, COMPACTED)
        leader = cluster.elect()
        current, lagging = (node for node in cluster.nodes if node is not leader)
        lagging.is_cut_off = True
        for at in range(60):
            await put(leader, b"key %d" % (at % 3), b"%d" % at + b"v" * 30)
        assert compact(leader)
        cluster.pass_time(1_000)
        assert current.replica.log.compacted_offset == lagging.replica.log.compacted_offset == 0
        end_offset = lagging.replica.log.end_offset
        recording = lagging.disk.record()
        lagging.is_cut_off = False
        cluster.pass_time(5_000)
        compacted = leader.replica.log.compacted_offset
        assert lagging.replica.log.compacted_offset == compacted > 0
        assert current.replica.log.compacted_offset == 0
        for state in recording.states((None, *Survival), seeds=range(1)):
            after = SimulatedDisk.after(state)
            log = open_log(after, f"/data/{TOPIC}-0", kind=LogKind.PARTITION)
            assert log.compacted_offset in (0, compacted), f"{state}"
            if log.log_end_offset > end_offset:
                assert log.compacted_offset, f"{state}"

    run(work())


@pytest.mark.parametrize("compacting_count", [1, 2, 3])
def test_records_are_deleted_below_an_offset_inside_an_empty_batch(compacting_count: int) -> None:
    """A voter starts its log after the batch, and the response is not delayed."""

    async def work() -> None:
        cluster = Cluster(3, replace(COMPACTED, cleanup_policy=CleanupPolicy.COMPACT_DELETE))
        leader = cluster.elect()
        for at in range(60):
            await put(leader, b"key %d" % (at % 3), b"%d" % at + b"v" * 30)
        cluster.pass_time(1_000)
        others = [node for node in cluster.nodes if node is not leader]
        compacted = [*others, leader][:compacting_count]
        assert all(map(compact, compacted))
        empty = max(
            (one for one in batches_of(compacted[0].disk, f"/data/{TOPIC}-0")),
            key=lambda one: one.last_offset - one.base_offset,
        )
        assert not empty.record_count
        task = leader.start(ApiKey.DELETE_RECORDS, 2, deletion(empty.base_offset + 2), caller())
        await settle()
        assert task.done(), "it is delayed"
        (topic,) = answer_of(task, DeleteRecordsResponse, 2).topics
        (result,) = topic.partitions
        assert result.error_code is ErrorCode.none
        starts = [node.replica.log.log_start_offset for node in cluster.nodes]
        assert set(starts) <= {empty.base_offset + 2, empty.next_offset}
        assert result.low_watermark == leader.replica.log.log_start_offset <= min(starts)

    run(work())


def has_compacted(node: NodeProcess) -> bool:
    return any(one["event"] == "compacted" for one in node.lines())


def compacted_offset_of(state: Table, offset: int) -> int | None:
    """Return from which offset on states are retained; None if that at ``offset`` has all keys."""
    try:
        assert state.as_of(offset).keys() >= {b"key %d" % at for at in range(10)}
    except DataLossError as error:
        return int(error.reason.split("compacted up to offset ")[1])
    return None


@pytest.mark.slow
def test_real_nodes_compact_in_a_thread_and_survive_kills(tmp_path: Path) -> None:
    settings = (
        '[log]\ncleanup_policy = "compact"\nmin_cleanable_dirty_ratio = 0.01\n'
        "segment_bytes = 20000\n"
    )
    node_keys = "retention_check_interval_ms = 200\n"
    with QuorumProcesses(tmp_path, extra=settings, node_keys=node_keys) as quorum:
        expected = {}
        with raftlog.connect(quorum.bootstrap) as log:
            for at in range(300):
                key, value = b"key %d" % (at % 10), b"%d" % at + b"v" * 500
                log.append([(key, value)])
                expected[key] = value
            with pytest.raises(InvalidAppendError, match="compacted"):
                log.append([b"without a key"])
        for node in quorum.nodes:
            eventually(partial(has_compacted, node), "every node has compacted its log")
        for node in quorum.nodes:
            node.kill()
        for node in quorum.nodes:
            node.launch()
        for node in quorum.nodes:
            node.wait_until_it_listens()
        with raftlog.connect(quorum.bootstrap) as log, log.table() as state:
            state.wait_for(log.append([(b"last", b"1")]).last_offset)
            assert {key: state[key] for key in expected} == expected
            refused = compacted_offset_of(state, 50)
            assert refused is not None
            end_offset = 50
            while refused is not None:  # compactions may follow each other
                assert end_offset < refused <= state.end_offset
                end_offset = refused
                refused = compacted_offset_of(state, end_offset)
            assert state.as_of(state.end_offset) == state.state()


def has_key(directory: Path, key: bytes) -> bool:
    log = open_log(LocalStorage(), str(directory / "raftlog-0"), kind=LogKind.PARTITION)
    batches = log.batches(log.log_start_offset, log.log_end_offset)
    return any(record.key == key for one in batches for record in one.records())


@pytest.mark.nightly
def test_a_real_node_that_has_missed_a_tombstone_fetches_its_log_again(tmp_path: Path) -> None:
    settings = (
        '[log]\ncleanup_policy = "compact"\nmin_cleanable_dirty_ratio = 0.01\n'
        "segment_bytes = 20000\ndelete_retention_ms = 300\n"
    )
    node_keys = "retention_check_interval_ms = 200\n"
    with QuorumProcesses(tmp_path, extra=settings, node_keys=node_keys) as quorum:
        with raftlog.connect(quorum.bootstrap) as log:
            log.append([(b"deleted", b"old")])
            eventually(
                lambda: all(has_key(one.directory, b"deleted") for one in quorum.nodes), "all"
            )
            lagging = next(node for node in quorum.nodes if follows(node))
            assert lagging.stop() == 0
            log.append([(b"deleted", None)])

            def is_removed() -> bool:
                log.append([(b"key %d" % at, b"v" * 500) for at in range(20)])
                return not any(has_key(one.directory, b"deleted") for one in quorum.running())

            eventually(is_removed, "both nodes have removed the tombstone")
            assert has_key(lagging.directory, b"deleted")
            lagging.launch()
            lagging.wait_until_it_listens()

            def votes_again() -> bool:
                is_out = (lagging.directory / "raftlog-0" / OUT_OF_ELECTION_NAME).exists()
                return not is_out and any(one["event"] == "withdrawn" for one in lagging.lines())

            eventually(votes_again, "it has fetched the log")
            assert not has_key(lagging.directory, b"deleted")
        events = [one["event"] for one in lagging.lines()]
        assert events.count("restarting") == events.count("withdrawn") == 1
        assert events.count("started") == 3
