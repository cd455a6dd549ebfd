"""Appends to a log that is open for writing, and reads of its directory."""

from __future__ import annotations

from raftlog.log.format.directory import LOG_SUFFIX, offset_name, read_listing
from raftlog.log.reading.transactions import ValueKind, batch_metadata
from raftlog.log.writing.properties import LogConfig
from raftlog.log.writing.quorum_log import QuorumLog
from raftlog.log.writing.replicated_log import ReplicatedLog
from raftlog.log.writing.single_voter_log import SingleVoterLog
from raftlog.records.batch import RecordBatch, iter_batches, read_batch
from raftlog.records.control import LeaderChange, LeaderChangeVoter
from raftlog.records.record import NewRecord
from raftlog.storage.protocol import Storage, WritableStorage
from tests.simulated_disk.simulated_disk import SimulatedDisk
from tests.support.batch_encoding import NewRecordBatch, encode_batch

TOPIC_ID = "A" * 21 + "Q"
DIRECTORY = "/data/orders-0"
NOW_MS = 1_000_000
SMALL = LogConfig(segment_bytes=2_000, index_interval_bytes=300)
"""Settings that roll a segment every 12 batches or so, with a few index entries per segment."""
KRAFT_SMALL = LogConfig(values=ValueKind.KRAFT, segment_bytes=2_000)


def disk_with_parent() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_directory("/data")
    disk.sync_directory("/")
    return disk


def created_log(
    storage: WritableStorage,
    *,
    config: LogConfig = SMALL,
    directory: str = DIRECTORY,
) -> SingleVoterLog:
    return SingleVoterLog.create(
        storage, directory, config=config, topic_id=TOPIC_ID, now_ms=NOW_MS
    )


def reopened(storage: WritableStorage, *, directory: str = DIRECTORY) -> SingleVoterLog:
    return SingleVoterLog.open(storage, directory, now_ms=NOW_MS)


def created_replica(
    storage: WritableStorage, *, config: LogConfig = SMALL, directory: str = DIRECTORY
) -> QuorumLog:
    """Create the log of a replica that leads epoch 1."""
    log = QuorumLog.create(storage, directory, config=config, topic_id=TOPIC_ID, now_ms=NOW_MS)
    begin_next_epoch(log)
    return log


def reopened_replica(storage: WritableStorage, *, directory: str = DIRECTORY) -> QuorumLog:
    return QuorumLog.open(storage, directory, now_ms=NOW_MS)


def begin_next_epoch(log: SingleVoterLog | QuorumLog) -> None:
    """Begin the next epoch, which this log's process leads; durable on return."""
    if isinstance(log, SingleVoterLog):
        log.claim(now_ms=NOW_MS)
        return
    voters = (LeaderChangeVoter(1),)
    head = (LeaderChange(leader_id=1, voters=voters, granting_voters=voters),)
    log.begin_epoch(log.epoch + 1, head, now_ms=NOW_MS)
    log.flush()


def batch(
    *values: bytes, base_offset: int, epoch: int = 1, timestamp_ms: int | None = None
) -> bytes:
    new = NewRecordBatch(
        records=tuple(NewRecord(None, value) for value in values),
        base_timestamp_ms=NOW_MS + base_offset if timestamp_ms is None else timestamp_ms,
    )
    return encode_batch(new, base_offset=base_offset, leader_epoch=epoch)


def append(log: ReplicatedLog, *values: bytes, timestamp_ms: int | None = None) -> int:
    """Append one batch without a sync; return its base offset."""
    base_offset = log.end_offset
    data = batch(*values, base_offset=base_offset, epoch=log.epoch, timestamp_ms=timestamp_ms)
    append_batches(log, data)
    return base_offset


def append_batches(log: ReplicatedLog, *batches: bytes) -> int:
    """Append encoded batches as leader, with the metadata of their bytes; return the end offset."""
    found = []
    for data in batches:
        read = read_batch(data)
        assert isinstance(read, RecordBatch)
        found.append((data, batch_metadata(read, log.config.values)))
    return log.append_as_leader(found)


def fill(log: ReplicatedLog, batch_count: int, *, value_bytes: int = 100) -> None:
    """Append batches of one record each and sync them."""
    for _ in range(batch_count):
        append(log, b"%020d" % log.end_offset + bytes(value_bytes - 20))
    log.flush()


def batches_of(storage: Storage, directory: str = DIRECTORY) -> list[RecordBatch]:
    """Return all batches in the directory's segments."""
    found: list[RecordBatch] = []
    for base_offset in read_listing(storage.list_names(directory)).segments:
        path = storage.join(directory, offset_name(base_offset, LOG_SUFFIX))
        with storage.open_file(path) as file:
            found += iter_batches(file.read_at(0, file.byte_count()), path=path)
    return found


def values_of(storage: Storage, directory: str = DIRECTORY) -> dict[int, bytes | None]:
    """Return the value of each data record by its offset."""
    return {
        record.offset: record.value
        for one in batches_of(storage, directory)
        if not one.is_control
        for record in one.records()
    }
