"""Rebuilt indexes equal the bytes of the segment's writer, and wrong entries are found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.log_builder import data_batch
from tests.support.memory_storage import MemoryStorage

from raftlog.log.recovery import recover_segment
from raftlog.log.recovery.recover_segment import (
    IndexRebuild,
    ScanPosition,
    ScanRules,
    SegmentScan,
)
from raftlog.log.writing.active_segment import SegmentIndexer
from raftlog.records.batch_columns import BatchColumns

PATH = "/log/00000000000000000100.log"
BASE = 100

shapes = st.lists(
    st.tuples(st.integers(1, 5), st.integers(0, 300), st.integers(1, 50)), min_size=1, max_size=40
)


def written(
    shapes: list[tuple[int, int, int]], interval: int
) -> tuple[MemoryStorage, bytes, bytes, SegmentIndexer]:
    """Return a segment, and its indexes as its writer closes them."""
    storage = MemoryStorage()
    indexer = SegmentIndexer(BASE, interval_bytes=interval)
    data = b""
    offset = BASE
    for count, size, time_ms in shapes:
        batch = data_batch([b"x" * size] * count, base_offset=offset, timestamp_ms=time_ms)
        offset += count
        indexer.add_batch(
            position=len(data),
            byte_count=len(batch),
            last_offset=offset - 1,
            max_timestamp_ms=time_ms,
        )
        data += batch
    storage.write(PATH, data)
    indexer.add_time_entry()
    entries = indexer.take()
    return storage, entries.offset_entries, entries.time_entries, indexer


def scanned(storage: MemoryStorage, chunk_bytes: int = 1 << 20) -> list[BatchColumns]:
    with storage.open_file(PATH) as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr(recover_segment, "SCAN_CHUNK_BYTES", chunk_bytes)
        scan_position = ScanPosition(position=0, next_offset=BASE)
        scan = SegmentScan(file, scan_position, ScanRules())
        return [piece.batches for piece in scan]


def rebuilt(
    pieces: list[BatchColumns], interval: int, offsets: bytes, times: bytes
) -> IndexRebuild:
    rebuild = IndexRebuild(
        BASE, interval_bytes=interval, existing_offsets=offsets, existing_times=times
    )
    for batches in pieces:
        rebuild.add_batches(batches)
    rebuild.close()
    return rebuild


@pytest.mark.slow
@given(shapes, st.integers(0, 2000), st.sampled_from([100, 1000, 1 << 20]))
def test_a_rebuilt_index_equals_the_writers_bytes(
    shapes: list[tuple[int, int, int]], interval: int, chunk_bytes: int
) -> None:
    storage, offsets, times, indexer = written(shapes, interval)
    rebuild = rebuilt(scanned(storage, chunk_bytes), interval, offsets, times)
    assert rebuild.offset_index == offsets
    assert rebuild.time_index == times
    assert rebuild.max_timestamp_ms == indexer.max_timestamp_ms
    assert rebuild.max_timestamp_offset == indexer.max_timestamp_offset
    assert rebuild.is_existing_valid


SHAPES = [(2, 100, 1 + at // 3) for at in range(30)]


def test_every_flipped_bit_of_an_index_is_found() -> None:
    storage, offsets, times, _ = written(SHAPES, 500)
    pieces = scanned(storage)
    assert len(offsets) > 40
    assert len(times) > 60
    for at in range(8 * len(offsets + times)):
        data = bytearray(offsets + times)
        data[at // 8] ^= 1 << at % 8
        changed = bytes(data[: len(offsets)]), bytes(data[len(offsets) :])
        assert not rebuilt(pieces, 500, *changed).is_existing_valid, at


def test_preallocated_space_and_a_missing_last_entry_are_no_damage() -> None:
    storage, offsets, times, _ = written(SHAPES, 500)
    pieces = scanned(storage)
    for good in (
        (offsets + bytes(4096), times + bytes(1200)),
        (offsets[:-8], times[:-12]),
    ):
        assert rebuilt(pieces, 500, *good).is_existing_valid


def test_a_missing_or_half_written_index_is_damage() -> None:
    storage, offsets, times, _ = written(SHAPES, 500)
    pieces = scanned(storage)
    for bad in (
        (b"", b""),
        (offsets[:40], times),
        (offsets, times[:48]),
        (offsets[:-3], times),
        (offsets + b"\0\0\0\0\0\0\0\1", times),
    ):
        assert not rebuilt(pieces, 500, *bad).is_existing_valid
