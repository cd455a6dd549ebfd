"""Drained batches are correct after any sequence of appends and drains."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.batch_strategies import HEADERS

from raftlog.errors import AppendError, UnexpectedEndOffsetError
from raftlog.records import (
    BatchAccumulator,
    Compression,
    NewRecord,
    ProducerStamp,
    RecordBatch,
    read_batch,
)

EPOCH = 4
START = 100

VALUES = st.builds(
    lambda byte, count: bytes([byte]) * count, st.integers(0, 255), st.integers(0, 90)
)
RECORDS = st.lists(
    VALUES
    | st.builds(NewRecord, st.none() | VALUES, VALUES, st.none() | st.integers(0, 99), HEADERS),
    max_size=8,
)
LATE = st.integers(-1, 1)
"""Offset of the required offset from the correct one; mostly zero."""
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), RECORDS),
        st.tuples(st.just("atomic"), RECORDS),
        st.tuples(st.just("alone"), RECORDS),
        st.tuples(st.just("end"), RECORDS, st.just(0) | LATE),
        st.tuples(st.just("base"), RECORDS, st.just(0) | LATE),
        st.tuples(st.just("producer"), RECORDS),
        st.tuples(st.just("drain")),
    ),
    min_size=1,
    max_size=30,
)


@dataclass
class Model:
    """Accumulator, and its expected batches."""

    collected: BatchAccumulator
    expected: list[NewRecord] = field(default_factory=list)
    atomic: list[range] = field(default_factory=list)
    """Offsets that must be in one batch."""
    alone: list[range] = field(default_factory=list)
    """Offsets that must be exactly one batch."""
    drained: list[bytes] = field(default_factory=list)
    now_ms: int = 50

    @property
    def next_offset(self) -> int:
        return START + len(self.expected)

    def take(self, step: tuple[object, ...]) -> None:
        kind = step[0]
        self.now_ms += 1
        if kind == "drain":
            self.drained += [one.data for one in self.collected.drain()]
        else:
            self.append(str(kind), step)

    def append(self, kind: str, step: tuple[object, ...]) -> None:
        records = self.records(step[1])
        try:
            last_offset = self.call(kind, step)
        except UnexpectedEndOffsetError:
            assert kind in ("end", "base")
            assert step[2] != 0
        except AppendError:
            assert kind not in ("end", "base") or step[2] == 0
        else:
            assert kind not in ("end", "base") or step[2] == 0
            offsets = range(self.next_offset, self.next_offset + len(records))
            self.expected += records
            assert last_offset == offsets.stop - 1
            if records and kind != "append":
                (self.atomic if kind == "atomic" else self.alone).append(offsets)
        assert self.collected.next_offset == self.next_offset

    def records(self, given: object) -> list[NewRecord]:
        assert isinstance(given, list)
        return [
            NewRecord(None, record) if isinstance(record, bytes) else record for record in given
        ]

    def call(self, kind: str, step: tuple[object, ...]) -> int:
        given = step[1]
        assert isinstance(given, list)
        if kind == "append":
            return self.collected.append(EPOCH, given, now_ms=self.now_ms)
        off = step[2] if kind in ("end", "base") else 0
        assert isinstance(off, int)
        return self.collected.append_atomic(
            EPOCH,
            given,
            now_ms=self.now_ms,
            required_end_offset=self.next_offset + len(given) - 1 + off if kind == "end" else None,
            required_base_offset=self.next_offset + off if kind == "base" else None,
            standalone=kind == "alone",
            producer=ProducerStamp(1, 0, 0) if kind == "producer" else None,
        )


@pytest.mark.slow
@settings(max_examples=120)
@given(STEPS, st.sampled_from([130, 200, 700]), st.sampled_from(Compression))
def test_any_sequence_of_appends_and_drains(
    steps: list[tuple[object, ...]], byte_count_max: int, compression: Compression
) -> None:
    model = Model(
        BatchAccumulator(
            epoch=EPOCH,
            next_offset=START,
            byte_count_max=byte_count_max,
            compression=compression,
        ),
    )
    for step in steps:
        model.take(step)
    model.take(("drain",))
    check_drained(model, byte_count_max)


def check_drained(model: Model, byte_count_max: int) -> None:
    next_offset = START
    spans = []
    decoded = []
    for data in model.drained:
        assert len(data) <= byte_count_max
        read = read_batch(data)
        assert isinstance(read, RecordBatch)
        assert read.base_offset == next_offset
        next_offset = read.next_offset
        spans.append(range(read.base_offset, next_offset))
        decoded += list(read.records())
    assert next_offset == model.next_offset
    assert [(record.key, record.value, record.headers) for record in decoded] == [
        (record.key, record.value, record.headers) for record in model.expected
    ]
    assert [record.offset for record in decoded] == list(range(START, next_offset))
    for record, new in zip(decoded, model.expected, strict=True):
        assert new.timestamp_ms in (None, record.timestamp_ms)
    for offsets in model.atomic:
        assert any(offsets[0] in span and offsets[-1] in span for span in spans)
    assert all(offsets in spans for offsets in model.alone)
