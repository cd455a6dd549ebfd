"""With remote storage the leader copies, all nodes delete locally, and clients read one log."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v11.response import ListOffsetsResponse
from kio.schema.offset_for_leader_epoch.v4.response import OffsetForLeaderEpochResponse

from raftlog.errors import LogNotFoundError, OptionError
from raftlog.log.format.directory import RAFTLOG_PROPERTIES_NAME, REMOTE_SEGMENTS_NAME
from raftlog.log.writing.properties import LogConfig
from raftlog.log.writing.quorum_log import QuorumLog
from raftlog.records.batch import NewRecord, iter_batches
from raftlog.records.header import MAGIC_POSITION
from raftlog.storage.errors import LogEndsBeforeRemoteError, RemoteStoreDiffersError
from raftlog.storage.objects import StorageObjects, StoredObject
from raftlog.storage.protocol import ReadableFile
from raftlog.wire import ApiKey, latest_schemas
from tests.log.remote.tiered_logs import segment_names
from tests.simulated_disk.simulated_disk import SimulatedDisk
from tests.simulated_disk.simulated_machine import SimulatedFile

from .batches import batch, produce
from .cluster import TIME_MS, TOPIC_ID, Cluster, Node, answer_of, caller, run, session, settle
from .requests import epoch_end, fetch, list_offsets
from .test_offsets import EARLIEST, LOCAL, MAX_TIMESTAMP, PENDING, TIERED, put

REMOTE = "/remote"
TIERED_LOG = LogConfig(
    segment_bytes=2_000,
    index_interval_bytes=200,
    remote_storage_enable=True,
    remote_storage_uri=REMOTE,
    local_retention_bytes=2_500,
)
COUNT = 40


def value(at: int) -> bytes:
    return b"%0100d" % at


def time_of(at: int) -> int:
    return TIME_MS + 3_000_000 + at * 100


async def filled(cluster: Cluster) -> Node:
    leader = cluster.elect()
    for at in range(COUNT):
        await put(leader, NewRecord(None, value(at), time_of(at)))
    return leader


def copy_all(cluster: Cluster) -> None:
    """Run the remote storage of the leader, then of the followers."""
    for node in sorted(cluster.nodes, key=lambda node: not node.is_leader):
        node.raft_node.copy_to_remote()
        cluster.deliver()


async def ask(node: Node, key: ApiKey, version: int, request: Any, kind: type[Any]) -> Any:
    response = node.start(key, version, request, caller())
    await response
    return answer_of(response, kind, version)


async def get(node: Node, offset: int, **more: Any) -> Any:
    answer = await ask(node, ApiKey.FETCH, 18, fetch(offset, **more), latest_schemas.FetchResponse)
    return answer.responses[0].partitions[0]


async def consumed(node: Node, start: int = 0, **more: Any) -> list[bytes | None]:
    """Return the values of all records, as a consumer that begins at the start gets them."""
    offset = start
    found: list[bytes | None] = []
    while True:
        part = await get(node, offset, **more)
        assert part.error_code is ErrorCode.none
        assert part.log_start_offset == start
        batches = list(iter_batches(part.records))
        if not batches:
            return found
        for one in batches:
            if not one.is_control:
                found += [record.value for record in one.records() if record.offset >= offset]
        offset = batches[-1].next_offset


async def find(node: Node, timestamp: int) -> Any:
    request = list_offsets(timestamp)
    answer = await ask(node, ApiKey.LIST_OFFSETS, 11, request, ListOffsetsResponse)
    return answer.topics[0].partitions[0]


def local_start(node: Node) -> int:
    return node.replica.log.log_start_offset


@pytest.mark.parametrize(
    "limit",
    [
        {"max_bytes": 1},
        {"max_bytes": 700},
        {"max_bytes": 1 << 20},
        {"partition_max_bytes": 0},
        {"partition_max_bytes": -1},
    ],
    ids=str,
)
def test_a_consumer_reads_remote_and_local_segments_as_one_log(limit: dict[str, int]) -> None:
    async def work() -> None:
        cluster = Cluster(config=TIERED_LOG)
        leader = await filled(cluster)
        copy_all(cluster)
        assert local_start(leader) > 20
        assert await consumed(leader, **limit) == [value(at) for at in range(COUNT)]
        assert await consumed(leader, last_fetched_epoch=1) == [value(at) for at in range(COUNT)]

    run(work())


def test_a_node_with_another_store_than_the_leader_deletes_nothing_and_says_so() -> None:
    """Also if it is the leader: its log starts where its own remote segments do."""

    class TwoStores(Cluster):
        def config_of(self, node_id: int, config: LogConfig) -> LogConfig:
            return replace(config, remote_storage_uri="/elsewhere") if node_id == 1 else config

    async def work() -> None:
        cluster = TwoStores(3, config=TIERED_LOG)
        leader = await filled(cluster)
        one = next(node for node in cluster.nodes if node.node_id == 1)
        others = [node for node in cluster.nodes if node is not one]
        while leader is not one:
            leader = cluster.change_leader()
        copy_all(cluster)
        assert local_start(leader) > 20
        cluster.pass_time(1_000)
        assert [local_start(node) for node in others] == [0, 0]
        leader.raft_node.delete_records(30)
        cluster.pass_time(1_000)
        assert [node.replica.log.earliest_offset for node in cluster.nodes] == [30, 0, 0]
        for node in others:
            (refusal,) = node.refusals
            assert isinstance(refusal, RemoteStoreDiffersError)
            assert (refusal.location, refusal.leader_id) == (REMOTE, one.node_id)
            assert node.raft_node.counts.remote.errors == 1
        while leader is one:
            leader = cluster.change_leader()
        copy_all(cluster)
        cluster.pass_time(1_000)
        assert [local_start(node) > 20 for node in others] == [True, True]
        assert leader.replica.log.earliest_offset == 0
        assert await consumed(leader) == [value(at) for at in range(COUNT)]
        (refusal,) = one.refusals
        assert "/elsewhere on this node" in str(refusal)

    run(work())


def test_one_store_has_one_number_whatever_its_options_are() -> None:
    disk = SimulatedDisk()
    disk.make_directory("/data")
    uris = ("s3://bucket/logs?region=x", "s3://bucket/logs/", "s3://bucket/logs", "s3://other")
    numbers = [
        QuorumLog.create(
            disk,
            f"/data/orders-{at}",
            config=replace(TIERED_LOG, remote_storage_uri=uri),
            topic_id=TOPIC_ID,
            now_ms=TIME_MS,
        ).remote_store_id
        for at, uri in enumerate(uris)
    ]
    assert numbers[0] == numbers[1] == numbers[2] != numbers[3]
    assert min(numbers) > 0


def test_offsets_of_remote_segments_are_listed() -> None:
    async def work() -> None:
        cluster = Cluster(config=TIERED_LOG)
        leader = await filled(cluster)
        assert (await find(leader, TIERED)).offset == (await find(leader, PENDING)).offset == -1
        copy_all(cluster)
        start = local_start(leader)
        earliest, local = await find(leader, EARLIEST), await find(leader, LOCAL)
        assert (earliest.offset, local.offset) == (0, start)
        assert earliest.leader_epoch == 1
        tiered, pending = await find(leader, TIERED), await find(leader, PENDING)
        assert start <= tiered.offset + 1 == pending.offset
        base = leader.replica.log.end_offset - COUNT
        for at in (0, 1, 17, COUNT - 1):
            found = await find(leader, time_of(at) - 50)
            assert (found.offset, found.timestamp) == (base + at, time_of(at))
        assert (await find(leader, MAX_TIMESTAMP)).offset == base + COUNT - 1
        assert (await find(leader, time_of(COUNT))).offset == -1

    run(work())


def test_before_the_first_copy_the_whole_log_is_pending() -> None:
    async def work() -> None:
        cluster = Cluster(config=replace(TIERED_LOG, segment_bytes=1 << 20))
        leader = await filled(cluster)
        leader.raft_node.delete_records(20)
        copy_all(cluster)
        assert leader.raft_node.remote_chain is not None
        assert (await find(leader, TIERED)).offset == -1
        assert (await find(leader, PENDING)).offset == (await find(leader, EARLIEST)).offset == 20

    run(work())


def test_a_new_leader_continues_where_the_last_one_ended() -> None:
    async def work() -> None:
        cluster = Cluster(3, config=TIERED_LOG)
        leader = await filled(cluster)
        copy_all(cluster)
        assert all(local_start(node) > 0 for node in cluster.nodes)
        counts = [node.raft_node.counts.remote.copied_segments for node in cluster.nodes]
        assert sorted(counts)[:2] == [0, 0] < sorted(counts)[2:]
        before = segment_names(cluster.remote_disk, REMOTE)
        second = cluster.change_leader()
        assert second is not leader
        for at in range(COUNT):
            await put(second, NewRecord(None, value(COUNT + at), time_of(COUNT + at)))
        copy_all(cluster)
        after = segment_names(cluster.remote_disk, REMOTE)
        assert before < after
        starts = [int(name[:20]) for name in after]
        assert len(starts) == len(set(starts))
        assert second.raft_node.counts.remote.copied_segments > 0
        assert await consumed(second) == [value(at) for at in range(2 * COUNT)]
        end = await ask(
            second, ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, epoch_end(1), OffsetForLeaderEpochResponse
        )
        assert end.topics[0].partitions[0].leader_epoch == 1
        assert end.topics[0].partitions[0].end_offset > COUNT

    run(work())


def test_a_node_that_has_fetched_a_snapshot_knows_the_remote_segments_before_it_leads() -> None:
    async def work() -> None:
        cluster = Cluster(3, config=TIERED_LOG)
        cluster.elect()
        late = cluster.follower
        late.is_cut_off = True
        leader = await filled(cluster)
        leader.raft_node.copy_to_remote()
        cluster.deliver()
        assert late.replica.log.end_offset < local_start(leader)
        late.is_cut_off = False
        cluster.pass_time(10_000)
        assert local_start(late) > 0
        while not late.is_leader:
            cluster.change_leader()
        assert await consumed(late) == [value(at) for at in range(COUNT)]
        assert (await find(late, EARLIEST)).offset == 0

    run(work())


@pytest.mark.parametrize("has_failed", [False, True])
def test_a_snapshot_that_is_installed_during_a_run_is_followed_by_another_run(
    has_failed: bool,
) -> None:
    """The run has read the manifest before the segments below the snapshot were copied."""

    async def work() -> None:
        cluster = Cluster(3, config=TIERED_LOG)
        cluster.elect()
        late = cluster.follower
        late.is_cut_off = late.is_remote_held = True
        late.raft_node.copy_to_remote()
        (outdated,) = late.held_runs
        outdated.run()
        leader = await filled(cluster)
        leader.raft_node.copy_to_remote()
        cluster.deliver()
        late.is_cut_off = late.is_remote_held = False
        cluster.pass_time(10_000)
        assert local_start(late) > 0
        reason = "the log was replaced"
        error = LogNotFoundError(path=reason) if has_failed else None
        late.raft_node.complete_remote_run(outdated, error)
        cluster.deliver()
        while not late.is_leader:
            cluster.change_leader()
        assert await consumed(late) == [value(at) for at in range(COUNT)]

    run(work())


def test_a_leader_whose_log_is_replaced_during_its_run_copies_nothing_wrong() -> None:
    async def work() -> None:
        cluster = Cluster(3, config=TIERED_LOG)
        old = await filled(cluster)
        old.is_remote_held = True
        old.raft_node.copy_to_remote()
        (outdated,) = old.held_runs
        leader = cluster.change_leader()
        old.is_cut_off = True
        for at in range(COUNT, 2 * COUNT):
            await put(leader, NewRecord(None, value(at), time_of(at)))
        leader.raft_node.copy_to_remote()
        cluster.deliver()
        before = segment_names(cluster.remote_disk, REMOTE)
        old.is_cut_off = old.is_remote_held = False
        cluster.pass_time(10_000)
        assert local_start(old) > COUNT, "its log was replaced"
        with pytest.raises(LogEndsBeforeRemoteError) as caught:
            outdated.run()
        old.raft_node.complete_remote_run(outdated, caught.value)
        cluster.deliver()
        assert segment_names(cluster.remote_disk, REMOTE) == before
        while not old.is_leader:
            cluster.change_leader()
        assert await consumed(old) == [value(at) for at in range(2 * COUNT)]

    run(work())


class ObservedDisk(SimulatedDisk):
    """Disk with the number of times that each file was opened for reading."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.opened_counts: Counter[str] = Counter()

    def open_file(self, path: str) -> SimulatedFile:
        self.opened_counts[path] += 1
        return super().open_file(path)


