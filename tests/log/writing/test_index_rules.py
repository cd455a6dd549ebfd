"""Index entries of Kafka's own segments, written again from the batches only."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.log.reading.chunks import parse_offset_index, parse_time_index
from raftlog.log.segment import OFFSET_ENTRY, TIME_ENTRY
from raftlog.log.writing.active_segment import SegmentIndexer
from raftlog.records.batch import RecordBatch, iter_batches

KRAFT_LOGS = Path(__file__).parents[2] / "data" / "kraft-logs"
SEGMENTS = [
    path for path in sorted(KRAFT_LOGS.rglob("*.log")) if path.with_suffix(".index").exists()
]
INTERVAL = 4096
"""Default of Kafka's ``index.interval.bytes``."""
RESTARTED_AT = {
    "three-nodes-4.3.1/node-101/__cluster_metadata-0/00000000000000000436.log": 720,
    "trimmed-3.9.2/node-1/__cluster_metadata-0/00000000000000000416.log": 642,
}
"""The last offset before a node stopped. A restarted Kafka closes its time index and counts the
bytes to the next entry from its new position; the entries themselves follow the same rule.
"""


def note(indexer: SegmentIndexer, batch: RecordBatch) -> None:
    indexer.add_batch(
        position=batch.position,
        byte_count=batch.byte_count,
        last_offset=batch.last_offset,
        max_timestamp_ms=batch.max_timestamp_ms,
    )


def resumed(base_offset: int, offsets: bytes, times: bytes) -> SegmentIndexer:
    return SegmentIndexer.resumed(
        base_offset,
        interval_bytes=INTERVAL,
        offset_index_bytes=len(offsets),
        time_index_bytes=len(times),
        last_time_entry=times[-TIME_ENTRY.size :],
    )


def rebuilt(
    content: bytes, base_offset: int, restarted_at: int | None = None
) -> tuple[bytes, bytes]:
    indexer = SegmentIndexer(base_offset, interval_bytes=INTERVAL)
    offsets = times = b""
    for batch in iter_batches(content):
        note(indexer, batch)
        if batch.last_offset == restarted_at:
            indexer.add_time_entry()
            new = indexer.take()
            offsets, times = new.offset_entries, new.time_entries
            indexer = resumed(base_offset, offsets, times)
    indexer.add_time_entry()
    new = indexer.take()
    assert new.offset_position == len(offsets)
    assert new.time_position == len(times)
    return offsets + new.offset_entries, times + new.time_entries


def test_there_are_segments_to_compare() -> None:
    assert len(SEGMENTS) == 31


@pytest.mark.parametrize("path", SEGMENTS, ids=lambda path: str(path.relative_to(KRAFT_LOGS)))
def test_indexes_equal_kafkas(path: Path) -> None:
    restarted_at = RESTARTED_AT.get(str(path.relative_to(KRAFT_LOGS)))
    offsets, times = rebuilt(path.read_bytes(), int(path.stem), restarted_at)
    assert offsets == path.with_suffix(".index").read_bytes()
    assert times == path.with_suffix(".timeindex").read_bytes()


def test_indexes_of_a_running_node_are_those_entries_and_zeros() -> None:
    name = "__cluster_metadata-0/00000000000000000000"
    with tarfile.open(KRAFT_LOGS / "running-4.3.1" / "running.tar.gz") as archive:

        def content(suffix: str) -> bytes:
            member = archive.extractfile(name + suffix)
            assert member is not None
            return member.read()

        indexer = SegmentIndexer(0, interval_bytes=INTERVAL)
        for batch in iter_batches(content(".log")):
            note(indexer, batch)
        new = indexer.take()
        assert new.offset_entries
        assert content(".index").rstrip(b"\0") == new.offset_entries.rstrip(b"\0")
        assert content(".timeindex").rstrip(b"\0") == new.time_entries.rstrip(b"\0")


@given(
    st.lists(st.tuples(st.integers(1, 6000), st.integers(0, 50)), max_size=40),
    st.data(),
    st.booleans(),
)
def test_a_reopened_segment_gets_the_same_entries(
    batches: list[tuple[int, int]], data: st.DataObject, is_closed: bool
) -> None:
    reopened_after = data.draw(st.integers(0, len(batches)))
    one = SegmentIndexer(7, interval_bytes=INTERVAL)
    offsets = times = b""
    other = SegmentIndexer(7, interval_bytes=INTERVAL)
    starts = [sum(byte_count for byte_count, _ in batches[:at]) for at in range(len(batches))]
    for at, (byte_count, time_ms) in enumerate(batches):
        for indexer in (one, other):
            indexer.add_batch(
                position=starts[at],
                byte_count=byte_count,
                last_offset=7 + at,
                max_timestamp_ms=time_ms,
            )
        if at + 1 == reopened_after:
            if is_closed:
                other.add_time_entry()
            new = other.take()
            offsets, times = new.offset_entries, new.time_entries
            other = resumed(7, offsets, times)
            last = OFFSET_ENTRY.unpack(offsets[-OFFSET_ENTRY.size :])[1] if offsets else 0
            for again in range(starts.index(last), at + 1):
                size_ms = {"byte_count": batches[again][0], "max_timestamp_ms": batches[again][1]}
                other.add_batch(
                    position=starts[again],
                    last_offset=7 + again,
                    is_indexed=starts[again] == last,
                    **size_ms,
                )
            assert not other.has_new
    new, expected = other.take(), one.take()
    assert offsets + new.offset_entries == expected.offset_entries
    if not is_closed:
        assert times + new.time_entries == expected.time_entries
    assert (other.max_timestamp_ms, other.max_timestamp_offset) == (
        one.max_timestamp_ms,
        one.max_timestamp_offset,
    )


def test_entries_are_read_back_by_the_parsers() -> None:
    indexer = SegmentIndexer(100, interval_bytes=INTERVAL)
    for at, (byte_count, time_ms) in enumerate([(4097, 5), (4097, 9), (10, 9), (10, 12)]):
        indexer.add_batch(
            position=at * 5000,
            byte_count=byte_count,
            last_offset=110 + at,
            max_timestamp_ms=time_ms,
        )
    indexer.add_time_entry()
    new = indexer.take()
    index = parse_offset_index(new.offset_entries, 100)
    assert (index.last_offsets.tolist(), index.positions.tolist()) == ([111, 112], [5000, 10000])
    times = parse_time_index(new.time_entries, 100)
    assert (times.timestamps_ms.tolist(), times.last_offsets.tolist()) == ([9, 12], [111, 113])
    assert not indexer.has_new


def test_an_index_is_full_before_its_last_entry_would_not_fit() -> None:
    indexer = SegmentIndexer(0, interval_bytes=0)
    for at in range(3):
        indexer.add_batch(position=at, byte_count=1, last_offset=at, max_timestamp_ms=at)
    assert indexer.is_full(16)
    assert not indexer.is_full(48)
