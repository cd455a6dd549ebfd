"""A replica's log: fetched from leaders, truncated, started again at snapshots, damaged."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest
from crc32c import crc32c
from tests.simulated_disk.crash_model import Survival
from tests.simulated_disk.simulated_disk import SimulatedDisk
from tests.support.appending import TOPIC_ID, append, batch, created_replica, fill
from tests.support.batch_encoding import NewRecordBatch, encode_batch
from tests.support.both_implementations import in_each
from tests.support.hostile_bytes import mutations
from tests.support.log_builder import control_batch
from tests.support.written_logs import encoded

from raftlog.errors import (
    CorruptBatchError,
    CorruptSnapshotError,
    DiskFailedError,
    DiskFullError,
    DivergedLogError,
    FutureEpochError,
    LogError,
    LogGapError,
    LogReadOnlyError,
)
from raftlog.limits import MIB
from raftlog.log.format.epoch_cache import EpochEntry
from raftlog.log.reading.transactions import CommitName, ValueKind, commit_header
from raftlog.log.recovery.recover import read_checkpoint_files
from raftlog.log.writing.properties import LogConfig
from raftlog.log.writing.quorum_log import QuorumLog, TailCache
from raftlog.records.batch import Compression, Header, NewRecord, RecordBatch, iter_batches
from raftlog.records.control import (
    KRaftVersion,
    LeaderChange,
    LeaderChangeVoter,
    SnapshotFooter,
    SnapshotHeader,
)
from raftlog.records.fields import TaggedField
from raftlog.types import SnapshotId

DIRECTORY = "/data/orders-0"
CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=200)
NOW_MS = 1_000_000
ME = (LeaderChangeVoter(1),)
HEAD = (LeaderChange(leader_id=1, voters=ME, granting_voters=ME),)


def new_disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_directory("/data")
    disk.sync_directory("/")
    return disk


def opened(disk: SimulatedDisk, config: LogConfig = CONFIG) -> QuorumLog:
    return QuorumLog.open_or_create(
        disk, DIRECTORY, config=config, topic_id=TOPIC_ID, now_ms=NOW_MS
    )


def batch_at(offset: int, epoch: int) -> bytes:
    """Return a batch of one record."""
    return encoded(b"v%03d" % offset, base_offset=offset, epoch=epoch)


def follow(log: QuorumLog, start: int, end: int, epoch: int = 1) -> None:
    """Append records [start, end) as fetched from a leader, one a batch, and sync them."""
    for offset in range(start, end):
        data = batch_at(offset, epoch)
        log.append_as_follower(data, leader_epoch=epoch)
    log.flush()


def snapshot_of(end_offset: int, epoch: int) -> tuple[SnapshotId, bytes]:
    """Return the bytes of a snapshot that another node wrote."""
    disk = new_disk()
    log = opened(disk)
    follow(log, 0, end_offset, epoch)
    log.advance_high_watermark(end_offset)
    snapshot_id = log.snapshot_id_at(end_offset)
    writer = log.begin_snapshot(snapshot_id, now_ms=NOW_MS, kraft_version=1)
    assert writer is not None
    with writer:
        writer.freeze()
    count = log.snapshot_byte_count(snapshot_id)
    assert count is not None
    return snapshot_id, log.read_snapshot_bytes(snapshot_id, 0, count)


def install(log: QuorumLog, snapshot_id: SnapshotId, data: bytes) -> None:
    for at in range(0, len(data), 50):
        log.store_snapshot_bytes(snapshot_id, at, data[at : at + 50])
    log.install_snapshot(snapshot_id)


def test_a_new_replica_is_empty_and_has_no_epoch() -> None:
    log = opened(new_disk())
    assert (log.end_offset, log.epoch, log.last_fetched_epoch) == (0, 0, 0)


def test_an_epoch_whose_first_batch_was_lost_is_not_assigned_to_an_empty_log() -> None:
    """Otherwise the log would refuse the records of earlier epochs that the leader sends."""
    disk = new_disk()
    opened(disk).begin_epoch(2, HEAD, now_ms=NOW_MS)
    disk.crash(Survival.NOTHING)
    log = opened(disk)
    assert (log.end_offset, log.last_fetched_epoch) == (0, 0)
    follow(log, 0, 3, epoch=1)
    assert (log.end_offset, log.last_fetched_epoch) == (3, 1)


@pytest.mark.parametrize("is_closed_before", [False, True])
@pytest.mark.parametrize("survival", Survival)
def test_an_epoch_whose_first_batch_was_lost_is_not_assigned_to_a_log_after_a_snapshot(
    survival: Survival, is_closed_before: bool
) -> None:
    """Otherwise the leader would always answer with the snapshot that the replica has."""
    snapshot_id, data = snapshot_of(9, epoch=4)
    disk = new_disk()
    log = opened(disk)
    install(log, snapshot_id, data)
    if is_closed_before:
        log.close()
        log = opened(disk)
    log.append_as_follower(batch_at(9, 7), leader_epoch=7)
    disk.crash(survival, 1)
    found = opened(disk)
    last = {9: 4, 10: 7}
    assert found.last_fetched_epoch == last[found.end_offset]
    follow(found, found.end_offset, 12, 7)
    assert (found.end_offset, found.last_fetched_epoch) == (12, 7)


def test_a_follower_accepts_batches_that_continue_its_log() -> None:
    disk = new_disk()
    log = created_replica(disk)
    data = batch(b"a", b"b", base_offset=1) + batch(b"c", base_offset=3, epoch=2)
    torn = batch(b"d", base_offset=4, epoch=2)[:-1]
    assert log.append_as_follower(data + torn, leader_epoch=2) == 4
    assert log.epochs.entries == (
        EpochEntry(epoch=1, start_offset=0),
        EpochEntry(epoch=2, start_offset=3),
    )
    assert read_checkpoint_files(disk, DIRECTORY).epochs == log.epochs
    assert log.high_watermark == 0
    log.advance_high_watermark(3)
    assert (log.high_watermark, log.last_stable_offset) == (3, 3)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (batch(b"a", base_offset=0), LogGapError),
        (batch(b"a", b"b", base_offset=0), LogGapError),
        (batch(b"a", base_offset=2), LogGapError),
        (batch(b"a", base_offset=1) + batch(b"b", base_offset=1), LogGapError),
        (batch(b"a", base_offset=1, epoch=4), FutureEpochError),
        (
            batch(b"a", base_offset=1, epoch=3) + batch(b"b", base_offset=2, epoch=2),
            DivergedLogError,
        ),
        (
            batch(b"a", base_offset=1) + batch(b"b", base_offset=2)[:-1] + b"!",
            CorruptBatchError,
        ),
    ],
)
def test_a_follower_refuses_batches_that_do_not(data: bytes, error: type[Exception]) -> None:
    disk = new_disk()
    log = created_replica(disk)
    before = disk.files()
    with pytest.raises(error):
        log.append_as_follower(data, leader_epoch=3)
    assert (log.end_offset, disk.files()) == (1, before)


@pytest.mark.parametrize("seed", [0, *(pytest.param(at, marks=pytest.mark.slow) for at in (1, 2))])
def test_batches_of_a_leader_are_appended_or_refused_alike(seed: int) -> None:
    """By the compiled core, and in Python."""
    rng, accepted, refused = random.Random(seed), 0, 0
    for _ in range(300):
        data, offset, epoch = b"", 1, 1
        for _ in range(rng.choice((1, 1, 2, 3))):
            epoch += rng.random() < 0.2
            offset += rng.random() < 0.05
            count = rng.choice((1, 1, 3))
            data += followed_batch(rng, count, offset, epoch)
            offset += count
        if rng.random() < 0.5:
            data = next(mutations(data, rng))
            if rng.random() < 0.5 and len(data) > 21:  # of the first batch, if that is the only one
                data = data[:17] + crc32c(data[21:]).to_bytes(4, "big") + data[21:]
        values = rng.choice((ValueKind.BYTES, ValueKind.BYTES, ValueKind.MSGPACK))
        leader_epoch = rng.choice((1, 3, 3))
        (found,) = set(in_each(partial(followed, data, values, leader_epoch)))
        accepted += not found.startswith("[")
        refused += found.startswith("[")
    assert accepted > 60
    assert refused > 60


def followed_batch(rng: random.Random, count: int, offset: int, epoch: int) -> bytes:
    """Return a batch as a leader may store it."""
    name = commit_header(CommitName("app", "q", 3))
    headers = rng.choice(
        (
            *((),) * 4,
            (name,),
            (name, Header("h", None)),
            (name, name),
            (Header("raftlog.commit", None),),
            (Header("raftlog.commit", bytes(5_000)),),
            (Header("h", b"raftlog.commit"),),
            (*(Header("h", b"x"),) * 16, name),
        )
    )
    records = tuple(
        NewRecord(rng.choice((None, b"k")), rng.choice((None, b"v")), 5, headers if not at else ())
        for at in range(count)
    )
    new = NewRecordBatch(
        records=records,
        base_timestamp_ms=5,
        producer_id=rng.choice((-1, 7)),
        producer_epoch=0,
        base_sequence=rng.choice((0, -1)),
        is_transactional=rng.random() < 0.2,
        is_control=rng.random() < 0.1,
        compression=rng.choice((Compression.NONE,) * 5 + (Compression.GZIP,)),
    )
    return encode_batch(new, base_offset=offset, leader_epoch=epoch)


def followed(data: bytes, values: ValueKind, leader_epoch: int) -> str:
    """Return files and producer state of a log of one record that has appended these batches, or
    the error."""
    disk = new_disk()
    log = created_replica(disk, config=LogConfig(values=values))
    try:
        end_offset = log.append_as_follower(data, leader_epoch=leader_epoch)
    except LogError as error:
        return str(error)
    read = log.read_bytes(0, MIB), log.producer_state.encode_snapshot().hex()
    return f"{end_offset} {read} {sorted(disk.files().items())}"


def test_a_sync_that_began_before_a_truncation_is_ignored() -> None:
    disk = new_disk()
    log = created_replica(disk)
    fill(log, 5)
    append(log, bytes(300))
    ticket = log.start_sync()
    log.truncate_to(4)
    append(log, b"x")
    ticket.run()
    log.complete_sync(ticket)
    assert (log.end_offset, log.synced_end_offset) == (5, 4)
    log.close()
    assert disk.open_files == 0


def test_a_read_starts_at_any_batch_and_returns_whole_batches_first() -> None:
    disk = new_disk()
    log = opened(disk)
    follow(log, 0, 20)
    one = len(batch_at(0, 1))
    for recent in (True, False):
        if not recent:
            log = opened(disk)
        for offset in range(20):
            assert [b.base_offset for b in iter_batches(log.read_bytes(offset, 1))] == [offset]
        assert len(log.read_bytes(0, 3 * one)) == 3 * one
        assert log.read_bytes(20, 100) == b""


def test_the_tail_cache_is_bounded_by_bytes_and_keeps_the_newest_batches() -> None:
    recent = TailCache(byte_count_max=10)
    for base in range(0, 20, 2):
        recent.add(base, b"%02d" % base * 2)
    assert recent.read(18, 100) == b"1818"
    assert recent.read(0, 100) == b""
    recent.add(20, b"x" * 100)
    assert recent.read(20, 1) == b"x" * 100
    recent.clear()
    assert recent.read(20, 1) == b""


@pytest.mark.parametrize("record_count", [0, 3, 30])
def test_a_log_starts_again_at_a_later_snapshot(record_count: int) -> None:
    """Its state before: empty, lagging, or longer with records of a previous epoch."""
    snapshot_id, data = snapshot_of(12, epoch=4)
    disk = new_disk()
    log = opened(disk)
    follow(log, 0, record_count, epoch=2)
    install(log, snapshot_id, data)
    for found in (log, opened(disk)):
        assert (found.log_start_offset, found.end_offset) == (12, 12)
        assert (found.last_fetched_epoch, found.snapshots) == (4, (snapshot_id,))
    assert log.snapshot_voters() == (11, None, 1)
    follow(log, 12, 15, epoch=4)
    assert log.end_offset == 15


def test_a_crash_during_an_installation_leaves_the_old_log_or_the_snapshot() -> None:
    snapshot_id, data = snapshot_of(12, epoch=4)
    disk = new_disk()
    log = opened(disk)
    follow(log, 0, 9, epoch=2)
    recording = disk.record()
    install(log, snapshot_id, data)
    ends = set()
    for state in recording.states():
        found = opened(SimulatedDisk.after(state))
        assert found.report.read_only is None, f"{state}"
        assert found.end_offset in (9, 12), f"{state}"
        if found.end_offset == 12:
            assert (found.log_start_offset, found.snapshots) == (12, (snapshot_id,))
        else:
            assert found.snapshots == ()
        ends.add(found.end_offset)
        follow(found, found.end_offset, found.end_offset + 1, epoch=4)
    assert ends == {9, 12}


@pytest.mark.parametrize("bit", [0, 8 * 61 + 3, -10])
def test_a_damaged_snapshot_is_discarded_and_the_log_is_unchanged(bit: int) -> None:
    snapshot_id, data = snapshot_of(12, epoch=4)
    damaged = bytearray(data)
    at = bit % (8 * len(damaged))
    damaged[at // 8] ^= 1 << at % 8
    disk = new_disk()
    log = opened(disk)
    follow(log, 0, 3)
    with pytest.raises(CorruptSnapshotError):
        install(log, snapshot_id, bytes(damaged))
    assert (log.end_offset, log.snapshots) == (3, ())
    install(log, snapshot_id, data)
    assert log.end_offset == 12


def test_a_truncated_log_has_its_new_length_in_the_same_boot() -> None:
    disk = new_disk()
    log = opened(disk)
    follow(log, 0, 30)
    log.truncate_to(10)
    disk.kill()
    again = opened(disk)
    assert (again.end_offset, again.report.read_only) == (10, None)


@pytest.mark.parametrize("cut_at", [2, 3, 7])
def test_a_truncation_that_was_not_synced_is_repeated_before_any_append(cut_at: int) -> None:
    """A failed sync loses it permanently; only readers before the power loss see it."""
    disk = new_disk()
    log = opened(disk)
    follow(log, 0, 8, epoch=1)
    disk.fail_sync_once("*.log")
    with pytest.raises(DiskFailedError):
        log.truncate_to(cut_at)
    disk.kill()
    log = opened(disk)
    at = log.end_offset
    large = encoded(bytes(550), base_offset=at, epoch=2)  # the segment stays shorter than it was
    log.append_as_follower(large, leader_epoch=2)
    follow(log, at + 1, 40, epoch=2)
    disk.crash(Survival.NOTHING)
    found = opened(disk)
    assert found.end_offset == 40
    assert found.report.read_only is None
    before = [batch_at(one, 1) for one in range(at)]
    after = [batch_at(one, 2) for one in range(at + 1, 40)]
    expected = b"".join([*before, large, *after])
    assert b"".join(stored(found)) == expected
    files = disk.files()
    segments = sorted(path for path in files if path.endswith(".log"))
    assert b"".join(files[path] for path in segments) == expected, "no segment has its old tail"


def stored(log: QuorumLog) -> Iterator[bytes]:
    """Return all bytes of a log, by segment."""
    offset = log.log_start_offset
    while offset < log.end_offset:
        data = log.read_bytes(offset, 1_000_000)
        yield data
        for one in iter_batches(data):
            assert isinstance(one, RecordBatch)
            offset = one.next_offset


def test_damage_in_synced_records_is_truncated_and_the_replica_rejoins_after_catching_up() -> None:
    disk = new_disk()
    log = opened(disk)
    follow(log, 0, 30)
    disk.kill()
    names = sorted(name for name in disk.list_names(DIRECTORY) if name.endswith(".log"))
    disk.flip_bit(f"{DIRECTORY}/{names[-1]}", 8 * 80)
    damaged = opened(disk)
    assert isinstance(damaged.report.read_only, LogReadOnlyError)
    end_offset = damaged.end_offset
    damaged.close()
    assert end_offset < 30
    recovered = QuorumLog.open_damaged(
        disk, DIRECTORY, end_offset=end_offset, reason="a bit", now_ms=NOW_MS
    )
    assert (recovered.end_offset, recovered.is_out_of_election) == (end_offset, True)
    follow(recovered, end_offset, 30)
    assert opened(disk.another_process()).is_out_of_election
    recovered.rejoin_election()
    disk.crash(Survival.NOTHING)
    again = opened(disk)
    assert (again.end_offset, again.is_out_of_election) == (30, False)


def test_control_records_of_an_epoch_are_in_its_first_batch() -> None:
    log = opened(new_disk())
    head = (*HEAD, KRaftVersion(kraft_version=1))
    log.begin_epoch(3, head, now_ms=NOW_MS)
    assert (log.epoch, log.end_offset) == (3, 2)
    assert list(log.control_records()) == log.drain_control_records() == list(enumerate(head))
    assert log.drain_control_records() == [], "each is returned once"
    follow(log, 2, 4, epoch=3)
    assert list(log.control_records()) == list(enumerate(head))
    assert log.drain_control_records() == []


def test_damage_below_the_log_start_lets_the_log_start_again_at_its_snapshot() -> None:
    disk = new_disk()
    log = opened(disk)
    follow(log, 0, 5)
    log.advance_high_watermark(5)
    writer = log.begin_snapshot(log.snapshot_id_at(4), now_ms=NOW_MS)
    assert writer is not None
    with writer:
        snapshot_id = writer.freeze()
    assert log.delete_before(snapshot_id)
    assert log.log_start_offset == 4
    disk.kill()
    path = f"{DIRECTORY}/{0:020d}.log"
    disk.flip_bit(path, 8 * 80)
    damaged = opened(disk)
    assert damaged.end_offset <= damaged.log_start_offset
    recovered = QuorumLog.open_damaged(
        disk, DIRECTORY, end_offset=damaged.end_offset, reason="a bit", now_ms=NOW_MS
    )
    assert (recovered.log_start_offset, recovered.end_offset) == (4, 4)
    assert recovered.is_out_of_election
    assert f"{0:020d}.log.damaged-1" in disk.list_names(DIRECTORY), (
        "truncated records are backed up"
    )
    follow(recovered, 4, 6)
    assert opened(disk.another_process()).end_offset == 6


def test_an_epoch_without_disk_space_has_not_started_and_starts_once_there_is_some() -> None:
    change = replace(HEAD[0], tagged_fields=(TaggedField(9, bytes(900)),))
    head = (change,)
    found = set()
    for room in range(0, 1_500, 20):
        disk = new_disk()
        log = opened(disk, LogConfig())
        follow(log, 0, 3)
        disk.leave_room(room)
        is_begun = has_room(partial(log.begin_epoch, 2, head, now_ms=NOW_MS))
        found.add(is_begun)
        disk.full_at(None)
        if not is_begun:
            assert (log.end_offset, log.epoch, log.last_fetched_epoch) == (3, 1, 1), room
            again = opened(disk.copy())
            assert (again.end_offset, again.epoch, again.last_fetched_epoch) == (3, 1, 1), room
            log.begin_epoch(2, head, now_ms=NOW_MS)
        log.flush()
        assert [one for _, one in log.drain_control_records()] == list(head)
        disk.crash(Survival.NOTHING)
        again = opened(disk)
        assert (again.end_offset, again.last_fetched_epoch) == (4, 2)
    assert found == {True, False}


def test_a_replica_without_space_for_a_later_epoch_accepts_records_of_an_earlier_one() -> None:
    """Otherwise its log would seem more up to date, and refuse records of another leader."""
    large = encoded(bytes(900), base_offset=3, epoch=5)
    found = set()
    for room in range(0, 1_500, 20):
        disk = new_disk()
        log = opened(disk, LogConfig())
        follow(log, 0, 3)
        disk.leave_room(room)
        has_any = has_room(partial(log.append_as_follower, large, leader_epoch=5))
        found.add(has_any)
        if has_any:
            continue
        assert (log.end_offset, log.last_fetched_epoch) == (3, 1)
        disk.full_at(None)
        follow(log, 3, 6, epoch=1)
        disk.crash(Survival.NOTHING)
        again = opened(disk)
        assert (again.end_offset, again.last_fetched_epoch) == (6, 1), room
        follow(again, 6, 7, epoch=6)
        assert again.epochs.epoch_at(5) == 1
    assert found == {True, False}


def has_room(act: Callable[[], object]) -> bool:
    try:
        act()
    except DiskFullError:
        return False
    return True


# --- invariants -----------------------------------------------------------------------------------

ONE_SEGMENT = LogConfig(segment_bytes=100_000)
BATCH_BYTES = len(batch_at(0, 1))


@pytest.mark.parametrize("has_snapshot", [False, True])
def test_damage_below_the_high_watermark_that_a_truncation_finds_makes_the_log_read_only(
    has_snapshot: bool,
) -> None:
    """Committed records are missing, so the log must not continue as if its tail were torn."""
    disk = new_disk()
    log = opened(disk, ONE_SEGMENT)
    follow(log, 0, 30)
    log.advance_high_watermark(20)
    if has_snapshot:
        writer = log.begin_snapshot(log.snapshot_id_at(10), now_ms=NOW_MS)
        assert writer is not None
        with writer:
            writer.freeze()
    (name,) = [name for name in disk.list_names(DIRECTORY) if name.endswith(".log")]
    damaged_at = 5 if has_snapshot else 15
    disk.flip_bit(f"{DIRECTORY}/{name}", 8 * (BATCH_BYTES * damaged_at + 65))
    with pytest.raises(LogReadOnlyError):
        log.truncate_to(25)
    log.close()
    again = opened(disk.another_process(), ONE_SEGMENT)
    assert isinstance(again.report.read_only, LogReadOnlyError)
    assert again.end_offset == damaged_at


def test_a_snapshot_without_producer_state_after_an_older_one_starts_an_empty_state() -> None:
    """Apache Kafka writes such snapshots; the state of the older one lacks the records between."""
    disk = new_disk()
    log = opened(disk)
    follow(log, 0, 10)
    log.advance_high_watermark(10)
    writer = log.begin_snapshot(log.snapshot_id_at(10), now_ms=NOW_MS)
    assert writer is not None
    with writer:
        writer.freeze()
    snapshot_id = SnapshotId(epoch=1, end_offset=60)
    head = control_batch([SnapshotHeader(last_contained_log_timestamp_ms=7)], base_offset=0)
    install(log, snapshot_id, head + control_batch([SnapshotFooter()], base_offset=1))
    assert (log.end_offset, log.producer_state.end_offset) == (60, 60)
    log.close()
    again = opened(disk.another_process())
    follow(again, 60, 65)
    assert (again.end_offset, again.producer_state.end_offset) == (65, 65)


# --- deletion of records --------------------------------------------------------------------------


def deleting_log(disk: SimulatedDisk) -> QuorumLog:
    log = opened(disk)
    follow(log, 0, 20)
    log.advance_high_watermark(15)
    return log


def test_records_are_deleted_at_a_batch_within_a_segment() -> None:
    disk = new_disk()
    log = deleting_log(disk)
    sealed = [name for name in disk.list_names(DIRECTORY) if name.endswith(".log")]
    assert log.delete_records(9, now_ms=NOW_MS) == 9
    assert (log.log_start_offset, log.end_offset) == (9, 20)
    assert [one.end_offset for one in log.snapshots] == [9]
    left = [name for name in disk.list_names(DIRECTORY) if name.endswith(".log")]
    assert 0 < len(left) < len(sealed)
    assert log.delete_records(4, now_ms=NOW_MS) == 9, "a log start never decreases"
    disk.crash(Survival.NOTHING)
    assert opened(disk).log_start_offset == 9


def test_all_records_are_deleted_without_reading_them() -> None:
    """The batches of a segment of 1 GiB take seconds, in which a node does nothing else."""
    disk = new_disk()
    log = deleting_log(disk)
    log.advance_high_watermark(20)
    active = max(name for name in disk.list_names(DIRECTORY) if name.endswith(".log"))
    disk.flip_bit(f"{DIRECTORY}/{active}", 8 * 70)
    assert log.delete_records(20, now_ms=NOW_MS) == 20
    assert (log.log_start_offset, log.end_offset) == (20, 20)


def test_commits_before_the_snapshot_that_a_log_starts_at_survive_a_deletion() -> None:
    """Otherwise a commit that is repeated later is appended twice."""
    log = opened(new_disk())
    commit = CommitName("app", "query", 7)
    log.append_as_follower(encoded(b"a", base_offset=0, commit=commit), leader_epoch=1)
    follow(log, 1, 5)
    for start in (5, 7, 8):
        log.advance_high_watermark(log.end_offset)
        assert log.delete_records(start, now_ms=NOW_MS) == start
        (snapshot_id,) = log.snapshots
        count = log.snapshot_byte_count(snapshot_id)
        assert count is not None
        data = log.read_snapshot_bytes(snapshot_id, 0, count)
        log = opened(new_disk())
        install(log, snapshot_id, data)
        found = log.producer_state.last_commit("app")
        assert found is not None
        assert found.name == commit
        follow(log, start, start + 4)


def test_nothing_is_deleted_without_the_voters() -> None:
    log = deleting_log(new_disk())
    assert log.delete_records(9, now_ms=NOW_MS, voters_at=lambda _: None) == 9
    assert (log.log_start_offset, log.snapshots) == (0, ())


def test_an_interrupted_deletion_is_completed() -> None:
    """Otherwise the voters at an offset below its snapshot are unknown, and nothing is deleted."""
    log = deleting_log(new_disk())
    writer = log.begin_snapshot(log.snapshot_id_at(10), now_ms=NOW_MS)
    assert writer is not None
    with writer:
        writer.freeze()  # and the process dies
    assert log.delete_records(5, now_ms=NOW_MS, voters_at=lambda _: None) == 10
    assert log.log_start_offset == 10
