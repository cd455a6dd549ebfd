"""A flipped bit of a base offset or leader epoch, which no CRC covers, is found, never read."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
from tests.log.writing.test_quorum_log import DIRECTORY, follow, new_disk, opened
from tests.simulated_disk.simulated_disk import SimulatedDisk

from raftlog.errors import CorruptBatchError, LogError
from raftlog.log.format.directory import LOG_SUFFIX, offset_name
from raftlog.log.reading.opening import open_log
from raftlog.log.writing.quorum_log import QuorumLog
from raftlog.records.batch import iter_batches

END = 60
BITS = [0, 1, 3, 5, 40, 62]
EPOCH_BITS = [0, 1, 2, 5, 17, 31]
BASE_OFFSET_LAST_BYTE, EPOCH_LAST_BYTE = 7, 15
"""Positions in a batch of the least significant bytes of its base offset and leader epoch."""


@cache
def closed_log() -> tuple[SimulatedDisk, list[int]]:
    """Return a cleanly closed log, and the base offsets of its segments."""
    disk = new_disk()
    log = opened(disk)
    follow(log, 0, END)
    segments = [one.base_offset for one in log._segments.sealed]
    assert len(segments) > 3
    segments.append(log._segments.active.base_offset)
    log.close()
    return disk, segments


def flipped(offset: int, bit: int, last_byte: int = BASE_OFFSET_LAST_BYTE) -> SimulatedDisk:
    """Return a cleanly closed log with one changed field of one batch."""
    closed, segments = closed_log()
    assert offset < segments[-1], "recovery does not scan it"
    disk = closed.copy()
    segment = max(base for base in segments if base <= offset)
    path = f"{DIRECTORY}/{offset_name(segment, LOG_SUFFIX)}"
    data = disk.files()[path]
    (position,) = (one.position for one in iter_batches(data) if one.base_offset == offset)
    disk.flip_bit(path, 8 * (position + last_byte - bit // 8) + bit % 8)
    return disk


def served(log: QuorumLog, byte_count_max: int) -> Iterator[int]:
    """Return the base offsets of all batches that a follower would fetch."""
    offset = 0
    for _ in range(END):
        data = log.read_bytes(offset, byte_count_max)
        for batch in iter_batches(data):
            yield batch.base_offset
            offset = batch.next_offset


@pytest.mark.parametrize("offset", [0, 1, 7, 8, 15, 23, 31])
@pytest.mark.parametrize("bit", BITS)
def test_a_flipped_batch_is_never_read_and_the_batches_before_it_are(offset: int, bit: int) -> None:
    for byte_count_max in (1, 200, 10_000):
        log = opened(flipped(offset, bit))
        found: list[int] = []
        with pytest.raises(CorruptBatchError, match="base offset") as caught:
            found += served(log, byte_count_max)
        assert found == list(range(offset))
        assert caught.value.offset == offset


@pytest.mark.parametrize("offset", [0, 1, 7, 8, 15, 23, 31])
@pytest.mark.parametrize("bit", BITS)
def test_a_replica_finds_the_flip_at_startup(offset: int, bit: int) -> None:
    """It scans for control records, truncates the log there, and stays out of elections."""
    log = opened(flipped(offset, bit))
    with pytest.raises(CorruptBatchError):
        list(log.control_records())
    assert log.valid_end_offset() == offset


@pytest.mark.parametrize("offset", [0, 1, 7, 8, 15, 23, 31])
@pytest.mark.parametrize("bit", EPOCH_BITS)
def test_a_damaged_leader_epoch_is_never_read(offset: int, bit: int) -> None:
    for byte_count_max in (1, 200, 10_000):
        log = opened(flipped(offset, bit, EPOCH_LAST_BYTE))
        found: list[int] = []
        with pytest.raises(CorruptBatchError, match="leader epoch") as caught:
            found += served(log, byte_count_max)
        assert found == list(range(offset))
        assert caught.value.offset == offset


@pytest.mark.parametrize("offset", [0, 1, 7, 8, 15, 23, 31])
@pytest.mark.parametrize("bit", EPOCH_BITS)
def test_a_replica_finds_a_damaged_leader_epoch_at_startup(offset: int, bit: int) -> None:
    log = opened(flipped(offset, bit, EPOCH_LAST_BYTE))
    with pytest.raises(CorruptBatchError, match="leader epoch"):
        list(log.control_records())
    assert log.valid_end_offset() == offset


@pytest.mark.parametrize("offset", [1, 8, 23])
def test_readers_of_the_directory_find_the_flip(offset: int) -> None:
    reader = open_log(flipped(offset, 40), DIRECTORY)
    with pytest.raises(LogError):
        list(reader.batches(0, reader.log_end_offset))
