"""A crash after any operation keeps every acknowledged record and every file consistent.

``RAFTLOG_CRASH_STATES`` is the minimum number of states, if set.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterator, Sequence

import pytest
from tests.log.crash.crash_checks import CrashChecker
from tests.simulated_disk.crash_model import Survival
from tests.simulated_disk.crash_points import KINDS, CrashState
from tests.simulated_disk.simulated_tree import OperationKind
from tests.support.log_builder import ABORT, END, NO_OP, begin
from tests.support.report_lines import REPORT_LINE
from tests.support.witness import Witness

from raftlog.log.format import directory
from raftlog.log.reading.transactions import CommitName, ValueKind, commit_transaction_name
from raftlog.log.writing.properties import LogConfig

SEEDS_MAX = 50


def named_commit(version: int) -> list[bytes]:
    """Return a batch of metadata records that names its commit: a transaction in one batch."""
    return [begin(commit_transaction_name(CommitName("app", "query", version))), NO_OP, END]


def embedded_log() -> Witness:
    """Run a log without replicas: plain appends, rolls, commits, producers, retention, restarts."""
    log = Witness(LogConfig(segment_bytes=700, index_interval_bytes=150))
    log.append(b"one")
    log.append(b"two", b"three", commit=CommitName("app", "query", 1))
    for at in range(4):
        log.append(b"x" * 120, flush=at % 2 == 1)
    log.append(b"by a producer", producer=(7, 0, 0))
    log.append(b"not synced on its own", flush=False)
    log.append(b"c", commit=CommitName("app", "query", 2))
    log.reopen()
    log.append(b"after a clean stop", producer=(7, 0, 1))
    snapshot_id = log.snapshot()
    for _ in range(4):
        log.append(b"y" * 150, flush=False)
    log.flush()
    log.delete_before(snapshot_id)
    log.append(b"lost with its process", flush=False)
    log.reopen(in_order=False)
    log.claim()
    log.append(b"of epoch 2", commit=CommitName("other", "q", 5))
    log.append(b"z" * 600)
    log.append(b"w" * 600, commit=CommitName("app", "query", 3))
    log.delete_before(log.snapshot())
    log.append(b"the last")
    log.reopen()
    return log


def replica() -> Witness:
    """Run a replica of a metadata log: transactions, truncation, epochs, snapshots."""
    config = LogConfig(values=ValueKind.KRAFT, segment_bytes=600, index_interval_bytes=150)
    log = Witness(config, is_replica=True)
    log.append(*[NO_OP] * 5)
    log.append(begin("open"), NO_OP)
    log.append(NO_OP, END)
    log.append(*named_commit(1))
    for _ in range(4):
        log.append(*[NO_OP] * 8, flush=False)
    log.flush()
    log.truncate(log.log.end_offset - 13)
    log.claim()
    log.append(begin("left open"), *[NO_OP] * 12)
    log.claim()
    log.append(NO_OP)
    snapshot_id = log.snapshot(NO_OP, NO_OP)
    for _ in range(5):
        log.append(*[NO_OP] * 10)
    log.delete_before(snapshot_id)
    log.append(begin("aborted"), ABORT)
    log.append(*named_commit(2))
    end = log.log.end_offset
    for _ in range(12):  # truncation over several segments
        log.append(*[NO_OP] * 9)
    log.truncate(end + 10)
    log.reopen(in_order=False)
    log.append(*[NO_OP] * 3)
    log.delete_before(log.snapshot(NO_OP))
    log.reopen()
    log.append(NO_OP)
    return log


def deleting_replica() -> Witness:
    """Run a replica of a log without a state machine, whose records are deleted on request."""
    log = Witness(LogConfig(segment_bytes=600, index_interval_bytes=150), is_replica=True)
    boundaries = []
    for at in range(12):
        log.append(b"x" * 130, commit=CommitName("app", "query", at), flush=at % 2 == 1)
        boundaries.append(log.log.end_offset)
    log.delete_records(boundaries[4])  # within a segment
    log.append(b"y")
    log.delete_records(boundaries[9])
    log.claim()
    log.reopen(in_order=False)
    log.append(b"z")
    log.delete_records(log.log.end_offset)
    log.append(b"the last")
    log.reopen()
    return log


WORKLOADS = {"embedded": embedded_log, "replica": replica, "deleting replica": deleting_replica}
CHANCY = (Survival.CUT, Survival.TORN, Survival.ZEROED, Survival.MIXED)


def states(witness: Witness, cuts: Sequence[int], count: int) -> Iterator[CrashState]:
    """Yield every crash at these operations with each distinct disk state that it may leave.

    Either the process is killed, or the power is lost and unsynced data has one of eight fates.
    More seeds are drawn up to a count.
    """
    seen: set[tuple[object, ...]] = set()
    for seed in range(SEEDS_MAX):
        survivals = CHANCY if seed else KINDS
        for state in witness.recording.states(survivals, cuts=cuts, seeds=[seed]):
            disk = state.cut, state.boot_number, hash(tuple(state.tree.paths()))
            if disk not in seen:
                seen.add(disk)
                yield state
            if seed and len(seen) >= count:
                return
        if len(seen) >= count:
            return


def run(name: str, count: int, *, every: int = 1) -> CrashChecker:
    """Crash in all ways after every operation, or each ``every``-th; at least ``count`` times."""
    witness = WORKLOADS[name]()
    checker = CrashChecker(witness)
    cuts = range(0, len(witness.recording.operations) + 1, every)
    for state in states(witness, cuts, count):
        checker.check(state)
    return checker


@pytest.fixture(autouse=True)
def _no_other_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for a torn line of ``published`` to change: no other process writes here."""
    monkeypatch.setattr(directory, "_READS_MAX", 2)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_sample_of_crash_points(name: str) -> None:
    assert run(name, 50, every=31).states >= 50


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKLOADS)
def test_a_crash_after_every_operation(name: str) -> None:
    """Two kinds of crashes in turn: all of them are below."""
    witness = WORKLOADS[name]()
    checker = CrashChecker(witness)
    for state in witness.recording.states_in_turn():
        checker.check(state)
    assert checker.states > len(witness.recording.operations)
    assert checker.second_deaths >= checker.disks


