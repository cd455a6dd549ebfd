"""Outcomes of producers' transactions, which readers find after their records."""

from __future__ import annotations

import itertools
import random
import struct
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.log_builder import LogBuilder
from tests.support.memory_storage import MemoryStorage
from tests.support.record_rows import listed

from raftlog.client import Isolation, LogReader, Outcome, TransactionSpan, open_path
from raftlog.errors import CorruptBatchError, DataLossError, LogError
from raftlog.log.format.directory import TXN_INDEX_SUFFIX
from raftlog.records.batch_columns import Scan

COMMITTED = Isolation.READ_COMMITTED


@dataclass(frozen=True)
class Written:
    """Partition with transactions, and what its writer knows: the offsets of each batch."""

    builder: LogBuilder
    committed: set[int]
    aborted: set[int]

    def open(self) -> LogReader:
        return open_path(self.builder.directory, storage=self.builder.storage)


def write(seed: int, *, step_count: int = 60, roll_often: bool = True) -> Written:
    """Write a partition of random transactions, all decided."""
    rng = random.Random(seed)
    builder = LogBuilder(MemoryStorage(), "/node/orders-0", with_indexes=rng.random() < 0.7)
    open_offsets: dict[int, set[int]] = {}
    committed: set[int] = set()
    aborted: set[int] = set()

    def end(producer_id: int) -> None:
        commit = rng.random() < 0.5
        builder.end_producer(producer_id, commit=commit)
        (committed if commit else aborted).update(open_offsets.pop(producer_id, set()))

    for _ in range(step_count):
        producer_id = rng.randrange(5)
        what = rng.random()
        if what < 0.5:
            base = builder.data(*[b"x" * 40] * rng.randint(1, 4), producer_id=producer_id)
            open_offsets.setdefault(producer_id, set()).update(range(base, builder.next_offset))
        elif what < 0.6:
            base = builder.data(b"plain", b"plain")
            committed.update(range(base, builder.next_offset))
        elif what < 0.95:
            end(producer_id)
        elif roll_often:
            builder.roll()
    for producer_id in list(open_offsets):
        end(producer_id)
    return Written(builder, committed, aborted)


def visible(
    log: LogReader, start: int, end: int, spans: tuple[TransactionSpan, ...] | None = None
) -> list[int]:
    """Return the committed offsets of a range, as a task finds them or by the given ``spans``."""
    found: list[int] = []
    for scan in log.scan(start, end, chunk_bytes=400):
        outcomes = log.aborted_transactions(
            int(scan.batches.base_offset[0]), int(scan.batches.next_offset[-1])
        )
        assert outcomes.error is None
        hidden = outcomes.spans if spans is None else spans
        for row, offset in enumerate(listed(scan.records.offset)):
            at = scan.records.batch_ordinal[row]
            producer_id = int(scan.batches.producer_id[at])
            is_hidden = scan.batches.is_transactional[at] and any(
                span.producer_id == producer_id
                and span.marker_offset is not None
                and span.first_offset <= int(scan.batches.base_offset[at]) < span.marker_offset
                for span in hidden
            )
            if start <= offset < end and not scan.records.is_control[row] and not is_hidden:
                found.append(offset)
    return found


@pytest.mark.slow
@settings(max_examples=20)
@given(st.integers(0, 2**32), st.lists(st.integers(0, 150), max_size=5))
def test_any_split_returns_the_committed_records_and_so_does_one_plan(
    seed: int, cuts: list[int]
) -> None:
    written = write(seed)
    end = written.builder.next_offset
    log = written.open()
    assert log.read_end(isolation=COMMITTED).offset == end
    expected = sorted(written.committed)
    edges = [0, *sorted(cut for cut in cuts if cut < end), end]
    found = []
    for start, stop in itertools.pairwise(edges):
        found += visible(written.open(), start, stop)
    assert found == expected
    assert visible(log, 0, end) == expected
    planned = log.plan(0, end, isolation=COMMITTED).splits[0].spans
    assert visible(log, 0, end, planned) == expected
    assert log.plan(0, end, isolation=COMMITTED, with_producers=False).splits[0].spans == ()


def _wrong_index(written: Written, wrong_content: str) -> None:
    """Write a ``.txnindex`` beside every segment that contradicts the log."""
    entry = struct.Struct(">hqqqq")
    storage, end = written.builder.storage, written.builder.next_offset
    entries = {
        "empty": b"",
        "torn": entry.pack(0, 1, 0, end - 1, end)[:20],
        "noise": b"\xff" * 68,
        "all": b"".join(entry.pack(0, producer_id, 0, end - 1, end) for producer_id in range(5)),
    }[wrong_content]
    for path in [path for path in storage.files if path.endswith(".log")]:
        storage.write(path.removesuffix(".log") + TXN_INDEX_SUFFIX, entries)


@pytest.mark.parametrize("wrong_content", ["empty", "torn", "noise", "all"])
def test_a_transaction_index_is_never_trusted(wrong_content: str) -> None:
    for seed in range(5):
        written = write(seed)
        _wrong_index(written, wrong_content)
        end = written.builder.next_offset
        assert visible(written.open(), 0, end) == sorted(written.committed)


