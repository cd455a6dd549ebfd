"""The committed end from copies of the voters' logs: of the sample, and of random clusters."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.log_builder import (
    END,
    LogBuilder,
    begin,
    checkpoint_bytes,
    leader_change,
    voters_record,
)
from tests.support.memory_storage import MemoryStorage
from tests.support.record_rows import listed

from raftlog.client import EndBasis, Isolation, SourceKind, open_path
from raftlog.errors import (
    CorruptFileError,
    DataLossError,
    DivergedLogError,
    NotALogError,
    TooFewVotersError,
    WrongClusterError,
)
from raftlog.log.format.epoch_cache import EpochCache
from raftlog.log.reading.directory_log import DirectoryLog
from raftlog.log.reading.quorum_copies import (
    ReplicaLogState,
    agreed_end,
    is_voter,
    majority_end,
    most_up_to_date,
)
from raftlog.types import ReplicaKey, SnapshotId

THREE = Path(__file__).parents[1] / "data" / "kraft-logs" / "three-nodes-4.3.1"
TRIMMED = Path(__file__).parents[1] / "data" / "kraft-logs" / "trimmed-3.9.2"
COMMITTED = Isolation.READ_COMMITTED


def nodes(*node_ids: int) -> str:
    return ",".join(str(THREE / f"node-{node_id}") for node_id in node_ids)


# --- the sample: 100 ends before 3131, 101 has the leader change of epoch 3 there, and 102 alone
# --- has that of epoch 4 at 3132. Node 1 is a broker: an observer that lags.


@pytest.mark.parametrize("observers", [(), (1,)], ids=["", "with an observer"])
@pytest.mark.parametrize(
    ("given", "offset", "epoch"),
    [
        ((100, 101, 102), 3132, 3),
        ((100, 101), 3131, 2),
        ((101, 102), 3132, 3),
        ((100, 102), 3131, 2),
    ],
)
def test_the_committed_end_of_the_sample_is_that_of_a_majority(
    given: tuple[int, ...], offset: int, epoch: int, observers: tuple[int, ...]
) -> None:
    log = open_path(nodes(*observers, *given))
    end = log.read_end(isolation=COMMITTED)
    assert (end.offset, end.epoch, end.basis) == (offset, epoch, EndBasis.MAJORITY)
    assert log.source is SourceKind.VOTERS
    assert ", ".join(map(str, given)) in end.explanation
    found = [scan.batches.last_offset[-1] for scan in log.scan(0, end.offset)]
    assert found[-1] == offset - 1


@pytest.mark.parametrize(("node_id", "offset"), [(100, 3131), (101, 3132), (102, 3133), (1, 2685)])
def test_one_directory_gives_its_own_end_and_reports_that_it_is_unconfirmed(
    node_id: int, offset: int
) -> None:
    end = open_path(nodes(node_id)).read_end(isolation=COMMITTED)
    assert (end.offset, end.basis) == (offset, EndBasis.DIRECTORY)
    assert "may not be committed" in end.explanation


def test_a_pattern_gives_the_same_end() -> None:
    end = open_path(str(THREE / "node-*")).read_end(isolation=COMMITTED)
    assert (end.offset, end.basis) == (3132, EndBasis.MAJORITY)
    # files that are no log are skipped
    assert open_path(str(THREE / "*")).read_end(isolation=COMMITTED).offset == 3132


def test_a_voter_and_an_observer_are_no_majority() -> None:
    with pytest.raises(TooFewVotersError) as caught:
        open_path(nodes(1, 100)).read_end(isolation=COMMITTED)
    assert (caught.value.given, caught.value.voters) == ((100,), (100, 101, 102))


def test_the_same_directory_twice_counts_once() -> None:
    log = open_path(f"{THREE}/node-100,{THREE}/node-100/")
    assert log.source is SourceKind.DIRECTORY


def test_directories_of_two_clusters_are_refused() -> None:
    with pytest.raises(WrongClusterError) as caught:
        open_path(f"{THREE}/node-100,{TRIMMED}/node-1")
    assert caught.value.cluster_id == "EBdCvGFfRxuQkA0NCMDqLg"


def test_partitions_are_no_voters() -> None:
    with pytest.raises(NotALogError, match="copies of one log, and the first is of pay-0-0"):
        open_path(f"{TRIMMED}/node-1/pay-0-0,{TRIMMED}/node-1/pay-0-1")


def test_static_voters_are_read_from_leader_changes() -> None:
    log = open_path(f"{TRIMMED}/node-1,{TRIMMED}/node-1/../node-1/__cluster_metadata-0")
    end = log.read_end(isolation=COMMITTED)
    assert (end.offset, end.basis) == (1305, EndBasis.MAJORITY)


def test_static_voters_are_known_though_their_leader_change_is_below_a_snapshot() -> None:
    storage = MemoryStorage()
    storage.copy_in(TRIMMED / "node-1", "/node")
    storage.delete("/node/__cluster_metadata-0/quorum-state")
    log = open_path("/node", storage=storage)
    assert isinstance(log, DirectoryLog)
    voters = log.voters()
    assert voters is not None
    assert (voters.offset, voters.voters) == (643, (ReplicaKey(1),))


def test_a_majority_read_has_the_same_splits_and_snapshots_as_a_copy() -> None:
    log = open_path(nodes(100, 101, 102))
    end = log.read_end(isolation=COMMITTED).offset
    one = open_path(nodes(102))
    assert log.plan(0, end, isolation=COMMITTED, max_splits=3) == one.plan(
        0, end, isolation=COMMITTED, max_splits=3
    )
    assert SnapshotId(epoch=2, end_offset=2207) in log.snapshots
    for snapshot_id in log.snapshots:
        assert log.read_snapshot(snapshot_id).last_contained_log_timestamp_ms > 0
    assert log.next_boundary(0, end_offset=end, max_records=700) == 636  # the next batch has 80
    assert log.offset_for_timestamp(0) == 0
    assert len(list(log.batches(3131, 3132))) == 1


# --- copies as values ---

VOTERS = tuple(ReplicaKey(node_id) for node_id in range(1, 6))


def copy_of(
    node_id: int,
    epochs: Sequence[int],
    *,
    known: int | None = None,
    snapshot: int | None = None,
    is_quiet: bool = True,
    start: int = 0,
) -> ReplicaLogState:
    """Return a copy whose record at offset i has ``epochs[i]``."""
    kept = list(enumerate(epochs))[start:]
    runs = [(epoch, next(run)[0]) for epoch, run in itertools.groupby(kept, lambda e: e[1])]
    last = epochs[-1] if epochs else 0
    return ReplicaLogState(
        path=f"node-{node_id}",
        node_id=node_id,
        directory_id=None,
        log_start_offset=start,
        log_end_offset=len(epochs),
        epochs=EpochCache.of(runs),
        newest_snapshot=None
        if snapshot is None
        else SnapshotId(epoch=epochs[snapshot - 1], end_offset=snapshot),
        known_epoch=last if known is None else known,
        is_quiet=is_quiet,
    )


def end_of(*copies: ReplicaLogState, voters: tuple[ReplicaKey, ...] = VOTERS) -> int:
    return majority_end(copies, voters).offset


def test_a_record_of_the_latest_epoch_on_a_majority_is_committed() -> None:
    assert end_of(copy_of(1, [1, 2, 2]), copy_of(2, [1, 2, 2]), copy_of(3, [1, 2])) == 2
    assert end_of(copy_of(1, [1, 2, 2]), copy_of(2, [1, 2, 2]), copy_of(3, [1, 2, 2])) == 3


def test_raft_figure_8_an_old_record_on_a_majority_is_not_yet_committed() -> None:
    """Leader 1 of epoch 4 copied the record of epoch 2 to a majority; node 5 led epoch 3."""
    copies = (
        copy_of(1, [1, 2, 4]),
        copy_of(2, [1, 2], known=4),
        copy_of(3, [1, 2], known=4),
        copy_of(4, [1], known=4),
        copy_of(5, [1, 3]),
    )
    assert end_of(*copies) == 1
    assert end_of(*copies[:4], copy_of(5, [1], known=4)) == 2


def test_raft_figure_8_without_the_copy_of_the_rival() -> None:
    copies = (copy_of(1, [1, 2, 4]), copy_of(2, [1, 2], known=4), copy_of(3, [1, 2], known=4))
    result = majority_end(copies, VOTERS)
    assert result.offset == 0
    assert "a leader of an epoch that is in none of these logs" in result.explanation
    # a snapshot has committed records only
    proved = majority_end((*copies[:2], copy_of(3, [1, 2], known=4, snapshot=1)), VOTERS)
    assert proved.offset == 1
    assert "a snapshot proves" in proved.explanation
    # once a record of epoch 4 is on a majority, everything before it is committed
    assert end_of(*(copy_of(n, [1, 2, 4]) for n in (1, 2, 3))) == 3


def test_an_observer_does_not_count_but_may_contradict() -> None:
    voters = VOTERS[:3]
    copies = (copy_of(1, [1, 2]), copy_of(2, [1, 2]), copy_of(3, [1]))
    assert end_of(*copies, voters=voters) == 2
    assert end_of(*copies, copy_of(9, [1, 3]), voters=voters) == 1


def test_a_voters_snapshot_advances_the_end_above_the_end_of_a_lagging_voter() -> None:
    voters = VOTERS[:3]
    assert end_of(copy_of(1, [1] * 9, snapshot=7), copy_of(2, [1] * 3), voters=voters) == 7


def test_of_two_copies_of_one_voter_the_lagging_one_counts() -> None:
    voters = VOTERS[:3]
    copies = (copy_of(1, [1] * 9), copy_of(2, [1] * 9), copy_of(2, [1] * 4))
    assert end_of(*copies, voters=voters) == 4


def test_a_replaced_disk_is_no_voter() -> None:
    copy = copy_of(1, [1])
    assert is_voter(copy, [ReplicaKey(1)])
    # its directory id is not known
    assert is_voter(copy, [ReplicaKey(1, "directory-of-voter-xyzz")])
    assert not is_voter(copy, [ReplicaKey(2)])
    other = ReplicaLogState(
        path="x",
        node_id=1,
        directory_id="another-directory-xyzz",
        log_start_offset=0,
        log_end_offset=1,
        epochs=copy.epochs,
        newest_snapshot=None,
        known_epoch=1,
        is_quiet=True,
    )
    assert is_voter(other, [ReplicaKey(1)])
    assert not is_voter(other, [ReplicaKey(1, "directory-of-voter-xyzz")])


def test_logs_agree_up_to_the_divergence_of_their_epochs() -> None:
    assert agreed_end(copy_of(1, [1, 1, 2, 2, 4]), copy_of(2, [1, 1, 2, 3, 3])) == 3
    assert agreed_end(copy_of(1, [1, 1]), copy_of(2, [1, 1, 1, 2])) == 2
    assert agreed_end(copy_of(1, [1, 1, 2, 2], start=3), copy_of(2, [1, 1])) == 0
    assert agreed_end(copy_of(1, [1, 1, 2, 2], start=3), copy_of(2, [1, 1, 2])) == 3


# --- random clusters ---


class Cluster:
    """Raft's elections, partial replication and crashes of leaders, in logs and epochs only."""

    def __init__(self, size: int, rng: random.Random) -> None:
        self.rng = rng
        self.logs: list[list[int]] = [[] for _ in range(size)]
        self.known = [0] * size
        self.leaders: dict[int, int] = {}
        self.committed = 0
        self.snapshots = [0] * size
        self.election_rate = rng.choice([0.1, 0.3, 0.5])

    def step(self) -> None:
        node = self.rng.randrange(len(self.logs))
        if self.rng.random() < self.election_rate:
            self.elect(node, [n for n in range(len(self.logs)) if self.rng.random() < 0.6])
            return
        match self.rng.randrange(6):
            case 0:
                self.append(node)
            case 1:
                held = min(self.committed, len(self.logs[node]))
                if self.logs[node][:held] == self.truth()[:held]:
                    self.snapshots[node] = max(self.snapshots[node], held)
            case _:
                leader = self.leaders.get(max(self.known), node)
                self.replicate(leader, node, self.rng.randrange(3))

    def elect(self, node: int, reached: list[int]) -> bool:
        epoch = self.known[node] + 1
        mine = (self.logs[node][-1:], len(self.logs[node]))
        granted = 1
        for other in set(reached) - {node}:
            if self.known[other] < epoch:
                self.known[other] = epoch
                granted += (self.logs[other][-1:], len(self.logs[other])) <= mine
        self.known[node] = epoch
        if granted <= len(self.logs) // 2 or epoch in self.leaders:
            return False
        self.leaders[epoch] = node
        self.logs[node].append(epoch)
        return True

    def leads(self, node: int) -> bool:
        return self.leaders.get(self.known[node]) == node

    def append(self, node: int) -> None:
        if self.leads(node):
            self.logs[node].append(self.known[node])

    def replicate(self, leader: int, node: int, count: int) -> None:
        epoch = self.known[leader]
        if leader == node or not self.leads(leader) or self.known[node] > epoch:
            return
        self.known[node] = epoch
        mine, theirs = self.logs[node], self.logs[leader]
        same = next(
            (i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b),
            min(len(mine), len(theirs)),
        )
        del mine[same:]
        mine += theirs[same : same + count]
        held = sorted((len(log) for log in self.logs if log == theirs[: len(log)]), reverse=True)
        if len(held) > len(self.logs) // 2:
            end = held[len(self.logs) // 2]
            if end and theirs[end - 1] == epoch:
                self.committed = max(self.committed, end)

    def possible_leaders(self) -> list[int]:
        """Return the nodes that could win an election now if a suitable majority voted."""
        ranks = [(log[-1:], len(log)) for log in self.logs]
        needed = len(self.logs) // 2 + 1
        return [
            node
            for node, rank in enumerate(ranks)
            if sum(other <= rank for other in ranks) >= needed
        ]

    def truth(self) -> list[int]:
        """Return the log of the latest leader: it has every committed record."""
        return self.logs[self.leaders[max(self.leaders)]] if self.leaders else []

    def look(self, given: list[int], *, still: bool) -> list[ReplicaLogState]:
        before = {node: self.known[node] for node in given}
        logs: dict[int, tuple[list[int], int]] = {}
        for node in given:
            for _ in range(0 if still else self.rng.randrange(4)):
                self.step()
            logs[node] = (list(self.logs[node]), self.snapshots[node])
        return [
            copy_of(
                node,
                log,
                known=max(self.known[node], *log, 0),
                snapshot=snapshot or None,
                is_quiet=self.known[node] == before[node],
            )
            for node, (log, snapshot) in logs.items()
        ]


CLUSTERS = given(st.integers(0, 2**32), st.sampled_from([3, 5, 5]), st.booleans())


@settings(max_examples=250)
@CLUSTERS
def test_committed_records_are_in_the_log_of_every_possible_leader(
    seed: int, size: int, still: bool
) -> None:
    assert_possible_leaders_have_committed_records(seed, size, still)


@pytest.mark.nightly
@settings(max_examples=5000)
@CLUSTERS
def test_committed_records_are_in_the_log_of_every_possible_leader_of_many_clusters(
    seed: int, size: int, still: bool
) -> None:
    assert_possible_leaders_have_committed_records(seed, size, still)


def assert_possible_leaders_have_committed_records(seed: int, size: int, still: bool) -> None:
    rng = random.Random(seed)
    cluster = Cluster(size, rng)
    voters = tuple(ReplicaKey(node) for node in range(size))
    for _ in range(rng.randrange(10, 80)):
        cluster.step()
    given_count = rng.randrange(size // 2 + 1, size + 1)
    copies = cluster.look(rng.sample(range(size), given_count), still=still)
    end = majority_end(copies, voters).offset
    newest = most_up_to_date(copies)
    claimed = [newest.epochs.epoch_at(offset) for offset in range(end)]
    for _ in range(20):
        for node in cluster.possible_leaders():
            assert cluster.logs[node][:end] == claimed
        cluster.step()


# --- directories ---

A, B, C = (ReplicaKey(n, f"DirectoryOfNode{n}xxxxAA") for n in (1, 2, 3))


def voter_log(
    storage: MemoryStorage, key: ReplicaKey, *, cluster_id: str = "cluster", start: int = 0
) -> LogBuilder:
    home = f"/nodes/{key.node_id}"
    properties = (
        f"version=1\ncluster.id={cluster_id}\nnode.id={key.node_id}\n"
        f"directory.id={key.directory_id}\n"
    )
    storage.write(f"{home}/meta.properties", properties.encode())
    return LogBuilder(storage, f"{home}/__cluster_metadata-0", start_offset=start)


def three(storage: MemoryStorage, *, count: int = 5) -> list[LogBuilder]:
    """Write three voters with the same ``count`` records after two common ones."""
    builders = [voter_log(storage, key) for key in (A, B, C)]
    for builder in builders:
        builder.control(leader_change(1, (1, 2, 3)), voters_record((A, B, C)))
        builder.no_ops(count)
    return builders


def open_three(storage: MemoryStorage) -> object:
    return open_path("/nodes/1,/nodes/2,/nodes/3", storage=storage)


def test_a_directory_replaced_by_another_cluster_is_refused_on_refresh() -> None:
    storage = MemoryStorage()
    three(storage)
    log = open_path("/nodes/1,/nodes/2,/nodes/3", storage=storage)
    assert log.read_end(isolation=COMMITTED).offset == 7
    voter_log(storage, B, cluster_id="other").no_ops(50)
    assert log.read_end(isolation=COMMITTED).offset == 7  # as of the last refresh
    for _ in range(2):
        log.refresh()
        with pytest.raises(WrongClusterError) as caught:
            log.read_end(isolation=COMMITTED)
        assert (caught.value.path, caught.value.cluster_id) == ("/nodes/2", "other")
    with pytest.raises(WrongClusterError):
        list(log.scan(0, 7))


def test_the_voters_of_a_snapshot_count_where_the_log_after_it_has_none() -> None:
    storage = MemoryStorage()
    for key in (A, B):
        builder = voter_log(storage, key, start=100)
        builder.checkpoint(voters=(A, B, C))
        builder.no_ops(key.node_id)
    end = open_path("/nodes/1,/nodes/2", storage=storage).read_end(isolation=COMMITTED)
    assert (end.offset, end.basis) == (101, EndBasis.MAJORITY)


def test_a_leader_change_of_the_same_voters_keeps_their_directories() -> None:
    storage = MemoryStorage()
    for builder in three(storage):
        builder.lead(2, 1, (1, 2, 3))
    stranger = b"version=1\ncluster.id=cluster\nnode.id=3\ndirectory.id=a-new-disk\n"
    storage.write("/nodes/3/meta.properties", stranger)
    with pytest.raises(TooFewVotersError) as caught:
        open_path("/nodes/1,/nodes/3", storage=storage).read_end(isolation=COMMITTED)
    assert caught.value.given == (1,)


def test_a_voter_that_was_removed_does_not_count() -> None:
    storage = MemoryStorage()
    for builder in three(storage)[:2]:
        builder.control(voters_record((A, B)))
    log = open_path("/nodes/1,/nodes/2,/nodes/3", storage=storage)
    assert log.read_end(isolation=COMMITTED).offset == 8
    with pytest.raises(TooFewVotersError) as caught:
        open_path("/nodes/1,/nodes/3", storage=storage).read_end(isolation=COMMITTED)
    assert caught.value.voters == (1, 2)


def test_the_end_advances_as_voters_catch_up_and_never_decreases() -> None:
    storage = MemoryStorage()
    builders = three(storage)
    log = open_path("/nodes/1,/nodes/2,/nodes/3", storage=storage)
    builders[0].no_ops(4)
    log.refresh()
    first = log.read_end(isolation=COMMITTED)
    assert first.offset == 7
    builders[1].no_ops(2)
    log.refresh()
    second = log.read_end(isolation=COMMITTED, previous=first)
    assert second.offset == 9
    # refresh with a lagging voter: the previous end is kept
    lagging = open_path("/nodes/1,/nodes/3", storage=storage)
    kept = lagging.read_end(isolation=COMMITTED, previous=second)
    assert (kept.offset, kept.epoch) == (9, 1)
    assert "the end is now 7" in kept.explanation


def test_only_an_epoch_conflict_at_the_previous_end_is_data_loss() -> None:
    storage = MemoryStorage()
    builders = three(storage)
    alone = open_path("/nodes/1", storage=storage)
    builders[0].no_ops(4)
    alone.refresh()
    previous = alone.read_end(isolation=COMMITTED)
    assert previous.offset == 11
    for builder in builders[1:]:
        builder.lead(2, 2, (1, 2, 3))
    log = open_path("/nodes/2,/nodes/3", storage=storage)
    with pytest.raises(DivergedLogError) as caught:
        log.read_end(isolation=COMMITTED, previous=previous)
    assert (caught.value.offset, caught.value.expected_epoch, caught.value.epoch) == (10, 1, 2)


def test_the_end_is_before_a_transaction_whose_end_is_not_on_a_majority() -> None:
    storage = MemoryStorage()
    builders = three(storage)
    for builder in builders:
        builder.data(b"\x01\x17\x00\x00")
        builder.no_ops(2)
    builders[0].data(b"\x01\x18\x00\x00")
    log = open_path("/nodes/1,/nodes/2,/nodes/3", storage=storage)
    assert log.read_end(isolation=Isolation.READ_UNCOMMITTED).offset == 10
    end = log.read_end(isolation=COMMITTED)
    assert end.offset == 7
    assert "still open" in end.explanation
    builders[1].data(b"\x01\x18\x00\x00")
    log.refresh()
    assert log.read_end(isolation=COMMITTED).offset == 11


def test_records_deleted_from_the_newest_copy_are_read_from_one_that_agrees() -> None:
    storage = MemoryStorage()
    builders = three(storage)
    for builder in builders:
        builder.roll()
        builder.checkpoint(voters=(A, B, C))
        builder.no_ops(5)
    builders[0].no_ops(3)
    builders[0].delete_segment(0)
    log = open_path("/nodes/1,/nodes/2,/nodes/3", storage=storage)
    assert log.log_start_offset == 0
    end = log.read_end(isolation=COMMITTED).offset
    offsets = [o for scan in log.scan(0, end) for o in listed(scan.records.offset)]
    assert offsets == list(range(12))
    plan = log.plan(0, end, isolation=COMMITTED, max_splits=2)
    assert [(s.start_offset, s.end_offset) for s in plan.splits][-1][1] == end
    assert log.next_boundary(0, end_offset=end, max_records=100) <= end
    for builder in builders[1:]:
        builder.delete_segment(0)
    log.refresh()
    assert log.log_start_offset == 7
    with pytest.raises(DataLossError) as caught:
        next(log.scan(0, end))
    assert caught.value.condition == "OFFSETS_DELETED"


def test_a_limit_does_not_split_a_transaction_at_the_start_of_the_newest_copy() -> None:
    storage = MemoryStorage()
    for node_id in VOTERS[:3]:
        builder = voter_log(storage, node_id)
        builder.control(leader_change(1, (1, 2, 3)), voters_record(VOTERS[:3]))
        builder.no_ops(4)
        builder.data(begin())
        builder.no_ops(3)
        builder.roll()
        builder.no_ops(3)
        builder.data(END)
        builder.no_ops(4)
        if node_id == VOTERS[1]:
            builder.no_ops(1)
            builder.checkpoint(end_offset=14, voters=VOTERS[:3])
            builder.delete_segment(0)
    log = open_path("/nodes/*", storage=storage)
    end = log.read_end(isolation=COMMITTED).offset
    assert (log.log_start_offset, end) == (0, 18)
    ends = [
        log.next_boundary(start, end_offset=end, max_records=count)
        for start, count in ((0, 100), (0, 8), (6, 100), (6, 2), (14, 100))
    ]
    assert ends == [6, 6, 14, 14, 18]


def test_a_directory_without_meta_properties_does_not_count() -> None:
    storage = MemoryStorage()
    three(storage)
    storage.delete("/nodes/2/meta.properties")
    with pytest.raises(CorruptFileError, match="so the node of this copy is unknown"):
        open_path("/nodes/1,/nodes/2", storage=storage)


def test_a_log_without_voters_is_reported() -> None:
    storage = MemoryStorage()
    for key in (A, B):
        voter_log(storage, key).no_ops(3)
    log = open_path("/nodes/1,/nodes/2", storage=storage)
    with pytest.raises(CorruptFileError, match="contains its voters"):
        log.read_end(isolation=COMMITTED)
    state = b'{"clusterId":"","leaderId":1,"leaderEpoch":1,"votedId":-1,"appliedOffset":0,'
    state += b'"currentVoters":[{"voterId":1},{"voterId":2}],"data_version":0}'
    storage.write("/nodes/1/__cluster_metadata-0/quorum-state", state)
    storage.write("/nodes/2/__cluster_metadata-0/quorum-state", state)
    log.refresh()
    assert log.read_end(isolation=COMMITTED).offset == 3


def test_a_snapshot_without_voters_changes_nothing() -> None:
    storage = MemoryStorage()
    for builder in three(storage):
        storage.write(
            builder.file("00000000000000000007-0000000001.checkpoint"), checkpoint_bytes()
        )
        builder.lead(2, 1, (1, 2, 3))
    log = open_path("/nodes/1,/nodes/2", storage=storage)
    assert log.read_end(isolation=COMMITTED).offset == 8