@pytest.mark.nightly
@pytest.mark.parametrize("name", WORKLOADS)
def test_every_crash_point(name: str, record_property: Callable[[str, object], None]) -> None:
    count = int(os.environ.get("RAFTLOG_CRASH_STATES", "4000")) // len(WORKLOADS)
    checker = run(name, count)
    record_property(
        REPORT_LINE,
        f"crash points, {name}: {checker.states} states, {checker.disks} different disks, "
        f"{checker.second_deaths} second deaths, nothing lost",
    )
    assert checker.states >= count
    assert checker.second_deaths >= checker.disks


def test_the_replica_workload_runs_every_kind_of_operation() -> None:
    log = replica()
    producer_state = log.log.producer_state
    assert [commit.name.version for commit in producer_state.commits] == [2]
    done = {(one.kind, kind_of_file(one.path)) for one in log.recording.operations}
    assert done >= {
        (OperationKind.MAKE_DIRECTORY, "witnessed-0"),  # create
        (OperationKind.WRITE, ".log"),  # append, named commit, transaction
        (OperationKind.CREATE, ".log"),  # roll
        (OperationKind.RENAME, ".part"),  # snapshot
        # deletion of the records before it
        (OperationKind.RENAME, "log-start-offset-checkpoint.tmp"),
        (OperationKind.UNLINK, ".log"),
        (OperationKind.TRUNCATE, ".log"),  # truncation
        (OperationKind.RENAME, "leader-epoch-checkpoint.tmp"),  # change of epoch
        (OperationKind.RENAME, ".kafka_cleanshutdown.tmp"),  # restart
        (OperationKind.UNLINK, ".kafka_cleanshutdown"),
    }
    assert log.log.epoch >= 3


def kind_of_file(path: str) -> str:
    """Return the suffix of a file that is named after an offset, else its whole name."""
    name = posixpath.basename(path)
    return posixpath.splitext(name)[1] if name[0].isdigit() else name
