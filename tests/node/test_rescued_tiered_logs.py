"""A quorum with remote storage whose majority is lost continues with a survivor and the store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raftlog.errors import CorruptFileError
from raftlog.log.format.directory import RAFTLOG_PROPERTIES_NAME, REMOTE_SEGMENTS_NAME
from raftlog.log.reading.opening import open_log
from raftlog.log.writing.atomic_files import replace_checked
from raftlog.log.writing.properties import LogConfig, LogProperties, encode_log_properties
from raftlog.log.writing.quorum_log import QuorumLog
from raftlog.node.config import parse_config
from raftlog.node.rescue import format_from, open_node_survivor
from raftlog.records.batch import NewRecord
from raftlog.records.builder import build_batch
from raftlog.storage.errors import RemoteObjectNotFoundError, WrongBackupError
from tests.log.remote.stored_backups import surroundings
from tests.log.remote.tiered_logs import segment_names
from tests.simulated_disk.simulated_disk import SimulatedDisk

from .apis.cluster import CLUSTER_ID, TIME_MS, TOPIC_ID, Cluster, Node, run
from .apis.test_offsets import put
from .apis.test_remote_storage import (
    COUNT,
    REMOTE,
    TIERED_LOG,
    copy_all,
    local_start,
    time_of,
    value,
)

NEW = "/new/orders-0"
CONFIG = parse_config(
    '[node]\nid = 7\ndirectory = "/new"\ntopic = "orders"\n'
    '[listeners.voters]\naddress = "127.0.0.1:19091"\n',
    "/node.toml",
)
DISABLED = replace(TIERED_LOG, remote_storage_enable=False)


async def put_all(leader: Node, first: int, end: int) -> None:
    for at in range(first, end):
        await put(leader, NewRecord(None, value(at), time_of(at)))


def rescued(cluster: Cluster, survivor: SimulatedDisk) -> SimulatedDisk:
    """Format a node from the disk of a stopped one, on the same disk; return it."""
    with open_node_survivor(CONFIG, "/data", survivor, cluster.open_store) as found:
        format_from(
            found,
            CONFIG,
            cluster_id=CLUSTER_ID,
            is_standalone=True,
            storage=survivor,
            time_ms=TIME_MS,
        )
    return survivor


def stopped(node: Node) -> SimulatedDisk:
    """Close the log of a node; return its disk."""
    node.replica.log.close()
    return node.disk


def values_in(cluster: Cluster, disk: SimulatedDisk) -> list[bytes | None]:
    """Return the values of a new node's log as a reader reads them, from its start."""
    log = open_log(disk, NEW, open_store=cluster.open_store)
    assert log.log_start_offset == 0
    return [
        record.value
        for one in log.batches(0, log.log_end_offset)
        if not one.is_control
        for record in one.records()
    ]


def copies_on(cluster: Cluster, disk: SimulatedDisk) -> None:
    """Run the remote storage of a new node as the leader of its quorum."""
    log = QuorumLog.open(disk, NEW, now_ms=TIME_MS)
    log.advance_high_watermark(log.end_offset)
    run = log.begin_remote_run(cluster.open_store, surroundings(7), cache={}, node_id=7)
    assert run is not None
    with run:
        run.run()
        log.complete_remote_run(run)
    assert run.counts.lag_segments == 0
    log.close()


@pytest.mark.parametrize("is_leader", [True, False])
def test_a_new_quorum_has_the_local_and_the_remote_segments_of_the_survivor(
    is_leader: bool,
) -> None:
    async def work() -> None:
        cluster = Cluster(3, config=TIERED_LOG)
        leader = cluster.elect()
        await put_all(leader, 0, COUNT)
        copy_all(cluster)
        await put_all(leader, COUNT, COUNT + 5)
        survivor = leader if is_leader else cluster.follower
        assert local_start(survivor) > 20
        epochs = survivor.replica.log.epochs
        disk = rescued(cluster, stopped(survivor))
        assert values_in(cluster, disk) == [value(at) for at in range(COUNT + 5)]
        new = QuorumLog.open(disk, NEW, now_ms=TIME_MS)
        assert new.epochs.entries[:-1] == epochs.entries
        new.close()
        copies_on(cluster, disk)
        assert values_in(cluster, disk) == [value(at) for at in range(COUNT + 5)]

    run(work())


