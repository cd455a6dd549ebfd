"""Logs with gaps of offsets, as Kafka's cleaner leaves them: ranges are read whole, and a damaged
base offset is detected."""

from __future__ import annotations

from random import Random

import pytest
from tests.log.cleaning.test_retained_records import batch_bytes
from tests.simulated_disk.simulated_disk import SimulatedDisk
from tests.support.appending import DIRECTORY, disk_with_parent

from raftlog.errors import CorruptBatchError, LogGapError
from raftlog.log.format.directory import LOG_SUFFIX, offset_name
from raftlog.log.reading.chunks import ColumnDecoder
from raftlog.log.reading.files import LogCursor, LogFiles
from raftlog.records.batch import iter_batches
from raftlog.records.batch_columns import Column

SEEDS = pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(one, marks=pytest.mark.nightly) for one in range(3, 12))]
)
Segments = dict[int, list[bytes]]
"""Batches by the base offset of their segment."""


def log_with_gaps(rng: Random) -> Segments:
    """Return segments whose names are the base offsets before the compaction."""
    segments: Segments = {}
    offset = 0
    for _ in range(rng.randrange(2, 6)):
        base = offset
        segments[base] = []
        for _ in range(rng.randrange(1, 9)):
            offset += rng.choice((0, 0, 1, 3, 10))  # batches that were dropped
            count = rng.randrange(1, 4)
            pairs = [(b"key %d" % rng.randrange(9), b"v" * rng.randrange(40))] * count
            segments[base].append(batch_bytes(offset, *pairs))
            offset += count
        offset += rng.choice((0, 0, 5))
    return segments


def put(disk: SimulatedDisk, segments: Segments) -> None:
    for base, batches in segments.items():
        disk.put(f"{DIRECTORY}/{offset_name(base, LOG_SUFFIX)}", b"".join(batches))


def offsets_in(segments: Segments) -> list[int]:
    return [
        record.offset or 0
        for batches in segments.values()
        for data in batches
        for batch in iter_batches(data)
        for record in batch.records()
    ]


def read(files: LogFiles, start: int, end: int, chunk_bytes: int = 150) -> list[int]:
    """Return the record offsets in [start, end) that a cursor reads."""
    cursor = LogCursor(files, start, contiguous=False)
    found: list[int] = []
    for chunk in cursor.read(ColumnDecoder(Column.OFFSET, chunk_bytes, 1 << 20), end):
        assert chunk.records.offset is not None
        found += chunk.records.offset.to_pylist()
    return [one for one in found if start <= one < end]


@SEEDS
def test_every_range_of_a_log_with_gaps_is_read_whole(seed: int) -> None:
    rng = Random(seed)
    segments, disk = log_with_gaps(rng), disk_with_parent()
    put(disk, segments)
    offsets = offsets_in(segments)
    end_offset = offsets[-1] + 1
    files = LogFiles.of_directory(disk, DIRECTORY)
    for start in range(end_offset):
        for end in {rng.randrange(start, end_offset) + 1 for _ in range(12)}:
            expected = [one for one in offsets if start <= one < end]
            assert read(files, start, end, rng.choice((70, 150, 4_000))) == expected


@SEEDS
def test_ranges_are_read_whole_by_the_names_of_segments_that_have_become_one(seed: int) -> None:
    """Kafka's cleaner replaces several segments by one, while a reader has their names."""
    rng = Random(seed)
    before, disk = log_with_gaps(rng), disk_with_parent()
    put(disk, before)
    offsets = offsets_in(before)
    bases, end_offset = list(before), offsets[-1] + 1
    after = dict(before)
    first = rng.randrange(len(bases) - 1)
    merged = bases[first : first + rng.randrange(2, len(bases) + 1)]
    after[merged[0]] = [data for base in merged for data in before[base]]
    for base in merged[1:]:
        del after[base]
    for start in range(end_offset):
        end = rng.randrange(start, end_offset) + 1
        files = LogFiles.of_directory(disk, DIRECTORY)
        later = disk_with_parent()
        put(later, after)
        files.storage = later
        expected = [one for one in offsets if start <= one < end]
        assert read(files, start, end) == expected, f"{start} to {end}"


@pytest.mark.parametrize("seed", range(6))
def test_a_base_offset_above_those_of_later_batches_ends_no_range_unnoticed(seed: int) -> None:
    """It is outside of the CRC. One that is between its neighbours cannot be detected."""
    rng = Random(seed)
    segments = log_with_gaps(rng)
    end_offset = offsets_in(segments)[-1] + 1
    everything = [(base, at) for base, batches in segments.items() for at in range(len(batches))]
    for base, ordinal in everything[:-1]:
        batches, disk = list(segments[base]), disk_with_parent()
        damaged = bytearray(batches[ordinal])
        damaged[rng.randrange(4, 7)] ^= 1 << rng.randrange(7)
        (begin,) = {one.base_offset for one in iter_batches(batches[ordinal])}
        batches[ordinal] = bytes(damaged)
        put(disk, {**segments, base: batches})
        for end in {begin + 1, rng.randrange(begin, end_offset) + 1, end_offset}:
            with pytest.raises((LogGapError, CorruptBatchError)):
                read(LogFiles.of_directory(disk, DIRECTORY), 0, end)
