"""Hypothesis strategies for valid Kafka batches, and for invalid ones with a matching CRC."""

from __future__ import annotations

from crc32c import crc32c
from hypothesis import strategies as st

from raftlog.limits import BATCH_HEADER_BYTES
from raftlog.records.batch import Compression, Header, NewRecord, TimestampType
from raftlog.records.header import BATCH_HEADER
from tests.support.batch_encoding import NewRecordBatch

INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TIMES_MS = st.one_of(st.integers(1_600_000_000_000, 1_800_000_000_000), INT64)
LONG = st.builds(
    lambda byte, count: byte * count, st.binary(min_size=1, max_size=1), st.integers(8150, 8250)
)
"""Lengths around the limit at which a varint has three bytes."""
MAYBE_BYTES = st.none() | st.binary(max_size=80) | LONG
HEADERS = st.lists(
    st.builds(Header, st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=4
).map(tuple)


@st.composite
def new_batches(draw: st.DrawFn, count_max: int = 12) -> NewRecordBatch:
    """Strategy for batches of every kind, with and without gaps in their offsets."""
    count = draw(st.integers(0, count_max))
    steps = draw(st.lists(st.integers(1, 1000) | st.just(1), min_size=count, max_size=count))
    plain = draw(st.booleans())  # as KRaft writes: no keys, one time, no gaps
    records, deltas = [], []
    delta = -1
    for step in steps:
        delta += 1 if plain else step
        deltas.append(delta)
        records.append(
            NewRecord(
                key=None if plain else draw(MAYBE_BYTES),
                value=draw(MAYBE_BYTES),
                timestamp_ms=None if plain else draw(st.none() | TIMES_MS),
                headers=() if plain else draw(HEADERS),
            )
        )
    return NewRecordBatch(
        records=tuple(records),
        offset_deltas=tuple(deltas),
        base_timestamp_ms=draw(TIMES_MS),
        max_timestamp_ms=draw(TIMES_MS),
        last_offset_delta=max(delta, 0) + draw(st.sampled_from([0, 0, 3])),
        compression=draw(st.sampled_from(Compression)),
        timestamp_type=draw(st.sampled_from(TimestampType)),
        is_transactional=draw(st.booleans()),
        is_control=draw(st.booleans()),
        delete_horizon_ms=draw(st.none() | TIMES_MS),
        producer_id=draw(INT64),
        producer_epoch=draw(INT16),
        base_sequence=draw(INT32),
    )


def resealed(batch: bytes) -> bytes:
    """Return ``batch`` with length and CRC recomputed: corruption that no CRC detects."""
    fields = list(BATCH_HEADER.unpack_from(batch))
    payload = batch[BATCH_HEADER_BYTES:]
    fields[1] = len(batch) - 12
    head = BATCH_HEADER.pack(*fields)
    fields[4] = crc32c(payload, crc32c(head[21:]))
    return BATCH_HEADER.pack(*fields) + payload
