"""A fetched snapshot, a written snapshot and recovery share one lock."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.log.writing.test_quorum_log import (
    CONFIG,
    DIRECTORY,
    NOW_MS,
    follow,
    new_disk,
    opened,
    snapshot_of,
)
from tests.support.appending import DIRECTORY as APPENDED
from tests.support.appending import created_log, disk_with_parent, fill
from tests.support.batch_encoding import NewRecordBatch, encode_batch
from tests.support.one_replica import TIME_MS, OneReplica
from tests.support.written_logs import encoded

from raftlog.errors import LogError, LogLockedError
from raftlog.log.format.directory import checkpoint_name
from raftlog.log.reading.transactions import ValueKind
from raftlog.log.writing.properties import LogConfig
from raftlog.log.writing.quorum_log import QuorumLog
from raftlog.log.writing.single_voter_log import SingleVoterLog
from raftlog.log.writing.snapshots import RawSnapshotWriter
from raftlog.records.record import NewRecord
from raftlog.types import SnapshotId

RETENTION = replace(CONFIG, retention_bytes=700)


def half_fetched(log: QuorumLog, snapshot_id: SnapshotId, data: bytes) -> None:
    log.store_snapshot_bytes(snapshot_id, 0, data[:50])


def test_retention_waits_while_a_snapshot_is_fetched_and_then_installed() -> None:
    snapshot_id, data = snapshot_of(100, epoch=1)
    log = opened(new_disk(), RETENTION)
    follow(log, 0, 40)
    log.advance_high_watermark(40)
    half_fetched(log, snapshot_id, data)
    with pytest.raises(LogLockedError):
        log.clean(now_ms=NOW_MS)
    log.store_snapshot_bytes(snapshot_id, 50, data[50:])
    log.install_snapshot(snapshot_id)
    assert (log.log_start_offset, log.end_offset, log.snapshots) == (100, 100, (snapshot_id,))


def test_a_fetched_snapshot_waits_for_the_one_that_a_state_machine_writes() -> None:
    snapshot_id, data = snapshot_of(100, epoch=1)
    log = opened(new_disk())
    follow(log, 0, 40)
    log.advance_high_watermark(40)
    writer = log.begin_snapshot(log.snapshot_id_at(40), now_ms=NOW_MS)
    assert writer is not None
    with pytest.raises(LogLockedError):
        half_fetched(log, snapshot_id, data)
    assert not log.is_receiving_snapshot
    assert writer.freeze() in log.snapshots
    log.store_snapshot_bytes(snapshot_id, 0, data)
    log.install_snapshot(snapshot_id)
    assert log.end_offset == 100


def test_a_truncation_does_not_affect_the_snapshot_being_written() -> None:
    """Recovery deletes the partial snapshot of a dead writer, and none that is still written."""
    disk = new_disk()
    log = opened(disk)
    follow(log, 0, 40)
    log.advance_high_watermark(20)
    writer = log.begin_snapshot(log.snapshot_id_at(20), now_ms=NOW_MS)
    assert writer is not None
    log.truncate_to(30)
    assert writer.freeze() in log.snapshots


def test_recovery_deletes_the_partial_snapshot_of_a_dead_writer() -> None:
    snapshot_id, data = snapshot_of(100, epoch=1)
    disk = new_disk()
    half_fetched(opened(disk), snapshot_id, data)
    disk.crash()
    opened(disk)
    assert not any(name.endswith(".part") for name in disk.list_names(DIRECTORY))


@pytest.mark.parametrize("is_dropped", [False, True], ids=["installed", "dropped"])
def test_the_lock_is_released_with_a_fetched_snapshot(is_dropped: bool) -> None:
    snapshot_id, data = snapshot_of(100, epoch=1)
    log = opened(new_disk())
    follow(log, 0, 40)
    log.store_snapshot_bytes(snapshot_id, 0, data)
    if is_dropped:
        log.drop_received_snapshot()
    else:
        log.install_snapshot(snapshot_id)
    follow(log, log.end_offset, 120)
    log.advance_high_watermark(120)
    writer = log.begin_snapshot(log.snapshot_id_at(110), now_ms=NOW_MS)
    assert writer is not None
    writer.freeze()


def test_a_replica_that_stopped_fetching_yields_to_its_own_snapshot() -> None:
    """A leader failed in the middle of a snapshot: the partial one must release the lock."""
    one = OneReplica()
    one.elect()
    end_offset = one.replica.log.end_offset
    half_fetched(one.replica.log, *snapshot_of(100, epoch=1))
    writer = one.replica.begin_snapshot(end_offset, time_ms=TIME_MS)
    assert writer is not None
    writer.freeze()
    half_fetched(one.replica.log, *snapshot_of(100, epoch=1))
    one.replica.clean(time_ms=TIME_MS)
    assert not one.replica.log.is_receiving_snapshot
    assert one.replica.log.snapshots == (one.replica.log.snapshot_id_at(end_offset),)


def test_a_closed_writer_deletes_its_snapshot_and_a_frozen_one_is_kept() -> None:
    disk = new_disk()
    log = opened(disk)
    directory = log._directory
    snapshot_id = SnapshotId(epoch=1, end_offset=7)
    writer = RawSnapshotWriter(directory, snapshot_id)
    writer.append(b"some bytes")
    writer.close()
    writer.close()
    assert not any(".checkpoint" in name for name in disk.list_names(DIRECTORY))
    with RawSnapshotWriter(directory, snapshot_id) as writer:
        writer.append(b"some ")
        writer.append(b"bytes")
        writer.freeze()
    (name,) = [name for name in disk.list_names(DIRECTORY) if ".checkpoint" in name]
    assert disk.durable_files()[f"{DIRECTORY}/{name}"] == b"some bytes"


def test_a_writer_whose_close_fails_releases_the_lock_for_the_next_one() -> None:
    disk = new_disk()
    directory = opened(disk)._directory
    snapshot_id = SnapshotId(epoch=1, end_offset=7)
    writer = RawSnapshotWriter(directory, snapshot_id)
    writer.append(b"some bytes")
    disk.refuse_writing("*.part")
    with pytest.raises(LogError):
        writer.close()
    disk.refuse_writing(None)
    with RawSnapshotWriter(directory, snapshot_id) as after_it:
        assert after_it.byte_count == 0
    assert not any(".checkpoint" in name for name in disk.list_names(DIRECTORY))


def header_only() -> bytes:
    """Return a control batch with a header record that no reader can parse."""
    record = NewRecord(b"\0\0\0\3", b"\0\0")
    batch = NewRecordBatch(records=(record,), base_timestamp_ms=0, is_control=True)
    return encode_batch(batch, base_offset=0, leader_epoch=1)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no batch",
        bytes(200),
        header_only(),
        header_only()[:-1],
        header_only()[:16] + b"\1" + header_only()[17:],
        header_only()[:8] + b"\x7f\xff\xff\xff" + header_only()[12:],
        header_only()[:57] + b"\0\0\0\2" + header_only()[61:],
        encoded(b"no control batch", base_offset=0, epoch=1),
    ],
    ids=["empty", "short", "zeros", "record", "torn", "magic", "length", "count", "data"],
)
def test_a_malformed_old_snapshot_does_not_stop_retention(data: bytes) -> None:
    disk = disk_with_parent()
    config = LogConfig(values=ValueKind.KRAFT, segment_bytes=2_000, retention_bytes=3_000)
    log = created_log(disk, config=config)
    fill(log, 60)
    damaged = log.snapshot_id_at(10)
    disk.put(f"{APPENDED}/{checkpoint_name(damaged)}", data)
    newest = [frozen(log, end_offset) for end_offset in (20, 40)][-1]
    assert log.clean(now_ms=NOW_MS)
    assert (log.log_start_offset, log.snapshots) == (40, (newest,))
    fill(log, 1)


def frozen(log: SingleVoterLog, end_offset: int) -> SnapshotId:
    writer = log.begin_snapshot(log.snapshot_id_at(end_offset), now_ms=NOW_MS)
    assert writer is not None
    return writer.freeze()