class ObservedCluster(Cluster):
    """Cluster with observed disks."""

    def create_disk(self, node_id: int) -> ObservedDisk:
        return ObservedDisk(node_id)


def test_a_follower_does_not_read_its_list_of_remote_segments_for_each_response() -> None:
    """Its local start is below that of the leader until its next run of remote storage."""

    async def work() -> None:
        cluster = ObservedCluster(3, config=TIERED_LOG)
        leader = await filled(cluster)
        leader.raft_node.copy_to_remote()
        cluster.deliver()
        follower = cluster.follower
        assert isinstance(follower.disk, ObservedDisk)
        before = follower.disk.opened_counts.copy()
        cluster.pass_time(5_000)
        assert local_start(follower) < local_start(leader)
        assert REMOTE_SEGMENTS_NAME not in str(follower.disk.opened_counts - before)

    run(work())


def test_a_full_disk_refuses_a_run_of_remote_storage_only() -> None:
    async def work() -> None:
        cluster = Cluster(config=TIERED_LOG)
        leader = await filled(cluster)
        leader.disk.full_at(0)
        leader.raft_node.copy_to_remote()
        assert not leader.raft_node.is_over
        assert leader.raft_node.counts.remote.errors == 1
        leader.disk.full_at(None)
        copy_all(cluster)
        assert local_start(leader) > 20

    run(work())


