"""Plans of reads: splits and limits do not change the rows."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.log_builder import END, NO_OP, LogBuilder, begin, data_batch

from raftlog.client import Isolation, LogReader, open_path
from raftlog.errors import CorruptBatchError, DataLossError, OffsetOutOfRangeError
from raftlog.log.reading.reads import split_range
from raftlog.records.batch_columns import Column

LOGS = Path(__file__).parents[1] / "data" / "kraft-logs"
SAMPLES = {
    "metadata": LOGS / "three-nodes-4.3.1/node-102",
    "partition": LOGS / "three-nodes-4.3.1/node-1/orders-0-0",
    "compressed": LOGS / "every-record-4.3.1/zstd/__cluster_metadata-0",
}
COMMITTED = Isolation.READ_COMMITTED
EVERYTHING = Isolation.READ_UNCOMMITTED
Row = tuple[int, bytes | None]


def rows(log: LogReader, start: int, end: int, chunk_bytes: int = 1 << 20) -> list[Row]:
    found: list[Row] = []
    for scan in log.scan(start, end, columns=Column.OFFSET | Column.VALUE, chunk_bytes=chunk_bytes):
        assert scan.records.offset is not None
        assert scan.records.value is not None
        found += zip(scan.records.offset.to_pylist(), scan.records.value.to_pylist(), strict=True)
    return found


@pytest.fixture(scope="module")
def samples() -> dict[str, tuple[LogReader, list[Row]]]:
    logs = {name: open_path(str(path)) for name, path in SAMPLES.items()}
    return {
        name: (log, rows(log, log.log_start_offset, log.log_end_offset))
        for name, log in logs.items()
    }


@pytest.mark.slow
@settings(max_examples=40)
@given(st.data())
def test_any_split_of_a_range_gives_the_same_rows(
    samples: dict[str, tuple[LogReader, list[Row]]], data: st.DataObject
) -> None:
    log, everything = samples[data.draw(st.sampled_from(sorted(SAMPLES)))]
    offsets = st.integers(log.log_start_offset, log.log_end_offset)
    cuts = sorted(data.draw(st.lists(offsets, min_size=2, max_size=6)))
    chunk_bytes = data.draw(st.sampled_from([800, 5000, 50_000]))
    found: list[Row] = []
    for start, end in itertools.pairwise(cuts):
        found += rows(log, start, end, chunk_bytes)
    assert found == [row for row in everything if cuts[0] <= row[0] < cuts[-1]]


@settings(max_examples=40)
@given(st.data())
def test_the_splits_of_a_plan_cover_its_range_and_give_the_same_rows(
    samples: dict[str, tuple[LogReader, list[Row]]], data: st.DataObject
) -> None:
    log, everything = samples[data.draw(st.sampled_from(sorted(SAMPLES)))]
    offsets = st.integers(log.log_start_offset, log.log_end_offset)
    start, end = sorted(data.draw(st.tuples(offsets, offsets)))
    plan = log.plan(
        start,
        end,
        isolation=EVERYTHING,
        max_splits=data.draw(st.integers(1, 9)),
        max_records_per_split=data.draw(st.none() | st.integers(1, 2000)),
    )
    edges = [slice_.start_offset for slice_ in plan.splits] + [plan.end_offset]
    assert edges[0] == start
    assert edges[-1] == end
    assert [slice_.end_offset for slice_ in plan.splits] == edges[1:]
    found = [row for s in plan.splits for row in rows(log, s.start_offset, s.end_offset)]
    assert found == [row for row in everything if start <= row[0] < end]
    bases = {batch.base_offset for batch in log.batches(start, end)}
    assert set(edges[1:-1]) <= bases


@pytest.mark.slow
@settings(max_examples=40)
@given(st.data())
def test_micro_batches_within_any_limit_give_the_same_rows(
    samples: dict[str, tuple[LogReader, list[Row]]], data: st.DataObject
) -> None:
    log, everything = samples[data.draw(st.sampled_from(["metadata", "partition"]))]
    end = log.log_end_offset
    max_records = data.draw(st.none() | st.integers(1, 3000))
    max_bytes = data.draw(st.none() | st.integers(1, 100_000))
    at = data.draw(st.sampled_from([log.log_start_offset, end // 2]))
    found: list[Row] = []
    begun, steps = at, 0
    ends = {batch.next_offset for batch in log.batches(at, end)}
    while at < end and steps < 15:
        boundary = log.next_boundary(
            at, end_offset=end, max_records=max_records, max_bytes=max_bytes
        )
        assert boundary > at
        assert boundary in ends
        found += rows(log, at, boundary)
        at, steps = boundary, steps + 1
    assert found == [row for row in everything if begun <= row[0] < at]


def test_a_limit_counts_records_and_bytes_and_admits_at_least_one_batch() -> None:
    builder = LogBuilder()
    builder.no_ops(10, per_batch=4)
    size = len(builder.storage.files[builder.path()]) // 10
    log = open_path(builder.directory, storage=builder.storage)

    def boundary(start: int, **limits: int) -> int:
        return log.next_boundary(start, end_offset=40, **limits)

    assert boundary(0) == 40
    assert boundary(0, max_records=4) == 4
    assert boundary(0, max_records=11) == 8
    assert boundary(0, max_records=1) == 4
    assert boundary(0, max_records=1000) == 40
    assert boundary(4, max_bytes=3 * size) == 16
    assert boundary(4, max_bytes=1) == 8
    assert boundary(0, max_records=20, max_bytes=2 * size) == 8
    assert boundary(40, max_records=1) == 40
    assert log.next_boundary(0, end_offset=8, max_records=100) == 8


def test_a_micro_batch_never_ends_inside_a_metadata_transaction() -> None:
    builder = LogBuilder()
    builder.no_ops(2)
    builder.data(NO_OP, begin("big"))
    builder.no_ops(6)
    builder.data(END)
    builder.no_ops(2)
    log = open_path(builder.directory, storage=builder.storage)
    end = builder.next_offset
    assert [log.next_boundary(0, end_offset=end, max_records=n) for n in (1, 2, 3, 9, 12)] == [
        1,
        2,
        2,
        2,
        12,
    ]
    # larger than the limit: admitted as a whole
    assert log.next_boundary(2, end_offset=end, max_records=3) == 11
    assert log.next_boundary(2, end_offset=end, max_bytes=1) == 11


def test_a_transaction_of_many_chunks_is_admitted_as_a_whole() -> None:
    builder = LogBuilder()
    builder.no_ops(2)
    builder.data(begin("huge"))
    for _ in range(200):
        builder.data(*[b"\x01\x02\x00" + b"x" * 2000] * 2)
    builder.data(END)
    builder.no_ops(2)
    log = open_path(builder.directory, storage=builder.storage)
    end = builder.next_offset
    assert log.next_boundary(2, end_offset=end, max_records=10) == end - 2
    assert log.next_boundary(2, end_offset=end, max_records=end - 3) == end - 1
    assert log.next_boundary(0, end_offset=end, max_records=10) == 2


def test_a_micro_batch_ends_before_damage_and_the_next_raises_it() -> None:
    builder = LogBuilder()
    builder.no_ops(6)
    _, _, position = builder.positions[3]
    builder.storage.files[builder.path()][position + 16] = 7  # its magic
    log = open_path(builder.directory, storage=builder.storage)
    assert log.next_boundary(0, end_offset=6, max_records=100) == 3
    with pytest.raises(CorruptBatchError):
        log.next_boundary(3, end_offset=6, max_records=100)


def test_a_range_is_planned_without_reading_it() -> None:
    builder = LogBuilder(directory="/node/orders-0")
    for _ in range(2000):
        builder.data(b"x" * 900)
        if builder.next_offset % 500 == 0:
            builder.producer_snapshot({})
            builder.roll()
    storage = builder.storage
    total = sum(len(data) for path, data in storage.files.items() if path.endswith(".log"))
    log = open_path(builder.directory, storage=storage)
    storage.read_bytes()
    plan = log.plan(0, log.log_end_offset, isolation=EVERYTHING, max_splits=8)
    assert [slice_.start_offset for slice_ in plan.splits] == [n * 250 for n in range(8)]
    assert storage.read_bytes() < total // 5


@pytest.mark.parametrize("directory", ["/node/__cluster_metadata-0", "/node/orders-0"])
def test_without_an_index_the_boundaries_of_a_plan_are_found_in_one_scan(directory: str) -> None:
    builder = LogBuilder(directory=directory, with_indexes=False)
    for _ in range(4000):
        builder.data(NO_OP * 50)
    storage = builder.storage
    total = len(storage.files[builder.path()])
    log = open_path(builder.directory, storage=storage)
    end = log.read_end(isolation=COMMITTED).offset
    storage.read_bytes()
    plan = log.plan(0, end, isolation=COMMITTED, max_splits=20)
    assert [one.start_offset for one in plan.splits] == list(range(0, 4000, 200))
    assert storage.read_bytes() < 1.5 * total


def test_a_read_starts_from_the_index_and_not_at_the_start_of_the_segment() -> None:
    builder = LogBuilder()
    builder.no_ops(5000)
    log = open_path(builder.directory, storage=builder.storage)
    builder.storage.read_bytes()
    assert rows(log, 4900, 4901, chunk_bytes=4096) == [(4900, NO_OP)]
    assert builder.storage.read_bytes() < 20_000 + 8 * 8192


def test_large_batches_are_skipped_when_only_headers_are_read() -> None:
    builder = LogBuilder(directory="/node/orders-0")
    for _ in range(20):
        builder.data(b"x" * 1_000_000)
    total = len(builder.storage.files[builder.path()])
    log = open_path(builder.directory, storage=builder.storage)
    assert log.read_end(isolation=COMMITTED).offset == 20
    builder.storage.read_bytes()
    assert log.next_boundary(0, end_offset=20, max_records=15) == 15
    assert builder.storage.read_bytes() < total // 4


def test_a_range_outside_the_log_is_reported() -> None:
    builder = LogBuilder(start_offset=10)
    builder.no_ops(5)
    log = open_path(builder.directory, storage=builder.storage)
    with pytest.raises(OffsetOutOfRangeError) as beyond:
        log.plan(10, 16, isolation=COMMITTED)
    assert (beyond.value.log_start_offset, beyond.value.log_end_offset) == (10, 15)
    with pytest.raises(DataLossError) as below:
        log.plan(9, 12, isolation=COMMITTED)
    assert below.value.condition == "OFFSETS_DELETED"
    with pytest.raises(DataLossError):
        next(log.scan(9, 12))
    assert log.plan(12, 12, isolation=COMMITTED).splits == ()
    assert list(log.scan(12, 12)) == []


def test_offsets_removed_by_compaction_are_no_gap_in_an_ordinary_partition() -> None:
    builder = LogBuilder(directory="/node/orders-0")
    for base, deltas in ((0, (0, 3)), (10, (0,)), (11, (2, 5)), (40, (0,))):
        batch = data_batch([b"v"] * len(deltas), base_offset=base, offset_deltas=deltas)
        builder.append(batch, last_offset=base + deltas[-1])
    log = open_path(builder.directory, storage=builder.storage)
    assert [row[0] for row in rows(log, 0, 41)] == [0, 3, 10, 13, 16, 40]
    assert [row[0] for row in rows(log, 2, 14)] == [3, 10, 13]
    assert [row[0] for row in rows(log, 20, 30)] == []
    plan = log.plan(0, 41, isolation=COMMITTED, max_splits=4)
    found = [row for s in plan.splits for row in rows(log, s.start_offset, s.end_offset)]
    assert found == rows(log, 0, 41)
    # limits count existing records
    assert log.next_boundary(0, end_offset=41, max_records=3) == 11


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=30),
    st.integers(1, 12),
    st.none() | st.integers(1, 20),
    st.data(),
)
def test_splits_are_as_many_and_as_short_as_requested(
    sizes: list[int], max_splits: int, max_records: int | None, data: st.DataObject
) -> None:
    edges = [0]
    for size in sizes:
        edges.append(edges[-1] + size)
    start = data.draw(st.integers(0, edges[-1] - 1))

    def find_batch(offset: int) -> tuple[int, int]:
        at = next(n for n, edge in enumerate(edges) if edge > offset) - 1
        return edges[at], edges[at + 1]

    splits = split_range(
        start, edges[-1], find_batch, max_splits=max_splits, max_records=max_records
    )
    assert [begin for begin, _ in splits[1:]] == [end for _, end in splits[:-1]]
    assert (splits[0][0], splits[-1][1]) == (start, edges[-1])
    for begin_, end in splits:
        assert begin_ < end
        within_one_batch = find_batch(begin_)[1] >= end
        if max_records is not None:
            assert end - begin_ <= max_records or within_one_batch
    if max_records is None:
        assert len(splits) <= max_splits
