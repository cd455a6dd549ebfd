"""Retention by age uses the log: a damaged index deletes nothing too early."""

from __future__ import annotations

import struct

import pytest
from tests.simulated_disk.simulated_disk import SimulatedDisk
from tests.support.appending import (
    DIRECTORY,
    NOW_MS,
    append,
    created_log,
    disk_with_parent,
    reopened,
)

from raftlog.log.format.directory import LOG_SUFFIX, TIME_INDEX_SUFFIX, offset_name, read_listing
from raftlog.log.segment import Segment
from raftlog.log.writing.properties import LogConfig

YOUNG_MS = NOW_MS + 100_000
CONFIG = LogConfig(segment_bytes=2_000, index_interval_bytes=300, retention_ms=1_000)


def log_of_young_segments() -> tuple[SimulatedDisk, int]:
    """Return a cleanly closed log, and the base offset of a sealed segment of young records."""
    disk = disk_with_parent()
    log = created_log(disk, config=CONFIG)
    for number in range(60):
        append(log, bytes(100), timestamp_ms=YOUNG_MS + number % 7)
    log.flush()
    log.close()
    return disk, read_listing(disk.list_names(DIRECTORY)).segments[1]


def entry(time_ms: int, delta: int) -> bytes:
    return struct.pack(">qi", time_ms, delta)


@pytest.mark.parametrize(
    "data",
    [
        None,
        b"",
        b"x",
        entry(5, 6),
        entry(YOUNG_MS + 6, 0),
        entry(YOUNG_MS + 60, 6),
        entry(YOUNG_MS + 1, 1),
        entry(YOUNG_MS, 2**31 - 1),
        entry(-1, 0),
        bytes(120),
    ],
)
def test_a_damaged_time_index_does_not_change_retention(
    data: bytes | None,
) -> None:
    disk, base = log_of_young_segments()
    path = f"{DIRECTORY}/{offset_name(base, TIME_INDEX_SUFFIX)}"
    if data is None:
        disk.unlink(path)
    else:
        disk.put(path, data)
    byte_count = len(disk.files()[f"{DIRECTORY}/{offset_name(base, LOG_SUFFIX)}"])
    assert Segment(disk, DIRECTORY, base, byte_count).read_max_timestamp_ms() == YOUNG_MS + 6
    log = reopened(disk)
    assert not log.clean(now_ms=YOUNG_MS)
    assert log.clean(now_ms=YOUNG_MS + 2_000)
    assert log.log_start_offset == log.end_offset


def test_a_valid_time_index_avoids_reading_the_segment() -> None:
    disk = disk_with_parent()
    log = created_log(disk, config=LogConfig(segment_bytes=1_000_000))
    while not log._segments.sealed:
        append(log, bytes(1_000))
    path = f"{DIRECTORY}/{offset_name(0, LOG_SUFFIX)}"
    byte_count = len(disk.files()[path])
    disk.reads.clear()
    assert (
        Segment(disk, DIRECTORY, 0, byte_count).read_max_timestamp_ms()
        == log._segments.sealed[0].max_timestamp_ms
    )
    assert disk.reads[path] < byte_count / 2


def test_a_damaged_segment_has_no_age() -> None:
    disk, base = log_of_young_segments()
    path = f"{DIRECTORY}/{offset_name(base, LOG_SUFFIX)}"
    disk.flip_bit(path, 8 * 8)
    disk.unlink(f"{DIRECTORY}/{offset_name(base, TIME_INDEX_SUFFIX)}")
    assert Segment.of_file(disk, DIRECTORY, base).read_max_timestamp_ms() == -1
