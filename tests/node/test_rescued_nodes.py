"""Nodes of a raftlog quorum that are formatted with the log of a node that survived."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import raftlog
from raftlog import AppendResult, CommitName, ConnectedLog
from raftlog.errors import (
    LogNotFoundError,
    NodeRunningError,
    OptionError,
    StaleCommitError,
    UnexpectedEndOffsetError,
)
from raftlog.log.format.directory import COMPACTED_CHECKPOINT_NAME, NODE_LOCK_NAME
from raftlog.log.reading.transactions import ValueKind, commit_header, encoded_metadata
from raftlog.log.writing.quorum_log import QuorumLog
from raftlog.log.writing.segments import LogDirectory
from raftlog.node.config import NodeConfig, parse_config
from raftlog.node.errors import AlreadyFormattedError, NotFormattedError, WrongDirectoryError
from raftlog.node.formatting import read_identity
from raftlog.node.rescue import format_from, open_node_survivor
from raftlog.records.builder import NO_PRODUCER, ProducerStamp, build_batch
from raftlog.records.record import Header, NewRecord
from raftlog_state.cli.rescue import describe
from tests.simulated_disk.simulated_disk import SimulatedDisk, Survival
from tests.support.cli import run
from tests.support.crash_injection import crashes_after
from tests.support.one_replica import DIRECTORY, TIME_MS, OneReplica
from tests.support.quorum_checks import follows, grows, is_level, leader_of, voter_ids
from tests.support.quorum_load import Load, check_nothing_is_lost
from tests.support.quorum_processes import NodeProcess, QuorumProcesses, eventually, free_ports

CLUSTER_ID = "UBxqW7I0Tziuuu-k2lOaxw"


# --- processes ------------------------------------------------------------------------------------


def format_nodes(nodes: list[NodeProcess], survivor: Path) -> None:
    voters = ",".join(node.voter for node in nodes)
    for node in nodes:
        call = ("node", "format", "-c", node.config, "--from", survivor, "--initial-voters", voters)
        status, out, err = run(*call)
        assert (status, err) == (0, "")
        assert f"directory.id={node.directory_id}" in out


def append_at_the_end(log: ConnectedLog) -> AppendResult | None:
    """Append at the end offset; return None if a control record, such as the voters', is there.

    A node whose listeners differ from those it was formatted with registers them with the leader.
    """
    try:
        return log.append(b"after", required_base_offset=log.end_offset)
    except UnexpectedEndOffsetError:
        return None


@pytest.mark.slow
def test_a_new_quorum_continues_the_log_of_one_of_three_nodes(tmp_path: Path) -> None:
    with QuorumProcesses(tmp_path / "old") as old:
        with Load(old.bootstrap) as load:
            grows(load)
        with raftlog.connect(old.bootstrap) as log:
            named = log.append([b"named 1", b"named 2"], commit=("app", "query", 7))
        survivor = next(node for node in old.nodes if follows(node))
        eventually(lambda: is_level(old, survivor), "the follower has all records")
        nodes = [
            NodeProcess(tmp_path / f"new-{node_id}", node_id, port)
            for node_id, port in zip((survivor.node_id, 8, 9), free_ports(3), strict=True)
        ]
        alone = ("node", "format", "-c", nodes[0].config, "--standalone", "--from")
        status, _, err = run(*alone, survivor.directory)
        assert status == 1
        assert "in use by another process" in err
        assert survivor.stop() == 0
        status, _, err = run(*alone, survivor.directory)
        assert status == 1
        assert "a majority of the old voters (1, 2, 3) may be running" in err
        assert not nodes[0].directory.exists()
        for node in old.running():
            node.kill()
            shutil.rmtree(node.directory)
        format_nodes(nodes, survivor.directory)

        new = QuorumProcesses(tmp_path / "unused")
        new.nodes[:] = nodes
        with ExitStack() as stack:
            stack.push(new)  # ends the processes; their directories are formatted
            for node in nodes:
                node.launch()
            for node in nodes:
                node.wait_until_it_listens()
            with raftlog.connect(new.bootstrap, cluster_id=old.cluster_id) as log:
                again = log.append([b"named 1", b"named 2"], commit=("app", "query", 7))
                assert again.was_duplicate
                assert again.base_offset == named.base_offset
                with pytest.raises(StaleCommitError):
                    log.append(b"older", commit=("app", "query", 6))
                with pytest.raises(UnexpectedEndOffsetError):
                    log.append(b"stale", required_base_offset=named.base_offset)
                done = eventually(lambda: append_at_the_end(log), "an append at the end offset")
                assert done.epoch > 2**15
            assert voter_ids(new) == sorted(node.node_id for node in nodes)
            leader = eventually(lambda: leader_of(new), "a leader")
            leader.kill()
            with raftlog.connect(new.bootstrap) as log:
                assert log.append(b"with two").epoch > done.epoch
                values = [record.value for record in log.read(named.base_offset)]
            assert values == [b"named 1", b"named 2", b"after", b"with two"]
            check_nothing_is_lost(new.bootstrap, load.book)


# --- without processes ----------------------------------------------------------------------------


def config_of(node_id: int, *, topic: str = "orders") -> NodeConfig:
    voters = ", ".join(f'"{one}@127.0.0.1:{19090 + one}"' for one in (1, 2, 3))
    return parse_config(
        f'[node]\nid = {node_id}\ndirectory = "/new"\ntopic = "{topic}"\n'
        f"static_voters = [{voters}]\n"
        f'[listeners.voters]\naddress = "127.0.0.1:{19090 + node_id}"\n',
        "/node.toml",
    )


CONFIG = config_of(1)
DYNAMIC = parse_config(
    '[node]\nid = 1\ndirectory = "/new"\ntopic = "orders"\n'
    '[listeners.voters]\naddress = "127.0.0.1:19091"\n',
    "/node.toml",
)


def disk_of_a_survivor() -> SimulatedDisk:
    """Return the disk of a stopped node whose log begins at a snapshot with producers' states."""
    return written_disk().copy()