def test_damaged_properties_refuse_a_run_of_remote_storage_only() -> None:
    async def work() -> None:
        cluster = Cluster(config=TIERED_LOG)
        leader = await filled(cluster)
        copy_all(cluster)
        (path,) = (one for one in leader.disk.files() if one.endswith(RAFTLOG_PROPERTIES_NAME))
        data = leader.disk.files()[path]
        await put(leader, NewRecord(None, value(COUNT), time_of(COUNT)))
        for count in (1, 2):
            if count == 1:
                leader.disk.put(path, data[:-1])
            else:
                leader.disk.unlink(path)
            leader.raft_node.copy_to_remote()
            assert not leader.raft_node.is_over
            assert leader.raft_node.counts.remote.errors == count
            assert str(leader.refusals[-1]).startswith(f"[RAFTLOG_CORRUPT_FILE] {path} is corrupt")
            assert (await get(leader, local_start(leader))).records
        assert (await get(leader, 0)).error_code is ErrorCode.kafka_storage_error
        leader.disk.put(path, data)
        assert await consumed(leader) == [value(at) for at in range(COUNT + 1)]
        for at in range(COUNT):
            await put(leader, NewRecord(None, value(at), time_of(at)))
        before = leader.raft_node.counts.remote.copied_segments
        copy_all(cluster)
        assert leader.raft_node.counts.remote.copied_segments > before

    run(work())