def test_damage_hides_only_transactions_that_it_may_have_decided() -> None:
    builder = LogBuilder(directory="/node/orders-0")
    builder.data(b"a", producer_id=7)
    builder.end_producer(7, commit=True)
    builder.data(b"plain")
    builder.data(b"b", producer_id=8)
    builder.data(b"c", producer_id=9)
    builder.end_producer(9, commit=False)
    builder.end_producer(8, commit=True)
    builder.data(b"end")
    log = open_path(builder.directory, storage=builder.storage)
    whole = log.aborted_transactions(0, 8)
    assert (whole.known_end, whole.error) == (8, None)
    _, _, position = builder.positions[6]
    builder.storage.files[builder.path()][position + 16] = 9  # the magic of the marker of 8
    log = open_path(builder.directory, storage=builder.storage)
    assert log.aborted_transactions(0, 3).error is None
    hidden = log.aborted_transactions(0, 5)
    assert hidden.known_end == 3
    assert isinstance(hidden.error, CorruptBatchError)
    assert [(s.first_offset, s.outcome) for s in hidden.spans] == [(4, Outcome.ABORTED)]


def test_a_log_that_ends_before_an_outcome_reports_it() -> None:
    builder = LogBuilder(directory="/node/orders-0")
    builder.data(b"a")
    builder.data(b"b", producer_id=7)
    builder.data(b"c")
    outcomes = open_path(builder.directory, storage=builder.storage).aborted_transactions(0, 3)
    assert outcomes.known_end == 1
    assert isinstance(outcomes.error, DataLossError)
    assert outcomes.error.condition == "LOG_TRUNCATED"


def test_a_metadata_log_has_no_outcomes() -> None:
    builder = LogBuilder()
    builder.no_ops(3)
    log = open_path(builder.directory, storage=builder.storage)
    assert (log.aborted_transactions(0, 3).spans, log.aborted_transactions(0, 3).known_end) == (
        (),
        3,
    )


def test_headers_are_read_once_however_long_a_transaction_is() -> None:
    builder = LogBuilder(directory="/node/orders-0")
    builder.data(b"long", producer_id=9)
    for number in range(300):
        builder.data(b"x" * 400, producer_id=number % 3)
        builder.end_producer(number % 3, commit=number % 2 == 0)
    builder.end_producer(9, commit=False)
    log = open_path(builder.directory, storage=builder.storage)
    end = log.log_end_offset
    total = len(builder.storage.files[builder.path()])
    builder.storage.read_bytes()
    aborted: set[TransactionSpan] = set()
    for start in range(0, end, 10):
        spans = log.aborted_transactions(start, min(start + 10, end)).spans
        assert spans[0].producer_id == 9
        aborted.update(spans)
    assert builder.storage.read_bytes() < 1.2 * total + 200_000
    assert len(aborted) == 151


def test_a_plan_without_producers_reads_no_headers_of_the_range() -> None:
    builder = LogBuilder(directory="/node/orders-0")
    for number in range(1000):
        builder.data(b"x" * 900, producer_id=1)
        builder.end_producer(1, commit=number % 2 == 0)
        if number % 250 == 249:
            builder.producer_snapshot({})
            builder.roll()
    storage = builder.storage
    total = sum(len(data) for path, data in storage.files.items() if path.endswith(".log"))
    log = open_path(builder.directory, storage=storage)
    end = log.read_end(isolation=COMMITTED).offset
    storage.read_bytes()
    plan = log.plan(0, end, isolation=COMMITTED, max_splits=4, with_producers=False)
    assert len(plan.splits) == 4
    assert storage.read_bytes() < total // 5


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.integers(0, 2**32))
def test_damage_anywhere_never_shows_uncommitted_records(seed: int, where: int) -> None:
    """Every flip is found except in a leader epoch, which no CRC covers."""
    written = write(seed, step_count=30, roll_often=False)
    content = written.builder.storage.files[written.builder.path()]
    at = where % len(content)
    content[at] ^= 1 << where % 8
    log = written.open()
    shown: list[int] = []
    try:
        for scan in log.scan(0, written.builder.next_offset, chunk_bytes=300):
            start, end = int(scan.batches.base_offset[0]), int(scan.batches.next_offset[-1])
            outcomes = log.aborted_transactions(start, end)
            shown += [
                offset
                for offset in visible_below(outcomes.spans, scan)
                if offset < outcomes.known_end
            ]
            if outcomes.error is not None:
                raise outcomes.error
    except LogError:
        pass
    else:
        assert 12 <= at - max(p for _, _, p in written.builder.positions if p <= at) < 16
    assert not set(shown) & written.aborted


def visible_below(spans: tuple[TransactionSpan, ...], scan: Scan) -> list[int]:
    batches, records = scan.batches, scan.records
    return [
        offset
        for row, offset in enumerate(listed(records.offset))
        if not records.is_control[row]
        and not any(
            span.producer_id == int(batches.producer_id[records.batch_ordinal[row]])
            and span.first_offset <= int(batches.base_offset[records.batch_ordinal[row]])
            and (span.marker_offset is None or offset < span.marker_offset)
            for span in spans
        )
    ]
