"""Recovery decodes few batches of a producer or an application id, and has the state of all."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import accumulate

import msgpack
import pytest
from tests.support.batch_encoding import NewRecordBatch, encode_batch
from tests.support.memory_storage import MemoryStorage

from raftlog.limits import PRODUCER_BATCHES_KEPT
from raftlog.log.reading.transactions import (
    COMMIT_HEADER,
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
from raftlog.records.record import Header

PATH = "/log/00000000000000000000.log"
BATCHES = 150
CHUNK_BYTES = (600, 4096, 2**20)
PRODUCERS = 8
TRANSACTIONAL = (6, 7)
SHARES = (9, 3, 1, 1, 1, 1, 1, 1)
"""Of the producers: an entry depends on few batches only if its producer has many."""
APPLICATION_IDS = ("a", "b" * 31, "c" * 255)


def random_batch(rng: random.Random, timestamp_ms: int) -> NewRecordBatch:
    """Return a batch of some producer, or of none; also what no leader accepts."""
    (producer_id,) = rng.choices(range(PRODUCERS), SHARES)
    epoch = rng.choice((0, 1, 1, 1, 2, 2))
    roll = rng.random()
    if roll < 0.1:
        kind = rng.choice((ControlType.COMMIT, ControlType.ABORT))
        marker = EndTransactionMarker(control_type=kind, coordinator_epoch=rng.randrange(3))
        return NewRecordBatch(
            records=(NewRecord(*encode_control(marker), None, (random_name(rng),)),),
            base_timestamp_ms=timestamp_ms,
            is_control=True,
            is_transactional=True,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=rng.choice((-1, 0)),
        )
    headers = (random_name(rng),) if rng.random() < 0.4 else ()
    value = b"v" if rng.random() < 0.8 else bytes_like_a_name(rng)
    records = tuple(NewRecord(None, value, None, headers) for _ in range(rng.choice((1, 1, 1, 3))))
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


def random_name(rng: random.Random) -> Header:
    """Return a header that names a commit, or has a value that is no name."""
    application_id = rng.choice((*"abcd", "e" * 40, "f" * 200))
    if rng.random() < 0.7:
        query_id = rng.choice(("query", "q" * 60))
        return commit_header(CommitName(application_id, query_id, rng.randrange(100)))
    packed: bytes = msgpack.packb([application_id, "query", rng.choice((-1, 7))])
    if len(application_id) == 1:  # an encoding that no encoder of raftlog writes
        packed = packed[:1] + b"\xd9\x01" + packed[2:]
    return Header(COMMIT_HEADER, rng.choice((packed, packed[:-1], b"", None)))


def bytes_like_a_name(rng: random.Random) -> bytes:
    """Return a value with the bytes that begin the name of a commit, or a part of them."""
    header = random_name(rng)
    like = header.key.encode() + bytes((2 * len(header.value or b"") & 0x7F,))
    like += (header.value or b"") + rng.choice((b"", b"raftlog.commit"))
    return like[: rng.randrange(len(like)) + 1]


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


@pytest.mark.parametrize("seed_count", [30, pytest.param(150, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("producers_max", [PRODUCERS - 3, PRODUCERS - 1, PRODUCERS, 2 * PRODUCERS])
def test_replayed_batches_leave_the_state_of_each_of_them(
    producers_max: int, seed_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (load_log, producer_state):
        monkeypatch.setattr(module, "PRODUCERS_MAX", producers_max)
        monkeypatch.setattr(module, "COMMITS_MAX", producers_max - 2)
    for seed in range(seed_count):
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
        assert state.commits == expected.commits, seed
        assert state.end_offset == expected.end_offset, seed
        assert state.data_end_offset == expected.data_end_offset, seed


def test_of_many_batches_of_producers_and_commits_the_last_ones_are_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoded: list[int] = []

    def counted(batch: RecordBatch, values: ValueKind) -> BatchMetadata:
        decoded.append(batch.base_offset)
        return batch_metadata(batch, values)

    monkeypatch.setattr(load_log, "batch_metadata", counted)
    data = b"".join(map(batch_of_a_producer_and_a_commit, range(1000)))
    state = ProducerStateManager("/log")
    replayed(state, data)
    assert decoded == list(range(1000 - 2 * PRODUCER_BATCHES_KEPT, 1000))
    assert [len(one.batches) for one in state.producers] == [PRODUCER_BATCHES_KEPT] * 2
    assert [(one.name.application_id, one.base_offset) for one in state.commits] == [
        (APPLICATION_IDS[1], 997),
        (APPLICATION_IDS[2], 998),
        (APPLICATION_IDS[0], 999),
    ]


def batch_of_a_producer_and_a_commit(at: int) -> bytes:
    """Return a batch of one of two producers, which names a commit of one of three ids."""
    headers = (commit_header(CommitName(APPLICATION_IDS[at % 3], "query", at)),)
    batch = NewRecordBatch(
        records=(NewRecord(None, b"v", None, headers),),
        base_timestamp_ms=at,
        producer_id=at % 2,
        producer_epoch=0,
        base_sequence=at // 2,
    )
    return encode_batch(batch, base_offset=at, leader_epoch=1)