@functools.cache
def written_disk() -> SimulatedDisk:
    node = OneReplica()
    node.elect()
    for number in range(40):
        append(node, number)
        if number == 19:
            node.snapshot(node.replica.log.end_offset)
    node.shut_down()
    node.replica.log.close()
    return node.disk


def append(node: OneReplica, number: int) -> None:
    """Append a batch of a producer with its next sequence, or one with a commit name."""
    log, name = node.replica.log, None
    headers: tuple[Header, ...] = ()
    producer = ProducerStamp(70 + number % 3, 0, number // 3)
    if number % 20 == 5:
        name, producer = CommitName(f"app {number}", "query", number), NO_PRODUCER
        headers = (commit_header(name),)
    batch = build_batch(
        [NewRecord(None, b"value %d" % number, headers=headers)],
        base_offset=log.end_offset,
        leader_epoch=log.epoch,
        base_timestamp_ms=TIME_MS + number,
        producer=producer,
    )
    log.append_as_leader([(batch.data, encoded_metadata(batch, ValueKind.BYTES, commit=name))])
    node.raft_node.act(
        lambda now_ms, time_ms: node.replica.appended(now_ms=now_ms, time_ms=time_ms)
    )


def rescue(disk: SimulatedDisk, config: NodeConfig = CONFIG) -> None:
    with open_node_survivor(config, "/data", disk) as survivor:
        format_from(survivor, config, cluster_id=CLUSTER_ID, storage=disk, time_ms=TIME_MS)


def new_log(disk: SimulatedDisk) -> dict[str, bytes]:
    """Return the files of the new log that have no boot id."""
    files = disk.files().items()
    return {
        path: data
        for path, data in files
        if path.startswith("/new/orders-0/") and not path.endswith("/synced")
    }


def test_all_nodes_get_the_same_log_and_the_producers_states() -> None:
    source = disk_of_a_survivor()
    survivor = source.files()
    logs = []
    for node_id in (1, 2, 3):
        disk = source.copy()
        rescue(disk, config_of(node_id))
        assert {path: disk.files()[path] for path in survivor} == survivor
        assert read_identity(config_of(node_id), disk).node_id == node_id
        logs.append(new_log(disk))
        copied, original = opened(disk, "/new/orders-0"), opened(source.copy(), DIRECTORY)
        assert copied.log_start_offset == original.log_start_offset > 0
        assert copied.end_offset == original.end_offset + 1
        assert copied.producer_state.commits == original.producer_state.commits
        assert len(copied.producer_state.commits) == 2
        assert copied.producer_state.producers == original.producer_state.producers
        assert len(copied.producer_state.producers) == 3
        assert copied.snapshots == original.snapshots
        election = copied.read_election_state()
        assert election is not None
        assert election.leader_epoch == copied.epoch >= original.epoch + 2**15
        assert (election.leader_id, election.voted_id) == (None, None)
    assert logs[0] == logs[1] == logs[2]


def opened(disk: SimulatedDisk, path: str) -> QuorumLog:
    return QuorumLog.open(disk, path, now_ms=TIME_MS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compacted_offset", "words"),
    [(0, None), (-1, None), (1, "had compacted records below offset"), (None, "is damaged")],
)
def test_a_survivor_that_ends_below_its_compacted_offset_is_incomplete(
    compacted_offset: int | None, words: str | None
) -> None:
    """``compacted_offset``: after the end of the log, None if its file is damaged."""
    disk = disk_of_a_survivor()
    with open_node_survivor(CONFIG, "/data", disk) as survivor:
        end_offset = survivor.end_offset
        assert survivor.incompleteness is None
    directory = LogDirectory(disk, "/data/orders-0")
    directory.raise_compacted_offset(end_offset + (compacted_offset or 0))
    if compacted_offset is None:
        disk.put(f"/data/orders-0/{COMPACTED_CHECKPOINT_NAME}", b"damaged")
    with open_node_survivor(CONFIG, "/data", disk) as survivor:
        lines = [one for one in describe(survivor, CLUSTER_ID) if one.startswith("incomplete: ")]
        assert len(lines) == (words is not None)
        assert words is None or words in lines[0]
        format_from(survivor, CONFIG, cluster_id=CLUSTER_ID, storage=disk, time_ms=TIME_MS)
    assert LogDirectory(disk, "/new/orders-0").compacted_offset() <= end_offset


@pytest.mark.parametrize(
    "survivals", [0, pytest.param(len(Survival), marks=pytest.mark.nightly)], ids=["one", "all"]
)
def test_formatting_can_be_repeated_after_a_power_loss_at_any_step(survivals: int) -> None:
    """``make test`` has one kind of survival for each step, in turn."""
    source = disk_of_a_survivor()
    done = source.copy()
    rescue(done)
    complete = new_log(done)
    survivor = [path for path in source.files() if not path.endswith("/synced")]
    for operations in range(1, 400):
        kinds = list(Survival)
        for survival in kinds[:survivals] or [kinds[operations % len(kinds)]]:
            disk = source.copy(operations)
            is_crash = crashes_after(disk, operations, rescue, disk)
            disk.crash(survival)
            try:
                read_identity(CONFIG, disk)
            except (NotFormattedError, WrongDirectoryError, LogNotFoundError):
                rescue(disk)
            assert new_log(disk) == complete, (operations, survival)
            assert all(disk.files()[path] == source.files()[path] for path in survivor)
        if not is_crash:
            return
    raise AssertionError("the formatting never ended")


def test_a_formatted_directory_is_not_overwritten() -> None:
    disk = disk_of_a_survivor()
    rescue(disk)
    before = disk.files()
    with pytest.raises(AlreadyFormattedError):
        rescue(disk)
    disk.unlink("/new/meta.properties")
    with pytest.raises(AlreadyFormattedError):
        rescue(disk)
    assert disk.files() == {
        path: before[path] for path in before if not path.endswith("meta.properties")
    }


def test_a_node_in_use_is_no_survivor() -> None:
    disk = disk_of_a_survivor()
    disk.put(f"/data/{NODE_LOCK_NAME}", b"")
    with (
        pytest.raises(NodeRunningError),
        opened_lock(disk.another_process()),
        open_node_survivor(CONFIG, "/data", disk),
    ):
        pass
    rescue(disk)


@contextmanager
def opened_lock(disk: SimulatedDisk) -> Iterator[None]:
    lock = disk.try_lock(f"/data/{NODE_LOCK_NAME}")
    assert lock is not None
    with lock:
        yield


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (config_of(1, topic="other"), "the log of topic orders, and node.topic is other"),
        (DYNAMIC, "its voters are static"),
    ],
)
def test_a_configuration_of_another_log_is_refused(config: NodeConfig, words: str) -> None:
    disk = disk_of_a_survivor()
    with (
        pytest.raises(OptionError, match=words),
        open_node_survivor(config, "/data/orders-0", disk),
    ):
        pass


def test_a_node_that_is_no_voter_gets_no_log() -> None:
    disk = disk_of_a_survivor()
    with (
        open_node_survivor(CONFIG, "/data", disk) as survivor,
        pytest.raises(OptionError, match="omit --no-initial-voters"),
    ):
        format_from(survivor, DYNAMIC, cluster_id=CLUSTER_ID, is_observer=True, storage=disk)
    assert "/new" not in {path[:4] for path in disk.files()}


def test_a_log_of_kafka_is_refused() -> None:
    kafka = Path(__file__).parents[1] / "data/kraft-logs/three-nodes-4.3.1/node-101"
    with (
        pytest.raises(OptionError, match="for one of Kafka use `raftlog rescue`"),
        open_node_survivor(config_of(1, topic="__cluster_metadata"), str(kafka)),
    ):
        pass
