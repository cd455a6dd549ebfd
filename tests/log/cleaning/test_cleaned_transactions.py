"""Compaction of a log with producers' transactions, which raftlog's own writers refuse."""

from __future__ import annotations

from random import Random

import pytest
from tests.log.cleaning.test_compaction import compact, fill, log_of, records_of
from tests.simulated_disk.simulated_disk import SimulatedDisk
from tests.support.appending import DIRECTORY, NOW_MS, append_batches, reopened
from tests.support.batch_encoding import NewRecordBatch, encode_batch
from tests.support.both_implementations import in_each
from tests.support.log_builder import control_batch

from raftlog.log.cleaning.retained_records import OffsetMap
from raftlog.log.reading.latest_by_key import LatestByKey
from raftlog.log.reading.opening import open_log
from raftlog.log.reading.reads import LogKind
from raftlog.log.segment import AbortedTransaction
from raftlog.log.writing.single_voter_log import SingleVoterLog
from raftlog.records.batch import RecordBatch, iter_batches
from raftlog.records.control import ControlType, EndTransactionMarker
from raftlog.records.record import NewRecord

PRODUCERS = range(3)


def data_batch(log: SingleVoterLog, producer_id: int, sequence: int, record: NewRecord) -> bytes:
    new = NewRecordBatch(
        records=(record,),
        base_timestamp_ms=NOW_MS,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        is_transactional=True,
    )
    return encode_batch(new, base_offset=log.end_offset, leader_epoch=log.epoch)


def marker(log: SingleVoterLog, producer_id: int, outcome: ControlType) -> bytes:
    end = EndTransactionMarker(control_type=outcome, coordinator_epoch=0)
    return control_batch(
        [end], base_offset=log.end_offset, epoch=log.epoch, producer_id=producer_id
    )


def interleave(log: SingleVoterLog, rng: Random, count: int) -> set[int]:
    """Append plain records and those of three producers; return the aborted offsets."""
    aborted: set[int] = set()
    open_offsets: dict[int, list[int]] = {}
    sequences = dict.fromkeys(PRODUCERS, 0)
    for at in range(count):
        value = None if rng.random() < 0.2 else b"%d" % at + b"v" * 20
        record = NewRecord(b"key %d" % rng.randrange(6), value)
        producer_id = rng.choice((*PRODUCERS, -1))
        if producer_id < 0:
            fill(log, rng.randrange(100), 1)
            continue
        sequence = sequences[producer_id]
        sequences[producer_id] += 1
        open_offsets.setdefault(producer_id, []).append(log.end_offset)
        append_batches(log, data_batch(log, producer_id, sequence, record))
        if rng.random() < 0.3:
            end_one(log, producer_id, rng, open_offsets, aborted)
    for producer_id in list(open_offsets):
        end_one(log, producer_id, rng, open_offsets, aborted)
    log.flush()
    return aborted


def end_one(
    log: SingleVoterLog,
    producer_id: int,
    rng: Random,
    open_offsets: dict[int, list[int]],
    aborted: set[int],
) -> None:
    offsets = open_offsets.pop(producer_id)
    is_aborted = rng.random() < 0.5
    append_batches(
        log, marker(log, producer_id, ControlType.ABORT if is_aborted else ControlType.COMMIT)
    )
    aborted.update(offsets if is_aborted else ())


def committed_state(disk: SimulatedDisk, end_offset: int) -> dict[bytes, tuple[int, bytes | None]]:
    latest = LatestByKey(DIRECTORY)
    latest.read(open_log(disk, DIRECTORY, kind=LogKind.PARTITION), end_offset)
    return {key: (one.offset, one.value) for key, one in latest.records()}


@pytest.mark.parametrize("seed", range(8))
def test_records_of_aborted_transactions_are_dropped_and_supersede_nothing(seed: int) -> None:
    def found() -> list[tuple[int, bytes | None]]:
        rng = Random(seed)
        disk, log = log_of()
        aborted = interleave(log, rng, 60)
        fill(log, seed, 12)
        end_offset = log.end_offset
        wanted = committed_state(disk, end_offset)
        active = log._segments.active.base_offset
        assert compact(log)
        assert committed_state(disk, end_offset) == wanted
        assert not [one.offset for one in records_of(disk) if one.offset in aborted], "but dropped"
        assert aborted
        assert max(aborted) < active
        log.close()
        again = reopened(disk)
        assert again.report.was_clean
        aborted |= interleave(again, rng, 40)
        fill(again, seed + 1, 12)
        wanted = committed_state(disk, again.end_offset)
        assert compact(again)
        assert committed_state(disk, again.end_offset) == wanted
        return [(one.offset, one.value) for one in records_of(disk)]

    first, *others = in_each(found)
    assert all(one == first for one in others)


def test_a_marker_in_the_active_segment_decides_batches_of_sealed_ones() -> None:
    disk, log = log_of()
    fill(log, 1, 1)
    kept = records_of(disk)[0]
    append_batches(log, data_batch(log, 5, 0, NewRecord(kept.key, b"aborted")))
    aborted_offset = log.end_offset - 1
    fill_other_keys(log)
    assert log._segments.active.base_offset > aborted_offset
    append_batches(log, marker(log, 5, ControlType.ABORT))
    log.flush()
    assert compact(log)
    offsets = {one.offset for one in records_of(disk)}
    assert kept.offset in offsets
    assert aborted_offset not in offsets


def fill_other_keys(log: SingleVoterLog) -> None:
    base_offset = log._segments.active.base_offset
    while log._segments.active.base_offset == base_offset:
        fill_one = NewRecordBatch(
            records=(NewRecord(b"other", b"v" * 50),), base_timestamp_ms=NOW_MS
        )
        append_batches(
            log, encode_batch(fill_one, base_offset=log.end_offset, leader_epoch=log.epoch)
        )
    log.flush()


def test_a_transaction_is_found_among_all_of_its_producer_in_few_steps() -> None:
    """A producer may have aborted each of its transactions, and each batch is looked up."""
    count = 5_000
    looked_at: list[int] = []

    class Counted(AbortedTransaction):
        def __getattribute__(self, name: str) -> object:
            if name == "first_offset":
                looked_at.append(1)
            return super().__getattribute__(name)

    aborted = [
        Counted(
            producer_id=at % 2, first_offset=20 * at, last_offset=20 * at + 9, last_stable_offset=0
        )
        for at in range(count)
    ]
    offsets = OffsetMap(0, 1_000, reversed(aborted))
    looked_at.clear()
    for at in (0, 1, count // 2, count - 2, count - 1):
        for delta, is_inside in ((0, True), (8, True), (9, False), (19, False)):
            for producer_id in (0, 1):
                batch = new_batch(20 * at + delta, producer_id)
                assert offsets.is_aborted(batch) == (is_inside and producer_id == at % 2)
    assert not offsets.is_aborted(new_batch(0, 7))
    assert not offsets.is_aborted(new_batch(0, 0, is_transactional=False))
    assert len(looked_at) < 5 * 4 * 2 * 20


def new_batch(base_offset: int, producer_id: int, *, is_transactional: bool = True) -> RecordBatch:
    new = NewRecordBatch(
        records=(NewRecord(b"a", b"1"),),
        base_timestamp_ms=NOW_MS,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=is_transactional,
    )
    (batch,) = iter_batches(encode_batch(new, base_offset=base_offset, leader_epoch=1))
    return batch
