"""Reads by record timestamp: the holdback of young records, and offsets by time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support.log_builder import END, NO_OP, LogBuilder, begin
from tests.support.memory_storage import MemoryFile, MemoryStorage

from raftlog.client import EndBasis, Isolation, LogReader, open_path

COMMITTED = Isolation.READ_COMMITTED
EVERYTHING = Isolation.READ_UNCOMMITTED


def opened(builder: LogBuilder) -> LogReader:
    return open_path(builder.directory, storage=builder.storage)


@pytest.mark.parametrize("with_indexes", [True, False])
def test_records_younger_than_the_holdback_are_held_back(with_indexes: bool) -> None:
    builder = LogBuilder(with_indexes=with_indexes)
    for second in range(100):
        for _ in range(20):
            builder.data(NO_OP, timestamp_ms=second * 1000)
    log = opened(builder)
    for now_ms, holdback_ms, seconds in (
        (99_000, 5_000, 95),
        (99_999, 5_000, 95),
        (104_000, 5_000, 100),
        (99_000, 0, 100),
        (2_000, 5_000, 0),
        (50_000, 1, 50),
    ):
        end = log.read_end(isolation=COMMITTED, holdback_ms=holdback_ms, now_ms=now_ms)
        assert end.offset == seconds * 20
        assert end.basis is (EndBasis.HOLDBACK if holdback_ms else EndBasis.DIRECTORY)
    assert "younger than 1 ms" in end.explanation


def test_everything_after_the_first_held_back_batch_is_held_back() -> None:
    builder = LogBuilder()
    for ms in (1000, 2000, 9000, 3000):
        builder.data(NO_OP, timestamp_ms=ms)
    builder.roll()
    builder.data(NO_OP, timestamp_ms=1000)
    log = opened(builder)
    assert log.read_end(isolation=COMMITTED, holdback_ms=1000, now_ms=5000).offset == 2
    assert log.read_end(isolation=COMMITTED, holdback_ms=1000, now_ms=10_000).offset == 5


def test_a_timestamp_far_in_the_future_holds_nothing_back() -> None:
    builder = LogBuilder(directory="/node/orders-0")
    now_ms = 1_700_000_000_000
    for ms in (now_ms - 9000, now_ms * 1000, now_ms - 8000, now_ms - 3000, now_ms):
        builder.data(b"x", timestamp_ms=ms)
    log = opened(builder)
    assert log.read_end(isolation=COMMITTED, holdback_ms=5000, now_ms=now_ms).offset == 3
    assert log.read_end(isolation=COMMITTED, holdback_ms=5000, now_ms=now_ms + 5000).offset == 5


def test_a_refresh_of_the_held_back_tail_reads_no_index_again() -> None:
    builder = LogBuilder(directory="/node/orders-0")
    for second in range(3000):
        builder.data(b"x" * 100, timestamp_ms=second * 1000)
    log = opened(builder)
    end = log.read_end(isolation=COMMITTED, holdback_ms=5000, now_ms=2_900_000)
    builder.storage.reads.clear()
    log.refresh()
    again = log.read_end(isolation=COMMITTED, holdback_ms=5000, now_ms=2_901_000, previous=end)
    assert again.offset == end.offset + 1
    assert not [path for path, _, _ in builder.storage.reads if path.endswith("index")]


def test_a_held_back_end_is_not_inside_a_transaction() -> None:
    builder = LogBuilder()
    builder.data(NO_OP, timestamp_ms=1000)
    builder.data(begin(), timestamp_ms=1000)
    builder.data(END, timestamp_ms=9000)
    log = opened(builder)
    assert log.read_end(isolation=COMMITTED, holdback_ms=1000, now_ms=5000).offset == 1
    assert log.read_end(isolation=COMMITTED).offset == 3


def test_a_held_back_end_of_a_partition_knows_the_open_transactions_there() -> None:
    builder = LogBuilder(directory="/node/orders-0")
    builder.data(b"a", timestamp_ms=1000)
    builder.data(b"b", producer_id=7, timestamp_ms=1000)
    builder.data(b"c", timestamp_ms=9000)
    builder.end_producer(7, commit=True)
    builder.producer_snapshot({})
    builder.roll()
    builder.data(b"d", timestamp_ms=9000)
    log = opened(builder)
    assert log.read_end(isolation=COMMITTED).offset == 5
    assert log.read_end(isolation=COMMITTED, holdback_ms=1000, now_ms=5000).offset == 1
    everything = Isolation.READ_UNCOMMITTED
    assert log.read_end(isolation=everything, holdback_ms=1000, now_ms=5000).offset == 2


def test_the_next_refresh_continues_from_the_last_held_back_end() -> None:
    builder = LogBuilder(with_indexes=False)
    for second in range(1000):
        builder.data(NO_OP, timestamp_ms=second * 1000)
    log = opened(builder)
    end = log.read_end(isolation=COMMITTED, holdback_ms=5000, now_ms=900_000)
    assert end.offset == 896
    builder.storage.read_bytes()
    end = log.read_end(isolation=COMMITTED, holdback_ms=5000, now_ms=901_000, previous=end)
    assert end.offset == 897
    assert builder.storage.read_bytes() < 10_000


# --- a node that deletes segments meanwhile ---


def _of_time(log: LogReader) -> int | None:
    return log.offset_for_timestamp(50_000)


def _end_before_holdback(log: LogReader) -> int:
    return log.read_end(isolation=EVERYTHING, holdback_ms=5_000, now_ms=54_999).offset


@pytest.mark.parametrize("ask", [_of_time, _end_before_holdback])
@pytest.mark.parametrize("opens_before", range(6))
def test_a_timestamp_is_searched_again_when_its_segment_is_deleted_meanwhile(
    ask: Callable[[LogReader], int | None], opens_before: int
) -> None:
    class Trimming(MemoryStorage):
        """Storage whose node deletes the oldest segment right before a file is opened."""

        opens_left = 2**31

        def open_file(self, path: str) -> MemoryFile:
            if self.opens_left == 0:
                builder.delete_segment(0)
            self.opens_left -= 1
            return super().open_file(path)

    storage = Trimming()
    builder = LogBuilder(storage)
    for second in range(300):
        if second in (100, 200):
            builder.roll()
        builder.data(b"x" * 200, timestamp_ms=second * 1000)
    log = opened(builder)
    log.read_end(isolation=EVERYTHING)
    storage.opens_left = opens_before
    assert ask(log) in (50, 100)
