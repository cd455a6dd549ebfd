"""Recovery decodes few batches of a producer, and has the state of all of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import accumulate

import pytest
from tests.support.batch_encoding import NewRecordBatch, encode_batch
from tests.support.memory_storage import MemoryStorage

from raftlog.limits import PRODUCER_BATCHES_KEPT
from raftlog.log.reading.transactions import (
    BatchMetadata,
    CommitName,
    ValueKind,
    batch_metadata,
    commit_header,
)
from raftlog.log.recovery import load_log, recover_segment
from raftlog.log.recovery.load_log import replay
from raftlog.log.recovery.recover_segment import ScanPosition, ScanRules, SegmentScan
from raftlog.log.writing import producer_state
from raftlog.log.writing.producer_state import ProducerStateManager
from raftlog.records.batch import NewRecord, RecordBatch, iter_batches
from raftlog.records.compression import Compression
from raftlog.records.control import ControlType, EndTransactionMarker, encode_control

PATH = "/log/00000000000000000000.log"
SEEDS = 150
BATCHES = 150
CHUNK_BYTES = (600, 4096, 2**20)
PRODUCERS = 8
TRANSACTIONAL = (6, 7)
SHARES = (9, 3, 1, 1, 1, 1, 1, 1)
"""Of the producers: an entry depends on few batches only if its producer has many."""


def random_batch(rng: random.Random, timestamp_ms: int) -> NewRecordBatch:
    """Return a batch of some producer, or of none; also what no leader accepts."""
    (producer_id,) = rng.choices(range(PRODUCERS), SHARES)
    epoch = rng.choice((0, 1, 1, 1, 2, 2))
    roll = rng.random()
    if roll < 0.1:
        kind = rng.choice((ControlType.COMMIT, ControlType.ABORT))
        marker = EndTransactionMarker(control_type=kind, coordinator_epoch=rng.randrange(3))
        return NewRecordBatch(
            records=(NewRecord(*encode_control(marker)),),
            base_timestamp_ms=timestamp_ms,
            is_control=True,
            is_transactional=True,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=rng.choice((-1, 0)),
        )
    name = CommitName(f"app-{rng.randrange(3)}", "query", rng.randrange(100))
    headers = (commit_header(name),) if rng.random() < 0.05 else ()
    records = tuple(NewRecord(None, b"v", None, headers) for _ in range(rng.choice((1, 1, 1, 3))))
    if roll < 0.2:
        return NewRecordBatch(records=records, base_timestamp_ms=timestamp_ms)
    return NewRecordBatch(
        records=records,
        base_timestamp_ms=timestamp_ms,
        compression=rng.choice((Compression.NONE,) * 9 + (Compression.GZIP,)),
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=rng.choice((-1, *range(20), 2**31 - 1)),
        is_transactional=producer_id in TRANSACTIONAL or rng.random() < 0.1,
    )


def random_segment(rng: random.Random) -> bytes:
    times_ms = accumulate(rng.randrange(-50, 100) for _ in range(BATCHES))
    batches, offset = [], 0
    for time_ms in times_ms:
        batch = random_batch(rng, max(time_ms, 0))
        batches.append(encode_batch(batch, base_offset=offset, leader_epoch=1))
        offset += len(batch.records)
    return b"".join(batches)


def record_batches(data: bytes) -> Iterator[RecordBatch]:
    for batch in iter_batches(data, path=PATH):
        assert isinstance(batch, RecordBatch)
        yield batch


def replayed(state: ProducerStateManager, data: bytes) -> list[object]:
    """Replay a segment from the end of ``state`` on; return the aborted transactions."""
    storage = MemoryStorage()
    storage.write(PATH, data)
    found: list[object] = []
    with storage.open_file(PATH) as file:
        for chunk in SegmentScan(file, ScanPosition(position=0, next_offset=0), ScanRules()):
            aborted, anomalies = replay(state, chunk, ValueKind.BYTES)
            assert not anomalies
            found += aborted
    return found


@pytest.mark.parametrize("producers_max", [PRODUCERS - 3, PRODUCERS - 1, PRODUCERS, 2 * PRODUCERS])
def test_replayed_batches_leave_the_state_of_each_of_them(
    producers_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (load_log, producer_state):
        monkeypatch.setattr(module, "PRODUCERS_MAX", producers_max)
    for seed in range(SEEDS):
        rng = random.Random(seed)
        monkeypatch.setattr(recover_segment, "SCAN_CHUNK_BYTES", rng.choice(CHUNK_BYTES))
        data = random_segment(rng)
        batches = list(record_batches(data))
        known = rng.randrange(BATCHES)  # of a producer snapshot
        expected = ProducerStateManager("/log")
        for batch in batches[:known]:
            expected.apply(batch_metadata(batch, ValueKind.BYTES))
        state = expected.copy()
        aborted: list[object] = []
        for batch in batches[known:]:
            aborted += expected.apply(batch_metadata(batch, ValueKind.BYTES))
        assert replayed(state, data) == aborted, seed
        assert state.encode_snapshot() == expected.encode_snapshot(), seed
        assert state.producers == expected.producers, seed
        assert state.end_offset == expected.end_offset, seed
        assert state.data_end_offset == expected.data_end_offset, seed


def test_of_many_batches_of_a_producer_the_last_ones_are_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoded: list[int] = []

    def counted(batch: RecordBatch, values: ValueKind) -> BatchMetadata:
        decoded.append(batch.base_offset)
        return batch_metadata(batch, values)

    monkeypatch.setattr(load_log, "batch_metadata", counted)
    data = b"".join(
        encode_batch(
            NewRecordBatch(
                records=(NewRecord(None, b"v"),),
                base_timestamp_ms=at,
                producer_id=at % 2,
                producer_epoch=0,
                base_sequence=at // 2,
            ),
            base_offset=at,
            leader_epoch=1,
        )
        for at in range(1000)
    )
    state = ProducerStateManager("/log")
    replayed(state, data)
    assert decoded == list(range(1000 - 2 * PRODUCER_BATCHES_KEPT, 1000))
    assert [len(one.batches) for one in state.producers] == [PRODUCER_BATCHES_KEPT] * 2
