"""The compiled core and Python retain the same bytes of any batches, and raise the same errors."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random

import pytest
from crc32c import crc32c
from tests.log.cleaning.test_retained_records import (
    NOW_MS,
    RULES,
    RandomLog,
    bytes_of,
    filtered,
    new_batch,
)
from tests.support.both_implementations import in_each

from raftlog import compiled
from raftlog.errors import CorruptBatchError
from raftlog.limits import HEADERS_PER_BATCH_MAX, HEADERS_PER_RECORD_MAX, INT64_MAX
from raftlog.log.cleaning.retained_records import ENTRY_BYTES, OffsetMap, RetentionRules
from raftlog.log.format.epoch_cache import EpochCache
from raftlog.log.segment import BatchCursor
from raftlog.records.batch import RecordBatch, read_batch
from raftlog.records.compression import Compression
from raftlog.records.fields import varint
from raftlog.records.record import Header, StoredRecord, record_bytes

MAP_BYTES = 1 << 20
ATTRIBUTES_POSITION = 21


def outcome(
    data: bytes,
    rules: RetentionRules = RULES,
    *,
    epochs: EpochCache | None = None,
    start_offset: int = 0,
    map_bytes: int = MAP_BYTES,
) -> object:
    """Return what is retained, the counts, and the end of the map; or the error."""

    def cursor() -> BatchCursor:
        return BatchCursor(data=data, next_offset=0, epochs=epochs, path="log", position=7)

    offsets, first, second = OffsetMap(start_offset, map_bytes), cursor(), cursor()
    try:
        is_whole = offsets.add_all(first)
        retained = filtered([second], offsets, rules)
    except CorruptBatchError as error:
        return str(error)
    return retained, is_whole, len(offsets), offsets.end_offset, second.at, second.next_offset


def overlong(number: int) -> bytes:
    """Return a zigzag varint with one byte more than needed."""
    encoded = varint(number)
    return encoded[:-1] + bytes((encoded[-1] | 0x80, 0))


def encoded(rng: Random, stored: StoredRecord) -> bytes:
    """Encode a record, as the builder does or in another valid form."""
    data = record_bytes(stored)
    body = data[1 + next(at for at, byte in enumerate(data) if byte < 0x80) :]
    match rng.randrange(8):
        case 0:
            return varint(len(body)) + b"\x01" + body[1:]  # an attribute
        case 1:
            return overlong(len(body)) + body
        case 2:
            after = 1 + len(varint(stored.timestamp_delta))
            body = body[:1] + overlong(stored.timestamp_delta) + body[after:]
            return varint(len(body)) + body
    return data


def changed(rng: Random, stored: StoredRecord) -> StoredRecord:
    """Return a record with fields that few records have."""
    match rng.randrange(8):
        case 0:
            headers = (Header("h", None), Header("\ufffd", b"v", b"\xff\xfe"))
            return replace(stored, headers=headers[: rng.randrange(3)])
        case 1:
            return replace(stored, key=rng.choice((None, b"", b"k" * 200)))
        case 2:
            far = rng.choice((2**62, -(2**62), INT64_MAX, -INT64_MAX))
            return replace(stored, timestamp_delta=far)
    return stored


def mutated(rng: Random, batches: list[RecordBatch]) -> bytes:
    """Return the bytes of a log, some of whose batches are unusual, and some damaged."""
    parts = []
    for one in batches:
        if rng.random() < 0.4 and one.compression is Compression.NONE:
            records = [encoded(rng, changed(rng, stored)) for stored in one.stored_records()]
            one = replace(one, payload=b"".join(records))
        if rng.random() < 0.1:
            horizon_ms = NOW_MS + rng.choice((-1, 0, 1))
            one = replace(one, delete_horizon_ms=horizon_ms, base_timestamp_ms=horizon_ms)
        if rng.random() < 0.03:
            one = replace(one, record_count=max(0, one.record_count - rng.randrange(3)))
        if rng.random() < 0.05:
            one = replace(one, is_control=True)
        if rng.random() < 0.03 and one.payload:
            at = rng.randrange(len(one.payload))
            flipped = bytes((one.payload[at] ^ 1 << rng.randrange(8),))
            one = replace(one, payload=one.payload[:at] + flipped + one.payload[at + 1 :])
        parts.append(bytes_of([one]))
    data = bytearray(b"".join(parts))
    if rng.random() < 0.15:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    if rng.random() < 0.2:
        del data[rng.randrange(len(data)) :]
    return bytes(data)


def compared(seed: int) -> object:
    """Return the outcome of a mutated log, which is the same in both implementations."""
    rng, batches = Random(seed), RandomLog(seed).batches()
    data = mutated(rng, batches)
    epochs = None
    if rng.random() < 0.7:
        epochs = EpochCache.of((one.leader_epoch, one.base_offset) for one in batches)
        if rng.random() < 0.2:
            epochs = EpochCache(epochs.entries[rng.randrange(len(epochs.entries) + 1) :])
    ends = [one.last_offset for one in batches]
    rules = replace(
        RULES,
        now_ms=rng.choice((0, NOW_MS, NOW_MS * 2)),
        delete_retention_ms=rng.choice((0, 1_000, INT64_MAX)),
        last_producer_batches=frozenset(rng.sample(ends, rng.randrange(len(ends) + 1))),
        last_commits=frozenset(rng.sample(ends, min(rng.randrange(3), len(ends)))),
    )
    call = partial(
        outcome,
        data,
        rules,
        epochs=epochs,
        start_offset=rng.choice((0, 0, rng.randrange(ends[-1] + 1))),
        map_bytes=rng.choice((MAP_BYTES, MAP_BYTES, 1, 3 * (ENTRY_BYTES + 2))),
    )
    found = in_each(call)
    assert found[0] == found[-1], f"seed {seed}"
    return found[0]


def test_mutated_batches_have_the_same_outcome() -> None:
    found = [compared(seed) for seed in range(400)]
    assert 40 < sum(isinstance(one, str) for one in found) < 300, "errors and results occur"


@pytest.mark.nightly
def test_many_mutated_batches_have_the_same_outcome() -> None:
    for seed in range(400, 40_000):
        compared(seed)


def test_a_batch_of_which_everything_is_retained_keeps_its_bytes() -> None:
    """Also attributes without a meaning, and records that another writer encodes differently."""
    records = [StoredRecord(at, at, b"key %d" % at, b"v", ()) for at in range(3)]
    body = record_bytes(records[0])[1:]
    payload = overlong(len(body)) + body + b"".join(map(record_bytes, records[1:]))
    like = new_batch(0, *((one.key, one.value) for one in records))
    data = bytearray(bytes_of([replace(like, payload=payload)]))
    data[ATTRIBUTES_POSITION] |= 0x10
    data[17:21] = crc32c(bytes(data[ATTRIBUTES_POSITION:])).to_bytes(4, "big")
    assert isinstance(read_batch(bytes(data)), RecordBatch)
    for found in in_each(partial(outcome, bytes(data))):
        assert isinstance(found, tuple)
        assert found[0][0] == data


@pytest.mark.skipif(not compiled.is_native, reason="the compiled core is not built")
@pytest.mark.parametrize("compression", Compression)
def test_plain_batches_are_not_given_back(compression: Compression) -> None:
    """Python would handle them with the same outcome, at a tenth of the speed."""
    pairs = [(b"k%d" % (at % 7), None if at % 5 == 0 else b"v" * at) for at in range(40)]
    batches = [new_batch(at * 40, *pairs, compression=compression) for at in range(3)]
    data = bytes_of(batches)
    place = (0, 0, None, None, HEADERS_PER_RECORD_MAX, HEADERS_PER_BATCH_MAX)
    offsets = compiled.core.OffsetMap(0, ENTRY_BYTES, MAP_BYTES)

    def expand(start: int, end: int, codec: int) -> bytes:
        assert codec == compression
        batch = next(one for one in batches if bytes_of([one]).endswith(data[start:end]))
        return b"".join(map(record_bytes, batch.stored_records()))

    assert offsets.add(data, place, expand) == (len(data), 120, False)
    retention = compiled.core.Retention(NOW_MS, NOW_MS, [])
    found = offsets.filter(data, place, retention, None, expand, lambda records, _: records[:1])
    assert found is not None
    assert found[1:3] == (len(data), 120)
