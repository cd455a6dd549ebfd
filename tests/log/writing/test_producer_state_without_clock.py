"""Producer state is a function of the log's batches, never of a clock."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.simulated_disk.simulated_disk import SimulatedDisk
from tests.support.appending import (
    DIRECTORY,
    NOW_MS,
    append,
    append_batches,
    created_log,
    disk_with_parent,
    reopened,
)
from tests.support.batch_encoding import NewRecordBatch, encode_batch

from raftlog.log.format.directory import RAFTLOG_PROPERTIES_NAME, read_listing
from raftlog.log.reading.transactions import CommitName, commit_header
from raftlog.log.writing.producer_state import Duplicate
from raftlog.log.writing.properties import (
    DAY_MS,
    LogConfig,
    encode_log_properties,
    parse_log_properties,
)
from raftlog.log.writing.single_voter_log import SingleVoterLog
from raftlog.records.record import NewRecord

CONFIG = LogConfig(segment_bytes=2_000, index_interval_bytes=300)
NAME = CommitName("app", "query", 7)
PRODUCER, EPOCH, SEQUENCE = 5, 0, 3
FAR_MS = NOW_MS + 1_000 * DAY_MS
"""Wrong time of one node's clock."""


def clean(log: SingleVoterLog, disk: SimulatedDisk) -> SingleVoterLog:
    log.clean(now_ms=FAR_MS)
    return log


def roll(log: SingleVoterLog, disk: SimulatedDisk) -> SingleVoterLog:
    for _ in range(40):
        append(log, bytes(100), timestamp_ms=FAR_MS)
    log.flush()
    assert len(read_listing(disk.list_names(DIRECTORY)).segments) > 1
    return log


def restart(log: SingleVoterLog, disk: SimulatedDisk) -> SingleVoterLog:
    log.close()
    return SingleVoterLog.open(disk, DIRECTORY, now_ms=FAR_MS)


def crash(log: SingleVoterLog, disk: SimulatedDisk) -> SingleVoterLog:
    disk.kill()
    return SingleVoterLog.open(disk, DIRECTORY, now_ms=FAR_MS)


@pytest.mark.parametrize("then", [clean, roll, restart, crash])
def test_a_wrong_clock_evicts_nothing(
    then: Callable[[SingleVoterLog, SimulatedDisk], SingleVoterLog],
) -> None:
    disk = disk_with_parent()
    log = created_log(disk, config=CONFIG)
    named = NewRecord(None, b"x", headers=(commit_header(NAME),))
    for new in (
        NewRecordBatch(records=(named,), base_timestamp_ms=NOW_MS),
        NewRecordBatch(
            records=(NewRecord(None, b"y"),),
            base_timestamp_ms=NOW_MS,
            producer_id=PRODUCER,
            producer_epoch=EPOCH,
            base_sequence=SEQUENCE,
        ),
    ):
        data = encode_batch(new, base_offset=log.end_offset, leader_epoch=log.epoch)
        append_batches(log, data)
    append(log, b"from far ahead", timestamp_ms=FAR_MS)
    log.flush()
    base = 1  # the leader change of the epoch is at 0

    log = then(log, disk)

    assert log.producer_state.check_commit(NAME) == Duplicate(base, base)
    repeated = log.producer_state.check_producer(PRODUCER, EPOCH, SEQUENCE, 1)
    assert repeated == Duplicate(base + 1, base + 1)


RETIRED = b"commit.retention.ms=604800000\nproducer.id.expiration.ms=604800000\n"


def test_age_settings_of_an_older_log_are_ignored() -> None:
    disk = disk_with_parent()
    log = created_log(disk, config=CONFIG)
    log.close()
    path = f"{DIRECTORY}/{RAFTLOG_PROPERTIES_NAME}"
    data = disk.files()[path]
    properties = parse_log_properties(data + RETIRED, path)
    assert properties == parse_log_properties(data, path)
    assert encode_log_properties(properties) == data
    assert reopened(disk).config == CONFIG
