"""A compaction retains the last record of each key, and what a log needs besides."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from tests.support.batch_encoding import NewRecordBatch, encode_batch
from tests.support.both_implementations import in_each, pure_python

from raftlog.limits import READ_BATCH_BYTES_MAX
from raftlog.log.cleaning.retained_records import (
    ENTRY_BYTES,
    BatchFilter,
    CleanedCounts,
    OffsetMap,
    RetentionRules,
)
from raftlog.log.reading.transactions import CommitName, ValueKind, batch_metadata, commit_header
from raftlog.log.segment import BatchCursor
from raftlog.records.batch import RecordBatch, iter_batches, read_batch
from raftlog.records.builder import finish_batch
from raftlog.records.compression import Compression
from raftlog.records.header import (
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
)
from raftlog.records.record import NewRecord
from raftlog.records.scan import scan

NOW_MS = 5_000_000
RULES = RetentionRules(now_ms=NOW_MS, delete_retention_ms=1_000)
MAP_BYTES = 1 << 20


def batch_bytes(
    base_offset: int,
    *pairs: tuple[bytes | None, bytes | None],
    epoch: int = 1,
    compression: Compression = Compression.NONE,
    producer: tuple[int, int, int] = (-1, -1, -1),
    commit: CommitName | None = None,
) -> bytes:
    headers = () if commit is None else (commit_header(commit),)
    records = tuple(
        NewRecord(key, value, 1_000 + base_offset + at, headers if at == 0 else ())
        for at, (key, value) in enumerate(pairs)
    )
    new = NewRecordBatch(
        records=records,
        base_timestamp_ms=1_000 + base_offset,
        compression=compression,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
    )
    return encode_batch(new, base_offset=base_offset, leader_epoch=epoch)


def new_batch(
    base_offset: int, *pairs: tuple[bytes | None, bytes | None], **how: Any
) -> RecordBatch:
    """Return the batch of ``batch_bytes``."""
    return decoded(batch_bytes(base_offset, *pairs, **how))


def decoded(data: bytes) -> RecordBatch:
    batch = read_batch(data)
    assert isinstance(batch, RecordBatch)
    return batch


def mapped(batches: Sequence[RecordBatch], start_offset: int = 0) -> OffsetMap:
    offsets = OffsetMap(start_offset, MAP_BYTES)
    if batches:
        for cursor in cursors(bytes_of(batches), batches[0].base_offset):
            assert offsets.add_all(cursor)
    return offsets


def bytes_of(batches: Iterable[RecordBatch]) -> bytes:
    """Return the bytes of batches; bits of their attributes that have no meaning are 0."""
    return b"".join(
        finish_batch(
            one.payload,
            base_offset=one.base_offset,
            leader_epoch=one.leader_epoch,
            byte_count_max=READ_BATCH_BYTES_MAX,
            compression=one.compression,
            flags=TIMESTAMP_TYPE_BIT * bool(one.timestamp_type)
            | TRANSACTIONAL_BIT * one.is_transactional
            | CONTROL_BIT * one.is_control
            | DELETE_HORIZON_BIT * (one.delete_horizon_ms is not None),
            last_offset_delta=one.last_offset - one.base_offset,
            base_timestamp_ms=one.base_timestamp_ms,
            max_timestamp_ms=one.max_timestamp_ms,
            producer=(one.producer_id, one.producer_epoch, one.base_sequence),
            record_count=one.record_count,
        )
        for one in batches
    )


def cursors(data: bytes, base_offset: int, size: int = 1 << 20) -> Iterator[BatchCursor]:
    """Yield the batches of ``data`` in pieces of at least ``size`` bytes."""
    at, end = 0, 0
    for one in iter_batches(data):
        end += one.byte_count
        if end - at >= size or end == len(data):
            yield BatchCursor(data=data[at:end], next_offset=base_offset)
            at, base_offset = end, one.next_offset


def filtered(
    batches: Iterable[BatchCursor], offsets: OffsetMap, rules: RetentionRules = RULES
) -> tuple[bytes, CleanedCounts]:
    """Return the bytes that replace these batches, and the counts."""
    found = BatchFilter(offsets, rules)
    parts = [bytes(part) for one in batches for part in found.clean(one)]
    return b"".join((*parts, found.finish())), found.counts


def cleaned(
    batches: Sequence[RecordBatch],
    rules: RetentionRules = RULES,
    offsets: Callable[[], OffsetMap] | None = None,
) -> list[RecordBatch]:
    """Return the batches that replace these, which are the same in both implementations."""
    before, base_offset = bytes_of(batches), batches[0].base_offset

    def found() -> tuple[bytes, CleanedCounts]:
        using = mapped(batches) if offsets is None else offsets()
        return filtered(cursors(before, base_offset), using, rules)

    (data, counts), *others = in_each(found)
    assert all(other == (data, counts) for other in others)
    after = list(iter_batches(data))
    assert counts.records_retained == sum(one.record_count for one in after)
    assert sum(one.byte_count for one in after) == len(data)
    check_contiguous(batches, after)
    return after


def check_contiguous(before: Sequence[RecordBatch], after: Sequence[RecordBatch]) -> None:
    """Check that the offsets, their epochs and the timestamps are those of before."""
    assert after[0].base_offset == before[0].base_offset
    assert after[-1].last_offset == before[-1].last_offset
    for one, following in pairwise(after):
        assert following.base_offset == one.next_offset
    epochs = {
        offset: one.leader_epoch
        for one in before
        for offset in range(one.base_offset, one.next_offset)
    }
    for one in after:
        assert {epochs[at] for at in range(one.base_offset, one.next_offset)} == {one.leader_epoch}
    latest = [max(one.max_timestamp_ms for one in batches) for batches in (before, after)]
    assert latest[0] == latest[1]


def rows(batches: Iterable[RecordBatch]) -> list[tuple[int, int, bytes | None, bytes | None]]:
    return [
        (one.offset, one.timestamp_ms, one.key, one.value)
        for batch in batches
        for one in batch.records()
    ]


@dataclass
class RandomLog:
    """Random batches of a few keys: codecs, producers, epochs, tombstones."""

    seed: int

    def batches(self) -> list[RecordBatch]:
        rng, found, offset, epoch = Random(self.seed), [], 0, 1
        sequences = [0, 0]
        for _ in range(rng.randrange(1, 40)):
            pairs = [
                (b"k%d" % rng.randrange(8), rng.choice((None, b"v%d" % rng.randrange(99))))
                for _ in range(rng.randrange(1, 6))
            ]
            producer = (-1, -1, -1)
            if rng.random() < 0.3:
                producer_id = rng.randrange(2)
                producer = (producer_id, 0, sequences[producer_id])
                sequences[producer_id] += len(pairs)
            epoch += rng.random() < 0.1
            found.append(
                new_batch(
                    offset,
                    *pairs,
                    epoch=epoch,
                    producer=producer,
                    compression=rng.choice(tuple(Compression)),
                )
            )
            offset = found[-1].next_offset
        return found


@pytest.mark.parametrize("seed", range(60))
def test_the_last_record_of_each_key_is_retained_and_nothing_else(seed: int) -> None:
    batches = RandomLog(seed).batches()
    last = {key: offset for offset, _, key, _ in rows(batches)}
    expected = [one for one in rows(batches) if last[one[2]] == one[0]]
    after = cleaned(batches)
    assert rows(after) == expected
    again = cleaned(after)
    assert [(one.base_offset, one.crc) for one in again] == [
        (one.base_offset, one.crc) for one in after
    ], "a second compaction changes nothing"
    later = cleaned(after, RetentionRules(now_ms=NOW_MS + 1_000, delete_retention_ms=1_000))
    assert rows(later) == [one for one in expected if one[3] is not None], "tombstones expired"


@pytest.mark.parametrize("seed", range(20))
def test_records_above_the_mapped_range_and_below_the_dirty_one_are_compared_right(
    seed: int,
) -> None:
    """The map covers [start, end): older records are compared with it, later ones are retained."""
    rng, batches = Random(seed), RandomLog(seed + 1_000).batches()
    start = rng.randrange(batches[-1].next_offset)
    bound = rng.choice((1, 500, 1_000, MAP_BYTES))

    def offsets() -> OffsetMap:
        found = OffsetMap(start, bound)
        for batch in batches:
            if batch.last_offset >= start and not found.add(batch):
                break
        return found

    end, *others = [one.end_offset for one in in_each(offsets)]
    assert others in ([], [end])
    assert end > start, "at least one record is mapped, whatever the bound"
    last = {key: offset for offset, _, key, _ in rows(batches) if start <= offset < end}
    expected = [
        one for one in rows(batches) if one[0] >= end or one[0] >= last.get(one[2] or b"", -1)
    ]
    assert rows(cleaned(batches, offsets=offsets)) == expected


def test_adjacent_dropped_batches_become_one_empty_batch() -> None:
    batches = [new_batch(at, (b"k", b"v%d" % at)) for at in range(10)]
    after = cleaned(batches)
    assert [(one.base_offset, one.last_offset, one.record_count) for one in after] == [
        (0, 8, 0),
        (9, 9, 1),
    ]
    assert after[0].byte_count == 61
    assert after[1].crc == batches[9].crc, "a batch that loses nothing keeps its bytes"


def test_an_empty_batch_does_not_cross_an_epoch() -> None:
    batches = [new_batch(at, (b"k", b"v"), epoch=1 + at // 3) for at in range(7)]
    after = cleaned(batches)
    assert [(one.base_offset, one.last_offset) for one in after] == [(0, 2), (3, 5), (6, 6)]


def test_the_last_batch_of_a_producer_keeps_its_header() -> None:
    batches = [
        new_batch(0, (b"k", b"1"), producer=(7, 0, 0)),
        new_batch(1, (b"k", b"2"), (b"k", b"3"), producer=(7, 0, 1)),
        new_batch(3, (b"k", b"4")),
    ]
    rules = RetentionRules(
        now_ms=NOW_MS, delete_retention_ms=1_000, last_producer_batches=frozenset({2})
    )
    after = cleaned(batches, rules)
    assert [(one.producer_id, one.base_sequence, one.record_count) for one in after] == [
        (-1, -1, 0),
        (7, 1, 0),
        (-1, -1, 1),
    ]
    assert (after[1].base_offset, after[1].last_offset) == (1, 2), "the last sequence follows"


def test_the_record_that_names_the_last_commit_is_retained() -> None:
    old, last = CommitName("app", "q", 1), CommitName("app", "q", 2)
    batches = [
        new_batch(0, (b"a", b"1"), (b"b", b"1"), commit=old),
        new_batch(2, (b"a", b"2"), (b"b", b"2"), commit=last),
        new_batch(4, (b"a", b"3"), (b"b", b"3")),
    ]
    rules = RetentionRules(now_ms=NOW_MS, delete_retention_ms=1_000, last_commits=frozenset({3}))
    after = cleaned(batches, rules)
    names = [batch_metadata(one, ValueKind.BYTES).commit for one in after]
    assert names == [None, last, None]
    assert [one[0] for one in rows(after)] == [2, 4, 5]


def test_a_superseded_record_that_names_the_last_commit_loses_its_value() -> None:
    """Its tombstone is dropped, and the commit is not the last one any more: it stays deleted."""
    name = CommitName("app", "q", 1)
    rules = replace(RULES, last_commits=frozenset({1}))
    batches = [
        new_batch(0, (b"a", b"1"), (b"gone", None), commit=name),
        new_batch(2, (b"b", b"1")),
    ]
    after = cleaned(batches, rules)
    assert rows(after)[0][2:] == (b"a", b"1"), "it is the last of its key"
    assert after[0].delete_horizon_ms
    after = cleaned([*after, new_batch(3, (b"a", None))], rules)
    assert [one[2:] for one in rows(after)] == [
        (b"a", None),
        (b"gone", None),
        (b"b", b"1"),
        (b"a", None),
    ]
    assert batch_metadata(after[0], ValueKind.BYTES).commit == name
    later = replace(rules, now_ms=NOW_MS + 1_000)
    after = cleaned(after, later, lambda: mapped([], start_offset=4))
    assert [one[2:] for one in rows(after)] == [(b"a", None), (b"b", b"1")]
    assert batch_metadata(after[0], ValueKind.BYTES).commit == name
    after = cleaned(
        after, replace(later, last_commits=frozenset()), lambda: mapped([], start_offset=4)
    )
    assert [one[2:] for one in rows(after)] == [(b"b", b"1")]


def test_the_latest_delete_horizon_is_that_of_the_field() -> None:
    rules = replace(RULES, delete_retention_ms=2**63 - 1)
    (after,) = cleaned([new_batch(0, (b"a", None), (b"b", b"1"))], rules)
    assert after.delete_horizon_ms == 2**63 - 1
    assert rows([after]) == [(0, 1_000, b"a", None), (1, 1_001, b"b", b"1")]


def test_an_entry_of_the_map_takes_no_more_memory_than_is_counted() -> None:
    """Just after the dictionary has grown: the old and the new table exist then."""
    count = 10_924
    batch = new_batch(0, *((b"%09d" % at, None) for at in range(count)))
    tracemalloc.start()
    try:
        with pure_python():
            offsets = OffsetMap(0, count * (ENTRY_BYTES + 9))
        assert offsets.add(batch)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(offsets) == count
    assert peak_bytes <= count * (ENTRY_BYTES + 9)


def test_a_tombstone_gets_a_delete_horizon_and_is_dropped_after_it() -> None:
    batches = [new_batch(0, (b"a", b"1")), new_batch(1, (b"a", None), (b"b", b"1"))]
    after = cleaned(batches)
    assert after[1].delete_horizon_ms == NOW_MS + RULES.delete_retention_ms
    assert rows(after) == [(1, 1_001, b"a", None), (2, 1_002, b"b", b"1")]
    just_before = RetentionRules(now_ms=NOW_MS + 999, delete_retention_ms=5)
    before = cleaned(after, just_before)
    assert [one.crc for one in before] == [one.crc for one in after], "the first horizon holds"
    at = RetentionRules(now_ms=NOW_MS + 1_000, delete_retention_ms=5)
    assert rows(cleaned(after, at)) == [(2, 1_002, b"b", b"1")]


def test_an_expired_tombstone_after_the_mapped_range_is_retained() -> None:
    """The value before it is not yet known to be superseded."""
    value = new_batch(0, (b"a", b"1"))
    tombstone = cleaned([new_batch(1, (b"a", None))])
    later = replace(RULES, now_ms=NOW_MS * 2)
    after = cleaned([value, *tombstone], later, lambda: mapped([value]))
    assert [one[0] for one in rows(after)] == [0, 1]


@pytest.mark.parametrize(("key_count", "end_offset"), [(1, 1), (2, 2)])
def test_a_tombstone_after_the_mapped_range_gets_no_delete_horizon(
    key_count: int, end_offset: int
) -> None:
    """Else the next compaction might drop it together with its older values: a reader that has read
    one of them, and reads on within ``delete.retention.ms``, would not read the tombstone."""
    batches = [new_batch(0, (b"a", b"1")), new_batch(1, (b"b", None), (b"c", None), (b"a", None))]

    def offsets() -> OffsetMap:
        found = OffsetMap(0, key_count * (ENTRY_BYTES + 1))
        assert [found.add(batch) for batch in batches] == [True, False]
        assert found.end_offset == end_offset
        return found

    before = cleaned(batches, offsets=offsets)
    assert [one.crc for one in before] == [one.crc for one in batches]
    later = replace(RULES, now_ms=NOW_MS + RULES.delete_retention_ms)
    after = cleaned(before, later)
    assert [row[2:] for row in rows(after)] == [(b"b", None), (b"c", None), (b"a", None)]
    assert after[1].delete_horizon_ms == later.now_ms + RULES.delete_retention_ms


def test_records_without_a_key_and_control_batches() -> None:
    """A record without a key, of before the policy, is dropped as by Kafka; control is retained."""
    control = decoded(
        encode_batch(
            NewRecordBatch(
                records=(NewRecord(b"\0\0\0\1", b"\0\0"),),
                base_timestamp_ms=1,
                is_control=True,
                producer_id=3,
                producer_epoch=0,
                base_sequence=-1,
                is_transactional=True,
            ),
            base_offset=2,
            leader_epoch=1,
        )
    )
    batches = [new_batch(0, (None, b"x"), (b"a", b"1")), control, new_batch(3, (b"b", b"1"))]
    after = cleaned(batches)
    assert [one[0] for one in rows(after)] == [1, 2, 3]
    assert after[1].crc == control.crc


@pytest.mark.parametrize("seed", range(10))
def test_the_columnar_readers_read_compacted_batches(seed: int) -> None:
    after = cleaned(RandomLog(seed + 2_000).batches())
    data, _ = filtered(cursors(bytes_of(after), after[0].base_offset), mapped(after))
    expected = [one[0] for one in rows(after)]
    for found in in_each(lambda: scan(data)):
        assert found.records.offset is not None
        assert found.records.offset.to_pylist() == expected
        assert [int(one) for one in found.batches.base_offset] == [one.base_offset for one in after]