def test_what_is_read_from_the_store_waits_for_memory() -> None:
    async def work() -> None:
        cluster = Cluster(config=TIERED_LOG)
        leader = await filled(cluster)
        copy_all(cluster)
        one = session()
        first, second = (leader.start(ApiKey.FETCH, 18, fetch(0), one) for _ in range(2))
        assert len(one.fetches) == 2
        one.memory.allocate(2**30)  # responses that were not read yet
        while not first.done() and one.memory.pool.waiting_count < 2:
            await asyncio.sleep(0)
        assert not first.done()
        one.memory.release(2**30)
        for task in (first, second):
            await task
            answer = answer_of(task, latest_schemas.FetchResponse, 18)
            assert answer.responses[0].partitions[0].records
        assert not one.fetches

    run(work())


class UnreachableCluster(Cluster):
    """Cluster with a store that cannot be opened, once ``is_unreachable``."""

    is_unreachable = False
    opened_count = 0

    def open_store(self, uri: str) -> StorageObjects:
        self.opened_count += 1
        if self.is_unreachable:
            raise OptionError(option="URI", reason="the file system cannot be reached")
        return super().open_store(uri)


def test_a_store_that_cannot_be_opened_is_an_error_that_a_client_retries() -> None:
    async def work() -> None:
        cluster = UnreachableCluster(config=TIERED_LOG)
        leader = await filled(cluster)
        copy_all(cluster)
        cluster.is_unreachable = True
        assert (await get(leader, 0)).error_code is ErrorCode.kafka_storage_error
        assert (await find(leader, time_of(0))).error_code is ErrorCode.kafka_storage_error
        cluster.is_unreachable = False
        assert (await get(leader, 0)).error_code is ErrorCode.none

    run(work())