def test_committed_records_that_only_the_store_has_follow_the_survivor() -> None:
    """It has records of an earlier epoch after them, which were never committed."""

    async def work() -> None:
        cluster = Cluster(3, config=TIERED_LOG)
        old = cluster.elect()
        await put_all(old, 0, 10)
        survivor = old.disk.copy()
        log = QuorumLog.open(survivor, "/data/orders-0", now_ms=TIME_MS)
        for at in range(30):
            one = build_batch(
                [NewRecord(None, b"%0100d" % -at)],
                base_offset=log.end_offset,
                leader_epoch=log.epoch,
                base_timestamp_ms=TIME_MS,
            )
            log.append_as_follower(one.data, leader_epoch=log.epoch)
        own_end = log.end_offset
        log.close()
        leader = cluster.change_leader()
        await put_all(leader, 10, 10 + COUNT)
        leader.raft_node.copy_to_remote()
        cluster.deliver()
        chain, end_offset = leader.replica.log.remote.chain(), leader.replica.log.end_offset
        assert chain is not None
        assert end_offset > chain.copied_end_offset > own_end
        rescued(cluster, survivor)
        count = 10 + COUNT - (end_offset - chain.copied_end_offset)
        for _ in range(2):
            assert values_in(cluster, survivor) == [value(at) for at in range(count)]
            copies_on(cluster, survivor)

    run(work())


def test_an_object_that_is_missing_is_an_error_and_nothing_is_formatted() -> None:
    async def work() -> None:
        cluster = Cluster(3, config=TIERED_LOG)
        leader = cluster.elect()
        late = cluster.follower
        late.is_cut_off = True
        await put_all(leader, 0, COUNT)
        leader.raft_node.copy_to_remote()
        cluster.deliver()
        name = min(segment_names(cluster.remote_disk, REMOTE))
        (path,) = (one for one in cluster.remote_disk.files() if one.endswith(name))
        cluster.remote_disk.unlink(path)
        with pytest.raises(RemoteObjectNotFoundError, match=name):
            rescued(cluster, stopped(late))
        assert not any(path.startswith("/new/meta") for path in late.disk.files())

    run(work())


def test_a_store_of_another_log_is_refused() -> None:
    async def work() -> None:
        clusters = [Cluster(3, config=TIERED_LOG) for _ in range(2)]
        for at, cluster in enumerate(clusters):
            leader = cluster.elect()
            for _ in range(at):
                leader = cluster.change_leader()
            await put_all(leader, 0, COUNT * (at + 1))
            copy_all(cluster)
        clusters[1].remote_disk = clusters[0].remote_disk
        with pytest.raises(WrongBackupError, match="has epoch"):
            rescued(clusters[1], stopped(clusters[1].leader))

    run(work())


def test_a_survivor_whose_remote_storage_is_disabled_needs_no_store() -> None:
    async def work() -> None:
        cluster = Cluster(config=TIERED_LOG)
        leader = cluster.elect()
        await put_all(leader, 0, COUNT)
        copy_all(cluster)
        chain = leader.replica.log.remote.chain()
        disk = stopped(leader)
        configure(disk, DISABLED)
        remote, cluster.remote_disk = cluster.remote_disk, SimulatedDisk()
        rescued(cluster, disk)
        new = QuorumLog.open(disk, NEW, now_ms=TIME_MS)
        assert new.remote.chain() == chain
        assert f"{NEW}/{REMOTE_SEGMENTS_NAME}" in disk.files()
        new.close()
        cluster.remote_disk = remote
        assert values_in(cluster, disk) == [value(at) for at in range(COUNT)]

    run(work())


def test_a_damaged_list_is_an_error_if_remote_storage_is_disabled_and_nothing_is_formatted() -> (
    None
):
    async def work() -> None:
        cluster = Cluster(config=TIERED_LOG)
        leader = cluster.elect()
        await put_all(leader, 0, COUNT)
        copy_all(cluster)
        disk = stopped(leader)
        configure(disk, DISABLED)
        disk.put(f"/data/orders-0/{REMOTE_SEGMENTS_NAME}", b"damaged")
        with pytest.raises(CorruptFileError, match=r"remote.storage.enable is false.*configure"):
            rescued(cluster, disk)
        assert not any(path.startswith("/new") for path in disk.files())
        configure(disk, TIERED_LOG)
        rescued(cluster, disk)
        assert values_in(cluster, disk) == [value(at) for at in range(COUNT)]

    run(work())


def configure(disk: SimulatedDisk, config: LogConfig) -> None:
    properties = encode_log_properties(LogProperties(topic_id=TOPIC_ID, config=config))
    replace_checked(disk, "/data/orders-0", {RAFTLOG_PROPERTIES_NAME: properties})


def test_a_damaged_list_of_remote_segments_is_written_again_from_the_manifest() -> None:
    async def work() -> None:
        cluster = Cluster(3, config=TIERED_LOG)
        leader = cluster.elect()
        await put_all(leader, 0, COUNT)
        copy_all(cluster)
        disk = stopped(leader)
        disk.put(f"/data/orders-0/{REMOTE_SEGMENTS_NAME}", b"damaged")
        rescued(cluster, disk)
        assert values_in(cluster, disk) == [value(at) for at in range(COUNT)]
        copies_on(cluster, disk)

    run(work())
