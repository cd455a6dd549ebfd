"""Spans of transactions, and the last stable offset of a log."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from tests.support.log_builder import ABORT, END, NO_OP, LogBuilder, begin
from tests.support.memory_storage import MemoryStorage

from raftlog.client import Isolation, LogReader, Outcome, TransactionSpan, open_path
from raftlog.errors import TransactionMarkerError
from raftlog.log.reading.directory_log import DirectoryLog
from raftlog.log.reading.transactions import Marker, TransactionIndex, spans_by_range
from raftlog.records.compression import Compression

COMMITTED = Isolation.READ_COMMITTED
EVERYTHING = Isolation.READ_UNCOMMITTED


def metadata_log(builder: LogBuilder) -> LogReader:
    return open_path(builder.directory, storage=builder.storage)


def partition_builder(storage: MemoryStorage | None = None) -> LogBuilder:
    return LogBuilder(storage, "/node/orders-0")


def spans(log: LogReader, start: int | None = None, end: int | None = None) -> list[object]:
    start = log.log_start_offset if start is None else start
    end = log.log_end_offset if end is None else end
    plan = log.plan(start, end, isolation=COMMITTED)
    return [
        (span.first_offset, span.marker_offset, span.outcome, span.producer_id)
        for slice_ in plan.splits
        for span in slice_.spans
    ]


# --- metadata ---


def test_a_transaction_is_framed_by_its_markers_and_has_their_name() -> None:
    builder = LogBuilder()
    builder.data(begin("one"), NO_OP, END)
    builder.data(NO_OP)
    builder.data(begin())
    builder.data(NO_OP, ABORT)
    plan = metadata_log(builder).plan(0, builder.next_offset, isolation=COMMITTED)
    assert plan.splits[0].spans == (
        TransactionSpan(0, 2, Outcome.COMMITTED, -1, "one"),
        TransactionSpan(4, 6, Outcome.ABORTED, -1, None),
    )


@pytest.mark.parametrize("compression", list(Compression))
def test_markers_are_found_in_compressed_batches(compression: Compression) -> None:
    builder = LogBuilder()
    builder.data(NO_OP, begin("x"), NO_OP, END, compression=compression)
    assert spans(metadata_log(builder)) == [(1, 3, Outcome.COMMITTED, -1)]


def test_values_that_resemble_markers_are_none() -> None:
    builder = LogBuilder()
    builder.data(b"", None, b"\x01", b"\x00\x17\x00", b"\x01\x97\x00", b"\x02\x17\x00")
    assert spans(metadata_log(builder)) == []


def test_the_end_is_before_the_batch_in_which_an_open_transaction_begins() -> None:
    builder = LogBuilder()
    builder.no_ops(3)
    builder.data(NO_OP, NO_OP, begin())
    builder.no_ops(2)
    log = metadata_log(builder)
    end = log.read_end(isolation=COMMITTED)
    assert end.offset == 3
    assert "offset 3 is still open" in end.explanation
    assert log.read_end(isolation=EVERYTHING).offset == 8
    builder.data(END)
    log.refresh()
    assert log.read_end(isolation=COMMITTED).offset == 9


def test_one_batch_may_end_a_transaction_and_begin_another() -> None:
    builder = LogBuilder()
    builder.no_ops(2)
    builder.data(begin("a"))
    builder.data(END, begin("b"))
    builder.data(END, begin("c"), NO_OP)
    log = metadata_log(builder)
    # Every batch from offset 2 on is inside a transaction that extends to the end.
    assert log.read_end(isolation=COMMITTED).offset == 2


def test_a_log_without_its_first_segments_may_start_inside_a_transaction() -> None:
    builder = LogBuilder(start_offset=50)
    builder.no_ops(2)
    builder.data(END)
    builder.data(NO_OP)
    assert spans(metadata_log(builder)) == [(50, 52, Outcome.COMMITTED, -1)]


def test_a_snapshot_never_ends_inside_a_transaction() -> None:
    builder = LogBuilder(start_offset=50)
    builder.checkpoint(end_offset=50)
    builder.data(END)
    with pytest.raises(TransactionMarkerError):
        spans(metadata_log(builder))


@pytest.mark.parametrize(
    ("values", "offset"),
    [([END], 2), ([ABORT], 2), ([begin(), NO_OP, begin("again"), END], 4)],
    ids=["stray end", "stray abort", "nested begin"],
)
def test_contradicting_markers_stop_committed_reads_only(values: list[bytes], offset: int) -> None:
    builder = LogBuilder()
    builder.no_ops(2)
    builder.data(*values)
    builder.no_ops(2)
    log = metadata_log(builder)
    with pytest.raises(TransactionMarkerError) as caught:
        log.plan(0, builder.next_offset, isolation=COMMITTED)
    assert caught.value.offset == offset
    assert log.plan(0, 2, isolation=COMMITTED).splits
    assert log.plan(0, builder.next_offset, isolation=EVERYTHING).splits
    assert sum(len(s.records) for s in log.scan(0, builder.next_offset)) == builder.next_offset


def test_a_transaction_of_a_failed_leader_is_aborted_by_the_next_one() -> None:
    builder = LogBuilder()
    builder.data(begin("long"))
    builder.no_ops(2)
    builder.lead(2)
    log = metadata_log(builder)
    assert log.read_end(isolation=COMMITTED).offset == 0
    builder.data(ABORT)
    log.refresh()
    assert log.read_end(isolation=COMMITTED).offset == 5
    assert spans(log) == [(0, 4, Outcome.ABORTED, -1)]


def test_a_plan_of_an_early_range_knows_the_transactions_there() -> None:
    builder = LogBuilder()
    builder.no_ops(5)
    builder.data(begin("early"))
    builder.no_ops(5)
    builder.checkpoint(end_offset=3)
    builder.data(END)
    builder.no_ops(5)
    builder.checkpoint()
    builder.no_ops(3)
    log = metadata_log(builder)
    assert log.read_end(isolation=COMMITTED).offset == builder.next_offset
    assert spans(log, 0, 4) == []
    assert spans(log, 7, 9) == [(5, 11, Outcome.COMMITTED, -1)]
    assert spans(log, 4, 7) == [(5, 11, Outcome.COMMITTED, -1)]
    assert spans(log, 12, 20) == []


# --- ordinary partitions ---


def test_producers_transactions_may_overlap_and_committed_ones_are_not_listed() -> None:
    builder = partition_builder()
    builder.data(b"a", b"b", producer_id=7)
    builder.data(b"c", producer_id=8)
    builder.data(b"d")
    builder.end_producer(7, commit=True)
    builder.data(b"e", producer_id=8)
    builder.end_producer(8, commit=False)
    log = metadata_log(builder)
    assert log.read_end(isolation=COMMITTED).offset == 7
    assert spans(log) == [(2, 6, Outcome.ABORTED, 8)]
    assert log.plan(0, 7, isolation=EVERYTHING).splits[0].spans == ()


def test_the_last_stable_offset_is_that_of_the_first_open_transaction() -> None:
    builder = partition_builder()
    builder.data(b"a")
    builder.data(b"b", producer_id=7)
    builder.data(b"c", producer_id=8)
    builder.end_producer(8, commit=True)
    log = metadata_log(builder)
    assert log.read_end(isolation=COMMITTED).offset == 1
    assert log.read_end(isolation=EVERYTHING).offset == 4
    assert spans(log) == [(1, None, Outcome.OPEN, 7)]
    builder.end_producer(7, commit=False)
    log.refresh()
    assert log.read_end(isolation=COMMITTED).offset == 5
    assert spans(log) == [(1, 4, Outcome.ABORTED, 7)]


def test_an_abort_after_the_range_is_known_in_it() -> None:
    builder = partition_builder()
    builder.data(b"a", producer_id=7)
    builder.data(*[b"x"] * 10)
    builder.end_producer(7, commit=False)
    log = metadata_log(builder)
    assert spans(log, 0, 5) == [(0, 11, Outcome.ABORTED, 7)]


def test_a_marker_without_records_ends_no_transaction() -> None:
    builder = partition_builder()
    builder.end_producer(7, commit=False)
    builder.data(b"a", producer_id=7)
    builder.end_producer(7, commit=True)
    builder.end_producer(7, commit=False)
    assert spans(metadata_log(builder)) == []


def test_a_producer_snapshot_has_the_open_transactions_so_that_little_is_read() -> None:
    builder = partition_builder()
    first = builder.data(b"a", producer_id=7)
    for _ in range(200):
        builder.data(b"x" * 500)
    builder.producer_snapshot({7: first})
    builder.roll()
    builder.data(b"y")
    log = metadata_log(builder)
    builder.storage.read_bytes()
    assert log.read_end(isolation=COMMITTED).offset == first
    assert builder.storage.read_bytes() < 10_000
    builder.end_producer(7, commit=False)
    log.refresh()
    assert log.read_end(isolation=COMMITTED).offset == builder.next_offset
    assert spans(log, 202) == [(0, 202, Outcome.ABORTED, 7)]


@pytest.mark.parametrize("damage", ["crc", "far", "gone"])
def test_an_untrustworthy_producer_snapshot_is_skipped(damage: str) -> None:
    builder = partition_builder()
    builder.data(b"a", producer_id=7)
    builder.producer_snapshot({})
    path = builder.file(f"{builder.next_offset:020d}.snapshot")
    if damage == "crc":
        builder.storage.files[path][7] ^= 1
    elif damage == "far":
        builder.storage.rename(path, builder.file("00000000000000000099.snapshot"))
    else:
        builder.storage.delete(path)
    builder.roll()
    builder.data(b"b")
    assert metadata_log(builder).read_end(isolation=COMMITTED).offset == 0


def test_a_plan_of_an_early_range_reads_from_the_producer_snapshot_before_it() -> None:
    builder = partition_builder()
    boundaries = []
    for generation in range(4):
        first = builder.data(b"a", producer_id=7)
        builder.data(*[b"x"] * 5)
        builder.end_producer(7, commit=generation % 2 == 0)
        boundaries.append((first, builder.next_offset))
        builder.producer_snapshot({})
        builder.roll()
    builder.data(b"end")
    log = metadata_log(builder)
    assert log.read_end(isolation=COMMITTED).offset == builder.next_offset
    expected = [
        (first, end - 1, Outcome.ABORTED, 7)
        for generation, (first, end) in enumerate(boundaries)
        if generation % 2
    ]
    assert spans(log) == expected
    for first, end in reversed(boundaries):
        inside = [span for span in expected if span[0] < end and span[1] >= first]
        assert spans(log, first, end) == inside
        assert spans(log, first + 2, first + 3) == inside


def test_ended_transactions_beyond_the_cache_are_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("raftlog.log.reading.replay.ENDED_RETAINED_MAX", 3)
    builder = partition_builder()
    expected = []
    for _ in range(10):
        first = builder.data(b"a", producer_id=7)
        marker = builder.end_producer(7, commit=False)
        expected.append((first, marker, Outcome.ABORTED, 7))
    log = metadata_log(builder)
    assert spans(log) == expected
    assert spans(log, 4, 7) == expected[2:4]
    assert log.read_end(isolation=COMMITTED).offset == 20


def test_ended_metadata_transactions_are_cached_up_to_a_limit_and_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = random.Random(11)
    builder = LogBuilder()
    for _ in range(60):
        builder.data(begin(), *([NO_OP] * rng.randrange(3)))
        builder.data(*([NO_OP] * rng.randrange(1, 3)), rng.choice([END, ABORT]))
        builder.no_ops(rng.randrange(1, 3))
    end = builder.next_offset
    whole = metadata_log(builder)
    monkeypatch.setattr("raftlog.log.reading.replay.ENDED_RETAINED_MAX", 3)
    log = open_path(builder.directory, storage=builder.storage)
    assert isinstance(log, DirectoryLog)
    replay = log.cached.replay()
    assert replay is not None
    kept = replay.transactions.spans(0, end, with_committed=True)
    assert len(kept) == 3, "older ones are dropped"
    for _ in range(60):
        start = rng.randrange(end)
        stop = rng.randrange(start + 1, end + 1)
        assert spans(log, start, stop) == spans(whole, start, stop)
        records = rng.randrange(1, 9)
        assert log.next_boundary(start, end_offset=stop, max_records=records) == (
            whole.next_boundary(start, end_offset=stop, max_records=records)
        )
    assert log.read_end(isolation=COMMITTED).offset == end


def test_a_plan_at_the_end_reads_no_older_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    transactions = TransactionIndex("x", complete_from=0, retained_max=None)
    for offset in range(0, 30_000, 3):
        transactions.metadata_marker(Marker.BEGIN, offset, batch_base_offset=offset)
        transactions.metadata_marker(Marker.END, offset + 2, batch_base_offset=offset)
    looked_at = []
    ended_before = TransactionSpan.ended_before

    def recording(span: TransactionSpan, offset: int) -> bool:
        looked_at.append(span)
        return ended_before(span, offset)

    monkeypatch.setattr(TransactionSpan, "ended_before", recording)
    found = transactions.spans(29_990, 30_000, with_committed=True)
    assert [span.first_offset for span in found] == [29_988, 29_991, 29_994, 29_997]
    assert len(looked_at) == len(found) + 1


def test_the_last_stable_offset_takes_account_of_markers_after_it() -> None:
    transactions = TransactionIndex("x", complete_from=0, retained_max=None)
    transactions.open_transaction(7, first_offset=5)
    transactions.open_transaction(8, first_offset=10)
    transactions.end_transaction(7, marker_offset=20, commit=True)
    transactions.end_transaction(8, marker_offset=30, commit=False)
    assert [transactions.last_stable_offset(end) for end in (5, 6, 20, 21, 30, 31)] == [
        5,
        5,
        5,
        10,
        10,
        31,
    ]


def test_open_and_ended_transactions_are_dropped_only_once_decided() -> None:
    transactions = TransactionIndex("x", complete_from=0, retained_max=1)
    for producer_id in (1, 2):
        transactions.open_transaction(producer_id, first_offset=producer_id)
    transactions.end_transaction(1, marker_offset=10, commit=False)
    transactions.open_transaction(3, first_offset=11)
    transactions.end_transaction(3, marker_offset=12, commit=False)
    assert transactions.complete_from == 11
    assert [span.first_offset for span in transactions.spans(11, 99, with_committed=True)] == [
        2,
        11,
    ]
    transactions.drop_ended_before(50)
    assert [span.first_offset for span in transactions.spans(50, 99, with_committed=True)] == [2]
    assert transactions.opened_before(3)
    assert not transactions.opened_before(2)


def test_transactions_of_many_ranges_are_found_in_one_pass() -> None:
    rng = random.Random(3)
    spans = []
    for producer_id in range(60):
        first = rng.randrange(100)
        marker = rng.choice([None, first + rng.randrange(1, 60)])
        outcome = Outcome.OPEN if marker is None else Outcome.ABORTED
        spans.append(TransactionSpan(first, marker, outcome, producer_id))
    spans.sort(key=lambda span: (span.first_offset, span.producer_id))
    cuts = sorted(rng.sample(range(160), 12))
    ranges = list(pairwise(cuts))
    expected = [tuple(s for s in spans if s.touches(start, end)) for start, end in ranges]
    assert list(spans_by_range(spans, ranges)) == expected