class SlowStore(StorageObjects):
    """Store that answers once ``answers`` is set."""

    def __init__(self, disk: SimulatedDisk) -> None:
        super().__init__(disk, REMOTE)
        self.answers = threading.Event()
        self.requests = threading.Semaphore(0)
        """Released by each request, before it waits."""
        self.opened_count = 0

    def _wait(self) -> None:
        self.requests.release()
        assert self.answers.wait(60)

    def open_object(self, name: str) -> ReadableFile:
        self.opened_count += 1
        self._wait()
        return super().open_object(name)

    def list_objects(self, directory: str) -> list[StoredObject]:
        self._wait()
        return super().list_objects(directory)


class SlowCluster(Cluster):
    """Cluster with a slow store for the reads from ``store`` on."""

    reader_threads = 2
    reader_max_pending_tasks = 20
    clean_interval_ms = 60_000
    store: SlowStore | None = None

    def open_store(self, uri: str) -> StorageObjects:
        return self.store or super().open_store(uri)


def test_reads_of_lost_connections_are_not_begun() -> None:
    async def work() -> None:
        cluster = SlowCluster(config=TIERED_LOG)
        leader = await filled(cluster)
        copy_all(cluster)
        store = cluster.store = SlowStore(cluster.remote_disk)
        first, lost = session(), session()
        answered = leader.start(ApiKey.FETCH, 18, fetch(0), first)
        for _ in range(20):
            leader.start(ApiKey.FETCH, 18, fetch(0), lost)
        lost.cancel()
        await settle()  # the threads learn it in later turns
        store.answers.set()
        await answered
        assert (await get(leader, 0)).error_code is ErrorCode.none
        assert store.opened_count < 20

    run(work())


def test_a_read_that_a_store_does_not_answer_is_an_error_after_the_time_limit() -> None:
    async def work() -> None:
        cluster = SlowCluster(config=TIERED_LOG)
        leader = await filled(cluster)
        copy_all(cluster)
        store = cluster.store = SlowStore(cluster.remote_disk)
        reading = leader.start(ApiKey.FETCH, 18, fetch(0), caller())
        finding = asyncio.ensure_future(find(leader, time_of(0)))
        await settle()
        for _ in range(2):
            assert store.requests.acquire(timeout=60)
        cluster.pass_time(4_950)
        await put(leader, NewRecord(None, b"meanwhile", time_of(COUNT)))
        assert (await get(leader, local_start(leader))).error_code is ErrorCode.none
        assert not reading.done()
        assert not finding.done()
        cluster.pass_time(50)
        await reading
        response = answer_of(reading, latest_schemas.FetchResponse, 18)
        assert response.responses[0].partitions[0].error_code is ErrorCode.kafka_storage_error
        assert (await finding).error_code is ErrorCode.kafka_storage_error
        assert leader.raft_node.counts.remote.read_errors == 2
        store.answers.set()
        assert (await get(leader, 0)).error_code is ErrorCode.none

    run(work())


def test_reads_that_no_thread_can_begin_are_bounded() -> None:
    async def work() -> None:
        cluster = SlowCluster(config=TIERED_LOG)
        leader = await filled(cluster)
        copy_all(cluster)
        store = cluster.store = SlowStore(cluster.remote_disk)
        waiting = [leader.start(ApiKey.FETCH, 18, fetch(0), caller()) for _ in range(22)]
        assert (await get(leader, 0)).error_code is ErrorCode.kafka_storage_error
        for _ in range(2):
            assert store.requests.acquire(timeout=60)
        assert not any(one.done() for one in waiting)
        cluster.pass_time(5_000)
        await asyncio.gather(*waiting)
        assert store.opened_count == 2, "the others were not begun"
        late = [leader.start(ApiKey.FETCH, 18, fetch(0), caller()) for _ in range(20)]
        assert (await get(leader, 0)).error_code is ErrorCode.kafka_storage_error
        store.answers.set()
        for one in late:
            await one
            response = answer_of(one, latest_schemas.FetchResponse, 18)
            assert response.responses[0].partitions[0].error_code is ErrorCode.none

    run(work())


def test_a_run_without_progress_is_reported_at_each_retention_check() -> None:
    async def work() -> None:
        cluster = SlowCluster(config=TIERED_LOG)
        leader = await filled(cluster)
        store = cluster.store = SlowStore(cluster.remote_disk)
        leader.is_remote_held = True
        cluster.pass_time(60_000)
        (remote_run,), counts = leader.held_runs, leader.raft_node.counts.remote
        thread = threading.Thread(target=remote_run.run)
        thread.start()
        assert store.requests.acquire(timeout=60)
        cluster.pass_time(60_000)
        assert counts.errors == 0, "it has begun a request since it was begun"
        for error_count in (1, 2):
            cluster.pass_time(60_000)
            assert counts.errors == error_count
        assert counts.lag_segments > 0
        store.answers.set()
        thread.join()
        leader.raft_node.complete_remote_run(remote_run)
        assert (counts.lag_segments, counts.errors) == (0, 2)
        assert local_start(leader) > 20

    run(work())


def test_nothing_above_the_high_watermark_is_copied() -> None:
    async def work() -> None:
        cluster = Cluster(3, config=TIERED_LOG)
        leader = await filled(cluster)
        for node in cluster.nodes:
            node.is_sync_held = node is not leader
        for at in range(COUNT):
            request = produce(batch(NewRecord(None, value(at), time_of(at))))
            leader.start(ApiKey.PRODUCE, 9, request, caller())
        high_watermark = leader.replica.core.high_watermark
        assert high_watermark is not None
        leader.raft_node.copy_to_remote()
        cluster.deliver()
        chain = leader.raft_node.remote_chain
        assert chain is not None
        assert 0 < chain.copied_end_offset <= high_watermark
        assert leader.raft_node.replica.log.end_offset > high_watermark + 20

    run(work())


def first_object(disk: SimulatedDisk) -> str:
    """Return the path of the object of the first remote segment."""
    (name,) = (one for one in segment_names(disk, REMOTE) if one.startswith("0" * 20))
    (path,) = (one for one in disk.files() if one.endswith(name))
    return path


def with_first_magic(data: bytes, magic: int) -> bytes:
    return data[:MAGIC_POSITION] + bytes((magic,)) + data[MAGIC_POSITION + 1 :]


@pytest.mark.parametrize("size", [None, 0, -1])
def test_a_missing_or_shorter_object_is_damage_that_no_retry_repairs(size: int | None) -> None:
    async def work() -> None:
        cluster = Cluster(config=TIERED_LOG)
        leader = await filled(cluster)
        copy_all(cluster)
        disk = cluster.remote_disk
        path = first_object(disk)
        data = disk.files()[path]
        if size is None:
            disk.unlink(path)
        else:
            disk.put(path, data[:size])
        assert (await get(leader, 0)).error_code is ErrorCode.corrupt_message
        assert (await find(leader, time_of(0))).error_code is ErrorCode.corrupt_message
        assert (await get(leader, local_start(leader))).error_code is ErrorCode.none
        disk.put(path, data)
        assert (await get(leader, 0)).error_code is ErrorCode.none

    run(work())


def test_a_missing_object_is_retried_while_an_earlier_leader_may_have_deleted_it() -> None:
    async def work() -> None:
        cluster = Cluster(3, config=TIERED_LOG)
        await filled(cluster)
        copy_all(cluster)
        leader = cluster.change_leader()
        cluster.remote_disk.unlink(first_object(cluster.remote_disk))
        assert local_start(leader) > 0
        assert (await get(leader, 0)).error_code is ErrorCode.kafka_storage_error
        leader.raft_node.copy_to_remote()
        cluster.deliver()
        assert (await get(leader, 0)).error_code is ErrorCode.corrupt_message

    run(work())


def test_a_corrupt_batch_on_the_disk_is_damage() -> None:
    async def work() -> None:
        cluster = Cluster(config=LogConfig(segment_bytes=2_000))
        leader = await filled(cluster)
        leader.restart()  # nothing is cached in memory
        assert cluster.elect() is leader
        path = min(one for one in leader.disk.files() if one.endswith(".log"))
        leader.disk.put(path, with_first_magic(leader.disk.files()[path], 7))
        assert (await get(leader, 0)).error_code is ErrorCode.corrupt_message
        assert (await get(leader, 30)).error_code is ErrorCode.none

    run(work())


def test_a_corrupt_batch_of_a_remote_segment_is_damage() -> None:
    async def work() -> None:
        cluster = Cluster(config=TIERED_LOG)
        leader = await filled(cluster)
        copy_all(cluster)
        path = first_object(cluster.remote_disk)
        damaged = with_first_magic(cluster.remote_disk.files()[path], 7)
        cluster.remote_disk.put(path, damaged)
        assert (await get(leader, 0)).error_code is ErrorCode.corrupt_message
        assert (await get(leader, local_start(leader))).error_code is ErrorCode.none

    run(work())
